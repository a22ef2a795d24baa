//! What a chain is, said slowly: with plain reads, over the memory crate's own address translation.

use flownic::vhost::dirty::DirtyLog;
use flownic::vhost::ring::{MAX_FRAME, MIN_FRAME, RingSetup};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

pub type Mem = GuestMemoryMmap<DirtyLog>;

/// Bytes of a command's frame that are kept: Ethernet and channel header, and the longest command.
const KEPT: usize = 14 + 16 + 16384;
/// The longest chain that a ring takes.
const MAX_DESCRIPTORS: u16 = 1024;

/// A chain.
#[derive(Debug, PartialEq, Eq)]
pub enum Chain {
    Malformed,
    Frame(Vec<u8>),
    /// A command by the user road.
    UserCommand(Vec<u8>),
    /// A command by the kernel road, and where its reply goes.
    KernelCommand(Vec<u8>, Vec<(u64, u64)>),
}

pub fn u16_at(mem: &Mem, gpa: u64) -> u16 {
    let mut b = [0; 2];
    mem.read_slice(&mut b, GuestAddress(gpa)).expect("part of a ring that started");
    u16::from_le_bytes(b)
}

/// Bytes from `gpa` to the end of its region; 0 where there is no memory.
pub fn room_at(mem: &Mem, gpa: u64) -> u64 {
    mem.find_region(GuestAddress(gpa)).map_or(0, |r| r.start_addr().raw_value() + r.len() - gpa)
}

fn is_mapped(mem: &Mem, mut gpa: u64, mut len: u64) -> bool {
    while len > 0 {
        let n = room_at(mem, gpa).min(len);
        if n == 0 {
            return false;
        }
        (gpa, len) = (gpa.wrapping_add(n), len - n);
    }
    true
}

/// The descriptors of a chain: address, length, whether it is writable; `None` if it can't be walked.
fn walk(mem: &Mem, s: &RingSetup, head: u16) -> Option<Vec<(u64, u64, bool)>> {
    let (mut table, mut entries, mut i, mut indirect) = (s.desc, s.size, head, false);
    let mut all = Vec::new();
    loop {
        let mut b = [0; 16];
        mem.read_slice(&mut b, GuestAddress(table + 16 * u64::from(i))).expect("a table that was checked");
        let addr = u64::from_le_bytes(b[..8].try_into().unwrap());
        let len = u64::from(u32::from_le_bytes(b[8..12].try_into().unwrap()));
        let (flags, next) = (u16::from_le_bytes([b[12], b[13]]), u16::from_le_bytes([b[14], b[15]]));
        if flags & 4 != 0 {
            let whole = len != 0 && len % 16 == 0 && len / 16 <= u64::from(s.size);
            let sane = s.indirect && !indirect && flags & 1 == 0 && whole;
            if !sane || room_at(mem, addr) < len || addr % 8 != 0 {
                return None;
            }
            (table, entries, i, indirect) = (addr, (len / 16) as u16, 0, true);
            continue;
        }
        if all.len() == usize::from(s.size.min(MAX_DESCRIPTORS)) {
            return None;
        }
        all.push((addr, len, flags & 2 != 0));
        if flags & 1 == 0 {
            return Some(all);
        }
        if next >= entries {
            return None;
        }
        i = next;
    }
}

/// What the chain that starts with `head` is.
pub fn chain(mem: &Mem, s: &RingSetup, head: u16) -> Chain {
    let Some(all) = walk(mem, s, head) else { return Chain::Malformed };
    let readable = all.iter().take_while(|d| !d.2).count();
    let (read, write) = all.split_at(readable);
    let total: u64 = read.iter().map(|d| d.1).sum();
    let longest = (s.header_len + MAX_FRAME) as u64;
    let mapped = all.iter().all(|d| is_mapped(mem, d.0, d.1));
    if write.iter().any(|d| !d.2) || !mapped || total > longest || total < s.header_len as u64 {
        return Chain::Malformed;
    }
    let mut frame = Vec::new();
    for (gpa, len, _) in read.iter().filter(|d| d.1 > 0) {
        let at = frame.len();
        frame.resize(at + *len as usize, 0);
        mem.read_slice(&mut frame[at..], GuestAddress(*gpa)).expect("checked");
    }
    let mut frame = frame.split_off(s.header_len);
    let is_command = frame.len() >= 30 && frame[12..18] == [0x88, 0xb5, b'f', b'l', b'w', b'n'];
    if write.is_empty() {
        return match frame.len() {
            ..MIN_FRAME => Chain::Malformed,
            _ if is_command => {
                frame.truncate(KEPT);
                Chain::UserCommand(frame)
            }
            _ => Chain::Frame(frame),
        };
    }
    let room: u64 = write.iter().map(|d| d.1).sum();
    if !is_command || room < 16 {
        return Chain::Malformed;
    }
    frame.truncate(KEPT);
    Chain::KernelCommand(frame, write.iter().map(|d| (d.0, d.1)).collect())
}
