//! The split virtqueue (virtio 1.4, 2.7): descriptor table, available ring, used ring, and both directions of
//! notification suppression.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering, fence};

use thiserror::Error;

use super::memory::{Memory, Window};
use super::prefetch;

/// `VIRTQ_DESC_F_NEXT` (2.7.5).
pub(super) const DESC_F_NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`: the device writes.
pub(super) const DESC_F_WRITE: u16 = 2;
/// `VIRTQ_DESC_F_INDIRECT` (2.7.5.3).
pub(super) const DESC_F_INDIRECT: u16 = 4;
/// Size of a descriptor.
pub(super) const DESC_SIZE: u64 = 16;
const AVAIL_F_NO_INTERRUPT: u16 = 1;
const USED_F_NO_NOTIFY: u16 = 1;

/// What the front end said about a ring before it started.
#[derive(Debug, Clone, Copy, Default)]
pub struct RingSetup {
    /// Entries, a power of two up to 32768.
    pub size: u16,
    /// Guest address of the descriptor table.
    pub desc: u64,
    /// Guest address of the available ring.
    pub avail: u64,
    /// Guest address of the used ring.
    pub used: u64,
    /// First available entry that has not been taken (`SET_VRING_BASE`).
    pub base: u16,
    /// `VIRTIO_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC` was negotiated.
    pub indirect: bool,
    /// Bytes of the virtio-net header: 12, or 10 for a legacy driver without mergeable buffers (5.1.6).
    pub header_len: usize,
    /// `VIRTIO_NET_F_MRG_RXBUF` was negotiated (matters for receive rings).
    pub mergeable: bool,
    /// Pages that are written must be marked in the migration log.
    pub logging: bool,
    /// Commands to the NIC itself are taken out of a transmit ring (in-band channel).
    pub in_band: bool,
}

/// Why a ring can't start or has stopped: the guest or its front end broke the ring's own rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RingFault {
    /// Sizes of split rings are powers of two (2.7).
    #[error("Ring size {0} is not a power of two between 1 and 32768")]
    Size(u16),
    /// Part of the ring is outside of the guest's memory.
    #[error("The {part} at guest address {gpa:#x} is not wholly inside one region of guest memory")]
    Unmapped {
        /// Which part.
        part: &'static str,
        /// Where.
        gpa: u64,
    },
    /// 2.7: descriptor table 16, available ring 2, used ring 4 bytes.
    #[error("The {part} at guest address {gpa:#x} is not aligned to {align} bytes")]
    Misaligned {
        /// Which part.
        part: &'static str,
        /// Where.
        gpa: u64,
        /// To what.
        align: usize,
    },
    /// The available index moved by more than the ring's size.
    #[error("The available index jumped from {from} to {to} in a ring of {size} entries")]
    AvailJump {
        /// The entry that was next.
        from: u16,
        /// What the guest wrote.
        to: u16,
        /// Entries.
        size: u16,
    },
    /// An available entry names a descriptor that does not exist.
    #[error("Available entry {entry} names descriptor {head} in a table of {size}")]
    BadHead {
        /// Position in the available ring.
        entry: u16,
        /// The descriptor's number.
        head: u16,
        /// Entries.
        size: u16,
    },
}

/// A descriptor as it was read, once.
#[derive(Clone, Copy, Default)]
pub(super) struct Desc {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    pub(super) next: u16,
}

impl Desc {
    /// Reads the descriptor at `p`.
    ///
    /// # Safety
    /// `p` must be mapped for 16 bytes and aligned to 8.
    #[inline(always)]
    pub(super) unsafe fn read(p: *const AtomicU64) -> Desc {
        // SAFETY: the caller's contract; both words are read as atomics because the guest may write at any time.
        let (addr, rest) = unsafe { ((*p).load(Ordering::Relaxed), (*p.add(1)).load(Ordering::Relaxed)) };
        Desc { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }
}

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
    memory: Arc<Memory>,
    /// The region of `memory` in which the last buffer was that was not in the one before: nearly all are in the same.
    window: Cell<Window>,
    setup: RingSetup,
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

// SAFETY: the pointers lead into mappings that `memory` keeps alive; the ring is used by one thread at a time (it is
// owned by a slot's mutex) and the guest's side is accessed through atomics.
unsafe impl Send for SplitRing {}

impl SplitRing {
    pub(super) fn start(memory: Arc<Memory>, setup: RingSetup) -> Result<Self, RingFault> {
        let (desc, avail, used) = locate(&memory, &setup)?;
        let mut ring = SplitRing {
            memory,
            window: Cell::new(Window::NONE),
            setup,
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

    /// Goes over to another memory table, with the same ring addresses.
    pub fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), RingFault> {
        (self.desc, self.avail, self.used) = locate(&memory, &self.setup)?;
        self.memory = memory;
        self.window.set(Window::NONE);
        Ok(())
    }

    /// Switches the migration log on or off.
    pub fn set_logging(&mut self, on: bool) {
        self.setup.logging = on;
    }

    /// Next available entry: what `GET_VRING_BASE` answers. Nothing is in flight between calls.
    pub fn base(&self) -> u16 {
        self.next_avail.0
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// As [`Memory::translate`].
    #[inline(always)]
    pub(super) fn translate(&self, gpa: u64) -> Option<(*mut u8, u64)> {
        self.window.get().translate(gpa).or_else(|| self.look_elsewhere(gpa))
    }

    #[cold]
    fn look_elsewhere(&self, gpa: u64) -> Option<(*mut u8, u64)> {
        self.window.set(self.memory.window(gpa));
        self.window.get().translate(gpa)
    }

    pub(super) fn setup(&self) -> &RingSetup {
        &self.setup
    }

    fn avail_at(&self, index: usize) -> &AtomicU16 {
        debug_assert!(index < 3 + self.setup.size as usize);
        // SAFETY: locate() checked that the available ring, including used_event, is mapped and aligned.
        unsafe { &*self.avail.add(index) }
    }

    fn used_idx(&self) -> &AtomicU16 {
        // SAFETY: locate() checked that the used ring is mapped and aligned.
        unsafe { &*self.used.add(1) }
    }

    /// Entries that the guest has made available and nobody has taken; looks at guest memory only when it must.
    #[inline(always)]
    pub(super) fn available(&mut self, wanted: u16) -> Result<u16, RingFault> {
        let known = self.avail_seen.since(self.next_avail);
        if known >= wanted {
            return Ok(known);
        }
        // Acquire: entries and descriptors are read after the index that announced them.
        let idx = Index(self.avail_at(1).load(Ordering::Acquire));
        let pending = idx.since(self.next_avail);
        if pending > self.setup.size {
            return Err(RingFault::AvailJump { from: self.next_avail.0, to: idx.0, size: self.setup.size });
        }
        self.avail_seen = idx;
        Ok(pending)
    }

    /// The head of the `i`-th entry from the next on.
    #[inline(always)]
    pub(super) fn head(&self, i: u16) -> Result<u16, RingFault> {
        let entry = self.next_avail.plus(i).0 & self.mask;
        let head = self.avail_at(2 + entry as usize).load(Ordering::Relaxed);
        if head > self.mask {
            return Err(RingFault::BadHead { entry, head, size: self.setup.size });
        }
        Ok(head)
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.setup.size
    }

    /// Descriptor `index`, which must be below the ring's size.
    #[inline(always)]
    pub(super) fn desc(&self, index: u16) -> Desc {
        debug_assert!(index <= self.mask);
        // SAFETY: the table is mapped for size entries and the index is masked into it.
        unsafe { Desc::read(self.desc.add(2 * (index & self.mask) as usize)) }
    }

    #[inline(always)]
    pub(super) fn prefetch_desc(&self, index: u16) {
        prefetch(self.desc.wrapping_add(2 * (index & self.mask) as usize));
    }

    /// The heads of entries `from..to`, counted from the next one, as far as they are known to be available. For
    /// fetching ahead only: a head that can't be is masked into the table here, and found by `head` in its turn.
    #[inline(always)]
    pub(super) fn upcoming(&self, from: u16, to: u16) -> impl Iterator<Item = u16> {
        (from..to.min(self.avail_seen.since(self.next_avail))).map(|i| {
            let entry = self.next_avail.plus(i).0 & self.mask;
            self.avail_at(2 + entry as usize).load(Ordering::Relaxed) & self.mask
        })
    }

    /// Takes `n` entries.
    #[inline(always)]
    pub(super) fn advance(&mut self, n: u16) {
        self.next_avail = self.next_avail.plus(n);
    }

    /// Returns a chain of which `len` bytes were written. The guest sees it after [`publish`](Self::publish).
    #[inline(always)]
    pub(super) fn put_used(&mut self, head: u16, len: u32) {
        let slot = (self.next_used.0 & self.mask) as usize;
        let entry = (u64::from(head) | u64::from(len) << 32).to_le();
        // SAFETY: the used ring is mapped for size entries of 8 bytes behind flags and index. Its address is aligned to 4
        // only; the guest does not look before publish(), so it need not see the entry in one piece.
        unsafe { self.used.add(2 + 4 * slot).cast::<u64>().cast_mut().write_unaligned(entry) };
        self.next_used = self.next_used.plus(1);
    }

    /// Makes the returned chains visible: one store for the whole burst.
    #[inline(always)]
    pub(super) fn publish(&mut self) {
        if self.published == self.next_used {
            return;
        }
        // Release: used entries and what was written to the buffers come first.
        self.used_idx().store(self.next_used.0, Ordering::Release);
        if self.setup.logging {
            self.log_used();
        }
        self.published = self.next_used;
    }

    #[cold]
    fn log_used(&self) {
        let mut i = self.published;
        while i != self.next_used {
            self.memory.mark_dirty(self.setup.used + 4 + 8 * u64::from(i.0 & self.mask), 8);
            i = i.plus(1);
        }
        self.memory.mark_dirty(self.setup.used, 4);
    }

    /// Whether anything was published since [`wants_signal`](Self::wants_signal) was last asked.
    pub fn has_unsignalled(&self) -> bool {
        self.signalled != self.published
    }

    /// Entries that were published since [`wants_signal`](Self::wants_signal) was last asked.
    pub fn unsignalled(&self) -> u16 {
        self.published.since(self.signalled)
    }

    /// The guest need not be signalled for what was published so far: it has been, or does not want to be.
    pub fn forgo_signal(&mut self) {
        self.signalled = self.published;
    }

    /// Whether the guest wants to be signalled for what was published since it was last asked (2.7.7, 2.7.10). It is asked
    /// once for each entry.
    #[inline(always)]
    pub fn wants_signal(&mut self) -> bool {
        let wanted = self.is_signal_wanted();
        self.signalled = self.published;
        wanted
    }

    /// The same, and it may be asked again: for who may hold the signal. As long as the guest wants it at each burst it goes on
    /// wanting it for all of them; if it does not, it has looked at the ring since, or will.
    #[inline(always)]
    pub fn is_signal_wanted(&self) -> bool {
        if self.signalled == self.published {
            return false;
        }
        // The used index must be visible before suppression is read: the guest does the two in the other order.
        fence(Ordering::SeqCst);
        if self.setup.event_idx {
            let event = self.avail_at(2 + self.setup.size as usize).load(Ordering::Relaxed);
            self.published.since(Index(event)).wrapping_sub(1) < self.published.since(self.signalled)
        } else {
            self.avail_at(0).load(Ordering::Relaxed) & AVAIL_F_NO_INTERRUPT == 0
        }
    }

    /// Whether the guest has made nothing available that was not taken.
    #[inline]
    pub fn is_empty(&mut self) -> Result<bool, RingFault> {
        Ok(self.available(1)? == 0)
    }

    /// Asks the guest to kick for the next entry, then looks whether one came in the meantime: if it returns true,
    /// going to sleep would lose it.
    pub fn want_kicks(&mut self) -> Result<bool, RingFault> {
        if self.setup.event_idx {
            self.set_avail_event(self.next_avail.0);
        } else {
            self.set_used_flags(0);
        }
        fence(Ordering::SeqCst);
        self.avail_seen = self.next_avail;
        Ok(self.available(1)? > 0)
    }

    /// Asks the guest not to kick.
    pub fn refuse_kicks(&mut self) {
        if self.setup.event_idx {
            // There is no "never": an event index just behind is the farthest in front, 65535 entries away.
            self.set_avail_event(self.next_avail.0.wrapping_sub(1));
        } else {
            self.set_used_flags(USED_F_NO_NOTIFY);
        }
    }

    fn set_avail_event(&self, value: u16) {
        let offset = 4 + 8 * self.setup.size as usize;
        // SAFETY: locate() checked that the used ring, including avail_event, is mapped and aligned.
        unsafe { (*self.used.add(offset / 2)).store(value, Ordering::Relaxed) };
        if self.setup.logging {
            self.memory.mark_dirty(self.setup.used + offset as u64, 2);
        }
    }

    fn set_used_flags(&self, flags: u16) {
        // SAFETY: locate() checked that the used ring is mapped and aligned.
        unsafe { (*self.used).store(flags, Ordering::Relaxed) };
        if self.setup.logging {
            self.memory.mark_dirty(self.setup.used, 2);
        }
    }
}

type Located = (*const AtomicU64, *const AtomicU16, *const AtomicU16);

/// The host addresses of the ring's three parts, checked.
fn locate(memory: &Memory, s: &RingSetup) -> Result<Located, RingFault> {
    if !s.size.is_power_of_two() {
        return Err(RingFault::Size(s.size));
    }
    let entries = u64::from(s.size);
    let part = |part, gpa, len, align| {
        let host = memory.translate_range(gpa, len).ok_or(RingFault::Unmapped { part, gpa })?;
        if !(host as usize).is_multiple_of(align) {
            return Err(RingFault::Misaligned { part, gpa, align });
        }
        Ok(host.cast_const())
    };
    Ok((
        part("descriptor table", s.desc, DESC_SIZE * entries, 16)?.cast(),
        part("available ring", s.avail, 6 + 2 * entries, 2)?.cast(),
        part("used ring", s.used, 6 + 8 * entries, 4)?.cast(),
    ))
}
