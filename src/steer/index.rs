//! Where rules are found: an open-addressing table from tags to slots.
//!
//! # Theory of operation
//!
//! An entry is a word {tag: 32, slot + 1: 32} (0 = free); eight share a cache line. The table is allocated once, at twice the
//! capacity or more, and never resized: an insert or a delete costs the same whether it is empty or full. Collisions probe
//! linearly; a delete shifts later entries back, so there are no tombstones. A tag is 32 bits of a hash; its top bits
//! are the entry's home position. So what is not there costs one cache line, and its place is known, and can be fetched, as
//! soon as the tag is.

use crate::hint::{huge_pages, prefetch};

/// See the module's documentation.
#[derive(Clone)]
pub(super) struct Index(Box<[u64]>);

impl Index {
    /// For as many slots as that. Pages that nothing was put on cost nothing.
    pub(super) fn new(capacity: u32) -> Self {
        let entries = vec![0; (capacity as usize * 2).next_power_of_two().max(2)];
        huge_pages(entries.as_ptr(), entries.len());
        Index(entries.into())
    }

    /// The position of the entry with this tag whose slot `is` what is sought.
    #[inline(always)]
    pub(super) fn find(&self, tag: u32, is: impl Fn(u32) -> bool) -> Option<usize> {
        let mut at = self.home(tag);
        loop {
            let entry = self.0[at];
            if entry == 0 {
                return None;
            }
            if (entry >> 32) as u32 == tag && is(slot(entry)) {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    /// Says that an entry will be sought.
    #[inline]
    pub(super) fn fetch(&self, tag: u32) {
        prefetch(&raw const self.0[self.home(tag)]);
    }

    /// The slot of the entry at a position.
    #[inline(always)]
    pub(super) fn slot(&self, at: usize) -> u32 {
        slot(self.0[at])
    }

    /// Gives an entry another slot.
    pub(super) fn set_slot(&mut self, at: usize, slot: u32) {
        self.0[at] = self.0[at] & !u64::from(u32::MAX) | u64::from(slot + 1);
    }

    /// Adds an entry. There is always room.
    pub(super) fn insert(&mut self, tag: u32, slot: u32) {
        let mut at = self.home(tag);
        while self.0[at] != 0 {
            at = self.after(at);
        }
        self.0[at] = u64::from(tag) << 32 | u64::from(slot + 1);
    }

    /// Frees a position and moves back the entries that had to probe past it.
    pub(super) fn remove(&mut self, mut hole: usize) {
        let mask = self.0.len() - 1;
        let mut at = hole;
        loop {
            at = self.after(at);
            let entry = self.0[at];
            if entry == 0 {
                break;
            }
            let distance = at.wrapping_sub(self.home((entry >> 32) as u32)) & mask;
            if distance >= at.wrapping_sub(hole) & mask {
                self.0[hole] = entry;
                hole = at;
            }
        }
        self.0[hole] = 0;
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|&entry| entry == 0)
    }

    /// Where an entry with this tag would like to be. There is a power of two of positions, 2^21 at most.
    #[inline(always)]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.0.len() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.0.len() - 1)
    }
}

#[inline(always)]
fn slot(entry: u64) -> u32 {
    (entry as u32).wrapping_sub(1)
}
