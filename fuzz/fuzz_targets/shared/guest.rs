//! Guest memory with guard pages around every region, in several layouts of the same bytes.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock};

use flownic::vhost::dirty::DirtyLog;
use flownic::vhost::ring::Memory;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// Where guest memory starts.
pub const BASE: u64 = 0x1_0000;
/// Bytes of it.
pub const TOTAL: usize = 32 * PAGE;
/// Where the first layout has its boundary between two regions, from [`BASE`].
pub const SPLIT: usize = 20 * PAGE;
/// Size of a page, here and in the log.
pub const PAGE: usize = 4096;

/// Regions of each layout: offset from [`BASE`] and length. The last one lacks the place where rings usually are.
const LAYOUTS: [&[(usize, usize)]; 4] = [
    &[(0, SPLIT), (SPLIT, TOTAL - SPLIT)],
    &[(0, TOTAL)],
    &[(0, 6 * PAGE), (7 * PAGE, 4 * PAGE), (11 * PAGE, TOTAL - 11 * PAGE)],
    &[(8 * PAGE, TOTAL - 8 * PAGE)],
];

/// A memory table, as the rings and as the reference see it.
pub struct Table {
    pub plain: Arc<GuestMemoryMmap<DirtyLog>>,
    pub rings: Arc<Memory>,
}

/// The guest's memory. One fuzzing thread uses it.
pub struct Guest {
    view: *mut u8,
    pattern: Vec<u8>,
    log: Arc<[AtomicU8]>,
    pub tables: Vec<Table>,
}

// SAFETY: the fuzzer runs its target in one thread.
unsafe impl Send for Guest {}
// SAFETY: as above.
unsafe impl Sync for Guest {}

pub static GUEST: LazyLock<Guest> = LazyLock::new(Guest::new);

impl Guest {
    fn new() -> Self {
        let name = CString::new("guest").unwrap();
        // SAFETY: a new descriptor, owned by the file.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(TOTAL as u64).expect("a memory file");
        let log: Arc<[AtomicU8]> =
            (0..(BASE as usize + TOTAL) / PAGE / 8 + 1).map(|_| AtomicU8::new(0)).collect();
        let table = |layout: &&[(usize, usize)]| {
            let regions = layout.iter().map(|&(offset, len)| {
                let region_log = DirtyLog::default();
                region_log.record_in(Arc::clone(&log), BASE + offset as u64, len as u64);
                // SAFETY: the mapping stays for ever.
                let region = unsafe {
                    vm_memory::mmap::MmapRegionBuilder::new_with_bitmap(len, region_log)
                        .with_raw_mmap_pointer(map(&file, offset, len))
                        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
                        .with_mmap_flags(libc::MAP_SHARED)
                        .build()
                };
                let region: MmapRegion<DirtyLog> = region.expect("a mapped region");
                GuestRegionMmap::new(region, GuestAddress(BASE + offset as u64)).expect("low addresses")
            });
            let plain =
                Arc::new(GuestMemoryMmap::from_regions(regions.collect()).expect("ascending regions"));
            Table { rings: Arc::new(Memory::new(Arc::clone(&plain))), plain }
        };
        let mut x = 1u32;
        let pattern = std::iter::repeat_with(|| {
            x = x.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
            (x >> 24) as u8
        });
        Guest {
            view: map(&file, 0, TOTAL),
            pattern: pattern.take(TOTAL).collect(),
            tables: LAYOUTS.iter().map(table).collect(),
            log,
        }
    }

    /// Fills everything with the same noise, the first `zeroes` bytes with zeroes.
    pub fn reset(&self, zeroes: usize) {
        let zero = vec![0; zeroes];
        self.write(0, &zero);
        self.write(zeroes, &self.pattern[zeroes..]);
    }

    /// A copy of all memory.
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes().to_vec()
    }

    /// All memory. Don't keep it while a ring works.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for TOTAL bytes, and nobody writes while the slice is in use.
        unsafe { std::slice::from_raw_parts(self.view, TOTAL) }
    }

    /// The guest writes, as far as it is in memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let offset = offset.min(TOTAL);
        let n = bytes.len().min(TOTAL - offset);
        // SAFETY: bounded by the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.view.add(offset), n) }
    }

    /// The pages (by number, from [`BASE`]) that were logged since the last call.
    pub fn take_log(&self) -> u64 {
        let mut pages = 0u64;
        for (i, byte) in self.log.iter().enumerate() {
            let bits = byte.swap(0, Ordering::Relaxed);
            for bit in (0..8).filter(|b| bits >> b & 1 == 1) {
                let page = (8 * i + bit).checked_sub(BASE as usize / PAGE).expect("a page of the guest");
                pages |= 1 << page;
            }
        }
        pages
    }
}

/// Maps part of the file between two pages that fault.
fn map(file: &File, offset: usize, len: usize) -> *mut u8 {
    // SAFETY: a fresh reservation, of which the inner part is replaced.
    unsafe {
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let outer = libc::mmap(std::ptr::null_mut(), len + 2 * PAGE, libc::PROT_NONE, none, -1, 0);
        assert_ne!(outer, libc::MAP_FAILED);
        let inner = outer.add(PAGE);
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let shared = libc::MAP_SHARED | libc::MAP_FIXED;
        assert_eq!(libc::mmap(inner, len, rw, shared, file.as_raw_fd(), offset as i64), inner);
        inner.cast()
    }
}
