//! Steering, shared by all workers of a process and changed by whoever configures it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{LearnTable, Steering, Tick, stamp};

/// A lock around [`Steering`]. What is asked of it for each burst stands beside it, so that asking takes no lock.
pub struct SharedSteering {
    steering: RwLock<Steering>,
    told: Told,
}

/// What is told without the lock, as of the last change.
#[derive(Default)]
struct Told {
    learns: AtomicBool,
    changes: AtomicU64,
}

impl Told {
    fn follow(&self, steering: &Steering) {
        self.learns.store(steering.learns(), Ordering::Relaxed);
        self.changes.store(steering.changes(), Ordering::Release);
    }
}

impl SharedSteering {
    /// Takes it.
    pub fn new(steering: Steering) -> Self {
        let told = Told::default();
        told.follow(&steering);
        SharedSteering { told, steering: RwLock::new(steering) }
    }

    /// To decide by it, or to look at it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, Steering> {
        self.steering.read().expect("steering never panics")
    }

    /// To change it.
    pub fn write(&self) -> SteeringChange<'_> {
        SteeringChange { steering: self.steering.write().expect("steering never panics"), told: &self.told }
    }

    /// [`Steering::learns`], as of the last change.
    #[inline]
    pub fn learns(&self) -> bool {
        self.told.learns.load(Ordering::Relaxed)
    }

    /// [`Steering::stamp`], as of the last change. A verdict that was reached under this stamp was right a moment ago, when the
    /// stamp was taken, whoever is changing what at the moment.
    #[inline]
    pub fn stamp(&self, learned: &LearnTable, now: Tick, nic: u16) -> u64 {
        stamp(self.told.changes.load(Ordering::Acquire), learned, now, nic)
    }
}

/// Steering that is being changed.
pub struct SteeringChange<'a> {
    steering: RwLockWriteGuard<'a, Steering>,
    told: &'a Told,
}

impl Deref for SteeringChange<'_> {
    type Target = Steering;

    fn deref(&self) -> &Steering {
        &self.steering
    }
}

impl DerefMut for SteeringChange<'_> {
    fn deref_mut(&mut self) -> &mut Steering {
        &mut self.steering
    }
}

impl Drop for SteeringChange<'_> {
    fn drop(&mut self) {
        // Before the lock is given back, so that changes are seen in their order.
        self.told.follow(&self.steering);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steer::{Mode, SteerConfig};

    #[test]
    fn whether_it_learns_is_told_without_the_lock() {
        let shared = SharedSteering::new(Steering::new(&SteerConfig::default()));
        for (change, learns) in [
            (&(|s: &mut Steering| s.set_learn(false)) as &dyn Fn(&mut Steering), false),
            (&|s| s.set_learn(true), true),
            (&|s| s.set_mode(Mode::Rss), false),
            (&|s| s.set_mode(Mode::Automatic), true),
        ] {
            change(&mut shared.write());
            assert_eq!((shared.learns(), shared.read().learns()), (learns, learns));
        }
    }
}
