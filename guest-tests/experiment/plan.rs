//! What is measured, and in which order.

use std::fmt;

/// How packets find the CPU that wants them.
///
/// Interrupt moderation would be a second dimension of what is set up for the same flows: a value beside the mode in
/// [`Batch`], set in `modes.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// Not at all: RSS spreads flows over queues.
    None,
    /// The kernel's RFS hands packets from the CPU of their queue to the one of their consumer.
    Soft,
    /// The device has learned from what the guest sends which queue a flow belongs to.
    Learned,
    /// The kernel's RFS tells the driver, which puts a filter into the device.
    Accel,
}

impl Mode {
    /// All of them, in the order of tables.
    pub(crate) const ALL: [Mode; 4] = [Mode::None, Mode::Soft, Mode::Learned, Mode::Accel];

    /// Short name, also that of `--modes`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::None => "none",
            Mode::Soft => "soft",
            Mode::Learned => "learned",
            Mode::Accel => "accel",
        }
    }

    /// What it is, for legends.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Mode::None => "none (RSS only)",
            Mode::Soft => "soft (RFS in the kernel)",
            Mode::Learned => "learned (by the device)",
            Mode::Accel => "accel (RFS with filters in the device)",
        }
    }

    /// Whether the device itself brings packets to the consumer's CPU.
    pub(crate) fn steers(self) -> bool {
        matches!(self, Mode::Learned | Mode::Accel)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where the servers' processes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Placement {
    /// Wherever the scheduler wants.
    Unpinned,
    /// Each on one CPU, in rotation.
    Pinned,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Placement::Unpinned => "unpinned",
            Placement::Pinned => "pinned",
        })
    }
}

/// Bytes of a request and of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sizes {
    /// Of the request.
    pub(crate) request: u32,
    /// Of the response.
    pub(crate) response: u32,
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(&format!("{}/{}", self.request, self.response))
    }
}

/// Those that were published.
pub(crate) const SIZES: [Sizes; 2] =
    [Sizes { request: 1, response: 1 }, Sizes { request: 100, response: 10000 }];

/// Flows of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    /// What they carry.
    pub(crate) sizes: Sizes,
    /// Where their servers are.
    pub(crate) placement: Placement,
}

impl Group {
    /// The one that shows most in the least time.
    pub(crate) const PINNED: Group = Group { sizes: SIZES[0], placement: Placement::Pinned };

    /// All of them, in the order of tables.
    pub(crate) fn all() -> Vec<Group> {
        let placements = [Placement::Unpinned, Placement::Pinned];
        SIZES.into_iter().flat_map(|sizes| placements.map(|placement| Group { sizes, placement })).collect()
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {}", self.sizes, self.placement)
    }
}

/// The same flows, measured in each mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    /// From 1.
    pub(crate) round: u32,
    /// The flows.
    pub(crate) group: Group,
    /// The modes, in the order in which they are measured.
    pub(crate) modes: Vec<Mode>,
}

/// Everything that is to be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Modes to compare.
    pub(crate) modes: Vec<Mode>,
    /// Kinds of flows.
    pub(crate) groups: Vec<Group>,
    /// How often each is measured.
    pub(crate) rounds: u32,
    /// Flows at a time.
    pub(crate) flows: u16,
    /// Length of a measurement.
    pub(crate) seconds: u32,
}

impl Plan {
    /// Round by round, so that what disturbs the machine for a while disturbs all alike. In a round the same flows, with
    /// the same ports and so the same places in RSS, go through all modes; who comes first changes from round to round,
    /// and so does the direction.
    pub(crate) fn batches(&self) -> Vec<Batch> {
        let mut batches = Vec::new();
        for round in 0..self.rounds {
            for (number, group) in self.groups.iter().enumerate() {
                let mut modes = self.modes.clone();
                modes.rotate_left((round as usize + number) % self.modes.len());
                if round % 2 == 1 {
                    modes.reverse();
                }
                batches.push(Batch { round: round + 1, group: *group, modes });
            }
        }
        batches
    }

    /// Number of measurements.
    pub(crate) fn measurements(&self) -> usize {
        self.groups.len() * self.modes.len() * self.rounds as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan { modes: Mode::ALL.to_vec(), groups: Group::all(), rounds: 5, flows: 8, seconds: 1 }
    }

    #[test]
    fn each_case_is_measured_once_a_round() {
        let batches = plan().batches();
        assert_eq!(batches.iter().map(|batch| batch.modes.len()).sum::<usize>(), plan().measurements());
        for round in 1..=5 {
            let of_round: Vec<&Batch> = batches.iter().filter(|batch| batch.round == round).collect();
            let groups: Vec<Group> = of_round.iter().map(|batch| batch.group).collect();
            assert_eq!(groups, Group::all(), "round {round}");
            for batch in of_round {
                let mut modes = batch.modes.clone();
                modes.sort_unstable();
                assert_eq!(modes, Mode::ALL, "{batch:?}");
            }
        }
    }

    #[test]
    fn no_mode_is_always_first_and_none_always_follows_another() {
        let batches = plan().batches();
        for mode in Mode::ALL {
            let places: Vec<usize> =
                batches.iter().map(|batch| batch.modes.iter().position(|m| *m == mode).unwrap()).collect();
            assert_eq!((places.iter().min(), places.iter().max()), (Some(&0), Some(&3)), "{mode}");
            let before: std::collections::BTreeSet<Mode> = batches
                .iter()
                .filter_map(|batch| batch.modes.windows(2).find(|pair| pair[1] == mode).map(|pair| pair[0]))
                .collect();
            assert!(before.len() > 1, "{mode} comes after {before:?}");
        }
    }

    #[test]
    fn groups_are_named_after_sizes_and_placement() {
        let names: Vec<String> = Group::all().iter().map(Group::to_string).collect();
        assert_eq!(names, ["1/1 unpinned", "1/1 pinned", "100/10000 unpinned", "100/10000 pinned"]);
    }
}
