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
    #[inline(always)]
    pub fn translate(&self, gpa: u64) -> Option<(*mut u8, u64)> {
        for r in &self.regions {
            let offset = gpa.wrapping_sub(r.gpa);
            if offset < r.len {
                // SAFETY: offset < len, so the result stays inside the mapping.
                return Some((unsafe { r.host.add(offset as usize) }, r.len - offset));
            }
        }
        None
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
