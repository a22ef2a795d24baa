//! A started ring of either format: what of it is the same for receive and transmit rings, and asked once a burst at most.

use std::sync::Arc;

use super::memory::Memory;
use super::packed::PackedRing;
use super::setup::{RingFault, RingSetup};
use super::split::SplitRing;

/// A started ring.
pub struct Ring(pub(super) Either);

/// Of which format it is.
pub(super) enum Either {
    Split(SplitRing),
    Packed(PackedRing),
}

/// The same of whichever it is.
macro_rules! either {
    ($ring:expr, $r:ident => $do:expr) => {
        match $ring {
            Either::Split($r) => $do,
            Either::Packed($r) => $do,
        }
    };
}

impl Ring {
    pub(super) fn start(memory: Arc<Memory>, setup: RingSetup) -> Result<Self, RingFault> {
        Ok(Ring(if setup.packed {
            Either::Packed(PackedRing::start(memory, setup)?)
        } else {
            Either::Split(SplitRing::start(memory, setup)?)
        }))
    }

    /// Goes over to another memory table, with the same ring addresses.
    ///
    /// # Errors
    /// [`RingFault`] when the ring is not in it; it stays where it was.
    pub fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), RingFault> {
        either!(&mut self.0, r => r.set_memory(memory))
    }

    /// Switches the migration log on or off.
    pub fn set_logging(&mut self, on: bool) {
        either!(&mut self.0, r => r.core_mut().setup.logging = on);
    }

    /// What has not been taken yet, as [`RingSetup::base`] has it: what `GET_VRING_BASE` answers. Nothing is in flight
    /// between calls.
    pub fn base(&self) -> u16 {
        either!(&self.0, r => r.base())
    }

    /// Entries or descriptors.
    pub fn size(&self) -> u16 {
        either!(&self.0, r => super::layout::Layout::setup(r).size)
    }

    /// Whether anything was published since [`wants_signal`](Self::wants_signal) was last asked.
    #[inline(always)]
    pub fn has_unsignalled(&self) -> bool {
        either!(&self.0, r => r.has_unsignalled())
    }

    /// Places in the ring that were published since [`wants_signal`](Self::wants_signal) was last asked.
    #[inline(always)]
    pub fn unsignalled(&self) -> u16 {
        either!(&self.0, r => r.unsignalled())
    }

    /// The guest need not be signalled for what was published so far: it has been, or does not want to be.
    #[inline(always)]
    pub fn forgo_signal(&mut self) {
        either!(&mut self.0, r => r.forgo_signal());
    }

    /// Whether the guest wants to be signalled for what was published since it was last asked (2.7.7, 2.7.10, 2.8.10). It is
    /// asked once for each entry.
    #[inline(always)]
    pub fn wants_signal(&mut self) -> bool {
        either!(&mut self.0, r => {
            let wanted = r.is_signal_wanted();
            r.forgo_signal();
            wanted
        })
    }

    /// The same, and it may be asked again: for who may hold the signal. As long as the guest wants it at each burst it goes on
    /// wanting it for all of them; if it does not, it has looked at the ring since, or will.
    #[inline(always)]
    pub fn is_signal_wanted(&self) -> bool {
        either!(&self.0, r => r.is_signal_wanted())
    }

    /// Whether the guest has made nothing available that was not taken.
    ///
    /// # Errors
    /// [`RingFault`] when the ring is broken.
    #[inline(always)]
    pub fn is_empty(&mut self) -> Result<bool, RingFault> {
        match &mut self.0 {
            Either::Split(r) => r.is_empty(),
            Either::Packed(r) => Ok(r.is_empty()),
        }
    }

    /// Asks the guest to kick for the next entry, then looks whether one came in the meantime: if it returns true,
    /// going to sleep would lose it.
    ///
    /// # Errors
    /// [`RingFault`] when the ring is broken.
    pub fn want_kicks(&mut self) -> Result<bool, RingFault> {
        match &mut self.0 {
            Either::Split(r) => r.want_kicks(),
            Either::Packed(r) => Ok(r.want_kicks()),
        }
    }

    /// Asks the guest not to kick.
    #[inline]
    pub fn refuse_kicks(&mut self) {
        either!(&mut self.0, r => r.refuse_kicks());
    }
}
