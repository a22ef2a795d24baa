//! When a guest is notified, and when it is asked to notify: decisions only. No descriptor, clock or thread is known here; what
//! the guest wants is read by the caller, at the moment of the decision, and passed in.
//!
//! [`Pending`] is one queue's signal: nothing to tell the guest, or a signal that moderation holds back. [`Kicks`] is what
//! the guest of a transmit queue was told about its kicks. `docs/notification.md` shows both as diagrams.

use crate::virtio::ctrl::Coalesce;

/// Nanoseconds on the workers' clock.
pub type Nanos = u64;

/// How moderation values of 0 are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CoalesceRule {
    /// As drivers of network cards do: 0 frames is no limit by count, 0 microseconds none by time, both 0 a signal for every
    /// burst.
    #[default]
    Nic,
    /// As virtio 1.4, 5.1.6.5.10 does: if either is 0, a signal for every burst.
    Strict,
}

impl CoalesceRule {
    /// The words for it.
    pub const NAMES: [(&'static str, CoalesceRule); 2] =
        [("nic", CoalesceRule::Nic), ("strict", CoalesceRule::Strict)];

    /// The word for this.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

/// When a queue's signal is held no longer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// At this many packets; 0: whatever their number.
    pub frames: u32,
    /// This many microseconds after the first of them; 0: however long it takes.
    pub usecs: u32,
    /// The device finds the time itself (`adaptive-rx`).
    pub adaptive: bool,
}

impl Limits {
    /// A signal for every burst.
    pub const OFF: Limits = Limits { frames: 0, usecs: 0, adaptive: false };
    /// The time is the device's own.
    pub const ADAPTIVE: Limits = Limits { frames: 0, usecs: 0, adaptive: true };
    /// Microseconds that a transmit queue's signal is held for want of a limit by time. A guest whose ring is full sends
    /// nothing more until it hears that there is room: a count alone might never be reached.
    pub const TX_LONGEST: u32 = 1000;

    const ADAPTIVE_BIT: u64 = 1 << 63;

    /// What moderation values mean for a queue.
    pub fn new(rule: CoalesceRule, values: Coalesce, transmits: bool) -> Self {
        let Coalesce { max_packets: frames, max_usecs: usecs } = values;
        let none = match rule {
            CoalesceRule::Nic => frames == 0 && usecs == 0,
            CoalesceRule::Strict => frames == 0 || usecs == 0,
        };
        // The first packet of a burst fires by count: the same as no moderation, for less.
        if none || frames == 1 {
            return Limits::OFF;
        }
        let usecs = if transmits && usecs == 0 { Self::TX_LONGEST } else { usecs };
        Limits { frames: frames.min(i32::MAX as u32), usecs, adaptive: false }
    }

    /// As one word, 0 if there is no moderation.
    pub fn to_word(self) -> u64 {
        let adaptive = if self.adaptive { Self::ADAPTIVE_BIT } else { 0 };
        adaptive | u64::from(self.frames) << 32 | u64::from(self.usecs)
    }

    /// From such a word.
    pub fn from_word(word: u64) -> Self {
        Limits {
            frames: ((word & !Self::ADAPTIVE_BIT) >> 32) as u32,
            usecs: word as u32,
            adaptive: word & Self::ADAPTIVE_BIT != 0,
        }
    }
}

/// What is known when a decision is made.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The time.
    pub now: Nanos,
    /// Packets that were published since the last decision.
    pub packets: u64,
    /// The guest wants a signal for what was published since it was last signalled, or last said that it wants none. Read
    /// after publishing, and not before this decision.
    pub wanted: bool,
    /// The ring has little left of what the guest has put into it: it must hear of the rest.
    pub crowded: bool,
}

/// Why a signal is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// There is no moderation.
    Burst,
    /// There are enough packets, or the ring is getting full.
    Count,
    /// The time is up.
    Time,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// There is nothing to tell.
    Nothing,
    /// Stay quiet: the guest wants no signal for this. It looks by itself before it wants one again.
    Quiet,
    /// Send the signal.
    Fire(Cause),
    /// Hold it, until this time unless something else happens before; [`Nanos::MAX`]: until there are enough packets.
    Hold(Nanos),
}

/// One queue's signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Pending {
    /// Packets since the last signal; 0 if there is nothing to tell.
    packets: u32,
    /// When the first of them was published.
    first: Nanos,
    /// A worker will come back at this time.
    timer: Option<Nanos>,
}

impl Pending {
    /// Decides. Everything but [`Decision::Hold`] settles the matter: the count starts again with the next packet.
    pub fn decide(&mut self, limits: Limits, m: Moment) -> Decision {
        if self.packets == 0 {
            if m.packets == 0 {
                return Decision::Nothing;
            }
            self.first = m.now;
        }
        self.packets = self.packets.saturating_add(m.packets.try_into().unwrap_or(u32::MAX));
        if !m.wanted {
            self.settle();
            return Decision::Quiet;
        }
        let due = match limits.usecs {
            0 => Nanos::MAX,
            usecs => self.first.saturating_add(u64::from(usecs) * 1000),
        };
        let cause = match limits {
            Limits { frames: 0, usecs: 0, .. } => Cause::Burst,
            _ if m.crowded || limits.frames != 0 && self.packets >= limits.frames => Cause::Count,
            _ if m.now >= due => Cause::Time,
            _ => return Decision::Hold(due),
        };
        self.settle();
        Decision::Fire(cause)
    }

    /// The guest was told, or need not be.
    #[inline]
    pub fn settle(&mut self) {
        self.packets = 0;
    }

    /// Whether a signal is held.
    pub fn is_held(&self) -> bool {
        self.packets != 0
    }

    /// Whether a worker has to come back at `due`; it is noted that it will. A timer that is set for earlier will do, so
    /// a queue that fires by count again and again does not set one each time.
    pub fn sets_timer(&mut self, due: Nanos) -> bool {
        if self.timer.is_some_and(|t| t <= due) {
            return false;
        }
        self.timer = Some(due);
        true
    }

    /// The timer that was set for `due` has run out; false if it has been replaced by an earlier one, or is that of a queue that
    /// is gone.
    pub fn timer_runs_out(&mut self, due: Nanos) -> bool {
        let known = self.timer == Some(due);
        if known {
            self.timer = None;
        }
        known
    }
}

/// What the guest of a transmit queue was told about its kicks. It is never asked to kick a receive queue: who brings frames
/// looks for buffers himself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Kicks {
    asked: bool,
}

impl Kicks {
    /// The worker wants to sleep, and will look at the ring once more. True if the guest has to be asked before that. One that
    /// was asked, and of which nothing was taken since, will kick for what it has not made available yet.
    pub fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// Something was taken from the ring. True if the guest has to be told that it need not kick for now.
    #[inline]
    pub fn refuse(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }
}
