//! What flownic does, shown on a booted guest: the same flows with four ways to steer them.
//!
//! `scripts/demo` builds and runs this. Tables go to standard output, progress to standard error.

mod bench;
mod report;

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bench::Bench;
use guest_tests::{Guest, Kernel, Namespace, Qemu, Workdir, build, image};
use report::Report;

const USAGE: &str = "Usage: flownic-demo [--seconds N] | --prepare

Boots a guest whose network card is flownic and sends the same netperf flows through it four times:
without steering, with RSS, with learned flows, and with filters.

  --seconds N   how long each of the four takes, 1 to 60 (4)
  --prepare     make what guests need (images, their agent, QEMU), boot none
  -h, --help    this text";

/// Exit status after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// Whether the user wants it to end.
#[derive(Clone, Default)]
struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Listens to the usual signals; a second one ends the process at once.
    fn on_signals() -> std::io::Result<Stop> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_conditional_shutdown(
                signal,
                INTERRUPTED.into(),
                Arc::clone(&stop.0),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    fn wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if it has been asked for.
    fn check(&self) -> Result<(), Interrupted> {
        if self.wanted() { Err(Interrupted) } else { Ok(()) }
    }
}

/// The user has had enough.
#[derive(Debug)]
struct Interrupted;

fn progress(text: &str) {
    eprintln!("==> {text}");
}

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

/// Everything that guests need and that takes a while the first time.
fn prepare() {
    for kernel in [Kernel::Stable, Kernel::Backports] {
        image::initrd(kernel, false);
    }
    image::tools();
    build::guest_program();
    for qemu in [Qemu::Host, Qemu::Backports] {
        qemu.program();
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
    progress("Starting flownic with a tap in a network namespace");
    let flownic = Bench::flownic(&host, workdir);
    progress("Booting a guest with 4 CPUs (after those of tests, if any are running)");
    let begun = Instant::now();
    let guest: Guest = Bench::guest(workdir);
    progress(&format!("It is up after {:.1} s", begun.elapsed().as_secs_f64()));
    stop.check()?;
    let bench = Bench::new(stop, &host, &flownic, &guest, workdir);
    let mut reports = Vec::new();
    for way in bench::WAYS {
        progress(&format!("{} for {seconds} s", way.title));
        let report = bench.run(way, seconds)?;
        show(&report);
        reports.push(report);
    }
    bench.check_interrupts();
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
            prepare();
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let stop = Stop::on_signals().expect("signals can be listened to");
    // A terminal's Ctrl-C reaches QEMU, too: nothing that happens from then on is worth a message.
    let (quiet, usual) = (stop.clone(), panic::take_hook());
    panic::set_hook(Box::new(move |info| {
        if !quiet.wanted() {
            usual(info);
        }
    }));
    let workdir = Workdir::new();
    let path = workdir.path().to_owned();
    println!("{}", report::HEAD);
    // Unwinding ends the guest, the namespace and everything in it.
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
        demonstrate(&stop, &workdir, seconds, |report| println!("\n{report}"))
    }));
    if stop.wanted() {
        drop(workdir);
        let _ = std::fs::remove_dir_all(path);
        progress("Interrupted; everything is cleaned up");
        return ExitCode::from(INTERRUPTED);
    }
    let Ok(Ok(reports)) = outcome else {
        eprintln!("error: the demonstration failed, see above; logs are in {}", path.display());
        std::mem::forget(workdir);
        return ExitCode::FAILURE;
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
