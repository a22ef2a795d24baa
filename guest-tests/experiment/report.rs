//! What was measured, as Markdown.

use std::fmt::Write;

use crate::markdown::{cell, dash, row, verdicts};
use crate::measure::Run;
use crate::plan::{Mode, Plan};
use crate::published::{self, Published};
use crate::relations::{Relation, spread};

/// What is not in the measurements.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// When it began.
    pub(crate) date: String,
    /// What it ran on, in sentences.
    pub(crate) machine: String,
    /// How busy the machine was, in sentences.
    pub(crate) load: String,
    /// Name of the guest's driver.
    pub(crate) driver: &'static str,
}

/// The whole report. `plot` is the name of the picture beside it.
pub(crate) fn report(
    plan: &Plan,
    setting: &Setting,
    runs: &[Run],
    relations: &[Relation],
    plot: &str,
) -> String {
    let mut text = String::new();
    text.push_str("# Accelerated RFS\n\n");
    text.push_str(&head(plan, setting));
    let planned = plan.measurements();
    if runs.len() < planned {
        let _ = write!(text, "\n**It was ended after {} of {planned} measurements.**\n", runs.len());
    }
    let _ = writeln!(text, "\n![Transactions per second by mode, measured and published]({plot})\n");
    text.push_str("## Rates\n\n");
    text.push_str(&rates(plan, runs));
    text.push_str("\n## Why: what the counters say\n\n");
    text.push_str(&counters(plan, runs));
    text.push_str("\n## What holds\n\n");
    text.push_str(&verdicts(relations));
    text
}

fn head(plan: &Plan, setting: &Setting) -> String {
    let Setting { date, machine, load, driver } = setting;
    let modes: Vec<String> = plan.modes.iter().map(|mode| format!("*{mode}*: {}", meaning(*mode))).collect();
    format!(
        "{date}. {machine} {load}\n\n\
         {} netperf TCP_RR flows come in over a tap to a guest with 4 CPUs and a card with 4 queues, driven by `{driver}`; the \
         interrupt of queue i goes to CPU i. Servers run in the guest, unpinned or pinned to its CPUs in rotation. Each of \
         {} rounds takes the same flows through all modes, {} s each, in an order that changes from round to round.\n\n{}.\n\n\
         Figures are medians over rounds, with the lowest and the highest in brackets. Published: {}. Absolute figures \
         differ, since the guest is emulated and shares its host's CPUs with the clients; relations are to be compared.\n",
        plan.flows,
        plan.rounds,
        plan.seconds,
        modes.join("; "),
        published::SOURCE,
    )
}

fn meaning(mode: Mode) -> &'static str {
    match mode {
        Mode::None => "RSS only",
        Mode::Soft => "RFS, where the kernel hands packets to the consumer's CPU",
        Mode::Learned => "flownic learns from what the guest sends which queue a flow belongs to",
        Mode::Accel => "RFS, and the driver puts a filter into the device for each flow",
    }
}

/// Head of a table with a column of names and one for each mode.
fn columns(text: &mut String, plan: &Plan, first: &str) {
    let names = plan.modes.iter().map(|mode| mode.to_string());
    row(text, [first.to_owned()].into_iter().chain(names));
    row(text, ["---".to_owned()].into_iter().chain(plan.modes.iter().map(|_| "---:".to_owned())));
}

fn rates(plan: &Plan, runs: &[Run]) -> String {
    let mut text = String::new();
    for group in &plan.groups {
        let _ = writeln!(text, "**{group}**\n");
        columns(&mut text, plan, "");
        let mut measured = |name: &str, digits: usize, figure: fn(&Run) -> f64| {
            let cells = plan.modes.iter().map(|mode| cell(spread(runs, *group, *mode, figure), digits));
            row(&mut text, [name.to_owned()].into_iter().chain(cells));
        };
        measured("transactions/s, all flows", 0, Run::total);
        measured("mean of a flow, Hz", 1, |run| run.rate);
        measured("std dev of flows, Hz", 1, |run| run.deviation);
        measured("latency, us", 0, Run::latency);
        measured("CPU time of the guest for a transaction, us", 0, Run::cost);
        measured("host's CPUs that others took meanwhile", 2, Run::disturbance);
        let medians: Vec<Option<f64>> = plan
            .modes
            .iter()
            .map(|mode| spread(runs, *group, *mode, Run::total).map(|all| all.median))
            .collect();
        row(&mut text, ["beside none".to_owned()].into_iter().chain(beside_none(plan, &medians)));
        for moderation in group.moderation.published() {
            let published: Vec<Option<Published>> =
                plan.modes.iter().map(|mode| published::find(*group, *mode, moderation)).collect();
            let cells = published.iter().map(|found| {
                found.map_or_else(dash, |found| {
                    format!("{} Hz, std dev {}, {} us", found.rate, found.deviation, found.latency)
                })
            });
            let name = format!("published, {moderation} us adaptive");
            row(&mut text, [name].into_iter().chain(cells));
            let rates: Vec<Option<f64>> =
                published.iter().map(|found| found.map(|found| f64::from(found.rate))).collect();
            row(&mut text, ["  beside none".to_owned()].into_iter().chain(beside_none(plan, &rates)));
        }
        text.push('\n');
    }
    text
}

/// How much more than the mode `none` each is.
fn beside_none(plan: &Plan, figures: &[Option<f64>]) -> Vec<String> {
    let none = plan.modes.iter().position(|mode| *mode == Mode::None).and_then(|place| figures[place]);
    let compare = |figure: &Option<f64>| match (figure, none) {
        (Some(figure), Some(none)) if none > 0.0 => format!("{:+.0} %", 100.0 * (figure / none - 1.0)),
        _ => dash(),
    };
    figures.iter().map(compare).collect()
}

/// A figure of a run that explains its rate.
type Reason = (&'static str, usize, fn(&Run) -> f64);

const REASONS: [Reason; 11] = [
    ("came in on the consumer's CPU, % of traced packets", 1, |run| 100.0 * run.home()),
    ("on another queue, of 1000 traced packets", 0, |run| 1000.0 * (1.0 - run.home())),
    ("CPUs woken to take packets over (`received_rps`), for 100 packets", 1, |run| 100.0 * run.handed_over()),
    ("decided by filters, % of packets", 1, |run| percent_by(run, "by_filter")),
    ("decided by learned flows, %", 1, |run| percent_by(run, "by_learned")),
    ("decided by RSS, %", 1, |run| percent_by(run, "by_rss")),
    ("filters or learned flows inserted", 0, |run| run.filters.inserted as f64),
    ("moved to another queue", 0, |run| run.filters.moved as f64),
    ("expired", 0, |run| run.filters.expired as f64),
    ("segments out of order (`TCPOFOQueue`)", 0, |run| run.out_of_order as f64),
    ("segments sent again (`RetransSegs`)", 0, |run| run.retransmitted as f64),
];

fn percent_by(run: &Run, reason: &str) -> f64 {
    100.0 * crate::statistics::share(run.queue.by(reason), run.queue.packets)
}

fn counters(plan: &Plan, runs: &[Run]) -> String {
    let mut text = String::from(
        "Packets are traced after the window of the rates, while the same flows go on. Of servers that are not pinned only \
         those count that were seen on one CPU before and after; they may have been elsewhere in between, so that those \
         shares are a hint only. The kernel asks for no filter where RSS is right already, so of four queues three quarters \
         of the flows need one. The last five rows count from when the mode was set, so with the time when flows change \
         queues.\n\n",
    );
    for group in &plan.groups {
        columns(&mut text, plan, &format!("**{group}**"));
        for (name, digits, figure) in REASONS {
            let cells = plan.modes.iter().map(|mode| cell(spread(runs, *group, *mode, figure), digits));
            row(&mut text, [name.to_owned()].into_iter().chain(cells));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::tests::run;
    use crate::plan::{Group, Moderation};
    use crate::relations::judge;

    fn text(modes: &[Mode], spoilt: bool) -> String {
        let plan = Plan {
            modes: modes.to_vec(),
            groups: Group::all(&Moderation::USUAL),
            rounds: 2,
            flows: 64,
            seconds: 4,
        };
        let cases = plan
            .batches()
            .into_iter()
            .flat_map(|batch| batch.modes.into_iter().map(move |mode| (batch.round, batch.group, mode)));
        let rates = |round: u32, mode| match mode {
            Mode::None => 20.0 + f64::from(round),
            _ => 22.0 + f64::from(round),
        };
        let mut runs: Vec<Run> =
            cases.map(|(round, group, mode)| run(round, group, mode, rates(round, mode))).collect();
        if spoilt {
            runs.iter_mut().filter(|run| run.mode == Mode::Accel).for_each(|run| run.at_home = 0);
        }
        let setting = Setting {
            date: "2011-02-25".to_owned(),
            machine: "Two abaci.".to_owned(),
            load: "Nobody else was there.".to_owned(),
            driver: "flownic_net",
        };
        report(&plan, &setting, &runs, &judge(&runs), "plot.svg")
    }

    #[test]
    fn measured_figures_stand_beside_published_ones() {
        let text = text(&Mode::ALL, false);
        let head = "# Accelerated RFS\n\n2011-02-25. Two abaci. Nobody else was there.\n\n64 netperf";
        assert!(text.starts_with(head), "{text}");
        let rates = "**1/1 pinned, 60 us**\n\n|  | none | soft | learned | accel |\n| --- | ---: | ---: | ---: | ---: |\n\
                     | transactions/s, all flows | 1376 (1344-1408) | 1504 (1472-1536) |";
        assert!(text.contains(rates), "{text}");
        assert!(text.contains("| beside none | +0 % | +9 % | +9 % | +9 % |"), "{text}");
        let published = "| published, 60 us adaptive | 2222 Hz, std dev 703, 450 us | 3523 Hz, std dev 2136, 284 us | - | \
                         3848 Hz, std dev 2120, 260 us |\n|   beside none | +0 % | +59 % | - | +73 % |";
        assert!(text.contains(published), "{text}");
        let handed = "(`received_rps`), for 100 packets | 0.0 (0.0-0.0) | 50.0 (50.0-50.0) | 0.0 (0.0-0.0) |";
        assert!(text.contains(handed), "{text}");
    }

    #[test]
    fn what_does_not_hold_is_not_hidden() {
        assert!(text(&Mode::ALL, true).contains("consumer's CPU | **NO** | 0.0 % |"));
        // The runs of this test are as fast with filters as without.
        assert!(
            text(&Mode::ALL, false)
                .contains("| 1/1 pinned, 60 us: accel is faster than soft | **NO** | 1504 and 1504")
        );
    }

    #[test]
    fn a_report_of_a_part_says_so() {
        assert!(!text(&Mode::ALL, false).contains("It was ended"));
        let plan = Plan {
            modes: Mode::ALL.to_vec(),
            groups: Group::all(&Moderation::USUAL),
            rounds: 5,
            flows: 64,
            seconds: 4,
        };
        let runs = [run(1, plan.groups[0], Mode::None, 20.0)];
        let setting = Setting {
            date: String::new(),
            machine: String::new(),
            load: String::new(),
            driver: "virtio_net",
        };
        let text = report(&plan, &setting, &runs, &judge(&runs), "plot.svg");
        assert!(text.contains("**It was ended after 1 of 160 measurements.**"), "{text}");
        assert!(text.contains("| transactions/s, all flows | 1280 (1280-1280) | - | - | - |"), "{text}");
    }

    #[test]
    fn tables_have_the_modes_that_were_measured() {
        let text = text(&[Mode::None, Mode::Soft], false);
        assert!(text.contains("|  | none | soft |\n"), "{text}");
        assert!(!text.contains("accel is"), "{text}");
    }
}
