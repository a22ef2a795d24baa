//! Guest memory as the rings see it: a snapshot of the region table with host addresses, checked once per access.

use std::sync::Arc;

use vm_memory::{Address, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::vhost::dirty::DirtyLog;

/// One mapped region.
struct Region {
    gpa: u64,
    len: u64,
    host: *mut u8,
    log: DirtyLog,
}

/// Where a region is: a copy that whoever looks up many addresses keeps beside the table that it is of.
#[derive(Clone, Copy)]
pub(super) struct Window {
    gpa: u64,
    len: u64,
    host: *mut u8,
}

impl Window {
    /// No region.
    pub(super) const NONE: Window = Window { gpa: 0, len: 0, host: std::ptr::null_mut() };

    /// As [`Memory::translate`], for addresses in this region.
    #[inline(always)]
    pub(super) fn translate(self, gpa: u64) -> Option<(*mut u8, u64)> {
        let offset = gpa.wrapping_sub(self.gpa);
        // In bounds of the mapping if the table still has it; only then the caller may follow the pointer.
        (offset < self.len).then(|| (self.host.wrapping_add(offset as usize), self.len - offset))
    }
}

/// A snapshot of the guest's memory table. The mappings live as long as it does.
pub struct Memory {
    regions: Vec<Region>,
    _mappings: Option<Arc<GuestMemoryMmap<DirtyLog>>>,
}

// SAFETY: the pointers lead into shared mappings that `_mappings` keeps alive; access through them is by copies
// that tolerate concurrent writers (the guest is one at any time), so which thread makes them is of no matter.
unsafe impl Send for Memory {}
// SAFETY: as above; `Memory` itself is never changed after it is built.
unsafe impl Sync for Memory {}

impl Memory {
    /// Takes the snapshot.
    pub fn new(mappings: Arc<GuestMemoryMmap<DirtyLog>>) -> Self {
        let mut regions: Vec<Region> = mappings
            .iter()
            .map(|r| Region {
                gpa: r.start_addr().raw_value(),
                len: r.len(),
                host: r.as_ptr(),
                log: r.bitmap(),
            })
            .collect();
        // The largest region holds nearly all buffers: let it be the first that is looked at.
        regions.sort_by_key(|r| std::cmp::Reverse(r.len));
        for i in 0..regions.len() {
            for other in &regions {
                regions[i].log.adopt(&other.log, regions[i].gpa, regions[i].len);
            }
        }
        Memory { regions, _mappings: Some(mappings) }
    }

    /// A table without a region: nothing can be translated.
    pub fn empty() -> Self {
        Memory { regions: Vec::new(), _mappings: None }
    }

    /// The host address of `gpa`, and how many bytes from there are mapped in one piece (never 0). `None` if the
    /// address is not the guest's.
    pub fn translate(&self, gpa: u64) -> Option<(*mut u8, u64)> {
        self.window(gpa).translate(gpa)
    }

    /// The region that `gpa` is in; [`Window::NONE`] if the address is not the guest's.
    pub(super) fn window(&self, gpa: u64) -> Window {
        let region = self.regions.iter().find(|r| gpa.wrapping_sub(r.gpa) < r.len);
        region.map_or(Window::NONE, |r| Window { gpa: r.gpa, len: r.len, host: r.host })
    }

    /// The host address of a whole range that must lie in one region.
    pub fn translate_range(&self, gpa: u64, len: u64) -> Option<*mut u8> {
        let (host, room) = self.translate(gpa)?;
        (room >= len).then_some(host)
    }

    /// Marks guest memory as written, in the migration log of its region.
    pub fn mark_dirty(&self, mut gpa: u64, mut len: u64) {
        while len > 0 {
            let Some(r) = self.regions.iter().find(|r| gpa.wrapping_sub(r.gpa) < r.len) else { return };
            let offset = gpa - r.gpa;
            let piece = len.min(r.len - offset);
            r.log.mark(offset, piece);
            gpa += piece;
            len -= piece;
        }
    }
}
