//! `flownic ctl`: asks a running flownic, and shows its answers to people or, with `--json`, to programs.

mod trace;
mod words;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use flownic::control::client::Client;
use flownic::control::protocol::Code;
use flownic::control::replies::*;
use flownic::control::{ControlError, ENVIRONMENT, Request, default_path, print};
use flownic::stats::NicStats;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::Failure;
use words::Target;

/// Ask a running flownic, or tell it something. The NIC's name may be left out where there is only one.
#[derive(Debug, Args)]
pub(super) struct Ctl {
    /// The control socket [default: flownic.sock in XDG_RUNTIME_DIR, or in /run].
    #[arg(long, value_name = "PATH", env = ENVIRONMENT, global = true)]
    control: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show how NICs are configured and what they are doing.
    Show {
        /// This NIC only.
        nic: Option<String>,
    },
    /// Show counters: what has been counted in all or, with --watch, per second (with --json always in all).
    Stats {
        /// This NIC only.
        nic: Option<String>,
        /// Show rates every so many seconds, until interrupted.
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
        watch: Option<Duration>,
        /// Show counters that are zero, too.
        #[arg(long)]
        all: bool,
    },
    /// Set all counters to zero.
    ResetStats {
        /// Which NIC.
        nic: Option<String>,
    },
    /// Show which features are offered and negotiated.
    Features {
        /// Which NIC.
        nic: Option<String>,
    },
    /// Filter rules, in the words of ethtool.
    #[command(subcommand)]
    Flows(Flows),
    /// Receive-side scaling.
    #[command(subcommand)]
    Rss(Rss),
    /// Interrupt moderation, in the words of ethtool.
    #[command(subcommand)]
    Coalesce(Coalesce),
    /// Learned flows: [NIC] [show | on | off | clear [QUEUE]].
    Learn {
        /// Which NIC, and what to do: show (if nothing is said), on, off, or clear all or those of a queue.
        #[arg(value_name = "[NIC] [show|on|off|clear [QUEUE]]")]
        words: Vec<String>,
    },
    /// How rules of the guest are taken: [NIC] [profile NAME] [delay 5ms] [inflight N|any]
    /// [replace atomic|delete-add|none] [key any|5-tuple|4-tuple|ipv4].
    ///
    /// Without a change, shows it. What is on its way already comes when it was to.
    Knobs {
        #[arg(value_name = "[NIC] [CHANGE]")]
        words: Vec<String>,
    },
    /// Let something go wrong for the guest: [NIC] FAULT [on|off], or [NIC] none.
    ///
    /// Faults: table-full (rules are refused for want of room), busy (rules are refused with try again), lost (rules are
    /// accepted and never come in force), ctrl-hang (commands are not answered until it is off), reset (once: the guest's
    /// front end loses its connection, and what the guest has set up is forgotten).
    Inject {
        #[arg(value_name = "[NIC] FAULT [on|off]", required = true)]
        words: Vec<String>,
    },
    /// Show steering decisions as they are made: which queue each packet goes to, and why.
    Trace(trace::Trace),
    /// Set the link up or down: [NIC] up|down.
    Link {
        /// Which NIC, and up or down.
        #[arg(value_name = "[NIC] up|down", required = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
enum Flows {
    /// List rules and how often each has decided.
    List {
        /// Which NIC.
        nic: Option<String>,
    },
    /// Add a rule: [NIC] flow-type ether|ip4|ip6|tcp4|udp4|tcp6|udp6 [FIELD VALUE [m MASK]]... action QUEUE|-1 [loc N].
    ///
    /// Fields: src, dst (MAC addresses), proto (EtherType), vlan, src-ip, dst-ip, tos, tclass, l4proto, src-port, dst-port.
    /// As in ethtool, bits that are 1 in a MASK are not compared; an IP address may be written with a prefix length
    /// instead. Action -1 drops. The rule with the lowest location that matches decides; without loc it gets the
    /// highest free one, and one that is at that location already is replaced.
    Add {
        #[arg(value_name = "[NIC] RULE", required = true, allow_negative_numbers = true)]
        words: Vec<String>,
    },
    /// Delete a rule: [NIC] LOCATION.
    #[command(alias = "delete")]
    Del {
        #[arg(value_name = "[NIC] LOCATION", required = true)]
        words: Vec<String>,
    },
    /// Delete all rules.
    Clear {
        /// Which NIC.
        nic: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum Rss {
    /// Show key, hash types and indirection table.
    Get {
        /// Which NIC.
        nic: Option<String>,
    },
    /// Change some of it: [NIC] and any of on, off, mode automatic|rss, key HEX:HEX:..., equal N, weight W0 W1...,
    /// entries Q0,Q1,..., default, types ipv4,tcpv4,..., unclassified QUEUE.
    ///
    /// In mode automatic learned flows go before the hash. equal, weight, entries and default set the table: evenly over
    /// the first N queues, by weight, entry by entry, or evenly over whatever queues run.
    Set {
        #[arg(value_name = "[NIC] CHANGE", required = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
enum Coalesce {
    /// Show it: for all queues, and for each that differs.
    Get {
        /// Which NIC.
        nic: Option<String>,
    },
    /// Change it for all queues: [NIC] and any of rx-usecs N, rx-frames N, tx-usecs N, tx-frames N, adaptive-rx on|off.
    Set {
        #[arg(value_name = "[NIC] CHANGE", required = true)]
        words: Vec<String>,
    },
}

fn seconds(s: &str) -> Result<Duration, String> {
    let ok = s.parse().ok().filter(|s| (0.01..=86400.0).contains(s)).map(Duration::from_secs_f64);
    ok.ok_or_else(|| "0.01 to 86400 seconds are possible".into())
}

/// A connection, and how to show what comes out of it.
struct Session {
    client: Client,
    json: bool,
}

impl Ctl {
    pub(super) fn run(self) -> Result<(), Failure> {
        let path = self.control.or_else(default_path).ok_or_else(|| {
            Failure::Usage(format!("Where is the control socket? Say --control PATH or set {ENVIRONMENT}"))
        })?;
        // What makes no sense is said before anybody is asked.
        let first = first_word(&self.command);
        let task = task(self.command).map_err(Failure::Usage)?;
        let client = Client::connect(&path)?;
        let mut session = Session { client, json: self.json };
        let result = session.run(task).map_err(|e| match (e, first) {
            (Failure::Refused(e), Some((word, own))) if e.code == Code::NotFound => {
                Failure::Refused(session.neither(e, &word, own))
            }
            (e, _) => e,
        });
        result.map_err(|e| match e {
            Failure::Refused(e) if self.json => Failure::Json(json!({ "error": e }).to_string()),
            e => e,
        })
    }
}

/// The first word of a command in which it is a NIC or one of the command's own words, and those.
fn first_word(command: &Command) -> Option<(String, &'static [&'static str])> {
    let (words, own) = match command {
        Command::Learn { words } => (words, words::LEARN),
        Command::Rss(Rss::Set { words }) => (words, words::RSS),
        Command::Knobs { words } => (words, words::KNOBS),
        Command::Coalesce(Coalesce::Set { words }) => (words, words::COALESCE),
        _ => return None,
    };
    words.first().filter(|w| !own.contains(&w.as_str())).map(|w| (w.clone(), own))
}

/// What to ask, and how to show the answer.
enum Task {
    Show(Request),
    Stats(Request, Option<Duration>, bool),
    Features(Request),
    FlowsList(Request),
    FlowsAdd(Request),
    Rss(Request),
    Coalesce(Request),
    Learn(Request),
    Knobs(Request),
    Trace(Request),
    Do(Request),
}

fn task(command: Command) -> Result<Task, String> {
    Ok(match command {
        Command::Show { nic } => Task::Show(Request::Show { nic }),
        Command::Stats { nic, watch, all } => Task::Stats(Request::Stats { nic }, watch, all),
        Command::ResetStats { nic } => Task::Do(Request::ResetStats { nic }),
        Command::Features { nic } => Task::Features(Request::Features { nic }),
        Command::Flows(Flows::List { nic }) => Task::FlowsList(Request::FlowsList { nic }),
        Command::Flows(Flows::Add { words }) => Task::FlowsAdd(words::add_flow(words)?),
        Command::Flows(Flows::Del { words }) => Task::Do(words::delete_flow(words)?),
        Command::Flows(Flows::Clear { nic }) => Task::Do(Request::FlowsClear { nic }),
        Command::Rss(Rss::Get { nic }) => Task::Rss(Request::RssGet { nic }),
        Command::Rss(Rss::Set { words }) => Task::Do(words::set_rss(words)?),
        Command::Coalesce(Coalesce::Get { nic }) => Task::Coalesce(Request::CoalesceGet { nic }),
        Command::Coalesce(Coalesce::Set { words }) => Task::Do(words::set_coalesce(words)?),
        Command::Learn { words } => match words::learn(words)? {
            show @ Request::LearnShow { .. } => Task::Learn(show),
            change => Task::Do(change),
        },
        Command::Knobs { words } => match words::knobs(words)? {
            show @ Request::KnobsGet { .. } => Task::Knobs(show),
            change => Task::Do(change),
        },
        Command::Inject { words } => Task::Do(words::inject(words)?),
        Command::Trace(trace) => Task::Trace(trace.request()?),
        Command::Link { words } => {
            let (nic, words) = Target::split(words, &["up", "down"]);
            match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["up"] => Task::Do(Request::Link { nic, up: true }),
                ["down"] => Task::Do(Request::Link { nic, up: false }),
                _ => return Err("A link is set with: link [NIC] up|down".into()),
            }
        }
    })
}

impl Session {
    fn run(&mut self, task: Task) -> Result<(), Failure> {
        match task {
            Task::Show(r) => self.show::<Vec<NicStatus>>(&r, |nics| nics.iter().map(print::show).collect()),
            Task::Stats(r, None, all) => self.show(&r, |stats: Vec<NicStats>| print::stats(&stats, all)),
            Task::Stats(r, Some(interval), all) => self.watch(&r, interval, all),
            Task::Features(r) => self.show(&r, print::features),
            Task::FlowsList(r) => self.show(&r, print::flows),
            Task::FlowsAdd(r) => self.show(&r, |FlowAdded { loc }| format!("Added rule with ID {loc}\n")),
            Task::Rss(r) => self.show(&r, print::rss),
            Task::Coalesce(r) => self.show(&r, print::coalesce),
            Task::Learn(r) => self.show(&r, print::learn),
            Task::Knobs(r) => self.show(&r, print::knobs),
            Task::Do(r) => self.show(&r, |Done {}| String::new()),
            Task::Trace(r) => self.trace(&r),
        }
    }

    /// A better word on a NIC that there is not, where a misspelt command is taken for one.
    fn neither(&mut self, error: ControlError, word: &str, own: &[&str]) -> ControlError {
        let Ok(nics) = self.client.call::<Vec<NicStatus>>(&Request::Show { nic: None }) else { return error };
        let nics: Vec<_> = nics.iter().map(|n| n.nic.as_str()).collect();
        let message =
            format!("'{word}' is neither a NIC ({}) nor one of {}", nics.join(", "), own.join(", "));
        ControlError { message, ..error }
    }

    /// Asks, and shows the answer.
    fn show<T: DeserializeOwned + Serialize>(
        &mut self,
        request: &Request,
        human: impl Fn(T) -> String,
    ) -> Result<(), Failure> {
        let reply: T = self.client.call(request)?;
        self.put(reply, human)
    }

    fn put<T: Serialize>(&self, reply: T, human: impl Fn(T) -> String) -> Result<(), Failure> {
        let text = if self.json {
            let mut text = serde_json::to_string(&reply).expect("replies are plain data");
            text.push('\n');
            text
        } else {
            human(reply)
        };
        Ok(io::stdout().write_all(text.as_bytes())?)
    }

    fn watch(&mut self, request: &Request, interval: Duration, all: bool) -> Result<(), Failure> {
        let clear = if io::stdout().is_terminal() && !self.json { "\x1b[H\x1b[2J" } else { "" };
        let (mut before, mut asked): (Vec<NicStats>, _) = (self.client.call(request)?, Instant::now());
        loop {
            std::thread::sleep(interval);
            let (now, at): (Vec<NicStats>, _) = (self.client.call(request)?, Instant::now());
            let elapsed = at - asked;
            self.put(now.as_slice(), |now| format!("{clear}{}", print::rates(&before, now, elapsed, all)))?;
            (before, asked) = (now, at);
        }
    }
}
