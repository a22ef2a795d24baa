//! A machine that runs an agent: a guest or a network namespace.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::protocol::{Done, Exec, Frame, Kind, MAX_PAYLOAD, Power, Put, Ready};

/// How long a command may take when nothing else is said.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// The way to an agent.
///
/// `run` and its relatives take a shell command line and start it with `sh -c`.
pub struct Machine {
    name: String,
    root: Option<String>,
    next: AtomicU32,
    link: Arc<Link>,
    ready: Mutex<Receiver<Ready>>,
}

struct Link {
    writer: Mutex<UnixStream>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    epoch: u32,
    open: HashMap<u32, Sender<Frame>>,
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the state")
    }

    fn send(&self, kind: Kind, id: u32, payload: Vec<u8>) -> io::Result<()> {
        let epoch = self.state().epoch;
        let mut writer = self.writer.lock().expect("no thread panics while it holds the stream");
        Frame { kind, epoch, id, payload }.write(&mut *writer)
    }

    /// Hands frames to whom they belong until the stream ends.
    fn receive(&self, mut stream: UnixStream, ready: &Sender<Ready>) {
        while let Ok(frame) = Frame::read(&mut stream) {
            let mut state = self.state();
            if frame.kind == Kind::Ready {
                let Ok(message) = serde_json::from_slice(&frame.payload) else { continue };
                // A new start: nothing of before will ever be answered.
                *state = State { epoch: frame.epoch, open: HashMap::new() };
                let _ = ready.send(message);
            } else if frame.epoch == state.epoch
                && let Some(receiver) = state.open.get(&frame.id)
            {
                let (id, last) = (frame.id, frame.kind == Kind::Done);
                let _ = receiver.send(frame);
                if last {
                    state.open.remove(&id);
                }
            }
        }
        self.state().open.clear();
    }
}

/// What a finished command left behind.
#[derive(Debug, Clone)]
pub struct Output {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub status: Done,
}

impl Output {
    /// Whether the command exited with status 0.
    pub fn success(&self) -> bool {
        self.status == Done::Exited(0)
    }

    /// Standard output as text, without white space around it.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (stdout, stderr) = (String::from_utf8_lossy(&self.stdout), String::from_utf8_lossy(&self.stderr));
        write!(f, "{:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}\n---", self.status)
    }
}

impl Machine {
    /// Talks to the agent behind `stream`. Commands run with `root` as their root directory, if given.
    ///
    /// # Errors
    /// When the stream cannot be duplicated.
    pub fn new(name: &str, stream: UnixStream, root: Option<String>) -> io::Result<Machine> {
        let reader = stream.try_clone()?;
        let link = Arc::new(Link { writer: Mutex::new(stream), state: Mutex::default() });
        let (ready_tx, ready) = mpsc::channel();
        let receiver = Arc::clone(&link);
        thread::Builder::new()
            .name(format!("{name} agent"))
            .spawn(move || receiver.receive(reader, &ready_tx))?;
        Ok(Machine { name: name.to_owned(), root, next: AtomicU32::new(1), link, ready: Mutex::new(ready) })
    }

    /// The machine's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the agent's next start.
    ///
    /// # Errors
    /// When it does not come within `limit`, or the stream has ended.
    pub fn wait_ready(&self, limit: Duration) -> Result<Ready, String> {
        let ready = self.ready.lock().expect("one waits at a time");
        ready.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("{}: the agent was not ready within {limit:?}", self.name),
            RecvTimeoutError::Disconnected => format!("{}: the agent's stream ended", self.name),
        })
    }

    fn open(&self, kind: Kind, message: &impl Serialize) -> Process<'_> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, frames) = mpsc::channel();
        self.link.state().open.insert(id, sender);
        let payload = serde_json::to_vec(message).expect("messages have only string keys");
        self.send(kind, id, payload);
        let (stdout, stderr) = (Vec::new(), Vec::new());
        Process { machine: self, what: String::new(), id, frames, pid: None, stdout, stderr, done: None }
    }

    #[track_caller]
    fn send(&self, kind: Kind, id: u32, payload: Vec<u8>) {
        if let Err(error) = self.link.send(kind, id, payload) {
            panic!("{}: could not send to the agent: {error}", self.name);
        }
    }

    /// Starts a program without a shell, in the machine's own root, with its standard input open.
    pub fn start(&self, exec: &Exec) -> Process<'_> {
        Process { what: exec.argv.join(" "), ..self.open(Kind::Exec, exec) }
    }

    fn shell(&self, command: &str) -> Exec {
        let argv = ["sh", "-c", command].map(str::to_owned).to_vec();
        Exec { argv, env: Vec::new(), root: self.root.clone() }
    }

    /// Starts a command in the background, with empty input.
    pub fn spawn(&self, command: &str) -> Process<'_> {
        let process = Process { what: command.to_owned(), ..self.start(&self.shell(command)) };
        process.end_input();
        process
    }

    /// Runs a command to its end, at most [`COMMAND_LIMIT`].
    ///
    /// # Panics
    /// When it takes longer or the agent goes away.
    #[track_caller]
    pub fn run(&self, command: &str) -> Output {
        self.spawn(command).wait(COMMAND_LIMIT)
    }

    /// Runs a command that must succeed and gives its output as text.
    ///
    /// # Panics
    /// When it fails, with everything it said.
    #[track_caller]
    pub fn run_ok(&self, command: &str) -> String {
        let output = self.run(command);
        assert!(output.success(), "{}: `{command}` ended with {output}", self.name);
        output.text()
    }

    /// Runs a command with `input` as its standard input.
    ///
    /// # Panics
    /// As [`Machine::run`].
    #[track_caller]
    pub fn run_with_input(&self, command: &str, input: &[u8]) -> Output {
        let process = Process { what: command.to_owned(), ..self.start(&self.shell(command)) };
        process.input(input);
        process.end_input();
        process.wait(COMMAND_LIMIT)
    }

    /// Reads a file as text, without white space around it.
    ///
    /// # Panics
    /// When it cannot be read.
    #[track_caller]
    pub fn read(&self, path: &str) -> String {
        self.run_ok(&format!("cat {path}"))
    }

    /// Writes a file where commands see it, making the folders above it.
    ///
    /// # Panics
    /// When it cannot be written.
    #[track_caller]
    pub fn write(&self, path: &str, mode: u32, content: &[u8]) {
        let put = Put { path: format!("{}{path}", self.root.as_deref().unwrap_or_default()), mode };
        let transfer = Process { what: format!("write {path}"), ..self.open(Kind::Put, &put) };
        transfer.input(content);
        transfer.end_input();
        let output = transfer.wait(COMMAND_LIMIT);
        assert!(output.success(), "{}: writing {path} ended with {output}", self.name);
    }

    /// Closes the stream; the agent of a namespace ends then.
    pub fn hang_up(&self) {
        let writer = self.link.writer.lock().expect("no thread panics while it holds the stream");
        // Fails only when the agent has closed it already.
        let _ = writer.shutdown(Shutdown::Both);
    }

    /// Asks for a reboot or power-off; answers nothing.
    pub fn power(&self, power: Power) {
        let payload = serde_json::to_vec(&power).expect("a plain enum");
        self.send(Kind::Power, 0, payload);
    }
}

/// A running command. Dropped, it goes on running, but its output is lost.
pub struct Process<'m> {
    machine: &'m Machine,
    what: String,
    id: u32,
    frames: Receiver<Frame>,
    pid: Option<u32>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    done: Option<Done>,
}

impl Process<'_> {
    /// Sends input.
    #[track_caller]
    pub fn input(&self, bytes: &[u8]) {
        bytes.chunks(MAX_PAYLOAD).for_each(|piece| self.machine.send(Kind::Input, self.id, piece.to_vec()));
    }

    /// Ends the input.
    #[track_caller]
    pub fn end_input(&self) {
        self.machine.send(Kind::Input, self.id, Vec::new());
    }

    /// Sends a signal to the command and what it has started.
    #[track_caller]
    pub fn kill(&self, signal: i32) {
        self.machine.send(Kind::Kill, self.id, (signal as u32).to_le_bytes().to_vec());
    }

    /// Takes in one frame; false when none came in time.
    fn take(&mut self, deadline: Instant) -> bool {
        if self.done.is_some() {
            return false;
        }
        match self.frames.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(frame) => match frame.kind {
                Kind::Started => self.pid = frame.payload.try_into().ok().map(u32::from_le_bytes),
                Kind::Stdout => self.stdout.extend(frame.payload),
                Kind::Stderr => self.stderr.extend(frame.payload),
                Kind::Done => {
                    let done = serde_json::from_slice(&frame.payload);
                    self.done =
                        Some(done.unwrap_or_else(|error| Done::Failed(format!("Bad answer: {error}"))));
                }
                _ => {}
            },
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => {
                self.done = Some(Done::Failed("The machine went away".to_owned()));
            }
        }
        true
    }

    /// The pid in the machine.
    ///
    /// # Panics
    /// When the command could not be started.
    #[track_caller]
    pub fn pid(&mut self) -> u32 {
        let deadline = Instant::now() + COMMAND_LIMIT;
        while self.pid.is_none() && self.take(deadline) {}
        self.pid.unwrap_or_else(|| {
            panic!("{}: `{}` did not start: {:?}", self.machine.name, self.what, self.done)
        })
    }

    /// Waits until the command has said `text` on either output.
    ///
    /// # Panics
    /// When it has not within `limit`, or ended before.
    #[track_caller]
    pub fn wait_for_text(&mut self, text: &str, limit: Duration) {
        let deadline = Instant::now() + limit;
        let said = |bytes: &[u8]| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        while !said(&self.stdout) && !said(&self.stderr) {
            if !self.take(deadline) {
                let (name, output) = (&self.machine.name, self.output());
                panic!("{name}: `{}` did not say {text:?} within {limit:?}: {output}", self.what);
            }
        }
    }

    /// How it ended, if it has by now.
    pub fn ended(&mut self) -> Option<Done> {
        while self.take(Instant::now()) {}
        self.done.clone()
    }

    /// What it has said so far, as far as [`Process::ended`] and its like have taken it in.
    pub fn output(&self) -> Output {
        let status = self.done.clone().unwrap_or_else(|| Done::Failed("Still running".to_owned()));
        Output { stdout: self.stdout.clone(), stderr: self.stderr.clone(), status }
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// When it does not end within `limit`; it is killed then.
    #[track_caller]
    pub fn wait(mut self, limit: Duration) -> Output {
        let deadline = Instant::now() + limit;
        while self.take(deadline) {}
        if self.done.is_none() {
            self.kill(libc::SIGKILL);
            panic!("{}: `{}` still runs after {limit:?}: {}", self.machine.name, self.what, self.output());
        }
        self.output()
    }

    /// Ends the command with SIGTERM and waits for its end.
    ///
    /// # Panics
    /// As [`Process::wait`].
    #[track_caller]
    pub fn stop(self) -> Output {
        self.kill(libc::SIGTERM);
        self.wait(COMMAND_LIMIT)
    }
}
