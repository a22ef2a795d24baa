//! Device to guest: frames into a receive ring.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::batch::{BATCH, HEAD, Segment};
use super::chain::{self, BadChain};
use super::desc::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, Desc};
use super::either::{Either, Ring};
use super::layout::{Head, Layout};
use super::memory::Memory;
use super::packed::PackedRing;
use super::setup::{RingFault, RingSetup};
use super::split::SplitRing;
use super::{CACHE_LINE, MIN_FRAME, copy_head, prefetch_for_write};
use crate::virtio::NetHeader;

/// Descriptors that are walked for one burst, about: many times what honest buffers need. A guest whose buffers are
/// dust, or none at all and posted as fast as they are returned, must not keep the worker from its other queues.
const MAX_WALKED: u32 = 16384;

/// Why a frame did not get into the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RxRefused {
    /// The guest has posted no buffer, or not enough of them for this frame.
    NoBuffer,
    /// Without mergeable buffers a frame must fit into one chain, and the next one is too small.
    BufferTooSmall,
    /// The ring itself is broken and must be stopped.
    Broken(RingFault),
}

/// A piece of a receive buffer.
struct Piece {
    host: *mut u8,
    len: u32,
    gpa: u64,
}

/// A started receive ring.
pub struct RxRing {
    ring: Ring,
    state: RxState,
}

/// What a receive ring keeps beside the ring itself.
struct RxState {
    /// Scratch of a frame that takes the general road: pieces of its buffers, and its chains with their bytes.
    pieces: Vec<Piece>,
    chains: Vec<(Head, u64)>,
    bad_buffers: u64,
    /// Descriptors that were walked since the last [`publish`](RxBurst::publish).
    walked: u32,
    /// Buffers from the next one on that are on their way into the cache; below 0 once more than those were taken.
    fetched: i32,
}

// SAFETY: the raw pointers in `pieces` are scratch, meaningful only within one call.
unsafe impl Send for RxState {}

/// What both kinds of ring have in common.
impl Deref for RxRing {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        &self.ring
    }
}

impl DerefMut for RxRing {
    fn deref_mut(&mut self) -> &mut Ring {
        &mut self.ring
    }
}

impl RxRing {
    /// Starts the ring.
    ///
    /// # Errors
    /// [`RingFault`] when its addresses or size can't be.
    pub fn start(memory: Arc<Memory>, setup: RingSetup) -> Result<Self, RingFault> {
        let mut ring = Ring::start(memory, setup)?;
        // Whoever brings frames looks for buffers himself; a kick for each refill would be for nothing.
        ring.refuse_kicks();
        let state = RxState {
            pieces: Vec::with_capacity(64),
            chains: Vec::with_capacity(64),
            bad_buffers: 0,
            walked: 0,
            fetched: 0,
        };
        Ok(RxRing { ring, state })
    }

    /// The ring as its format has it, for a burst.
    #[inline(always)]
    pub fn burst(&mut self) -> RxFormat<'_> {
        let state = &mut self.state;
        match &mut self.ring.0 {
            Either::Split(ring) => RxFormat::Split(OneBurst { ring, state }),
            Either::Packed(ring) => RxFormat::Packed(OneBurst { ring, state }),
        }
    }

    /// As [`RxBurst::prepare`].
    #[inline]
    pub fn prepare(&mut self) {
        match self.burst() {
            RxFormat::Split(mut ring) => ring.prepare(),
            RxFormat::Packed(mut ring) => ring.prepare(),
        }
    }

    /// As [`RxBurst::push`], for a frame that comes alone.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn push(
        &mut self,
        net: NetHeader,
        head: &[u8],
        tail: &[Segment<'_>],
        len: usize,
    ) -> Result<(), RxRefused> {
        match self.burst() {
            RxFormat::Split(mut ring) => ring.push(net, head, tail, len),
            RxFormat::Packed(mut ring) => ring.push(net, head, tail, len),
        }
    }

    /// As [`RxBurst::publish`].
    #[inline]
    pub fn publish(&mut self) {
        match self.burst() {
            RxFormat::Split(mut ring) => ring.publish(),
            RxFormat::Packed(mut ring) => ring.publish(),
        }
    }

    /// Buffers that were none, since the last call.
    pub fn take_bad_buffers(&mut self) -> u64 {
        std::mem::take(&mut self.state.bad_buffers)
    }
}

/// A receive ring of one format or the other.
pub enum RxFormat<'a> {
    /// A split one.
    Split(OneBurst<'a, SplitRing>),
    /// A packed one.
    Packed(OneBurst<'a, PackedRing>),
}

/// A receive ring whose format the compiler knows: what is done for every frame.
pub struct OneBurst<'a, L> {
    ring: &'a mut L,
    state: &'a mut RxState,
}

/// How a burst is brought into a receive ring.
pub trait RxBurst {
    /// Fetches what the next frames will need, as far as [`publish`](Self::publish) has not done so before: then
    /// [`push`](Self::push) does not wait for memory.
    fn prepare(&mut self);

    /// Writes one frame of at least [`MIN_FRAME`] bytes, `head` (at most [`HEAD`] bytes) followed by `tail`, together `len`
    /// bytes, into the next buffer(s). The guest sees it after [`publish`](Self::publish).
    ///
    /// # Errors
    /// See [`RxRefused`]; the frame was not delivered and buffers that would have served it are still there.
    fn push(
        &mut self,
        net: NetHeader,
        head: &[u8],
        tail: &[Segment<'_>],
        len: usize,
    ) -> Result<(), RxRefused>;

    /// Makes the frames visible to the guest: one store per burst.
    fn publish(&mut self);
}

impl<L: Layout> RxBurst for OneBurst<'_, L> {
    #[inline(always)]
    fn prepare(&mut self) {
        if self.state.fetched <= 0 && self.ring.look() {
            self.ring.fetch_descs(0, BATCH as u16);
            self.fetch_buffers(0);
        }
    }

    #[inline(always)]
    fn push(
        &mut self,
        net: NetHeader,
        head: &[u8],
        tail: &[Segment<'_>],
        len: usize,
    ) -> Result<(), RxRefused> {
        // In registers from here on: a header that is put together field by field in memory and then read as a whole has
        // to wait until the fields are in the cache, behind all earlier writes to guest memory.
        let net = NetHeader { num_buffers: 1, ..net }.to_words();
        assert!(head.len() <= HEAD && len >= MIN_FRAME);
        debug_assert_eq!(head.len() + tail.iter().map(|s| s.len()).sum::<usize>(), len);
        let Some((buffer, desc)) = self.ring.peek(0).map_err(RxRefused::Broken)? else {
            return Err(RxRefused::NoBuffer);
        };
        let header_len = self.ring.setup().header_len;
        let need = header_len + len;
        // By far the most common buffer: one piece of memory that takes the whole frame.
        if desc.flags & (DESC_F_NEXT | DESC_F_WRITE | DESC_F_INDIRECT) == DESC_F_WRITE
            && desc.len as usize >= need
            && let Some((p, room)) = self.ring.translate(desc.addr)
            && room >= need as u64
        {
            // SAFETY: `need` bytes from p, 24 at the least, are mapped; head and segments are readable for their lengths, which add up
            // to `len` (asserted above in debug builds, and checked by every way a batch is built). The head is ours; a segment
            // may be the same guest's memory as the buffer, and overlap it.
            unsafe {
                let (low, high) = (net.0.to_le(), net.1.to_le());
                let (p_low, p_high) = (p.cast::<u64>(), p.add(8).cast::<u32>());
                let is_there = self.header_is_apart(p)
                    && p_low.read_unaligned() == low
                    && p_high.read_unaligned() == high;
                if !is_there {
                    p_low.write_unaligned(low);
                    // A legacy header ends 2 bytes earlier; the frame overwrites them.
                    p_high.write_unaligned(high);
                }
                let mut to = p.add(header_len);
                copy_head(head.as_ptr(), to, head.len());
                to = to.add(head.len());
                for s in tail {
                    std::ptr::copy(s.ptr(), to, s.len());
                    to = to.add(s.len());
                }
            }
            if self.ring.setup().logging {
                self.ring.memory().mark_dirty(desc.addr, need as u64);
            }
            self.take(1);
            self.ring.put_used(buffer, need as u32);
            return Ok(());
        }
        self.push_general(NetHeader::from_words(net.0, net.1), head, tail, need)
    }

    #[inline(always)]
    fn publish(&mut self) {
        self.ring.publish();
        self.state.walked = 0;
        // While the next frames are being looked at, their buffers are on the way, and the descriptors of those after them. What
        // is on its way already is not fetched again: few frames of a burst may be for this queue.
        let fetched = self.state.fetched.clamp(0, BATCH as i32) as u16;
        self.fetch_buffers(fetched);
        self.ring.fetch_descs(BATCH as u16 + fetched, 2 * BATCH as u16);
    }
}

impl<L: Layout> OneBurst<'_, L> {
    #[inline(always)]
    fn take(&mut self, places: u16) {
        self.ring.take(places);
        self.state.fetched -= i32::from(places);
    }

    /// Fetches the buffers of the next burst for writing, all but the first ones.
    fn fetch_buffers(&mut self, from: u16) {
        self.state.fetched = i32::from(from);
        for desc in self.ring.upcoming(from, BATCH as u16) {
            if let Some((p, _)) = self.ring.translate(desc.addr) {
                if !self.header_is_apart(p) {
                    prefetch_for_write(p);
                }
                prefetch_for_write(p.wrapping_add(CACHE_LINE));
            }
            self.state.fetched += 1;
        }
    }

    /// Whether the header of a buffer at `p` ends a cache line, so that the frame is in others. Most headers are the same
    /// as the one that a buffer had the last time: then the line need not be taken away from the guest's processor.
    #[inline(always)]
    fn header_is_apart(&self, p: *mut u8) -> bool {
        (p as usize + self.ring.setup().header_len).is_multiple_of(CACHE_LINE)
    }

    /// Any buffers: several descriptors, several chains, across memory regions.
    fn push_general(
        &mut self,
        net: NetHeader,
        head: &[u8],
        tail: &[Segment<'_>],
        need: usize,
    ) -> Result<(), RxRefused> {
        let places = self.collect(need as u64)?;
        let count = self.state.chains.len() as u16;
        let header = NetHeader { num_buffers: count, ..net }.to_bytes();
        let header = Segment::from_slice(&header[..self.ring.setup().header_len]);
        let parts = [header, Segment::from_slice(head)];
        let mut pieces = self.state.pieces.iter();
        let mut piece = Piece { host: std::ptr::null_mut(), len: 0, gpa: 0 };
        for part in parts.iter().chain(tail) {
            let mut done = 0;
            while done < part.len() {
                if piece.len == 0 {
                    let Some(p) = pieces.next() else { break }; // collect() made sure that there is room
                    piece = Piece { ..*p };
                }
                let n = (part.len() - done).min(piece.len as usize);
                // SAFETY: the part is readable for its length, the piece mapped for its own; n is within both. They may
                // overlap if both are the same guest's.
                unsafe {
                    std::ptr::copy(part.ptr().add(done), piece.host, n);
                    piece.host = piece.host.add(n);
                }
                if self.ring.setup().logging {
                    self.ring.memory().mark_dirty(piece.gpa, n as u64);
                }
                piece.len -= n as u32;
                piece.gpa += n as u64;
                done += n;
            }
        }
        let mut left = need as u64;
        for (head, room) in self.state.chains.drain(..) {
            let written = left.min(room);
            self.ring.put_used(head, written as u32);
            left -= written;
        }
        self.take(places);
        Ok(())
    }

    /// Finds buffers with room for `need` bytes from the next one on, without taking them; returns how many places they
    /// have. Buffers that are no buffers are returned to the guest on the way, but no more than a batch of them: a guest that
    /// goes on making such buffers must not keep the worker here.
    fn collect(&mut self, need: u64) -> Result<u16, RxRefused> {
        self.state.chains.clear();
        self.state.pieces.clear();
        let (mut room, mut bad, mut ahead) = (0, 0, 0);
        while room < need {
            if room > 0 && !self.ring.setup().mergeable {
                return Err(RxRefused::BufferTooSmall);
            }
            if self.state.walked >= MAX_WALKED {
                return Err(RxRefused::NoBuffer);
            }
            let Some((head, first)) = self.ring.peek(ahead).map_err(RxRefused::Broken)? else {
                return Err(RxRefused::NoBuffer);
            };
            let head = self.ring.find_rest(head, first, ahead).map_err(RxRefused::Broken)?;
            let places = L::places(head);
            self.state.walked += u32::from(places);
            match self.chain_room(first) {
                Ok(bytes) => {
                    self.state.chains.push((head, bytes));
                    room += bytes;
                    ahead += places;
                }
                Err(_) if ahead == 0 => {
                    // In order, so only the next chain can be returned.
                    self.take(places);
                    self.ring.put_used(head, 0);
                    self.state.bad_buffers += 1;
                    bad += 1;
                    if bad == BATCH {
                        return Err(RxRefused::NoBuffer);
                    }
                }
                // The good ones before it can't serve this frame; the next frame will meet it as the first one, at
                // the latest when they are used up.
                Err(_) => return Err(RxRefused::NoBuffer),
            }
        }
        Ok(ahead)
    }

    /// Adds the chain's pieces; returns its bytes.
    fn chain_room(&mut self, first: Desc) -> Result<u64, BadChain> {
        let (ring, pieces, walked) = (&*self.ring, &mut self.state.pieces, &mut self.state.walked);
        let mark = pieces.len();
        let mut bytes = 0u64;
        let result = chain::walk(ring, first, |desc| {
            *walked += 1;
            if desc.flags & DESC_F_WRITE == 0 {
                return Err(BadChain::WrongDirection);
            }
            chain::pieces(ring, desc.addr, desc.len, |host, len, gpa| {
                pieces.push(Piece { host, len, gpa });
                bytes += u64::from(len);
                Ok(())
            })
        });
        // The first chain of a frame takes the whole header.
        if result.is_ok() && bytes >= ring.setup().header_len as u64 && bytes <= u64::from(u32::MAX) {
            return Ok(bytes);
        }
        pieces.truncate(mark);
        Err(result.err().unwrap_or(BadChain::NoFrame))
    }
}
