//! A guest in ordinary memory with one ring, for tests.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use vm_memory::{
    Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, MmapRegion,
};

use super::desc::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE};
use super::{BatchStore, FrameBatch, Memory, RingSetup, RxRing, TxRing};
use crate::vhost::dirty::DirtyLog;
use crate::virtio::NetHeader;

/// Guest memory: two regions side by side, and one far away.
const REGIONS: [(u64, usize); 3] = [(0x1000, 0x20_0000), (BOUNDARY, 0x10_0000), (FAR, 0x1_0000)];
/// Where the first region ends and the second one begins.
pub(crate) const BOUNDARY: u64 = 0x20_1000;
/// Where the third region is.
pub(crate) const FAR: u64 = 0x1_0000_0000;
/// No guest memory is here.
pub(crate) const NOWHERE: u64 = 0x8000_0000;
/// Bytes per bit of the log.
pub(crate) const PAGE: u64 = 4096;

/// The device writes.
pub(crate) const WRITE: u16 = DESC_F_WRITE;
/// Another descriptor follows.
pub(crate) const NEXT: u16 = DESC_F_NEXT;
/// The buffer is a table of descriptors.
pub(crate) const INDIRECT: u16 = DESC_F_INDIRECT;

/// A packed ring's descriptor is available, or used, in laps with the wrap counter 1; the other way round in others.
pub(crate) const AVAIL: u16 = 1 << 7;
pub(crate) const USED: u16 = 1 << 15;

/// A descriptor: address, length, flags, next; in a packed ring the last one is the id.
pub(crate) type Desc = (u64, u32, u16, u16);

/// Makes a guest whose ring has so many entries.
pub(crate) type New = fn(u16) -> Guest;
/// With rings of either format.
pub(crate) const BOTH: [New; 2] = [Guest::new, Guest::packed];

/// A guest with one ring.
pub(crate) struct Guest {
    pub(crate) mem: Arc<GuestMemoryMmap<DirtyLog>>,
    pub(crate) setup: RingSetup,
    /// The same memory as the guest writes it: that is not logged.
    view: GuestMemoryMmap,
    log: Arc<[AtomicU8]>,
    /// The next available index.
    pub(crate) idx: u16,
    next_desc: u16,
    free: u64,
    seen_used: u16,
    /// Of a packed ring: where the driver and the device go on, and how many descriptors each chain has.
    avail_place: Place,
    used_place: Place,
    sizes: HashMap<u16, u16>,
}

/// A descriptor of a packed ring, and the wrap counter.
#[derive(Clone, Copy)]
struct Place {
    slot: u16,
    wrap: bool,
}

impl Place {
    fn from_base(base: u16) -> Self {
        Place { slot: base & 0x7fff, wrap: base >> 15 == 1 }
    }

    fn plus(self, n: u16, size: u16) -> Self {
        let turns = self.slot + n >= size;
        Place { slot: (self.slot + n) % size, wrap: self.wrap != turns }
    }
}

impl Guest {
    /// A ring of that many entries with 12-byte headers, and nothing negotiated but indirect descriptors.
    pub(crate) fn new(size: u16) -> Self {
        let mem = map();
        let n = u64::from(size);
        let [desc, avail, used] = [0x1000, 0x1000 + 16 * n, (0x1000 + 18 * n + 6).next_multiple_of(4)];
        let setup =
            RingSetup { size, desc, avail, used, indirect: true, header_len: 12, ..RingSetup::default() };
        let free = (used + 8 * n + 6).next_multiple_of(PAGE);
        let view = view(&mem);
        let start = Place::from_base(0);
        Guest {
            mem,
            setup,
            view,
            log: Arc::new([]),
            idx: 0,
            next_desc: 0,
            free,
            seen_used: 0,
            avail_place: start,
            used_place: start,
            sizes: HashMap::new(),
        }
    }

    /// The same with a packed ring.
    pub(crate) fn packed(size: u16) -> Self {
        let mut guest = Guest::new(size);
        let desc = guest.setup.desc;
        let avail = desc + 16 * u64::from(size);
        guest.setup = RingSetup { packed: true, avail, used: avail + 4, ..guest.setup };
        guest.start_at(RingSetup::first_base(true));
        guest
    }

    /// Both indices, or places in a packed ring with their wrap counters, start here.
    pub(crate) fn start_at(&mut self, idx: u16) {
        if self.setup.packed {
            self.setup.base = idx;
            (self.avail_place, self.used_place) = (Place::from_base(idx), Place::from_base(idx));
            return;
        }
        (self.idx, self.seen_used, self.setup.base) = (idx, idx, idx);
        self.write_u16(self.setup.avail + 2, idx);
        self.write_u16(self.setup.used + 2, idx);
    }

    /// What the ring writes is logged from now on.
    pub(crate) fn log(&mut self) {
        self.setup.logging = true;
        self.log = (0..(FAR / PAGE + 64) / 8).map(|_| AtomicU8::new(0)).collect();
        for r in self.mem.iter() {
            r.bitmap().record_in(Arc::clone(&self.log), r.start_addr().0, r.len());
        }
    }

    pub(crate) fn memory(&self) -> Arc<Memory> {
        Arc::new(Memory::new(Arc::clone(&self.mem)))
    }

    pub(crate) fn tx(&self) -> TxRing {
        TxRing::start(self.memory(), self.setup).unwrap()
    }

    pub(crate) fn rx(&self) -> RxRing {
        RxRing::start(self.memory(), self.setup).unwrap()
    }

    /// Bytes of the first region that nobody has, at a multiple of 16.
    pub(crate) fn alloc(&mut self, len: usize) -> u64 {
        let at = self.free;
        self.free = (at + len as u64).next_multiple_of(16);
        assert!(self.free <= BOUNDARY - PAGE, "guest memory is full");
        at
    }

    pub(crate) fn write(&self, gpa: u64, bytes: &[u8]) {
        self.view.write_slice(bytes, GuestAddress(gpa)).unwrap();
    }

    pub(crate) fn read(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.view.read_slice(&mut bytes, GuestAddress(gpa)).unwrap();
        bytes
    }

    pub(crate) fn write_u16(&self, gpa: u64, value: u16) {
        self.write(gpa, &value.to_le_bytes());
    }

    pub(crate) fn read_u16(&self, gpa: u64) -> u16 {
        u16::from_le_bytes(self.read(gpa, 2).try_into().unwrap())
    }

    /// Writes a descriptor into the table at `table`.
    pub(crate) fn write_desc(&self, table: u64, i: u16, (addr, len, flags, next): Desc) {
        let (third, fourth) = if self.setup.packed { (next, flags) } else { (flags, next) };
        let words =
            [addr, u64::from(len) | u64::from(third) << 32 | u64::from(fourth) << 48].map(u64::to_le_bytes);
        self.write(table + 16 * u64::from(i), &words.concat());
    }

    /// Makes a head available.
    pub(crate) fn offer(&mut self, head: u16) {
        self.write_u16(self.setup.avail + 4 + 2 * u64::from(self.idx % self.setup.size), head);
        self.idx = self.idx.wrapping_add(1);
        self.write_u16(self.setup.avail + 2, self.idx);
    }

    /// Makes a chain of these buffers available, linked in the ring's table; returns its head.
    pub(crate) fn chain(&mut self, buffers: &[(u64, u32, u16)]) -> u16 {
        if self.setup.packed {
            // The id is the first one's number, as if it were a head.
            let id = self.avail_place.slot;
            self.packed_chain(id, buffers);
            return id;
        }
        let head = self.next_desc;
        for (i, (addr, len, flags)) in buffers.iter().enumerate() {
            let at = self.next_desc;
            self.next_desc = (at + 1) % self.setup.size;
            let link = if i + 1 < buffers.len() { NEXT } else { 0 };
            self.write_desc(self.setup.desc, at, (*addr, *len, flags | link, self.next_desc));
        }
        self.offer(head);
        head
    }

    /// Makes a chain of these buffers available in a packed ring.
    pub(crate) fn packed_chain(&mut self, id: u16, buffers: &[(u64, u32, u16)]) {
        let n = buffers.len() as u16;
        // Backwards: the first one last.
        for (i, (addr, len, flags)) in buffers.iter().enumerate().rev() {
            let at = self.avail_place.plus(i as u16, self.setup.size);
            let link = if i + 1 < buffers.len() { NEXT } else { 0 };
            let flags = flags | link | if at.wrap { AVAIL } else { USED };
            // Only the last one's id counts.
            let id = if link == 0 { id } else { !id };
            self.write_desc(self.setup.desc, at.slot, (*addr, *len, flags, id));
        }
        self.sizes.insert(id, n);
        self.avail_place = self.avail_place.plus(n, self.setup.size);
    }

    /// Writes an indirect table of these buffers; returns its address and length.
    pub(crate) fn table(&mut self, buffers: &[(u64, u32, u16)]) -> (u64, u32) {
        let at = self.alloc(16 * buffers.len());
        for (i, (addr, len, flags)) in buffers.iter().enumerate() {
            let link = if i + 1 < buffers.len() { NEXT } else { 0 };
            self.write_desc(at, i as u16, (*addr, *len, flags | link, i as u16 + 1));
        }
        (at, 16 * buffers.len() as u32)
    }

    /// Sends header and frame as one buffer; returns the head.
    pub(crate) fn send(&mut self, frame: &[u8]) -> u16 {
        let bytes = [&vec![0; self.setup.header_len][..], frame].concat();
        let at = self.alloc(bytes.len());
        self.write(at, &bytes);
        self.chain(&[(at, bytes.len() as u32, 0)])
    }

    /// Posts a receive buffer, filled with 0xee; returns its address.
    pub(crate) fn post(&mut self, len: usize) -> u64 {
        let at = self.alloc(len);
        self.write(at, &vec![0xee; len]);
        self.chain(&[(at, len as u32, WRITE)]);
        at
    }

    /// How many chains were returned, of 65536 or in a packed ring since [`used`](Self::used) was called last.
    pub(crate) fn used_idx(&self) -> u16 {
        if self.setup.packed { self.packed_used().0.len() as u16 } else { self.read_u16(self.setup.used + 2) }
    }

    /// What is new in a packed ring, and where that ends.
    fn packed_used(&self) -> (Vec<(u32, u32)>, Place) {
        let (mut used, mut at) = (Vec::new(), self.used_place);
        while used.len() < self.sizes.len() {
            let b = self.read(self.setup.desc + 16 * u64::from(at.slot) + 8, 8);
            let half = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
            let (len, id, flags) = (u32::from_le_bytes(b[..4].try_into().unwrap()), half(4), half(6));
            if flags & (AVAIL | USED) != if at.wrap { AVAIL | USED } else { 0 } {
                break;
            }
            assert_eq!(flags & !(AVAIL | USED), if len == 0 { 0 } else { WRITE }, "WRITE: the length counts");
            used.push((id.into(), len));
            at = at.plus(self.sizes[&id], self.setup.size);
        }
        (used, at)
    }

    /// The number of places in a ring up to a base, if it began with the first one and has not wrapped.
    pub(crate) fn places(&self, base: u16) -> usize {
        usize::from(if self.setup.packed { base & 0x7fff } else { base })
    }

    /// What was returned since the last call: heads or ids, and lengths.
    pub(crate) fn used(&mut self) -> Vec<(u32, u32)> {
        if self.setup.packed {
            let (used, end) = self.packed_used();
            self.used_place = end;
            used.iter().for_each(|(id, _)| _ = self.sizes.remove(&(*id as u16)));
            return used;
        }
        let n = self.used_idx().wrapping_sub(self.seen_used);
        let entries = (0..n).map(|i| {
            let slot = u64::from(self.seen_used.wrapping_add(i) % self.setup.size);
            let b = self.read(self.setup.used + 4 + 8 * slot, 8);
            (u32::from_le_bytes(b[..4].try_into().unwrap()), u32::from_le_bytes(b[4..].try_into().unwrap()))
        });
        let entries = entries.collect();
        self.seen_used = self.used_idx();
        entries
    }

    /// The driver's event suppression of a packed ring: place and flags.
    pub(crate) fn set_driver_event(&self, place: u16, flags: u16) {
        self.write(self.setup.avail, &[place.to_le_bytes(), flags.to_le_bytes()].concat());
    }

    /// The device's.
    pub(crate) fn device_event(&self) -> (u16, u16) {
        (self.read_u16(self.setup.used), self.read_u16(self.setup.used + 2))
    }

    /// `used_event`: the guest wants a signal when this entry is returned.
    pub(crate) fn set_used_event(&self, value: u16) {
        self.write_u16(self.setup.avail + 4 + 2 * u64::from(self.setup.size), value);
    }

    /// `avail_event`: the device wants a kick when this entry is made available.
    pub(crate) fn avail_event(&self) -> u16 {
        self.read_u16(self.setup.used + 4 + 8 * u64::from(self.setup.size))
    }

    /// Pages that were marked since the last call, by number.
    pub(crate) fn marked(&self) -> BTreeSet<u64> {
        let bytes = self.log.iter().map(|b| b.swap(0, Ordering::Relaxed)).enumerate();
        let bits = bytes.flat_map(|(i, b)| (0..8).filter(move |n| b >> n & 1 == 1).map(move |n| 8 * i + n));
        bits.map(|page| page as u64).collect()
    }
}

/// Fresh guest memory.
fn map() -> Arc<GuestMemoryMmap<DirtyLog>> {
    let regions = REGIONS.iter().map(|&(gpa, len)| {
        let region: MmapRegion<DirtyLog> = MmapRegion::new(len).unwrap();
        GuestRegionMmap::new(region, GuestAddress(gpa)).unwrap()
    });
    Arc::new(GuestMemoryMmap::from_regions(regions.collect()).unwrap())
}

/// The same memory without a log. Not to be used without the original.
fn view(mem: &GuestMemoryMmap<DirtyLog>) -> GuestMemoryMmap {
    let regions = mem.iter().map(|r| {
        // SAFETY: mapped as long as the original.
        let region = unsafe { MmapRegion::build_raw(r.as_ptr(), r.size(), r.prot(), r.flags()) };
        GuestRegionMmap::new(region.unwrap(), r.start_addr()).unwrap()
    });
    GuestMemoryMmap::from_regions(regions.collect()).unwrap()
}

/// `len` bytes, all different from their neighbours, and different for each `seed`.
pub(crate) fn noise(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) * 7 + (i + seed) / 251) as u8).collect()
}

/// The frames of a batch, whole, each with its header.
pub(crate) fn frames(batch: &FrameBatch<'_>) -> Vec<(NetHeader, Vec<u8>)> {
    (0..batch.len())
        .map(|i| {
            let mut frame = vec![0; batch.frame(i).len()];
            batch.copy_frame(i, &mut frame);
            (batch.frame(i).net, frame)
        })
        .collect()
}

/// Takes one burst from the ring and returns it to the guest.
pub(crate) fn take(ring: &mut TxRing) -> Vec<(NetHeader, Vec<u8>)> {
    let mut store = BatchStore::default();
    let frames = frames(&ring.pop(&mut store).unwrap());
    ring.complete();
    frames
}
