//! The guest's side: a driver that mostly does it right.

use flownic::vhost::ring::{MAX_FRAME, RingSetup};

use crate::desc::Desc;
use crate::guest::{BASE, GUEST, PAGE, SPLIT, TOTAL};
use crate::ring::{Buffers, at};
use crate::{BUFFERS, Script};

/// Where indirect tables are written, one after the other.
const TABLES: usize = 3 * PAGE;

pub struct Driver {
    setup: RingSetup,
    transmits: bool,
    /// The next available index to write.
    idx: u16,
    /// The next descriptor, the next indirect table, the next buffer.
    desc: u16,
    table: usize,
    buffers: Buffers,
}

impl Driver {
    pub fn new(setup: RingSetup, transmits: bool) -> Self {
        let setup = RingSetup { size: setup.size.max(1), ..setup };
        Driver { setup, transmits, idx: setup.base, desc: 0, table: TABLES, buffers: Buffers::new() }
    }

    /// Available and used index as the ring starts.
    pub fn write_indices(&self, used: u16) {
        GUEST.write(at(self.setup.avail) + 2, &self.idx.to_le_bytes());
        GUEST.write(at(self.setup.used) + 2, &used.to_le_bytes());
    }

    fn write_desc(&self, i: u16, desc: Desc) {
        GUEST.write(at(self.setup.desc) + 16 * usize::from(i), &desc.bytes());
    }

    /// Makes `head` available.
    fn publish(&mut self, head: u16) {
        let avail = at(self.setup.avail);
        let entry = usize::from(self.idx % self.setup.size);
        GUEST.write(avail + 4 + 2 * entry, &head.to_le_bytes());
        self.idx = self.idx.wrapping_add(1);
        // A guest with more chains than entries is broken; most are not.
        GUEST.write(avail + 2, &self.idx.to_le_bytes());
    }

    /// How far the device is, as far as the guest can see.
    fn room(&self) -> u16 {
        let used = at(self.setup.used) + 2;
        let used = GUEST.bytes().get(used..used + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
        self.setup.size.saturating_sub(self.idx.wrapping_sub(used))
    }

    fn next_desc(&mut self) -> u16 {
        let i = self.desc;
        self.desc = (self.desc + 1) % self.setup.size;
        i
    }

    fn flags(&self) -> u16 {
        if self.transmits { 0 } else { 2 }
    }

    /// One descriptor, of a common size.
    pub fn add_simple_chain(&mut self) {
        if self.room() == 0 {
            return;
        }
        let len = if self.transmits { 72 } else { 1536 };
        let i = self.next_desc();
        let addr = self.buffers.take(len);
        self.write_desc(i, Desc { addr, len: len as u32, flags: self.flags(), next: 0 });
        self.publish(i);
    }

    fn total(&self, s: &mut Script<'_>) -> usize {
        let h = self.setup.header_len;
        match s.u8() % 16 {
            0 => h + 14,
            1 => h + 13,
            2 => h,
            3 => s.below(40),
            4 => h + MAX_FRAME,
            5 => h + MAX_FRAME + 1,
            6 => h + 128,
            7 => h + 129,
            8 => h + 9014,
            9 => h + 1514,
            10 => usize::from(s.u16()),
            _ => h + 14 + s.below(256),
        }
    }

    /// Any chain: split anywhere, direct or indirect, and once in a while wrong.
    pub fn add_chain(&mut self, s: &mut Script<'_>) {
        if self.room() == 0 && !s.once_in(16) {
            return;
        }
        let mut left = self.total(s);
        let pieces = [1, 1, 2, 2, 3, 4, 6, 12][s.below(8)];
        let mut chain: Vec<Desc> = Vec::new();
        for i in 0..pieces {
            let len = if i + 1 == pieces { left } else { left.min(s.below(48)) };
            left -= len;
            let addr = match s.u8() % 8 {
                0 => BASE + (SPLIT - (len / 2).min(SPLIT - BUFFERS)) as u64,
                1 => BASE + (BUFFERS + usize::from(s.u16())).min(TOTAL - len) as u64,
                _ => self.buffers.take(len),
            };
            chain.push(Desc { addr, len: len as u32, flags: self.flags(), next: 0 });
        }
        let indirect = s.u8() % 4 == 0 && self.setup.indirect || s.once_in(64);
        // Direct descriptors before an indirect one.
        let direct = if indirect && s.once_in(4) { 1 } else { 0 };
        let heads = if indirect { direct + 1 } else { chain.len() };
        let numbers: Vec<u16> = (0..heads).map(|_| self.next_desc()).collect();
        if indirect {
            let mut inner: Vec<Desc> = chain.split_off(direct.min(chain.len()));
            let n = inner.len();
            for (i, d) in inner.iter_mut().enumerate().take(n.saturating_sub(1)) {
                (d.flags, d.next) = (d.flags | 1, i as u16 + 1);
            }
            if s.once_in(8) {
                corrupt(&mut inner, s);
            }
            let mut bytes: Vec<u8> = inner.iter().flat_map(|d| d.bytes()).collect();
            let mut len = bytes.len() as u32;
            match s.u8() % 64 {
                0 => len = 0,
                1 => len += 8,
                2 => len = 16 * (u32::from(self.setup.size) + 1),
                3 => len = u32::MAX & !15,
                4 => len = 16,
                _ => {}
            }
            if self.table + bytes.len() + 16 > BUFFERS {
                self.table = TABLES;
            }
            let mut at = self.table;
            match s.u8() % 32 {
                0 => at += 4,
                1 => at += 8,
                2 => at = SPLIT - 16,
                _ => {}
            }
            self.table = at.min(BUFFERS - 16) + bytes.len();
            bytes.truncate(TOTAL - at);
            GUEST.write(at, &bytes);
            chain.push(Desc {
                addr: BASE + at as u64,
                len,
                flags: 4 | u16::from(s.once_in(16)) << 1,
                next: 0,
            });
        }
        for i in 0..chain.len().saturating_sub(1) {
            chain[i].flags |= 1;
            chain[i].next = numbers[(i + 1).min(numbers.len() - 1)];
        }
        if s.once_in(8) {
            corrupt(&mut chain, s);
        }
        for (i, d) in numbers.iter().zip(&chain) {
            self.write_desc(*i, *d);
        }
        self.publish(numbers[0]);
    }

    /// Writes where a driver should not.
    pub fn disturb(&mut self, s: &mut Script<'_>) {
        let (desc, avail, used) = (at(self.setup.desc), at(self.setup.avail), at(self.setup.used));
        let size = usize::from(self.setup.size);
        match s.u8() % 16 {
            0 => GUEST.write(desc + 16 * s.below(size), &s.u64().to_le_bytes()),
            1 => GUEST.write(desc + 16 * s.below(size) + 8, &s.u64().to_le_bytes()),
            2 => GUEST.write(desc + 16 * s.below(size) + 12, &[s.u8() & 7]),
            3 => GUEST.write(desc + 16 * s.below(size) + 14, &s.u16().to_le_bytes()),
            4 => GUEST.write(avail + 4 + 2 * s.below(size), &s.u16().to_le_bytes()),
            5 => GUEST.write(avail + 4 + 2 * s.below(size), &(s.below(size) as u16).to_le_bytes()),
            6 => {
                // The index jumps, by little or by much, and stays there or not.
                let to =
                    self.idx.wrapping_add(if s.once_in(2) { s.u16() } else { u16::from(s.u8() as i8 as u8) });
                GUEST.write(avail + 2, &to.to_le_bytes());
                if s.once_in(2) {
                    self.idx = to;
                }
            }
            7 => GUEST.write(avail, &s.u16().to_le_bytes()),
            8..12 => {
                // used_event, mostly near the index.
                let event = self.idx.wrapping_sub(s.u8().into()).wrapping_add(4);
                GUEST.write(avail + 4 + 2 * size, &event.to_le_bytes());
            }
            12 => GUEST.write(used + usize::from(s.u8()), &s.u64().to_le_bytes()),
            13 => GUEST.write(TABLES + s.below(BUFFERS - TABLES), &s.u64().to_le_bytes()),
            14 => GUEST.write(BUFFERS + usize::from(s.u16()), &s.u64().to_le_bytes()),
            _ => {
                let byte = s.u8();
                GUEST.write(TABLES + 16 * s.below(256), &vec![byte; 1 + s.below(200)]);
            }
        }
    }
}

/// Breaks one descriptor of a chain.
fn corrupt(chain: &mut [Desc], s: &mut Script<'_>) {
    if chain.is_empty() {
        return;
    }
    let n = chain.len();
    let d = &mut chain[s.below(n)];
    match s.u8() % 12 {
        0 => d.addr = s.u64(),
        1 => d.addr = BASE + TOTAL as u64 - s.below(64) as u64,
        2 => d.addr = u64::MAX - u64::from(s.u8()),
        3 => d.len = u32::MAX - u32::from(s.u8()),
        4 => d.len = 0,
        5 => d.len = u32::from(s.u16()) << s.below(16),
        6 => d.flags ^= 1,
        7 => d.flags ^= 2,
        8 => d.flags ^= 4,
        9 => d.next = s.u16(),
        10 => (d.flags, d.next) = (d.flags | 1, s.u8().into()),
        _ => d.addr = BASE + u64::from(s.u16()),
    }
}
