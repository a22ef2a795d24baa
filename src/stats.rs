//! Counters: every name is in one of the tables here, and nowhere else.
//!
//! A counter has one writer at a time (who holds the queue's lock) and any number of readers, so adding is a plain
//! load and store. Sums are folded once per batch. `docs/counters.md` explains each counter to users.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::latency::LatencyStats;

/// A counter with one writer.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; the caller is the only writer.
    #[inline]
    pub fn add(&self, n: u64) {
        if n != 0 {
            self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        }
    }

    /// Adds where several may write at once; for what happens rarely.
    #[inline]
    pub fn add_shared(&self, n: u64) {
        if n != 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Back to zero.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[doc = $help:literal])+ $field:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Default, Debug)]
        #[repr(align(128))]
        pub struct $name { $($(#[doc = $help])+ pub $field: Counter,)+ }

        impl $name {
            /// The counters' names, in the order of [`values`](Self::values).
            pub const NAMES: &'static [&'static str] = &[$(stringify!($field)),+];
            /// One line on each, in the same order.
            pub const HELP: &'static [&'static str] = &[$(concat!($($help),+)),+];

            /// All values.
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$field.get()),+]
            }

            /// All back to zero.
            pub fn reset(&self) {
                $(self.$field.reset();)+
            }
        }
    };
}

counters! {
    /// Of one receive queue.
    RxCounters {
        /// Frames put into the guest's buffers.
        packets,
        /// Bytes of those frames, without the virtio-net header.
        bytes,
        /// Frames steered here by a flow-filter rule.
        by_filter,
        /// Frames steered here because the guest sends that flow on the paired transmit queue.
        by_learned,
        /// Frames steered here by the RSS hash.
        by_rss,
        /// Frames here because nothing else decided.
        by_default,
        /// Interrupts sent to the guest.
        signals,
        /// Interrupts not sent because the guest asked for none.
        signals_suppressed,
        /// Bursts whose interrupt was held back by moderation, to be sent later, or not at all if the guest was faster.
        signals_held,
        /// Of the interrupts sent, those that moderation held until their time was up.
        signals_by_time,
        /// Of the interrupts sent, those that moderation held until there were enough packets, or the ring was getting full.
        signals_by_count,
        /// Frames whose checksum was completed for a guest that does not take partial ones.
        checksummed,
        /// Large frames that were cut up for a guest that does not take them.
        segmented,
        /// Dropped: the guest had no receive buffer posted.
        drop_no_buffer,
        /// Dropped: the next buffer was too small, and buffers can't be merged.
        drop_buffer_too_small,
        /// Dropped: the queue was stopped after the frame had been steered to it.
        drop_queue_stopped,
        /// Dropped: the sender's checksum or segmentation request made no sense.
        drop_bad_offload,
        /// Replies to commands put into the guest's buffers; they come from no wire and are not in `packets`.
        in_band_replies,
        /// Receive buffers that were none (read-only, unmapped, looped); returned to the guest.
        bad_buffers,
        /// Times that the ring was found broken and stopped.
        ring_faults,
    }
}

counters! {
    /// Of one transmit queue.
    TxCounters {
        /// Frames taken from the guest.
        packets,
        /// Bytes of those frames, without the virtio-net header.
        bytes,
        /// Times that the guest kicked.
        kicks,
        /// Of these, those that announced nothing: what they were for had been taken already.
        kicks_spurious,
        /// Looks at the ring that found something.
        polls_useful,
        /// Looks at the ring that found nothing.
        polls_empty,
        /// Interrupts sent to the guest.
        signals,
        /// Interrupts not sent because the guest asked for none.
        signals_suppressed,
        /// Bursts whose interrupt was held back by moderation, to be sent later, or not at all if the guest was faster.
        signals_held,
        /// Of the interrupts sent, those that moderation held until their time was up.
        signals_by_time,
        /// Of the interrupts sent, those that moderation held until there were enough packets, or the ring was getting full.
        signals_by_count,
        /// Dropped: the chain carried no frame (too short, too long, writable, unmapped, looped).
        drop_malformed,
        /// Dropped: the link is down.
        drop_link_down,
        /// Dropped: the port did not take the frame.
        drop_port,
        /// Commands to the NIC itself, by either road; they are not in `packets`.
        in_band_commands,
        /// Of these, refused: unknown version or kind, or the host does not allow the road.
        in_band_refused,
        /// Of these, malformed: a length that can't be, or a reply.
        in_band_malformed,
        /// Of these, carried out, but the guest had no receive buffer for the reply.
        in_band_replies_lost,
        /// Times that the ring was found broken and stopped.
        ring_faults,
    }
}

counters! {
    /// Of one NIC, for what happens before a queue is known.
    NicCounters {
        /// Frames that came from the port.
        port_rx_packets,
        /// Frames given to the port.
        port_tx_packets,
        /// Dropped: the link is down.
        drop_link_down,
        /// Dropped: no receive queue is enabled (no driver is running).
        drop_no_queue,
        /// Dropped: a flow-filter rule says so.
        drop_by_rule,
        /// Dropped: not addressed to this NIC, and it is not promiscuous.
        drop_rx_mode,
        /// Dropped: the VLAN is filtered out.
        drop_vlan,
        /// Dropped: shorter than an Ethernet header.
        drop_runt,
        /// Front ends that connected.
        connections,
        /// Drivers that started anew; what the one before had set up was forgotten.
        driver_starts,
    }
}

/// The counters of a NIC, of which each worker has its own: whichever worker brings or takes a frame counts it there.
#[derive(Debug)]
pub struct DeviceCounters {
    by_worker: Box<[NicCounters]>,
    /// The sums when they were last reset. A worker must not find its counter changed under it.
    at_reset: Mutex<Vec<u64>>,
}

impl DeviceCounters {
    /// Zeros, for so many workers.
    pub fn new(workers: usize) -> Self {
        DeviceCounters {
            by_worker: (0..workers).map(|_| NicCounters::default()).collect(),
            at_reset: Mutex::new(vec![0; NicCounters::NAMES.len()]),
        }
    }

    /// Those of a worker. Who is none takes those of the first, and [`Counter::add_shared`].
    #[inline]
    pub fn of(&self, worker: usize) -> &NicCounters {
        &self.by_worker[worker]
    }

    fn sums(&self) -> Vec<u64> {
        let mut sums = vec![0u64; NicCounters::NAMES.len()];
        for counters in &self.by_worker {
            sums.iter_mut().zip(counters.values()).for_each(|(sum, n)| *sum = sum.wrapping_add(n));
        }
        sums
    }

    /// All values.
    pub fn values(&self) -> Vec<u64> {
        let before = self.at_reset.lock().expect("nobody panics with it");
        self.sums().iter().zip(&*before).map(|(now, before)| now.wrapping_sub(*before)).collect()
    }

    /// All back to zero.
    pub fn reset(&self) {
        *self.at_reset.lock().expect("nobody panics with it") = self.sums();
    }
}

/// Values with their names, as the control protocol shows them.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(transparent)]
pub struct Named(serde_json::Map<String, serde_json::Value>);

impl Named {
    /// Pairs names with values.
    pub fn new(names: &[&str], values: &[u64]) -> Self {
        Named(names.iter().zip(values).map(|(n, v)| (n.to_string(), (*v).into())).collect())
    }

    /// Names and values in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_u64().unwrap_or_default()))
    }

    /// The value of a name, 0 if there is none.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).and_then(serde_json::Value::as_u64).unwrap_or_default()
    }
}

/// A snapshot of one NIC.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct NicStats {
    /// The NIC's name.
    pub nic: String,
    /// [`NicCounters`].
    pub device: Named,
    /// [`RxCounters`] by queue.
    pub rx: Vec<Named>,
    /// [`TxCounters`] by queue.
    pub tx: Vec<Named>,
    /// How long things took, by receive queue, if that is kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<LatencyStats>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_values_and_help_stay_in_step() {
        let c = RxCounters::default();
        c.packets.add(3);
        c.ring_faults.add_shared(2);
        let v = c.values();
        assert_eq!((v.len(), RxCounters::NAMES.len(), RxCounters::HELP.len()), (v.len(), v.len(), v.len()));
        assert_eq!((RxCounters::NAMES[0], v[0]), ("packets", 3));
        assert_eq!((*RxCounters::NAMES.last().unwrap(), *v.last().unwrap()), ("ring_faults", 2));
        c.reset();
        assert!(c.values().iter().all(|v| *v == 0));
    }

    #[test]
    fn counters_of_a_device_are_those_of_all_workers_since_the_last_reset() {
        let c = DeviceCounters::new(3);
        let packets = || c.values()[0];
        assert_eq!(NicCounters::NAMES[0], "port_rx_packets");
        (0..3).for_each(|worker| c.of(worker).port_rx_packets.add(worker as u64 + 1));
        assert_eq!(packets(), 6);
        // A worker that counts across the reset goes on where it was.
        c.reset();
        assert!(c.values().iter().all(|v| *v == 0));
        c.of(2).port_rx_packets.add(4);
        assert_eq!((packets(), c.of(2).port_rx_packets.get()), (4, 7));
    }

    #[test]
    fn a_named_snapshot_keeps_its_order() {
        let json =
            serde_json::to_value(Named::new(TxCounters::NAMES, &TxCounters::default().values())).unwrap();
        assert!(json.as_object().unwrap().keys().eq(TxCounters::NAMES));
        assert_eq!(json["kicks"], 0);
    }
}
