//! Telling a driver that starts anew from one that goes on, by what a front end does to the rings.
//!
//! A front end stops all rings and starts them again when a virtual machine pauses and when its driver is loaded again alike.
//! Only the index tells: a new driver's rings start from the beginning, others where they stood. A ring may have stood there,
//! too: then nothing had been sent on it (or once around, to the same index), and it goes on.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Not stopped yet, or not known where.
const UNKNOWN: u32 = u32::MAX;

/// What is known of transmit queue 0.
#[derive(Debug)]
pub struct DriverWatch {
    /// No queue has run at some time since it was last started.
    all_stopped: AtomicBool,
    /// Its next available index when it was stopped.
    stood_at: AtomicU32,
}

impl Default for DriverWatch {
    fn default() -> Self {
        DriverWatch { all_stopped: AtomicBool::new(true), stood_at: AtomicU32::new(UNKNOWN) }
    }
}

impl DriverWatch {
    /// Transmit queue 0 was stopped at `index`; `None` if its guest broke it before.
    pub fn stopped(&self, index: Option<u16>) {
        self.stood_at.store(index.map_or(UNKNOWN, u32::from), Ordering::Relaxed);
    }

    /// No queue runs any more.
    pub fn all_stopped(&self) {
        self.all_stopped.store(true, Ordering::Relaxed);
    }

    /// Transmit queue 0 starts at `index`, which is where a ring begins (`first`), or not. True if that is the work of a new
    /// driver.
    pub fn starts(&self, index: u16, first: bool) -> bool {
        let all_stopped = self.all_stopped.swap(false, Ordering::Relaxed);
        let goes_on = self.stood_at.swap(UNKNOWN, Ordering::Relaxed) == u32::from(index);
        all_stopped && first && !goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> DriverWatch {
        let watch = DriverWatch::default();
        assert!(watch.starts(0, true), "the first one is new");
        watch
    }

    #[test]
    fn index_0_after_all_queues_were_stopped_is_a_new_driver() {
        let watch = started();
        for index in [Some(1), Some(65535), None] {
            watch.stopped(index);
            watch.all_stopped();
            assert!(watch.starts(0, true), "{index:?}");
        }
    }

    #[test]
    fn a_queue_that_goes_on_where_it_stood_is_none() {
        let watch = started();
        for index in [0, 1, 65535, 0] {
            watch.stopped(Some(index));
            watch.all_stopped();
            assert!(!watch.starts(index, index == 0), "{index}");
        }
    }

    #[test]
    fn nor_is_one_that_is_reset_while_others_run() {
        let watch = started();
        watch.stopped(Some(9));
        assert!(!watch.starts(0, true));
        watch.stopped(Some(9));
        watch.all_stopped();
        assert!(watch.starts(0, true), "the next time it is");
    }

    #[test]
    fn nor_is_one_that_starts_from_elsewhere() {
        let watch = DriverWatch::default();
        assert!(!watch.starts(7, false), "a front end that was there before this process");
    }
}
