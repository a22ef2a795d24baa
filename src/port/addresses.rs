//! A switch's table of addresses: who gets a frame.
//!
//! The table remembers which member, or the uplink, a source address was last seen at. Each of them has its share of the table,
//! which it cannot exceed; addresses that found no room are flooded, as a switch does. So a guest that makes up addresses fills its
//! own share, and the others' frames stay theirs. A moved address overwrites its entry; an entry never ages, since members
//! come and go only with the process.

use std::collections::HashMap;
use std::sync::RwLock;

use crate::dataplane::rx::Frames;
use crate::vhost::ring::FrameBatch;
use crate::virtio::MacAddr;

/// Addresses that a switch remembers, everybody's together.
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
pub(super) struct Addresses(RwLock<Table>);

/// Where addresses were last seen, and how many each member and the uplink have.
struct Table {
    seen: HashMap<MacAddr, u8>,
    counts: [usize; MAX_MEMBERS + 1],
}

impl Default for Table {
    fn default() -> Self {
        Table { seen: HashMap::new(), counts: [0; MAX_MEMBERS + 1] }
    }
}

impl Table {
    /// `address` was seen at `from`, which may have at most `share` of them.
    fn learn(&mut self, address: MacAddr, from: usize, share: usize) {
        if self.counts[from] >= share {
            return;
        }
        let before = self.seen.insert(address, from as u8);
        self.counts[from] += 1;
        if let Some(before) = before {
            self.counts[usize::from(before)] -= 1;
        }
    }
}

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
        let table = self.0.read().expect("no panic with the table in hand");
        for i in 0..batch.len() {
            let h = batch.headers(i);
            news |= !h.src().is_group() && table.seen.get(&h.src()) != Some(&(from as u8));
            match table.seen.get(&h.dst()) {
                Some(&at) if !h.dst().is_group() => to[usize::from(at)] |= 1 << i,
                _ => flooded |= 1 << i,
            }
        }
        drop(table);
        to[..members].iter_mut().for_each(|frames| *frames |= flooded);
        if has_uplink {
            to[UPLINK] |= flooded;
        }
        to[from] = 0;
        if news {
            self.learn(from, ADDRESSES / (members + usize::from(has_uplink)).max(1), batch);
        }
        let [members @ .., uplink] = to;
        Forward { members, uplink }
    }

    #[cold]
    fn learn(&self, from: usize, share: usize, batch: &FrameBatch<'_>) {
        let mut table = self.0.write().expect("no panic with the table in hand");
        for i in 0..batch.len() {
            let src = batch.headers(i).src();
            if !src.is_group() {
                table.learn(src, from, share);
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
        assert!(table.0.read().unwrap().seen.is_empty());
    }

    #[test]
    fn a_member_that_makes_up_addresses_leaves_room_for_the_others() {
        let table = Addresses::default();
        let made_up = |n: usize| MacAddr([6, 0, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
        let share = ADDRESSES / 4;
        {
            let mut table = table.0.write().unwrap();
            table.learn(MacAddr(mac(10)), 0, share);
            (0..2 * ADDRESSES).for_each(|n| table.learn(made_up(n), 0, share));
            assert_eq!((table.seen.len(), table.counts[0]), (share, share));
        }
        // What the others have is learned, and what moves away from the one makes room.
        forward(&table, None, true, &[(20, ALL), (10, ALL)]);
        assert_eq!(forward(&table, Some(1), true, &[(11, 20), (11, 10)]), [0, 0, 0, 0b11]);
        forward(&table, Some(0), true, &[(13, ALL)]);
        assert_eq!(forward(&table, Some(1), true, &[(11, 13)]), [1, 0, 0, 0]);
        // A full share takes no address over, and what it has no room for is flooded.
        forward(&table, Some(0), true, &[(20, ALL), (14, ALL)]);
        assert_eq!(forward(&table, Some(1), true, &[(11, 20), (11, 14)]), [0b10, 0, 0b10, 0b11]);
        assert_eq!(table.0.read().unwrap().counts[..2], [share, 1]);
    }
}
