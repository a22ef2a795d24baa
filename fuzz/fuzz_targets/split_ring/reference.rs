//! What a ring should do, said slowly: with plain reads, over the memory crate's own address translation.

use flownic::vhost::dirty::DirtyLog;
use flownic::vhost::ring::{BATCH, MAX_FRAME, MIN_FRAME, RingSetup};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

pub type Mem = GuestMemoryMmap<DirtyLog>;

/// Ranges of guest memory: address and length.
pub type Ranges = Vec<(u64, u64)>;

pub fn u16_at(mem: &Mem, gpa: u64) -> u16 {
    let mut b = [0; 2];
    mem.read_slice(&mut b, GuestAddress(gpa)).expect("part of a ring that started");
    u16::from_le_bytes(b)
}

pub fn avail_idx(mem: &Mem, s: &RingSetup) -> u16 {
    u16_at(mem, s.avail + 2)
}

pub fn avail_entry(mem: &Mem, s: &RingSetup, at: u16) -> u16 {
    u16_at(mem, s.avail + 4 + 2 * u64::from(at % s.size))
}

/// Whether a range is in one region.
pub fn in_one_region(mem: &Mem, gpa: u64, len: u64) -> bool {
    mem.find_region(GuestAddress(gpa)).is_some_and(|r| {
        let start = vm_memory::Address::raw_value(&r.start_addr());
        u128::from(gpa) + u128::from(len) <= u128::from(start) + u128::from(r.len())
    })
}

/// Whether a range is guest memory, in however many regions.
fn is_mapped(mem: &Mem, mut gpa: u64, mut len: u64) -> bool {
    while len > 0 {
        let Some(r) = mem.find_region(GuestAddress(gpa)) else { return false };
        let room = vm_memory::Address::raw_value(&r.start_addr()) + r.len() - gpa;
        let n = room.min(len);
        (gpa, len) = (gpa.wrapping_add(n), len - n);
    }
    true
}

/// Whether a ring may start with this.
pub fn can_start(mem: &Mem, s: &RingSetup) -> bool {
    let n = u64::from(s.size);
    s.size.is_power_of_two()
        && [(s.desc, 16 * n, 16), (s.avail, 6 + 2 * n, 2), (s.used, 6 + 8 * n, 4)]
            .into_iter()
            .all(|(gpa, len, align)| in_one_region(mem, gpa, len) && gpa % align == 0)
}

struct Desc {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

fn desc(mem: &Mem, table: u64, i: u16) -> Desc {
    let mut b = [0; 16];
    mem.read_slice(&mut b, GuestAddress(table + 16 * u64::from(i))).expect("a table that was checked");
    Desc {
        addr: u64::from_le_bytes(b[..8].try_into().unwrap()),
        len: u32::from_le_bytes(b[8..12].try_into().unwrap()),
        flags: u16::from_le_bytes(b[12..14].try_into().unwrap()),
        next: u16::from_le_bytes(b[14..].try_into().unwrap()),
    }
}

/// The longest chain that a ring takes, and about how many descriptors it walks for the frames of one burst.
const MAX_DESCRIPTORS: u16 = 1024;
const MAX_WALKED: u32 = 16384;

/// The buffers of a chain, all in one direction, and the indirect table that was read; `None` if the chain is bad. Adds
/// the buffers that were looked at to `walked`.
fn chain(mem: &Mem, s: &RingSetup, head: u16, writable: bool, walked: &mut u32) -> Option<(Ranges, Ranges)> {
    let (mut table, mut entries, mut i) = (s.desc, s.size, head);
    let (mut buffers, mut tables) = (Vec::new(), Vec::new());
    loop {
        let d = desc(mem, table, i);
        if d.flags & 4 != 0 {
            let whole = d.len != 0 && d.len % 16 == 0 && d.len / 16 <= u32::from(s.size);
            let alone = d.flags & 1 == 0 && tables.is_empty();
            if !(s.indirect && alone && whole) {
                return None;
            }
            if !in_one_region(mem, d.addr, d.len.into()) || d.addr % 8 != 0 {
                return None;
            }
            tables.push((d.addr, u64::from(d.len)));
            (table, entries, i) = (d.addr, (d.len / 16) as u16, 0);
            continue;
        }
        if buffers.len() == usize::from(s.size.min(MAX_DESCRIPTORS)) {
            return None;
        }
        *walked += 1;
        if (d.flags & 2 != 0) != writable || !is_mapped(mem, d.addr, d.len.into()) {
            return None;
        }
        buffers.push((d.addr, u64::from(d.len)));
        if d.flags & 1 == 0 {
            return Some((buffers, tables));
        }
        if d.next >= entries {
            return None;
        }
        i = d.next;
    }
}

/// A buffer of one descriptor that takes `need` bytes. Only these must be mapped: the ring does not look at the rest.
fn single(mem: &Mem, s: &RingSetup, head: u16, need: u64) -> Option<(u64, u64)> {
    let d = desc(mem, s.desc, head);
    let fits = d.flags & 7 == 2 && u64::from(d.len) >= need && in_one_region(mem, d.addr, need);
    fits.then_some((d.addr, need))
}

/// The virtio-net header (12 bytes, as far as there are so many) and the frame that a transmit chain carries.
pub fn sent(mem: &Mem, s: &RingSetup, head: u16) -> Option<([u8; 12], Vec<u8>)> {
    let (buffers, _) = chain(mem, s, head, false, &mut 0)?;
    let total: u64 = buffers.iter().map(|b| b.1).sum();
    let header = s.header_len as u64;
    if total < header + MIN_FRAME as u64 || total > header + MAX_FRAME as u64 {
        return None;
    }
    let mut bytes = Vec::new();
    for (gpa, len) in buffers.into_iter().filter(|b| b.1 > 0) {
        let at = bytes.len();
        bytes.resize(at + len as usize, 0);
        mem.read_slice(&mut bytes[at..], GuestAddress(gpa)).expect("checked");
    }
    let frame = bytes.split_off(s.header_len);
    bytes.resize(12, 0);
    Some((bytes.try_into().unwrap(), frame))
}

/// What becomes of a frame that is pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Delivered,
    NoBuffer,
    TooSmall,
    BadHead,
}

/// All that a push does.
pub struct Push {
    pub outcome: Outcome,
    /// Chains that are no buffers, returned on the way.
    pub bad: Vec<u16>,
    /// Chains that take the frame, and how many bytes each.
    pub chains: Vec<(u16, u32)>,
    /// Where the frame's bytes go, header first.
    pub buffers: Ranges,
    /// Indirect tables that were read.
    pub tables: Ranges,
}

/// Pushing `need` bytes, header included, with the ring at `next` and `pending` chains to be had; `walked` is what this
/// burst has cost so far.
pub fn push(mem: &Mem, s: &RingSetup, mut next: u16, mut pending: u16, need: u64, walked: &mut u32) -> Push {
    let mut p =
        Push { outcome: Outcome::Delivered, bad: vec![], chains: vec![], buffers: vec![], tables: vec![] };
    let mut found: Vec<(u16, u64)> = Vec::new();
    let mut room = 0;
    while room < need {
        let i = found.len() as u16;
        if i > 0 && !s.mergeable {
            p.outcome = Outcome::TooSmall;
            return p;
        }
        let alone = i == 0 && p.bad.is_empty();
        if i == pending || (*walked >= MAX_WALKED && !alone) {
            p.outcome = Outcome::NoBuffer;
            return p;
        }
        let head = avail_entry(mem, s, next.wrapping_add(i));
        if head >= s.size {
            p.outcome = Outcome::BadHead;
            return p;
        }
        if alone && let Some(buffer) = single(mem, s, head, need) {
            p.chains.push((head, need as u32));
            p.buffers.push(buffer);
            return p;
        }
        if *walked >= MAX_WALKED {
            p.outcome = Outcome::NoBuffer;
            return p;
        }
        *walked += 1;
        let usable = chain(mem, s, head, true, walked).and_then(|(buffers, tables)| {
            let bytes: u64 = buffers.iter().map(|b| b.1).sum();
            (bytes >= s.header_len as u64 && bytes <= u32::MAX.into()).then_some((buffers, tables, bytes))
        });
        match usable {
            Some((buffers, tables, bytes)) => {
                found.push((head, bytes));
                p.buffers.extend(buffers);
                p.tables.extend(tables);
                room += bytes;
            }
            None if i == 0 => {
                p.bad.push(head);
                (next, pending) = (next.wrapping_add(1), pending - 1);
                if p.bad.len() == BATCH {
                    p.outcome = Outcome::NoBuffer;
                    return p;
                }
            }
            None => {
                p.outcome = Outcome::NoBuffer;
                return p;
            }
        }
    }
    let mut left = need;
    for (head, bytes) in found {
        p.chains.push((head, left.min(bytes) as u32));
        left -= left.min(bytes);
    }
    p
}

/// The specification's `vring_need_event` (2.7.10.1).
pub fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
