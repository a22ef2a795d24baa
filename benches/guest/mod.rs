//! A guest that costs nearly nothing: descriptors and available entries are written once, a burst is one store of the
//! available index.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use flownic::vhost::dirty::DirtyLog;
use flownic::vhost::ring::{Memory, RingSetup};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Entries of the ring: what it and its buffers take stays in the first-level cache.
pub(crate) const SIZE: u16 = 64;
/// Frames in a burst.
pub(crate) const BURST: u16 = 32;
/// Bytes of the virtio-net header.
pub(crate) const HEADER: usize = 12;
const WRITE: u16 = 2;
const NEXT: u16 = 1;
const INDIRECT: u16 = 4;

/// How a frame lies in descriptors.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)] // each bench has its own
pub(crate) enum Layout {
    /// Header and frame in one.
    One,
    /// The header in one, the frame in another one.
    Two,
    /// As `Two`, in an indirect table.
    Table,
}

/// A guest with one ring.
pub(crate) struct Guest {
    mem: GuestMemoryMmap<DirtyLog>,
    /// What the ring is started with.
    pub(crate) setup: RingSetup,
    /// All of its memory.
    pub(crate) memory: Arc<Memory>,
    idx: u16,
    /// Second words of a packed ring's descriptors, without the flags that make them available. Empty for a split ring.
    packed: Vec<u64>,
}

impl Guest {
    /// A transmit ring whose entries carry `frames` over and over.
    #[allow(dead_code)]
    pub(crate) fn sender(frames: &[Vec<u8>], layout: Layout) -> Self {
        let guest = Guest::new();
        let room = (HEADER + frames[0].len()).next_multiple_of(64) as u64 + 64;
        for i in 0..SIZE {
            let at = 0x1_0000 + u64::from(i) * room;
            let frame = &frames[usize::from(i) % frames.len()];
            guest.write(at + HEADER as u64, frame);
            let (header, len) = (HEADER as u32, frame.len() as u32);
            match layout {
                Layout::One => {
                    guest.desc(guest.setup.desc, i, (at, header + len, 0, 0));
                    guest.entry(i, i);
                }
                Layout::Two => {
                    // Heads have even numbers; the second half of the ring says the same as the first one.
                    let head = 2 * i % SIZE;
                    guest.desc(guest.setup.desc, head, (at, header, NEXT, head + 1));
                    guest.desc(guest.setup.desc, head + 1, (at + HEADER as u64, len, 0, 0));
                    guest.entry(i, head);
                }
                Layout::Table => {
                    let table = 0x8000 + 32 * u64::from(i);
                    guest.desc(table, 0, (at, header, NEXT, 1));
                    guest.desc(table, 1, (at + HEADER as u64, len, 0, 0));
                    guest.desc(guest.setup.desc, i, (table, 32, INDIRECT, 0));
                    guest.entry(i, i);
                }
            }
        }
        guest
    }

    /// A receive ring with mergeable buffers of this size.
    pub(crate) fn receiver(buffer: u32) -> Self {
        let mut guest = Guest::new();
        guest.setup.mergeable = true;
        let room = u64::from(buffer).next_multiple_of(64) + 64;
        for i in 0..SIZE {
            guest.desc(guest.setup.desc, i, (0x1_0000 + u64::from(i) * room, buffer, WRITE, 0));
            guest.entry(i, i);
        }
        guest
    }

    fn new() -> Self {
        let mem: GuestMemoryMmap<DirtyLog> =
            GuestMemoryMmap::from_ranges(&[(GuestAddress(0x1000), 0x20_0000)]).expect("memory");
        let setup = RingSetup {
            size: SIZE,
            desc: 0x1000,
            avail: 0x2040,
            used: 0x3080,
            event_idx: true,
            indirect: true,
            header_len: HEADER,
            ..RingSetup::default()
        };
        let memory = Arc::new(Memory::new(Arc::new(mem.clone())));
        Guest { mem, setup, memory, idx: 0, packed: Vec::new() }
    }

    /// The same with a packed ring: each descriptor of the table is a chain.
    #[allow(dead_code)]
    pub(crate) fn into_packed(mut self) -> Self {
        self.setup = RingSetup { packed: true, base: RingSetup::first_base(true), ..self.setup };
        for i in 0..SIZE {
            let at = GuestAddress(self.setup.desc + 16 * u64::from(i) + 8);
            let word: u64 = self.mem.load(at, Ordering::Relaxed).expect("guest memory");
            let (len, flags) = (word & 0xffff_ffff, word >> 32 & 0xffff);
            self.packed.push(len | u64::from(i) << 32 | flags << 48);
            self.mem.store(0u64, at, Ordering::Relaxed).expect("guest memory");
        }
        self
    }

    /// Makes descriptors available again, the first one of them last.
    fn offer_packed(&mut self, n: u16) {
        for idx in (0..n).rev().map(|i| self.idx.wrapping_add(i)) {
            let slot = idx % SIZE;
            let flag = if (idx / SIZE).is_multiple_of(2) { 1 << 7 } else { 1 << 15 };
            let word = self.packed[usize::from(slot)] | flag << 48;
            let at = GuestAddress(self.setup.desc + 16 * u64::from(slot) + 8);
            self.mem.store(word.to_le(), at, Ordering::Release).expect("guest memory");
        }
        self.idx = self.idx.wrapping_add(n);
    }

    fn write(&self, gpa: u64, bytes: &[u8]) {
        self.mem.write_slice(bytes, GuestAddress(gpa)).expect("guest memory");
    }

    fn desc(&self, table: u64, i: u16, (addr, len, flags, next): (u64, u32, u16, u16)) {
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.write(table + 16 * u64::from(i), &[addr.to_le_bytes(), rest.to_le_bytes()].concat());
    }

    fn entry(&self, i: u16, head: u16) {
        self.write(self.setup.avail + 4 + 2 * u64::from(i), &head.to_le_bytes());
    }

    /// Makes `n` more entries available.
    pub(crate) fn offer(&mut self, n: u16) {
        if self.setup.packed {
            return self.offer_packed(n);
        }
        self.idx = self.idx.wrapping_add(n);
        let at = GuestAddress(self.setup.avail + 2);
        self.mem.store(self.idx.to_le(), at, Ordering::Release).expect("guest memory");
    }
}
