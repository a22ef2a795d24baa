//! The control socket: clients, each in a thread of its own, each within limits.
//!
//! What a client can cost is bounded: the line it sends, the time it takes to finish one, the time it lets an answer wait,
//! and how many there are. A client that goes beyond is told (if it still listens) and disconnected; nobody else notices.

use std::collections::HashMap;
use std::io::{self, BufWriter, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use log::{debug, warn};
use serde::Serialize;
use serde_json::Value;

use super::apply::{Reply, Watch, apply};
use super::protocol::{Answer, Body, Code, ControlError, TraceEnd, VERSION, parse_call};
use crate::daemon::Daemon;
use crate::listener::{ListenError, Listener};
use crate::nic::Nic;
use crate::port::sys_socket::poll_readable;
use crate::trace::TraceRecord;
use crate::vhost::stop::Stop;

/// How often a trace looks whether its client is still there.
const LOOK: Duration = Duration::from_millis(100);

/// What a client may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a line, without its end.
    pub line: usize,
    /// Clients at once.
    pub clients: usize,
    /// Time from the first byte of a line to its end.
    pub request: Duration,
    /// Time without a request.
    pub idle: Duration,
    /// Time that an answer may wait for the client to read on.
    pub write: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            line: 65536,
            clients: 32,
            request: Duration::from_secs(10),
            idle: Duration::from_secs(600),
            write: Duration::from_secs(10),
        }
    }
}

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Nobody can listen there.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// No thread or descriptor.
    #[error("The control socket has no thread: {0}")]
    System(#[from] io::Error),
}

/// The control socket of a daemon, until it is dropped.
pub struct Server {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `path`, for the user of this process only.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start(daemon: Arc<Daemon>, path: &Path, limits: Limits) -> Result<Self, ServerError> {
        let listener = Listener::bind(path, Some(0o600))?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(Stop::new()?);
        let shared = Shared { daemon, limits, stop: Arc::clone(&stop), clients: Mutex::default() };
        let thread = thread::Builder::new().name("control".into()).spawn(move || shared.accept(&listener))?;
        Ok(Server { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What all clients share.
struct Shared {
    daemon: Arc<Daemon>,
    limits: Limits,
    stop: Arc<Stop>,
    clients: Mutex<HashMap<u64, Arc<UnixStream>>>,
}

impl Shared {
    fn accept(&self, listener: &Listener) {
        thread::scope(|scope| {
            for number in 0.. {
                if self.stop.wait_readable(listener.as_raw_fd()) {
                    break;
                }
                let stream = match listener.accept() {
                    Ok((stream, _)) => Arc::new(stream),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(e) => {
                        warn!("A control client can't be accepted: {e}");
                        if self.stop.wait(LOOK) {
                            break;
                        }
                        continue;
                    }
                };
                if !self.admit(number, &stream) {
                    continue;
                }
                let client = thread::Builder::new().name(format!("control-{number}"));
                let spawned = client.spawn_scoped(scope, move || {
                    if let Err(e) = Client::new(self, &stream).and_then(|mut c| c.serve()) {
                        debug!("Control client {number}: {e}");
                    }
                    // The descriptor must not stay open for a moment longer than the client is counted.
                    let _ = stream.shutdown(Shutdown::Both);
                    drop(stream);
                    self.clients().remove(&number);
                });
                if let Err(e) = spawned {
                    warn!("A control client gets no thread: {e}");
                    self.clients().remove(&number);
                }
            }
            // Whoever waits for a client does no longer.
            for stream in self.clients().values() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<UnixStream>>> {
        self.clients.lock().expect("nobody panics with the list of clients in hand")
    }

    /// Whether one more client is taken. One that is not gets a word, if that goes without waiting.
    fn admit(&self, number: u64, stream: &Arc<UnixStream>) -> bool {
        let mut clients = self.clients();
        if clients.len() < self.limits.clients {
            clients.insert(number, Arc::clone(stream));
            return true;
        }
        let e = ControlError::new(Code::TooMany, format!("There are {} clients already", clients.len()));
        let _ = stream.set_nonblocking(true);
        let _ = (&**stream).write_all(&line(Value::Null, Body::<Reply>::Error(e)));
        false
    }
}

fn line<T: Serialize>(id: Value, body: Body<T>) -> Vec<u8> {
    let mut line =
        serde_json::to_vec(&Answer { version: VERSION, id, body }).expect("replies are plain data");
    line.push(b'\n');
    line
}

/// One client.
struct Client<'a> {
    shared: &'a Shared,
    stream: &'a UnixStream,
    /// What has been read and not been looked at.
    buffer: Vec<u8>,
}

/// What came in.
enum Incoming {
    Line(Vec<u8>),
    /// The client is gone, or has been idle for too long.
    End,
    Refused(ControlError),
}

impl<'a> Client<'a> {
    fn new(shared: &'a Shared, stream: &'a UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(shared.limits.write))?;
        Ok(Client { shared, stream, buffer: Vec::new() })
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            let call = match self.next()? {
                Incoming::Line(call) => call,
                Incoming::End => return Ok(()),
                Incoming::Refused(e) => return self.send(&line(Value::Null, Body::<Reply>::Error(e))),
            };
            let (id, request) = parse_call(&call);
            match request.and_then(|request| apply(&self.shared.daemon, request)) {
                Ok(Reply::Trace(watch)) => self.stream_trace(&id, &watch)?,
                Ok(reply) => self.send(&line(id, Body::Ok(reply)))?,
                Err(e) => self.send(&line(id, Body::<Reply>::Error(e)))?,
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next line, without its end.
    fn next(&mut self) -> io::Result<Incoming> {
        let limits = self.shared.limits;
        let mut looked_at = 0;
        let mut until = Instant::now() + if self.buffer.is_empty() { limits.idle } else { limits.request };
        loop {
            if let Some(end) = self.buffer[looked_at..].iter().position(|b| *b == b'\n') {
                let rest = self.buffer.split_off(looked_at + end + 1);
                let mut call = std::mem::replace(&mut self.buffer, rest);
                call.pop();
                if call.len() <= limits.line {
                    return Ok(Incoming::Line(call));
                }
            }
            looked_at = self.buffer.len();
            if looked_at > limits.line {
                let message = format!("A line has {} bytes at most", limits.line);
                return Ok(Incoming::Refused(ControlError::new(Code::TooLong, message)));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(if self.buffer.is_empty() {
                    Incoming::End
                } else {
                    Incoming::Refused(self.late())
                });
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut room = [0; 4096];
            match (&mut &*self.stream).read(&mut room) {
                Ok(0) => return Ok(Incoming::End),
                Ok(n) => {
                    if self.buffer.is_empty() {
                        until = Instant::now() + limits.request;
                    }
                    self.buffer.extend_from_slice(&room[..n]);
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn late(&self) -> ControlError {
        let message = format!("The line was not finished within {:?}", self.shared.limits.request);
        ControlError::new(Code::TimedOut, message)
    }

    /// Sends decisions as they come, until there are enough, the client says something or closes, or all ends.
    fn stream_trace(&mut self, id: &Value, watch: &Watch) -> io::Result<()> {
        self.send(&line(id.clone(), Body::Ok(watch)))?;
        let mut sent = TraceEnd::default();
        while sent.records < watch.limit && !self.is_wanted_back() {
            let (records, lost) = watch.nic.trace.take(LOOK);
            let mut out = BufWriter::with_capacity(65536, self.stream);
            for record in with_locations(&watch.nic, records) {
                if sent.records < watch.limit {
                    out.write_all(&line(id.clone(), Body::<Reply>::Trace(record)))?;
                    sent.records += 1;
                }
            }
            if lost > 0 {
                out.write_all(&line(id.clone(), Body::<Reply>::Lost(lost)))?;
                sent.lost += lost;
            }
            out.flush()?;
        }
        self.send(&line(id.clone(), Body::<Reply>::End(sent)))
    }

    /// The client has sent something or closed, or the server is to stop.
    fn is_wanted_back(&self) -> bool {
        let said_something = || {
            !self.buffer.is_empty()
                || poll_readable(&[self.stream.as_raw_fd()], Some(Duration::ZERO)).is_ok_and(|[ready]| ready)
        };
        self.shared.stop.is_requested() || said_something()
    }
}

/// Names rules by their locations, the guest's by their ids, which people know, not by their slots.
fn with_locations(nic: &Nic, mut records: Vec<TraceRecord>) -> Vec<TraceRecord> {
    if records.iter().any(|r| r.rule.is_some()) {
        let steering = nic.steering.read();
        let locations: HashMap<u32, u32> =
            steering.filters().ntuples().map(|(loc, slot, _)| (slot.0, loc)).collect();
        let ids: HashMap<u32, u32> = super::guest::rule_ids(&steering).collect();
        for record in &mut records {
            record.guest_rule = record.rule.and_then(|slot| ids.get(&slot).copied());
            record.rule = record.rule.and_then(|slot| locations.get(&slot).copied());
        }
    }
    records
}
