//! The figures that this experiment was first reported with.

/// Where they are from.
pub(crate) const SOURCE: &str = "\
Alex Rosenbaum (Mellanox) on netdev, in reply to \"[PATCH v4 net-next 0/4] net: low latency Ethernet device polling\": sockperf \
TCP ping-pong of 12 bytes between two machines, both of which poll or do not; the counter of busy polls covered every \
message at every rate";

/// Mean round-trip times in microseconds by messages a second, with polling and without.
const ROWS: [(u32, f64, f64); 3] = [(10_000, 14.0, 21.8), (1000, 15.6, 23.0), (100, 16.6, 24.4)];

/// What was reported for a rate, if it was.
pub(crate) fn find(mps: u32, polling: bool) -> Option<f64> {
    let (_, on, off) = ROWS.into_iter().find(|(rate, ..)| *rate == mps)?;
    Some(if polling { on } else { off })
}

/// Where those of the table by moderation are from.
pub(crate) const LLS_SOURCE: &str = "\
the first proposal of low latency sockets (netdev, 27 February 2013): netperf TCP_RR and UDP_RR with an ixgbe card, thousands of \
transactions a second; without polling 37 and 40 with the driver's own adaptive moderation, 50 and 56 with rx-usecs 0; with \
polling 70 and 78, and 84 and 92 with rx-usecs 100 and a kernel configured for latency";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::busy_poll::plan::RATES;

    #[test]
    fn polling_was_faster_and_low_rates_slower() {
        for pair in RATES.windows(2) {
            for polling in [false, true] {
                assert!(find(pair[0], polling).unwrap() < find(pair[1], polling).unwrap(), "{pair:?}");
            }
        }
        assert!(RATES.iter().all(|rate| find(*rate, true).unwrap() < find(*rate, false).unwrap()));
        assert_eq!(find(500, true), None);
    }
}
