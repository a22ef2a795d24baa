//! Commands that a guest sends in band: carried out, and replied to.

use super::Context;
use crate::command::channel::{self, Outcome};
use crate::nic::Nic;
use crate::vhost::ring::{HEAD, RxRefused, Segment, TxRing};
use crate::virtio::NetHeader;
use crate::virtio::channel::{ChannelHeader, FRAME_ANSWER_MAX, Road};

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// The shortest frame on Ethernet, without its check sequence.
const SHORTEST: usize = 60;
/// Bytes of a reply, at most: an answer as long as the header can say.
const REPLY_MAX: usize = ChannelHeader::SIZE + u16::MAX as usize;

/// Carries out the command that the last burst of transmit queue `queue` ended with, if it did, and replies.
#[inline]
pub(super) fn serve(nic: &Nic, queue: usize, ring: &mut TxRing, cx: &mut Context) {
    if ring.command().is_some() {
        serve_command(nic, queue, ring, cx);
    }
}

#[cold]
fn serve_command(nic: &Nic, queue: usize, ring: &mut TxRing, cx: &mut Context) {
    let Some(command) = ring.command() else { return };
    let c = &nic.tx_counters[queue];
    c.in_band_commands.add(1);
    let outcome = match command.road {
        Road::Kernel => {
            let room = command.room.min(REPLY_MAX as u64) as usize;
            let reply = &mut cx.frame[..room];
            let (outcome, len) = channel::answer(nic, Road::Kernel, command.frame, reply);
            ring.reply(&cx.frame[..len]);
            outcome
        }
        Road::User => {
            let (ethernet, reply) = cx.frame.split_at_mut(ETHERNET);
            ethernet[..6].copy_from_slice(&command.frame[6..12]);
            ethernet[6..12].copy_from_slice(&command.frame[..6]);
            ethernet[12..].copy_from_slice(&command.frame[12..ETHERNET]);
            let reply = &mut reply[..ChannelHeader::SIZE + FRAME_ANSWER_MAX];
            let (outcome, len) = channel::answer(nic, Road::User, command.frame, reply);
            if outcome != Outcome::Reply {
                let end = (ETHERNET + len).max(SHORTEST);
                cx.frame[ETHERNET + len..end].fill(0);
                let frame = std::mem::take(&mut cx.frame);
                let delivered = deliver(nic, &frame[..end], cx);
                cx.frame = frame;
                if !delivered {
                    c.in_band_replies_lost.add(1);
                }
            }
            outcome
        }
    };
    match outcome {
        Outcome::Done => {}
        Outcome::Refused => c.in_band_refused.add(1),
        Outcome::Malformed | Outcome::Reply => c.in_band_malformed.add(1),
    }
}

/// Puts a reply into the first receive queue that is enabled; false if the guest has no room for it. It comes from no wire:
/// link, receive mode and rules have no say, and no capture has it.
fn deliver(nic: &Nic, frame: &[u8], cx: &mut Context) -> bool {
    let Some(queue) = nic.rx.iter().position(|q| q.is_running()) else { return false };
    let Some(mut guard) = nic.rx[queue].enter_waiting() else { return false };
    let Some(q) = guard.as_mut() else { return false };
    let c = &nic.rx_counters[queue];
    let (head, tail) = frame.split_at(frame.len().min(HEAD));
    let result = q.ring.push(NetHeader::default(), head, &[Segment::from_slice(tail)], frame.len());
    q.ring.publish();
    if q.ring.has_unsignalled() {
        q.signal(nic, queue, u64::from(result.is_ok()), frame.len() as u64, cx);
    }
    c.bad_buffers.add(q.ring.take_bad_buffers());
    match result {
        Ok(()) => c.in_band_replies.add(1),
        Err(RxRefused::Broken(fault)) => {
            let broken = nic.rx[queue].take_broken(&mut guard);
            drop(guard);
            nic.rx_broken(queue, broken, fault);
        }
        Err(RxRefused::NoBuffer | RxRefused::BufferTooSmall) => {}
    }
    result.is_ok()
}
