//! Flows that a transmit queue has shown to the table of learned flows a moment ago.
//!
//! # Theory of operation
//!
//! A busy flow sends millions of packets between two changes of its entry. Each transmit queue therefore keeps a few
//! flows, direct-mapped, in the form in which the parser leaves them, and shows only others to the shared [`LearnTable`]: a comparison in its own cache instead of a keyed hash and a
//! search. The states of an entry are *empty* and *shown*. It is shown only as long as showing it again would change nothing, which
//! ends for all entries at once when the second turns (the table's entry must be refreshed) or when anything was moved,
//! evicted or cleared ([`LearnTable::changes`]): then the cache empties itself.
//!
//! The place of a flow is a cheap, unkeyed mix of its key: who makes flows collide here loses the shortcut for them, and
//! nothing else.

use super::learn::{LearnTable, Tick};
use crate::packet::Headers;
use crate::packet::words::{LAST, place, presence, same};

/// Flows that are kept.
const FLOWS: usize = 64;

/// The last words of [`Headers::words`]: addresses, and the last one as far as it belongs to the flow.
type Words = [u64; 5];

/// The bits that do not: TOS and TCP flags.
const NO_FLOW: u64 = 0xff_ff00;

/// A transmit queue's recent flows.
#[derive(Debug)]
pub struct RecentFlows {
    flows: [Words; FLOWS],
    changes: u64,
    now: Tick,
}

impl Default for RecentFlows {
    fn default() -> Self {
        RecentFlows { flows: [[0; 5]; FLOWS], changes: u64::MAX, now: Tick::default() }
    }
}

impl RecentFlows {
    /// Call before each burst: forgets everything if it is no longer true.
    #[inline]
    pub fn start_burst(&mut self, table: &LearnTable, now: Tick) {
        let changes = table.changes();
        if (self.changes, self.now) != (changes, now) {
            *self = RecentFlows { flows: [[0; 5]; FLOWS], changes, now };
        }
    }

    /// As [`LearnTable::learn`], unless that was done for this packet's flow a moment ago, or it has none.
    #[inline]
    pub fn learn(&mut self, table: &LearnTable, sent: &Headers, tx_queue: u16) {
        if !sent.has(presence::PORTS) {
            return;
        }
        let &[a, b, c, d] = sent.addr();
        let words = [a, b, c, d, sent.words()[LAST] & !NO_FLOW];
        let kept = &mut self.flows[place::<FLOWS>(sent.addr(), words[4])];
        // An empty entry has no ports.
        if !same(kept, &words) {
            *kept = words;
            if let Some(flow) = sent.flow() {
                table.learn(&flow, tx_queue, self.now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::frames::{Frame, tcp4};
    use crate::steer::LearnConfig;

    fn flow(port: u16) -> Headers {
        Frame { ports: (port, 9), ..tcp4() }.headers()
    }

    /// What the table says of the answers to `flow`.
    fn queue(table: &LearnTable, flow: &Headers, now: Tick) -> Option<u16> {
        table.lookup(&flow.flow().unwrap().reversed(), now)
    }

    #[test]
    fn a_flow_that_moves_away_and_back_within_a_second_is_followed_both_times() {
        let (table, now) = (LearnTable::new(LearnConfig::default()), Tick::from_secs(5));
        let (mut first, mut second) = (RecentFlows::default(), RecentFlows::default());
        for _ in 0..3 {
            for (recent, tx_queue) in [(&mut first, 0), (&mut second, 1)] {
                recent.start_burst(&table, now);
                recent.learn(&table, &flow(1), tx_queue);
                assert_eq!(queue(&table, &flow(1), now), Some(tx_queue));
            }
        }
    }

    #[test]
    fn a_table_that_was_cleared_is_filled_again() {
        let (table, now) = (LearnTable::new(LearnConfig::default()), Tick::from_secs(5));
        let mut recent = RecentFlows::default();
        for _ in 0..2 {
            recent.start_burst(&table, now);
            recent.learn(&table, &flow(1), 3);
            assert_eq!(queue(&table, &flow(1), now), Some(3));
            table.clear();
        }
    }

    #[test]
    fn a_flow_that_goes_on_sending_does_not_age() {
        let table = LearnTable::new(LearnConfig { idle_secs: 2, ..LearnConfig::default() });
        let mut recent = RecentFlows::default();
        for second in 0..20 {
            let now = Tick::from_secs(second);
            for _ in 0..3 {
                recent.start_burst(&table, now);
                recent.learn(&table, &flow(1), 2);
            }
            assert_eq!(queue(&table, &flow(1), now), Some(2), "second {second}");
        }
    }

    #[test]
    fn more_flows_than_places_are_all_learned() {
        let (table, now) = (LearnTable::new(LearnConfig::default()), Tick::from_secs(1));
        let mut recent = RecentFlows::default();
        for round in 0..2 {
            recent.start_burst(&table, now);
            for port in 0..1000 {
                recent.learn(&table, &flow(port), port % 4);
            }
            let right = (0..1000).filter(|p| queue(&table, &flow(*p), now) == Some(p % 4)).count();
            assert_eq!(right, 1000, "round {round}");
        }
    }
}
