//! One measurement: flows under way, a mode, a window of time.

use std::time::Duration;

use guest_tests::rig::{PATIENCE, Queue, Rig};
use guest_tests::stop::Interrupted;

use crate::flows::Flows;
use crate::modes::{self, Filters};
use crate::plan::{Group, Mode};
use crate::snapshot::Snapshot;
use crate::statistics::{mean_and_deviation, share};
use crate::usage::Usage;

/// Packets of each flow between a mode's start and the window: the first ones go before filters are there.
const SETTLING: u64 = 8;
/// Decisions that are traced after the window.
const TRACED: u32 = 1000;

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Run {
    /// From 1.
    pub(crate) round: u32,
    /// From 1: the how many-eth measurement of all it was.
    pub(crate) order: usize,
    /// The flows.
    pub(crate) group: Group,
    /// How they were steered.
    pub(crate) mode: Mode,
    /// Number of flows.
    pub(crate) flows: usize,
    /// Length of the window in seconds.
    pub(crate) seconds: f64,
    /// Transactions in the window, of all flows.
    pub(crate) transactions: f64,
    /// Mean over flows of their transactions per second.
    pub(crate) rate: f64,
    /// Standard deviation of those.
    pub(crate) deviation: f64,
    /// CPU time of the host in the window.
    pub(crate) usage: Usage,
    /// The receive queues' counters in the window.
    pub(crate) queue: Queue,
    /// Packets that the guest's stack has processed in the window.
    pub(crate) processed: u64,
    /// Times in the window that a CPU was woken by another to take packets over.
    pub(crate) received_rps: u64,
    /// Packets traced after the window, of flows whose consumer's CPU is known.
    pub(crate) traced: u64,
    /// Those of them that came in on that CPU's queue.
    pub(crate) at_home: u64,
    /// Since the mode was set, so with the time when flows change queues.
    pub(crate) filters: Filters,
    /// The same: segments out of order.
    pub(crate) out_of_order: u64,
    /// The same: segments sent again.
    pub(crate) retransmitted: u64,
    /// The same: packets.
    pub(crate) processed_in_all: u64,
}

impl Run {
    /// Transactions per second of all flows.
    pub(crate) fn total(&self) -> f64 {
        self.transactions / self.seconds
    }

    /// Mean latency of a transaction in microseconds.
    pub(crate) fn latency(&self) -> f64 {
        if self.rate == 0.0 { f64::NAN } else { 1e6 / self.rate }
    }

    /// CPU time of the guest for a transaction, in microseconds. The clock does not matter for it, and so hardly what else
    /// the host does.
    pub(crate) fn cost(&self) -> f64 {
        if self.transactions == 0.0 { f64::NAN } else { 1e6 * self.usage.guest / self.transactions }
    }

    /// CPUs of the host that others have taken.
    pub(crate) fn disturbance(&self) -> f64 {
        self.usage.others() / self.seconds
    }

    /// Share of packets that came in on the CPU of their consumer.
    pub(crate) fn home(&self) -> f64 {
        share(self.at_home, self.traced)
    }

    /// Hand-overs to other CPUs for each packet: wake-ups, each of which may be about several packets.
    pub(crate) fn handed_over(&self) -> f64 {
        share(self.received_rps, self.processed)
    }

    /// Share of packets that the reasons decided about which the mode is meant to have. The kernel asks for no filter
    /// where RSS is right already.
    pub(crate) fn by_own_reasons(&self) -> f64 {
        let reasons: &[&str] = match self.mode {
            Mode::None | Mode::Soft => &["by_rss"],
            Mode::Learned => &["by_learned"],
            Mode::Accel => &["by_filter", "by_rss"],
        };
        share(reasons.iter().map(|reason| self.queue.by(reason)).sum(), self.queue.packets)
    }

    /// Filters, or learned flows, for each flow.
    pub(crate) fn filters_per_flow(&self) -> f64 {
        self.filters.inserted as f64 / self.flows as f64
    }

    /// Share of segments out of order.
    pub(crate) fn disorder(&self) -> f64 {
        share(self.out_of_order, self.processed_in_all)
    }
}

/// Which measurement it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Of the run.
    pub(crate) round: u32,
    /// Of the run.
    pub(crate) order: usize,
    /// Of the run.
    pub(crate) group: Group,
    /// Of the run.
    pub(crate) mode: Mode,
}

/// Sets the mode, waits until flows have settled, and measures for `seconds`.
pub(crate) fn measure(rig: &Rig, flows: &Flows, place: Place, seconds: u32) -> Result<Run, Interrupted> {
    let Place { round, order, group, mode } = place;
    let snapshot = || Snapshot::take(rig.guest, &flows.ports, rig.nic.name());
    let start = snapshot();
    let filters = Filters::now(rig, mode, &start);
    modes::set(rig, mode);
    modes::moderate(rig, group.moderation);
    let settled = rig.packets() + SETTLING * flows.ports.len() as u64;
    rig.stop.wait_for("flows to settle", PATIENCE, || match rig.packets() {
        packets if packets >= settled => Ok(()),
        packets => Err(format!("{packets} of {settled} packets")),
    })?;
    let look = || (Usage::now(rig.guest, rig.host), snapshot(), Queue::sum(&rig.queues()));
    let (usage_before, before, queue_before) = look();
    rig.stop.pass(Duration::from_secs(seconds.into()))?;
    let (usage, after, queue) = look();
    let (traced, at_home) = flows.arrivals(TRACED)?;
    let seconds = after.time - before.time;
    let transactions = transactions(&before, &after, group.sizes.request);
    let rates: Vec<f64> = transactions.iter().map(|transactions| transactions / seconds).collect();
    let (rate, deviation) = mean_and_deviation(&rates);
    Ok(Run {
        round,
        order,
        group,
        mode,
        flows: flows.ports.len(),
        seconds,
        transactions: transactions.iter().sum(),
        rate,
        deviation,
        usage: usage.since(usage_before),
        queue: queue.since(&queue_before),
        processed: after.processed - before.processed,
        received_rps: after.received_rps - before.received_rps,
        traced,
        at_home,
        filters: Filters::now(rig, mode, &after).since(filters),
        out_of_order: after.out_of_order - start.out_of_order,
        retransmitted: after.retransmitted - start.retransmitted,
        processed_in_all: after.processed - start.processed,
    })
}

/// Transactions of each flow between two moments: its server has received so many requests.
fn transactions(before: &Snapshot, after: &Snapshot, request: u32) -> Vec<f64> {
    let bytes = after.received.iter().map(|(port, bytes)| {
        let earlier = before.received.get(port).copied().unwrap_or(0);
        bytes.saturating_sub(earlier)
    });
    bytes.map(|bytes| bytes as f64 / f64::from(request)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A measurement as it should be, whose rate is `rate`.
    pub(crate) fn run(round: u32, group: Group, mode: Mode, rate: f64) -> Run {
        let reasons = match mode {
            Mode::None | Mode::Soft => [0, 0, 9990, 10],
            Mode::Learned => [0, 9990, 0, 10],
            Mode::Accel => [7500, 0, 2490, 10],
        };
        let inserted = match mode {
            Mode::None | Mode::Soft => 0,
            Mode::Learned => 64,
            Mode::Accel => 48,
        };
        Run {
            round,
            order: round as usize,
            group,
            mode,
            flows: 64,
            seconds: 4.0,
            transactions: 4.0 * 64.0 * rate,
            rate,
            deviation: rate / 10.0,
            usage: Usage { guest: 6.0, namespace: 1.0, all: 7.5 },
            queue: Queue { packets: 10000, signals: 6000, reasons },
            processed: 10000,
            received_rps: if mode == Mode::Soft { 5000 } else { 0 },
            traced: 1000,
            at_home: if mode.steers() { 1000 } else { 250 },
            filters: Filters { inserted, moved: 0, expired: 0 },
            out_of_order: 0,
            retransmitted: 3,
            processed_in_all: 12000,
        }
    }

    #[test]
    fn shares_and_latencies_follow_from_counts() {
        let group = Group::PINNED;
        let soft = run(1, group, Mode::Soft, 25.0);
        assert_eq!((soft.total(), soft.latency()), (1600.0, 40000.0));
        assert_eq!((soft.cost(), soft.disturbance()), (937.5, 0.125));
        assert_eq!((soft.home(), soft.handed_over(), soft.by_own_reasons()), (0.25, 0.5, 0.999));
        let accel = run(1, group, Mode::Accel, 25.0);
        assert_eq!((accel.by_own_reasons(), accel.filters_per_flow()), (0.999, 0.75));
        let stuck = run(1, group, Mode::None, 0.0);
        assert!(stuck.latency().is_nan() && stuck.cost().is_nan());
    }

    #[test]
    fn transactions_are_requests_that_came_in() {
        let snapshot = |received| Snapshot { received, ..Snapshot::default() };
        let before = snapshot([(1, 1000), (2, 500)].into());
        let after = snapshot([(1, 2000), (2, 500), (3, 300)].into());
        assert_eq!(transactions(&before, &after, 100), [10.0, 0.0, 3.0]);
    }
}
