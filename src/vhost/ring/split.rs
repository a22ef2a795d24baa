//! The split virtqueue (virtio 1.4, 2.7): descriptor table, available ring, used ring, and both directions of
//! notification suppression.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};

use super::batch::BATCH;
use super::desc::{DESC_SIZE, Desc};
use super::layout::{Core, Head, Layout, part};
use super::memory::Memory;
use super::prefetch;
use super::setup::{RingFault, RingSetup};

const AVAIL_F_NO_INTERRUPT: u16 = 1;
const USED_F_NO_NOTIFY: u16 = 1;

/// An index that changes with every frame. Apart from its neighbours, because the compiler likes to load several small
/// fields at once, and such a load has to wait for the store to one of them to reach the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(align(8))]
struct Index(u16);

impl Index {
    fn plus(self, n: u16) -> Index {
        Index(self.0.wrapping_add(n))
    }

    /// How far this is ahead of `other`.
    fn since(self, other: Index) -> u16 {
        self.0.wrapping_sub(other.0)
    }
}

/// A started split ring: what receive and transmit rings have in common.
pub struct SplitRing {
    core: Core,
    desc: *const AtomicU64,
    /// `flags`, `idx`, `ring[size]`, `used_event`.
    avail: *const AtomicU16,
    /// `flags`, `idx`, `ring[size]` of 8 bytes, `avail_event`.
    used: *const AtomicU16,
    mask: u16,
    /// Next available entry to take.
    next_avail: Index,
    /// Available index at the last look.
    avail_seen: Index,
    /// Next used entry to write; entries from `published` on are not visible yet.
    next_used: Index,
    published: Index,
    /// Used index when the guest was last asked whether it wants a signal.
    signalled: Index,
}

// SAFETY: the pointers lead into mappings that `core` keeps alive; the ring is used by one thread at a time (it is
// owned by a slot's mutex) and the guest's side is accessed through atomics.
unsafe impl Send for SplitRing {}

impl SplitRing {
    pub(super) fn start(memory: Arc<Memory>, setup: RingSetup) -> Result<Self, RingFault> {
        let (desc, avail, used) = locate(&memory, &setup)?;
        let mut ring = SplitRing {
            core: Core::new(memory, setup),
            desc,
            avail,
            used,
            mask: setup.size - 1,
            next_avail: Index(setup.base),
            avail_seen: Index(setup.base),
            next_used: Index(0),
            published: Index(0),
            signalled: Index(0),
        };
        // The used index is the one piece of state that is only in guest memory (a restarted back end, or a
        // rebooted guest, see the vhost-user specification on SET_VRING_BASE).
        let used = Index(ring.used_idx().load(Ordering::Relaxed));
        (ring.next_used, ring.published, ring.signalled) = (used, used, used);
        Ok(ring)
    }

    pub(super) fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), RingFault> {
        (self.desc, self.avail, self.used) = locate(&memory, &self.core.setup)?;
        self.core.set_memory(memory);
        Ok(())
    }

    pub(super) fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    pub(super) fn base(&self) -> u16 {
        self.next_avail.0
    }

    fn avail_at(&self, index: usize) -> &AtomicU16 {
        debug_assert!(index < 3 + self.core.setup.size as usize);
        // SAFETY: locate() checked that the available ring, including used_event, is mapped and aligned.
        unsafe { &*self.avail.add(index) }
    }

    fn used_idx(&self) -> &AtomicU16 {
        // SAFETY: locate() checked that the used ring is mapped and aligned.
        unsafe { &*self.used.add(1) }
    }

    /// Entries that the guest has made available and nobody has taken; looks at guest memory only when it must.
    #[inline(always)]
    fn available(&mut self, wanted: u16) -> Result<u16, RingFault> {
        let known = self.avail_seen.since(self.next_avail);
        if known >= wanted {
            return Ok(known);
        }
        // Acquire: entries and descriptors are read after the index that announced them.
        let idx = Index(self.avail_at(1).load(Ordering::Acquire));
        let pending = idx.since(self.next_avail);
        if pending > self.core.setup.size {
            return Err(RingFault::AvailJump {
                from: self.next_avail.0,
                to: idx.0,
                size: self.core.setup.size,
            });
        }
        self.avail_seen = idx;
        Ok(pending)
    }

    /// The head of the `i`-th entry from the next on.
    #[inline(always)]
    fn head(&self, i: u16) -> Result<u16, RingFault> {
        let entry = self.next_avail.plus(i).0 & self.mask;
        let head = self.avail_at(2 + entry as usize).load(Ordering::Relaxed);
        if head > self.mask {
            return Err(RingFault::BadHead { entry, head, size: self.core.setup.size });
        }
        Ok(head)
    }

    #[inline(always)]
    fn prefetch_desc(&self, index: u16) {
        prefetch(self.desc.wrapping_add(2 * (index & self.mask) as usize));
    }

    /// The heads of entries `from..to`, counted from the next one, as far as they are known to be available. For
    /// fetching ahead only: a head that can't be is masked into the table here, and found by `head` in its turn.
    #[inline(always)]
    fn upcoming_heads(&self, from: u16, to: u16) -> impl Iterator<Item = u16> {
        (from..to.min(self.avail_seen.since(self.next_avail))).map(|i| {
            let entry = self.next_avail.plus(i).0 & self.mask;
            self.avail_at(2 + entry as usize).load(Ordering::Relaxed) & self.mask
        })
    }

    #[cold]
    fn log_used(&self) {
        let mut i = self.published;
        while i != self.next_used {
            self.memory().mark_dirty(self.core.setup.used + 4 + 8 * u64::from(i.0 & self.mask), 8);
            i = i.plus(1);
        }
        self.memory().mark_dirty(self.core.setup.used, 4);
    }

    pub(super) fn has_unsignalled(&self) -> bool {
        self.signalled != self.published
    }

    pub(super) fn unsignalled(&self) -> u16 {
        self.published.since(self.signalled)
    }

    pub(super) fn forgo_signal(&mut self) {
        self.signalled = self.published;
    }

    #[inline(always)]
    pub(super) fn is_signal_wanted(&self) -> bool {
        if self.signalled == self.published {
            return false;
        }
        // The used index must be visible before suppression is read: the guest does the two in the other order.
        fence(Ordering::SeqCst);
        if self.core.setup.event_idx {
            let event = self.avail_at(2 + self.core.setup.size as usize).load(Ordering::Relaxed);
            self.published.since(Index(event)).wrapping_sub(1) < self.published.since(self.signalled)
        } else {
            self.avail_at(0).load(Ordering::Relaxed) & AVAIL_F_NO_INTERRUPT == 0
        }
    }

    #[inline]
    pub(super) fn is_empty(&mut self) -> Result<bool, RingFault> {
        Ok(self.available(1)? == 0)
    }

    pub(super) fn want_kicks(&mut self) -> Result<bool, RingFault> {
        if self.core.setup.event_idx {
            self.set_avail_event(self.next_avail.0);
        } else {
            self.set_used_flags(0);
        }
        fence(Ordering::SeqCst);
        self.avail_seen = self.next_avail;
        Ok(self.available(1)? > 0)
    }

    pub(super) fn refuse_kicks(&mut self) {
        if self.core.setup.event_idx {
            // There is no "never": an event index just behind is the farthest in front, 65535 entries away.
            self.set_avail_event(self.next_avail.0.wrapping_sub(1));
        } else {
            self.set_used_flags(USED_F_NO_NOTIFY);
        }
    }

    fn set_avail_event(&self, value: u16) {
        let offset = 4 + 8 * self.core.setup.size as usize;
        // SAFETY: locate() checked that the used ring, including avail_event, is mapped and aligned.
        unsafe { (*self.used.add(offset / 2)).store(value, Ordering::Relaxed) };
        if self.core.setup.logging {
            self.memory().mark_dirty(self.core.setup.used + offset as u64, 2);
        }
    }

    fn set_used_flags(&self, flags: u16) {
        // SAFETY: locate() checked that the used ring is mapped and aligned.
        unsafe { (*self.used).store(flags, Ordering::Relaxed) };
        if self.core.setup.logging {
            self.memory().mark_dirty(self.core.setup.used, 2);
        }
    }
}

impl Layout for SplitRing {
    const PLAIN_TABLES: bool = false;

    #[inline(always)]
    fn core(&self) -> &Core {
        &self.core
    }

    #[inline(always)]
    fn find(&mut self, heads: &mut [Head; BATCH]) -> Result<usize, RingFault> {
        let n = (self.available(BATCH as u16)? as usize).min(BATCH);
        for (i, slot) in heads[..n].iter_mut().enumerate() {
            let head = self.head(i as u16)?;
            *slot = Head(head.into());
            self.prefetch_desc(head);
        }
        Ok(n)
    }

    #[inline(always)]
    fn first(&self, head: Head, _ahead: u16) -> Desc {
        self.desc(head.0 as u16)
    }

    #[inline(always)]
    fn places(_head: Head) -> u16 {
        1
    }

    #[inline(always)]
    fn peek(&mut self, ahead: u16) -> Result<Option<(Head, Desc)>, RingFault> {
        if self.available(ahead + 1)? <= ahead {
            return Ok(None);
        }
        let head = self.head(ahead)?;
        Ok(Some((Head(head.into()), self.desc(head))))
    }

    /// Its descriptors are found one after the other as they are used.
    #[inline(always)]
    fn find_rest(&self, head: Head, _first: Desc, _ahead: u16) -> Result<Head, RingFault> {
        Ok(head)
    }

    #[inline(always)]
    fn desc(&self, index: u16) -> Desc {
        debug_assert!(index <= self.mask);
        // SAFETY: the table is mapped for size entries and the index is masked into it.
        unsafe { Self::read_desc(self.desc.add(2 * (index & self.mask) as usize)) }
    }

    #[inline(always)]
    unsafe fn read_desc(p: *const AtomicU64) -> Desc {
        // SAFETY: the caller's contract; both words are read as atomics because the guest may write at any time.
        let (addr, rest) = unsafe { ((*p).load(Ordering::Relaxed), (*p.add(1)).load(Ordering::Relaxed)) };
        Desc { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    #[inline(always)]
    fn take(&mut self, places: u16) {
        self.next_avail = self.next_avail.plus(places);
    }

    #[inline(always)]
    fn put_used_up_to(&mut self, head: Head, len: u32, places: u16) {
        let slot = (self.next_used.0 & self.mask) as usize;
        let entry = (u64::from(head.0) | u64::from(len) << 32).to_le();
        // SAFETY: the used ring is mapped for size entries of 8 bytes behind flags and index. Its address is aligned to 4
        // only; the guest does not look before publish(), so it need not see the entry in one piece.
        unsafe { self.used.add(2 + 4 * slot).cast::<u64>().cast_mut().write_unaligned(entry) };
        self.next_used = self.next_used.plus(places);
    }

    #[inline(always)]
    fn publish(&mut self) {
        if self.published == self.next_used {
            return;
        }
        // Release: used entries and what was written to the buffers come first.
        self.used_idx().store(self.next_used.0, Ordering::Release);
        if self.core.setup.logging {
            self.log_used();
        }
        self.published = self.next_used;
    }

    #[inline(always)]
    fn look(&mut self) -> bool {
        self.available(BATCH as u16).is_ok()
    }

    #[inline(always)]
    fn upcoming(&self, from: u16, to: u16) -> impl Iterator<Item = Desc> {
        self.upcoming_heads(from, to).map(|head| self.desc(head))
    }

    #[inline(always)]
    fn fetch_descs(&self, from: u16, to: u16) {
        self.upcoming_heads(from, to).for_each(|head| self.prefetch_desc(head));
    }
}

type Located = (*const AtomicU64, *const AtomicU16, *const AtomicU16);

/// The host addresses of the ring's three parts, checked.
fn locate(memory: &Memory, s: &RingSetup) -> Result<Located, RingFault> {
    if !s.size.is_power_of_two() {
        return Err(RingFault::Size(s.size));
    }
    let entries = u64::from(s.size);
    Ok((
        part(memory, "descriptor table", s.desc, DESC_SIZE * entries, 16)?.cast(),
        part(memory, "available ring", s.avail, 6 + 2 * entries, 2)?.cast(),
        part(memory, "used ring", s.used, 6 + 8 * entries, 4)?.cast(),
    ))
}
