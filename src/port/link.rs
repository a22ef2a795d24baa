//! `link`: NICs connected to each other. Two are back to back; more, or NICs with a TAP device, share a learning switch.
//!
//! A frame goes from the sender's transmit buffers into the receiver's receive buffers in one copy, made by the sender's
//! worker.
//!
//! The TAP device is the switch's *uplink*. Its queues are read by the workers of the NIC that was configured with it, and written
//! by everybody's.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, Weak};

use super::Port;
use super::addresses::{Addresses, Forward};
use super::tap::TapQueue;
use super::tap_port::{self, TapPort};
use crate::dataplane::{Context, rx, tx};
use crate::nic::Nic;
use crate::vhost::ring::{BatchStore, FrameBatch};

pub use super::addresses::MAX_MEMBERS;

/// What linked NICs share.
#[derive(Default)]
pub struct Switch {
    members: OnceLock<Vec<Weak<Nic>>>,
    uplink: OnceLock<Vec<Arc<TapQueue>>>,
    addresses: Addresses,
}

impl Switch {
    /// Says, once, who is connected. [`LinkPort`]s name members by their place in the list.
    pub fn connect(&self, members: Vec<Weak<Nic>>) {
        debug_assert!(members.len() <= MAX_MEMBERS);
        let _ = self.members.set(members);
    }

    /// Connects, once and before any frame is sent, a TAP device with these queues (one at least).
    pub fn set_uplink(&self, queues: Vec<Arc<TapQueue>>) {
        debug_assert!(!queues.is_empty());
        let _ = self.uplink.set(queues);
    }

    fn members(&self) -> &[Weak<Nic>] {
        self.members.get().map_or(&[], Vec::as_slice)
    }

    fn uplink(&self) -> Option<&[Arc<TapQueue>]> {
        self.uplink.get().map(Vec::as_slice)
    }

    /// Who gets which frames of a batch that comes from member `from`, or from the uplink if that is `None`.
    fn forward(&self, from: Option<usize>, batch: &mut FrameBatch<'_>) -> Forward {
        batch.parse();
        self.addresses.forward(from, self.members().len(), self.uplink().is_some(), batch)
    }
}

/// A queue pair's end of a link.
pub struct LinkPort {
    switch: Arc<Switch>,
    member: usize,
    pair: usize,
    /// The queue of the uplink that is read here.
    tap: Option<TapPort>,
}

impl LinkPort {
    /// The end of queue pair `pair` of member number `member`, which reads a queue of the uplink if it is given one.
    pub fn new(switch: Arc<Switch>, member: usize, pair: usize, tap: Option<TapPort>) -> Self {
        LinkPort { switch, member, pair, tap }
    }
}

impl Port for LinkPort {
    fn receive<'a>(&'a mut self, store: &'a mut BatchStore) -> FrameBatch<'a> {
        match &mut self.tap {
            Some(tap) => tap.receive(store),
            None => FrameBatch::new(store),
        }
    }

    /// What comes in from the uplink may be for any member.
    fn deliver(&mut self, _nic: &Nic, store: &mut BatchStore, cx: &mut Context) -> usize {
        let Some(tap) = &mut self.tap else { return 0 };
        let mut batch = tap.receive(store);
        if batch.is_empty() {
            return 0;
        }
        let to = self.switch.forward(None, &mut batch);
        for (member, frames) in self.switch.members().iter().zip(to.members) {
            if frames != 0
                && let Some(member) = member.upgrade()
            {
                rx::receive(&member, &mut batch, frames, cx);
            }
        }
        batch.len()
    }

    fn send(&mut self, _from: &Nic, batch: &mut FrameBatch<'_>, cx: &mut Context) -> u64 {
        let members = self.switch.members();
        let uplink = self.switch.uplink();
        if let ([a, b], None) = (members, uplink) {
            batch.parse();
            let peer = if self.member == 0 { b } else { a };
            return match peer.upgrade() {
                Some(peer) => {
                    let frames = rx::all(batch);
                    tx::cross(&peer, batch, frames, cx);
                    0
                }
                None => batch.len() as u64,
            };
        }
        let to = self.switch.forward(Some(self.member), batch);
        // Frames that the uplink did not take, and nobody else gets either.
        let mut refused = match uplink {
            Some(queues) => tap_port::write_frames(&queues[self.pair % queues.len()], batch, to.uplink, cx),
            None => 0,
        };
        for (member, frames) in members.iter().zip(to.members) {
            if frames != 0
                && let Some(member) = member.upgrade()
            {
                tx::cross(&member, batch, frames, cx);
                refused &= !frames;
            }
        }
        refused.count_ones().into()
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.tap.as_ref().and_then(Port::readable_fd)
    }
}
