//! Busy polling: what a guest gains when it looks for answers itself, instead of waiting for an interrupt.

mod csv;
mod measure;
pub(crate) mod plan;
mod plot;
mod published;
mod relations;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use guest_tests::polling::{Counters, Polling};
use guest_tests::stop::{self, Interrupted, Stop, progress};
use guest_tests::{Kernel, Namespace, Workdir};

use crate::csv::table;
use crate::relations::counters_hold;
use crate::results::{Done, REPORT, RUNS, Results};
use crate::{machine, markdown};
use measure::{Run, measure};
use plan::Plan;

/// Name of the picture among the results.
const PLOT: &str = "rtt.svg";

/// An experiment to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    /// What to measure.
    pub(crate) plan: Plan,
    /// Where results go, if the user has said so.
    pub(crate) out: Option<PathBuf>,
}

/// Does it; what has been measured before it is ended is reported, too.
pub(crate) fn run(order: &Order) -> ExitCode {
    let date = machine::date();
    let results = match Results::new("busy-poll", &date, order.out.as_deref()) {
        Ok(results) => results,
        Err(message) => {
            eprintln!("error: {message}");
            return ExitCode::FAILURE;
        }
    };
    let before = machine::load();
    let mut done = Done::default();
    let outcome = stop::run("the experiment", |stop, workdir| {
        experiment(stop, workdir, &order.plan, &results, &mut done)
    });
    let runs = &done.runs;
    if runs.is_empty() {
        return outcome.err().unwrap_or(ExitCode::FAILURE);
    }
    let when = format!(
        "{date}. {} {}",
        machine::describe(&done.kernel),
        machine::describe_load(before, machine::load())
    );
    let relations = relations::judge(&order.plan, runs);
    let report = report::report(&order.plan, &when, runs, &relations, PLOT);
    let files = [(REPORT, report), (RUNS, table(&csv::COLUMNS, runs)), (PLOT, plot::plot(&order.plan, runs))];
    println!("{}", markdown::verdicts(&relations));
    results.finish(&files, outcome, counters_hold(&relations))
}

/// Boots and measures all that is planned. Measurements are saved as they are made.
fn experiment(
    stop: &Stop,
    workdir: &Workdir,
    plan: &Plan,
    results: &Results,
    done: &mut Done<Run>,
) -> Result<(), Interrupted> {
    progress(
        "Starting flownic with a tap in a network namespace, and booting a guest (after those of tests, if any are running)",
    );
    let host = Namespace::new("host");
    let flownic = Polling::flownic(&host, workdir);
    // Older kernels do not have all ways to wait.
    let guest = Polling::guest(workdir, Kernel::Backports);
    stop.check()?;
    let mut polling = Polling::new(&host, &flownic, &guest);
    done.kernel = guest.read("/proc/sys/kernel/osrelease");
    let all = plan.measurements();
    for round in 1..=plan.rounds {
        for case in plan.round(round) {
            stop.check()?;
            polling.bind(case.driver);
            let order = done.runs.len() + 1;
            let run = measure(&polling, (round, order), case, plan.seconds, plan.budget);
            let Counters { polled, rx_interrupts, .. } = run.counters;
            progress(&format!(
                "{order} of {all}: {case}: {:.0} us, {} messages, {polled} packets polled, {rx_interrupts} receive interrupts",
                run.trips.mean, run.trips.messages,
            ));
            done.add(run, &csv::COLUMNS, results);
        }
    }
    progress("Cleaning up");
    Ok(())
}
