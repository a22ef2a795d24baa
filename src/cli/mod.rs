//! Commands: each file has the flags of one and does what it says.

mod ctl;
mod describe;
mod nics;
mod qemu_args;
mod serve;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};
use flownic::control::ControlError;
use flownic::control::client::ClientError;
use log::LevelFilter;

/// A NIC made of software: a vhost-user-net back end with flow steering and RSS.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    after_help = "Without a command, the options of serve are taken: --socket-path=PATH, --print-capabilities and so on."
)]
struct Cli {
    /// Say more; twice for everything (RUST_LOG goes before).
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Ctl(ctl::Ctl),
    QemuArgs(qemu_args::QemuArgs),
    InstallDescription(describe::InstallDescription),
}

/// Why a command ends without having done its work.
enum Failure {
    /// What was asked for makes no sense.
    Usage(String),
    /// It could not be done.
    Failed(String),
    /// A running flownic refuses.
    Refused(ControlError),
    /// The same as JSON.
    Json(String),
    /// Nobody is there to hear why.
    Quiet,
}

impl Failure {
    /// With everything that led to it.
    fn failed(error: &dyn std::error::Error) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(e) = cause {
            let e_text = e.to_string();
            // Some errors end with their cause already.
            if !text.contains(&e_text) {
                text = format!("{text}: {e_text}");
            }
            cause = e.source();
        }
        Failure::Failed(text)
    }
}

impl From<ClientError> for Failure {
    fn from(e: ClientError) -> Self {
        match e {
            ClientError::Refused(e) => Failure::Refused(e),
            e @ ClientError::Connect { .. } => Failure::Failed(format!(
                "{e}; is `flownic serve` running there? Name another socket with --control"
            )),
            e => Failure::failed(&e),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        // Whoever read our output has had enough.
        if e.kind() == io::ErrorKind::BrokenPipe { Failure::Quiet } else { Failure::failed(&e) }
    }
}

/// Runs the command of these arguments. Exit status: 0, 1 for a failure, 2 for arguments that make no sense.
pub(crate) fn run(args: Vec<OsString>) -> ExitCode {
    let cli = Cli::parse_from(with_command(args));
    start_log(cli.verbose);
    let result = match cli.command {
        Command::Serve(serve) => serve.run(),
        Command::Ctl(ctl) => ctl.run(),
        Command::QemuArgs(args) => args.run(),
        Command::InstallDescription(install) => install.run(),
    };
    match result {
        Ok(()) | Err(Failure::Quiet) => ExitCode::SUCCESS,
        Err(Failure::Usage(e)) => {
            eprintln!("error: {e}\n\nFor more information, try '--help'.");
            ExitCode::from(2)
        }
        Err(Failure::Failed(e)) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
        Err(Failure::Json(e)) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
        Err(Failure::Refused(e)) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Whoever follows the conventions for back-end programs gives no command: `flownic --socket-path=PATH` serves.
fn with_command(mut args: Vec<OsString>) -> Vec<OsString> {
    let first = args.get(1).and_then(|a| a.to_str()).unwrap_or_default();
    let ours = matches!(first, "--help" | "--version") || first.starts_with("--verbose");
    if first.starts_with("--") && !ours {
        args.insert(1, "serve".into());
    }
    args
}

fn start_log(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Info,
        1 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    env_logger::Builder::new()
        .filter_level(LevelFilter::Warn)
        .filter_module("flownic", level)
        .parse_default_env()
        .format_target(false)
        .init();
}
