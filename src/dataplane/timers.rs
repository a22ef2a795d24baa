//! When a worker has to come back to signals that it holds, and how it gets there in time.
//!
//! The worker that begins to hold a signal owns its timer, whichever worker serves the queue pair: it is awake, and nobody
//! has to be told. A timer is an entry of a heap. While the worker has work, or polls, it compares the first one with the
//! clock after each step. Else it sets the one timer descriptor that it has, for all queues, a *lead* ahead of time, sleeps, and
//! polls for the rest: how long it takes to be woken is not to be foreseen.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use super::notify::Nanos;

/// The workers' clock: all of them count from the same moment.
#[derive(Debug, Clone, Copy)]
pub enum Clock {
    /// The monotonic clock, from there on.
    Since(Instant),
    /// As a test says.
    #[cfg(test)]
    Manual(Nanos),
}

impl Clock {
    /// The time. Some 20 ns: for bursts that may be held, not for packets.
    #[inline]
    pub fn now(&self) -> Nanos {
        match self {
            Clock::Since(start) => start.elapsed().as_nanos() as Nanos,
            #[cfg(test)]
            Clock::Manual(now) => *now,
        }
    }
}

/// A held signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    /// When to come back. [`Nanos::MAX`]: not until limits change.
    pub due: Nanos,
    /// Of which NIC, by its number in the process.
    pub nic: u16,
    /// Of which virtqueue.
    pub vq: u16,
}

/// A worker's timers. A queue has one at a time, or two after its time was made shorter.
#[derive(Debug, Default)]
pub struct Timers(BinaryHeap<Reverse<Timer>>);

impl Timers {
    /// Adds one.
    pub fn add(&mut self, timer: Timer) {
        self.0.push(Reverse(timer));
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When the first one runs out, if any ever does.
    pub fn next_due(&self) -> Option<Nanos> {
        self.0.peek().map(|t| t.0.due).filter(|due| *due != Nanos::MAX)
    }

    /// Takes the first one, if it has run out.
    pub fn take_due(&mut self, now: Nanos) -> Option<Timer> {
        self.next_due().filter(|due| *due <= now)?;
        self.0.pop().map(|t| t.0)
    }

    /// Takes all of them.
    pub fn take_all(&mut self) -> Vec<Timer> {
        std::mem::take(&mut self.0).into_iter().map(|t| t.0).collect()
    }
}

/// How long before a moment to get up for it, learned from how late one was.
#[derive(Debug, Clone, Copy)]
pub struct Lead(Nanos);

impl Lead {
    /// It is never more: on a machine that wakes nobody in time nothing helps, and polling takes its processors, too.
    pub const LONGEST: Nanos = 100_000;
    /// Nor less: what it takes to be woken at best.
    pub const SHORTEST: Nanos = 5_000;

    /// The lead now.
    pub fn get(self) -> Nanos {
        self.0
    }

    /// A sleep ended so late: at once more if the lead was too short, slowly less if it was too long.
    pub fn slept(&mut self, late: Nanos) {
        let needed = late.saturating_add(late / 4).clamp(Self::SHORTEST, Self::LONGEST);
        self.0 = if needed > self.0 { needed } else { self.0 - (self.0 - needed) / 16 };
    }
}

impl Default for Lead {
    fn default() -> Self {
        Lead(50_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_run_out_in_order_and_not_before_their_time() {
        let mut timers = Timers::default();
        assert!(timers.is_empty() && timers.take_due(Nanos::MAX).is_none());
        let timer = |due, vq| Timer { due, nic: 1, vq };
        [(30, 0), (10, 1), (20, 2), (10, 3)].iter().for_each(|(due, vq)| timers.add(timer(*due, *vq)));
        assert_eq!((timers.next_due(), timers.take_due(9)), (Some(10), None));
        assert_eq!(timers.take_due(10), Some(timer(10, 1)));
        assert_eq!(timers.take_due(25), Some(timer(10, 3)));
        assert_eq!(timers.take_due(25), Some(timer(20, 2)));
        assert_eq!((timers.take_due(25), timers.is_empty()), (None, false));
        assert_eq!((timers.take_all(), timers.is_empty()), (vec![timer(30, 0)], true));
    }

    #[test]
    fn thousands_of_timers_are_in_order_too() {
        let mut timers = Timers::default();
        for i in 0..5000u64 {
            timers.add(Timer { due: i * 7919 % 5000, nic: 1, vq: (i % 62) as u16 });
        }
        let mut last = 0;
        while let Some(t) = timers.take_due(Nanos::MAX) {
            assert!(t.due >= last);
            last = t.due;
        }
        assert_eq!(last, 4999);
    }

    #[test]
    fn the_lead_follows_how_late_sleeps_end() {
        let mut lead = Lead::default();
        lead.slept(70_000);
        assert_eq!(lead.get(), 87_500, "at once");
        lead.slept(10_000_000);
        assert_eq!(lead.get(), Lead::LONGEST, "within bounds");
        (0..200).for_each(|_| lead.slept(8_000));
        assert!((10_000..10_100).contains(&lead.get()), "slowly: {}", lead.get());
        (0..500).for_each(|_| lead.slept(0));
        assert!((Lead::SHORTEST..Lead::SHORTEST + 20).contains(&lead.get()), "{}", lead.get());
    }
}
