//! The dirty-page log of a migration, as the `vhost-user-backend` crate wants it: a bitmap per memory region that
//! can be replaced while the region is in use.
//!
//! The crate's own bitmap takes a lock for every marked page even when nobody migrates. This one is asked only
//! while `VHOST_F_LOG_ALL` is negotiated (the rings keep that flag), so it may be simple.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};

use vhost_user_backend::bitmap::{AtomicBitmapMmap, BitmapReplace, MemRegionBitmap, MmapLogReg};
use vm_memory::bitmap::{Bitmap, BitmapSlice, WithBitmapSlice};
use vm_memory::mmap::NewBitmap;
use vm_memory::{Address, GuestMemoryRegion};

/// `VHOST_LOG_PAGE` of the vhost-user specification, "Migration".
const LOG_PAGE: u64 = 4096;

/// The log of one memory region, or of a slice of it. Clones share the log.
#[derive(Clone, Default, Debug)]
pub struct DirtyLog {
    log: Arc<RwLock<Option<RegionLog>>>,
    offset: u64,
}

/// The part of the front end's log that belongs to one region.
#[derive(Clone, Debug)]
pub struct RegionLog {
    pages: Pages,
    region_start: u64,
    region_len: u64,
}

/// One bit per page of guest memory.
#[derive(Clone, Debug)]
enum Pages {
    FrontEnd(Arc<MmapLogReg>),
    #[cfg(any(test, feature = "testkit"))]
    Own(Arc<[std::sync::atomic::AtomicU8]>),
}

impl Pages {
    fn mark(&self, page: u64) {
        let (byte, bit) = ((page / 8) as usize, 1 << (page % 8));
        let byte = match self {
            Pages::FrontEnd(log) => &log[byte],
            #[cfg(any(test, feature = "testkit"))]
            Pages::Own(log) => &log[byte],
        };
        byte.fetch_or(bit, Ordering::Relaxed);
    }
}

impl DirtyLog {
    /// Marks `len` bytes from `offset` (of the region) as written. Does nothing before the front end gave a log.
    pub fn mark(&self, offset: u64, len: u64) {
        if let Some(log) = self.log.read().unwrap().as_ref() {
            log.mark(self.offset + offset, len);
        }
    }

    /// Logs the region into memory of our own, one bit per page from guest address 0: no front end is needed to see what
    /// a ring marks.
    #[cfg(any(test, feature = "testkit"))]
    pub fn record_in(&self, pages: Arc<[std::sync::atomic::AtomicU8]>, region_start: u64, region_len: u64) {
        *self.log.write().unwrap() = Some(RegionLog { pages: Pages::Own(pages), region_start, region_len });
    }

    /// Takes over the log of another region of the same table, unless there is one already: a region that is
    /// plugged in during a migration arrives without.
    pub fn adopt(&self, other: &DirtyLog, region_start: u64, region_len: u64) {
        if Arc::ptr_eq(&self.log, &other.log) {
            return;
        }
        let Some(theirs) = other.log.read().unwrap().clone() else { return };
        let mut own = self.log.write().unwrap();
        if own.is_none() && theirs.covers(region_start, region_len) {
            *own = Some(RegionLog { pages: theirs.pages, region_start, region_len });
        }
    }
}

impl RegionLog {
    fn mark(&self, offset: u64, len: u64) {
        if len == 0 || offset >= self.region_len {
            return;
        }
        let last = offset.saturating_add(len - 1).min(self.region_len - 1);
        let page = |offset: u64| (self.region_start + offset) / LOG_PAGE;
        (page(offset)..=page(last)).for_each(|page| self.pages.mark(page));
    }

    /// Whether the log is long enough for a region that is not the one it was made for. `MmapLogReg` does not tell
    /// its length; what is certain is that it reaches the end of the region that it was checked against.
    fn covers(&self, start: u64, len: u64) -> bool {
        start.saturating_add(len) <= self.region_start + self.region_len
    }
}

impl MemRegionBitmap for RegionLog {
    fn new<R: GuestMemoryRegion>(region: &R, logmem: Arc<MmapLogReg>) -> io::Result<Self> {
        // The crate's bitmap is made only for its check that the log covers the region.
        AtomicBitmapMmap::new(region, Arc::clone(&logmem))?;
        Ok(RegionLog {
            pages: Pages::FrontEnd(logmem),
            region_start: region.start_addr().raw_value(),
            region_len: region.len(),
        })
    }
}

impl BitmapReplace for DirtyLog {
    type InnerBitmap = RegionLog;

    fn replace(&self, bitmap: RegionLog) {
        *self.log.write().unwrap() = Some(bitmap);
    }
}

impl Bitmap for DirtyLog {
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.mark(offset as u64, len as u64);
    }

    /// Nobody here reads the log back: it belongs to the front end.
    fn dirty_at(&self, _offset: usize) -> bool {
        false
    }

    fn slice_at(&self, offset: usize) -> Self {
        DirtyLog { log: Arc::clone(&self.log), offset: self.offset + offset as u64 }
    }
}

impl WithBitmapSlice<'_> for DirtyLog {
    type S = Self;
}

impl BitmapSlice for DirtyLog {}

impl NewBitmap for DirtyLog {
    fn with_len(_len: usize) -> Self {
        Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU8;

    const START: u64 = 0x10_0000;

    fn log() -> Arc<[AtomicU8]> {
        (0..64).map(|_| AtomicU8::new(0)).collect()
    }

    /// Pages that are marked, from the start of the region.
    fn pages(log: &[AtomicU8]) -> Vec<u64> {
        let set = |page: &u64| log[(page / 8) as usize].load(Ordering::Relaxed) >> (page % 8) & 1 == 1;
        (0..8 * log.len() as u64).filter(set).map(|p| p - START / LOG_PAGE).collect()
    }

    /// Pages of a region of 16 pages that one mark leaves.
    fn marked(offset: u64, len: u64) -> Vec<u64> {
        let (dirty, log) = (DirtyLog::default(), log());
        dirty.record_in(Arc::clone(&log), START, 16 * LOG_PAGE);
        dirty.mark(offset, len);
        pages(&log)
    }

    #[test]
    fn every_page_that_was_written_to_is_marked_and_no_other() {
        assert_eq!(marked(0, 1), [0]);
        assert_eq!(marked(4095, 1), [0]);
        assert_eq!(marked(4095, 2), [0, 1]);
        assert_eq!(marked(4096, 4096), [1]);
        assert_eq!(marked(4096 * 7 + 100, 3 * 4096), [7, 8, 9, 10]);
        assert_eq!(marked(500, 0), [0u64; 0]);
    }

    #[test]
    fn nothing_is_marked_behind_the_region() {
        assert_eq!(marked(15 * 4096, 1 << 40), [15]);
        assert_eq!(marked(15 * 4096, u64::MAX), [15]);
        assert_eq!(marked(16 * 4096, 1), [0u64; 0]);
        assert_eq!(marked(u64::MAX, 1), [0u64; 0]);
    }

    #[test]
    fn without_a_log_nothing_happens_and_clones_get_it_too() {
        let (dirty, log) = (DirtyLog::default(), log());
        dirty.mark(0, 100);
        let (clone, slice) = (dirty.clone(), dirty.slice_at(4096).slice_at(4096));
        dirty.record_in(Arc::clone(&log), START, 16 * LOG_PAGE);
        clone.mark(0, 1);
        slice.mark_dirty(4095, 2);
        assert_eq!(pages(&log), [0, 2, 3]);
        assert!(!dirty.dirty_at(0), "nobody reads it back");
    }

    #[test]
    fn a_region_that_is_plugged_in_takes_over_the_log_if_it_reaches_that_far() {
        let (old, log) = (DirtyLog::default(), log());
        let new = DirtyLog::default();
        new.adopt(&old, START, LOG_PAGE);
        new.mark(0, 1);
        old.record_in(Arc::clone(&log), START, 16 * LOG_PAGE);
        new.adopt(&old, START + 16 * LOG_PAGE, LOG_PAGE);
        new.mark(0, 1);
        assert_eq!(pages(&log), [0u64; 0], "nobody knows how long the log is");
        new.adopt(&old, START - 4 * LOG_PAGE, 20 * LOG_PAGE);
        new.mark(4 * LOG_PAGE + 1, 1);
        assert_eq!(pages(&log), [0]);
    }

    #[test]
    fn a_region_keeps_the_log_that_it_has() {
        let (a, b) = (DirtyLog::default(), DirtyLog::default());
        let (log_a, log_b) = (log(), log());
        a.record_in(Arc::clone(&log_a), START, LOG_PAGE);
        b.record_in(Arc::clone(&log_b), START, LOG_PAGE);
        b.adopt(&a, START, LOG_PAGE);
        b.adopt(&b.clone(), START, LOG_PAGE);
        b.mark(0, 1);
        assert_eq!((pages(&log_a), pages(&log_b)), (vec![], vec![0]));
    }
}
