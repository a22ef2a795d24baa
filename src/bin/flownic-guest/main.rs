//! `flownic-guest`: programs the NIC from inside a guest that runs the stock driver.

mod print;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use flownic::control::replies::Done;
use flownic::control::rss_words::parse_rss;
use flownic::control::{parse_flow, print as shared};
use flownic::guest::settings::CoalesceChange;
use flownic::guest::{Device, Frames, GuestError, open};
use serde::Serialize;
use serde_json::json;

/// Program a flownic NIC from inside the guest, whatever its driver.
///
/// Commands go to the NIC as frames, and so do its answers come back. The host may forbid that (`flownic serve --in-band`).
#[derive(Debug, Parser)]
#[command(name = "flownic-guest", version, propagate_version = true)]
struct Cli {
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    /// How long to wait for an answer.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds, global = true)]
    timeout: Duration,
    /// The network interface, such as eth0.
    #[arg(value_name = "DEV")]
    interface: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what the device is.
    Info,
    /// Filter rules, in the words of ethtool.
    #[command(subcommand)]
    Flows(Flows),
    /// Receive-side scaling.
    #[command(subcommand)]
    Rss(Rss),
    /// Interrupt moderation.
    #[command(subcommand)]
    Coalesce(Coalesce),
    /// Show what the device has counted.
    Stats {
        /// Show counters that are zero, too.
        #[arg(long)]
        all: bool,
    },
    /// Have the device forget all that this guest has set up: rules, RSS, moderation.
    Reset {
        /// Also if a driver or another program has rules there, which are forgotten, too.
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Subcommand)]
enum Flows {
    /// List rules and how often each has decided.
    List,
    /// Add a rule: flow-type ether|ip4|ip6|tcp4|udp4|tcp6|udp6 [FIELD VALUE [m MASK]]... action QUEUE|-1 [loc N].
    ///
    /// Fields: src, dst (MAC addresses), proto (EtherType), src-ip, dst-ip, tos, tclass, l4proto, src-port, dst-port. As in
    /// ethtool, bits that are 1 in a MASK are not compared; an IP address may be written with a prefix length instead.
    /// Action -1 drops. The rule with the lowest location that matches decides; without loc it gets the highest free
    /// one, and one that is at that location already is replaced.
    Add {
        #[arg(value_name = "RULE", required = true, allow_negative_numbers = true)]
        words: Vec<String>,
    },
    /// Delete a rule.
    #[command(alias = "delete")]
    Del {
        #[arg(value_name = "LOCATION")]
        loc: u32,
    },
    /// Delete all rules that this program has added.
    Clear,
}

#[derive(Debug, Subcommand)]
enum Rss {
    /// Show key, hash types and indirection table.
    Get,
    /// Change some of it: any of key HEX:HEX:..., equal N, weight W0 W1..., entries Q0,Q1,..., default,
    /// types ipv4,tcpv4,..., unclassified QUEUE. From then on learned flows have no say.
    Set {
        #[arg(value_name = "CHANGE", required = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
enum Coalesce {
    /// Show it, queue by queue.
    Get,
    /// Change some of it: any of rx-usecs N, rx-frames N, tx-usecs N, tx-frames N, and queue N for one queue pair only.
    Set {
        #[arg(value_name = "CHANGE", required = true)]
        words: Vec<String>,
    },
}

fn seconds(s: &str) -> Result<Duration, String> {
    let ok = s.parse().ok().filter(|s| (0.01..=3600.0).contains(s)).map(Duration::from_secs_f64);
    ok.ok_or_else(|| "0.01 to 3600 seconds are possible".into())
}

/// Why nothing came of it.
enum Failure {
    Usage(String),
    Device(GuestError),
    Output(io::Error),
}

impl From<GuestError> for Failure {
    fn from(e: GuestError) -> Self {
        Failure::Device(e)
    }
}

/// Where answers go.
struct Output {
    json: bool,
}

impl Output {
    fn put<T: Serialize>(&self, reply: T, human: impl FnOnce(T) -> String) -> Result<(), Failure> {
        let text = if self.json {
            let mut text = serde_json::to_string(&reply).expect("replies are plain data");
            text.push('\n');
            text
        } else {
            human(reply)
        };
        io::stdout().write_all(text.as_bytes()).map_err(Failure::Output)
    }

    fn done(&self) -> Result<(), Failure> {
        self.put(Done {}, |_| String::new())
    }
}

/// What makes no sense is said before the device is asked.
fn check(command: &Command) -> Result<(), String> {
    match command {
        Command::Flows(Flows::Add { words }) => parse_flow(words).map(drop),
        Command::Rss(Rss::Set { words }) => parse_rss(words).map(drop),
        Command::Coalesce(Coalesce::Set { words }) => CoalesceChange::parse(words).map(drop),
        _ => Ok(()),
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    check(&cli.command).map_err(Failure::Usage)?;
    let mut device = Device::find(open(&cli.interface, cli.timeout)?)?;
    carry_out(&mut device, &cli.interface, cli.command, &Output { json: cli.json })
}

fn carry_out<F: Frames>(
    d: &mut Device<F>,
    name: &str,
    command: Command,
    out: &Output,
) -> Result<(), Failure> {
    match command {
        Command::Info => return out.put(d.info(name)?, |i| print::info(&i)),
        Command::Flows(Flows::List) => return out.put(d.flows(name)?, print::flows),
        Command::Flows(Flows::Add { words }) => {
            let added = d.add_flow(parse_flow(&words).map_err(Failure::Usage)?)?;
            return out.put(added, |a| format!("Added rule with ID {}\n", a.loc));
        }
        Command::Flows(Flows::Del { loc }) => d.delete_flow(loc)?,
        Command::Flows(Flows::Clear) => d.clear_flows()?,
        Command::Rss(Rss::Get) => return out.put(d.rss_status(name)?, shared::rss),
        Command::Rss(Rss::Set { words }) => d.change_rss(parse_rss(&words).map_err(Failure::Usage)?)?,
        Command::Coalesce(Coalesce::Get) => {
            return out.put(d.coalesce_status(name)?, |c| print::coalesce(&c));
        }
        Command::Coalesce(Coalesce::Set { words }) => {
            d.change_coalesce(CoalesceChange::parse(&words).map_err(Failure::Usage)?)?;
        }
        Command::Stats { all } => {
            return out.put([d.statistics(name)?], |stats| shared::stats(&stats, all));
        }
        Command::Reset { force } => {
            let others = if force { 0 } else { d.others()? };
            if others > 0 {
                return Err(Failure::Device(GuestError::Impossible(format!(
                    "{others} rule(s) are not this program's; --force forgets them, too"
                ))));
            }
            d.reset()?;
        }
    }
    out.done()
}

/// Exit status: 0, 1 for a failure, 2 for arguments that make no sense.
fn main() -> ExitCode {
    let cli = Cli::parse();
    let (json, interface) = (cli.json, cli.interface.clone());
    let (text, status) = match run(cli) {
        Ok(()) => return ExitCode::SUCCESS,
        // Whoever read our output has had enough.
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => return ExitCode::FAILURE,
        Err(Failure::Output(e)) => (e.to_string(), 1),
        Err(Failure::Usage(text)) => (text, 2),
        Err(Failure::Device(e)) => (format!("{interface}: {e}"), 1),
    };
    if json {
        eprintln!("{}", json!({ "error": { "message": text } }));
    } else {
        eprintln!("error: {text}");
    }
    ExitCode::from(status)
}
