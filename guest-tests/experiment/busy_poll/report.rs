//! What was measured, as Markdown.

use std::fmt::Write;

use guest_tests::guest::Driver;

use super::measure::Run;
use super::plan::{Case, Load, Plan, Table, Way};
use super::published;
use super::relations::spread;
use crate::markdown::{cell, dash, row, verdicts};
use crate::relations::Relation;

/// A figure of a run: its name, digits behind the point, and how it is found.
type Figure = (&'static str, usize, fn(&Run) -> f64);

const TIMES: [Figure; 4] = [
    ("RTT mean, us", 0, |run| run.trips.mean),
    ("p50", 0, |run| run.trips.p50),
    ("p99", 0, |run| run.trips.p99),
    ("p99.9", 0, |run| run.trips.p999),
];

const PROOFS: [Figure; 7] = [
    ("busy-polled packets (`BusyPollRxPackets`) a message", 3, Run::polled),
    ("receive interrupts a message", 3, Run::rx_interrupts),
    ("transmit interrupts a message", 3, Run::tx_interrupts),
    ("signals for receive queues sent, a message", 3, Run::rx_signals),
    ("  not sent, since the guest wanted none", 3, Run::rx_suppressed),
    ("CPU time of the guest, us a message", 0, Run::cost),
    ("host's CPUs that others took meanwhile", 2, Run::disturbance),
];

/// The whole report. `when` says when and on what it was measured, `plot` is the name of the picture beside it.
pub(crate) fn report(plan: &Plan, when: &str, runs: &[Run], relations: &[Relation], plot: &str) -> String {
    let mut text = format!("# Busy polling\n\n{when}\n\n{}", head(plan));
    let planned = plan.measurements();
    if runs.len() < planned {
        let _ = write!(text, "\n**It was ended after {} of {planned} measurements.**\n", runs.len());
    }
    let _ = writeln!(text, "\n![Round-trip times by rate and way to wait, measured and published]({plot})");
    for table in &plan.tables {
        let _ = write!(text, "\n{}\n", title(*table));
        for driver in &plan.drivers {
            for (load, ways) in table.loads(&plan.rates) {
                let _ = writeln!(text, "\n**{}, {load}**\n", driver.name());
                of_load(&mut text, runs, *driver, load, ways);
            }
        }
    }
    let _ = write!(text, "\n## What holds\n\n{}", verdicts(relations));
    text
}

fn head(plan: &Plan) -> String {
    format!(
        "A program in the guest sends a message of {} bytes, waits for the answer from the host, and sends the next one when it is \
         due. The guest has {} CPUs and a card with as many queues; the program has a CPU of its own. Each of {} rounds \
         takes every load through all ways to wait, {} s each, in an order that changes from round to round. Who busy-polls does \
         it for {} us before it sleeps.\n\n\
         Figures are medians over rounds, with the lowest and the highest in brackets. Absolute figures differ from those of \
         hardware, since the guest is emulated and shares its host's CPUs with the servers; relations are to be compared. \
         Counters count while messages go to and fro: from after the first ones until some time before the last.\n",
        guest_tests::polling::SIZE,
        guest_tests::polling::CPUS,
        plan.rounds,
        plan.seconds,
        plan.budget,
    )
}

fn title(table: Table) -> String {
    match table {
        Table::Sockperf => format!(
            "## sockperf\n\n*off*: asleep until an interrupt; *busy*: `net.core.busy_read` and `busy_poll`; *busy, held*: the same, \
             and the device holds signals for as long as the guest polls, to send them only if they are still wanted then (`flownic \
             ctl coalesce set rx-usecs N tx-usecs N`). Published: {}.",
            published::SOURCE
        ),
        Table::Ways => "## More ways to wait\n\nWith `flownic-pingpong`. *off*: in `recv`; *busy*: `SO_BUSY_POLL`; *epoll*: in \
             `epoll_wait`; *epoll busy*: which polls (`EPIOCSPARAMS`); *prefer*: `SO_PREFER_BUSY_POLL`, a budget, and deferred \
             interrupts (`napi_defer_hard_irqs` 10, `gro_flush_timeout` 200 us); *defer*: the same deferral, asleep in `recv`; \
             *suspend*: epoll that prefers to poll, with deferral and `irq-suspend-timeout` 20 ms; *threaded*: asleep in `recv`, \
             while a thread of the guest's kernel polls (`threaded busy-poll`), on a CPU that the others want as well."
            .to_owned(),
        Table::Netperf => format!(
            "## Request/response and interrupt moderation\n\nWith netperf, 1 byte each way, as fast as answers come; moderation is \
             the device's (`flownic ctl coalesce`). Published: {}.",
            published::LLS_SOURCE
        ),
    }
}

fn of_load(text: &mut String, runs: &[Run], driver: Driver, load: Load, ways: &[Way]) {
    let names = ways.iter().map(|way| way.to_string());
    row(text, [String::new()].into_iter().chain(names));
    row(text, ["---".to_owned()].into_iter().chain(ways.iter().map(|_| "---:".to_owned())));
    let mut measured = |(name, digits, figure): Figure| {
        let cells =
            ways.iter().map(|way| cell(spread(runs, Case { driver, load, way: *way }, figure), digits));
        row(text, [name.to_owned()].into_iter().chain(cells));
    };
    match load {
        Load::Netperf(..) => {
            measured(("transactions/s", 0, Run::rate));
            measured(TIMES[0]);
        }
        _ => TIMES.into_iter().for_each(&mut measured),
    }
    PROOFS.into_iter().for_each(&mut measured);
    if matches!(load, Load::Pingpong(_)) {
        measured(("CPU time of the program, us a message", 0, |run| run.trips.cpu.unwrap_or(f64::NAN)));
    }
    if let Load::Sockperf(mps) = load {
        let cells = ways.iter().map(|way| match way {
            Way::BusyHeld => dash(),
            way => published::find(mps, way.polls()).map_or_else(dash, |rtt| format!("{rtt:.1}")),
        });
        row(text, ["published, RTT mean, us".to_owned()].into_iter().chain(cells));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::busy_poll::measure::tests::run;
    use crate::busy_poll::plan::tests::plan;
    use crate::busy_poll::relations::judge;

    #[test]
    fn measured_figures_stand_beside_published_ones() {
        let runs: Vec<Run> = (1..=3)
            .flat_map(|round| {
                plan().round(round).into_iter().map(move |case| run(round, case, 99.0 + f64::from(round)))
            })
            .collect();
        let text = report(&plan(), "In 2013.", &runs, &judge(&plan(), &runs), "plot.svg");
        assert!(text.starts_with("# Busy polling\n\nIn 2013.\n\nA program"), "{text}");
        assert!(!text.contains("It was ended"), "{text}");
        let table = "**virtio_net, sockperf 1000/s**\n\n|  | off | busy | busy, held |\n| --- | ---: | ---: | ---: |\n\
                     | RTT mean, us | 101 (100-102) | 101 (100-102) |";
        assert!(text.contains(table), "{text}");
        assert!(text.contains("| published, RTT mean, us | 23.0 | 15.6 | - |"), "{text}");
        assert!(text.contains("**flownic_net, TCP_RR, rx-usecs 100**\n\n|  | off | busy |\n"), "{text}");
        // These are as fast with polling as without.
        assert!(
            text.contains("virtio_net, sockperf 100/s, busy: answers come sooner than with off | **NO** |")
        );
        let part = report(&plan(), "", &runs[..5], &[], "plot.svg");
        assert!(part.contains("**It was ended after 5 of 270 measurements.**"), "{part}");
    }
}
