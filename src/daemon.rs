//! Builds NICs, ports, workers and sockets from a configuration, and takes them down again in order.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use thiserror::Error;

use crate::config::{Config, NicConfig, PortConfig};
use crate::dataplane::worker::{Source, Worker, WorkerHandle};
use crate::nic::Nic;
use crate::port::capture::{Capture, CaptureFile};
use crate::port::link::{MAX_MEMBERS, Switch};
use crate::port::sys;
use crate::port::tap::{Tap, TapConfig, TapError, TapQueue};
use crate::port::{Generator, LinkPort, PortQueue, Reflector, TapPort};
use crate::steer::Tick;
use crate::vhost::{EndpointError, Session, Socket};

/// Why it can't start.
#[derive(Debug, Error)]
pub enum StartError {
    /// No socket.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// No TAP device.
    #[error(transparent)]
    Tap(#[from] TapError),
    /// The other end of a link is missing.
    #[error("NIC {nic} is linked to {peer}, which does not exist; there are: {known}")]
    NoPeer {
        /// Who.
        nic: String,
        /// To whom.
        peer: String,
        /// All names.
        known: String,
    },
    /// Too many on one switch.
    #[error("{0} NICs are linked together; a switch takes {MAX_MEMBERS}")]
    TooManyMembers(usize),
    /// No file.
    #[error("Capture file {path} can't be created: {source}")]
    Capture {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No thread, no descriptor, or a CPU that is not to be had.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> StartError {
    let what = what.into();
    |source| StartError::System { what, source }
}

/// A running flownic.
pub struct Daemon {
    nics: Vec<Arc<Nic>>,
    // Dropped in this order: no new front end, then no worker.
    sessions: Vec<Session>,
    workers: Vec<(Arc<WorkerHandle>, JoinHandle<()>)>,
    captures: Vec<Arc<CaptureFile>>,
    /// Origin of the workers' coarse time.
    start: Instant,
    /// Hung up as soon as no session holds the other end.
    ended: UnixStream,
}

impl Daemon {
    /// Starts everything.
    ///
    /// # Errors
    /// See [`StartError`]; what was started is stopped again.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        // Sockets come first: a second process on the same socket must fail before it touches a TAP device.
        let sockets = config.nics.iter().map(|n| Socket::open(&n.endpoint)).collect::<Result<Vec<_>, _>>()?;
        let switches = switches(&config.nics)?;
        let handles = (0..config.cpus.len().max(1))
            .map(|i| Ok(Arc::new(WorkerHandle::new(i).map_err(system("No descriptor for a worker"))?)))
            .collect::<Result<Vec<_>, StartError>>()?;
        let (ended, alive) = UnixStream::pair().map_err(system("No descriptor for the NICs"))?;
        let alive = Arc::new(alive);
        let start = Instant::now();
        let mut daemon =
            Daemon { nics: vec![], sessions: vec![], workers: vec![], captures: vec![], start, ended };
        let mut sources: Vec<Vec<Source>> = handles.iter().map(|_| Vec::new()).collect();
        let mut files = HashMap::new();
        let mut next = 0;
        for (i, nic_config) in config.nics.iter().enumerate() {
            let pairs = usize::from(nic_config.queue_pairs);
            let of_pair: Vec<_> =
                (0..pairs).map(|p| Arc::clone(&handles[(next + p) % handles.len()])).collect();
            next += pairs;
            let capture = daemon.capture(nic_config, &mut files)?;
            let nic = Arc::new(Nic::new(i as u16 + 1, nic_config.clone(), of_pair, handles.len(), capture));
            let ports = ports(&nic, switches[i].as_ref())?;
            for (pair, port) in ports.into_iter().enumerate() {
                sources[nic.workers[pair].id()].push(Source::new(Arc::clone(&nic), pair, port));
            }
            daemon.nics.push(nic);
        }
        connect(&switches, &daemon.nics);
        daemon.nics.iter().for_each(|n| n.limits.set_workers(&handles));
        for (handle, sources) in handles.iter().zip(sources) {
            daemon.start_worker(handle, sources, config, start)?;
        }
        for (nic, socket) in daemon.nics.iter().zip(sockets) {
            let session = Session::start(Arc::clone(nic), socket, Arc::clone(&alive))
                .map_err(system("No thread for a NIC"))?;
            daemon.sessions.push(session);
        }
        Ok(daemon)
    }

    fn capture(
        &mut self,
        nic: &NicConfig,
        files: &mut HashMap<PathBuf, Arc<CaptureFile>>,
    ) -> Result<Option<Capture>, StartError> {
        let Some(path) = &nic.capture else { return Ok(None) };
        if !files.contains_key(path) {
            let file = CaptureFile::create(path)
                .map_err(|source| StartError::Capture { path: path.clone(), source })?;
            self.captures.push(Arc::clone(&file));
            files.insert(path.clone(), file);
        }
        Ok(Some(Capture::new(Arc::clone(&files[path]), &nic.name, nic.queue_pairs)))
    }

    fn start_worker(
        &mut self,
        handle: &Arc<WorkerHandle>,
        sources: Vec<Source>,
        config: &Config,
        start: Instant,
    ) -> Result<(), StartError> {
        let cpu = config.cpus.get(handle.id()).copied();
        let mut worker = Worker::new(Arc::clone(handle), sources, config.poll, start)
            .map_err(system("No descriptor for a worker"))?;
        worker.add_nics(&self.nics);
        let (pinned, is_pinned) = std::sync::mpsc::channel();
        let thread = thread::Builder::new()
            .name(format!("worker-{}", handle.id()))
            .spawn(move || {
                let result = cpu.map_or(Ok(()), sys::pin_current_thread);
                let go_on = result.is_ok();
                let _ = pinned.send(result);
                if go_on {
                    worker.run();
                }
            })
            .map_err(system("No thread for a worker"))?;
        self.workers.push((Arc::clone(handle), thread));
        match is_pinned.recv() {
            Ok(Err(e)) => Err(system(format!("Worker {} can't run on its CPU", handle.id()))(e)),
            _ => Ok(()),
        }
    }

    /// The NICs, as configured.
    pub fn nics(&self) -> &[Arc<Nic>] {
        &self.nics
    }

    /// The NIC of that name.
    pub fn nic(&self, name: &str) -> Option<&Arc<Nic>> {
        self.nics.iter().find(|n| n.name() == name)
    }

    /// The time on the workers' clock.
    pub fn now(&self) -> Tick {
        Tick::from_secs(self.start.elapsed().as_secs())
    }

    /// Whether any NIC may still get a front end.
    pub fn is_serving(&self) -> bool {
        self.sessions.iter().any(Session::is_alive)
    }

    /// Readable (hung up) once no NIC may get a front end any more.
    pub fn ended_fd(&self) -> RawFd {
        self.ended.as_raw_fd()
    }

    /// Writes out what captures have in memory.
    pub fn flush_captures(&self) {
        self.captures.iter().for_each(|f| f.flush());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.sessions.clear();
        self.workers.iter().for_each(|(handle, _)| handle.stop());
        for (_, thread) in self.workers.drain(..) {
            let _ = thread.join();
        }
        self.flush_captures();
    }
}

/// The ends of a NIC's port, one for each queue pair.
fn ports(nic: &Arc<Nic>, switch: Option<&Place>) -> Result<Vec<PortQueue>, StartError> {
    let pairs = usize::from(nic.config.queue_pairs);
    let each = |f: &dyn Fn(usize) -> PortQueue| Ok((0..pairs).map(f).collect());
    if let Some((switch, member)) = switch {
        // One NIC's link state is not that of a device which others use too: its carrier stays.
        let uplink = match &nic.config.port {
            PortConfig::Tap(name) => tap(nic, name)?,
            _ => Vec::new(),
        };
        if !uplink.is_empty() {
            switch.set_uplink(uplink.clone());
        }
        return each(&|pair| {
            let tap = uplink.get(pair).cloned().map(TapPort::new);
            PortQueue::Link(LinkPort::new(Arc::clone(switch), *member, pair, tap))
        });
    }
    match &nic.config.port {
        PortConfig::Tap(name) => {
            let queues = tap(nic, name)?;
            nic.set_tap(Arc::clone(&queues[0]));
            Ok(queues.into_iter().map(|q| PortQueue::Tap(TapPort::new(q))).collect())
        }
        PortConfig::Loopback => each(&|_| PortQueue::Reflect(Reflector { swap_macs: false })),
        PortConfig::Echo => each(&|_| PortQueue::Reflect(Reflector { swap_macs: true })),
        PortConfig::Gen(config) => each(&|q| PortQueue::Generator(Generator::new(nic, config, q))),
        PortConfig::Null | PortConfig::Link(_) => each(&|_| PortQueue::Null),
    }
}

/// The queues of a NIC's TAP device, one for each queue pair.
fn tap(nic: &Nic, name: &str) -> Result<Vec<Arc<TapQueue>>, StartError> {
    let config = TapConfig {
        queues: nic.config.queue_pairs.into(),
        mtu: Some(nic.config.mtu.into()),
        ..TapConfig::new(name)
    };
    Ok(Tap::open(&config)?.into_iter().map(Arc::new).collect())
}

/// The switch that a NIC is on, and its place there.
type Place = (Arc<Switch>, usize);

/// For each NIC the switch it is on, and its place there; `None` for a NIC that is not linked.
fn switches(nics: &[NicConfig]) -> Result<Vec<Option<Place>>, StartError> {
    // Links are edges; each connected set of NICs is a switch.
    let mut set: Vec<usize> = (0..nics.len()).collect();
    let mut linked = vec![false; nics.len()];
    for (i, nic) in nics.iter().enumerate() {
        let PortConfig::Link(peer) = &nic.port else { continue };
        let Some(p) = nics.iter().position(|n| n.name == *peer) else {
            let known = nics.iter().map(|n| n.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(StartError::NoPeer { nic: nic.name.clone(), peer: peer.clone(), known });
        };
        (linked[i], linked[p]) = (true, true);
        let (keep, replace) = (set[p], set[i]);
        set.iter_mut().filter(|s| **s == replace).for_each(|s| *s = keep);
    }
    let mut made: HashMap<usize, Place> = HashMap::new();
    (0..nics.len())
        .map(|i| {
            if !linked[i] {
                return Ok(None);
            }
            let (switch, members) = made.entry(set[i]).or_default();
            *members += 1;
            if *members > MAX_MEMBERS {
                return Err(StartError::TooManyMembers(*members));
            }
            Ok(Some((Arc::clone(switch), *members - 1)))
        })
        .collect()
}

/// Tells each switch who its members are, in the order of their places.
fn connect(switches: &[Option<Place>], nics: &[Arc<Nic>]) {
    for (switch, _) in switches.iter().flatten() {
        let on_it = |s: &Option<Place>| s.as_ref().is_some_and(|(s, _)| Arc::ptr_eq(s, switch));
        let members = switches.iter().zip(nics).filter(|(s, _)| on_it(s)).map(|(_, n)| Arc::downgrade(n));
        switch.connect(members.collect());
    }
}
