//! Rings in guest memory: the one place where flownic reads and writes what the guest owns.
//!
//! [`TxRing`] takes frames from the guest, [`RxRing`] brings frames to it; both stand on `split::SplitRing` or
//! `packed::PackedRing`, which know the layouts of virtqueues (virtio 1.4, 2.7 and 2.8) and who may be notified when. A ring
//! exists only while the front end has it started and enabled; everything that outlives it (counters, tables) is kept elsewhere.
//!
//! Rules that hold in here:
//! * what the guest wrote is read once, into a local, and checked before use;
//! * an address is translated and checked at each use. What is kept across bursts are the ring's own addresses, which were
//!   checked when it started, and where the memory region of the last buffer is, both until the memory table changes;
//! * a chain that is wrong is returned to the guest and counted, and the ring goes on; only when the *ring* is wrong
//!   (an index that can't be) does it stop, once, with a [`RingFault`];
//! * used entries are published in the order in which the buffers were made available (`VIRTIO_F_IN_ORDER`).
#![allow(unsafe_code)]

mod batch;
mod chain;
mod command;
mod desc;
mod either;
mod layout;
mod memory;
mod packed;
mod rx;
mod setup;
mod split;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod tx;

pub use batch::{BATCH, BatchStore, Frame, FrameBatch, HEAD, Pieces, Segment};
pub use command::Command;
pub use either::Ring;
pub use memory::Memory;
pub use rx::{RxBurst, RxFormat, RxRefused, RxRing};
pub use setup::{RingFault, RingSetup};
pub use tx::TxRing;

use crate::hint::{prefetch, prefetch_for_write};

/// The longest frame that a ring takes or brings: an IPv6 packet with the largest payload that needs no jumbogram
/// option, behind an Ethernet header with two VLAN tags.
pub const MAX_FRAME: usize = 14 + 8 + 40 + 65535;

/// The shortest thing that is a frame: an Ethernet header.
pub const MIN_FRAME: usize = 14;

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// Copies `n` bytes, at most [`HEAD`]. Written out, because a call of the general copy costs more than a short frame does,
/// and exact, because what lies behind a frame is somebody else's.
///
/// # Safety
/// `from` must be readable and `to` writable for `n` bytes, and they must not overlap.
#[inline(always)]
unsafe fn copy_head(from: *const u8, to: *mut u8, n: usize) {
    debug_assert!(n <= HEAD);
    /// First and last `W` bytes; they may overlap each other.
    #[inline(always)]
    unsafe fn ends<const W: usize>(from: *const u8, to: *mut u8, n: usize) {
        // SAFETY: W <= n, so both blocks lie within the n bytes that the caller vouches for.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, W);
            std::ptr::copy_nonoverlapping(from.add(n - W), to.add(n - W), W);
        }
    }
    // SAFETY: the caller's contract; each arm's width is at most n.
    unsafe {
        match n {
            64.. => ends::<64>(from, to, n),
            32.. => ends::<32>(from, to, n),
            16.. => ends::<16>(from, to, n),
            8.. => ends::<8>(from, to, n),
            _ => std::ptr::copy_nonoverlapping(from, to, n),
        }
    }
}
