//! Tuple-space search: the filter table's engine.
//!
//! # Theory of operation
//!
//! A *tuple* is all rules of one group that share one mask. Within a tuple a lookup is one probe of a hash table for the
//! packet's masked key, so its cost grows with the number of tuples ([`MAX_TUPLES`] at most), not of rules. A packet visits those
//! tuples whose IP version it has, in descending order of a *bound* on the *rank* of their rules, and stops as soon as no
//! remaining tuple can beat what it has found; a tuple that demands another header which the packet lacks is passed over
//! without hashing. The bound is the highest rank that a tuple has had since it was empty: one that is too high costs
//! a probe and nothing else, and the true one would have to be searched for at each delete.
//!
//! A rank orders all rules: group priority, then the rule's priority (both higher first), then its id (lower first).
//!
//! All tuples share one [`Index`], by a tag of 32 bits of the seeded hash over masked key and tuple. A tag match is confirmed
//! on the rule's *line*, 64 bytes {key, rank, tuple and action}; so a miss costs one cache line per tuple and a hit two, and both
//! can be fetched ahead for a burst ([`TupleSpace::start`]).
//!
//! Rules of one tuple with the same key form a chain, best rank first, of which only the first is in the index (at
//! most [`MAX_SAME_KEY`], since inserting walks it).
//!
//! A slot is *free* (on the free list) or *used* (in the index or on a chain, counted by its tuple); `insert`
//! and `remove` are the only transitions. A slot may be used again at once, the most recently freed first.

use std::cmp::Reverse;

use super::burst::indices;
use super::hash::Seed;
use super::index::Index;
use super::key::{Key, NEVER, WORDS};
pub(crate) use super::rule::Rank;
use super::rule::{ACTION_BITS, MAX_CAPACITY, RANK_SHIFT, TUPLE_BITS};
pub use super::rule::{Action, RuleSlot};
use crate::hint::{huge_pages, prefetch};
use crate::packet::words::LAST;
use crate::packet::words::presence::{V4, V6};

/// Tuples that may exist at once: groups times masks in use.
pub(crate) const MAX_TUPLES: usize = 64;
/// Rules with the same key in the same tuple.
pub(crate) const MAX_SAME_KEY: usize = 256;
/// Tuples of one packet whose entries are fetched ahead.
const AHEAD: usize = 4;

/// A packet's fields.
type Fields = [u64; WORDS];

const NONE: u32 = u32::MAX;

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

/// What a lookup reads of a rule.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Line {
    key: Key,
    /// Rank, tuple and action.
    rank: u64,
}

const _: () = assert!(size_of::<Line>() == 64 && MAX_TUPLES <= 1 << TUPLE_BITS && 17 + 28 + RANK_SHIFT == 64);

impl Line {
    #[inline(always)]
    fn tuple(&self) -> u8 {
        (self.rank >> ACTION_BITS) as u8 & ((1 << TUPLE_BITS) - 1)
    }
}

/// What only changes need of a rule.
#[derive(Clone, Copy)]
struct Meta {
    tag: u32,
    next: u32,
}

/// A tuple; without rules it is none.
#[derive(Clone, Copy, Default)]
struct Tuple {
    mask: Key,
    /// Presence bits that the mask demands.
    needs: u64,
    /// No rule of it has a higher rank.
    bound: u64,
    group: u32,
    rules: u32,
}

/// A lookup that has been started: tags by position in the order of visits, and which of them there are.
#[derive(Clone, Copy, Default)]
pub(crate) struct Started {
    tags: [u32; AHEAD],
    probed: u32,
}

/// See the module's documentation.
#[derive(Clone)]
pub(crate) struct TupleSpace {
    seed: Seed,
    capacity: u32,
    index: Index,
    lines: Vec<Line>,
    /// By slot, too; a lookup needs it for what has no [`Action::code`].
    actions: Vec<Action>,
    meta: Vec<Meta>,
    free: Vec<u32>,
    tuples: Box<[Tuple; MAX_TUPLES]>,
    /// Tuples that a packet visits, in descending order of bounds: of one without IP, with IPv4, with IPv6.
    visits: [Vec<u8>; 3],
}

impl TupleSpace {
    /// An empty table for `capacity` rules, capped at [`MAX_CAPACITY`].
    pub(crate) fn new(capacity: u32) -> Self {
        let capacity = capacity.min(MAX_CAPACITY);
        // Reserved in full, so that no insert ever copies the table; untouched pages cost nothing.
        let lines = Vec::with_capacity(capacity as usize);
        huge_pages(lines.as_ptr(), lines.capacity());
        Self {
            seed: Seed::random(),
            capacity,
            index: Index::new(capacity),
            lines,
            actions: Vec::with_capacity(capacity as usize),
            meta: Vec::with_capacity(capacity as usize),
            free: Vec::new(),
            tuples: Box::new([Tuple::default(); MAX_TUPLES]),
            visits: Default::default(),
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
        self.tuples.iter().filter(|t| t.rules != 0).count()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The best rule that matches.
    #[inline]
    pub(crate) fn lookup(&self, fields: &Fields) -> Option<(RuleSlot, Action)> {
        self.search(fields, |_, id| self.tag(&Key::masked(fields, &self.tuple(id).mask), id))
    }

    /// Starts a lookup: what it will read of the index is fetched.
    #[inline]
    pub(crate) fn start(&self, fields: &Fields) -> Started {
        let mut started = Started::default();
        let presence = fields[LAST];
        for (position, &id) in self.visits(presence).iter().enumerate().take(AHEAD) {
            let tuple = self.tuple(id);
            if presence & tuple.needs == tuple.needs {
                let tag = self.tag(&Key::masked(fields, &tuple.mask), id);
                self.index.fetch(tag);
                started.tags[position] = tag;
                started.probed |= 1 << position;
            }
        }
        started
    }

    /// Goes on with it when that has had time to come: the lines of rules that it will read are fetched. False if no rule will match,
    /// as far as it has been started.
    #[inline]
    pub(crate) fn go_on(&self, started: &Started) -> bool {
        let mut any = false;
        for position in indices(started.probed) {
            if let Some(at) = self.index.find(started.tags[position % AHEAD], |_| true) {
                prefetch(&raw const self.lines[self.index.slot(at) as usize]);
                any = true;
            }
        }
        any
    }

    /// As [`lookup`](Self::lookup), of one that was started with the same fields. Nothing may have changed since.
    #[inline]
    pub(crate) fn finish(&self, fields: &Fields, started: &Started) -> Option<(RuleSlot, Action)> {
        self.search(fields, |position, id| match started.tags.get(position) {
            Some(tag) => *tag,
            None => self.tag(&Key::masked(fields, &self.tuple(id).mask), id),
        })
    }

    #[inline(always)]
    fn search(&self, fields: &Fields, tag: impl Fn(usize, u8) -> u32) -> Option<(RuleSlot, Action)> {
        let presence = fields[LAST];
        let (mut best, mut found) = (0, NONE);
        for (position, &id) in self.visits(presence).iter().enumerate() {
            let tuple = self.tuple(id);
            if tuple.bound <= best {
                break;
            }
            if presence & tuple.needs != tuple.needs {
                continue;
            }
            let is = |slot: u32| {
                let line = &self.lines[slot as usize];
                line.key.is(fields, &tuple.mask) && line.tuple() == id
            };
            if let Some(at) = self.index.find(tag(position, id), is) {
                let slot = self.index.slot(at);
                let rank = self.lines[slot as usize].rank;
                if rank > best {
                    (best, found) = (rank, slot);
                }
            }
        }
        (found != NONE).then(|| {
            let action = Action::from_code(best).unwrap_or_else(|| self.actions[found as usize]);
            (RuleSlot(found), action)
        })
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
        debug_assert_eq!(Key::masked(&key.0, mask), *key);
        if self.len() == self.capacity {
            return Err(Full::Rules);
        }
        let known = |t: &Tuple| t.rules != 0 && t.group == group && t.mask == *mask;
        let known = self.tuples.iter().position(known);
        let tuple =
            known.or_else(|| self.tuples.iter().position(|t| t.rules == 0)).ok_or(Full::Tuples)? as u8;
        let rank = rank.0 | u64::from(tuple) << ACTION_BITS | action.code();
        let tag = self.tag(key, tuple);
        let place = self.position(tag, key, tuple);
        let chain = place
            .map(|at| self.chain_position(self.index.slot(at), rank).ok_or(Full::SameKey))
            .transpose()?;

        // Nothing can fail from here on.
        let slot = self.free.pop().unwrap_or_else(|| {
            self.lines.push(Line::default());
            self.actions.push(Action::Drop);
            self.meta.push(Meta { tag: 0, next: NONE });
            self.lines.len() as u32 - 1
        });
        self.lines[slot as usize] = Line { key: *key, rank };
        self.actions[slot as usize] = action;
        let mut next = NONE;
        match (place, chain) {
            (Some(at), Some(None)) => {
                next = self.index.slot(at);
                self.index.set_slot(at, slot);
            }
            (_, Some(Some(before))) => {
                next = std::mem::replace(&mut self.meta[before as usize].next, slot);
            }
            _ => self.index.insert(tag, slot),
        }
        self.meta[slot as usize] = Meta { tag, next };
        if known.is_none() {
            let needs = mask.presence();
            self.tuples[usize::from(tuple)] = Tuple { mask: *mask, needs, bound: 0, group, rules: 0 };
        }
        let t = &mut self.tuples[usize::from(tuple)];
        t.rules += 1;
        if rank > t.bound {
            t.bound = rank;
            let in_order = |visits: &Vec<u8>| visits.is_sorted_by_key(|&id| Reverse(self.tuple(id).bound));
            if known.is_none() || !self.visits.iter().all(in_order) {
                self.reorder();
            }
        }
        Ok(RuleSlot(slot))
    }

    /// What the rule in a slot does.
    pub(crate) fn action(&self, RuleSlot(slot): RuleSlot) -> Option<Action> {
        self.actions.get(slot as usize).copied()
    }

    /// Changes what a rule does, and nothing else; `slot` must be in use.
    pub(crate) fn set_action(&mut self, RuleSlot(slot): RuleSlot, action: Action) {
        let line = &mut self.lines[slot as usize];
        line.rank = line.rank >> ACTION_BITS << ACTION_BITS | action.code();
        self.actions[slot as usize] = action;
    }

    /// Removes a rule; `slot` must be in use.
    pub(crate) fn remove(&mut self, RuleSlot(slot): RuleSlot) {
        let Meta { tag, next } = self.meta[slot as usize];
        let line = self.lines[slot as usize];
        let at = self.position(tag, &line.key, line.tuple());
        let at = at.expect("a used slot is in the index or on a chain whose head is");
        let head = self.index.slot(at);
        if head != slot {
            let mut before = head;
            while self.meta[before as usize].next != slot {
                before = self.meta[before as usize].next;
            }
            self.meta[before as usize].next = next;
        } else if next != NONE {
            self.index.set_slot(at, next);
        } else {
            self.index.remove(at);
        }
        self.free.push(slot);
        let tuple = &mut self.tuples[usize::from(line.tuple())];
        tuple.rules -= 1;
        if tuple.rules == 0 {
            self.reorder();
        }
    }

    #[inline(always)]
    fn tuple(&self, id: u8) -> &Tuple {
        &self.tuples[usize::from(id) % MAX_TUPLES]
    }

    #[inline(always)]
    fn visits(&self, presence: u64) -> &[u8] {
        &self.visits[version(presence) % 3]
    }

    #[inline(always)]
    fn tag(&self, key: &Key, tuple: u8) -> u32 {
        let [a, b, c, d, e, f, g] = key.0;
        const { assert!(WORDS == 7) };
        (self.seed.hash([(a, b), (c, d), (e, f), (g, tuple.into())]) >> 32) as u32
    }

    /// Where in the index the chain of this key is.
    fn position(&self, tag: u32, key: &Key, tuple: u8) -> Option<usize> {
        self.index.find(tag, |slot| {
            let line = &self.lines[slot as usize];
            line.key == *key && line.tuple() == tuple
        })
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

    /// Restores the order of visits after a tuple has come, gone, or got a higher bound.
    fn reorder(&mut self) {
        let tuples = &self.tuples;
        for (packet, visits) in self.visits.iter_mut().enumerate() {
            // A packet has one IP version or none. Who demands another one, or both, or what no packet has, is not visited.
            let comes = |t: &Tuple| {
                t.rules != 0
                    && t.needs & NEVER == 0
                    && (t.needs & (V4 | V6) == 0 || version(t.needs) == packet)
            };
            visits.clear();
            visits.extend((0..MAX_TUPLES as u8).filter(|&id| comes(&tuples[usize::from(id)])));
            visits.sort_unstable_by_key(|&id| Reverse(tuples[usize::from(id)].bound));
        }
    }
}

/// 0 without IP, 1 with IPv4, 2 with IPv6.
#[inline(always)]
fn version(presence: u64) -> usize {
    const { assert!(V4 == 2 && V6 == 4) };
    (presence >> 1 & 3) as usize
}

#[cfg(test)]
#[path = "tuple_tests.rs"]
mod tests;
