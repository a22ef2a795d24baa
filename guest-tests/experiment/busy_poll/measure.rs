//! One measurement: a way to wait is set up, messages go to and fro, counters are compared.

use std::time::Instant;

use guest_tests::polling::{Counters, Polling, RoundTrips};
use guest_tests::stop::progress;

use super::plan::{Case, Load, Moderation, Way};
use crate::statistics::share;
use crate::usage::Usage;

/// Times that a queue is looked at before its interrupt is wanted again, and nanoseconds in between. An answer takes about
/// as long on an emulated guest as the timer here, ten times what it takes on hardware.
const DEFERRED: &str = "defer-hard-irqs 10 gro-flush-timeout 200000";
const AT_ONCE: &str = "defer-hard-irqs 0 gro-flush-timeout 0";
/// Nanoseconds for which interrupts stay away from a program that busy-polls.
const SUSPENDED: &str = "irq-suspend-timeout 20000000";
/// How often something is measured that the machine is too busy for.
const ATTEMPTS: u32 = 5;
/// Packets that are taken at once where one says so.
const PACKETS: u32 = 64;
/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Run {
    /// From 1.
    pub(crate) round: u32,
    /// From 1: the how many-eth measurement of all it was.
    pub(crate) order: usize,
    pub(crate) case: Case,
    pub(crate) trips: RoundTrips,
    pub(crate) counters: Counters,
    /// CPU time of the host.
    pub(crate) usage: Usage,
    /// Wall time.
    pub(crate) seconds: f64,
}

impl Run {
    /// For each packet that the guest received: an answer each.
    fn each(&self, count: u64) -> f64 {
        share(count, self.counters.received)
    }

    /// Packets for each message that came in by busy polling.
    pub(crate) fn polled(&self) -> f64 {
        self.each(self.counters.polled)
    }

    /// Interrupts of receive queues for each message.
    pub(crate) fn rx_interrupts(&self) -> f64 {
        self.each(self.counters.rx_interrupts)
    }

    /// Interrupts of transmit queues for each message.
    pub(crate) fn tx_interrupts(&self) -> f64 {
        self.each(self.counters.tx_interrupts)
    }

    /// Signals for receive queues that the device has sent, for each message.
    pub(crate) fn rx_signals(&self) -> f64 {
        self.each(self.counters.rx_signals)
    }

    /// Those that it has not sent since the guest wanted none.
    pub(crate) fn rx_suppressed(&self) -> f64 {
        self.each(self.counters.rx_suppressed)
    }

    /// CPU time of the guest for each message, in microseconds.
    pub(crate) fn cost(&self) -> f64 {
        1e6 * self.usage.guest / self.trips.messages as f64
    }

    /// Messages a second.
    pub(crate) fn rate(&self) -> f64 {
        1e6 / self.trips.mean
    }

    /// CPUs of the host that others have taken.
    pub(crate) fn disturbance(&self) -> f64 {
        self.usage.others() / self.seconds
    }
}

/// Kernel settings, those of the device, and options of `flownic-pingpong` that make up a way to wait.
struct Setup {
    busy_poll: u32,
    napi: String,
    held: u32,
    options: String,
}

impl Setup {
    fn of(way: Way, load: Load, budget: u32) -> Setup {
        // sockperf and netperf know nothing of it: the kernel's default for all sockets does the same.
        let by_default = !matches!(load, Load::Pingpong(_));
        let busy = format!("--busy-poll {budget}");
        let (deferred, suspended, threaded, options) = match way {
            Way::Off | Way::BusyHeld => (false, false, false, String::new()),
            Way::Busy => (false, false, false, busy),
            Way::Epoll => (false, false, false, "--epoll".to_owned()),
            Way::EpollBusy => (false, false, false, format!("--epoll {busy}")),
            Way::Prefer => (true, false, false, format!("{busy} --prefer --budget {PACKETS}")),
            Way::Defer => (true, false, false, String::new()),
            Way::Suspend => (true, true, false, format!("--epoll {busy} --prefer --budget {PACKETS}")),
            Way::Threaded => (false, false, true, String::new()),
        };
        Setup {
            busy_poll: if by_default && way.polls() { budget } else { 0 },
            napi: format!(
                "{} {} threaded {}",
                if deferred { DEFERRED } else { AT_ONCE },
                if suspended { SUSPENDED } else { "irq-suspend-timeout 0" },
                if threaded { "busy-poll" } else { "off" },
            ),
            // Who has polled in vain sleeps from then on, and wants the signal.
            held: if way == Way::BusyHeld { budget } else { 0 },
            options,
        }
    }
}

/// Sets up a case and measures it.
pub(crate) fn measure(polling: &Polling, place: (u32, usize), case: Case, seconds: u32, budget: u32) -> Run {
    let setup = Setup::of(case.way, case.load, budget);
    polling.set_busy_poll(setup.busy_poll);
    polling.set_napi(&setup.napi).unwrap_or_else(|message| panic!("{case}: {message}"));
    let (adaptive, rx_usecs) = match case.load {
        Load::Netperf(_, Moderation::Adaptive) => ("on", 0),
        Load::Netperf(_, Moderation::Usecs(usecs)) => ("off", usecs),
        _ => ("off", setup.held),
    };
    let (tx_usecs, rx_usecs) = (setup.held.to_string(), rx_usecs.to_string());
    polling.flownic.ctl(&["coalesce", "set", "n0", "adaptive-rx", adaptive]);
    let mut moderation = vec!["coalesce", "set", "n0", "tx-usecs", &tx_usecs];
    if adaptive == "off" {
        moderation.extend(["rx-usecs", &rx_usecs]);
    }
    polling.flownic.ctl(&moderation);

    for attempt in 1..=ATTEMPTS {
        let look = || (Instant::now(), Usage::now(polling.guest, polling.host));
        let (begin, used) = look();
        let measured = match case.load {
            Load::Sockperf(mps) => polling.sockperf(mps, seconds),
            Load::Pingpong(mps) => polling.ping(&format!("--mps {mps} {}", setup.options), seconds),
            Load::Netperf(test, _) => polling.netperf(test, seconds),
        };
        let (end, usage) = look();
        if let Some((trips, counters)) = measured {
            let (usage, seconds) = (usage.since(used), (end - begin).as_secs_f64());
            return Run { round: place.0, order: place.1, case, trips, counters, usage, seconds };
        }
        progress(&format!("{case}: hardly any messages got through, attempt {attempt} of {ATTEMPTS}"));
    }
    panic!(
        "{case}: hardly any messages get through: the machine has too much else to do, or --seconds is too small"
    );
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A measurement as it should be, with a median of `rtt`.
    pub(crate) fn run(round: u32, case: Case, rtt: f64) -> Run {
        let polls = case.way.polls();
        let quiet = polls || matches!(case.way, Way::Threaded | Way::Defer);
        Run {
            round,
            order: round as usize,
            case,
            trips: RoundTrips {
                messages: 1000,
                mean: rtt,
                p50: rtt,
                p99: 2.0 * rtt,
                p999: 3.0 * rtt,
                cpu: Some(rtt / 2.0),
            },
            counters: Counters {
                polled: if polls { 999 } else { 0 },
                rx_interrupts: if quiet { 1 } else { 1000 },
                tx_interrupts: if case.way == Way::BusyHeld { 10 } else { 990 },
                received: 1000,
                rx_packets: 1000,
                rx_signals: if quiet { 1 } else { 1000 },
                rx_suppressed: if quiet { 999 } else { 2 },
                tx_signals: 990,
                tx_suppressed: 10,
                kicks: 1000,
            },
            usage: Usage { guest: 1.0, namespace: 0.5, all: 2.0 },
            seconds: 2.0,
        }
    }

    #[test]
    fn ways_are_set_up_by_whom_they_concern() {
        let ours = Setup::of(Way::Suspend, Load::Pingpong(100), 1000);
        assert_eq!(ours.busy_poll, 0);
        assert_eq!(ours.options, "--epoll --busy-poll 1000 --prefer --budget 64");
        assert_eq!(
            ours.napi,
            "defer-hard-irqs 10 gro-flush-timeout 200000 irq-suspend-timeout 20000000 threaded off"
        );
        let theirs = Setup::of(Way::BusyHeld, Load::Sockperf(100), 1000);
        assert_eq!((theirs.busy_poll, theirs.held), (1000, 1000));
        let asleep = Setup::of(Way::Off, Load::Netperf("TCP_RR", Moderation::Adaptive), 1000);
        assert_eq!((asleep.busy_poll, asleep.held), (0, 0));
        assert!(asleep.napi.ends_with("irq-suspend-timeout 0 threaded off"));
    }

    #[test]
    fn figures_are_those_of_a_message() {
        let case = Case { driver: guest_tests::Driver::VirtioNet, load: Load::Sockperf(100), way: Way::Busy };
        let run = run(1, case, 200.0);
        assert_eq!((run.polled(), run.rx_interrupts(), run.rx_suppressed()), (0.999, 0.001, 0.999));
        assert_eq!((run.cost(), run.rate(), run.disturbance()), (1000.0, 5000.0, 0.25));
    }
}
