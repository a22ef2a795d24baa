//! Wire to guest: steering, and delivery into receive rings.

use std::sync::atomic::Ordering;

use super::Context;
use crate::nic::{Nic, RxQueue};
use crate::offload::{self, Accepts, BadOffload, Plan};
use crate::stats::RxCounters;
use crate::steer::{DropReason, Reason, Verdict};
use crate::vhost::ring::{BATCH, FrameBatch, HEAD, MIN_FRAME, RxRefused, Segment};
use crate::virtio::NetHeader;

/// End of a chain of frames.
const END: u8 = BATCH as u8;

/// Frames of a batch: bit `i` = frame `i`.
pub type Frames = u32;

const _: () = assert!(BATCH <= Frames::BITS as usize);

/// All frames of a batch.
pub fn all(batch: &FrameBatch<'_>) -> Frames {
    if batch.len() == BATCH { Frames::MAX } else { (1 << batch.len()) - 1 }
}

/// Receives some frames of a batch: decides for each, then delivers queue by queue.
pub fn receive(nic: &Nic, batch: &mut FrameBatch<'_>, frames: Frames, cx: &mut Context) {
    if frames == 0 {
        return;
    }
    nic.counters.port_rx_packets.add_shared(u64::from(frames.count_ones()));
    if !nic.is_link_up() {
        return nic.counters.drop_link_down.add_shared(u64::from(frames.count_ones()));
    }
    batch.parse();
    let (mut queues, reasons) = steer(nic, batch, frames, cx);
    let accepts = nic.accepts();
    while queues != 0 {
        let queue = queues.trailing_zeros() as usize;
        queues &= queues - 1;
        deliver(nic, queue, batch, accepts, &reasons, cx);
    }
}

/// Decides for each frame. Returns the queues that get some (bit per queue), chained up in the context, and why.
fn steer(nic: &Nic, batch: &FrameBatch<'_>, frames: Frames, cx: &mut Context) -> (u64, [Reason; BATCH]) {
    let mut queues = 0u64;
    let mut reasons = [Reason::Default; BATCH];
    let hits = &nic.rule_hits[cx.worker];
    let steering = nic.steering.read().expect("steering never panics");
    let mut left = frames;
    while left != 0 {
        let i = left.trailing_zeros() as usize;
        left &= left - 1;
        if batch.frame(i).len() < MIN_FRAME {
            nic.counters.drop_runt.add_shared(1);
            continue;
        }
        let verdict = steering.classify(batch.headers(i), &nic.learned, cx.now);
        if let Verdict::Queue { rule: Some(slot), .. } | Verdict::Drop { rule: Some(slot), .. } = verdict {
            let hits = &hits[slot.0 as usize];
            hits.store(hits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        match verdict {
            Verdict::Queue { queue, reason, .. } => {
                let q = usize::from(queue) % 64;
                if queues >> q & 1 == 0 {
                    queues |= 1 << q;
                    cx.first[q] = i as u8;
                } else {
                    cx.next[usize::from(cx.last[q])] = i as u8;
                }
                cx.last[q] = i as u8;
                cx.next[i] = END;
                reasons[i] = reason;
            }
            Verdict::Drop { reason, .. } => count_drop(nic, reason),
        }
        if nic.trace.is_on() {
            let len = batch.frame(i).len();
            nic.trace.record(batch.headers(i), len, verdict);
        }
    }
    (queues, reasons)
}

#[cold]
fn count_drop(nic: &Nic, reason: DropReason) {
    let c = &nic.counters;
    match reason {
        DropReason::MacFilter => &c.drop_rx_mode,
        DropReason::VlanFilter => &c.drop_vlan,
        DropReason::Rule => &c.drop_by_rule,
        DropReason::NoQueue => &c.drop_no_queue,
    }
    .add_shared(1);
}

/// What a burst into one queue came to.
#[derive(Default)]
struct Tally {
    packets: u64,
    bytes: u64,
    by: [u64; Reason::ALL.len()],
    no_buffer: u64,
    too_small: u64,
}

/// Brings the frames that are chained up for `queue` into its ring.
fn deliver(
    nic: &Nic,
    queue: usize,
    batch: &FrameBatch<'_>,
    accepts: Accepts,
    reasons: &[Reason; BATCH],
    cx: &mut Context,
) {
    let c = &nic.rx_counters[queue];
    let mut guard = nic.rx[queue].enter_waiting();
    let Some(q) = guard.as_mut().and_then(|g| g.as_mut()) else {
        let mut i = cx.first[queue];
        while i != END {
            c.drop_queue_stopped.add_shared(1);
            i = cx.next[usize::from(i)];
        }
        return;
    };
    let mut tally = Tally::default();
    let mut fault = None;
    q.ring.prepare(batch.len());
    let mut i = cx.first[queue];
    while i != END {
        let index = usize::from(i);
        i = cx.next[index];
        let frame = batch.frame(index);
        let delivered = match offload::plan(&frame.net, frame.len(), accepts) {
            Plan::AsIs => {
                let net = offload::rx_header(frame.net, accepts);
                q.ring.push(net, frame.head(), batch.tail(index), frame.len())
            }
            Plan::Checksum => checksum(q, batch, index, &mut cx.frame, c),
            Plan::Segment => segment(q, batch, index, &mut cx.frame, c),
            Plan::Invalid(_) => {
                c.drop_bad_offload.add(1);
                continue;
            }
        };
        match delivered {
            Ok(()) => {
                tally.packets += 1;
                tally.bytes += frame.len() as u64;
                tally.by[reasons[index] as usize] += 1;
            }
            Err(RxRefused::NoBuffer) => tally.no_buffer += 1,
            Err(RxRefused::BufferTooSmall) => tally.too_small += 1,
            Err(RxRefused::Broken(f)) => {
                fault = Some(f);
                break;
            }
        }
    }
    q.ring.publish();
    signal(q, c);
    c.bad_buffers.add(q.ring.take_bad_buffers());
    if capture_wanted(nic) {
        capture(nic, queue, batch, cx);
    }
    c.packets.add(tally.packets);
    c.bytes.add(tally.bytes);
    c.by_filter.add(tally.by[Reason::Filter as usize]);
    c.by_learned.add(tally.by[Reason::Learned as usize]);
    c.by_rss.add(tally.by[Reason::Rss as usize]);
    c.by_default.add(tally.by[Reason::Default as usize]);
    c.drop_no_buffer.add(tally.no_buffer);
    c.drop_buffer_too_small.add(tally.too_small);
    if let (Some(fault), Some(mut guard)) = (fault, guard) {
        let broken = nic.rx[queue].take_broken(&mut guard);
        drop(guard);
        nic.rx_broken(queue, broken, fault);
    }
}

/// Sends the guest an interrupt for what was published, if it wants one.
#[inline]
fn signal(q: &mut RxQueue, c: &RxCounters) {
    if !q.ring.has_unsignalled() {
        return;
    }
    if q.ring.wants_signal()
        && let Some(call) = &q.call
    {
        call.fire();
        c.signals.add(1);
    } else {
        c.signals_suppressed.add(1);
    }
}

/// For a guest that does not take partial checksums.
#[cold]
fn checksum(
    q: &mut RxQueue,
    batch: &FrameBatch<'_>,
    i: usize,
    room: &mut [u8],
    c: &RxCounters,
) -> Result<(), RxRefused> {
    let frame = &mut room[..batch.frame(i).len()];
    batch.copy_frame(i, frame);
    let mut net = batch.frame(i).net;
    if let Err(bad) = offload::checksum(frame, &mut net) {
        return refuse(bad, c);
    }
    c.checksummed.add(1);
    push_slice(q, frame)
}

/// For a guest that does not take large frames of this kind.
#[cold]
fn segment(
    q: &mut RxQueue,
    batch: &FrameBatch<'_>,
    i: usize,
    room: &mut [u8],
    c: &RxCounters,
) -> Result<(), RxRefused> {
    let frame = &mut room[..batch.frame(i).len()];
    batch.copy_frame(i, frame);
    let mut result = Ok(());
    let cut = offload::segment(frame, &batch.frame(i).net, &mut |headers: &[u8], payload: &[u8]| {
        if result.is_ok() {
            // The head of a segment may hold less than its headers: they can be longer than HEAD.
            let (head, rest) = headers.split_at(headers.len().min(HEAD));
            let tail = [Segment::from_slice(rest), Segment::from_slice(payload)];
            result = q.ring.push(NetHeader::default(), head, &tail, headers.len() + payload.len());
        }
    });
    if let Err(bad) = cut {
        return refuse(bad, c);
    }
    c.segmented.add(1);
    result
}

fn push_slice(q: &mut RxQueue, frame: &[u8]) -> Result<(), RxRefused> {
    let (head, rest) = frame.split_at(frame.len().min(HEAD));
    q.ring.push(NetHeader::default(), head, &[Segment::from_slice(rest)], frame.len())
}

/// A request that looked right in its header, but not for this frame.
fn refuse(_: BadOffload, c: &RxCounters) -> Result<(), RxRefused> {
    c.drop_bad_offload.add(1);
    Ok(())
}

#[inline]
fn capture_wanted(nic: &Nic) -> bool {
    nic.capture.is_some()
}

/// Records the frames that were steered to `queue`, as they came from the wire.
#[cold]
fn capture(nic: &Nic, queue: usize, batch: &FrameBatch<'_>, cx: &mut Context) {
    let Some(capture) = &nic.capture else { return };
    let mut i = cx.first[queue];
    while i != END {
        let index = usize::from(i);
        capture.received(queue, batch, index, &mut cx.frame);
        i = cx.next[index];
    }
}
