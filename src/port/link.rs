//! `link`: NICs connected to each other. Two are back to back; more share a learning switch.
//!
//! A frame goes from the sender's transmit buffers into the receiver's receive buffers in one copy, made by the sender's
//! worker.
//!
//! The switch learns which member a source address was last seen at. Its table is bounded; when it is full,
//! unknown addresses are flooded, as a switch does. A moved address overwrites its entry; an entry never ages, since members
//! come and go only with the process.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, RwLock, Weak};

use super::Port;
use crate::dataplane::{Context, rx::Frames, tx};
use crate::nic::Nic;
use crate::vhost::ring::{BatchStore, FrameBatch};
use crate::virtio::MacAddr;

/// Addresses that a switch remembers.
const ADDRESSES: usize = 16384;
/// NICs on a switch.
pub const MAX_MEMBERS: usize = 32;

/// What linked NICs share.
#[derive(Default)]
pub struct Switch {
    members: OnceLock<Vec<Weak<Nic>>>,
    addresses: RwLock<HashMap<MacAddr, u8>>,
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
            news |= !h.src.is_group() && addresses.get(&h.src) != Some(&(from as u8));
            match addresses.get(&h.dst) {
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
        let mut addresses = self.addresses.write().expect("no panic with the table in hand");
        for i in 0..batch.len() {
            let src = batch.headers(i).src;
            if !src.is_group() && (addresses.len() < ADDRESSES || addresses.contains_key(&src)) {
                addresses.insert(src, from as u8);
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
    use crate::dataplane::testing::Bed;
    use crate::port::PortQueue;

    /// NICs on one switch, each with its port.
    struct Net {
        switch: Arc<Switch>,
        beds: Vec<Bed>,
    }

    fn mac(n: u8) -> [u8; 6] {
        [2, 0, 0, 0, 0, n]
    }

    const BROADCAST: [u8; 6] = [0xff; 6];

    impl Net {
        fn new(n: usize) -> Self {
            let mut beds: Vec<Bed> = (0..n).map(|_| Bed::new(1, 0)).collect();
            beds.iter_mut().for_each(|b| b.post(16));
            let switch = Arc::new(Switch::default());
            switch.connect(beds.iter().map(|b| Arc::downgrade(&b.nic)).collect());
            Net { switch, beds }
        }

        /// Member `from` sends; returns who got it.
        fn send(&mut self, from: usize, src: [u8; 6], dst: [u8; 6]) -> Vec<usize> {
            let frame = [&dst[..], &src, &[0x88, 0xb5], &[0; 46]].concat();
            let mut port = PortQueue::Link(LinkPort::new(Arc::clone(&self.switch), from));
            let bed = &mut self.beds[from];
            bed.tx[0].guest.send(&frame);
            tx::transmit(&bed.nic, 0, &mut port, &mut BatchStore::default(), &mut bed.cx);
            let got = self.beds.iter_mut().map(|b| b.received(0)).enumerate();
            got.filter(|(_, frames)| !frames.is_empty())
                .map(|(i, frames)| {
                    assert_eq!(frames, [frame.clone()]);
                    i
                })
                .collect()
        }
    }

    #[test]
    fn two_nics_are_back_to_back_whatever_the_addresses() {
        let mut net = Net::new(2);
        for dst in [mac(1), mac(7), BROADCAST] {
            assert_eq!(net.send(0, mac(1), dst), [1]);
            assert_eq!(net.send(1, mac(1), dst), [0]);
        }
        assert!(net.switch.addresses.read().unwrap().is_empty());
    }

    #[test]
    fn a_frame_for_a_nic_that_is_gone_is_refused() {
        let mut net = Net::new(2);
        net.beds.pop();
        assert_eq!(net.send(0, mac(1), mac(2)), [0usize; 0]);
        assert_eq!(net.beds[0].nic.tx_counters[0].drop_port.get(), 1);
        assert_eq!(net.beds[0].nic.counters.port_tx_packets.get(), 0);
    }

    #[test]
    fn a_switch_floods_what_it_does_not_know_and_learns_from_sources() {
        let mut net = Net::new(4);
        assert_eq!(net.send(0, mac(1), mac(2)), [1, 2, 3]);
        assert_eq!(net.send(1, mac(2), mac(1)), [0]);
        assert_eq!(net.send(0, mac(1), mac(2)), [1]);
        assert_eq!(net.send(3, mac(4), mac(2)), [1]);
        // Never back to where it came from.
        assert_eq!(net.send(1, mac(5), mac(2)), [0usize; 0]);
        assert_eq!(net.send(2, mac(3), BROADCAST), [0, 1, 3]);
        assert_eq!(net.send(2, mac(3), [0x33, 0x33, 0, 0, 0, 1]), [0, 1, 3]);
    }

    #[test]
    fn an_address_that_moves_is_followed() {
        let mut net = Net::new(3);
        net.send(0, mac(1), BROADCAST);
        assert_eq!(net.send(2, mac(3), mac(1)), [0]);
        net.send(1, mac(1), BROADCAST);
        assert_eq!(net.send(2, mac(3), mac(1)), [1]);
    }

    #[test]
    fn a_group_address_is_no_source_and_is_never_learned() {
        let mut net = Net::new(3);
        net.send(0, BROADCAST, mac(2));
        assert!(net.switch.addresses.read().unwrap().is_empty());
        assert_eq!(net.send(1, mac(2), BROADCAST), [0, 2]);
    }

    #[test]
    fn with_a_full_table_known_addresses_still_move_and_new_ones_are_flooded() {
        let mut net = Net::new(3);
        net.send(0, mac(1), BROADCAST);
        {
            let mut table = net.switch.addresses.write().unwrap();
            let more = (table.len()..ADDRESSES).map(|n| [2, 1, 0, 0, (n >> 8) as u8, n as u8]);
            table.extend(more.map(|m| (MacAddr(m), 2)));
        }
        assert_eq!(net.send(1, mac(9), mac(1)), [0]);
        assert_eq!(net.send(0, mac(1), mac(9)), [1, 2], "there was no room for it");
        net.send(1, mac(1), BROADCAST);
        assert_eq!(net.send(2, mac(3), mac(1)), [1]);
        assert_eq!(net.switch.addresses.read().unwrap().len(), ADDRESSES);
    }

    #[test]
    fn nobody_is_connected_before_the_switch_is_told() {
        let bed = Bed::new(1, 0);
        let mut net = Net { switch: Arc::default(), beds: vec![bed] };
        assert_eq!(net.send(0, mac(1), mac(2)), [0usize; 0]);
    }
}
