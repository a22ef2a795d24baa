//! The program under test.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::protocol::{Done, Exec};
use crate::{Machine, Process, Workdir, build, wait_for};

/// How long flownic may take to start or to end.
const LIMIT: Duration = Duration::from_secs(20);

/// `flownic serve`, with a control socket and a log.
pub struct Flownic<'m> {
    process: Process<'m>,
    machine: &'m Machine,
    workdir: Workdir,
    arguments: Vec<String>,
}

impl<'m> Flownic<'m> {
    /// Socket of the card `name`.
    pub fn socket(workdir: &Workdir, name: &str) -> PathBuf {
        workdir.join(format!("{name}.sock"))
    }

    /// Starts flownic in `machine` with a card for each of `nics`, such as `n0,queues=4,port=tap:fn0`; the socket is
    /// added. `more` are further arguments of `serve`.
    ///
    /// # Panics
    /// When it does not answer in time, with its log.
    #[track_caller]
    pub fn start(machine: &'m Machine, workdir: &Workdir, nics: &[&str], more: &[&str]) -> Flownic<'m> {
        let mut arguments = Vec::new();
        for nic in nics {
            let name = nic.split(',').next().unwrap_or_default();
            let socket = Flownic::socket(workdir, name);
            arguments.extend(["--nic".to_owned(), format!("{nic},socket={}", socket.display())]);
        }
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        Flownic::launch(machine, workdir.clone(), arguments)
    }

    #[track_caller]
    fn launch(machine: &'m Machine, workdir: Workdir, arguments: Vec<String>) -> Flownic<'m> {
        let text = |path: PathBuf| path.to_str().expect("the work folder's path is text").to_owned();
        let script = r#"log=$1; shift; exec "$@" >>"$log" 2>&1"#;
        let mut argv = ["sh", "-c", script, "sh"].map(str::to_owned).to_vec();
        argv.extend([
            text(workdir.join("flownic.log")),
            text(build::flownic().to_owned()),
            "serve".to_owned(),
        ]);
        argv.extend(["--control".to_owned(), text(workdir.join("control"))]);
        argv.extend(arguments.iter().cloned());
        let log = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
        let env = vec![("RUST_LOG".to_owned(), log), ("RUST_BACKTRACE".to_owned(), "1".to_owned())];
        let process = machine.start(&Exec { argv, env, root: None });
        let mut flownic = Flownic { process, machine, workdir, arguments };
        flownic.wait_answering();
        flownic
    }

    #[track_caller]
    fn wait_answering(&mut self) {
        wait_for("flownic to answer", LIMIT, || {
            if let Some(done) = self.process.ended() {
                panic!("flownic {:?} ended with {done:?}\n{}", self.arguments, self.log());
            }
            match self.try_ctl(&["show"])? {
                Value::Null => Err("an empty answer".to_owned()),
                shown => Ok(shown),
            }
        });
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.workdir.join("flownic.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// `flownic ctl`, to be run by the caller.
    pub fn ctl_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(build::flownic());
        command.args(["ctl", "--json", "--control"]).arg(self.workdir.join("control")).args(arguments);
        command
    }

    /// Sends a request, in the words of `flownic ctl`; the error is what it printed.
    ///
    /// # Errors
    /// When flownic refuses or does not answer.
    pub fn try_ctl(&self, arguments: &[&str]) -> Result<Value, String> {
        let mut command = self.ctl_command(arguments);
        let output = command.output().map_err(|error| format!("Could not run {command:?}: {error}"))?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!("{}{stdout}", String::from_utf8_lossy(&output.stderr)));
        }
        if stdout.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&stdout).map_err(|error| format!("{error} in {stdout}"))
    }

    /// As [`Flownic::try_ctl`], for what must succeed.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn ctl(&self, arguments: &[&str]) -> Value {
        match self.try_ctl(arguments) {
            Ok(value) => value,
            Err(message) => panic!("flownic ctl {arguments:?}: {message}"),
        }
    }

    /// A counter of the card `nic`, by its place in the statistics, such as `/rx/0/packets`.
    ///
    /// # Panics
    /// When there is no such counter.
    #[track_caller]
    pub fn counter(&self, nic: &str, place: &str) -> u64 {
        let stats = self.stats(nic);
        stats
            .pointer(place)
            .and_then(Value::as_u64)
            .unwrap_or_else(|| panic!("No counter {place} in {stats}"))
    }

    /// All counters of the card `nic` at a place, such as `/rx/0` or `/device`, with their names.
    ///
    /// # Panics
    /// When there are none.
    #[track_caller]
    pub fn counters(&self, nic: &str, place: &str) -> Vec<(String, u64)> {
        let stats = self.stats(nic);
        let found = stats.pointer(place).and_then(Value::as_object);
        let found = found.unwrap_or_else(|| panic!("No counters {place} in {stats}"));
        found.iter().filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect()
    }

    /// Statistics of one card.
    #[track_caller]
    fn stats(&self, nic: &str) -> Value {
        let all = self.ctl(&["stats", nic]);
        let found = all.as_array().and_then(|all| all.iter().find(|stats| stats["nic"] == nic));
        found.cloned().unwrap_or_else(|| panic!("No statistics of {nic} in {all}"))
    }

    /// Its pid in its namespace.
    #[track_caller]
    pub fn pid(&mut self) -> u32 {
        self.process.pid()
    }

    /// The machine it runs in.
    pub fn machine(&self) -> &'m Machine {
        self.machine
    }

    /// Ends it with `signal`, waits for that and gives how it ended.
    ///
    /// # Panics
    /// When it does not end in time.
    #[track_caller]
    pub fn end(&mut self, signal: i32) -> Done {
        self.process.kill(signal);
        wait_for("flownic to end", LIMIT, || self.process.ended().ok_or_else(|| "running".to_owned()))
    }

    /// Starts it anew with the same arguments, after [`Flownic::end`].
    ///
    /// # Panics
    /// When it does not answer in time.
    #[track_caller]
    pub fn start_again(self) -> Flownic<'m> {
        Flownic::launch(self.machine, self.workdir.clone(), self.arguments.clone())
    }
}

impl Drop for Flownic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- flownic.log\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
        } else if self.process.ended().is_none() {
            self.process.kill(libc::SIGTERM);
        }
    }
}
