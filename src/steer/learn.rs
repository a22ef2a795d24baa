//! Learned flows: what a transmit queue sends decides which receive queue gets the answers.
//!
//! # Theory of operation
//!
//! The table is set-associative: a flow's seeded 64-bit hash names a *set* of [`WAYS`] entries (one cache line) and a tag of
//! [`TAG_BITS`] bits that tells flows within the set apart. The flow itself is not kept: two flows of one set are taken
//! for each other once in 2^41 times, and then one of them merely lands on a queue that its application does not run on.
//!
//! An entry is one atomic word {tag, receive queue + 1, second of last use}, so all workers share the table without a
//! lock. All accesses are relaxed: each word is complete by itself. Its states:
//!
//! * *free* (0): `learn` may claim it;
//! * *live*: `lookup` uses it; `learn` refreshes its second (at most one write per flow and second, none while the second
//!   stays) and its queue (a *move*: the application went to another CPU);
//! * *expired* (unused for longer than the idle time): `lookup` passes it over, `learn` claims it.
//!
//! If a set has neither free nor expired entries, the one that was refreshed longest ago is *evicted*. Only sent packets
//! refresh. Claims and moves are compare-and-swaps; a loser gives up, its next packet tries again. Two workers that learn the same
//! flow in the same instant may both claim an entry; the set is searched in order, so lookups agree on one of them and the
//! other ages out.
//!
//! Seconds are kept modulo 2^16. So that an entry can never come round and look young again, the first call in each period of 2^14
//! seconds sweeps the table, and idle times are shorter than a period.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::hash::Seed;
use crate::hint::prefetch;
use crate::packet::FlowKey;

/// Entries of a set: one cache line.
const WAYS: usize = 8;
/// Bits that tell flows of one set apart.
const TAG_BITS: u32 = 64 - QUEUE_BITS - AGE_BITS;
/// Receive queues that an entry can name.
const QUEUES: u16 = (1 << QUEUE_BITS) - 1;
const _: () = assert!(QUEUES >= super::MAX_QUEUE_PAIRS);

const AGE_BITS: u32 = 16;
const QUEUE_BITS: u32 = 7;
/// No period: there was no call yet.
const UNSET: u32 = u32::MAX;
const LAST_PERIOD: u32 = u32::MAX >> PERIOD_BITS;
/// Seconds between sweeps, as a power of two.
const PERIOD_BITS: u32 = 14;

/// Coarse time in seconds from any origin, the same for all users of a table. It never goes back by more than a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tick(u32);

impl Tick {
    /// The origin.
    pub const ZERO: Tick = Tick(0);

    /// The tick of a time in seconds.
    pub fn from_secs(secs: u64) -> Self {
        Self(secs as u32)
    }

    /// The time in seconds, modulo 2^32.
    pub fn as_secs(self) -> u64 {
        self.0.into()
    }

    #[inline]
    fn period(self) -> u32 {
        self.0 >> PERIOD_BITS
    }
}

/// How big a table is and how long it remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnConfig {
    /// Flows that fit: rounded up to a power of two, 8 at least and 2^20 at most.
    pub entries: u32,
    /// Seconds without a sent packet after which a flow is forgotten: 1 to 16383 (else the nearest of both).
    pub idle_secs: u16,
}

impl Default for LearnConfig {
    fn default() -> Self {
        Self { entries: 16384, idle_secs: 300 }
    }
}

/// What happened to a table since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LearnStats {
    /// Flows that got an entry.
    pub learned: u64,
    /// Flows whose queue changed.
    pub moved: u64,
    /// Live flows that had to give way.
    pub evicted: u64,
    /// Flows that were found too old, by a sweep or by one that took their place.
    pub expired: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry(u64);

impl Entry {
    const FREE: u64 = 0;

    #[inline]
    fn new(tag: u64, queue: u16, now: Tick) -> Self {
        Self(tag | u64::from(queue + 1) << AGE_BITS | u64::from(now.0 as u16))
    }

    #[inline]
    fn has_tag(self, tag: u64) -> bool {
        (self.0 ^ tag) >> (64 - TAG_BITS) == 0 && self.0 != Self::FREE
    }

    #[inline]
    fn queue(self) -> u16 {
        (self.0 >> AGE_BITS) as u16 % (1 << QUEUE_BITS) - 1
    }

    /// Seconds since the last refresh; 0 if another worker's clock was ahead.
    #[inline]
    fn age(self, now: Tick) -> u16 {
        let age = (now.0 as u16).wrapping_sub(self.0 as u16);
        if age > u16::MAX / 2 { 0 } else { age }
    }
}

#[derive(Debug)]
#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

/// A NIC's learned flows, shared by its workers. See the module's documentation.
#[derive(Debug)]
pub struct LearnTable {
    seed: Seed,
    sets: Box<[Set]>,
    idle_secs: u16,
    period: AtomicU32,
    /// See [`LearnTable::changes`].
    changes: AtomicU64,
    learned: AtomicU64,
    moved: AtomicU64,
    evicted: AtomicU64,
    expired: AtomicU64,
}

impl LearnTable {
    /// An empty table.
    pub fn new(config: LearnConfig) -> Self {
        let entries = config.entries.clamp(WAYS as u32, 1 << 20).next_power_of_two() as usize;
        Self {
            seed: Seed::random(),
            sets: (0..entries / WAYS).map(|_| Set(Default::default())).collect(),
            idle_secs: config.idle_secs.clamp(1, (1 << PERIOD_BITS) - 1),
            period: AtomicU32::new(UNSET),
            changes: AtomicU64::new(0),
            learned: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        }
    }

    /// Flows that fit.
    pub fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Notes that transmit queue `tx_queue` (counted from 0) has sent a packet of flow `sent`: the reverse flow belongs to
    /// the receive queue of the same number. Queues from 127 on are not learned.
    #[inline]
    pub fn learn(&self, sent: &FlowKey, tx_queue: u16, now: Tick) {
        if tx_queue >= QUEUES {
            return;
        }
        self.turn_period(now);
        let (set, tag) = self.place(self.hash(&sent.reversed()));
        let wanted = Entry::new(tag, tx_queue, now);
        for way in &set.0 {
            let entry = Entry(way.load(Relaxed));
            if entry.has_tag(tag) {
                if entry.0 != wanted.0 {
                    self.refresh(way, entry, wanted, now);
                }
                return;
            }
        }
        self.claim(set, wanted, now);
    }

    /// The receive queue of a received packet's flow, if a live entry names one.
    #[inline]
    pub fn lookup(&self, received: &FlowKey, now: Tick) -> Option<u16> {
        self.finish(self.hash(received), now)
    }

    /// Starts a lookup, and has fetched what it will read.
    #[inline]
    pub(super) fn start(&self, received: &FlowKey) -> u64 {
        let hash = self.hash(received);
        prefetch(&raw const *self.place(hash).0);
        hash
    }

    /// As [`lookup`](Self::lookup), of one that was started.
    #[inline]
    pub(super) fn finish(&self, hash: u64, now: Tick) -> Option<u16> {
        self.turn_period(now);
        let (set, tag) = self.place(hash);
        // All of the set, without a branch for each: where in it a flow is can't be foreseen.
        let entry = set.0.iter().rev().fold(Entry(Entry::FREE), |found, way| {
            let entry = Entry(way.load(Relaxed));
            if entry.has_tag(tag) { entry } else { found }
        });
        (entry.0 != Entry::FREE && entry.age(now) <= self.idle_secs).then(|| entry.queue())
    }

    /// Forgets every flow.
    pub fn clear(&self) {
        self.ways().for_each(|way| way.store(Entry::FREE, Relaxed));
        self.changes.fetch_add(1, Relaxed);
    }

    /// Forgets every flow of a receive queue.
    pub fn clear_queue(&self, queue: u16) {
        for way in self.ways() {
            let entry = Entry(way.load(Relaxed));
            if entry.0 != Entry::FREE && entry.queue() == queue {
                let _ = way.compare_exchange(entry.0, Entry::FREE, Relaxed, Relaxed);
            }
        }
        self.changes.fetch_add(1, Relaxed);
    }

    /// Another one whenever a lookup may have another answer than before, age apart. It never goes back.
    #[inline]
    pub fn version(&self) -> u64 {
        self.changes.load(Relaxed) + self.learned.load(Relaxed)
    }

    /// Counts what may undo a flow that was learned within the same tick: moves, evictions, clearing, a race that was lost. While it and the
    /// tick stay the same, learning a flow again changes nothing, so it may be left out ([`RecentFlows`](super::RecentFlows)).
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// How many live flows each of the first `queues` receive queues has.
    pub fn flows_per_queue(&self, queues: u16, now: Tick) -> Vec<u32> {
        let mut counts = vec![0; queues.into()];
        for entry in self.ways().map(|way| Entry(way.load(Relaxed))).filter(|e| e.0 != Entry::FREE) {
            if let Some(count) = counts.get_mut(usize::from(entry.queue()))
                && entry.age(now) <= self.idle_secs
            {
                *count += 1;
            }
        }
        counts
    }

    /// What happened so far.
    pub fn stats(&self) -> LearnStats {
        LearnStats {
            learned: self.learned.load(Relaxed),
            moved: self.moved.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
            expired: self.expired.load(Relaxed),
        }
    }

    fn ways(&self) -> impl Iterator<Item = &AtomicU64> {
        self.sets.iter().flat_map(|set| &set.0)
    }

    #[inline]
    fn hash(&self, flow: &FlowKey) -> u64 {
        let [a, b, c, d] = flow.addr;
        self.seed.hash([(a, b), (c, d), (flow.rest, 0)])
    }

    /// The set of a flow with this hash, and its tag in the place that it has in an entry.
    #[inline]
    fn place(&self, hash: u64) -> (&Set, u64) {
        // Tag: the upper 41 bits. Set: the lower ones, of which 23 are not in the tag (there are 2^17 sets at most).
        (&self.sets[hash as usize & (self.sets.len() - 1)], hash & (u64::MAX << (64 - TAG_BITS)))
    }

    /// Brings a flow's entry up to date.
    #[cold]
    fn refresh(&self, way: &AtomicU64, entry: Entry, wanted: Entry, now: Tick) {
        if way.compare_exchange(entry.0, wanted.0, Relaxed, Relaxed).is_err() {
            self.changes.fetch_add(1, Relaxed); // so that the next packet does try again
            return;
        }
        if entry.age(now) > self.idle_secs {
            self.expired.fetch_add(1, Relaxed);
            self.learned.fetch_add(1, Relaxed);
        } else if entry.queue() != wanted.queue() {
            self.moved.fetch_add(1, Relaxed);
            self.changes.fetch_add(1, Relaxed);
        }
    }

    /// Finds an entry for a new flow.
    #[cold]
    fn claim(&self, set: &Set, wanted: Entry, now: Tick) {
        // A free entry counts as older than any other.
        let rank = |e: Entry| if e.0 == Entry::FREE { u32::MAX } else { e.age(now).into() };
        let entries = set.0.iter().map(|way| (way, Entry(way.load(Relaxed))));
        let Some((way, oldest)) = entries.max_by_key(|&(_, e)| rank(e)) else { return };
        if way.compare_exchange(oldest.0, wanted.0, Relaxed, Relaxed).is_err() {
            self.changes.fetch_add(1, Relaxed);
            return;
        }
        self.learned.fetch_add(1, Relaxed);
        if oldest.0 == Entry::FREE {
        } else if oldest.age(now) > self.idle_secs {
            self.expired.fetch_add(1, Relaxed);
        } else {
            self.evicted.fetch_add(1, Relaxed);
            self.changes.fetch_add(1, Relaxed);
        }
    }

    #[inline]
    fn turn_period(&self, now: Tick) {
        if self.period.load(Relaxed) != now.period() {
            self.sweep(now);
        }
    }

    /// Frees the expired entries; in the first period after a gap, all.
    #[cold]
    fn sweep(&self, now: Tick) {
        let before = self.period.load(Relaxed);
        // A worker whose clock is a moment behind must not turn the period back. All this is modulo the number of periods
        // in a Tick.
        let ahead = now.period().wrapping_sub(before) & LAST_PERIOD;
        if before != UNSET && (ahead == 0 || ahead == LAST_PERIOD) {
            return;
        }
        if self.period.compare_exchange(before, now.period(), Relaxed, Relaxed).is_err() {
            return;
        }
        for way in self.ways() {
            let entry = Entry(way.load(Relaxed));
            if entry.0 != Entry::FREE
                && (ahead > 1 || entry.age(now) > self.idle_secs)
                && way.compare_exchange(entry.0, Entry::FREE, Relaxed, Relaxed).is_ok()
            {
                self.expired.fetch_add(1, Relaxed);
            }
        }
        self.changes.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
#[path = "learn_tests.rs"]
mod tests;
