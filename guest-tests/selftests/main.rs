//! The kernel's own selftests for network drivers, run in guests whose network card is flownic.
//!
//! `scripts/selftests` builds and runs this. The score goes to standard output, progress to standard error.

mod bench;
mod tap;

use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use bench::{PAIRS, Run, Test};
use guest_tests::{Driver, build, image};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tap::{Case, Outcome};

const USAGE: &str = "Usage: flownic-selftests [--driver flownic_net|virtio_net] [TEST[:CASE]...] | --prepare

Boots a guest for each test and prints how many of its cases pass, fail, and are skipped, and why those
do not pass. The logs are in target/selftests/DRIVER. The exit status is 0 if no case failed.

  TEST             a test, such as rss_ctx; all of them if none is named
  TEST:CASE        only that case of it; * stands for anything
  --driver NAME    the driver under test (flownic_net)
  --list           print the tests' names
  --prepare        make what it needs, boot nothing
  -h, --help       this text";

/// Exit status after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

const NET: &str = "drivers/net";
const HW: &str = "drivers/net/hw";

const fn test(name: &'static str, folder: &'static str) -> Test {
    Test { name, folder, pairs: PAIRS, text: None }
}

/// All tests: those of the kernel that are about what flownic and its driver have, and ours.
const TESTS: [Test; 16] = [
    test("ping", NET),
    test("queues", NET),
    test("stats", NET),
    test("napi_id", NET),
    test("napi_threaded", NET),
    test("ring_reconfig", NET),
    test("xdp", NET),
    test("csum", HW),
    test("tso", HW),
    test("rss_api", HW),
    // 32 contexts want 66 queues.
    Test { pairs: 66, ..test("rss_ctx", HW) },
    test("rss_drv", HW),
    test("toeplitz", HW),
    test("irq", HW),
    test("ntuple", HW),
    Test { text: Some(include_str!("arfs.py")), ..test("arfs", HW) },
];

/// What the user wants.
enum Task {
    Help,
    List,
    Prepare,
    /// Tests, each with the one case that is wanted.
    Run(Driver, Vec<(Test, Option<String>)>),
}

impl Task {
    fn parse(arguments: &[String]) -> Result<Task, String> {
        let mut driver = Driver::FlownicNet;
        let mut wanted = Vec::new();
        let mut words = arguments.iter().map(String::as_str);
        while let Some(word) = words.next() {
            match word {
                "-h" | "--help" => return Ok(Task::Help),
                "--list" => return Ok(Task::List),
                "--prepare" => return Ok(Task::Prepare),
                "--driver" => {
                    driver = match words.next() {
                        Some("flownic_net") => Driver::FlownicNet,
                        Some("virtio_net") => Driver::VirtioNet,
                        other => {
                            return Err(format!("--driver takes flownic_net or virtio_net, not {other:?}"));
                        }
                    };
                }
                option if option.starts_with('-') => return Err(format!("There is no option '{option}'")),
                name => wanted.push(selected(name)?),
            }
        }
        if wanted.is_empty() {
            wanted = TESTS.iter().map(|test| (*test, None)).collect();
        }
        Ok(Task::Run(driver, wanted))
    }
}

/// The test, and the case of it, that `text` names.
fn selected(text: &str) -> Result<(Test, Option<String>), String> {
    let (name, case) =
        text.split_once(':').map_or((text, None), |(name, case)| (name, Some(case.to_owned())));
    let name = name.strip_suffix(".py").unwrap_or(name);
    let test = TESTS.iter().find(|test| test.name == name);
    let test = test.ok_or_else(|| format!("There is no test '{name}', see --list"))?;
    Ok((*test, case))
}

/// Cases by outcome.
#[derive(Default)]
struct Score {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Score {
    fn add(&mut self, cases: &[Case]) {
        for case in cases {
            match case.outcome {
                Outcome::Passed => self.passed += 1,
                Outcome::Failed => self.failed += 1,
                Outcome::Skipped => self.skipped += 1,
            }
        }
    }

    fn row(&self, name: &str) -> String {
        format!("{name:16}{:6}{:6}{:6}", self.passed, self.failed, self.skipped)
    }
}

/// Runs one test and keeps its log, also while it runs; nothing once `stop` is set.
fn run(test: &Test, case: Option<&str>, driver: Driver, logs: &Path, stop: &AtomicBool) -> Option<Run> {
    let begun = Instant::now();
    eprintln!("==> {}", test.name);
    let path = logs.join(format!("{}.log", test.name));
    let keep = |log: &[u8]| {
        if let Err(error) = fs::create_dir_all(logs).and_then(|()| fs::write(&path, log)) {
            eprintln!("warning: could not write {}: {error}", path.display());
        }
    };
    let mut kept = usize::MAX;
    let watch = |printed: &[u8]| {
        if kept != printed.len() {
            keep(printed);
            kept = printed.len();
        }
    };
    let run = panic::catch_unwind(AssertUnwindSafe(|| bench::run(test, case, driver, stop, watch)));
    let run = run.unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().cloned().unwrap_or_else(|| "The guest failed".to_owned());
        let first = text.lines().next().unwrap_or_default().to_owned();
        Some(Run { cases: tap::parse("", &first), log: text, warnings: Vec::new() })
    })?;
    keep(run.log.as_bytes());
    let mut score = Score::default();
    score.add(&run.cases);
    let (passed, all) = (score.passed, run.cases.len());
    eprintln!("==> {}: {passed} of {all} passed, {:.0} s", test.name, begun.elapsed().as_secs_f64());
    Some(run)
}

/// A flag that the usual signals set; a second one ends the process at once.
fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (driver, wanted) = match Task::parse(&arguments) {
        Ok(Task::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(Task::List) => {
            TESTS.iter().for_each(|test| println!("{}", test.name));
            return ExitCode::SUCCESS;
        }
        Ok(Task::Prepare) => {
            image::selftests();
            return ExitCode::SUCCESS;
        }
        Ok(Task::Run(driver, wanted)) => (driver, wanted),
        Err(message) => {
            eprintln!("error: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let logs = build::target().join("selftests").join(driver.name());
    let stop = match stop_on_signals() {
        Ok(stop) => stop,
        Err(error) => {
            eprintln!("error: could not listen to signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut all = Score::default();
    let (mut rows, mut reasons) = (Vec::new(), Vec::new());
    for (test, case) in &wanted {
        let Some(run) = run(test, case.as_deref(), driver, &logs, &stop) else {
            eprintln!("==> Interrupted");
            return ExitCode::from(INTERRUPTED);
        };
        let mut score = Score::default();
        score.add(&run.cases);
        all.add(&run.cases);
        rows.push(score.row(test.name));
        let unpassed = run.cases.iter().filter(|case| case.outcome != Outcome::Passed);
        reasons.extend(
            unpassed.map(|case| format!("{:?}: {}.{}: {}", case.outcome, test.name, case.name, case.reason)),
        );
        reasons.extend(run.warnings.iter().map(|line| format!("Kernel: {}: {line}", test.name)));
    }
    println!("{:16}{:>6}{:>6}{:>6}", driver.name(), "pass", "fail", "skip");
    rows.iter().for_each(|row| println!("{row}"));
    println!("{}   of {}", all.row("total"), all.passed + all.failed + all.skipped);
    if !reasons.is_empty() {
        println!();
        reasons.iter().for_each(|reason| println!("{reason}"));
    }
    eprintln!("==> Logs are in {}", logs.display());
    if all.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
