//! Seeded hashing of fixed-size keys for the tables that a guest or the wire can fill.
//!
//! NH, the almost-universal hash under UMAC, over 64-bit words: two keys collide with a probability of about 2^-64 over the
//! choice of the seed, whatever the keys, so nobody who does not know the seed can prepare collisions. All products are
//! independent, which keeps it to a few nanoseconds; a final folded multiplication spreads the sum over all bits.

use std::hash::{BuildHasher, RandomState};

/// The secret of one table.
#[derive(Debug, Clone)]
pub(crate) struct Seed {
    words: [u64; 8],
    fold: [u64; 2],
}

impl Seed {
    /// A seed of the process's random state, another one at each call.
    pub(crate) fn random() -> Self {
        let state = RandomState::new();
        Self::from_fn(|i| state.hash_one(i))
    }

    /// A seed of the caller's making.
    pub(super) fn from_fn(f: impl Fn(usize) -> u64) -> Self {
        Self { words: std::array::from_fn(&f), fold: [f(8), f(9)] }
    }

    /// Hashes `2 * N` words given as `N` pairs, `N` <= 4. Each `N` is a hash of its own.
    #[inline]
    pub(crate) fn hash<const N: usize>(&self, pairs: [(u64, u64); N]) -> u64 {
        const { assert!(N <= 4) };
        let mut sum = 0u128;
        for (i, (a, b)) in pairs.into_iter().enumerate() {
            let (a, b) = (a.wrapping_add(self.words[2 * i]), b.wrapping_add(self.words[2 * i + 1]));
            sum = sum.wrapping_add(u128::from(a) * u128::from(b));
        }
        let product = u128::from(sum as u64 ^ self.fold[0]) * u128::from((sum >> 64) as u64 ^ self.fold[1]);
        product as u64 ^ (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_word_counts_and_seeds_differ() {
        let seed = Seed::from_fn(|i| (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let zero = seed.hash([(0, 0); 4]);
        for word in 0..8 {
            for bit in 0..64 {
                let mut pairs = [(0, 0); 4];
                let pair: &mut (u64, u64) = &mut pairs[word / 2];
                *(if word % 2 == 0 { &mut pair.0 } else { &mut pair.1 }) = 1 << bit;
                assert_ne!(seed.hash(pairs), zero, "word {word} bit {bit}");
            }
        }
        assert_ne!(Seed::random().hash([(0, 0); 4]), Seed::random().hash([(0, 0); 4]));
    }

    #[test]
    fn consecutive_keys_spread_over_top_bits() {
        let seed = Seed::random();
        let top: HashSet<u64> = (0..4096).map(|i| seed.hash([(i, 7), (0, 0)]) >> 48).collect();
        // 4096 balls in 65536 bins: 3972 different ones are expected, with a deviation of about 11.
        assert!(top.len() > 3850, "{}", top.len());
    }
}
