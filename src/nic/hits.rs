//! How often each rule has decided.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::steer::RuleSlot;

/// Hits of every rule. Workers count, each in a row of its own, and never anything else writes there: a new rule, or somebody who
/// resets, takes note of the count so far instead. So no hit is lost, and nothing is shared for a packet.
pub struct RuleHits {
    by_worker: Box<[Box<[AtomicU64]>]>,
    /// What was counted before the rule that is there now.
    before: Box<[AtomicU64]>,
}

impl RuleHits {
    /// For so many workers and places for rules.
    pub fn new(workers: usize, rules: usize) -> Self {
        let row = || (0..rules).map(|_| AtomicU64::new(0)).collect();
        RuleHits { by_worker: (0..workers).map(|_| row()).collect(), before: row() }
    }

    /// The row of a worker, who is the only one to count there.
    #[inline]
    pub fn of(&self, worker: usize) -> &[AtomicU64] {
        &self.by_worker[worker]
    }

    /// The rule in `slot` has decided about a packet.
    #[inline]
    pub fn count(row: &[AtomicU64], slot: RuleSlot) {
        let hits = &row[slot.0 as usize];
        hits.store(hits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    fn counted(&self, slot: usize) -> u64 {
        self.by_worker.iter().fold(0, |sum, row| sum.wrapping_add(row[slot].load(Ordering::Relaxed)))
    }

    /// Hits of the rule in `slot`.
    pub fn get(&self, slot: RuleSlot) -> u64 {
        let slot = slot.0 as usize;
        self.counted(slot).wrapping_sub(self.before[slot].load(Ordering::Relaxed))
    }

    /// The rule in `slot` is a new one: it has no hits yet. A burst that was decided about a moment ago, by the rule that was there
    /// before, may still be counted for it.
    pub fn reset(&self, slot: RuleSlot) {
        let slot = slot.0 as usize;
        self.before[slot].store(self.counted(slot), Ordering::Relaxed);
    }

    /// No rule has hits any more.
    pub fn reset_all(&self) {
        (0..self.before.len()).for_each(|slot| self.reset(RuleSlot(slot as u32)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_summed_over_workers_and_a_new_rule_has_none() {
        let hits = RuleHits::new(3, 8);
        let slot = RuleSlot(5);
        for worker in 0..3 {
            (0..7).for_each(|_| RuleHits::count(hits.of(worker), slot));
        }
        assert_eq!((hits.get(slot), hits.get(RuleSlot(4))), (21, 0));
        hits.reset(slot);
        assert_eq!(hits.get(slot), 0);
        RuleHits::count(hits.of(1), slot);
        assert_eq!(hits.get(slot), 1);
        hits.reset_all();
        assert_eq!(hits.get(slot), 0);
    }
}
