//! Interrupt moderation (5.1.6.5.10, notification coalescing): which values hold for which queue.
//!
//! The last command that set a queue's values wins, whichever it was: one for all queues of a direction replaces what was
//! set for a single one. A queue that is disabled, or that its driver sets up anew, has the values of its direction again. A
//! guest that is forgotten leaves those that the host has set, at first 0: an interrupt for every packet.

use super::control::{DONE, Outcome};
use crate::dataplane::notify::{CoalesceRule, Limits};
use crate::nic::Nic;
use crate::virtio::ctrl::{Coalesce, QueueCoalesce, coalesce};
use crate::virtio::vendor::Adaptive;
use crate::virtio::wire::{Reader, Writer};

/// Values for each direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Directions {
    /// Of receive queues.
    pub rx: Coalesce,
    /// Of transmit queues.
    pub tx: Coalesce,
}

impl Directions {
    /// Those of a virtqueue: even ones receive.
    fn of(&self, vq_index: usize) -> Coalesce {
        if vq_index.is_multiple_of(2) { self.rx } else { self.tx }
    }
}

/// The values of one NIC. See the module's documentation.
#[derive(Debug, Clone)]
pub struct Moderation {
    /// As the host has set them.
    host: Directions,
    /// As they were set last for a direction.
    common: Directions,
    /// By virtqueue.
    queues: Box<[Coalesce]>,
    /// Which of them have no values, but find their own time.
    adaptive: AdaptiveQueues,
}

/// Receive queues that find their own time. Values that are set end it.
#[derive(Debug, Clone)]
struct AdaptiveQueues {
    /// As the host has said of all.
    host: bool,
    /// As it was said last of all.
    common: bool,
    /// By queue.
    queues: Box<[bool]>,
}

impl Moderation {
    /// An interrupt for every packet.
    pub fn new(queue_pairs: u16) -> Self {
        Moderation {
            host: Directions::default(),
            common: Directions::default(),
            queues: vec![Coalesce::default(); 2 * usize::from(queue_pairs)].into(),
            adaptive: AdaptiveQueues {
                host: false,
                common: false,
                queues: vec![false; queue_pairs.into()].into(),
            },
        }
    }

    /// Values of a virtqueue (2i receives, 2i + 1 transmits); that of a queue that there is not sends every interrupt.
    pub fn of_queue(&self, vq_index: usize) -> Coalesce {
        self.queues.get(vq_index).copied().unwrap_or_default()
    }

    /// What the data plane is to do about a virtqueue.
    pub fn limits(&self, vq_index: usize, rule: CoalesceRule) -> Limits {
        if self.is_adaptive(vq_index) {
            return Limits::ADAPTIVE;
        }
        Limits::new(rule, self.of_queue(vq_index), !vq_index.is_multiple_of(2))
    }

    /// Whether the device finds the time of a virtqueue's moderation itself.
    pub fn is_adaptive(&self, vq_index: usize) -> bool {
        vq_index.is_multiple_of(2) && self.adaptive.queues.get(vq_index / 2).copied().unwrap_or_default()
    }

    /// Whether it was said last of all receive queues that they find their own time.
    pub fn all_adaptive(&self) -> bool {
        self.adaptive.common
    }

    /// The host lets all receive queues find their own time, or goes back to the values that were set for them last.
    pub fn set_host_adaptive(&mut self, on: bool) {
        (self.adaptive.host, self.adaptive.common) = (on, on);
        self.adaptive.queues.fill(on);
    }

    /// Values as they were set last for each direction.
    pub fn common(&self) -> Directions {
        self.common
    }

    /// The host sets values for all queues of a direction, or of both.
    pub fn set_host(&mut self, rx: Option<Coalesce>, tx: Option<Coalesce>) {
        if let Some(rx) = rx {
            self.host.rx = rx;
            self.adaptive.host = false;
            self.set_direction(0, rx);
        }
        if let Some(tx) = tx {
            self.host.tx = tx;
            self.set_direction(1, tx);
        }
    }

    /// A virtqueue was disabled or is set up anew.
    pub fn restart_queue(&mut self, vq_index: usize) {
        if let Some(queue) = self.queues.get_mut(vq_index) {
            *queue = self.common.of(vq_index);
            if vq_index.is_multiple_of(2) {
                self.adaptive.queues[vq_index / 2] = self.adaptive.common;
            }
        }
    }

    /// Back to what the host has set.
    pub(super) fn forget_guest(&mut self) {
        self.common = self.host;
        self.adaptive.common = self.adaptive.host;
        (0..self.queues.len()).for_each(|i| self.restart_queue(i));
    }

    fn set_direction(&mut self, first: usize, values: Coalesce) {
        *(if first == 0 { &mut self.common.rx } else { &mut self.common.tx }) = values;
        self.queues.iter_mut().skip(first).step_by(2).for_each(|q| *q = values);
        if first == 0 {
            self.adaptive.common = false;
            self.adaptive.queues.fill(false);
        }
    }

    pub(super) fn execute(&mut self, nic: &Nic, command: u8, data: &[u8]) -> Outcome {
        match command {
            coalesce::RX_SET => self.set_direction(0, Coalesce::from_bytes(data)?),
            coalesce::TX_SET => self.set_direction(1, Coalesce::from_bytes(data)?),
            coalesce::VQ_SET => {
                let wanted = QueueCoalesce::from_bytes(data)?;
                let vq_index = enabled(nic, wanted.vq_index)?;
                self.queues[vq_index] = wanted.coalesce;
                if vq_index.is_multiple_of(2) {
                    self.adaptive.queues[vq_index / 2] = false;
                }
            }
            coalesce::VQ_GET => {
                let mut r = Reader::new(data);
                let (vq_index, reserved) = (r.le16(), r.le16());
                if r.is_short() {
                    return None;
                }
                let values = self.queues[enabled(nic, vq_index)?];
                let mut w = Writer::new();
                return Some(w.le16(vq_index).le16(reserved).bytes(&values.to_bytes()).finish());
            }
            _ => return None,
        }
        nic.enforce_moderation(self);
        DONE
    }

    /// The guest lets one receive queue, or all, find their own time, or go back to the values that were set last.
    pub(super) fn set_adaptive(&mut self, nic: &Nic, data: &[u8]) -> Outcome {
        let Adaptive { vq_index, on } = Adaptive::from_bytes(data)?;
        if vq_index == Adaptive::ALL {
            self.adaptive.common = on;
            self.adaptive.queues.fill(on);
        } else {
            self.adaptive.queues[receives(nic, vq_index)?] = on;
        }
        nic.enforce_moderation(self);
        DONE
    }

    /// Whether a receive queue finds its own time, and which it has come to.
    pub(super) fn get_adaptive(&self, nic: &Nic, data: &[u8]) -> Outcome {
        let pair = receives(nic, u16::from_le_bytes(*data.first_chunk()?))?;
        let on = self.adaptive.queues[pair];
        let usecs = if on { nic.limits.get(2 * pair).usecs } else { 0 };
        Some(Writer::new().u8(on.into()).zeros(3).le32(usecs).finish())
    }
}

/// The place of a virtqueue that runs.
fn enabled(nic: &Nic, vq_index: u16) -> Option<usize> {
    let i = usize::from(vq_index);
    let runs =
        if i.is_multiple_of(2) { nic.rx.get(i / 2)?.is_running() } else { nic.tx.get(i / 2)?.is_running() };
    runs.then_some(i)
}

/// The pair of a receive virtqueue that runs.
fn receives(nic: &Nic, vq_index: u16) -> Option<usize> {
    let vq_index = enabled(nic, vq_index)?;
    vq_index.is_multiple_of(2).then_some(vq_index / 2)
}
