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

    #[test]
    fn packets_meet_the_old_rule_or_the_new_one_and_never_half_of_one() {
        use crate::packet::frames::tcp4;
        use crate::steer::{
            Action, BURST, DropReason, LearnConfig, LearnTable, Match, Reason, Rule, Tick, Verdict,
        };
        let mut steering = Steering::new(&SteerConfig { queue_pairs: 8, ..SteerConfig::default() });
        steering.set_enabled(0xff);
        let fields = Match::new().ipv4().tcp().dst_port(80, 0xffff);
        let other = Match::new().ipv4().tcp().dst_port(81, 0xffff);
        let rule = |fields, queue| Rule {
            group: 0,
            classifier: 0,
            priority: queue as u8,
            fields,
            action: Action::Queue(queue),
        };
        steering.filters_mut().create_group(0, 1).unwrap();
        steering.filters_mut().create_classifier(0, fields.mask()).unwrap();
        steering.filters_mut().create_rule(1, rule(fields, 1)).unwrap();
        let (shared, learned) = (SharedSteering::new(steering), LearnTable::new(LearnConfig::default()));
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                // Rule 1 always matches. What else there is beats it, or is of another flow in the same slot.
                for round in 0..20_000 {
                    let queue = 2 + round % 6;
                    let fields = if round % 2 == 0 { fields } else { other };
                    shared.write().filters_mut().create_rule(2, rule(fields, queue)).unwrap();
                    shared.write().filters_mut().modify_rule(2, Action::Queue(queue)).unwrap();
                    shared.write().filters_mut().destroy_rule(2).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
            let h = tcp4().headers();
            let mut verdicts = [Verdict::Drop { reason: DropReason::NoQueue, rule: None }; BURST];
            while !done.load(Ordering::Relaxed) {
                let steering = shared.read();
                steering.classify_burst(u32::MAX, |_| &h, &learned, Tick::ZERO, &mut verdicts);
                assert!(verdicts.iter().all(|v| *v == verdicts[0]), "one burst, one state");
                let Verdict::Queue { queue, reason: Reason::Filter, rule: Some(_) } = verdicts[0] else {
                    panic!("no rule: {:?}", verdicts[0]);
                };
                assert!(queue == 1 || queue >= 2 && queue % 2 == 0, "queue {queue} is of another flow");
            }
        });
    }
}
