//! One NIC: everything that lives longer than a connection to a front end.
//!
//! A NIC has `queue_pairs` receive and transmit [`Slot`]s. The front end's session starts rings and puts them into
//! the slots; workers use them; a stop takes them out again.

mod hits;
mod reset;
mod slot;

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use log::{info, warn};

pub use hits::RuleHits;
pub use reset::ResetSwitch;
pub use slot::{Slot, SlotGuard};

use crate::command::moderation::Moderation;
use crate::command::{self, FilterClock, GuestState};
use crate::config::NicConfig;
use crate::dataplane::SignalState;
use crate::dataplane::limits::LiveLimits;
use crate::dataplane::notify::Kicks;
use crate::dataplane::worker::WorkerHandle;
use crate::latency::QueueLatency;
use crate::offload::Accepts;
use crate::port::capture::Capture;
use crate::port::tap::TapQueue;
use crate::stats::{DeviceCounters, Named, NicCounters, NicStats, RxCounters, TxCounters};
use crate::steer::{LearnTable, RecentFlows, SharedSteering, Steering};
use crate::trace::Trace;
use crate::vhost::drivers::DriverWatch;
use crate::vhost::ring::{RingFault, RxRing, TxRing};

/// An eventfd that tells the guest (call) or the front end (err) something.
#[derive(Debug)]
pub struct Notifier(pub File);

impl Notifier {
    /// Fires. A full eventfd has already fired.
    pub fn fire(&self) {
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }
}

/// A started receive queue.
pub struct RxQueue {
    /// The ring.
    pub ring: RxRing,
    /// The guest's interrupt; none if it polls.
    pub call: Option<Notifier>,
    /// Where a broken ring is reported.
    pub err: Option<Notifier>,
    /// The signal that may be held.
    pub signals: SignalState,
}

impl RxQueue {
    /// A queue that has not moved a frame yet.
    pub fn new(ring: RxRing, call: Option<Notifier>, err: Option<Notifier>) -> Self {
        RxQueue { ring, call, err, signals: SignalState::default() }
    }
}

/// A started transmit queue.
pub struct TxQueue {
    /// The ring.
    pub ring: TxRing,
    /// The guest's interrupt; none if it polls.
    pub call: Option<Notifier>,
    /// Where a broken ring is reported.
    pub err: Option<Notifier>,
    /// The guest's kick. It is only waited for, never read (the worker's epoll is edge-triggered).
    pub kick: File,
    /// What the guest was told about kicks.
    pub kicks: Kicks,
    /// The signal that may be held.
    pub signals: SignalState,
    /// Flows that need not be learned again.
    pub recent: RecentFlows,
}

impl TxQueue {
    /// A queue that has not moved a frame yet.
    pub fn new(ring: TxRing, call: Option<Notifier>, err: Option<Notifier>, kick: File) -> Self {
        let (kicks, signals) = (Kicks::default(), SignalState::default());
        TxQueue { ring, call, err, kick, kicks, signals, recent: RecentFlows::default() }
    }
}

/// A NIC.
pub struct Nic {
    id: u16,
    /// How it was configured.
    pub config: NicConfig,
    /// Tables that decide where a received frame goes.
    pub steering: SharedSteering,
    /// When rules of the guest come in force.
    pub filter_clock: FilterClock,
    /// Number of the profile that its filter table was last given; 0 without.
    pub profile: AtomicU32,
    /// Commands of the guest are not answered: a fault that somebody has injected.
    pub commands_hang: AtomicBool,
    /// Flows that the guest sends.
    pub learned: LearnTable,
    /// Receive queues.
    pub rx: Box<[Slot<RxQueue>]>,
    /// Transmit queues.
    pub tx: Box<[Slot<TxQueue>]>,
    /// Counters of the receive queues.
    pub rx_counters: Box<[RxCounters]>,
    /// Counters of the transmit queues.
    pub tx_counters: Box<[TxCounters]>,
    /// Counters of the NIC.
    pub counters: DeviceCounters,
    /// Hits of every rule.
    pub rule_hits: RuleHits,
    /// Feature bits in force; 0 without a driver.
    pub features: AtomicU64,
    /// Whether a front end is connected.
    pub connected: AtomicBool,
    /// What the host set with `link up|down`.
    pub link_up: AtomicBool,
    /// Whether the guest wants the RSS hash in the header of received frames.
    pub hash_in_header: AtomicBool,
    /// Resets it under its guest.
    pub reset: ResetSwitch,
    /// Whether the driver that starts is a new one.
    pub drivers: DriverWatch,
    /// What the guest has set up with commands, beside steering. Locked before steering, never after it.
    guest: Mutex<GuestState>,
    /// How long frames and signals take, by receive queue, if that is kept.
    pub latency: Option<Box<[QueueLatency]>>,
    /// Moderation in force, by virtqueue.
    pub limits: LiveLimits,
    /// Any receive queue runs.
    has_targets: AtomicBool,
    /// The TAP device on its port, for its carrier.
    tap: OnceLock<Arc<TapQueue>>,
    /// Who watches steering decisions.
    pub trace: Trace,
    /// Where frames are recorded.
    pub capture: Option<Capture>,
    /// The worker of each queue pair.
    pub workers: Box<[Arc<WorkerHandle>]>,
}

impl Nic {
    /// Makes a NIC without a driver, number `id` in the process, from 1; queue pair `i` is served by `workers[i]`. Any of the
    /// process's workers, `of_workers` in all, may bring it frames of other NICs.
    pub fn new(
        id: u16,
        config: NicConfig,
        workers: Vec<Arc<WorkerHandle>>,
        of_workers: usize,
        capture: Option<Capture>,
    ) -> Self {
        let pairs = usize::from(config.queue_pairs);
        assert_eq!(workers.len(), pairs);
        let rules = config.steer.filter_capacity as usize;
        Nic {
            id,
            steering: SharedSteering::new(Steering::new(&config.steer)),
            filter_clock: FilterClock::default(),
            profile: AtomicU32::new(config.profile.map_or(0, |p| p.id)),
            commands_hang: AtomicBool::new(false),
            learned: LearnTable::new(config.learn),
            rx: (0..pairs).map(|_| Slot::default()).collect(),
            tx: (0..pairs).map(|_| Slot::default()).collect(),
            rx_counters: (0..pairs).map(|_| RxCounters::default()).collect(),
            tx_counters: (0..pairs).map(|_| TxCounters::default()).collect(),
            counters: DeviceCounters::new(of_workers),
            rule_hits: RuleHits::new(of_workers, rules),
            features: AtomicU64::new(0),
            connected: AtomicBool::new(false),
            link_up: AtomicBool::new(true),
            hash_in_header: AtomicBool::new(false),
            reset: ResetSwitch::default(),
            drivers: DriverWatch::default(),
            guest: Mutex::new(GuestState::new(config.queue_pairs)),
            latency: config.latency.then(|| (0..pairs).map(|_| QueueLatency::default()).collect()),
            limits: LiveLimits::new(config.queue_pairs),
            has_targets: AtomicBool::new(false),
            tap: OnceLock::new(),
            trace: Trace::default(),
            capture,
            workers: workers.into(),
            config,
        }
    }

    /// Its number in the process, from 1.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The NIC's name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// What the guest takes without our help.
    pub fn accepts(&self) -> Accepts {
        Accepts::from_guest_features(self.features.load(Ordering::Relaxed))
    }

    /// Whether frames pass.
    pub fn is_link_up(&self) -> bool {
        self.link_up.load(Ordering::Relaxed)
    }

    /// Tells steering which receive queues run. Call after each change of a receive slot.
    pub fn update_targets(&self) {
        let mut steering = self.steering.write();
        let mask = self.rx.iter().enumerate().fold(0, |m, (i, q)| m | u128::from(q.is_running()) << i);
        steering.set_enabled(mask);
        self.has_targets.store(mask != 0, Ordering::Relaxed);
    }

    /// Whether any receive queue runs.
    pub fn has_targets(&self) -> bool {
        self.has_targets.load(Ordering::Relaxed)
    }

    /// Its port is this TAP device.
    pub fn set_tap(&self, tap: Arc<TapQueue>) {
        let _ = self.tap.set(tap);
    }

    /// A worker found receive queue `i` broken.
    pub fn rx_broken(&self, i: usize, queue: Option<RxQueue>, fault: RingFault) {
        self.rx_counters[i].ring_faults.add(1);
        warn!("{}: receive queue {i} stopped: {fault}", self.name());
        if let Some(err) = queue.and_then(|q| q.err) {
            err.fire();
        }
        self.update_targets();
    }

    /// A worker found transmit queue `i` broken.
    pub fn tx_broken(&self, i: usize, queue: Option<TxQueue>, fault: RingFault) {
        self.tx_counters[i].ring_faults.add(1);
        warn!("{}: transmit queue {i} stopped: {fault}", self.name());
        if let Some(queue) = queue {
            self.workers[i].unwatch(&queue.kick);
            if let Some(err) = &queue.err {
                err.fire();
            }
        }
    }

    /// What the guest has set up with commands, beside steering. The caller must not hold the steering lock.
    pub fn guest_state(&self) -> MutexGuard<'_, GuestState> {
        self.guest.lock().expect("no command panics")
    }

    /// Forgets all that the guest has set up with commands: its driver starts anew, or says so. What the host has set stays,
    /// and so do learned flows. The caller must not hold the steering lock.
    pub fn forget_guest(&self) {
        command::forget(self, &mut self.guest_state());
    }

    /// A virtqueue (2i receives, 2i + 1 transmits) is disabled, or its driver sets it up anew: moderation that was set for it
    /// alone is forgotten (5.1.6.5.10).
    pub fn restart_moderation(&self, vq_index: usize) {
        let mut guest = self.guest_state();
        guest.moderation.restart_queue(vq_index);
        self.enforce_moderation(&guest.moderation);
    }

    /// Puts these values in force. Call after each change, with the guest's state still locked.
    pub fn enforce_moderation(&self, moderation: &Moderation) {
        self.limits.set_all(|vq| moderation.limits(vq, self.config.coalesce));
    }

    /// The link as the host wants it.
    pub fn set_link(&self, up: bool) {
        if self.link_up.swap(up, Ordering::Relaxed) != up {
            info!("{}: link {}", self.name(), if up { "up" } else { "down" });
            if let Some(Err(e)) = self.tap.get().map(|tap| tap.set_carrier(up)) {
                warn!("{}: the TAP device does not follow: {e}", self.name());
            }
        }
    }

    /// All counters.
    pub fn stats(&self) -> NicStats {
        NicStats {
            nic: self.config.name.clone(),
            device: Named::new(NicCounters::NAMES, &self.counters.values()),
            rx: self.rx_counters.iter().map(|c| Named::new(RxCounters::NAMES, &c.values())).collect(),
            tx: self.tx_counters.iter().map(|c| Named::new(TxCounters::NAMES, &c.values())).collect(),
            latency: self.latency.iter().flatten().map(QueueLatency::values).collect(),
        }
    }

    /// All counters back to zero. Takes each queue aside for it, since a counter has one writer.
    pub fn reset_stats(&self) {
        for (i, (slot, c)) in self.rx.iter().zip(&self.rx_counters).enumerate() {
            slot.change(|_| {
                c.reset();
                self.latency.iter().for_each(|l| l[i].reset());
            });
        }
        for (slot, c) in self.tx.iter().zip(&self.tx_counters) {
            slot.change(|_| c.reset());
        }
        self.counters.reset();
        self.rule_hits.reset_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::testing::Bed;
    use crate::steer::RuleSlot;

    #[test]
    fn only_receive_queues_that_run_are_targets() {
        let bed = Bed::new(3, 0);
        let enabled = || bed.nic.steering.read().enabled();
        assert_eq!((enabled(), bed.nic.has_targets()), (0b111, true));
        for (i, left) in [(1, 0b101), (0, 0b100), (2, 0)] {
            bed.nic.rx[i].change(Option::take);
            bed.nic.update_targets();
            assert_eq!((enabled(), bed.nic.has_targets()), (left, left != 0));
        }
    }

    #[test]
    fn resetting_the_counters_resets_all_of_them() {
        let mut bed = Bed::new(2, 0);
        let fresh = bed.nic.stats();
        bed.receive_plain(&[0; 60]);
        bed.nic.tx_counters[1].packets.add(1);
        RuleHits::count(bed.nic.rule_hits.of(0), RuleSlot(3));
        assert_ne!(bed.nic.stats(), fresh);
        bed.nic.reset_stats();
        assert_eq!((bed.nic.stats(), bed.nic.rule_hits.get(RuleSlot(3))), (fresh, 0));
        assert!(bed.nic.rx[0].is_running() && bed.nic.tx[1].is_running());
    }
}
