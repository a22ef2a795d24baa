//! Guest to wire: frames out of a transmit ring, into the port.

use std::sync::atomic::Ordering;

use super::rx::Frames;
use super::{Context, in_band, rx};
use crate::nic::{Nic, TxQueue};
use crate::port::{Port, PortQueue};
use crate::steer::RecentFlows;
use crate::vhost::ring::{BatchStore, FrameBatch, RingFault};

/// Takes one burst from transmit queue `i` and sends it. Returns how many chains it took.
pub fn transmit(
    nic: &Nic,
    i: usize,
    port: &mut PortQueue,
    store: &mut BatchStore,
    cx: &mut Context,
) -> usize {
    let Some(mut guard) = nic.tx[i].enter() else { return 0 };
    let Some(q) = guard.as_mut() else { return 0 };
    match burst(nic, i, q, port, store, cx) {
        Ok(taken) => taken,
        Err(fault) => {
            let broken = nic.tx[i].take_broken(&mut guard);
            drop(guard);
            nic.tx_broken(i, broken, fault);
            1
        }
    }
}

fn burst(
    nic: &Nic,
    i: usize,
    q: &mut TxQueue,
    port: &mut PortQueue,
    store: &mut BatchStore,
    cx: &mut Context,
) -> Result<usize, RingFault> {
    let c = &nic.tx_counters[i];
    if q.ring.command().is_none() {
        // What a worker does most of the time that polls.
        if q.ring.is_empty()? {
            c.polls_empty.add(1);
            return Ok(0);
        }
        send(nic, i, q, port, store, cx)?;
    }
    if q.ring.command().is_some() && nic.commands_hang.load(Ordering::Relaxed) {
        // A fault: the queue stands still until it is taken away.
        return Ok(0);
    }
    in_band::serve(nic, i, &mut q.ring, cx);
    let taken = q.ring.complete();
    c.polls_useful.add(1);
    if q.kicks.refuse() {
        q.ring.refuse_kicks();
    }
    q.signal(nic, i, taken as u64, cx);
    c.drop_malformed.add(q.ring.take_malformed());
    Ok(taken)
}

/// Takes frames, up to a command, and sends them.
#[inline]
fn send(
    nic: &Nic,
    i: usize,
    q: &mut TxQueue,
    port: &mut PortQueue,
    store: &mut BatchStore,
    cx: &mut Context,
) -> Result<(), RingFault> {
    let c = &nic.tx_counters[i];
    let mut batch = q.ring.pop(store)?;
    let frames = batch.len() as u64;
    if batch.is_empty() {
        return Ok(());
    }
    c.packets.add(frames);
    c.bytes.add(batch.bytes());
    if !nic.is_link_up() {
        c.drop_link_down.add(frames);
        return Ok(());
    }
    learn(nic, i, &mut q.recent, &mut batch, cx);
    if let Some(capture) = &nic.capture {
        for f in 0..batch.len() {
            capture.sent(i, &batch, f, &mut cx.frame);
        }
    }
    let refused = port.send(nic, &mut batch, cx);
    c.drop_port.add(refused);
    nic.counters.of(cx.worker).port_tx_packets.add(frames - refused);
    Ok(())
}

/// Shows the table of learned flows what the guest sends on this queue.
fn learn(nic: &Nic, queue: usize, recent: &mut RecentFlows, batch: &mut FrameBatch<'_>, cx: &Context) {
    if !nic.steering.learns() {
        return;
    }
    batch.parse();
    recent.start_burst(&nic.learned, cx.now);
    for i in 0..batch.len() {
        recent.learn(&nic.learned, batch.headers(i), queue as u16);
    }
}

/// Hands frames of a batch that `from` sent to another NIC, as if they had come over a wire.
pub fn cross(to: &Nic, batch: &mut FrameBatch<'_>, frames: Frames, cx: &mut Context) {
    for i in 0..batch.len() {
        let f = batch.frame_mut(i);
        f.net = crate::offload::tx_header(f.net);
    }
    rx::receive(to, batch, frames, cx);
}
