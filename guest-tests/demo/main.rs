//! What flownic does, shown on a booted guest: the same flows with five ways to steer them.
//!
//! `scripts/demo` builds and runs this. Tables go to standard output, progress to standard error.

mod bench;
mod report;

use std::process::ExitCode;

use guest_tests::guest::Driver;
use guest_tests::rig::Rig;
use guest_tests::stop::{self, Interrupted, Stop, progress};
use guest_tests::{Namespace, Workdir};
use report::Report;

const USAGE: &str = "Usage: flownic-demo [--seconds N] | --prepare

Boots a guest whose network card is flownic and sends the same netperf flows through it five times:
without steering, with RSS, with learned flows, with filters of the host, and with accelerated RFS.

  --seconds N   how long each of the five takes, 1 to 60 (4)
  --prepare     make what guests need (images, their agent, QEMU), boot none
  -h, --help    this text";

/// What the user wants.
enum Task {
    Help,
    Prepare,
    /// Seconds that each way takes.
    Demonstrate(u32),
}

impl Task {
    fn parse(arguments: &[String]) -> Result<Task, String> {
        match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => Ok(Task::Demonstrate(4)),
            ["-h" | "--help"] => Ok(Task::Help),
            ["--prepare"] => Ok(Task::Prepare),
            ["--seconds", text] => match text.parse() {
                Ok(seconds @ 1..=60) => Ok(Task::Demonstrate(seconds)),
                _ => Err(format!("--seconds takes 1 to 60, not '{text}'")),
            },
            _ => Err(USAGE.to_owned()),
        }
    }
}

/// Boots, measures each way and tears down. The reports come as they are made.
fn demonstrate(
    stop: &Stop,
    workdir: &Workdir,
    seconds: u32,
    mut show: impl FnMut(&Report),
) -> Result<Vec<Report>, Interrupted> {
    let host = Namespace::new("host");
    let flownic = Rig::flownic(&host, workdir);
    // It has both drivers then.
    let guest = Rig::guest(workdir, Driver::FlownicNet, 512);
    stop.check()?;
    let mut rig = Rig::new(stop, &host, &flownic, &guest, Driver::FlownicNet);
    let mut reports = Vec::new();
    for way in bench::WAYS {
        if rig.driver() != way.driver() {
            progress(&format!("Giving the guest's card to {}", way.driver().name()));
            rig.bind(way.driver());
        }
        progress(&format!("{} for {seconds} s", way.title));
        let report = bench::run(&rig, way, seconds)?;
        show(&report);
        reports.push(report);
    }
    rig.check_interrupts();
    progress("Cleaning up");
    Ok(reports)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds = match Task::parse(&arguments) {
        Ok(Task::Demonstrate(seconds)) => seconds,
        Ok(Task::Help) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Ok(Task::Prepare) => {
            stop::prepare();
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    println!("{}", report::HEAD);
    let outcome = stop::run("the demonstration", |stop, workdir| {
        demonstrate(stop, workdir, seconds, |report| println!("\n{report}"))
    });
    let reports = match outcome {
        Ok(reports) => reports,
        Err(status) => return status,
    };
    match report::sentence(&reports) {
        Ok(sentence) => println!("\n{sentence}"),
        Err(message) => {
            eprintln!("error: {message}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
