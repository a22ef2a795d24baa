//! Wire to guest: steering, and delivery into receive rings.

use std::sync::RwLockReadGuard;
use std::sync::atomic::Ordering;

use super::{Context, QUEUES};
use crate::nic::{Nic, RuleHits};
use crate::offload::{self, Accepts, Plan, RxHash};
use crate::port::capture::Capture;
use crate::stats::NicCounters;
use crate::steer::{BURST, DropReason, Moment, Reason, Steering, Tick, Verdict, indices};
use crate::vhost::ring::{
    BATCH, FrameBatch, HEAD, MIN_FRAME, RingFault, RxBurst, RxFormat, RxRefused, Segment,
};
use crate::virtio::NetHeader;

/// Frames of a batch: bit `i` = frame `i`.
pub type Frames = u32;

const _: () = assert!(BATCH == Frames::BITS as usize && BATCH == BURST);

/// All frames of a batch.
pub fn all(batch: &FrameBatch<'_>) -> Frames {
    if batch.len() == BATCH { Frames::MAX } else { (1 << batch.len()) - 1 }
}

/// Receives some frames of a batch: decides for each, then delivers queue by queue.
pub fn receive(nic: &Nic, batch: &mut FrameBatch<'_>, frames: Frames, cx: &mut Context) {
    if frames == 0 {
        return;
    }
    let c = nic.counters.of(cx.worker);
    c.port_rx_packets.add(u64::from(frames.count_ones()));
    if !nic.is_link_up() {
        return c.drop_link_down.add(u64::from(frames.count_ones()));
    }
    batch.parse();
    let hashed = nic.hash_in_header.load(Ordering::Relaxed);
    let (queues, reasons) = steer(nic, batch, frames, hashed, cx);
    let accepts = nic.accepts();
    for i in 0..queues {
        let queue = usize::from(cx.queues[i]);
        deliver(nic, queue, batch, accepts, hashed, &reasons, cx);
    }
}

/// Decides for each frame. Returns how many queues get some (which, and which ones, is in the context), and why.
fn steer(
    nic: &Nic,
    batch: &FrameBatch<'_>,
    frames: Frames,
    hashed: bool,
    cx: &mut Context,
) -> (usize, [Reason; BATCH]) {
    let mut queues = 0;
    let mut reasons = [Reason::Default; BATCH];
    nic.settle();
    let hits = nic.rule_hits.of(cx.worker);
    let mut state = State::of(nic, cx.now);
    let traced = nic.trace.is_on();
    let mut decided = 0;
    for i in indices(frames) {
        let h = batch.headers(i);
        let known =
            if decided >> i & 1 == 1 { Some(&cx.decided[i]) } else { cx.verdicts.find(state.stamp, h) };
        let verdict = match known {
            Some(verdict) => *verdict,
            None if batch.frame(i).len() < MIN_FRAME => {
                nic.counters.of(cx.worker).drop_runt.add(1);
                continue;
            }
            None => {
                decided |= state.decide(batch, frames & Frames::MAX << i & !decided, cx);
                cx.decided[i]
            }
        };
        if let Verdict::Queue { rule: Some(slot), .. } | Verdict::Drop { rule: Some(slot), .. } = verdict {
            RuleHits::count(hits, slot);
        }
        match verdict {
            Verdict::Queue { queue, reason, .. } => {
                let frames = &mut cx.by_queue[usize::from(queue) % QUEUES];
                // Without branches. Each frame adds one queue at most, so there is always room.
                cx.queues[queues % BATCH] = (usize::from(queue) % QUEUES) as u8;
                queues += usize::from(*frames == 0);
                *frames |= 1 << i;
                reasons[i] = reason;
            }
            Verdict::Drop { reason, .. } => count_drop(nic.counters.of(cx.worker), reason),
        }
        if hashed {
            let hash = state.locked().steering.hash(h, verdict);
            cx.hashes[i] = hash.map(|(value, report)| RxHash { value, ports: report.has_ports() });
        }
        if traced {
            let len = batch.frame(i).len();
            nic.trace.record(batch.headers(i), len, verdict);
        }
    }
    (queues, reasons)
}

/// The state of steering by which a burst is decided about. Its lock is taken, and kept for the rest of the burst, only once a
/// packet comes whose flow has not been seen a moment ago: a worker that has seen them all waits for nobody who changes rules.
struct State<'a> {
    nic: &'a Nic,
    now: Tick,
    stamp: u64,
    steering: Option<RwLockReadGuard<'a, Steering>>,
}

impl<'a> State<'a> {
    fn of(nic: &'a Nic, now: Tick) -> Self {
        State { nic, now, stamp: nic.steering.stamp(&nic.learned, now, nic.id()), steering: None }
    }

    fn locked(&mut self) -> Moment<'_> {
        let (nic, now) = (self.nic, self.now);
        let steering = self.steering.get_or_insert_with(|| {
            let steering = nic.steering.read();
            self.stamp = steering.stamp(&nic.learned, now, nic.id());
            steering
        });
        Moment { steering, learned: &nic.learned, now, stamp: self.stamp }
    }

    /// Goes the long way to verdicts about those of the frames that none is known of, the first in any case. Returns which
    /// frames that were.
    #[inline(never)]
    fn decide(&mut self, batch: &FrameBatch<'_>, frames: Frames, cx: &mut Context) -> Frames {
        // What is too short to be a frame gets none.
        let whole = |i: &usize| batch.frame(*i).len() >= MIN_FRAME;
        let frames = indices(frames).filter(whole).fold(0, |set, i| set | 1 << i);
        cx.verdicts.decide(&self.locked(), frames, |i| batch.headers(i), &mut cx.decided)
    }
}

#[cold]
fn count_drop(c: &NicCounters, reason: DropReason) {
    match reason {
        DropReason::MacFilter => &c.drop_rx_mode,
        DropReason::VlanFilter => &c.drop_vlan,
        DropReason::Rule => &c.drop_by_rule,
        DropReason::NoQueue => &c.drop_no_queue,
    }
    .add(1);
}

/// What a burst into one queue came to.
#[derive(Default)]
struct Tally {
    bytes: u64,
    by: [u64; Reason::ALL.len()],
    no_buffer: u64,
    too_small: u64,
    bad_offload: u64,
    checksummed: u64,
    segmented: u64,
    /// Why the frame in hand is here.
    reason: Reason,
}

impl Tally {
    /// Counts a frame of `len` bytes, or why it did not get into the ring. Fails if the ring is broken.
    #[inline]
    fn count(&mut self, result: Result<(), RxRefused>, len: usize) -> Result<(), RingFault> {
        match result {
            Ok(()) => {
                self.bytes += len as u64;
                self.by[self.reason as usize] += 1;
            }
            Err(RxRefused::NoBuffer) => self.no_buffer += 1,
            Err(RxRefused::BufferTooSmall) => self.too_small += 1,
            Err(RxRefused::Broken(fault)) => return Err(fault),
        }
        Ok(())
    }
}

/// Brings the frames of the batch that are for `queue` into its ring.
fn deliver(
    nic: &Nic,
    queue: usize,
    batch: &FrameBatch<'_>,
    accepts: Accepts,
    hashed: bool,
    reasons: &[Reason; BATCH],
    cx: &mut Context,
) {
    let c = &nic.rx_counters[queue];
    let frames = std::mem::take(&mut cx.by_queue[queue]);
    let mut guard = nic.rx[queue].enter_waiting();
    let Some(q) = guard.as_mut().and_then(|g| g.as_mut()) else {
        c.drop_queue_stopped.add_shared(u64::from(frames.count_ones()));
        return;
    };
    let mut tally = Tally::default();
    let burst = Burst { batch, frames, accepts, hashed, reasons };
    let fault = match q.ring.burst() {
        RxFormat::Split(ring) => bring(ring, burst, cx, &mut tally),
        RxFormat::Packed(ring) => bring(ring, burst, cx, &mut tally),
    };
    let packets = tally.by.iter().sum();
    if q.ring.has_unsignalled() {
        q.signal(nic, queue, packets, tally.bytes, cx);
    }
    c.bad_buffers.add(q.ring.take_bad_buffers());
    if let Some(file) = &nic.capture {
        capture(file, queue, batch, frames, cx);
    }
    c.packets.add(packets);
    c.bytes.add(tally.bytes);
    c.by_filter.add(tally.by[Reason::Filter as usize]);
    c.by_learned.add(tally.by[Reason::Learned as usize]);
    c.by_rss.add(tally.by[Reason::Rss as usize]);
    c.by_default.add(tally.by[Reason::Default as usize]);
    c.drop_no_buffer.add(tally.no_buffer);
    c.drop_buffer_too_small.add(tally.too_small);
    c.drop_bad_offload.add(tally.bad_offload);
    c.checksummed.add(tally.checksummed);
    c.segmented.add(tally.segmented);
    if let (Some(fault), Some(mut guard)) = (fault, guard) {
        let broken = nic.rx[queue].take_broken(&mut guard);
        drop(guard);
        nic.rx_broken(queue, broken, fault);
    }
}

/// Frames for one queue, and what is known of them.
struct Burst<'a, 'm> {
    batch: &'a FrameBatch<'m>,
    frames: Frames,
    accepts: Accepts,
    hashed: bool,
    reasons: &'a [Reason; BATCH],
}

/// Brings them into a ring of one format; returns what is wrong with the ring, if it is broken.
#[inline(always)]
fn bring(
    mut ring: impl RxBurst,
    burst: Burst<'_, '_>,
    cx: &mut Context,
    tally: &mut Tally,
) -> Option<RingFault> {
    let Burst { batch, frames, accepts, hashed, reasons } = burst;
    let mut fault = None;
    ring.prepare();
    for index in indices(frames) {
        let frame = batch.frame(index);
        tally.reason = reasons[index];
        let hash = if hashed { cx.hashes[index] } else { None };
        let result = match offload::plan(&frame.net, frame.len(), accepts) {
            // Nothing to tell the guest, as of most frames: then the header is a constant.
            Plan::AsIs if frame.net.flags == 0 && hash.is_none() => {
                let result = ring.push(NetHeader::default(), frame.head(), batch.tail(index), frame.len());
                tally.count(result, frame.len())
            }
            Plan::AsIs => {
                let net = with_hash(hash, offload::rx_header(frame.net, accepts));
                let result = ring.push(net, frame.head(), batch.tail(index), frame.len());
                tally.count(result, frame.len())
            }
            Plan::Checksum => checksum(&mut ring, batch, index, hash, &mut cx.frame, tally),
            Plan::Segment => segment(&mut ring, batch, index, hash, &mut cx.frame, tally),
            Plan::Invalid(_) => {
                tally.bad_offload += 1;
                Ok(())
            }
        };
        if let Err(f) = result {
            fault = Some(f);
            break;
        }
    }
    ring.publish();
    fault
}

/// For a guest that does not take partial checksums.
#[cold]
fn checksum(
    ring: &mut impl RxBurst,
    batch: &FrameBatch<'_>,
    i: usize,
    hash: Option<RxHash>,
    room: &mut [u8],
    tally: &mut Tally,
) -> Result<(), RingFault> {
    let frame = &mut room[..batch.frame(i).len()];
    batch.copy_frame(i, frame);
    let mut net = batch.frame(i).net;
    if offload::checksum(frame, &mut net).is_err() {
        tally.bad_offload += 1;
        return Ok(());
    }
    tally.checksummed += 1;
    push_plain(ring, frame, &[], hash, tally)
}

/// Delivers a frame that leaves the guest nothing to do, in two pieces.
fn push_plain(
    ring: &mut impl RxBurst,
    first: &[u8],
    second: &[u8],
    hash: Option<RxHash>,
    tally: &mut Tally,
) -> Result<(), RingFault> {
    // The first piece may be longer than a head: a whole frame, or the headers of a segment.
    let (head, rest) = first.split_at(first.len().min(HEAD));
    let tail = [Segment::from_slice(rest), Segment::from_slice(second)];
    let len = first.len() + second.len();
    tally.count(ring.push(with_hash(hash, NetHeader::default()), head, &tail, len), len)
}

/// The header with the frame's hash, if it has one that its guest wants to see.
#[inline(always)]
fn with_hash(hash: Option<RxHash>, net: NetHeader) -> NetHeader {
    hash.map_or(net, |hash| hash.put_into(net))
}

/// For a guest that does not take large frames of this kind.
#[cold]
fn segment(
    ring: &mut impl RxBurst,
    batch: &FrameBatch<'_>,
    i: usize,
    hash: Option<RxHash>,
    room: &mut [u8],
    tally: &mut Tally,
) -> Result<(), RingFault> {
    let frame = &mut room[..batch.frame(i).len()];
    batch.copy_frame(i, frame);
    let mut result = Ok(());
    let cut = offload::segment(frame, &batch.frame(i).net, &mut |headers: &[u8], payload: &[u8]| {
        if result.is_ok() {
            result = push_plain(ring, headers, payload, hash, tally);
        }
    });
    match cut {
        Ok(_) => tally.segmented += 1,
        // A request that looked right in its header, but not for this frame.
        Err(_) => tally.bad_offload += 1,
    }
    result
}

/// Records the frames that were steered to `queue`, as they came from the wire.
#[cold]
fn capture(capture: &Capture, queue: usize, batch: &FrameBatch<'_>, frames: Frames, cx: &mut Context) {
    for i in indices(frames) {
        capture.received(queue, batch, i, &mut cx.frame);
    }
}
