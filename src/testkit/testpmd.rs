//! DPDK's `dpdk-testpmd` as a child process, driven through its command line: a guest driver, or a back end to
//! compare with, that others have written.

use std::collections::BTreeMap;
use std::fs;
use std::io::{PipeReader, Read, Write, pipe};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::process::TempDir;
use super::{soon, wait};

/// The program.
const PROGRAM: &str = "dpdk-testpmd";
/// What it writes when it wants a command.
const PROMPT: &str = "testpmd> ";
/// What it answers to commands that it does not take.
const COMPLAINTS: [&str; 5] =
    ["Bad arguments", "Command not found", "Ambiguous command", "Not all ports were started", "Invalid "];
/// Lines of its output that a failing test shows.
const LINES: usize = 60;

/// A testpmd to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// The first port's device, and those of further ports.
    vdevs: Vec<String>,
    queues: usize,
    lcores: String,
    memory: Vec<String>,
    args: Vec<String>,
}

impl Options {
    /// A driver: a virtio-user port with `queues` queue pairs that connects to the socket. It needs neither hugepages
    /// nor root, and its threads run on any CPU that this process may use.
    pub fn driver(socket: &Path, queues: usize) -> Self {
        Options::with(driver_device(0, socket), queues)
    }

    /// A further port of a driver, on another socket.
    pub fn and_driver(mut self, socket: &Path) -> Self {
        self.vdevs.push(self.vdev(&driver_device(self.vdevs.len(), socket)));
        self
    }

    /// A back end that listens on the socket, with hugepages.
    pub fn back_end(socket: &Path, queues: usize) -> Self {
        Options::with(back_end_device(0, socket), queues).hugepages()
    }

    /// A further port of a back end, on another socket.
    pub fn and_back_end(mut self, socket: &Path) -> Self {
        self.vdevs.push(self.vdev(&back_end_device(self.vdevs.len(), socket)));
        self
    }

    fn with(device: String, queues: usize) -> Self {
        let cpus = allowed_cpus();
        let mut options = Options {
            vdevs: Vec::new(),
            queues,
            lcores: format!("0@({cpus}),1@({cpus})"),
            memory: ["--no-huge", "--no-shconf", "-m", "128"].map(str::to_owned).to_vec(),
            args: Vec::new(),
        };
        options.vdevs.push(options.vdev(&device));
        options
    }

    fn vdev(&self, device: &str) -> String {
        format!("--vdev={device},queues={}", self.queues)
    }

    /// Further properties of all devices: `mrg_rxbuf=0`.
    pub fn device(mut self, properties: &str) -> Self {
        if !properties.is_empty() {
            self.vdevs.iter_mut().for_each(|vdev| *vdev = format!("{vdev},{properties}"));
        }
        self
    }

    /// Memory in hugepages.
    pub fn hugepages(mut self) -> Self {
        self.memory = ["--in-memory", "--single-file-segments", "-m", "256"].map(str::to_owned).to_vec();
        self
    }

    /// Both threads, that for commands and that for packets, on one CPU.
    pub fn on_cpu(mut self, cpu: usize) -> Self {
        self.lcores = format!("0@{cpu},1@{cpu}");
        self
    }

    /// Further arguments of testpmd itself (not of DPDK's EAL).
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&a| a.to_owned()));
        self
    }

    /// Starts it and waits for the prompt. Packets do not move before the command `start`.
    ///
    /// # Panics
    /// When the program is not installed, or does not come up.
    pub fn start(&self) -> Testpmd {
        Testpmd::start(self)
    }
}

fn driver_device(port: usize, socket: &Path) -> String {
    format!(
        "net_virtio_user{port},path={},queue_size=256,mac=02:00:00:00:00:{:02x}",
        socket.display(),
        port + 1
    )
}

fn back_end_device(port: usize, socket: &Path) -> String {
    format!("net_vhost{port},iface={}", socket.display())
}

/// A running testpmd. Killed on drop; what it said is shown if the test is failing.
#[derive(Debug)]
pub struct Testpmd {
    child: Child,
    input: ChildStdin,
    output: PipeReader,
    transcript: String,
    _dir: TempDir,
}

impl Testpmd {
    fn start(options: &Options) -> Testpmd {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        assert!(
            is_installed(PROGRAM),
            "{PROGRAM} is not on PATH. It is in Debian's package dpdk, which scripts/setup installs."
        );
        let prefix = format!("fn{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let dir = TempDir::new();
        let (output, theirs) = pipe().expect("a pipe");
        // Without stdbuf what it says would stay in its buffer, as its output is no terminal.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", PROGRAM, "--lcores", &options.lcores, "--no-pci", "--no-telemetry"]);
        command.args(&options.memory).args(["--file-prefix", &prefix]).args(&options.vdevs);
        let queues = options.queues;
        command.args(["--", "--interactive", "--no-mlockall", "--total-num-mbufs=8192"]);
        command.args([format!("--rxq={queues}"), format!("--txq={queues}")]).args(&options.args);
        command.env("RUNTIME_DIRECTORY", dir.path()).env("XDG_RUNTIME_DIR", dir.path());
        command.stdin(Stdio::piped()).stderr(theirs.try_clone().expect("a descriptor")).stdout(theirs);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        // The end of its output is to be seen.
        drop(command);
        let input = child.stdin.take().expect("its input is a pipe");
        let mut testpmd = Testpmd { child, input, output, transcript: String::new(), _dir: dir };
        testpmd.read_until(0, PROMPT);
        testpmd
    }

    /// Its process id. (`stdbuf` has become the program.)
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives a command and waits for its end; what it said.
    ///
    /// # Panics
    /// When testpmd does not take it, or ends.
    pub fn command(&mut self, command: &str) -> String {
        let from = self.transcript.len();
        self.input.write_all(format!("{command}\n").as_bytes()).expect("testpmd reads commands");
        self.read_until(from, PROMPT);
        let said = self.transcript[from..].trim_end_matches(PROMPT).to_owned();
        let complaint = COMPLAINTS.iter().find(|c| said.contains(**c));
        assert!(complaint.is_none(), "testpmd does not take '{command}': {said}");
        said
    }

    /// Sets a forwarding mode, `macswap`, and starts it; `how` may be `tx_first 4`.
    pub fn forward(&mut self, mode: &str, how: &str) {
        self.command(&format!("set fwd {mode}"));
        self.command(format!("start {how}").trim_end());
    }

    /// Extended statistics of its port by name, `rx_q0_good_packets`, since its start.
    pub fn xstats(&mut self) -> BTreeMap<String, u64> {
        let said = self.command("show port xstats 0");
        let lines = said.lines().filter_map(|l| l.trim().split_once(": "));
        lines.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?))).collect()
    }

    /// Frames that its receive (`rx`) or transmit (`tx`) queues have moved since its start.
    pub fn packets(&mut self, direction: &str, queues: usize) -> Vec<u64> {
        let stats = self.xstats();
        let of = |q| {
            let name = format!("{direction}_q{q}_good_packets");
            *stats.get(&name).unwrap_or_else(|| panic!("testpmd has no {name}: {stats:?}"))
        };
        (0..queues).map(of).collect()
    }

    /// A number in what it says about its port, such as `RX-packets`, `TX-errors`, `Rx-pps` (since it was last asked).
    pub fn port(&mut self, name: &str) -> u64 {
        let said = self.command("show port stats 0");
        number(&said, name).unwrap_or_else(|| panic!("testpmd says nothing about {name}: {said}"))
    }

    /// Ends it as its user would.
    pub fn quit(mut self) {
        self.input.write_all(b"quit\n").expect("testpmd reads commands");
        while self.read(soon()) {}
        let status = self.child.wait().expect("a child that can be waited for");
        assert!(status.success(), "testpmd ended with {status}");
    }

    /// Ends it without warning.
    pub fn kill(mut self) {
        self.child.kill().expect("a child that can be killed");
        self.child.wait().expect("a child that can be waited for");
    }

    fn read_until(&mut self, from: usize, end: &str) {
        let until = soon();
        while !self.transcript[from..].contains(end) {
            assert!(self.read(until), "testpmd ended");
        }
    }

    /// Adds what comes next to the transcript; false at the end.
    fn read(&mut self, until: Instant) -> bool {
        assert!(wait::readable(&[&self.output], until), "testpmd says nothing more");
        let mut bytes = [0; 4096];
        let n = self.output.read(&mut bytes).expect("a readable pipe");
        self.transcript.push_str(&String::from_utf8_lossy(&bytes[..n]));
        n > 0
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let lines: Vec<&str> = self.transcript.lines().collect();
            eprintln!("--- {PROGRAM} ---");
            lines.iter().skip(lines.len().saturating_sub(LINES)).for_each(|line| eprintln!("{line}"));
        }
    }
}

/// The number behind `name:` in a text.
pub fn number(text: &str, name: &str) -> Option<u64> {
    let (_, rest) = text.split_once(&format!("{name}:"))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder: PathBuf| folder.join(program)).any(|file| file.is_file())
}

/// CPUs that this process may use, as `0-3,8`.
fn allowed_cpus() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    list.map_or_else(|| "0".to_owned(), |l| l.trim().to_owned())
}
