//! Decisions about a burst of packets at once, so that what they read is under way together.
//!
//! A decision reads a line of the rules' index, then the rule's own, or one of learned flows, each of which tells where the next one
//! is. Packet by packet each is waited for; so the packets of a burst go through each step together, and it is fetched before the
//! first of them takes the next.

use super::tuple::Started;
use super::{LearnTable, Steering, Tick, Verdict};
use crate::packet::Headers;

/// Packets of a burst, at most.
pub const BURST: usize = u32::BITS as usize;

/// The numbers of the bits that are set.
pub(crate) fn indices(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (bits != 0).then(|| {
            let i = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            i
        })
    })
}

impl Steering {
    /// As [`classify`](Self::classify), about several packets: of those whose bits are set in `packets`, `verdicts` has the verdicts
    /// afterwards.
    pub fn classify_burst<'h>(
        &self,
        packets: u32,
        headers: impl Fn(usize) -> &'h Headers,
        learned: &LearnTable,
        now: Tick,
        verdicts: &mut [Verdict; BURST],
    ) {
        let mut rules = [Started::default(); BURST];
        let mut flows = [0; BURST];
        let mut in_flows = 0u32;
        for i in indices(packets) {
            rules[i] = self.filters.start(headers(i));
        }
        for i in indices(packets) {
            if !self.filters.go_on(&rules[i])
                && self.learns()
                && let Some(flow) = headers(i).flow()
            {
                flows[i] = learned.start(&flow);
                in_flows |= 1 << i;
            }
        }
        for i in indices(packets) {
            let h = headers(i);
            verdicts[i] = self.refusal(h).unwrap_or_else(|| {
                let rule = self.filters.finish(h, &rules[i]);
                self.decide(h, rule, || match in_flows >> i & 1 {
                    0 => learned.lookup(&h.flow()?, now),
                    _ => learned.finish(flows[i], now),
                })
            });
        }
    }
}
