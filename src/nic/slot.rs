//! Where a queue is while it runs.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use spin::Yield;
use spin::mutex::{SpinMutex as Mutex, SpinMutexGuard};

/// A queue in a worker's hands, if there still is one.
pub type SlotGuard<'a, Q> = SpinMutexGuard<'a, Option<Q>>;

/// Where a queue is while it runs.
///
/// Workers take the lock once per burst. A worker that polls takes it again at once, and a mutex that is not fair would
/// keep everybody else out for ever; so whoever wants to change the queue says so first, and workers stay away.
///
/// It is a spin lock, held for one burst: to give it back is a plain store, where the locks of the standard library take another
/// locked instruction, each of which costs what 60 others do. Who finds it taken yields.
pub struct Slot<Q> {
    wanted: AtomicU32,
    running: AtomicBool,
    queue: Mutex<Option<Q>, Yield>,
}

impl<Q> Default for Slot<Q> {
    fn default() -> Self {
        Slot { wanted: AtomicU32::new(0), running: AtomicBool::new(false), queue: Mutex::new(None) }
    }
}

impl<Q> Slot<Q> {
    /// For a worker: the queue, unless it is stopped or about to be changed.
    #[inline]
    pub fn enter(&self) -> Option<SlotGuard<'_, Q>> {
        if !self.running.load(Ordering::Relaxed) || self.wanted.load(Ordering::Relaxed) != 0 {
            return None;
        }
        Some(self.queue.lock())
    }

    /// For a worker that can't just come back later (it is about to sleep, or a frame in hand would be lost).
    #[inline]
    pub fn enter_waiting(&self) -> Option<SlotGuard<'_, Q>> {
        if !self.running.load(Ordering::Relaxed) {
            return None;
        }
        Some(self.queue.lock())
    }

    /// For everybody else: changes the queue, with no worker in it.
    pub fn change<T>(&self, f: impl FnOnce(&mut Option<Q>) -> T) -> T {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        let result = f(&mut queue);
        self.running.store(queue.is_some(), Ordering::Relaxed);
        drop(queue);
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Whether a queue is in it.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    /// For a worker that found the queue broken: takes it out.
    pub fn take_broken(&self, queue: &mut SlotGuard<'_, Q>) -> Option<Q> {
        self.running.store(false, Ordering::Relaxed);
        queue.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn workers_stay_away_while_somebody_wants_to_change_a_queue() {
        let slot = Slot::<u32>::default();
        assert!(slot.enter().is_none() && slot.enter_waiting().is_none(), "nothing runs");
        slot.change(|q| *q = Some(1));
        thread::scope(|s| {
            let in_use = slot.enter().unwrap();
            let change = s.spawn(|| slot.change(|q| q.replace(2)));
            while slot.wanted.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            assert!(slot.enter().is_none(), "it would wait for the lock for ever");
            drop(in_use);
            assert_eq!(change.join().unwrap(), Some(1));
        });
        assert_eq!(*slot.enter().unwrap(), Some(2));
        assert_eq!(slot.change(Option::take), Some(2));
        assert!(!slot.is_running() && slot.enter().is_none());
    }

    #[test]
    fn a_broken_queue_is_taken_out_by_the_worker_that_has_it() {
        let slot = Slot::<u32>::default();
        slot.change(|q| *q = Some(1));
        let mut guard = slot.enter().unwrap();
        assert_eq!(slot.take_broken(&mut guard), Some(1));
        drop(guard);
        assert!(!slot.is_running() && slot.enter_waiting().is_none());
    }
}
