//! Guest memory: shared files mapped here and, through their descriptors, in the back end.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, RwLock};

use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestMemoryRegion, GuestRegionCollection,
    GuestRegionMmap,
};

/// Bytes in a page of the dirty log.
pub const PAGE: u64 = 4096;

/// The smallest piece the allocator hands out, so that neighbours never share a cache line.
const SMALLEST: u64 = 64;

/// A region as the back end is told about it.
#[derive(Debug, Clone)]
pub struct Region {
    /// Guest-physical address of the first byte.
    pub gpa: u64,
    /// Bytes.
    pub size: u64,
    /// The address the front end claims to have mapped it at; invented, and in another order than `gpa`.
    pub user: u64,
    /// Where the region starts in its file.
    pub offset: u64,
    file: Arc<File>,
}

impl Region {
    /// The descriptor of the file behind the region.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// As in SET_MEM_TABLE: four 64-bit words.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.gpa, self.size, self.user, self.offset].iter().flat_map(|v| v.to_ne_bytes()).collect()
    }

    /// As in ADD_MEM_REG and REM_MEM_REG: with a word of padding in front.
    pub fn to_single_bytes(&self) -> Vec<u8> {
        [vec![0; 8], self.to_bytes()].concat()
    }

    fn contains(&self, gpa: u64) -> bool {
        gpa >= self.gpa && gpa - self.gpa < self.size
    }
}

/// An unlinked file in memory, `size` bytes of zeroes.
pub fn shared_file(size: u64) -> File {
    let make = |dir: &std::path::Path| {
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC).open(dir)
    };
    let file = make(std::path::Path::new("/dev/shm"))
        .or_else(|_| make(&std::env::temp_dir()))
        .expect("/dev/shm or the temporary directory takes an unnamed file");
    file.set_len(size).expect("room for a sparse file");
    file
}

#[derive(Default)]
struct Pool {
    /// Next unused address and end, per region, in the order of `regions`.
    fresh: Vec<(u64, u64)>,
    /// Pieces given back, by size class.
    free: HashMap<u64, Vec<u64>>,
    turn: usize,
    /// How many regions `alloc` takes from: those that are always there.
    common: usize,
}

/// The memory of one guest, with an allocator.
pub struct Ram {
    regions: RwLock<Vec<Region>>,
    map: RwLock<GuestMemoryMmap>,
    pool: Mutex<Pool>,
}

impl Ram {
    /// Maps `layout`, pairs of guest-physical address and size, ascending. All regions lie in one file one after
    /// the other, as with QEMU's memory back end on either side of the hole below 4 GiB.
    pub fn new(layout: &[(u64, u64)]) -> Self {
        let file = Arc::new(shared_file(layout.iter().map(|r| r.1).sum()));
        let mut offset = 0;
        let mut regions = Vec::new();
        for (i, &(gpa, size)) in layout.iter().enumerate() {
            regions.push(Region { gpa, size, user: invented_user_address(i), offset, file: file.clone() });
            offset += size;
        }
        let maps = regions.iter().map(map_region).collect();
        let map = GuestRegionCollection::from_regions(maps).expect("regions ascend and do not overlap");
        // Page 0 stays free as in any guest; some back ends take a ring at address 0 for one that is not set.
        let fresh = regions.iter().map(|r| (r.gpa.max(PAGE), r.gpa + r.size)).collect();
        Ram {
            regions: RwLock::new(regions),
            map: RwLock::new(map),
            pool: Mutex::new(Pool { common: layout.len(), fresh, ..Pool::default() }),
        }
    }

    /// The regions as they are now.
    pub fn regions(&self) -> Vec<Region> {
        self.regions.read().unwrap().clone()
    }

    /// Maps one more region, with a file of its own. Only [`Ram::alloc_in`] takes from it, so that it can be unplugged.
    pub fn plug(&self, gpa: u64, size: u64) -> Region {
        let mut regions = self.regions.write().unwrap();
        let user = invented_user_address(regions.len());
        let region = Region { gpa, size, user, offset: 0, file: Arc::new(shared_file(size)) };
        let mut map = self.map.write().unwrap();
        let more = map.insert_region(Arc::new(map_region(&region))).expect("a region that overlaps no other");
        *map = more;
        regions.push(region.clone());
        self.pool.lock().unwrap().fresh.push((gpa, gpa + size));
        region
    }

    /// Forgets the plugged region at `gpa`; what is allocated there must not be used again.
    pub fn unplug(&self, gpa: u64) -> Region {
        let mut regions = self.regions.write().unwrap();
        let at = regions.iter().position(|r| r.gpa == gpa).expect("a region starts at this address");
        let gone = regions.remove(at);
        let mut map = self.map.write().unwrap();
        let less = map.remove_region(GuestAddress(gpa), gone.size).expect("a mapped region").0;
        *map = less;
        let mut pool = self.pool.lock().unwrap();
        assert!(at >= pool.common, "only what was plugged can be unplugged");
        pool.fresh.remove(at);
        gone
    }

    /// Takes `len` bytes at an address that is a multiple of 64, from each region in turn.
    pub fn alloc(&self, len: u64) -> u64 {
        let mut pool = self.pool.lock().unwrap();
        let size = class(len);
        if let Some(gpa) = pool.free.get_mut(&size).and_then(Vec::pop) {
            return gpa;
        }
        for _ in 0..pool.common {
            pool.turn += 1;
            let turn = pool.turn % pool.common;
            if let Some(gpa) = take(&mut pool.fresh[turn], size) {
                return gpa;
            }
        }
        panic!("guest memory has no {size} bytes left; give the guest more with Builder::memory");
    }

    /// Takes `len` bytes from the region that holds `gpa`.
    pub fn alloc_in(&self, gpa: u64, len: u64) -> u64 {
        let at = self.regions.read().unwrap().iter().position(|r| r.contains(gpa)).expect("a region there");
        let mut pool = self.pool.lock().unwrap();
        take(&mut pool.fresh[at], class(len)).expect("room in that region")
    }

    /// Gives back what `alloc(len)` returned. What came from `alloc_in` stays used.
    pub fn free(&self, gpa: u64, len: u64) {
        let region = self.regions.read().unwrap().iter().position(|r| r.contains(gpa));
        let mut pool = self.pool.lock().unwrap();
        if region.is_some_and(|at| at < pool.common) {
            pool.free.entry(class(len)).or_default().push(gpa);
        }
    }

    /// The front end's address of `gpa`, as SET_VRING_ADDR wants it.
    pub fn user_address(&self, gpa: u64) -> Option<u64> {
        let regions = self.regions.read().unwrap();
        regions.iter().find(|r| r.contains(gpa)).map(|r| r.user + (gpa - r.gpa))
    }

    /// Writes `bytes` at `gpa`, which must lie in mapped memory.
    pub fn write(&self, gpa: u64, bytes: &[u8]) {
        self.map.read().unwrap().write_slice(bytes, GuestAddress(gpa)).expect("mapped guest memory");
    }

    /// Reads `len` bytes from `gpa`, which must lie in mapped memory.
    pub fn read(&self, gpa: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.read().unwrap().read_slice(&mut bytes, GuestAddress(gpa)).expect("mapped guest memory");
        bytes
    }

    /// Stores a little-endian 16-bit field with release order.
    pub fn store16(&self, gpa: u64, value: u16) {
        let map = self.map.read().unwrap();
        map.store(value.to_le(), GuestAddress(gpa), Ordering::Release).expect("an aligned, mapped field");
    }

    /// Loads a little-endian 16-bit field with acquire order.
    pub fn load16(&self, gpa: u64) -> u16 {
        let map = self.map.read().unwrap();
        u16::from_le(map.load(GuestAddress(gpa), Ordering::Acquire).expect("an aligned, mapped field"))
    }
}

/// Spread far apart and descending, so that no offset that works for one region works for another.
fn invented_user_address(index: usize) -> u64 {
    0x7a00_0000_0000 - index as u64 * 0x11_0000_0000
}

fn map_region(r: &Region) -> GuestRegionMmap {
    let file = FileOffset::from_arc(r.file.clone(), r.offset);
    let region = GuestRegionMmap::from_range(GuestAddress(r.gpa), r.size as usize, Some(file));
    let region = region.expect("a region of whole pages");
    debug_assert_eq!(region.len(), r.size);
    region
}

fn class(len: u64) -> u64 {
    len.max(SMALLEST).next_power_of_two()
}

fn take(fresh: &mut (u64, u64), size: u64) -> Option<u64> {
    let aligned = fresh.0.next_multiple_of(size.min(PAGE));
    let end = aligned.checked_add(size).filter(|&end| end <= fresh.1)?;
    fresh.0 = end;
    Some(aligned)
}

/// The dirty log of a migration: one bit per page of guest-physical address, shared with the back end.
pub struct DirtyLog {
    file: File,
    size: u64,
}

impl DirtyLog {
    /// A clean log that reaches past the last of `regions`.
    pub fn new(regions: &[Region]) -> Self {
        let end = regions.iter().map(|r| r.gpa + r.size).max().unwrap_or(PAGE);
        let size = (end.div_ceil(PAGE)).div_ceil(64) * 8;
        DirtyLog { file: shared_file(size), size }
    }

    /// Bytes in the bitmap.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The descriptor to send with SET_LOG_BASE.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Numbers of the pages marked so far.
    pub fn pages(&self) -> BTreeSet<u64> {
        let mut bits = vec![0; self.size as usize];
        self.file.read_exact_at(&mut bits, 0).expect("the log file");
        let marked = bits.iter().enumerate().filter(|(_, b)| **b != 0);
        marked
            .flat_map(|(i, &b)| (0..8).filter(move |n| b >> n & 1 == 1).map(move |n| i as u64 * 8 + n))
            .collect()
    }

    /// Clears the log; only while no traffic flows, since a mark made meanwhile would be lost.
    pub fn clear(&self) {
        self.file.write_all_at(&vec![0; self.size as usize], 0).expect("the log file");
    }

    /// The pages of `[gpa, gpa + len)` that are not marked.
    pub fn unmarked(&self, gpa: u64, len: u64) -> Vec<u64> {
        let pages = self.pages();
        (gpa / PAGE..=(gpa + len.max(1) - 1) / PAGE).filter(|p| !pages.contains(p)).collect()
    }
}
