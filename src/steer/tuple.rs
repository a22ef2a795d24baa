//! Tuple-space search: the filter table's engine.
//!
//! # Theory of operation
//!
//! A *tuple* is all rules of one group that share one mask. Within a tuple a lookup is one probe of a hash table for the
//! packet's masked key, so its cost grows with the number of tuples ([`MAX_TUPLES`] at most), not of rules. A packet visits
//! tuples in descending order of the best *rank* that each holds and stops as soon as no remaining tuple can beat what it
//! has found; a tuple that demands a header which the packet lacks is passed over without hashing.
//!
//! A rank orders all rules: group priority, then the rule's priority (both higher first), then its id (lower first).
//!
//! All tuples share one *index*, an open-addressing table of words {tag: 32, slot + 1: 32} (0 = free) that is allocated once,
//! at twice the capacity or more, and never resized: an insert or a delete costs the same whether the table is empty or
//! full. Collisions probe linearly; a delete shifts later entries back, so there are no tombstones. The tag is 32 bits of the seeded
//! hash over masked key and tuple; its top bits are the entry's home position. A tag match is confirmed on the rule's
//! *line*, 64 bytes {masked key, rank and tuple}; so a miss costs one cache line per tuple and a hit two.
//!
//! Rules of one tuple with the same key form a chain, best rank first, of which only the first is in the index (at
//! most [`MAX_SAME_KEY`], since inserting walks it).
//!
//! A slot is *free* (on the free list) or *used* (in the index or on a chain, its rank in its tuple's set of ranks); `insert`
//! and `remove` are the only transitions. A slot may be used again at once, the most recently freed first.

use std::collections::BTreeSet;

use super::hash::Seed;
use super::key::{Key, WORDS};
use crate::packet::words::same;

/// Tuples that may exist at once: groups times masks in use.
pub(crate) const MAX_TUPLES: usize = 64;
/// Rules with the same key in the same tuple.
pub(crate) const MAX_SAME_KEY: usize = 256;
/// Most rules that a table can be made for.
pub(crate) const MAX_CAPACITY: u32 = 1 << 20;

const NONE: u32 = u32::MAX;
/// Bits of a line's last word that name the tuple; the rank is above.
const TUPLE_BITS: u32 = 7;

/// What a matching rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The packet is dropped.
    Drop,
    /// The packet goes to this receive queue (counted from 0, not a virtqueue index).
    Queue(u16),
    /// The packet goes where an RSS context says.
    Context {
        /// Which context.
        id: u16,
        /// Added to the queue that the context names.
        offset: u16,
    },
}

/// Where a rule lives: dense, below the table's capacity, for as long as the rule exists. Workers keep hit counters in arrays
/// of their own by slot; since a new rule may get the slot of a deleted one, whoever shows hits notes the counter's
/// value when the rule is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleSlot(pub u32);

/// What an insert found exhausted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// All slots are used.
    Rules,
    /// There are [`MAX_TUPLES`] tuples.
    Tuples,
    /// There are [`MAX_SAME_KEY`] rules with that key in that tuple.
    SameKey,
}

/// Position of a rule among all rules; higher wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(u64);

impl Rank {
    /// `group` < 2^17.
    pub(crate) fn new(group: u32, priority: u8, id: u32) -> Self {
        debug_assert!(group < 1 << 17);
        Self((u64::from(group) << 40 | u64::from(priority) << 32 | u64::from(!id)) << TUPLE_BITS)
    }
}

/// What a lookup reads of a rule.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    key: Key,
    /// Rank and tuple.
    rank: u64,
}

const _: () = assert!(size_of::<Line>() == 64 && MAX_TUPLES <= 1 << TUPLE_BITS);

/// What only changes need of a rule.
#[derive(Clone, Copy)]
struct Meta {
    tag: u32,
    next: u32,
}

#[derive(Clone)]
struct Tuple {
    mask: Key,
    /// Presence bits that the mask demands.
    needs: u64,
    /// Highest rank of its rules, tuple bits included.
    best: u64,
    id: u8,
    group: u32,
}

/// See the module's documentation.
#[derive(Clone)]
pub(crate) struct TupleSpace {
    seed: Seed,
    capacity: u32,
    /// In descending order of `best`.
    tuples: Vec<Tuple>,
    index: Box<[u64]>,
    lines: Vec<Line>,
    actions: Vec<Action>,
    meta: Vec<Meta>,
    free: Vec<u32>,
    /// Ranks of each tuple's rules, by tuple id; empty = the id is free.
    ranks: Vec<BTreeSet<u64>>,
}

impl TupleSpace {
    /// An empty table for `capacity` rules, capped at [`MAX_CAPACITY`].
    pub(crate) fn new(capacity: u32) -> Self {
        let capacity = capacity.min(MAX_CAPACITY);
        Self {
            seed: Seed::random(),
            capacity,
            tuples: Vec::new(),
            index: vec![0; (capacity as usize * 2).next_power_of_two().max(2)].into(),
            // Reserved in full, so that no insert ever copies the table; untouched pages cost nothing.
            lines: Vec::with_capacity(capacity as usize),
            actions: Vec::with_capacity(capacity as usize),
            meta: Vec::with_capacity(capacity as usize),
            free: Vec::new(),
            ranks: vec![BTreeSet::new(); MAX_TUPLES],
        }
    }

    /// Rules that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Rules that are there.
    pub(crate) fn len(&self) -> u32 {
        (self.lines.len() - self.free.len()) as u32
    }

    /// Tuples that are there.
    pub(crate) fn tuples(&self) -> usize {
        self.tuples.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.tuples.is_empty()
    }

    /// The best rule that matches.
    #[inline]
    pub(crate) fn lookup(&self, key: &Key) -> Option<(RuleSlot, Action)> {
        let presence = key.presence();
        let mut best = 0;
        let mut found = NONE;
        for tuple in &self.tuples {
            if tuple.best <= best {
                break;
            }
            if presence & tuple.needs != tuple.needs {
                continue;
            }
            let masked = key.masked(&tuple.mask);
            let tag = self.tag(&masked, tuple.id);
            let mut at = self.home(tag);
            loop {
                let entry = self.index[at];
                if entry == 0 {
                    break;
                }
                if (entry >> 32) as u32 == tag {
                    let slot = entry as u32 - 1;
                    let line = &self.lines[slot as usize];
                    if same(&line.key.0, &masked.0) && line.tuple() == tuple.id {
                        if line.rank > best {
                            (best, found) = (line.rank, slot);
                        }
                        break;
                    }
                }
                at = (at + 1) & (self.index.len() - 1);
            }
        }
        (found != NONE).then(|| (RuleSlot(found), self.actions[found as usize]))
    }

    /// Adds a rule; `key` has no bit outside `mask`, `rank` is of `group` and unique.
    pub(crate) fn insert(
        &mut self,
        group: u32,
        mask: &Key,
        key: &Key,
        rank: Rank,
        action: Action,
    ) -> Result<RuleSlot, Full> {
        debug_assert_eq!(key.masked(mask), *key);
        if self.len() == self.capacity {
            return Err(Full::Rules);
        }
        let tuple = match self.tuples.iter().find(|t| t.group == group && t.mask == *mask) {
            Some(tuple) => tuple.id,
            None => self.ranks.iter().position(BTreeSet::is_empty).ok_or(Full::Tuples)? as u8,
        };
        let rank = rank.0 | u64::from(tuple);
        let tag = self.tag(key, tuple);
        let place = self.find(tag, |line| line.key == *key && line.tuple() == tuple);
        let chain = place
            .map(|at| self.chain_position(self.index[at] as u32 - 1, rank).ok_or(Full::SameKey))
            .transpose()?;

        // Nothing can fail from here on.
        let slot = self.free.pop().unwrap_or_else(|| {
            self.lines.push(Line { key: Key::default(), rank: 0 });
            self.actions.push(Action::Drop);
            self.meta.push(Meta { tag: 0, next: NONE });
            self.lines.len() as u32 - 1
        });
        self.lines[slot as usize] = Line { key: *key, rank };
        self.actions[slot as usize] = action;
        let mut next = NONE;
        match (place, chain) {
            (Some(at), Some(None)) => {
                next = self.index[at] as u32 - 1;
                self.index[at] = entry(tag, slot);
            }
            (_, Some(Some(before))) => {
                next = std::mem::replace(&mut self.meta[before as usize].next, slot);
            }
            _ => {
                let mut at = self.home(tag);
                while self.index[at] != 0 {
                    at = self.after(at);
                }
                self.index[at] = entry(tag, slot);
            }
        }
        self.meta[slot as usize] = Meta { tag, next };
        self.ranks[usize::from(tuple)].insert(rank);
        if !self.tuples.iter().any(|t| t.id == tuple) {
            self.tuples.push(Tuple { mask: *mask, needs: mask.presence(), best: 0, id: tuple, group });
        }
        self.reorder(tuple);
        Ok(RuleSlot(slot))
    }

    /// What the rule in a slot does.
    pub(crate) fn action(&self, RuleSlot(slot): RuleSlot) -> Option<Action> {
        self.actions.get(slot as usize).copied()
    }

    /// Changes what a rule does, and nothing else; `slot` must be in use.
    pub(crate) fn set_action(&mut self, RuleSlot(slot): RuleSlot, action: Action) {
        self.actions[slot as usize] = action;
    }

    /// Removes a rule; `slot` must be in use.
    pub(crate) fn remove(&mut self, RuleSlot(slot): RuleSlot) {
        let Meta { tag, next } = self.meta[slot as usize];
        let Line { key, rank } = self.lines[slot as usize];
        let tuple = self.lines[slot as usize].tuple();
        let at = self.find(tag, |line| line.key == key && line.tuple() == tuple);
        let at = at.expect("a used slot is in the index or on a chain whose head is");
        let head = self.index[at] as u32 - 1;
        if head != slot {
            let mut before = head;
            while self.meta[before as usize].next != slot {
                before = self.meta[before as usize].next;
            }
            self.meta[before as usize].next = next;
        } else if next != NONE {
            self.index[at] = entry(tag, next);
        } else {
            self.vacate(at);
        }
        self.free.push(slot);
        self.ranks[usize::from(tuple)].remove(&rank);
        self.reorder(tuple);
    }

    #[inline]
    fn tag(&self, key: &Key, tuple: u8) -> u32 {
        let [a, b, c, d, e, f, g] = key.0;
        const { assert!(WORDS == 7) };
        (self.seed.hash([(a, b), (c, d), (e, f), (g, tuple.into())]) >> 32) as u32
    }

    /// Where an entry with this tag would like to be. The index has a power of two of entries, 2^21 at most.
    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.index.len() as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.index.len() - 1)
    }

    /// The index position of the chain head with this tag that `is` what is sought.
    fn find(&self, tag: u32, is: impl Fn(&Line) -> bool) -> Option<usize> {
        let mut at = self.home(tag);
        while self.index[at] != 0 {
            let entry = self.index[at];
            if (entry >> 32) as u32 == tag && is(&self.lines[(entry as u32 - 1) as usize]) {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    /// The slot after which `rank` belongs in the chain from `head` (`Some(None)`: before the head), or `None` if the
    /// chain is full.
    fn chain_position(&self, head: u32, rank: u64) -> Option<Option<u32>> {
        let (mut before, mut slot, mut length) = (None, head, 0);
        while slot != NONE {
            if self.lines[slot as usize].rank > rank {
                before = Some(slot);
            }
            length += 1;
            slot = self.meta[slot as usize].next;
        }
        (length < MAX_SAME_KEY).then_some(before)
    }

    /// Frees an index position and moves back the entries that had to probe past it.
    fn vacate(&mut self, mut hole: usize) {
        let mask = self.index.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.index[at];
            if entry == 0 {
                break;
            }
            let distance = at.wrapping_sub(self.home((entry >> 32) as u32)) & mask;
            if distance >= at.wrapping_sub(hole) & mask {
                self.index[hole] = entry;
                hole = at;
            }
        }
        self.index[hole] = 0;
    }

    /// Restores the order of tuples after the ranks of `tuple` changed; drops the tuple if it is empty.
    fn reorder(&mut self, tuple: u8) {
        let best = self.ranks[usize::from(tuple)].last().copied();
        match best {
            None => self.tuples.retain(|t| t.id != tuple),
            Some(best) => {
                let Some(t) = self.tuples.iter_mut().find(|t| t.id == tuple) else { return };
                if std::mem::replace(&mut t.best, best) != best {
                    self.tuples.sort_unstable_by_key(|t| std::cmp::Reverse(t.best));
                }
            }
        }
    }
}

impl Line {
    #[inline]
    fn tuple(&self) -> u8 {
        (self.rank & ((1 << TUPLE_BITS) - 1)) as u8
    }
}

fn entry(tag: u32, slot: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(slot + 1)
}

#[cfg(test)]
#[path = "tuple_tests.rs"]
mod tests;
