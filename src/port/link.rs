//! `link`: NICs connected to each other. Two are back to back; more share a learning switch.
//!
//! A frame goes from the sender's transmit buffers into the receiver's receive buffers in one copy, made by the sender's
//! worker.
//!
//! The switch learns which member a source address was last seen at. Each member has its share of the table, which it cannot
//! exceed; addresses that found no room are flooded, as a switch does. So a guest that makes up addresses fills its own share, and
//! the others' frames stay theirs. A moved address overwrites its entry; an entry never ages, since members come and go
//! only with the process.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, RwLock, Weak};

use super::Port;
use crate::dataplane::{Context, rx::Frames, tx};
use crate::nic::Nic;
use crate::vhost::ring::{BatchStore, FrameBatch};
use crate::virtio::MacAddr;

/// Addresses that a switch remembers, all members' together.
const ADDRESSES: usize = 16384;
/// NICs on a switch.
pub const MAX_MEMBERS: usize = 32;

/// What linked NICs share.
#[derive(Default)]
pub struct Switch {
    members: OnceLock<Vec<Weak<Nic>>>,
    addresses: RwLock<Addresses>,
}

/// Where addresses were last seen.
#[derive(Default)]
struct Addresses {
    members: HashMap<MacAddr, u8>,
    /// How many each member has.
    counts: [usize; MAX_MEMBERS],
}

impl Addresses {
    /// `address` was seen at `from`, which may have at most `share` of them.
    fn learn(&mut self, address: MacAddr, from: usize, share: usize) {
        if self.counts[from] >= share {
            return;
        }
        let before = self.members.insert(address, from as u8);
        self.counts[from] += 1;
        if let Some(before) = before {
            self.counts[usize::from(before)] -= 1;
        }
    }
}

impl Switch {
    /// Says, once, who is connected. [`LinkPort`]s name members by their place in the list.
    pub fn connect(&self, members: Vec<Weak<Nic>>) {
        debug_assert!(members.len() <= MAX_MEMBERS);
        let _ = self.members.set(members);
    }

    fn members(&self) -> &[Weak<Nic>] {
        self.members.get().map_or(&[], Vec::as_slice)
    }

    /// The frames of the batch that each member gets.
    fn forward(&self, from: usize, batch: &FrameBatch<'_>) -> [Frames; MAX_MEMBERS] {
        let mut to = [0; MAX_MEMBERS];
        let count = self.members().len();
        let mut news = false;
        let addresses = self.addresses.read().expect("no panic with the table in hand");
        for i in 0..batch.len() {
            let h = batch.headers(i);
            news |= !h.src.is_group() && addresses.members.get(&h.src) != Some(&(from as u8));
            match addresses.members.get(&h.dst) {
                Some(&member) if !h.dst.is_group() => to[usize::from(member)] |= 1 << i,
                _ => to[..count].iter_mut().for_each(|frames| *frames |= 1 << i),
            }
        }
        drop(addresses);
        to[from] = 0;
        if news {
            self.learn(from, batch);
        }
        to
    }

    #[cold]
    fn learn(&self, from: usize, batch: &FrameBatch<'_>) {
        let share = ADDRESSES / self.members().len().max(1);
        let mut addresses = self.addresses.write().expect("no panic with the table in hand");
        for i in 0..batch.len() {
            let src = batch.headers(i).src;
            if !src.is_group() {
                addresses.learn(src, from, share);
            }
        }
    }
}

/// A NIC's end of a link.
pub struct LinkPort {
    switch: Arc<Switch>,
    member: usize,
}

impl LinkPort {
    /// The end of member number `member`.
    pub fn new(switch: Arc<Switch>, member: usize) -> Self {
        LinkPort { switch, member }
    }
}

impl Port for LinkPort {
    fn receive<'a>(&'a mut self, store: &'a mut BatchStore) -> FrameBatch<'a> {
        FrameBatch::new(store)
    }

    fn send(&mut self, _from: &Nic, batch: &mut FrameBatch<'_>, cx: &mut Context) -> u64 {
        let members = self.switch.members();
        batch.parse();
        if let [a, b] = members {
            let peer = if self.member == 0 { b } else { a };
            return match peer.upgrade() {
                Some(peer) => {
                    let frames = crate::dataplane::rx::all(batch);
                    tx::cross(&peer, batch, frames, cx);
                    0
                }
                None => batch.len() as u64,
            };
        }
        let to = self.switch.forward(self.member, batch);
        for (member, frames) in members.iter().zip(to) {
            if frames != 0
                && let Some(member) = member.upgrade()
            {
                tx::cross(&member, batch, frames, cx);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(n: u16) -> MacAddr {
        let [a, b] = n.to_be_bytes();
        MacAddr([2, 0, 0, 0, a, b])
    }

    #[test]
    fn a_member_that_makes_up_addresses_leaves_room_for_the_others() {
        let mut table = Addresses::default();
        for n in 0..1000 {
            table.learn(mac(n), 0, 100);
            table.learn(mac(n % 100), 0, 100);
        }
        assert_eq!((table.members.len(), table.counts[0]), (100, 100));
        (2000..2100).for_each(|n| table.learn(mac(n), 1, 100));
        assert!((2000..2100).all(|n| table.members.get(&mac(n)) == Some(&1)));
        // Those that move to another member make room.
        (2000..2010).for_each(|n| table.learn(mac(n), 2, 100));
        assert_eq!(table.counts[..3], [100, 90, 10]);
        table.learn(mac(3000), 1, 100);
        assert_eq!(table.members.get(&mac(3000)), Some(&1));
        // A member with a full share takes no address over.
        table.learn(mac(2000), 0, 100);
        assert_eq!((table.members.get(&mac(2000)), table.counts[0]), (Some(&2), 100));
    }
}
