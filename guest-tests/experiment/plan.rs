//! What is measured, and in which order.

use std::fmt;

use crate::published;

/// How packets find the CPU that wants them.
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

/// How long the card holds signals of receive queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Moderation {
    /// Not at all: there is a signal for each burst.
    Off,
    /// So many microseconds.
    Usecs(u32),
    /// As the device thinks best for each queue's rate.
    Adaptive,
}

impl Moderation {
    /// Those that are measured if the user does not say otherwise.
    pub(crate) const USUAL: [Moderation; 2] =
        [Moderation::Usecs(published::MODERATIONS[0]), Moderation::Usecs(published::MODERATIONS[1])];

    /// From the word that `Display` makes of it.
    pub(crate) fn parse(word: &str) -> Option<Moderation> {
        match word {
            "0" => Some(Moderation::Off),
            "adaptive" => Some(Moderation::Adaptive),
            usecs => usecs.parse().ok().filter(|n| (1..=10_000).contains(n)).map(Moderation::Usecs),
        }
    }

    /// Published figures that stand beside it.
    pub(crate) fn published(self) -> Vec<u32> {
        let of_another = |usecs: &u32| matches!(self, Moderation::Usecs(own) if own != *usecs);
        published::MODERATIONS.into_iter().filter(|usecs| !of_another(usecs)).collect()
    }
}

impl fmt::Display for Moderation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Moderation::Off => f.pad("0"),
            Moderation::Usecs(usecs) => f.pad(&usecs.to_string()),
            Moderation::Adaptive => f.pad("adaptive"),
        }
    }
}

/// Flows of one kind, and the card they meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    /// What they carry.
    pub(crate) sizes: Sizes,
    /// Where their servers are.
    pub(crate) placement: Placement,
    /// How long signals are held.
    pub(crate) moderation: Moderation,
}

impl Group {
    /// The one that shows most in the least time.
    pub(crate) const PINNED: Group =
        Group { sizes: SIZES[0], placement: Placement::Pinned, moderation: Moderation::Off };

    /// All of them, in the order of tables.
    pub(crate) fn all(moderations: &[Moderation]) -> Vec<Group> {
        let mut groups = Vec::new();
        for sizes in SIZES {
            for placement in [Placement::Unpinned, Placement::Pinned] {
                groups.extend(moderations.iter().map(|m| Group { sizes, placement, moderation: *m }));
            }
        }
        groups
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {}", self.sizes, self.placement)?;
        match self.moderation {
            Moderation::Off => Ok(()),
            Moderation::Usecs(usecs) => write!(f, ", {usecs} us"),
            Moderation::Adaptive => f.write_str(", adaptive"),
        }
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
        Plan {
            modes: Mode::ALL.to_vec(),
            groups: Group::all(&Moderation::USUAL),
            rounds: 5,
            flows: 8,
            seconds: 1,
        }
    }

    #[test]
    fn each_case_is_measured_once_a_round() {
        let batches = plan().batches();
        assert_eq!(batches.iter().map(|batch| batch.modes.len()).sum::<usize>(), plan().measurements());
        for round in 1..=5 {
            let of_round: Vec<&Batch> = batches.iter().filter(|batch| batch.round == round).collect();
            let groups: Vec<Group> = of_round.iter().map(|batch| batch.group).collect();
            assert_eq!(groups, Group::all(&Moderation::USUAL), "round {round}");
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
        let names = |moderations: &[Moderation]| -> Vec<String> {
            Group::all(moderations).iter().map(Group::to_string).collect()
        };
        let plain = ["1/1 unpinned", "1/1 pinned", "100/10000 unpinned", "100/10000 pinned"];
        assert_eq!(names(&[Moderation::Off]), plain);
        let two = names(&[Moderation::Usecs(60), Moderation::Adaptive]);
        assert_eq!((two.len(), &*two[2], &*two[3]), (8, "1/1 pinned, 60 us", "1/1 pinned, adaptive"));
    }

    #[test]
    fn moderations_are_read_and_stand_beside_published_ones() {
        for (word, moderation, beside) in [
            ("0", Moderation::Off, vec![60, 20]),
            ("20", Moderation::Usecs(20), vec![20]),
            ("100", Moderation::Usecs(100), vec![]),
            ("adaptive", Moderation::Adaptive, vec![60, 20]),
        ] {
            assert_eq!(Moderation::parse(word), Some(moderation));
            assert_eq!((moderation.to_string(), moderation.published()), (word.to_owned(), beside));
        }
        for word in ["", "-1", "10001", "fast"] {
            assert_eq!(Moderation::parse(word), None, "{word}");
        }
    }
}
