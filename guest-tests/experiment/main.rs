//! Experiments that others have reported, repeated on a booted guest.
//!
//! `scripts/experiment` builds and runs this. Progress goes to standard error; what holds and where the results are, to
//! standard output.

mod arguments;
mod bars;
mod busy_poll;
mod csv;
mod flows;
mod machine;
mod markdown;
mod measure;
mod modes;
mod plan;
mod plot;
mod published;
mod relations;
mod report;
mod results;
mod snapshot;
mod statistics;
mod svg;
mod usage;

use std::process::ExitCode;

use arguments::{Order, Task};
use flows::Flows;
use guest_tests::rig::Rig;
use guest_tests::stop::{self, Interrupted, Stop, progress};
use guest_tests::{Namespace, Workdir};
use measure::{Place, Run, measure};
use report::Setting;
use results::{Done, REPORT, RUNS, Results};

/// Memory of the guest in MiB, with the fewest flows and for each flow: a server's process, and its buffers.
const MEMORY: [u32; 2] = [512, 2];
/// Name of the picture among the results.
const PLOT: &str = "rates.svg";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match Task::parse(&arguments) {
        Ok(Task::Rfs(order)) => rfs(&order),
        Ok(Task::BusyPoll(order)) => busy_poll::run(&order),
        Ok(Task::Help) => {
            println!("{}", arguments::USAGE);
            ExitCode::SUCCESS
        }
        Ok(Task::Nothing) => ExitCode::SUCCESS,
        Ok(Task::Prepare) => {
            stop::prepare();
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("error: {message}\n\n{}", arguments::USAGE);
            ExitCode::from(2)
        }
    }
}

fn rfs(order: &Order) -> ExitCode {
    let date = machine::date();
    let results = match Results::new("rfs", &date, order.out.as_deref()) {
        Ok(results) => results,
        Err(message) => {
            eprintln!("error: {message}");
            return ExitCode::FAILURE;
        }
    };
    let before = machine::load();
    let mut done = Done::default();
    let outcome =
        stop::run("the experiment", |stop, workdir| experiment(stop, workdir, order, &results, &mut done));
    // What has been measured until then is worth something, too.
    if done.runs.is_empty() {
        return outcome.err().unwrap_or(ExitCode::FAILURE);
    }
    let setting = Setting {
        date,
        machine: machine::describe(&done.kernel),
        load: machine::describe_load(before, machine::load()),
        driver: order.driver.name(),
    };
    let relations = relations::judge(&done.runs);
    let report = report::report(&order.plan, &setting, &done.runs, &relations, PLOT);
    println!("{}", markdown::verdicts(&relations));
    let files = [
        (REPORT, report),
        (RUNS, csv::table(&csv::COLUMNS, &done.runs)),
        (PLOT, plot::plot(&order.plan, &done.runs)),
    ];
    results.finish(&files, outcome, relations::counters_hold(&relations))
}

/// Boots and measures all that is planned. Measurements are saved as they are made.
fn experiment(
    stop: &Stop,
    workdir: &Workdir,
    order: &Order,
    results: &Results,
    done: &mut Done<Run>,
) -> Result<(), Interrupted> {
    let Order { plan, driver, .. } = order;
    let host = Namespace::new("host");
    let flownic = Rig::flownic(&host, workdir);
    let guest = Rig::guest(workdir, *driver, MEMORY[0] + MEMORY[1] * u32::from(plan.flows));
    stop.check()?;
    let rig = Rig::new(stop, &host, &flownic, &guest, *driver);
    done.kernel = guest.read("/proc/sys/kernel/osrelease");
    let all = plan.measurements();
    for (number, batch) in plan.batches().into_iter().enumerate() {
        let group = batch.group;
        progress(&format!("Round {}: connecting {} flows, {group}", batch.round, plan.flows));
        let flows = Flows::start(&rig, group, flows::ports(number, plan.flows))?;
        for mode in batch.modes {
            let order = done.runs.len() + 1;
            let run = measure(&rig, &flows, Place { round: batch.round, order, group, mode }, plan.seconds)?;
            progress(&format!(
                "{order} of {all}: {group} {mode}: {:.0} transactions/s, {:.0} % on the consumer's CPU",
                run.total(),
                100.0 * run.home()
            ));
            done.add(run, &csv::COLUMNS, results);
        }
        flows.end()?;
    }
    rig.check_interrupts();
    progress("Cleaning up");
    Ok(())
}
