//! The vring type that the `vhost-user-backend` crate fills in. It keeps the crate's own vring, because the trait wants
//! that, and *captures* what passes through: when a ring has all it needs, a queue of ours is started with it, and
//! when something is taken away, the queue is stopped.
//!
//! States of a vring: *stopped* (no queue in the NIC's slot) and *running* (one is). It runs exactly while it is
//! ready (between `SET_VRING_KICK` and `GET_VRING_BASE`), enabled, and has a kick, a size and addresses. Every change calls
//! `sync()`, the only place that starts and stops. A ring that its guest broke stays stopped until the front end
//! stops and starts it again.

mod told;

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use log::{debug, warn};
use vhost_user_backend::{VringMutex, VringT};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use super::dirty::DirtyLog;
use super::ring::{Memory, Ring, RingFault, RingSetup, RxRing, TxRing};
use crate::config::InBand;
use crate::nic::{Nic, Notifier, RxQueue, Slot, TxQueue};
use crate::port::sys::adopt_eventfd;
use crate::virtio::{
    F_EVENT_IDX, F_IN_ORDER, F_INDIRECT_DESC, F_LOG_ALL, F_MRG_RXBUF, F_RING_PACKED, F_VERSION_1, NetHeader,
};

/// Guest memory as the crate holds it.
pub type GuestMemory = GuestMemoryAtomic<GuestMemoryMmap<DirtyLog>>;

/// What all vrings of one connection share.
pub struct Connection {
    /// The NIC that is connected.
    pub nic: Arc<Nic>,
    memory: Mutex<Arc<Memory>>,
    vrings: Mutex<Vec<NetVring>>,
}

impl Connection {
    /// A connection that knows no memory yet.
    pub fn new(nic: Arc<Nic>) -> Arc<Self> {
        Arc::new(Connection {
            nic,
            memory: Mutex::new(Arc::new(Memory::empty())),
            vrings: Mutex::new(Vec::new()),
        })
    }

    /// Runs `f`, during which the crate makes its vrings, in order and in this thread: they belong to this connection.
    pub fn collect_vrings<T>(self: &Arc<Self>, f: impl FnOnce() -> T) -> T {
        COLLECTING.set(Some(Arc::clone(self)));
        let result = f();
        COLLECTING.set(None);
        result
    }

    /// Goes over to a new memory table. When it returns, nobody uses the old one.
    pub fn set_memory(&self, memory: Arc<Memory>) {
        *self.memory.lock().unwrap() = Arc::clone(&memory);
        for vring in self.vrings.lock().unwrap().iter() {
            vring.set_memory(&memory);
        }
    }

    /// Feature bits are in force: tells running rings whether to log.
    pub fn set_features(&self, features: u64) {
        let before = self.nic.features.swap(features, Ordering::Relaxed);
        for vring in self.vrings.lock().unwrap().iter() {
            if (before ^ features) & !F_LOG_ALL != 0 {
                // Without protocol features the crate enables rings before it says which features they have.
                vring.replace(|_| ());
            }
            vring.set_logging(features & F_LOG_ALL != 0);
        }
    }

    /// Stops all rings. The connection is gone or the device is being reset.
    pub fn stop_all(&self) {
        for vring in self.vrings.lock().unwrap().iter() {
            // As after GET_VRING_BASE: the crate's vring must know it, too, or it is never made ready again.
            vring.set_queue_ready(false);
            vring.set_kick(None);
            vring.set_call(None);
        }
    }

    /// Breaks the cycle between the connection and its vrings.
    pub fn close(&self) {
        self.stop_all();
        self.nic.features.store(0, Ordering::Relaxed);
        self.vrings.lock().unwrap().clear();
        *self.memory.lock().unwrap() = Arc::new(Memory::empty());
    }
}

thread_local! {
    static COLLECTING: RefCell<Option<Arc<Connection>>> = const { RefCell::new(None) };
}

/// A vring of the network device: even ones receive, odd ones transmit (virtio 1.4, 5.1.2).
#[derive(Clone)]
pub struct NetVring {
    inner: VringMutex<GuestMemory>,
    cell: Arc<Cell>,
}

struct Cell {
    connection: Arc<Connection>,
    index: usize,
    captured: Mutex<Captured>,
}

#[derive(Default)]
struct Captured {
    setup: RingSetup,
    addressed: bool,
    ready: bool,
    enabled: bool,
    running: bool,
    kick: Option<File>,
    call: Option<File>,
    err: Option<File>,
}

impl Captured {
    fn should_run(&self) -> bool {
        self.ready && self.enabled && self.addressed && self.setup.size != 0 && self.kick.is_some()
    }
}

impl NetVring {
    fn captured(&self) -> MutexGuard<'_, Captured> {
        self.cell.captured.lock().unwrap()
    }

    fn nic(&self) -> &Nic {
        &self.cell.connection.nic
    }

    fn pair(&self) -> usize {
        self.cell.index / 2
    }

    fn receives(&self) -> bool {
        self.cell.index.is_multiple_of(2)
    }

    fn describe(&self) -> String {
        let direction = if self.receives() { "receive" } else { "transmit" };
        format!("{}: {direction} queue {}", self.nic().name(), self.pair())
    }

    /// An eventfd of the front end for our own use; none if it is something else, on which a worker might wait.
    fn adopt(&self, file: Option<&File>) -> Option<File> {
        let file = file?;
        match adopt_eventfd(file.as_fd()).and_then(|()| file.try_clone()) {
            Ok(file) => Some(file),
            Err(e) => {
                warn!("{}: a descriptor for kicks or signals can't be used: {e}", self.describe());
                None
            }
        }
    }

    /// Starts or stops the queue, as what was captured demands.
    fn sync(&self, c: &mut Captured) {
        match (c.should_run(), c.running) {
            (true, false) => match self.start(c) {
                Ok(()) => {
                    c.running = true;
                    debug!("{} runs, {} entries from {:#x}", self.describe(), c.setup.size, c.setup.base);
                }
                Err(e) => warn!("{} can't start: {e}", self.describe()),
            },
            (false, true) => {
                if let Some(base) = self.stop() {
                    c.setup.base = base;
                }
                c.running = false;
                debug!("{} stopped at {:#x}", self.describe(), c.setup.base);
            }
            _ => {}
        }
    }

    fn start(&self, c: &Captured) -> Result<(), StartError> {
        let nic = self.nic();
        let features = nic.features.load(Ordering::Relaxed);
        let has = |bit| features & bit != 0;
        let is_new = c.setup.base == RingSetup::first_base(has(F_RING_PACKED));
        if is_new {
            // Its driver has set it up anew; else it goes on where it was.
            nic.restart_moderation(self.cell.index);
        }
        let setup = RingSetup {
            packed: has(F_RING_PACKED),
            event_idx: has(F_EVENT_IDX),
            in_order: has(F_IN_ORDER),
            indirect: has(F_INDIRECT_DESC),
            mergeable: has(F_MRG_RXBUF),
            logging: has(F_LOG_ALL),
            in_band: nic.config.in_band != InBand::Off,
            // 5.1.6.1: without VERSION_1 the header has no num_buffers, unless buffers can be merged.
            header_len: if has(F_VERSION_1 | F_MRG_RXBUF) { NetHeader::SIZE } else { NetHeader::SIZE - 2 },
            ..c.setup
        };
        let notifier =
            |f: &Option<File>| f.as_ref().map(File::try_clone).transpose().map(|f| f.map(Notifier));
        let memory = Arc::clone(&self.cell.connection.memory.lock().unwrap());
        let (call, err) = (notifier(&c.call)?, notifier(&c.err)?);
        let i = self.pair();
        if self.receives() {
            let queue = RxQueue::new(RxRing::start(memory, setup)?, call, err);
            nic.rx[i].change(|slot| *slot = Some(queue));
            nic.update_targets();
        } else {
            let kick = c.kick.as_ref().expect("should_run() saw it").try_clone()?;
            let queue = TxQueue::new(TxRing::start(memory, setup)?, call, err, kick);
            if i == 0 && nic.drivers.starts(setup.base, is_new) {
                // Before the ring may bring the new driver's first command.
                nic.forget_guest();
                nic.counters.of(0).driver_starts.add_shared(1);
            }
            nic.workers[i].watch(&queue.kick)?;
            nic.tx[i].change(|slot| *slot = Some(queue));
        }
        // There may be something in the ring already, and its kick long gone.
        nic.workers[i].wake();
        Ok(())
    }

    /// Takes the queue out of its slot; returns where it was, unless its guest broke it before.
    fn stop(&self) -> Option<u16> {
        let (nic, i) = (self.nic(), self.pair());
        let base = if self.receives() {
            let mut queue = nic.rx[i].change(Option::take);
            nic.update_targets();
            queue.iter_mut().for_each(|q| q.flush_signal(nic, i));
            queue.map(|q| q.ring.base())
        } else {
            let mut queue = nic.tx[i].change(Option::take);
            queue.iter_mut().for_each(|q| q.flush_signal(nic, i));
            let base = queue.as_ref().map(|q| q.ring.base());
            if let Some(queue) = queue {
                nic.workers[i].unwatch(&queue.kick);
            }
            if i == 0 {
                nic.drivers.stopped(base);
            }
            base
        };
        if !nic.rx.iter().any(Slot::is_running) && !nic.tx.iter().any(Slot::is_running) {
            nic.drivers.all_stopped();
        }
        base
    }

    /// Changes what a queue keeps for as long as it runs (the worker waits on the kick): one that runs is stopped before and
    /// started again where it was.
    fn replace(&self, change: impl FnOnce(&mut Captured)) {
        let mut c = self.captured();
        if c.running && self.change(|_, _| ()).is_none() {
            // Its guest broke it: it stays stopped.
            return change(&mut c);
        }
        let ready = std::mem::replace(&mut c.ready, false);
        self.sync(&mut c);
        c.ready = ready;
        change(&mut c);
        self.sync(&mut c);
    }

    fn set_memory(&self, memory: &Arc<Memory>) {
        let mut c = self.captured();
        if !c.running {
            // Its addresses may be in the new table where they were not in the old one.
            return self.sync(&mut c);
        }
        let result = self.change(|ring, _| ring.set_memory(Arc::clone(memory)));
        if let Some(Err(fault)) = result {
            warn!("{} stopped, it is not in the new memory table: {fault}", self.describe());
            c.setup.base = self.stop().unwrap_or(c.setup.base);
            c.running = false;
        }
    }

    fn set_logging(&self, on: bool) {
        self.change(|ring, _| ring.set_logging(on));
    }

    /// A running queue gets another interrupt. One signal is sent at once: one for the old eventfd may be lost.
    fn replace_call(&self, call: Option<Notifier>) {
        if let Some(call) = &call {
            call.fire();
        }
        self.change(|_, old| *old = call);
    }

    /// Changes the queue, if there is one: its ring, and its interrupt.
    fn change<T>(&self, f: impl FnOnce(&mut Ring, &mut Option<Notifier>) -> T) -> Option<T> {
        let (nic, i) = (self.nic(), self.pair());
        if self.receives() {
            nic.rx[i].change(|q| q.as_mut().map(|q| f(&mut q.ring, &mut q.call)))
        } else {
            nic.tx[i].change(|q| q.as_mut().map(|q| f(&mut q.ring, &mut q.call)))
        }
    }
}

/// Why a ring can't start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("{0}")]
    Ring(#[from] RingFault),
    #[error("{0}")]
    Io(#[from] io::Error),
}
