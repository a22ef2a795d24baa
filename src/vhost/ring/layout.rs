//! What receive and transmit rings ask of a ring, whichever format it has. They are made for each format by the compiler; which
//! one a ring has is asked once a burst.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::batch::BATCH;
use super::desc::Desc;
use super::memory::{Memory, Window};
use super::setup::{RingFault, RingSetup};

/// How a chain is returned to the guest; the rest is the format's own business.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head(pub(super) u32);

/// What rings of both formats have.
pub struct Core {
    pub(super) setup: RingSetup,
    memory: Arc<Memory>,
    /// The region of `memory` in which the last buffer was that was not in the one before: nearly all are in the same.
    window: Cell<Window>,
}

impl Core {
    pub(super) fn new(memory: Arc<Memory>, setup: RingSetup) -> Self {
        Core { setup, memory, window: Cell::new(Window::NONE) }
    }

    /// The ring's own addresses are in this table, too.
    pub(super) fn set_memory(&mut self, memory: Arc<Memory>) {
        self.memory = memory;
        self.window.set(Window::NONE);
    }

    #[cold]
    fn look_elsewhere(&self, gpa: u64) -> Option<(*mut u8, u64)> {
        self.window.set(self.memory.window(gpa));
        self.window.get().translate(gpa)
    }
}

/// The host address of one part of a ring, checked.
pub(super) fn part(
    memory: &Memory,
    part: &'static str,
    gpa: u64,
    len: u64,
    align: usize,
) -> Result<*const u8, RingFault> {
    let host = memory.translate_range(gpa, len).ok_or(RingFault::Unmapped { part, gpa })?;
    if !(host as usize).is_multiple_of(align) {
        return Err(RingFault::Misaligned { part, gpa, align });
    }
    Ok(host.cast_const())
}

/// A started ring of one format. Nobody outside of this module can name it, or what it is about.
///
/// Chains have *places* in it, one after the other: entries of the available ring, or descriptors. What is taken is counted
/// in them.
pub trait Layout {
    /// In an indirect table descriptors follow each other, and flags other than WRITE mean nothing (2.8.7).
    const PLAIN_TABLES: bool;

    fn core(&self) -> &Core;

    fn setup(&self) -> &RingSetup {
        &self.core().setup
    }

    fn memory(&self) -> &Memory {
        &self.core().memory
    }

    /// As [`Memory::translate`].
    #[inline(always)]
    fn translate(&self, gpa: u64) -> Option<(*mut u8, u64)> {
        let core = self.core();
        core.window.get().translate(gpa).or_else(|| core.look_elsewhere(gpa))
    }

    /// Finds the next chains that the guest has made available, up to a batch; they are not taken yet.
    fn find(&mut self, heads: &mut [Head; BATCH]) -> Result<usize, RingFault>;

    /// The first descriptor of a chain that [`find`](Self::find) has found, so many places from the next one on.
    fn first(&self, head: Head, ahead: u16) -> Desc;

    /// How many places a chain has that was found whole.
    fn places(head: Head) -> u16;

    /// The chain so many places from the next one on, if it has been made available, and its first descriptor. If there are
    /// more of them, it is not found whole yet.
    fn peek(&mut self, ahead: u16) -> Result<Option<(Head, Desc)>, RingFault>;

    /// Finds the rest of a chain of [`peek`](Self::peek).
    fn find_rest(&self, head: Head, first: Desc, ahead: u16) -> Result<Head, RingFault>;

    /// Descriptor `index`, which must be below the ring's size.
    fn desc(&self, index: u16) -> Desc;

    /// Reads the descriptor at `p`, in a table of this format.
    ///
    /// # Safety
    /// `p` must be mapped for 16 bytes and aligned to 8.
    unsafe fn read_desc(p: *const AtomicU64) -> Desc;

    /// Takes so many places.
    fn take(&mut self, places: u16);

    /// Returns a chain of which `len` bytes were written. The guest sees it after [`publish`](Self::publish).
    #[inline(always)]
    fn put_used(&mut self, head: Head, len: u32) {
        self.put_used_up_to(head, len, Self::places(head));
    }

    /// As [`put_used`](Self::put_used), with all chains before it that were not returned yet, so many places in all. Only with
    /// `VIRTIO_F_IN_ORDER`, by which one entry says that (2.7.9, 2.8.8).
    fn put_used_up_to(&mut self, head: Head, len: u32, places: u16);

    /// Makes the returned chains visible: one store for the whole burst.
    fn publish(&mut self);

    /// Looks at what is available, for [`upcoming`](Self::upcoming); false if the ring is broken.
    fn look(&mut self) -> bool;

    /// The descriptors at these places from the next one on, as far as they are known to be available. For fetching ahead
    /// only: they may be any.
    fn upcoming(&self, from: u16, to: u16) -> impl Iterator<Item = Desc>;

    /// Fetches the descriptors that are likely at these places from the next one on.
    fn fetch_descs(&self, from: u16, to: u16);
}
