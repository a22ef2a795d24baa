//! How long frames and signals take inside of flownic, for NICs that are asked to keep it (`latency=on`).
//!
//! Once per burst, never per packet. Time begins with the worker's turn in which it found the frame.

use serde::{Deserialize, Serialize};

use crate::dataplane::notify::Nanos;
use crate::stats::Counter;

/// Buckets of a histogram.
const BUCKETS: usize = 24;
/// What is below 2 to the power of this many nanoseconds goes into the first bucket.
const FIRST: u32 = 8;

/// Counts by powers of two of a time; who holds the queue is the only writer.
#[derive(Default, Debug)]
pub struct Histogram([Counter; BUCKETS]);

impl Histogram {
    /// So many took that long.
    pub fn add(&self, nanos: Nanos, n: u64) {
        let bucket = (nanos.max(1).ilog2() + 1).saturating_sub(FIRST) as usize;
        self.0[bucket.min(BUCKETS - 1)].add(n);
    }

    /// All back to zero.
    pub fn reset(&self) {
        self.0.iter().for_each(Counter::reset);
    }

    /// Buckets that have something in them.
    fn buckets(&self) -> Vec<Bucket> {
        let below = |i: usize| (i + 1 < BUCKETS).then(|| 1 << (FIRST as usize + i));
        let all = self.0.iter().enumerate().map(|(i, c)| Bucket { below_ns: below(i), count: c.get() });
        all.filter(|b| b.count != 0).collect()
    }
}

/// Of one receive queue.
#[derive(Default, Debug)]
pub struct QueueLatency {
    /// Frames, until they were published.
    pub published: Histogram,
    /// Signals, from the first frame that they stand for until they were sent.
    pub signalled: Histogram,
}

impl QueueLatency {
    /// All back to zero.
    pub fn reset(&self) {
        self.published.reset();
        self.signalled.reset();
    }

    /// A snapshot.
    pub fn values(&self) -> LatencyStats {
        LatencyStats { published: self.published.buckets(), signalled: self.signalled.buckets() }
    }
}

/// A snapshot of one receive queue: buckets that are not empty, the shortest times first.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct LatencyStats {
    /// Frames.
    pub published: Vec<Bucket>,
    /// Signals.
    pub signalled: Vec<Bucket>,
}

/// How many took less than a time, and not less than half of it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
pub struct Bucket {
    /// A power of two of nanoseconds; none: longer than all others.
    pub below_ns: Option<u64>,
    /// How many.
    pub count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two_and_the_outer_ones_take_the_rest() {
        let h = Histogram::default();
        for (nanos, n) in [(0, 1), (255, 2), (256, 4), (511, 8), (512, 16), (1_000_000, 32), (Nanos::MAX, 64)]
        {
            h.add(nanos, n);
        }
        let bucket = |below_ns, count| Bucket { below_ns, count };
        let expected = [
            bucket(Some(256), 3),
            bucket(Some(512), 12),
            bucket(Some(1024), 16),
            bucket(Some(1 << 20), 32),
            bucket(None, 64),
        ];
        assert_eq!(h.buckets(), expected);
        h.add(1 << 30, 1);
        h.add((1 << 30) - 1, 1);
        assert_eq!(h.buckets()[4..], [bucket(Some(1 << 30), 1), bucket(None, 65)]);
        h.reset();
        assert_eq!(h.buckets(), []);
    }
}
