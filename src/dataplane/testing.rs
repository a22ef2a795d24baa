//! A NIC with rings in ordinary memory, for tests.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::notify::CoalesceRule;
use super::worker::WorkerHandle;
use super::{Context, rx};
use crate::config::{InBand, NicConfig, PortConfig};
use crate::latency::QueueLatency;
use crate::nic::{Nic, Notifier, RxQueue, TxQueue};
use crate::port::capture::Capture;
use crate::port::template::Template;
use crate::steer::{LearnConfig, SteerConfig};
use crate::vhost::Endpoint;
use crate::vhost::ring::testing::Guest;
use crate::vhost::ring::{BatchStore, FrameBatch};
use crate::virtio::NetHeader;

/// Frame of flow `n`: UDP over IPv4, 60 bytes.
pub(crate) fn frame(n: u32) -> Vec<u8> {
    Template::new(&"flows=1000,size=60".parse().unwrap()).stamp(n).to_vec()
}

/// An eventfd's place is taken by a stream: what was written can be counted.
pub(crate) struct Signals(UnixStream);

impl Signals {
    fn new() -> (Self, File) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Signals(ours), File::from(OwnedFd::from(theirs)))
    }

    /// How many came since the last call.
    pub(crate) fn count(&self) -> usize {
        self.0.set_nonblocking(true).unwrap();
        let mut bytes = [0; 1024];
        (&self.0).read(&mut bytes).unwrap_or(0) / 8
    }

    /// Waits for one.
    pub(crate) fn wait(&self) {
        self.0.set_nonblocking(false).unwrap();
        (&self.0).read_exact(&mut [0; 8]).unwrap();
    }
}

/// One queue: its guest's side, and what the device signals.
pub(crate) struct Queue {
    pub(crate) guest: Guest,
    pub(crate) call: Signals,
    pub(crate) err: Signals,
    /// The other end of a transmit queue's kick.
    pub(crate) kick: Signals,
}

/// A NIC and its guest.
pub(crate) struct Bed {
    pub(crate) nic: Arc<Nic>,
    pub(crate) worker: Arc<WorkerHandle>,
    pub(crate) rx: Vec<Queue>,
    pub(crate) tx: Vec<Queue>,
    pub(crate) cx: Context,
}

/// How a NIC in tests is configured.
pub(crate) fn config(pairs: u16) -> NicConfig {
    NicConfig {
        name: "n0".into(),
        endpoint: Endpoint::Listen(PathBuf::new()),
        queue_pairs: pairs,
        port: PortConfig::Null,
        features: 0,
        mtu: 1500,
        steer: SteerConfig { queue_pairs: pairs, ..SteerConfig::default() },
        learn: LearnConfig::default(),
        capture: None,
        in_band: InBand::All,
        coalesce: CoalesceRule::Nic,
        latency: false,
        profile: None,
    }
}

impl Bed {
    /// A NIC with that many pairs, all of them running, of 64 entries each, and a guest that takes `features`.
    pub(crate) fn new(pairs: u16, features: u64) -> Self {
        Bed::with(pairs, features, None)
    }

    pub(crate) fn with(pairs: u16, features: u64, capture: Option<Capture>) -> Self {
        let worker = Arc::new(WorkerHandle::new(0).unwrap());
        let workers = vec![Arc::clone(&worker); pairs.into()];
        let nic = Arc::new(Nic::new(1, config(pairs), workers, 1, capture));
        nic.features.store(features, Ordering::Relaxed);
        let mut bed = Bed { nic, worker, rx: Vec::new(), tx: Vec::new(), cx: Context::new(0) };
        for i in 0..usize::from(pairs) {
            let (mut rx, call, err, _) = queue();
            rx.guest.setup.mergeable = true;
            let ring = rx.guest.rx();
            let q = RxQueue::new(ring, Some(Notifier(call)), Some(Notifier(err)));
            bed.nic.rx[i].change(|slot| *slot = Some(q));
            bed.rx.push(rx);
            let (tx, call, err, kick) = queue();
            bed.worker.watch(&kick).unwrap();
            let ring = tx.guest.tx();
            let q = TxQueue::new(ring, Some(Notifier(call)), Some(Notifier(err)), kick);
            bed.nic.tx[i].change(|slot| *slot = Some(q));
            bed.tx.push(tx);
        }
        bed.nic.update_targets();
        bed
    }

    /// Moderation values of 0 are read strictly from now on. Nobody else may have the NIC yet.
    pub(crate) fn make_strict(&mut self) {
        Arc::get_mut(&mut self.nic).expect("the only owner").config.coalesce = CoalesceRule::Strict;
    }

    /// How long frames and signals take is kept from now on. Nobody else may have the NIC yet.
    pub(crate) fn keep_latency(&mut self) {
        let nic = Arc::get_mut(&mut self.nic).expect("the only owner");
        nic.latency = Some(nic.rx.iter().map(|_| QueueLatency::default()).collect());
    }

    /// Posts receive buffers of 2048 bytes on all queues.
    pub(crate) fn post(&mut self, n: usize) {
        for q in &mut self.rx {
            (0..n).for_each(|_| _ = q.guest.post(2048));
        }
    }

    /// These frames come in from the wire.
    pub(crate) fn receive(&mut self, frames: &[(NetHeader, &[u8])]) {
        let mut store = BatchStore::default();
        let mut batch = FrameBatch::new(&mut store);
        for (net, frame) in frames {
            assert!(batch.push_slice(*net, frame));
        }
        let all = rx::all(&batch);
        rx::receive(&self.nic, &mut batch, all, &mut self.cx);
    }

    /// A plain frame comes in.
    pub(crate) fn receive_plain(&mut self, frame: &[u8]) {
        self.receive(&[(NetHeader::default(), frame)]);
    }

    /// Frames that the guest has got on queue `i` since the last call. Buffers must have been posted with
    /// [`post`](Self::post), and frames must fit into one.
    pub(crate) fn received(&mut self, i: usize) -> Vec<Vec<u8>> {
        let guest = &mut self.rx[i].guest;
        let used = guest.used();
        used.iter()
            .map(|(head, len)| {
                let desc = guest.read(guest.setup.desc + 16 * u64::from(*head), 8);
                let at = u64::from_le_bytes(desc.try_into().unwrap());
                guest.read(at + 12, *len as usize - 12)
            })
            .collect()
    }
}

fn queue() -> (Queue, File, File, File) {
    let [(call, c), (err, e), (kick, k)] = [(); 3].map(|()| Signals::new());
    (Queue { guest: Guest::new(64), call, err, kick }, c, e, k)
}

impl Signals {
    /// Writes, as a guest does to its kick.
    pub(crate) fn fire(&self) {
        use std::io::Write;
        (&self.0).write_all(&1u64.to_ne_bytes()).unwrap();
    }
}
