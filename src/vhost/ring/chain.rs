//! Descriptor chains: walking them, bounded, direct or indirect.

use super::desc::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, DESC_SIZE, Desc};
use super::layout::Layout;

/// The longest chain that is walked: what QEMU and Linux take, too. In a ring of 32768 entries a chain could be so long
/// that walking a burst of them would keep the worker's other queues waiting for seconds.
const MAX_DESCRIPTORS: u16 = 1024;

/// What is wrong with a chain. The chain is returned to the guest and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadChain {
    /// More descriptors than the ring has entries, or than [`MAX_DESCRIPTORS`]: a loop, or an indirect table that is too
    /// long (2.7.5.3.1).
    TooLong,
    /// A descriptor number outside of its table.
    BadNext,
    /// Memory that is not the guest's.
    Unmapped,
    /// Not negotiated, nested, empty, or a length that is no multiple of 16 (2.7.5.3).
    BadIndirect,
    /// A device-writable descriptor where the device reads, or the other way round.
    WrongDirection,
    /// Too short for the virtio-net header, or without a frame behind it.
    NoFrame,
    /// Longer than a frame can be.
    FrameTooLong,
}

/// Calls `each` for every descriptor of the chain that starts with `first`, until it fails or the chain ends.
#[inline]
pub(super) fn walk<L: Layout>(
    ring: &L,
    first: Desc,
    mut each: impl FnMut(Desc) -> Result<(), BadChain>,
) -> Result<(), BadChain> {
    let most = ring.setup().size.min(MAX_DESCRIPTORS);
    let mut budget = most;
    let mut desc = first;
    loop {
        budget = budget.checked_sub(1).ok_or(BadChain::TooLong)?;
        if desc.flags & DESC_F_INDIRECT != 0 {
            // 2.7.5.3.1: a chain may end in an indirect table, and INDIRECT excludes NEXT. 2.8.5: in a packed ring it is one
            // or the other.
            if desc.flags & DESC_F_NEXT != 0 || (L::PLAIN_TABLES && budget + 1 != most) {
                return Err(BadChain::BadIndirect);
            }
            return walk_table(ring, desc, budget + 1, each);
        }
        each(desc)?;
        if desc.flags & DESC_F_NEXT == 0 {
            return Ok(());
        }
        if desc.next >= ring.setup().size {
            return Err(BadChain::BadNext);
        }
        desc = ring.desc(desc.next);
    }
}

#[inline]
fn walk_table<L: Layout>(
    ring: &L,
    table: Desc,
    mut budget: u16,
    mut each: impl FnMut(Desc) -> Result<(), BadChain>,
) -> Result<(), BadChain> {
    let bytes = u64::from(table.len);
    if !ring.setup().indirect || bytes == 0 || !bytes.is_multiple_of(DESC_SIZE) {
        return Err(BadChain::BadIndirect);
    }
    let entries = bytes / DESC_SIZE;
    if entries > u64::from(ring.setup().size) {
        return Err(BadChain::TooLong);
    }
    let host = ring.memory().translate_range(table.addr, bytes).ok_or(BadChain::Unmapped)?;
    if !(host as usize).is_multiple_of(8) {
        return Err(BadChain::BadIndirect);
    }
    let mut index = 0u64;
    loop {
        budget = budget.checked_sub(1).ok_or(BadChain::TooLong)?;
        // SAFETY: index < entries, the whole table is mapped and aligned.
        let mut desc = unsafe { L::read_desc(host.cast_const().add((index * DESC_SIZE) as usize).cast()) };
        if L::PLAIN_TABLES {
            let goes_on = if index + 1 < entries { DESC_F_NEXT } else { 0 };
            desc.flags = desc.flags & DESC_F_WRITE | goes_on;
            desc.next = index as u16 + 1;
        }
        if desc.flags & DESC_F_INDIRECT != 0 {
            return Err(BadChain::BadIndirect);
        }
        each(desc)?;
        if desc.flags & DESC_F_NEXT == 0 {
            return Ok(());
        }
        index = u64::from(desc.next);
        if index >= entries {
            return Err(BadChain::BadNext);
        }
    }
}

/// Calls `each` with host address, length and guest address of every piece of the guest's range; more than one where the range
/// crosses from one memory region into the next.
#[inline(always)]
pub(super) fn pieces(
    ring: &impl Layout,
    mut gpa: u64,
    len: u32,
    mut each: impl FnMut(*mut u8, u32, u64) -> Result<(), BadChain>,
) -> Result<(), BadChain> {
    let mut left = u64::from(len);
    while left > 0 {
        let (host, room) = ring.translate(gpa).ok_or(BadChain::Unmapped)?;
        let n = left.min(room);
        each(host, n as u32, gpa)?;
        left -= n;
        gpa = gpa.wrapping_add(n);
    }
    Ok(())
}
