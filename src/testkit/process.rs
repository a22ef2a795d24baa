//! The `flownic` binary as a child process, in a directory of its own.

use std::fs::{self, File};
use std::io::{PipeReader, pipe};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Builder, Control, dial, front, soon, wait};

/// Lines of the log that a failing test shows.
const LOG_LINES: usize = 60;

/// A directory that goes away with its owner.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// A new directory with a short path, since socket addresses hold about 100 bytes.
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("fn-{}-{number}", std::process::id()));
        // What is there belongs to an earlier process of the same number.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory in the temporary directory");
        TempDir(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for TempDir {
    fn default() -> Self {
        TempDir::new()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the process uses at the moment.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Resident memory in bytes.
    pub resident: u64,
    /// Open file descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Processor time of all threads since their start.
    pub cpu: Duration,
    /// Times that any thread went to sleep of its own accord.
    pub sleeps: u64,
}

/// A running `flownic serve`. Killed on drop; its log is shown if the test is failing.
#[derive(Debug)]
pub struct Flownic {
    binary: PathBuf,
    args: Vec<String>,
    child: Child,
    lifeline: PipeReader,
    dir: TempDir,
}

impl Flownic {
    /// Starts `binary serve ARGS --control DIR/ctl` and waits until the control socket answers. In the arguments
    /// `@/` stands for the process's own directory: `n0,socket=@/n0,port=echo`.
    pub fn serve(binary: &str, args: &[&str]) -> Self {
        Flownic::start(binary, args, None)
    }

    /// The same with an inherited descriptor, number 3: for `--fd 3`.
    pub fn serve_fd(binary: &str, args: &[&str], fd: impl Into<OwnedFd>) -> Self {
        Flownic::start(binary, args, Some(fd.into()))
    }

    fn start(binary: &str, args: &[&str], fd: Option<OwnedFd>) -> Self {
        let dir = TempDir::new();
        let own = format!("{}/", dir.path().display());
        let args: Vec<String> = args.iter().map(|a| a.replace("@/", &own)).collect();
        let binary = PathBuf::from(binary);
        let (child, lifeline) = spawn(&binary, &args, dir.path(), fd);
        let mut flownic = Flownic { binary, args, child, lifeline, dir };
        flownic.wait_ready();
        flownic
    }

    /// One NIC `n0` on `@/n0`, with the rest of its description given: `queues=4,port=echo`.
    pub fn nic(binary: &str, rest: &str) -> Self {
        Flownic::serve(binary, &["--nic", &format!("n0,socket=@/n0,{rest}")])
    }

    fn wait_ready(&mut self) {
        let until = soon();
        let control = self.path("ctl");
        loop {
            if dial::dial(&control, Instant::now() + Duration::from_millis(100)).is_ok() {
                return;
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("flownic {:?} ended with {status} before it was ready:\n{}", self.args, self.log());
            }
            assert!(
                Instant::now() < until,
                "flownic {:?} opens no control socket:\n{}",
                self.args,
                self.log()
            );
        }
    }

    /// A path in its directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A guest builder for the socket of that name in its directory.
    pub fn guest(&self, name: &str) -> Builder {
        front::Guest::builder(self.path(name))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote to its standard error so far, all starts together. `serve` writes nothing to its standard output.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it with SIGKILL and waits for its end. Its directory stays.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child that can be killed");
        self.child.wait().expect("a child that can be waited for");
    }

    /// Starts it again with the same arguments, after [`Flownic::kill`] or its end.
    pub fn start_again(&mut self) {
        (self.child, self.lifeline) = spawn(&self.binary, &self.args, self.dir.path(), None);
        self.wait_ready();
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(&mut self) -> ExitStatus {
        let sent = Command::new("kill").arg(self.pid().to_string()).status().expect("the kill command");
        assert!(sent.success(), "SIGTERM to a running child");
        self.wait_end()
    }

    /// Waits for the end without asking for it.
    pub fn wait_end(&mut self) -> ExitStatus {
        // The child holds the only other end of this pipe, as its standard output.
        assert!(wait::readable(&[&self.lifeline], soon()), "flownic does not end:\n{}", self.log());
        self.child.wait().expect("a child that can be waited for")
    }

    /// A connection to its control socket.
    pub fn control(&self) -> Control {
        Control::connect(&self.path("ctl")).expect("the control socket answers")
    }

    /// One request over the control socket that must succeed.
    pub fn ask(&self, request: Value) -> Value {
        self.control().call(&request).unwrap_or_else(|e| panic!("{request} is refused: {e}"))
    }

    /// One request over the control socket that must fail; the code and the message of the error.
    pub fn refused(&self, request: Value) -> (String, String) {
        let error = match self.control().call(&request) {
            Ok(ok) => panic!("{request} succeeds with {ok}"),
            Err(error) => error,
        };
        let text = |field: &str| {
            error[field].as_str().unwrap_or_else(|| panic!("no {field} in {error}")).to_string()
        };
        (text("code"), text("message"))
    }

    /// Runs `flownic ctl --control PATH ARGS` and returns its output, whatever it is.
    pub fn ctl_output(&self, args: &[&str]) -> Output {
        let mut command = Command::new(&self.binary);
        command.arg("ctl").arg("--control").arg(self.path("ctl")).args(args).stdin(Stdio::null());
        command.output().expect("the flownic binary runs")
    }

    /// Runs `ctl --json ARGS`; the answer, or what it wrote to its standard error.
    pub fn try_ctl(&self, args: &[&str]) -> Result<Value, String> {
        let output = self.ctl_output(&[&["--json"], args].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        if text.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).map_err(|e| format!("ctl {args:?} printed no JSON ({e}): {text}"))
    }

    /// [`Flownic::try_ctl`] for what must succeed.
    pub fn ctl(&self, args: &[&str]) -> Value {
        self.try_ctl(args).unwrap_or_else(|e| panic!("ctl {args:?}: {e}"))
    }

    /// What it uses now.
    pub fn usage(&self) -> Usage {
        usage(self.pid()).expect("a running process")
    }
}

impl Drop for Flownic {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- flownic {} ---", self.args.join(" "));
            lines.iter().skip(lines.len().saturating_sub(LOG_LINES)).for_each(|line| eprintln!("{line}"));
        }
    }
}

fn spawn(binary: &Path, args: &[String], dir: &Path, fd: Option<OwnedFd>) -> (Child, PipeReader) {
    let log = File::options().create(true).append(true).open(dir.join("log")).expect("a log file");
    let (lifeline, stdout) = pipe().expect("a pipe");
    let mut command = match fd {
        None => {
            let mut command = Command::new(binary);
            command.stdin(Stdio::null());
            command
        }
        Some(fd) => {
            // A child gets descriptors 0 to 2 from `Command`; the shell moves one to 3 and becomes the binary.
            let mut shell = Command::new("sh");
            shell.args(["-c", "exec \"$@\" 3<&0 </dev/null", "sh"]).arg(binary).stdin(fd);
            shell
        }
    };
    command.arg("serve").args(args).arg("--control").arg(dir.join("ctl")).stdout(stdout).stderr(log);
    (command.spawn().expect("the flownic binary starts"), lifeline)
}

/// Reads /proc for a process.
pub fn usage(pid: u32) -> std::io::Result<Usage> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let status = fs::read_to_string(proc.join("status"))?;
    let mut usage = Usage {
        resident: field(&status, "VmRSS:") * 1024,
        descriptors: fs::read_dir(proc.join("fd"))?.count(),
        threads: 0,
        cpu: Duration::ZERO,
        sleeps: 0,
    };
    for task in fs::read_dir(proc.join("task"))? {
        let task = task?.path();
        let Ok(text) = fs::read_to_string(task.join("status")) else { continue };
        let Ok(sched) = fs::read_to_string(task.join("schedstat")) else { continue };
        usage.threads += 1;
        usage.sleeps += field(&text, "voluntary_ctxt_switches:");
        let nanos = sched.split_whitespace().next().and_then(|n| n.parse().ok());
        usage.cpu += Duration::from_nanos(nanos.unwrap_or(0));
    }
    Ok(usage)
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
