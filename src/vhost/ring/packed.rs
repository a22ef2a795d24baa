//! The packed virtqueue (virtio 1.4, 2.8): one ring of descriptors that the guest makes available and the device overwrites
//! as used, and a word of event suppression for each direction.
//!
//! Nothing in it says how far the guest has got: a descriptor is available when its flags say so, against the wrap counter
//! of this lap. So it is looked at one by one, and never beyond what was returned and not published yet: there a guest
//! could make anything look new.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::batch::BATCH;
use super::desc::{DESC_F_NEXT, DESC_F_WRITE, DESC_SIZE, Desc};
use super::layout::{Core, Head, Layout, part};
use super::memory::Memory;
use super::prefetch;
use super::setup::{RingFault, RingSetup};

/// `VIRTQ_DESC_F_AVAIL` (2.8.1).
const DESC_F_AVAIL: u16 = 1 << 7;
/// `VIRTQ_DESC_F_USED`.
const DESC_F_USED: u16 = 1 << 15;
/// `RING_EVENT_FLAGS_ENABLE` and the others (2.8.10).
const EVENTS_ENABLE: u32 = 0;
const EVENTS_DISABLE: u32 = 1;
const EVENTS_DESC: u32 = 2;
/// The most descriptors: as many as 15 bits can name.
const MAX_SIZE: u16 = 1 << 15;

/// A descriptor's number and, in bit 15, the wrap counter: as bases and events have it. Apart from its neighbours, as the
/// indexes of a split ring are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(align(8))]
struct Place(u16);

impl Place {
    const WRAP: u16 = 1 << 15;

    fn slot(self) -> u16 {
        self.0 & !Self::WRAP
    }

    /// `n` is not more than `size`.
    #[inline(always)]
    fn plus(self, n: u16, size: u16) -> Place {
        // Where it is known beforehand the compiler leaves out the rest.
        if n == 0 {
            return self;
        }
        // Slot and wrap counter at once. A sum of slots that carries into the counter is beyond any ring, and the carry is undone.
        let sum = self.0.wrapping_add(n);
        if self.slot() + n < size { Place(sum) } else { Place(sum.wrapping_sub(size) ^ Self::WRAP) }
    }

    /// Whether a descriptor with these flags was made available in this lap: AVAIL is the wrap counter, USED is not.
    #[inline(always)]
    fn is_available(self, flags: u16) -> bool {
        let wanted = if self.0 & Self::WRAP != 0 { DESC_F_AVAIL } else { DESC_F_USED };
        flags & (DESC_F_AVAIL | DESC_F_USED) == wanted
    }

    /// The flags of one that was used in this lap: both are the wrap counter.
    #[inline(always)]
    fn used_flags(self) -> u16 {
        if self.0 & Self::WRAP != 0 { DESC_F_AVAIL | DESC_F_USED } else { 0 }
    }

    /// Where it is in two laps, after which everything is the same again.
    fn in_two_laps(self, size: u16) -> u32 {
        u32::from(self.slot()) + if self.0 & Self::WRAP != 0 { 0 } else { size.into() }
    }
}

/// A descriptor's second word: length, id, flags.
#[derive(Clone, Copy)]
struct Rest(u64);

impl Rest {
    fn new(len: u32, id: u16, flags: u16) -> Self {
        Rest(u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48)
    }

    fn len(self) -> u32 {
        self.0 as u32
    }

    fn id(self) -> u16 {
        (self.0 >> 32) as u16
    }

    fn flags(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// A chain's id, and how many descriptors it has.
impl Head {
    #[inline(always)]
    fn of_chain(id: u16, places: u16) -> Head {
        Head(u32::from(id) | u32::from(places) << 16)
    }

    /// Whatever the guest has written: it gets it back, and nothing of ours is found by it.
    fn id(self) -> u16 {
        self.0 as u16
    }
}

/// A started packed ring.
pub struct PackedRing {
    core: Core,
    desc: *const AtomicU64,
    /// The driver's event suppression: which signals it wants.
    driver: *const AtomicU32,
    /// The device's: which kicks are wanted.
    device: *const AtomicU32,
    size: u16,
    next_avail: Place,
    next_used: Place,
    /// The first used descriptor that the guest does not see yet; until it does, it looks at none behind it.
    published: Place,
    /// What is to be written there.
    held: Rest,
    /// Descriptors from there to `next_used`.
    unpublished: u16,
    /// Descriptors that were used since the guest was last asked whether it wants a signal; two laps at the most, which have
    /// all events among them.
    unsignalled: u32,
}

// SAFETY: the pointers lead into mappings that `core` keeps alive; the ring is used by one thread at a time (it is owned by
// a slot's mutex) and the guest's side is accessed through atomics.
unsafe impl Send for PackedRing {}

impl PackedRing {
    pub(super) fn start(memory: Arc<Memory>, setup: RingSetup) -> Result<Self, RingFault> {
        let (desc, driver, device) = locate(&memory, &setup)?;
        let base = Place(setup.base);
        if base.slot() >= setup.size {
            return Err(RingFault::Base { slot: base.slot(), size: setup.size });
        }
        Ok(PackedRing {
            core: Core::new(memory, setup),
            desc,
            driver,
            device,
            size: setup.size,
            next_avail: base,
            // All that was taken had been returned when the ring stopped.
            next_used: base,
            published: base,
            held: Rest(0),
            unpublished: 0,
            unsignalled: 0,
        })
    }

    pub(super) fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), RingFault> {
        (self.desc, self.driver, self.device) = locate(&memory, &self.core.setup)?;
        self.core.set_memory(memory);
        Ok(())
    }

    pub(super) fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    /// What was taken and not returned, if there is any, is taken again by whoever goes on: the guest waits for it at this
    /// very place.
    pub(super) fn base(&self) -> u16 {
        self.next_used.0
    }

    /// Length, id and flags of a descriptor.
    #[inline(always)]
    fn rest(&self, slot: u16) -> &AtomicU64 {
        debug_assert!(slot < self.size);
        // SAFETY: locate() checked that the ring is mapped for `size` descriptors and aligned; all slots are below that.
        unsafe { &*self.desc.add(2 * slot as usize + 1) }
    }

    /// Where the chain ends that goes on behind `slot`: its last descriptor has the id. `room` is how many descriptors it
    /// can have at the most.
    #[inline(never)]
    fn find_end(&self, slot: u16, room: u16) -> Result<Head, RingFault> {
        let mut at = slot;
        for places in 1..=room {
            let rest = Rest(u64::from_le(self.rest(at).load(Ordering::Relaxed)));
            if rest.flags() & DESC_F_NEXT == 0 {
                return Ok(Head::of_chain(rest.id(), places));
            }
            at = self.behind(at);
        }
        Err(RingFault::NoEnd { slot, size: self.size })
    }

    #[inline(always)]
    fn behind(&self, slot: u16) -> u16 {
        if slot + 1 == self.size { 0 } else { slot + 1 }
    }

    #[cold]
    fn log_used(&self) {
        let slot = self.published.slot();
        let until_end = self.unpublished.min(self.size - slot);
        let mark = |slot: u16, n: u16| {
            let gpa = self.core.setup.desc + DESC_SIZE * u64::from(slot);
            self.memory().mark_dirty(gpa, DESC_SIZE * u64::from(n));
        };
        mark(slot, until_end);
        mark(0, self.unpublished - until_end);
    }

    pub(super) fn has_unsignalled(&self) -> bool {
        self.unsignalled != 0
    }

    pub(super) fn unsignalled(&self) -> u16 {
        self.unsignalled.min(u16::MAX.into()) as u16
    }

    pub(super) fn forgo_signal(&mut self) {
        self.unsignalled = 0;
    }

    #[inline(always)]
    pub(super) fn is_signal_wanted(&self) -> bool {
        if self.unsignalled == 0 {
            return false;
        }
        // Used descriptors must be visible before suppression is read: the guest does the two in the other order.
        fence(Ordering::SeqCst);
        // SAFETY: locate() checked that the driver's area is mapped and aligned. Both halves in one look belong together.
        let wish = u32::from_le(unsafe { (*self.driver).load(Ordering::Relaxed) });
        match wish >> 16 & 3 {
            EVENTS_DISABLE => false,
            EVENTS_DESC if self.core.setup.event_idx => self.was_used(Place(wish as u16)),
            _ => true,
        }
    }

    /// Whether this descriptor is one of those that were used since the guest was last asked.
    fn was_used(&self, event: Place) -> bool {
        if event.slot() >= self.size {
            // There is none such. A signal too many harms nobody.
            return true;
        }
        let laps = 2 * u32::from(self.size);
        let (event, now) = (event.in_two_laps(self.size), self.published.in_two_laps(self.size));
        (now + laps - event - 1) % laps < self.unsignalled
    }

    pub(super) fn is_empty(&self) -> bool {
        let rest = Rest(u64::from_le(self.rest(self.next_avail.slot()).load(Ordering::Acquire)));
        !self.next_avail.is_available(rest.flags())
    }

    pub(super) fn want_kicks(&mut self) -> bool {
        if self.core.setup.event_idx {
            self.ask(u32::from(self.next_avail.0) | EVENTS_DESC << 16);
        } else {
            self.ask(EVENTS_ENABLE << 16);
        }
        fence(Ordering::SeqCst);
        !self.is_empty()
    }

    pub(super) fn refuse_kicks(&mut self) {
        self.ask(EVENTS_DISABLE << 16);
    }

    fn ask(&self, wish: u32) {
        // SAFETY: locate() checked that the device's area is mapped and aligned. Both halves change at once.
        unsafe { (*self.device).store(wish.to_le(), Ordering::Relaxed) };
        if self.core.setup.logging {
            self.memory().mark_dirty(self.core.setup.used, 4);
        }
    }
}

impl Layout for PackedRing {
    const PLAIN_TABLES: bool = true;

    #[inline(always)]
    fn core(&self) -> &Core {
        &self.core
    }

    #[inline(always)]
    fn find(&mut self, heads: &mut [Head; BATCH]) -> Result<usize, RingFault> {
        let mut at = self.next_avail;
        let mut room = self.size - self.unpublished;
        for (n, head) in heads.iter_mut().enumerate() {
            // Acquire: the rest of the chain is read after the flags that announced it.
            let rest = Rest(u64::from_le(self.rest(at.slot()).load(Ordering::Acquire)));
            if room == 0 || !at.is_available(rest.flags()) {
                return Ok(n);
            }
            *head = if rest.flags() & DESC_F_NEXT == 0 {
                Head::of_chain(rest.id(), 1)
            } else {
                self.find_end(at.slot(), room)?
            };
            let places = Self::places(*head);
            room -= places;
            at = at.plus(places, self.size);
        }
        Ok(BATCH)
    }

    #[inline(always)]
    fn first(&self, _head: Head, ahead: u16) -> Desc {
        self.desc(self.next_avail.plus(ahead, self.size).slot())
    }

    #[inline(always)]
    fn places(head: Head) -> u16 {
        (head.0 >> 16) as u16
    }

    #[inline(always)]
    fn peek(&mut self, ahead: u16) -> Result<Option<(Head, Desc)>, RingFault> {
        if ahead >= self.size - self.unpublished {
            return Ok(None);
        }
        let at = self.next_avail.plus(ahead, self.size);
        // Acquire: as in find().
        let rest = Rest(u64::from_le(self.rest(at.slot()).load(Ordering::Acquire)));
        if !at.is_available(rest.flags()) {
            return Ok(None);
        }
        // SAFETY: as in rest().
        let addr = unsafe { (*self.desc.add(2 * at.slot() as usize)).load(Ordering::Relaxed) };
        let next = self.behind(at.slot());
        let desc = Desc { addr: u64::from_le(addr), len: rest.len(), flags: rest.flags(), next };
        Ok(Some((Head::of_chain(rest.id(), 1), desc)))
    }

    #[inline(always)]
    fn find_rest(&self, head: Head, first: Desc, ahead: u16) -> Result<Head, RingFault> {
        if first.flags & DESC_F_NEXT == 0 {
            return Ok(head);
        }
        let slot = self.next_avail.plus(ahead, self.size).slot();
        self.find_end(slot, self.size - self.unpublished - ahead)
    }

    #[inline(always)]
    fn desc(&self, index: u16) -> Desc {
        debug_assert!(index < self.size);
        // SAFETY: the ring is mapped for `size` descriptors, and the index is one of them.
        let desc = unsafe { Self::read_desc(self.desc.add(2 * index as usize)) };
        Desc { next: self.behind(index), ..desc }
    }

    #[inline(always)]
    unsafe fn read_desc(p: *const AtomicU64) -> Desc {
        // SAFETY: the caller's contract; both words are read as atomics because the guest may write at any time.
        let (addr, rest) = unsafe { ((*p).load(Ordering::Relaxed), (*p.add(1)).load(Ordering::Relaxed)) };
        let rest = Rest(u64::from_le(rest));
        Desc { addr: u64::from_le(addr), len: rest.len(), flags: rest.flags(), next: 0 }
    }

    #[inline(always)]
    fn take(&mut self, places: u16) {
        self.next_avail = self.next_avail.plus(places, self.size);
    }

    #[inline(always)]
    fn put_used_up_to(&mut self, head: Head, len: u32, places: u16) {
        // WRITE says that the length means something (2.8.3).
        let written = if len != 0 { DESC_F_WRITE } else { 0 };
        let rest = Rest::new(len, head.id(), self.next_used.used_flags() | written);
        if self.unpublished == 0 {
            self.held = rest;
        } else {
            self.rest(self.next_used.slot()).store(rest.0.to_le(), Ordering::Relaxed);
        }
        self.unpublished += places;
        self.next_used = self.next_used.plus(places, self.size);
    }

    #[inline(always)]
    fn publish(&mut self) {
        if self.unpublished == 0 {
            return;
        }
        // Release: the descriptors behind it and what was written to the buffers come first.
        self.rest(self.published.slot()).store(self.held.0.to_le(), Ordering::Release);
        if self.core.setup.logging {
            self.log_used();
        }
        self.published = self.next_used;
        let unsignalled = self.unsignalled + u32::from(self.unpublished);
        self.unsignalled = unsignalled.min(2 * u32::from(self.size));
        self.unpublished = 0;
    }

    #[inline(always)]
    fn look(&mut self) -> bool {
        true
    }

    #[inline(always)]
    fn upcoming(&self, from: u16, to: u16) -> impl Iterator<Item = Desc> {
        (from..to.min(self.size)).map_while(|ahead| {
            let at = self.next_avail.plus(ahead, self.size);
            let desc = self.desc(at.slot());
            at.is_available(desc.flags).then_some(desc)
        })
    }

    #[inline(always)]
    fn fetch_descs(&self, from: u16, to: u16) {
        // Not looked at: that would wait for what is to be fetched. Four are in a cache line.
        for ahead in (from..to.min(self.size)).step_by(4) {
            let slot = self.next_avail.plus(ahead, self.size).slot();
            prefetch(self.desc.wrapping_add(2 * slot as usize));
        }
    }
}

type Located = (*const AtomicU64, *const AtomicU32, *const AtomicU32);

/// The host addresses of the ring's three parts, checked (2.8.10.1).
fn locate(memory: &Memory, s: &RingSetup) -> Result<Located, RingFault> {
    if s.size == 0 || s.size > MAX_SIZE {
        return Err(RingFault::PackedSize(s.size));
    }
    Ok((
        part(memory, "descriptor ring", s.desc, DESC_SIZE * u64::from(s.size), 16)?.cast(),
        part(memory, "driver's event suppression", s.avail, 4, 4)?.cast(),
        part(memory, "device's event suppression", s.used, 4, 4)?.cast(),
    ))
}
