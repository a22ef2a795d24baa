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
    let before = machine::load();
    let mut done = Done::default();
    let outcome =
        stop::run("the experiment", |stop, workdir| experiment(stop, workdir, order, &folder, &mut done));
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
    println!("{}", report::verdicts(&relations));
    let results =
        [(REPORT, report), (RUNS, csv::table(&done.runs)), (PLOT, plot::plot(&order.plan, &done.runs))];
    for (name, text) in results {
        match save(&folder, name, &text) {
            Ok(path) => println!("{}", path.display()),
            Err(message) => {
                eprintln!("error: {message}");
                return ExitCode::FAILURE;
            }
        }
    }
    match outcome {
        Err(status) => status,
        Ok(()) if relations::counters_hold(&relations) => ExitCode::SUCCESS,
        Ok(()) => {
            eprintln!("error: Not all relations between counters hold, see above");
            ExitCode::FAILURE
        }
    }
}

/// What has been measured so far.
#[derive(Default)]
struct Done {
    runs: Vec<Run>,
    /// Release of the guest's kernel.
    kernel: String,
}

fn save(folder: &Path, name: &str, text: &str) -> Result<PathBuf, String> {
    let path = folder.join(name);
    fs::write(&path, text).map_err(|error| format!("Could not write {}: {error}", path.display()))?;
    Ok(path)
}

/// Boots and measures all that is planned. Measurements are saved as they are made.
fn experiment(
    stop: &Stop,
    workdir: &Workdir,
    order: &Order,
    folder: &Path,
    done: &mut Done,
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
            done.runs.push(run);
            save(folder, RUNS, &csv::table(&done.runs)).unwrap_or_else(|message| panic!("{message}"));
        }
        flows.end()?;
    }
    rig.check_interrupts();
    progress("Cleaning up");
    Ok(())
}
