//! A batch of frames on its way through the NIC.
//!
//! Every frame has a *head*, a private copy of its first bytes, and a *tail*, segments that still lie where the frame
//! came from (a guest's transmit buffers, a port's receive buffer). All decisions are made on the head and the head is
//! what gets delivered, so a guest that rewrites its buffer in flight can't make the NIC act on one header and
//! deliver another.

use std::marker::PhantomData;

use super::copy_head;
use crate::packet::{self, Headers};
use crate::port::sys::RawIoVecs;
use crate::virtio::NetHeader;

/// Frames in a batch, at most.
pub const BATCH: usize = 32;
/// Bytes of a frame that its head holds, at most.
pub const HEAD: usize = 128;

/// A piece of a frame where it came from. Valid for `'m`, the time during which the memory stays mapped.
#[derive(Clone, Copy)]
pub struct Segment<'m> {
    ptr: *const u8,
    len: u32,
    _memory: PhantomData<&'m [u8]>,
}

impl<'m> Segment<'m> {
    /// A segment of ordinary memory.
    ///
    /// # Panics
    /// When the slice is 4 GiB or longer; no frame is.
    #[inline]
    pub fn from_slice(s: &'m [u8]) -> Self {
        Segment { ptr: s.as_ptr(), len: u32::try_from(s.len()).expect("a frame"), _memory: PhantomData }
    }

    /// # Safety
    /// `ptr..ptr+len` must stay mapped and readable for `'m`.
    pub(super) unsafe fn from_raw(ptr: *const u8, len: u32) -> Self {
        Segment { ptr, len, _memory: PhantomData }
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)] // never empty by construction, and nobody asks
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// As a system call wants it. The memory may be the guest's and change under the reader; the kernel copes.
    pub fn as_iovec(&self) -> libc::iovec {
        libc::iovec { iov_base: self.ptr as *mut libc::c_void, iov_len: self.len as usize }
    }

    #[inline]
    pub(super) fn ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Copies the first bytes out.
    ///
    /// # Panics
    /// When `out` is longer than the segment.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert!(out.len() <= self.len as usize);
        // SAFETY: the source is readable for len bytes as long as 'm lasts, the destination is a slice of our own.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr, out.as_mut_ptr(), out.len()) }
    }
}

/// One frame of a batch, without its segments.
#[repr(C, align(64))]
pub struct Frame {
    /// First bytes of the frame; only `head_len` of them count.
    head: [u8; HEAD],
    /// The virtio-net header it came with: what the sender left to do.
    pub net: NetHeader,
    len: u32,
    head_len: u32,
    first_segment: u32,
    segments: u32,
}

impl Frame {
    const EMPTY: Frame = Frame {
        head: [0; HEAD],
        net: NetHeader {
            flags: 0,
            gso_type: 0,
            hdr_len: 0,
            gso_size: 0,
            csum_start: 0,
            csum_offset: 0,
            num_buffers: 0,
        },
        len: 0,
        head_len: 0,
        first_segment: 0,
        segments: 0,
    };

    /// The first bytes, at most [`HEAD`].
    #[inline]
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_len as usize]
    }

    /// The first bytes, to be edited.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        &mut self.head[..self.head_len as usize]
    }

    /// Length of the whole frame, Ethernet header to the last payload byte.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// All of the head's storage, and the length as it is set with [`FrameBatch::push`]'s `len`.
    pub(super) fn storage(&mut self) -> *mut u8 {
        self.head.as_mut_ptr()
    }
}

/// Where batches live: allocated once per worker, used again for every batch.
pub struct BatchStore {
    frames: Box<[Frame; BATCH]>,
    headers: Box<[Headers; BATCH]>,
    segments: Vec<Segment<'static>>,
}

impl Default for BatchStore {
    fn default() -> Self {
        BatchStore {
            frames: Box::new([const { Frame::EMPTY }; BATCH]),
            headers: Box::new(std::array::from_fn(|_| packet::parse(&[], 0))),
            segments: Vec::with_capacity(4 * BATCH),
        }
    }
}

// SAFETY: a store at rest holds no live segment (they are only reachable through a FrameBatch, which borrows it).
unsafe impl Send for BatchStore {}

/// Frames in a store, whose segments are valid for `'m`.
pub struct FrameBatch<'m> {
    store: &'m mut BatchStore,
    len: usize,
    parsed: bool,
}

impl<'m> FrameBatch<'m> {
    /// An empty batch in `store`.
    pub fn new(store: &'m mut BatchStore) -> Self {
        store.segments.clear();
        FrameBatch { store, len: 0, parsed: false }
    }

    /// Frames in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all its frames.
    pub fn bytes(&self) -> u64 {
        self.store.frames[..self.len].iter().map(|f| u64::from(f.len)).sum()
    }

    /// Adds a frame that lies in ordinary memory, if there is room for one more.
    pub fn push_slice(&mut self, net: NetHeader, frame: &'m [u8]) -> bool {
        let (head, tail) = frame.split_at(frame.len().min(HEAD));
        self.push_parts(net, head, tail)
    }

    /// Adds a frame whose head is copied now and whose tail stays where it is, if there is room for one more.
    ///
    /// # Panics
    /// When the head is longer than [`HEAD`].
    #[inline]
    pub fn push_parts(&mut self, net: NetHeader, head: &[u8], tail: &'m [u8]) -> bool {
        if self.len == BATCH {
            return false;
        }
        assert!(head.len() <= HEAD);
        // SAFETY: both are HEAD bytes at least, and of different owners.
        unsafe { copy_head(head.as_ptr(), self.store.frames[self.len].storage(), head.len()) };
        let first_segment = self.store.segments.len();
        if !tail.is_empty() {
            let tail = Segment::from_slice(tail);
            // SAFETY: the lifetime is forgotten only inside the store; every way to it goes through this batch.
            self.store.segments.push(unsafe { std::mem::transmute::<Segment<'m>, Segment<'static>>(tail) });
        }
        self.finish(net, (head.len() + tail.len()) as u32, head.len() as u32, first_segment);
        true
    }

    /// The frame's slot that [`finish`](Self::finish) will add, for the ring walker to fill. Room is the caller's
    /// business.
    #[inline]
    pub(super) fn next_slot(&mut self) -> (&mut Frame, &mut Vec<Segment<'static>>) {
        (&mut self.store.frames[self.len], &mut self.store.segments)
    }

    /// Adds the frame that was put into [`next_slot`](Self::next_slot); its segments are those from `first_segment`.
    #[inline]
    pub(super) fn finish(&mut self, net: NetHeader, len: u32, head_len: u32, first_segment: usize) {
        debug_assert!(head_len as usize <= HEAD && head_len <= len);
        let slot = &mut self.store.frames[self.len];
        slot.net = net;
        slot.len = len;
        slot.head_len = head_len;
        slot.first_segment = first_segment as u32;
        slot.segments = (self.store.segments.len() - first_segment) as u32;
        self.len += 1;
    }

    /// EtherType bytes of the last frame added, which has an Ethernet header.
    #[inline(always)]
    pub(super) fn last_ethertype(&self) -> [u8; 2] {
        let head = &self.store.frames[self.len - 1].head;
        [head[12], head[13]]
    }

    /// Takes the last frame out again.
    pub(super) fn drop_last(&mut self) {
        self.len -= 1;
        let first_segment = self.store.frames[self.len].first_segment;
        self.store.segments.truncate(first_segment as usize);
    }

    /// Frame `i`.
    #[inline]
    pub fn frame(&self, i: usize) -> &Frame {
        &self.store.frames[..self.len][i]
    }

    /// Frame `i`, to be edited in place (its headers are not parsed again).
    #[inline]
    pub fn frame_mut(&mut self, i: usize) -> &mut Frame {
        &mut self.store.frames[..self.len][i]
    }

    /// The segments of frame `i` behind its head.
    #[inline]
    pub fn tail(&self, i: usize) -> &[Segment<'_>] {
        let f = self.frame(i);
        if f.segments == 0 {
            return &[];
        }
        &self.store.segments[f.first_segment as usize..][..f.segments as usize]
    }

    /// Parses all frames, once.
    pub fn parse(&mut self) {
        if !self.parsed {
            for (h, f) in self.store.headers.iter_mut().zip(&self.store.frames[..self.len]) {
                packet::parse_into(h, f.head(), f.len as usize);
            }
            self.parsed = true;
        }
    }

    /// What [`parse`](Self::parse) found in frame `i`.
    #[inline]
    pub fn headers(&self, i: usize) -> &Headers {
        debug_assert!(self.parsed);
        &self.store.headers[i]
    }

    /// As [`headers`](Self::headers), to be kept in step with an edit of the frame.
    #[inline]
    pub fn headers_mut(&mut self, i: usize) -> &mut Headers {
        &mut self.store.headers[i]
    }

    /// Copies a whole frame out, head first.
    ///
    /// # Panics
    /// When `out` is shorter than the frame.
    pub fn copy_frame(&self, i: usize, out: &mut [u8]) {
        let f = self.frame(i);
        let mut at = f.head_len as usize;
        out[..at].copy_from_slice(f.head());
        for s in self.tail(i) {
            s.copy_to(&mut out[at..at + s.len()]);
            at += s.len();
        }
    }
}

/// Scratch for [`FrameBatch::iovecs`].
#[derive(Default)]
pub struct Pieces(Vec<libc::iovec>);

// SAFETY: the pointers mean something only as long as the RawIoVecs that were made of them, which borrows the whole.
unsafe impl Send for Pieces {}

impl FrameBatch<'_> {
    /// Frame `i` behind `header`, for one `writev(2)`.
    pub fn iovecs<'v>(
        &'v self,
        i: usize,
        header: &'v [u8; NetHeader::SIZE],
        Pieces(vecs): &'v mut Pieces,
    ) -> RawIoVecs<'v> {
        vecs.clear();
        vecs.push(Segment::from_slice(header).as_iovec());
        vecs.push(Segment::from_slice(self.frame(i).head()).as_iovec());
        vecs.extend(self.tail(i).iter().map(Segment::as_iovec));
        // SAFETY: header and head are borrowed for 'v; the segments stay mapped for the batch's lifetime, which is longer.
        unsafe { RawIoVecs::new(vecs) }
    }
}
