//! When rules that the guest has programmed come in force.
//!
//! Nobody waits for the time: whoever is about to look at the filter table first puts in force what has become due
//! ([`Nic::settle`]). Those are the workers, before they decide about a burst, commands of the guest, and the host's
//! requests. So a delay is exact for every packet, down to the nanosecond, and costs one load where nothing is due.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::nic::Nic;
use crate::steer::Steering;

/// Nothing will ever be due.
const NEVER: u64 = u64::MAX;

/// The clock by which a NIC's filter table goes.
#[derive(Debug)]
pub struct FilterClock {
    origin: Instant,
    /// How far it is ahead, in nanoseconds: tests need not wait.
    ahead: AtomicU64,
    /// When the next rule is due.
    next_due: AtomicU64,
}

impl Default for FilterClock {
    fn default() -> Self {
        FilterClock { origin: Instant::now(), ahead: AtomicU64::new(0), next_due: AtomicU64::new(NEVER) }
    }
}

impl FilterClock {
    /// Nanoseconds since the NIC was made.
    pub fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(NEVER);
        elapsed.saturating_add(self.ahead.load(Ordering::Relaxed))
    }

    /// To be called after each change of the filter table by the guest, with the lock in hand.
    pub fn note(&self, steering: &Steering) {
        self.next_due.store(steering.filters().next_due().unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// Lets time pass.
    #[cfg(test)]
    pub(crate) fn advance(&self, time: std::time::Duration) {
        self.ahead.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Nic {
    /// Puts in force what the guest has programmed and is due.
    #[inline]
    pub fn settle(&self) {
        let due = self.filter_clock.next_due.load(Ordering::Relaxed);
        if due != NEVER {
            self.settle_until(due);
        }
    }

    #[cold]
    fn settle_until(&self, due: u64) {
        let now = self.filter_clock.now();
        if now < due {
            return;
        }
        let mut steering = self.steering.write();
        steering.filters_mut().settle(now);
        self.filter_clock.note(&steering);
    }
}
