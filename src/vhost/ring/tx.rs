//! Guest to device: frames out of a transmit ring.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::batch::{BATCH, BatchStore, FrameBatch, HEAD, Segment};
use super::chain::{self, BadChain};
use super::command::{Command, Pending};
use super::desc::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, Desc};
use super::either::{Either, Ring};
use super::layout::{Head, Layout};
use super::memory::Memory;
use super::setup::{RingFault, RingSetup};
use super::{CACHE_LINE, MAX_FRAME, MIN_FRAME, copy_head, prefetch};
use crate::virtio::NetHeader;
use crate::virtio::channel::ETHERTYPE_CHANNEL;

/// A started transmit ring.
pub struct TxRing {
    ring: Ring,
    state: TxState,
}

/// What a transmit ring keeps beside the ring itself.
struct TxState {
    /// Chains taken by the last [`pop`](TxRing::pop) and not yet returned.
    heads: [Head; BATCH],
    taken: usize,
    /// Their places in the ring.
    places: u16,
    malformed: u64,
    /// The command that the last pop ended with.
    pending: Pending,
}

/// What both kinds of ring have in common.
impl Deref for TxRing {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        &self.ring
    }
}

impl DerefMut for TxRing {
    fn deref_mut(&mut self) -> &mut Ring {
        &mut self.ring
    }
}

impl TxRing {
    /// Starts the ring.
    ///
    /// # Errors
    /// [`RingFault`] when its addresses or size can't be.
    pub fn start(memory: Arc<Memory>, setup: RingSetup) -> Result<Self, RingFault> {
        let mut ring = Ring::start(memory, setup)?;
        // The worker looks by itself, and asks for kicks before it goes to sleep.
        ring.refuse_kicks();
        let heads = [Head::default(); BATCH];
        Ok(TxRing {
            ring,
            state: TxState { heads, taken: 0, places: 0, malformed: 0, pending: Pending::default() },
        })
    }

    /// Takes up to [`BATCH`] chains and puts the frames they carry into `store`. What is no frame is counted and
    /// left out. A command to the NIC itself ends the burst; it is not in the batch, but to be had by
    /// [`command`](Self::command) afterwards. So commands are carried out in the ring's order, and a guest that sends nothing
    /// else gets one done in a burst. Follow with [`complete`](Self::complete).
    ///
    /// # Errors
    /// [`RingFault`] when the ring itself is broken: nothing was taken, and it must be stopped.
    #[inline]
    pub fn pop<'a>(&'a mut self, store: &'a mut BatchStore) -> Result<FrameBatch<'a>, RingFault> {
        match &mut self.ring.0 {
            Either::Split(ring) => self.state.pop(ring, store),
            Either::Packed(ring) => self.state.pop(ring, store),
        }
    }

    /// The command that the last [`pop`](Self::pop) ended with.
    pub fn command(&self) -> Option<Command<'_>> {
        self.state.pending.get()
    }

    /// Writes the reply to [`command`](Self::command) into its chain, as far as it fits. Only on the kernel road.
    pub fn reply(&mut self, reply: &[u8]) {
        match &self.ring.0 {
            Either::Split(ring) => self.state.pending.reply(ring, reply),
            Either::Packed(ring) => self.state.pending.reply(ring, reply),
        }
    }

    /// Returns to the guest what the last [`pop`](Self::pop) took; returns how many chains that were.
    #[inline]
    pub fn complete(&mut self) -> usize {
        match &mut self.ring.0 {
            Either::Split(ring) => self.state.complete(ring),
            Either::Packed(ring) => self.state.complete(ring),
        }
    }

    /// Malformed chains since the last call.
    pub fn take_malformed(&mut self) -> u64 {
        std::mem::take(&mut self.state.malformed)
    }
}

impl TxState {
    #[inline(always)]
    fn pop<'a, L: Layout>(
        &mut self,
        ring: &'a mut L,
        store: &'a mut BatchStore,
    ) -> Result<FrameBatch<'a>, RingFault> {
        let mut batch = FrameBatch::new(store);
        let mut n = ring.find(&mut self.heads)?;
        if n == 0 {
            return Ok(batch);
        }
        let mut places = 0;
        let mut first = [(Desc::default(), std::ptr::null()); BATCH];
        for ((desc, whole), head) in first.iter_mut().zip(&self.heads[..n]) {
            *desc = ring.first(*head, places);
            places += L::places(*head);
            *whole = whole_frame(ring, *desc);
            prefetch(*whole);
            prefetch(whole.wrapping_add(CACHE_LINE));
        }
        let in_band = ring.setup().in_band;
        for (i, (desc, whole)) in first[..n].iter().enumerate() {
            let first_segment = batch.next_slot().1.len();
            // SAFETY: whole_frame() has found it, in the same memory.
            let mut taken = unsafe { gather(ring, *desc, *whole, &mut batch) };
            let mut ends = false;
            if taken == Err(BadChain::WrongDirection) {
                batch.next_slot().1.truncate(first_segment);
                ends = in_band && self.pending.gather(ring, *desc).is_ok();
                if !ends && L::PLAIN_TABLES && desc.flags & DESC_F_INDIRECT != 0 {
                    taken = gather_chain(ring, *desc, &mut batch, true);
                }
            }
            if taken.is_ok() {
                ends = in_band
                    && batch.last_ethertype() == ETHERTYPE_CHANNEL.to_be_bytes()
                    && self.pending.take_frame(&mut batch);
            } else {
                batch.next_slot().1.truncate(first_segment);
                self.malformed += u64::from(!ends);
            }
            if ends {
                n = i + 1;
                places = self.heads[..n].iter().map(|head| L::places(*head)).sum();
                break;
            }
        }
        (self.taken, self.places) = (n, places);
        ring.take(places);
        // While this burst is on its way, the next one comes, and the descriptors of the one after it.
        for desc in ring.upcoming(0, BATCH as u16) {
            if let Some((p, _)) = ring.translate(desc.addr) {
                prefetch(p);
                prefetch(p.wrapping_add(CACHE_LINE));
            }
        }
        ring.fetch_descs(BATCH as u16, 2 * BATCH as u16);
        Ok(batch)
    }

    #[inline(always)]
    fn complete(&mut self, ring: &mut impl Layout) -> usize {
        let taken = std::mem::take(&mut self.taken);
        if let Some((last, others)) = self.heads[..taken].split_last() {
            // If there was a command, it is in the last one.
            let written = self.pending.finish();
            if ring.setup().in_order {
                ring.put_used_up_to(*last, written, self.places);
            } else {
                others.iter().for_each(|head| ring.put_used(*head, 0));
                ring.put_used(*last, written);
            }
            ring.publish();
        }
        taken
    }
}

/// Where header and frame are, if they lie in one piece of memory, as those of by far the most chains do; else null.
#[inline(always)]
fn whole_frame(ring: &impl Layout, first: Desc) -> *const u8 {
    let header_len = ring.setup().header_len as u32;
    if first.flags & (DESC_F_NEXT | DESC_F_WRITE | DESC_F_INDIRECT) == 0
        && (header_len + MIN_FRAME as u32..=header_len + MAX_FRAME as u32).contains(&first.len)
        && let Some((p, room)) = ring.translate(first.addr)
        && room >= u64::from(first.len)
    {
        p
    } else {
        std::ptr::null()
    }
}

/// Puts the frame of one chain into the batch.
///
/// # Safety
/// `whole` must be what [`whole_frame`] says of the chain in the ring's present memory.
#[inline(always)]
unsafe fn gather(
    ring: &impl Layout,
    first: Desc,
    whole: *const u8,
    batch: &mut FrameBatch<'_>,
) -> Result<(), BadChain> {
    let header_len = ring.setup().header_len as u32;
    if !whole.is_null() {
        let len = first.len - header_len;
        let (slot, segments) = batch.next_slot();
        let first_segment = segments.len();
        let head_len = len.min(HEAD as u32);
        // SAFETY: whole_frame() said that header_len + len bytes are mapped (a legacy header is 2 bytes shorter than what is
        // read, which are then the frame's). The head's storage holds HEAD bytes.
        let net = unsafe {
            let net = NetHeader::from_words(
                u64::from_le(whole.cast::<u64>().read_unaligned()),
                u32::from_le(whole.add(8).cast::<u32>().read_unaligned()),
            );
            let frame = whole.add(header_len as usize);
            copy_head(frame, slot.storage(), head_len as usize);
            if len > head_len {
                segments.push(Segment::from_raw(frame.add(head_len as usize), len - head_len));
            }
            net
        };
        batch.finish(NetHeader { num_buffers: 0, ..net }, len, head_len, first_segment);
        return Ok(());
    }
    gather_chain(ring, first, batch, false)
}

/// Any chain: split anywhere, indirect, across memory regions. `any_direction`: WRITE means nothing in it. DPDK's driver (22.11) leaves
/// that flag at some descriptors of a packed ring's tables, and its own back end does not look.
fn gather_chain(
    ring: &impl Layout,
    first: Desc,
    batch: &mut FrameBatch<'_>,
    any_direction: bool,
) -> Result<(), BadChain> {
    let header_len = ring.setup().header_len;
    let (slot, segments) = batch.next_slot();
    let first_segment = segments.len();
    let mut header = [0u8; NetHeader::SIZE];
    let (mut header_got, mut head_len, mut len) = (0usize, 0usize, 0usize);
    chain::walk(ring, first, |desc| {
        if desc.flags & DESC_F_WRITE != 0 && !any_direction {
            return Err(BadChain::WrongDirection);
        }
        chain::pieces(ring, desc.addr, desc.len, |mut p, n, _| {
            let mut n = n as usize;
            let header_part = n.min(header_len - header_got);
            let head_part = (n - header_part).min(HEAD - head_len);
            // SAFETY: pieces() yields n mapped bytes; both parts are bounded by the room in their destination.
            unsafe {
                std::ptr::copy_nonoverlapping(p, header.as_mut_ptr().add(header_got), header_part);
                p = p.add(header_part);
                std::ptr::copy_nonoverlapping(p, slot.storage().add(head_len), head_part);
                p = p.add(head_part);
            }
            n -= header_part + head_part;
            header_got += header_part;
            head_len += head_part;
            len += head_part + n;
            if len > MAX_FRAME {
                return Err(BadChain::FrameTooLong);
            }
            if n > 0 {
                // SAFETY: mapped as above, for as long as the ring's memory snapshot, which outlives the batch.
                segments.push(unsafe { Segment::from_raw(p, n as u32) });
            }
            Ok(())
        })
    })?;
    if len < MIN_FRAME {
        return Err(BadChain::NoFrame);
    }
    let net = NetHeader { num_buffers: 0, ..NetHeader::from_bytes(&header) };
    batch.finish(net, len as u32, head_len as u32, first_segment);
    Ok(())
}
