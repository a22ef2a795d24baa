//! The figures that this experiment was first reported with.

use crate::plan::{Group, Mode, Placement, Sizes};

/// Where they are from.
pub(crate) const SOURCE: &str = "\
Ben Hutchings (Solarflare) on netdev, in reply to \"RFS hardware acceleration (v2)\": 200 concurrent netperf TCP_RR between
two machines of 16 cores, Solarstorm SFN5122F, 4 interrupts per port, each on the first core of a package; the processes
unpinned, or pinned to all cores in rotation";

/// Interrupt moderation, adaptive, in microseconds; the card's own setting first.
pub(crate) const MODERATIONS: [u32; 2] = [60, 20];

/// Figures of one case, over the netperf processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Published {
    /// Mean transactions per second of a process.
    pub(crate) rate: u32,
    /// Standard deviation of those rates.
    pub(crate) deviation: u32,
    /// Mean latency in microseconds.
    pub(crate) latency: u32,
}

/// A case's row: what it is, and rates, deviations and latencies of none, soft, accel.
type Row = (Sizes, u32, Placement, [[u32; 3]; 3]);

const SMALL: Sizes = Sizes { request: 1, response: 1 };
const LARGE: Sizes = Sizes { request: 100, response: 10000 };
const MODES: [Mode; 3] = [Mode::None, Mode::Soft, Mode::Accel];

#[rustfmt::skip]
const ROWS: [Row; 8] = [
    (SMALL, 60, Placement::Unpinned, [[1759, 3213, 3633], [189, 76, 265], [568, 311, 275]]),
    (SMALL, 60, Placement::Pinned, [[2222, 3523, 3848], [703, 2136, 2120], [450, 284, 260]]),
    (SMALL, 20, Placement::Unpinned, [[1797, 3616, 3917], [260, 101, 295], [556, 277, 255]]),
    (SMALL, 20, Placement::Pinned, [[2458, 3706, 4125], [1098, 1987, 2186], [407, 270, 242]]),
    (LARGE, 60, Placement::Unpinned, [[1658, 2909, 3230], [149, 144, 221], [603, 344, 310]]),
    (LARGE, 60, Placement::Pinned, [[2338, 3003, 3437], [993, 856, 1615], [428, 333, 291]]),
    (LARGE, 20, Placement::Unpinned, [[3348, 3110, 3331], [366, 176, 364], [299, 322, 300]]),
    (LARGE, 20, Placement::Pinned, [[2470, 3271, 3487], [1110, 1693, 1817], [405, 306, 287]]),
];

/// What was reported for a case, if it was.
pub(crate) fn find(group: Group, mode: Mode, moderation: u32) -> Option<Published> {
    let column = MODES.iter().position(|published| *published == mode)?;
    let (.., [rates, deviations, latencies]) = ROWS.iter().find(|(sizes, usecs, placement, _)| {
        *sizes == group.sizes && *placement == group.placement && *usecs == moderation
    })?;
    Some(Published { rate: rates[column], deviation: deviations[column], latency: latencies[column] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Moderation;

    #[test]
    fn every_case_but_learned_flows_was_reported() {
        let groups = Group::all(&[Moderation::Off]).into_iter();
        for (group, moderation) in groups.flat_map(|group| MODERATIONS.map(|m| (group, m))) {
            for mode in Mode::ALL {
                let found = find(group, mode, moderation);
                assert_eq!(found.is_some(), mode != Mode::Learned, "{group} {mode} {moderation}");
            }
        }
    }

    #[test]
    fn latencies_are_those_of_the_rates() {
        for (sizes, moderation, placement, [rates, _, latencies]) in ROWS {
            for (rate, latency) in rates.into_iter().zip(latencies) {
                let expected = 1e6 / f64::from(rate);
                assert!(
                    (expected - f64::from(latency)).abs() < 2.0,
                    "{sizes} {moderation} {placement}: {rate}"
                );
            }
        }
    }
}
