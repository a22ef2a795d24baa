//! What is measured, and in which order.

use std::fmt;

use guest_tests::guest::Driver;

/// Messages a second that were published.
pub(crate) const RATES: [u32; 3] = [10_000, 1000, 100];

/// How the guest waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// Asleep in `recv`, until an interrupt.
    Off,
    /// `net.core.busy_read` and `busy_poll`, or `SO_BUSY_POLL`, which are the same.
    Busy,
    /// The same, and the device holds signals for a moment.
    BusyHeld,
    /// Asleep in `epoll_wait`.
    Epoll,
    /// In `epoll_wait`, which busy-polls (`EPIOCSPARAMS`).
    EpollBusy,
    /// `SO_PREFER_BUSY_POLL` with a budget and deferred interrupts.
    Prefer,
    /// Asleep, with deferred interrupts: a timer looks at the queue instead.
    Defer,
    /// In `epoll_wait`, which busy-polls and keeps interrupts away from then on.
    Suspend,
    /// Asleep, while a thread of the kernel polls.
    Threaded,
}

impl Way {
    /// Those of the published table.
    pub(crate) const TABLE: [Way; 3] = [Way::Off, Way::Busy, Way::BusyHeld];
    /// Those of the second table.
    pub(crate) const ALL: [Way; 8] = [
        Way::Off,
        Way::Busy,
        Way::Epoll,
        Way::EpollBusy,
        Way::Prefer,
        Way::Defer,
        Way::Suspend,
        Way::Threaded,
    ];
    /// Those that take request/response tests.
    pub(crate) const PAIR: [Way; 2] = [Way::Off, Way::Busy];

    /// Short name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Off => "off",
            Way::Busy => "busy",
            Way::BusyHeld => "busy, held",
            Way::Epoll => "epoll",
            Way::EpollBusy => "epoll busy",
            Way::Prefer => "prefer",
            Way::Defer => "defer",
            Way::Suspend => "suspend",
            Way::Threaded => "threaded",
        }
    }

    /// Whether the program itself polls: then `BusyPollRxPackets` counts what it gets.
    pub(crate) fn polls(self) -> bool {
        matches!(self, Way::Busy | Way::BusyHeld | Way::EpollBusy | Way::Prefer | Way::Suspend)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Interrupt moderation of the device for received packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Moderation {
    /// The device finds a time by itself.
    Adaptive,
    /// A fixed time in microseconds.
    Usecs(u32),
}

impl Moderation {
    /// Those of the published table that a device without a processor's sleep states can repeat.
    pub(crate) const ALL: [Moderation; 3] =
        [Moderation::Adaptive, Moderation::Usecs(0), Moderation::Usecs(100)];
}

impl fmt::Display for Moderation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Moderation::Adaptive => f.pad("adaptive"),
            Moderation::Usecs(usecs) => f.pad(&format!("rx-usecs {usecs}")),
        }
    }
}

/// What goes to and fro.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Load {
    /// sockperf's TCP ping-pong at so many messages a second.
    Sockperf(u32),
    /// That of `flownic-pingpong`, which knows more ways to wait.
    Pingpong(u32),
    /// netperf's `TCP_RR` or `UDP_RR`, as fast as answers come.
    Netperf(&'static str, Moderation),
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Load::Sockperf(mps) => f.pad(&format!("sockperf {mps}/s")),
            Load::Pingpong(mps) => f.pad(&format!("ping-pong {mps}/s")),
            Load::Netperf(test, moderation) => f.pad(&format!("{test}, {moderation}")),
        }
    }
}

/// What is measured once a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) driver: Driver,
    pub(crate) load: Load,
    pub(crate) way: Way,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}, {}, {}", self.driver.name(), self.load, self.way)
    }
}

/// Tables of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    /// The published one.
    Sockperf,
    /// All ways to wait.
    Ways,
    /// Request/response by moderation.
    Netperf,
}

impl Table {
    pub(crate) const ALL: [(Table, &'static str); 3] =
        [(Table::Sockperf, "sockperf"), (Table::Ways, "ways"), (Table::Netperf, "netperf")];

    /// Loads of the table, given the rates that are measured, and the ways that take each.
    pub(crate) fn loads(self, rates: &[u32]) -> Vec<(Load, &'static [Way])> {
        match self {
            Table::Sockperf => {
                rates.iter().map(|mps| (Load::Sockperf(*mps), Way::TABLE.as_slice())).collect()
            }
            Table::Ways => rates.iter().map(|mps| (Load::Pingpong(*mps), Way::ALL.as_slice())).collect(),
            Table::Netperf => ["TCP_RR", "UDP_RR"]
                .into_iter()
                .flat_map(|test| Moderation::ALL.map(|moderation| Load::Netperf(test, moderation)))
                .map(|load| (load, Way::PAIR.as_slice()))
                .collect(),
        }
    }
}

/// Everything that is to be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) drivers: Vec<Driver>,
    pub(crate) tables: Vec<Table>,
    /// Messages a second.
    pub(crate) rates: Vec<u32>,
    /// How often each case is measured.
    pub(crate) rounds: u32,
    /// Length of a measurement.
    pub(crate) seconds: u32,
    /// How long sockets poll before they sleep, in microseconds.
    pub(crate) budget: u32,
}

impl Plan {
    /// Cases of a round, which counts from 1. All of a driver's come together, since it takes a while to change it; within
    /// a load the ways come one after the other. Who is first changes from round to round, and so does the direction.
    pub(crate) fn round(&self, round: u32) -> Vec<Case> {
        let turn = round as usize - 1;
        let mut drivers = self.drivers.clone();
        drivers.rotate_left(turn % self.drivers.len());
        let mut cases = Vec::new();
        for driver in drivers {
            for table in &self.tables {
                for (number, (load, ways)) in table.loads(&self.rates).into_iter().enumerate() {
                    let mut ways = ways.to_vec();
                    let first = (turn + number) % ways.len();
                    ways.rotate_left(first);
                    if round.is_multiple_of(2) {
                        ways.reverse();
                    }
                    cases.extend(ways.into_iter().map(|way| Case { driver, load, way }));
                }
            }
        }
        cases
    }

    /// Number of measurements.
    pub(crate) fn measurements(&self) -> usize {
        self.round(1).len() * self.rounds as usize
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn plan() -> Plan {
        Plan {
            drivers: vec![Driver::VirtioNet, Driver::FlownicNet],
            tables: Table::ALL.map(|(table, _)| table).into(),
            rates: RATES.into(),
            rounds: 3,
            seconds: 1,
            budget: 1000,
        }
    }

    #[test]
    fn each_case_is_measured_once_a_round() {
        let all = plan().round(1);
        assert_eq!(all.len(), 2 * (3 * 3 + 3 * 8 + 6 * 2));
        for round in 1..=5 {
            let cases = plan().round(round);
            assert_eq!(cases.len(), all.len());
            assert!(all.iter().all(|case| cases.contains(case)), "round {round}");
            // A driver is changed once.
            let changes = cases.windows(2).filter(|pair| pair[0].driver != pair[1].driver).count();
            assert_eq!(changes, 1, "round {round}");
        }
        assert_eq!(plan().measurements(), 3 * all.len());
    }

    #[test]
    fn no_way_is_always_first() {
        let first: Vec<Way> = (1..=4).map(|round| plan().round(round)[0].way).collect();
        assert!(first.iter().any(|way| *way != first[0]), "{first:?}");
    }
}
