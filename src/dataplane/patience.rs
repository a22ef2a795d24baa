//! How long a worker that finds nothing goes on looking before it sleeps.

use std::time::Instant;

use crate::config::PollMode;

/// Turns that find nothing, between two looks at the clock: a look costs as much as such a turn.
const TURNS_BETWEEN_CLOCKS: u32 = 8;

/// So many turns that find nothing come one right after the other; from then on the processor pauses between them, for the sake of
/// its other thread and of the current. An answer that is on its way is there sooner.
const QUICK_TURNS: u32 = 1024;

/// A worker's patience.
pub(super) struct Patience {
    poll: PollMode,
    /// Turns that have found nothing since one found something.
    empty_turns: u32,
    /// From when on its time counts.
    since: Instant,
}

impl Patience {
    /// A worker that has just begun.
    pub(super) fn new(poll: PollMode, now: Instant) -> Self {
        Patience { poll, empty_turns: 0, since: now }
    }

    /// A turn has found something. The time goes on: what trickles in shall not keep a processor busy that others need.
    #[inline]
    pub(super) fn found(&mut self) {
        self.empty_turns = 0;
    }

    /// It has slept and been woken, or has been busy for so long that it looked at the clock.
    pub(super) fn renew(&mut self, now: Instant) {
        self.since = now;
    }

    /// A turn has found nothing: whether there is to be another one without sleep.
    #[inline]
    pub(super) fn lasts(&mut self, clock: impl FnOnce() -> Instant) -> bool {
        let before = self.empty_turns;
        self.empty_turns = before.wrapping_add(1);
        match self.poll {
            PollMode::Always => true,
            PollMode::Off => false,
            PollMode::Adaptive(time) => {
                !before.is_multiple_of(TURNS_BETWEEN_CLOCKS) || clock().duration_since(self.since) < time
            }
        }
    }

    /// Before the next turn.
    #[inline]
    pub(super) fn pause(&self) {
        if self.empty_turns > QUICK_TURNS {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const TIME: Duration = Duration::from_micros(50);

    /// Turns that find nothing, a microsecond each, until it would sleep.
    fn turns(patience: &mut Patience, now: &mut Instant) -> u32 {
        (0..10_000)
            .find(|_| {
                *now += Duration::from_micros(1);
                !patience.lasts(|| *now)
            })
            .unwrap_or(u32::MAX)
    }

    #[test]
    fn it_lasts_for_its_time_from_when_it_was_renewed_whatever_is_found_meanwhile() {
        let mut now = Instant::now();
        let mut patience = Patience::new(PollMode::Adaptive(TIME), now);
        for finds in [false, true] {
            patience.renew(now);
            if finds {
                assert!((0..10).all(|_| patience.lasts(|| now)));
                patience.found();
            }
            let left = turns(&mut patience, &mut now);
            assert!((49..50 + TURNS_BETWEEN_CLOCKS).contains(&left), "{left}");
        }
    }

    #[test]
    fn always_is_for_ever_and_off_is_not_once() {
        let mut now = Instant::now();
        for (poll, expected) in
            [(PollMode::Always, u32::MAX), (PollMode::Off, 0), (PollMode::Adaptive(Duration::ZERO), 0)]
        {
            let mut patience = Patience::new(poll, now);
            assert_eq!(turns(&mut patience, &mut now), expected, "{poll:?}");
            patience.found();
            assert_eq!(turns(&mut patience, &mut now), expected, "{poll:?}");
        }
    }
}
