//! Experiments that others have reported, repeated on a booted guest.
//!
//! `scripts/experiment` builds and runs this. Progress goes to standard error; what holds and where the results are, to
//! standard output.

mod arguments;
mod csv;
mod flows;
mod machine;
mod measure;
mod modes;
mod plan;
mod plot;
mod published;
mod relations;
mod report;
mod snapshot;
mod statistics;
mod svg;
mod usage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use arguments::{Order, Task};
use flows::Flows;
use guest_tests::rig::Rig;
use guest_tests::stop::{self, Interrupted, Stop, progress};
use guest_tests::{Namespace, Workdir, build};
use measure::{Place, Run, measure};
use report::Setting;

/// Memory of the guest in MiB, with the fewest flows and for each flow: a server's process, and its buffers.
const MEMORY: [u32; 2] = [512, 2];
/// Names of the results.
const REPORT: &str = "report.md";
const RUNS: &str = "runs.csv";
const PLOT: &str = "rates.svg";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match Task::parse(&arguments) {
        Ok(Task::Rfs(order)) => rfs(&order),
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
    let folder = order.out.clone().unwrap_or_else(|| {
        build::target().join("experiments").join(format!("rfs-{}", date.replace([' ', ':'], "-")))
    });
    if let Err(error) = fs::create_dir_all(&folder) {
        eprintln!("error: Could not make {}: {error}", folder.display());
        return ExitCode::FAILURE;
    }
    let outcome = stop::run("the experiment", |stop, workdir| {
        let before = machine::load();
        let (runs, guest) = experiment(stop, workdir, order, &folder)?;
        let setting = Setting {
            date: date.clone(),
            machine: machine::describe(&guest),
            load: machine::describe_load(before, machine::load()),
            driver: order.driver.name(),
        };
        Ok((runs, setting))
    });
    let (runs, setting) = match outcome {
        Ok(done) => done,
        Err(status) => return status,
    };
    let relations = relations::judge(&runs);
    let report = report::report(&order.plan, &setting, &runs, &relations, PLOT);
    let results = [(REPORT, report), (RUNS, csv::table(&runs)), (PLOT, plot::plot(&order.plan, &runs))];
    println!("{}", report::verdicts(&relations));
    for (name, text) in results {
        match save(&folder, name, &text) {
            Ok(path) => println!("{}", path.display()),
            Err(message) => {
                eprintln!("error: {message}");
                return ExitCode::FAILURE;
            }
        }
    }
    if relations::counters_hold(&relations) {
        ExitCode::SUCCESS
    } else {
        eprintln!("error: Not all relations between counters hold, see above");
        ExitCode::FAILURE
    }
}

fn save(folder: &Path, name: &str, text: &str) -> Result<PathBuf, String> {
    let path = folder.join(name);
    fs::write(&path, text).map_err(|error| format!("Could not write {}: {error}", path.display()))?;
    Ok(path)
}

/// Boots and measures all that is planned; gives that, and the release of the guest's kernel. Measurements are saved as
/// they are made.
fn experiment(
    stop: &Stop,
    workdir: &Workdir,
    order: &Order,
    folder: &Path,
) -> Result<(Vec<Run>, String), Interrupted> {
    let Order { plan, driver, .. } = order;
    let host = Namespace::new("host");
    let flownic = Rig::flownic(&host, workdir);
    let guest = Rig::guest(workdir, *driver, MEMORY[0] + MEMORY[1] * u32::from(plan.flows));
    stop.check()?;
    let rig = Rig::new(stop, &host, &flownic, &guest, *driver);
    let all = plan.measurements();
    let mut runs: Vec<Run> = Vec::new();
    for (number, batch) in plan.batches().into_iter().enumerate() {
        let group = batch.group;
        progress(&format!("Round {}: connecting {} flows, {group}", batch.round, plan.flows));
        let flows = Flows::start(&rig, group, flows::ports(number, plan.flows))?;
        for mode in batch.modes {
            let order = runs.len() + 1;
            let run = measure(&rig, &flows, Place { round: batch.round, order, group, mode }, plan.seconds)?;
            progress(&format!(
                "{order} of {all}: {group} {mode}: {:.0} transactions/s, {:.0} % on the consumer's CPU",
                run.total(),
                100.0 * run.home()
            ));
            runs.push(run);
            save(folder, RUNS, &csv::table(&runs)).unwrap_or_else(|message| panic!("{message}"));
        }
        flows.end()?;
    }
    rig.check_interrupts();
    let kernel = guest.read("/proc/sys/kernel/osrelease");
    progress("Cleaning up");
    Ok((runs, kernel))
}
