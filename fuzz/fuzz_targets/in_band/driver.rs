//! The guest's side: chains that are commands, or nearly so.

use flownic::vhost::ring::{MAX_FRAME, RingSetup};

use crate::desc::Desc;
use crate::guest::{BASE, GUEST, PAGE, SPLIT, TOTAL};
use crate::{BUFFERS, Script};

/// Where indirect tables are written, one after the other.
const TABLES: usize = 3 * PAGE;

pub struct Driver {
    setup: RingSetup,
    idx: u16,
    desc: u16,
    table: usize,
    buffer: usize,
}

impl Driver {
    pub fn new(setup: RingSetup) -> Self {
        Driver { setup, idx: setup.base, desc: 0, table: TABLES, buffer: BUFFERS }
    }

    /// Both indices, as the ring starts.
    pub fn write_indices(&self) {
        for ring in [self.setup.avail, self.setup.used] {
            GUEST.write((ring - BASE) as usize + 2, &self.idx.to_le_bytes());
        }
    }

    fn take_buffer(&mut self, len: usize) -> usize {
        if self.buffer + len > TOTAL {
            self.buffer = BUFFERS;
        }
        let at = self.buffer.min(TOTAL - len.min(TOTAL));
        self.buffer = at + len;
        at
    }

    /// Header and frame of a command, in which a field or two may be wrong.
    fn message(&self, s: &mut Script<'_>) -> Vec<u8> {
        let length = match s.u8() % 16 {
            0 => 16384,
            1 => 16385,
            2 => usize::from(s.u16()),
            3 => MAX_FRAME,
            4 => 0,
            _ => s.below(120),
        };
        let mut m = vec![0; self.setup.header_len];
        m.extend([2; 12]);
        m.extend([0x88, 0xb5]);
        m.extend(b"flwn");
        let version = if s.once_in(16) { s.u8() } else { 1 };
        let kind = if s.once_in(8) { s.u8() } else { 1 + (s.u8() & 1) };
        m.extend([version, kind, 0, s.u8()]);
        m.extend((s.u16() as u32 * 0x1_0001).to_le_bytes());
        let said = if s.once_in(8) { s.u16() } else { length as u16 };
        m.extend(said.to_le_bytes());
        m.extend([0, 0]);
        let first = s.below(64).min(length);
        m.extend((0..first).map(|_| s.u8()));
        m.resize(self.setup.header_len + 30 + length, 0);
        match s.u8() % 24 {
            0 => m.truncate(s.below(64)),
            1 => {
                let at = s.below(48).min(m.len() - 1);
                m[at] ^= s.u8();
            }
            2 => m.truncate(self.setup.header_len + 29),
            3 => m.truncate(self.setup.header_len + 30),
            _ => {}
        }
        m.truncate(TOTAL - BUFFERS);
        m
    }

    pub fn add_chain(&mut self, s: &mut Script<'_>) {
        let message = self.message(s);
        let mut chain = Vec::new();
        let at = match s.u8() % 8 {
            0 => SPLIT - (message.len() / 2).min(SPLIT - BUFFERS),
            _ => self.take_buffer(message.len()),
        };
        GUEST.write(at, &message);
        let pieces = [1, 1, 2, 3, 5, 9][s.below(6)];
        let mut done = 0;
        for i in 0..pieces {
            let left = message.len() - done;
            let len = if i + 1 == pieces { left } else { left.min(s.below(40)) };
            chain.push(Desc { addr: BASE + (at + done) as u64, len: len as u32, flags: 0, next: 0 });
            done += len;
        }
        for _ in 0..[0, 1, 1, 1, 2, 3, 6][s.below(7)] {
            let len = match s.u8() % 8 {
                0 => 0,
                1 => 15,
                2 => 16,
                3 => usize::from(s.u16()) % (TOTAL - BUFFERS),
                _ => s.below(64),
            };
            let at = match s.u8() % 8 {
                0 => SPLIT - (len / 2).min(SPLIT - BUFFERS),
                1 => usize::from(s.u16()) % (TOTAL - len),
                _ => self.take_buffer(len),
            };
            chain.push(Desc { addr: BASE + at as u64, len: len as u32, flags: 2, next: 0 });
        }
        if s.once_in(8) {
            corrupt(&mut chain, s);
        }
        if s.once_in(3) {
            self.add_indirect(chain, s);
        } else {
            let head = self.write_direct(&chain);
            self.publish(head);
        }
    }

    /// Links the descriptors in the ring's table, as far as it reaches.
    fn write_direct(&mut self, chain: &[Desc]) -> u16 {
        let head = self.desc;
        for (i, d) in chain.iter().enumerate() {
            let at = self.desc;
            self.desc = (self.desc + 1) % self.setup.size;
            let d = if i + 1 < chain.len() { Desc { flags: d.flags | 1, next: self.desc, ..*d } } else { *d };
            GUEST.write((self.setup.desc - BASE) as usize + 16 * usize::from(at), &d.bytes());
        }
        head
    }

    fn add_indirect(&mut self, mut chain: Vec<Desc>, s: &mut Script<'_>) {
        let direct = if s.once_in(4) { 1.min(chain.len() - 1) } else { 0 };
        let inner = chain.split_off(direct);
        let bytes: Vec<u8> = inner
            .iter()
            .enumerate()
            .flat_map(|(i, d)| {
                let last = i + 1 == inner.len();
                if last { *d } else { Desc { flags: d.flags | 1, next: i as u16 + 1, ..*d } }.bytes()
            })
            .collect();
        if self.table + bytes.len() > BUFFERS {
            self.table = TABLES;
        }
        let at = self.table + if s.once_in(32) { 4 } else { 0 };
        self.table += bytes.len();
        GUEST.write(at, &bytes);
        let len = bytes.len() as u32 + if s.once_in(32) { 8 } else { 0 };
        chain.push(Desc { addr: BASE + at as u64, len, flags: 4, next: 0 });
        let head = self.write_direct(&chain);
        self.publish(head);
    }

    fn publish(&mut self, head: u16) {
        let avail = (self.setup.avail - BASE) as usize;
        GUEST.write(avail + 4 + 2 * usize::from(self.idx % self.setup.size), &head.to_le_bytes());
        self.idx = self.idx.wrapping_add(1);
        GUEST.write(avail + 2, &self.idx.to_le_bytes());
    }

    /// Writes where a driver should not.
    pub fn disturb(&mut self, s: &mut Script<'_>) {
        let desc = (self.setup.desc - BASE) as usize;
        let n = usize::from(self.setup.size);
        match s.u8() % 8 {
            0 => GUEST.write(desc + 16 * s.below(n), &s.u64().to_le_bytes()),
            1 => GUEST.write(desc + 16 * s.below(n) + 8, &s.u64().to_le_bytes()),
            2 => GUEST.write(desc + 16 * s.below(n) + 12, &[s.u8() & 7]),
            3 => GUEST.write(desc + 16 * s.below(n) + 14, &s.u16().to_le_bytes()),
            4 => GUEST.write(TABLES + s.below(BUFFERS - TABLES), &s.u64().to_le_bytes()),
            5 => {
                let avail = (self.setup.avail - BASE) as usize;
                GUEST.write(avail + 4 + 2 * s.below(n), &(s.below(n) as u16).to_le_bytes());
            }
            _ => GUEST.write(BUFFERS + usize::from(s.u16()), &s.u64().to_le_bytes()),
        }
    }
}

/// Breaks one descriptor of a chain, or its order.
fn corrupt(chain: &mut [Desc], s: &mut Script<'_>) {
    let n = chain.len();
    let i = s.below(n);
    match s.u8() % 8 {
        0 => chain[i].addr = s.u64(),
        1 => chain[i].addr = BASE + TOTAL as u64 - s.below(64) as u64,
        2 => chain[i].len = u32::MAX - u32::from(s.u8()),
        3 => chain[i].len = 0,
        4 => chain[i].flags ^= 2,
        5 => chain[i].flags ^= 4,
        6 => chain.swap(i, n - 1),
        _ => chain[i].addr = BASE + u64::from(s.u16()),
    }
}
