//! The process table.
//!
//! A process is *running* from its entry in `by_pid` until the reaper takes it out; its input channel lives until the
//! supervisor has sent [`Done`]. The table's lock is held across a spawn and across a reap, so that the reaper never
//! sees a child that is not entered yet, and a signal never reaches a pid that was given to somebody else.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use guest_tests::protocol::{Done, Exec, Kind, Put};

use crate::pump;
use crate::serve::Host;
use crate::sys;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Default)]
struct Entries {
    by_pid: HashMap<u32, Sender<ExitStatus>>,
    pids: HashMap<u32, u32>,
    inputs: HashMap<u32, Sender<Vec<u8>>>,
}

/// All processes and file transfers under way, by the host's id.
pub(crate) struct Table {
    host: Host,
    entries: Mutex<Entries>,
    started: Condvar,
}

impl Table {
    /// An empty table, with its reaper running.
    pub(crate) fn new(host: Host) -> Arc<Table> {
        let table = Arc::new(Table { host, entries: Mutex::default(), started: Condvar::new() });
        let reaper = Arc::clone(&table);
        thread::spawn(move || reaper.reap_for_ever());
        table
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().expect("no thread panics while it holds the table")
    }

    /// Starts a process, or tells the host why it cannot.
    pub(crate) fn exec(self: &Arc<Table>, id: u32, exec: &Exec) {
        if let Err(error) = self.start(id, exec) {
            let message = format!("Could not start {:?}: {error}", exec.argv);
            self.host.send_json(Kind::Done, id, &Done::Failed(message));
        }
    }

    fn start(self: &Arc<Table>, id: u32, exec: &Exec) -> io::Result<()> {
        let [program, arguments @ ..] = exec.argv.as_slice() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "Empty argument list"));
        };
        let mut command = Command::new(program);
        command.args(arguments).env("PATH", PATH).envs(exec.env.iter().cloned()).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(root) = &exec.root {
            sys::change_root(&mut command, root)?;
        }
        let (exited_tx, exited_rx) = io::pipe()?;
        let exited_for_stderr = exited_tx.try_clone()?;
        let (status_tx, status_rx) = mpsc::channel();
        let (input_tx, input_rx) = mpsc::channel();
        let child = {
            let mut entries = self.lock();
            let child = command.spawn()?;
            entries.by_pid.insert(child.id(), status_tx);
            entries.pids.insert(id, child.id());
            entries.inputs.insert(id, input_tx);
            child
        };
        self.started.notify_all();
        self.host.send(Kind::Started, id, child.id().to_le_bytes().to_vec());
        let table = Arc::clone(self);
        thread::spawn(move || {
            table.supervise(id, child, [exited_tx, exited_for_stderr], exited_rx, status_rx, input_rx)
        });
        Ok(())
    }

    fn supervise(
        &self,
        id: u32,
        mut child: Child,
        [exited_out, exited_err]: [io::PipeReader; 2],
        exited: io::PipeWriter,
        status: Receiver<ExitStatus>,
        pieces: Receiver<Vec<u8>>,
    ) {
        let stdin = child.stdin.take().expect("stdin is a pipe");
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let stderr = child.stderr.take().expect("stderr is a pipe");
        // A process that ends before it has read its input is no error.
        thread::spawn(move || pump::input(stdin, &pieces));
        let (drained_out, drained) = mpsc::channel();
        let drained_err = drained_out.clone();
        let host = self.host.clone();
        thread::spawn(move || pump::output(&host, id, Kind::Stdout, stdout, exited_out, drained_out));
        let host = self.host.clone();
        thread::spawn(move || pump::output(&host, id, Kind::Stderr, stderr, exited_err, drained_err));

        let status = status.recv();
        drop(exited);
        // Ends with an error once both pumps have dropped their sender.
        let _ = drained.recv();
        let done = match status.map(|status| (status.code(), status.signal())) {
            Ok((Some(code), _)) => Done::Exited(code),
            Ok((None, Some(signal))) => Done::Signaled(signal),
            other => Done::Failed(format!("Lost the process: {other:?}")),
        };
        self.lock().inputs.remove(&id);
        self.host.send_json(Kind::Done, id, &done);
    }

    /// Writes a file from the input that follows.
    pub(crate) fn put(self: &Arc<Table>, id: u32, put: Put) {
        let (input_tx, input_rx) = mpsc::channel();
        self.lock().inputs.insert(id, input_tx);
        let table = Arc::clone(self);
        thread::spawn(move || {
            let done = match pump::file(&put, &input_rx) {
                Ok(()) => Done::Exited(0),
                Err(error) => Done::Failed(format!("Could not write {}: {error}", put.path)),
            };
            table.lock().inputs.remove(&id);
            table.host.send_json(Kind::Done, id, &done);
        });
    }

    /// Hands input to a process or file; input for what has ended is dropped.
    pub(crate) fn input(&self, id: u32, piece: Vec<u8>) {
        let mut entries = self.lock();
        let last = piece.is_empty();
        if let Some(sender) = entries.inputs.get(&id) {
            let _ = sender.send(piece);
        }
        if last {
            entries.inputs.remove(&id);
        }
    }

    /// Signals the process group of a running process; one that has ended is left alone.
    pub(crate) fn kill(&self, id: u32, signal: i32) {
        let entries = self.lock();
        if let Some(pid) = entries.pids.get(&id)
            && let Err(error) = sys::kill_group(*pid, signal)
        {
            eprintln!("flownic-agent: could not send signal {signal} to {pid}: {error}");
        }
    }

    fn reap_for_ever(&self) {
        loop {
            match sys::peek_ended_child() {
                Ok(pid) => {
                    let mut entries = self.lock();
                    let Some(status) = sys::reap(pid) else { continue };
                    entries.pids.retain(|_, running| *running != pid);
                    // Others are orphans that were handed to us as the first process.
                    if let Some(sender) = entries.by_pid.remove(&pid) {
                        let _ = sender.send(status);
                    }
                }
                Err(_) => {
                    let entries = self.lock();
                    let _unused = self.started.wait_while(entries, |entries| entries.by_pid.is_empty());
                }
            }
        }
    }
}
