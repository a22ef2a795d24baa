//! A switch's table of addresses: who gets a frame.
//!
//! The table remembers which member, or the uplink, a source address was last seen at. It is bounded; when it is full, unknown
//! addresses are flooded, as a switch does. A moved address overwrites its entry; an entry never ages, since members come
//! and go only with the process.

use std::collections::HashMap;
use std::sync::RwLock;

use crate::dataplane::rx::Frames;
use crate::vhost::ring::FrameBatch;
use crate::virtio::MacAddr;

/// Addresses that a switch remembers.
const ADDRESSES: usize = 16384;
/// NICs on a switch.
pub const MAX_MEMBERS: usize = 32;
/// The uplink's number in the table.
const UPLINK: usize = MAX_MEMBERS;

/// Who gets which frames of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Forward {
    /// By member.
    pub members: [Frames; MAX_MEMBERS],
    /// The uplink.
    pub uplink: Frames,
}

/// The table.
#[derive(Default)]
pub(super) struct Addresses(RwLock<HashMap<MacAddr, u8>>);

impl Addresses {
    /// Who gets the frames of a parsed batch from member `from` (`None`: from the uplink) of a switch with that many members,
    /// and perhaps an uplink. Learns where they come from.
    pub(super) fn forward(
        &self,
        from: Option<usize>,
        members: usize,
        has_uplink: bool,
        batch: &FrameBatch<'_>,
    ) -> Forward {
        let from = from.unwrap_or(UPLINK);
        let mut to = [0; MAX_MEMBERS + 1];
        let mut flooded: Frames = 0;
        let mut news = false;
        let addresses = self.0.read().expect("no panic with the table in hand");
        for i in 0..batch.len() {
            let h = batch.headers(i);
            news |= !h.src.is_group() && addresses.get(&h.src) != Some(&(from as u8));
            match addresses.get(&h.dst) {
                Some(&at) if !h.dst.is_group() => to[usize::from(at)] |= 1 << i,
                _ => flooded |= 1 << i,
            }
        }
        drop(addresses);
        to[..members].iter_mut().for_each(|frames| *frames |= flooded);
        if has_uplink {
            to[UPLINK] |= flooded;
        }
        to[from] = 0;
        if news {
            self.learn(from, batch);
        }
        let [members @ .., uplink] = to;
        Forward { members, uplink }
    }

    #[cold]
    fn learn(&self, from: usize, batch: &FrameBatch<'_>) {
        let mut addresses = self.0.write().expect("no panic with the table in hand");
        for i in 0..batch.len() {
            let src = batch.headers(i).src;
            if !src.is_group() && (addresses.len() < ADDRESSES || addresses.contains_key(&src)) {
                addresses.insert(src, from as u8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost::ring::BatchStore;
    use crate::virtio::NetHeader;

    const ALL: u8 = 0xff;
    const GROUP: u8 = 1;

    /// An address: `ALL` is broadcast, `GROUP` a multicast one, the rest are stations.
    fn mac(n: u8) -> [u8; 6] {
        match n {
            ALL => [0xff; 6],
            GROUP => [1, 0, 0x5e, 0, 0, 1],
            n => [2, 0, 0, 0, 0, n],
        }
    }

    /// A switch with three members, and what it does with a batch of (source, destination): by member, then the uplink.
    fn forward(table: &Addresses, from: Option<usize>, has_uplink: bool, frames: &[(u8, u8)]) -> [Frames; 4] {
        let frames: Vec<Vec<u8>> = frames
            .iter()
            .map(|&(src, dst)| [&mac(dst)[..], &mac(src), &[0x88, 0xb5], &[0; 46]].concat())
            .collect();
        let mut store = BatchStore::default();
        let mut batch = FrameBatch::new(&mut store);
        frames.iter().for_each(|f| assert!(batch.push_slice(NetHeader::default(), f)));
        batch.parse();
        let Forward { members: [a, b, c, rest @ ..], uplink } = table.forward(from, 3, has_uplink, &batch);
        assert_eq!(rest, [0; MAX_MEMBERS - 3], "nobody is there");
        [a, b, c, uplink]
    }

    #[test]
    fn unknown_addresses_and_groups_go_to_everybody_but_the_sender() {
        for dst in [77, ALL, GROUP] {
            let table = Addresses::default();
            assert_eq!(forward(&table, Some(1), true, &[(10, dst)]), [1, 0, 1, 1]);
            assert_eq!(forward(&table, None, true, &[(20, dst)]), [1, 1, 1, 0], "never back to the uplink");
            assert_eq!(forward(&table, Some(1), false, &[(10, dst)]), [1, 0, 1, 0], "there is none");
        }
    }

    #[test]
    fn addresses_are_learned_at_members_and_at_the_uplink() {
        let table = Addresses::default();
        forward(&table, None, true, &[(20, ALL), (21, ALL)]);
        forward(&table, Some(2), true, &[(12, ALL)]);
        assert_eq!(forward(&table, Some(0), true, &[(10, 20), (10, 12), (10, 21)]), [0, 0, 0b010, 0b101]);
        assert_eq!(forward(&table, None, true, &[(20, 12), (20, 10)]), [0b10, 0, 0b01, 0]);
        // Both ends are behind the uplink, or both at one member: the switch keeps out of it.
        assert_eq!(forward(&table, None, true, &[(20, 21)]), [0; 4]);
        assert_eq!(forward(&table, Some(2), true, &[(13, 12)]), [0; 4]);
    }

    #[test]
    fn an_address_moves_between_members_and_the_uplink() {
        let table = Addresses::default();
        forward(&table, Some(0), true, &[(10, ALL)]);
        assert_eq!(forward(&table, Some(1), true, &[(11, 10)]), [1, 0, 0, 0]);
        forward(&table, None, true, &[(10, ALL)]);
        assert_eq!(forward(&table, Some(1), true, &[(11, 10)]), [0, 0, 0, 1]);
        forward(&table, Some(2), true, &[(10, ALL)]);
        assert_eq!(forward(&table, Some(1), true, &[(11, 10)]), [0, 0, 1, 0]);
    }

    #[test]
    fn a_group_is_never_learned() {
        let table = Addresses::default();
        forward(&table, Some(0), true, &[(GROUP, 77), (ALL, 77)]);
        assert!(table.0.read().unwrap().is_empty());
    }

    #[test]
    fn a_full_table_floods_the_rest_and_still_follows_moves() {
        let table = Addresses::default();
        let filler = |n: usize| MacAddr([6, 0, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
        let mut full: HashMap<_, _> = (1..ADDRESSES).map(|n| (filler(n), 0)).collect();
        full.insert(MacAddr(mac(10)), 0);
        *table.0.write().unwrap() = full;
        forward(&table, None, true, &[(20, ALL), (10, ALL)]);
        assert_eq!(table.0.read().unwrap().len(), ADDRESSES);
        assert_eq!(forward(&table, Some(1), true, &[(11, 20), (11, 10)]), [0b01, 0, 0b01, 0b11]);
    }
}
