//! The guest's side: a driver that mostly does it right, and keeps what it did.

use std::collections::VecDeque;

use flownic::vhost::ring::{MAX_FRAME, MIN_FRAME, RingSetup};

use crate::guest::{BASE, GUEST, SPLIT, TOTAL};
use crate::ring::{Buffers, at};
use crate::{BUFFERS, Script, TABLES, differing};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// A chain that the device has, or had.
pub struct Sent {
    pub id: u16,
    places: u16,
    /// Address and length of each piece.
    pieces: Vec<(u64, u32)>,
    /// What the used descriptor says: id and length.
    pub used: Option<(u16, u32)>,
    header_len: usize,
}

impl Sent {
    /// The frame that it carries, if it does.
    pub fn frame(&self) -> Option<Vec<u8>> {
        let at = |gpa: u64| (gpa - BASE) as usize;
        let bytes =
            self.pieces.iter().flat_map(|&(gpa, len)| &GUEST.bytes()[at(gpa)..at(gpa) + len as usize]);
        let bytes: Vec<u8> = bytes.skip(self.header_len).copied().collect();
        (MIN_FRAME..=MAX_FRAME).contains(&bytes.len()).then_some(bytes)
    }
}

pub struct Driver {
    pub setup: RingSetup,
    transmits: bool,
    /// It has kept to all rules so far.
    pub is_honest: bool,
    slot: u16,
    wrap: bool,
    used_slot: u16,
    used_wrap: bool,
    sent: VecDeque<Sent>,
    free: u16,
    id: u16,
    table: usize,
    buffers: Buffers,
}

impl Driver {
    pub fn new(setup: RingSetup, transmits: bool, is_whole: bool) -> Self {
        let (slot, wrap) = (setup.base & 0x7fff, setup.base >> 15 == 1);
        let is_usual = setup.desc == BASE && setup.avail > BASE && setup.used == setup.avail + 4;
        Driver {
            setup,
            transmits,
            // Memory that has holes, or parts on top of each other, makes an honest chain a wrong one.
            is_honest: is_usual && is_whole,
            slot,
            wrap,
            used_slot: slot,
            used_wrap: wrap,
            sent: VecDeque::new(),
            free: setup.size,
            id: 0xfff0,
            table: TABLES,
            buffers: Buffers::new(),
        }
    }

    fn desc_at(&self, slot: u16) -> usize {
        at(self.setup.desc) + 16 * usize::from(slot)
    }

    fn bytes(addr: u64, len: u32, id: u16, flags: u16) -> Vec<u8> {
        [&addr.to_le_bytes()[..], &len.to_le_bytes(), &id.to_le_bytes(), &flags.to_le_bytes()].concat()
    }

    fn direction(&self) -> u16 {
        if self.transmits { 0 } else { WRITE }
    }

    /// Writes descriptors of the ring (address, length, flags), the first one last.
    fn write_chain(&mut self, chain: &[(u64, u32, u16)], pieces: Vec<(u64, u32)>) {
        let n = chain.len() as u16;
        let id = self.id;
        self.id = self.id.wrapping_add(1);
        for (i, (addr, len, flags)) in chain.iter().enumerate().rev() {
            let slot = (u32::from(self.slot) + i as u32) % u32::from(self.setup.size);
            let turned = (u32::from(self.slot) + i as u32 >= u32::from(self.setup.size)) != self.wrap;
            let link = if i + 1 < chain.len() { NEXT } else { 0 };
            let flags = flags | link | if turned { AVAIL } else { USED };
            GUEST.write(self.desc_at(slot as u16), &Self::bytes(*addr, *len, id, flags));
        }
        self.wrap ^= self.slot + n >= self.setup.size;
        self.slot = ((u32::from(self.slot) + u32::from(n)) % u32::from(self.setup.size)) as u16;
        self.free -= n;
        self.sent.push_back(Sent { id, places: n, pieces, used: None, header_len: self.setup.header_len });
    }

    /// One descriptor, of a common size.
    pub fn add_simple_chain(&mut self) {
        if self.free == 0 {
            return;
        }
        let len = if self.transmits { 72 } else { 1536 };
        let addr = self.buffers.take(len);
        self.write_chain(&[(addr, len as u32, self.direction())], vec![(addr, len as u32)]);
    }

    /// Any chain: split anywhere, direct or indirect, and once in a while wrong.
    pub fn add_chain(&mut self, s: &mut Script<'_>) {
        let count = [1, 1, 2, 2, 3, 4, 6, 12][s.below(8)].min(usize::from(self.setup.size));
        let indirect = self.setup.indirect && s.once_in(3);
        let places = if indirect { 1 } else { count };
        if usize::from(self.free) < places {
            return;
        }
        let h = self.setup.header_len;
        let mut left = match s.u8() % 8 {
            0 => h + 14,
            1 => h + 13,
            2 => h + MAX_FRAME,
            3 => h + MAX_FRAME + 1,
            4 => h + 9014,
            _ => h + 14 + s.below(512),
        };
        let mut pieces = Vec::new();
        for i in 0..count {
            let len = if i + 1 == count { left } else { left.min(s.below(48)) };
            left -= len;
            let addr = if s.once_in(8) {
                BASE + (SPLIT - (len / 2).min(SPLIT - BUFFERS)) as u64
            } else {
                self.buffers.take(len)
            };
            pieces.push((addr, len as u32));
        }
        let direction = self.direction();
        let mut chain: Vec<_> = pieces.iter().map(|&(addr, len)| (addr, len, direction)).collect();
        if indirect {
            // Flags other than WRITE, and ids, mean nothing in there.
            let noise = s.u16() & !WRITE;
            let table: Vec<u8> =
                chain.iter().flat_map(|d| Self::bytes(d.0, d.1, noise, d.2 | noise)).collect();
            if self.table + table.len() > BUFFERS {
                self.table = TABLES;
            }
            GUEST.write(self.table, &table);
            chain = vec![(BASE + self.table as u64, table.len() as u32, INDIRECT)];
            self.table += table.len();
        }
        if s.once_in(16) {
            self.is_honest = false;
            let n = chain.len();
            let d = &mut chain[s.below(n)];
            match s.u8() % 7 {
                0 => d.0 = s.u64(),
                1 => d.0 = BASE + TOTAL as u64 - s.below(64) as u64,
                2 => d.1 = u32::MAX - u32::from(s.u8()),
                3 => d.1 = u32::from(s.u16()) << s.below(16),
                4 => d.2 ^= NEXT,
                5 => d.2 ^= WRITE,
                _ => d.2 ^= INDIRECT,
            }
        }
        self.write_chain(&chain, pieces);
    }

    /// Writes where a driver should not, and event suppression.
    pub fn disturb(&mut self, s: &mut Script<'_>) {
        let size = usize::from(self.setup.size);
        let what = s.u8() % 16;
        let avail = at(self.setup.avail);
        if what >= 8 {
            let event = [s.u16(), self.slot | u16::from(self.wrap) << 15][s.below(2)];
            GUEST.write(avail, &[event.to_le_bytes(), u16::to_le_bytes(s.u8() as u16 & 3)].concat());
            return;
        }
        self.is_honest = false;
        match what {
            0 => GUEST.write(self.desc_at(s.below(size) as u16), &s.u64().to_le_bytes()),
            1 => GUEST.write(self.desc_at(s.below(size) as u16) + 8, &s.u64().to_le_bytes()),
            2 => GUEST.write(self.desc_at(s.below(size) as u16) + 14, &[s.u8(), s.u8()]),
            3 => {
                // All at once, in the present lap or the next one: chains without an end, or everything new.
                let flags = s.u16();
                (0..size).for_each(|i| GUEST.write(self.desc_at(i as u16) + 14, &flags.to_le_bytes()));
            }
            4 => GUEST.write(TABLES + s.below(BUFFERS - TABLES), &s.u64().to_le_bytes()),
            5 => GUEST.write(BUFFERS + usize::from(s.u16()), &s.u64().to_le_bytes()),
            6 => GUEST.write(at(self.setup.used), &s.u64().to_le_bytes()),
            _ => self.free = self.free.max(1),
        }
    }

    /// The oldest chains, of which the device says that it has returned them.
    pub fn returned(&mut self, n: usize) -> Vec<Sent> {
        if !self.is_honest {
            self.forget();
            return Vec::new();
        }
        (0..n).map(|_| self.take_oldest().expect("taken, so it was there")).collect()
    }

    /// Those that are seen to be returned.
    pub fn returned_now(&mut self) -> Vec<Sent> {
        if !self.is_honest {
            self.forget();
            return Vec::new();
        }
        let mut chains = Vec::new();
        while self.used_now().is_some() && !self.sent.is_empty() {
            chains.extend(self.take_oldest());
        }
        chains
    }

    fn used_now(&self) -> Option<(u16, u32)> {
        let b = GUEST.bytes().get(self.desc_at(self.used_slot)..)?.get(..16)?;
        let flags = u16::from_le_bytes([b[14], b[15]]);
        let used = if self.used_wrap { AVAIL | USED } else { 0 };
        let len = u32::from_le_bytes([b[8], b[9], b[10], b[11]]);
        (flags & (AVAIL | USED) == used).then(|| (u16::from_le_bytes([b[12], b[13]]), len))
    }

    fn take_oldest(&mut self) -> Option<Sent> {
        let used = self.used_now();
        let chain = self.sent.pop_front()?;
        self.free += chain.places;
        let slot = u32::from(self.used_slot) + u32::from(chain.places);
        self.used_wrap ^= slot >= self.setup.size.into();
        self.used_slot = (slot % u32::from(self.setup.size)) as u16;
        Some(Sent { used, ..chain })
    }

    /// Whoever has broken the rules may as well write anywhere.
    fn forget(&mut self) {
        self.sent.clear();
        self.free = self.setup.size;
    }

    /// All that the device may write frames to.
    pub fn buffers(&self) -> Vec<(usize, usize)> {
        if !self.is_honest {
            return vec![(0, TOTAL)];
        }
        let pieces = self.sent.iter().flat_map(|chain| &chain.pieces);
        pieces.map(|&(gpa, len)| (at(gpa), at(gpa) + len as usize)).collect()
    }

    /// Nothing but the ring, the device's word and these ranges was written.
    pub fn check_writes(&self, before: &[u8], buffers: &[(usize, usize)]) {
        let desc = at(self.setup.desc);
        let used = at(self.setup.used);
        let ring = [(desc, desc + 16 * usize::from(self.setup.size)), (used, used + 4)];
        for at in differing(before) {
            let allowed = ring.iter().chain(buffers).any(|range| (range.0..range.1).contains(&at));
            assert!(allowed, "written at {:#x}; {:x?}", BASE + at as u64, self.setup);
        }
    }
}
