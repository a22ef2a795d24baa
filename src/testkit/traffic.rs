//! Frames in and out of a [`Guest`], the way a network driver moves them.

use std::os::fd::AsRawFd;
use std::time::Instant;

use super::ring::Seg;
use super::{Guest, soon, wait};
use crate::virtio::{F_MRG_RXBUF, NetHeader};

/// EtherType of fence frames: the second of IEEE's local-experimental pair.
const FENCE_TYPE: [u8; 2] = [0x88, 0xb6];

/// How header and frame are laid out in a transmit chain. Cuts count from the start of the network header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// Where the bytes are cut, ascending; each piece gets a descriptor and memory of its own.
    pub cuts: Vec<usize>,
    /// Whether the descriptors lie in an indirect table.
    pub indirect: bool,
    /// Bytes by which each piece starts off a 64-byte boundary, below 64.
    pub skew: u64,
}

impl Layout {
    /// Header and frame in one descriptor.
    pub fn joined() -> Self {
        Layout::default()
    }

    /// The header in a descriptor of its own, the classic layout.
    pub fn header_apart() -> Self {
        Layout::cut_at(&[NetHeader::SIZE])
    }

    /// Cut at these offsets.
    pub fn cut_at(cuts: &[usize]) -> Self {
        Layout { cuts: cuts.to_vec(), ..Layout::default() }
    }

    /// The same through an indirect table.
    pub fn indirect(mut self) -> Self {
        self.indirect = true;
        self
    }

    /// The same with every piece `skew` bytes off alignment.
    pub fn skewed(mut self, skew: u64) -> Self {
        self.skew = skew;
        self
    }
}

/// A frame that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The queue pair whose receive ring it came by.
    pub pair: usize,
    /// The header in front of it.
    pub header: NetHeader,
    /// The frame.
    pub frame: Vec<u8>,
}

impl Guest {
    /// Sends a plain frame in one descriptor, kicks if the device wants it, and takes back what was sent before.
    pub fn send(&mut self, pair: usize, frame: &[u8]) {
        self.send_with(pair, NetHeader::default(), frame, &Layout::joined());
    }

    /// Sends a frame with a header in some layout.
    pub fn send_with(&mut self, pair: usize, header: NetHeader, frame: &[u8], layout: &Layout) {
        self.queue_tx(pair, header, frame, layout);
        self.flush_tx(pair);
    }

    /// Puts a frame into the ring without showing it to the device, to make batches. Waits for room if the ring
    /// is full, after showing what is in it.
    pub fn queue_tx(&mut self, pair: usize, header: NetHeader, frame: &[u8], layout: &Layout) {
        let mut bytes = header.to_bytes()[..self.header_len()].to_vec();
        bytes.extend(frame);
        let segs = self.place(&bytes, layout);
        self.reap_tx(pair);
        while self.tx(pair).add(&segs, layout.indirect).is_none() {
            assert!(self.tx(pair).in_flight() > 0, "a chain of {} descriptors fits no ring", segs.len());
            self.flush_tx(pair);
            assert!(self.tx(pair).wait_used(soon()), "transmit queue {pair} is full and nothing comes back");
            self.reap_tx(pair);
        }
    }

    /// Shows the queued frames to the device; returns whether it had to be kicked.
    pub fn flush_tx(&mut self, pair: usize) -> bool {
        self.tx(pair).kick_if_needed()
    }

    /// Writes `bytes` into fresh guest memory, cut up as the layout says.
    pub fn place(&self, bytes: &[u8], layout: &Layout) -> Vec<Seg> {
        let ends = layout.cuts.iter().copied().filter(|c| (1..bytes.len()).contains(c)).chain([bytes.len()]);
        let mut start = 0;
        let mut segs = Vec::new();
        for end in ends {
            let len = end - start;
            let addr = self.ram.alloc(len as u64 + layout.skew) + layout.skew;
            self.ram.write(addr, &bytes[start..end]);
            segs.push(Seg { addr, len: len as u32, writable: false });
            start = end;
        }
        segs
    }

    /// Frees the memory of segments that came from [`Guest::place`] or a receive ring.
    pub fn free_segs(&self, segs: &[Seg]) {
        for seg in segs {
            let skew = seg.addr % 64;
            self.ram.free(seg.addr - skew, u64::from(seg.len) + skew);
        }
    }

    /// Takes back transmitted chains; returns how many.
    pub fn reap_tx(&mut self, pair: usize) -> usize {
        let mut count = 0;
        while let Some(used) = self.tx(pair).take_used() {
            assert_eq!(used.len, 0, "transmit queue {pair}: nothing is writable, yet bytes were written");
            self.free_segs(&used.segs);
            count += 1;
        }
        count
    }

    /// Waits until everything sent has come back; `false` when the deadline passed first.
    pub fn drain_tx(&mut self, pair: usize, until: Instant) -> bool {
        loop {
            self.reap_tx(pair);
            let count = self.tx(pair).in_flight() as u16;
            if count == 0 {
                return true;
            }
            if !self.tx(pair).wait_used_count(count, until) {
                return false;
            }
        }
    }

    /// Posts receive buffers until the ring is full; returns how many.
    pub fn fill_rx(&mut self, pair: usize) -> usize {
        let mut count = 0;
        while self.post_rx(pair) {
            count += 1;
        }
        if count > 0 {
            self.rx(pair).kick_if_needed();
        }
        count
    }

    /// [`Guest::fill_rx`] for every pair.
    pub fn fill_all_rx(&mut self) {
        for pair in 0..self.pairs() {
            self.fill_rx(pair);
        }
    }

    /// Posts `count` receive buffers and tells the device.
    pub fn post_rx_buffers(&mut self, pair: usize, count: usize) {
        (0..count).for_each(|_| assert!(self.post_rx(pair), "receive ring {pair} is full"));
        self.rx(pair).kick_if_needed();
    }

    fn post_rx(&mut self, pair: usize) -> bool {
        let (len, descs) = self.rx_shape();
        if self.rx(pair).room() < descs {
            return false;
        }
        let piece = len / descs as u32;
        let segs: Vec<Seg> = (0..descs as u32)
            .map(|i| {
                let len = if i + 1 == descs as u32 { len - piece * i } else { piece };
                Seg { addr: self.ram.alloc(len.into()), len, writable: true }
            })
            .collect();
        self.rx(pair).add(&segs, false).is_some()
    }

    /// Takes a frame if one is there, and posts its buffers again.
    pub fn try_recv(&mut self, pair: usize) -> Option<Received> {
        let first = self.rx(pair).take_used()?;
        let mut bytes = self.written(pair, first.len, &first.segs);
        let header_len = self.header_len();
        assert!(bytes.len() >= header_len, "receive queue {pair}: {} bytes hold no header", bytes.len());
        let mut header = [0; NetHeader::SIZE];
        header[..header_len].copy_from_slice(&bytes[..header_len]);
        let header = NetHeader::from_bytes(&header);
        let mut buffers = vec![first.segs];
        if self.has(F_MRG_RXBUF) {
            assert!(header.num_buffers >= 1, "receive queue {pair}: num_buffers is 0");
            for i in 1..header.num_buffers {
                // Linux drops the frame when the rest is not there at once, hence so do we: loudly.
                let Some(more) = self.rx(pair).take_used() else {
                    panic!(
                        "receive queue {pair}: buffer {i} of {} was not published with the first",
                        header.num_buffers
                    )
                };
                bytes.extend(self.written(pair, more.len, &more.segs));
                buffers.push(more.segs);
            }
        } else if header_len == NetHeader::SIZE {
            assert_eq!(
                header.num_buffers, 1,
                "receive queue {pair}: 5.1.6.4.1: num_buffers is 1 without MRG_RXBUF"
            );
        }
        for segs in &buffers {
            self.rx(pair).add(segs, false).expect("room for what was just taken");
        }
        self.rx(pair).kick_if_needed();
        bytes.drain(..header_len);
        Some(Received { pair, header, frame: bytes })
    }

    fn written(&self, pair: usize, len: u32, segs: &[Seg]) -> Vec<u8> {
        let room: u32 = segs.iter().map(|s| s.len).sum();
        assert!(len <= room, "receive queue {pair}: {len} bytes written to a buffer of {room}");
        let mut bytes: Vec<u8> = segs.iter().flat_map(|s| self.ram.read(s.addr, s.len as usize)).collect();
        bytes.truncate(len as usize);
        bytes
    }

    /// Waits for a frame on one receive queue.
    pub fn recv(&mut self, pair: usize, until: Instant) -> Option<Received> {
        if self.rx(pair).wait_used(until) { self.try_recv(pair) } else { None }
    }

    /// Takes a frame from any receive queue, from each in turn.
    pub fn try_recv_any(&mut self) -> Option<Received> {
        let pairs = self.pairs();
        for i in 1..=pairs {
            let pair = (self.last_pair + i) % pairs;
            if let Some(got) = self.try_recv(pair) {
                self.last_pair = pair;
                return Some(got);
            }
        }
        None
    }

    /// Waits for a frame on any receive queue.
    pub fn recv_any(&mut self, until: Instant) -> Option<Received> {
        loop {
            if let Some(got) = self.try_recv_any() {
                return Some(got);
            }
            if Instant::now() >= until {
                return None;
            }
            let mut polled = false;
            for pair in 0..self.pairs() {
                let ring = self.rx(pair);
                ring.signals();
                polled |= !ring.signals_wanted();
                let wanted = ring.signals_wanted();
                ring.want_signals(wanted);
            }
            if (0..self.pairs()).any(|pair| self.rx(pair).has_used()) {
                continue;
            }
            if polled {
                std::thread::yield_now();
                continue;
            }
            let calls: Vec<&dyn AsRawFd> = self.rings.iter().step_by(2).map(|r| &r.call_fd as _).collect();
            if !wait::readable(&calls, until) {
                self.rings.iter().step_by(2).for_each(|r| r.assert_signalled());
            }
        }
    }

    /// Sends a frame that [`Guest::collect_until`] recognises, whichever way it comes back.
    pub fn send_fence(&mut self, pair: usize) -> u64 {
        self.fences += 1;
        let number = (std::process::id() as u64) << 32 | self.fences;
        let mut frame = vec![2, 0, 0, 0xfe, 0xce, 1, 2, 0, 0, 0xfe, 0xce, 2];
        frame.extend(FENCE_TYPE);
        frame.extend(number.to_be_bytes());
        frame.resize(60, 0);
        self.send(pair, &frame);
        number
    }

    /// Everything that arrives before the fence does.
    ///
    /// # Panics
    /// When the fence does not arrive in time.
    pub fn collect_until(&mut self, fence: u64) -> Vec<Received> {
        let until = soon();
        let mut before = Vec::new();
        loop {
            let got = self.recv_any(until).unwrap_or_else(|| {
                panic!("fence {fence:#x} did not arrive; before it: {} frames", before.len());
            });
            let is_fence = got.frame.get(12..14) == Some(&FENCE_TYPE);
            if is_fence && got.frame.get(14..22) == Some(&fence.to_be_bytes()) {
                return before;
            }
            before.push(got);
        }
    }

    /// What has arrived of everything sent through `pair` so far, by a port that sends back (`loopback`, `echo`). This
    /// proves silence without waiting for it: nothing more can come.
    ///
    /// Two fences are sent, the second once the first is back. A device takes frames in bursts and may publish the
    /// queues of one burst in any order, so the first fence proves nothing about its own burst.
    pub fn fence(&mut self, pair: usize) -> Vec<Received> {
        let mut all = Vec::new();
        for _ in 0..2 {
            let fence = self.send_fence(pair);
            all.extend(self.collect_until(fence));
        }
        all.extend(std::iter::from_fn(|| self.try_recv_any()));
        all
    }

    /// [`Guest::fence`] through a wire: what has arrived at `peer` of everything this guest sent through `pair`.
    pub fn fence_to(&mut self, pair: usize, peer: &mut Guest) -> Vec<Received> {
        let mut all = Vec::new();
        for _ in 0..2 {
            let fence = self.send_fence(pair);
            all.extend(peer.collect_until(fence));
        }
        all.extend(std::iter::from_fn(|| peer.try_recv_any()));
        all
    }
}
