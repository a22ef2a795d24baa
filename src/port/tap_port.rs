//! `tap`: a queue of a TAP device as a port.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::Port;
use super::tap::TapQueue;
use crate::dataplane::Context;
use crate::dataplane::rx::{self, Frames};
use crate::nic::Nic;
use crate::offload::tx_header;
use crate::vhost::ring::{BATCH, BatchStore, FrameBatch, MAX_FRAME};
use crate::virtio::NetHeader;

/// Room for a frame with its header.
const SLOT: usize = (NetHeader::SIZE + MAX_FRAME).next_multiple_of(64);
/// The kernel takes that many pieces in one call (`IOV_MAX`).
const MAX_PIECES: usize = 1024;

/// A queue of a TAP device.
pub struct TapPort {
    queue: Arc<TapQueue>,
    /// One slot for each frame of a batch; pages that no frame reaches are never touched.
    slots: Box<[u8]>,
}

impl TapPort {
    /// Serves this queue.
    pub fn new(queue: Arc<TapQueue>) -> Self {
        TapPort { queue, slots: vec![0; BATCH * SLOT].into() }
    }
}

/// Writes some frames of a batch to the device; returns those that it did not take.
pub(super) fn write_frames(
    queue: &TapQueue,
    batch: &FrameBatch<'_>,
    frames: Frames,
    cx: &mut Context,
) -> Frames {
    let mut refused = 0;
    let mut left = frames;
    while left != 0 {
        let i = left.trailing_zeros() as usize;
        left &= left - 1;
        if !write(queue, batch, i, cx) {
            refused |= 1 << i;
        }
    }
    refused
}

/// Writes frame `i` straight from the guest's buffers. A frame in more pieces than the kernel takes is put
/// together first.
fn write(queue: &TapQueue, batch: &FrameBatch<'_>, i: usize, cx: &mut Context) -> bool {
    let header = tx_header(batch.frame(i).net).to_bytes();
    let written = if batch.tail(i).len() + 2 <= MAX_PIECES {
        queue.write_raw(batch.iovecs(i, &header, &mut cx.pieces))
    } else {
        let mut whole = vec![0; NetHeader::SIZE + batch.frame(i).len()];
        whole[..NetHeader::SIZE].copy_from_slice(&header);
        batch.copy_frame(i, &mut whole[NetHeader::SIZE..]);
        queue.write(&whole)
    };
    matches!(written, Ok(Some(_)))
}

impl Port for TapPort {
    fn receive<'a>(&'a mut self, store: &'a mut BatchStore) -> FrameBatch<'a> {
        let mut lengths = [0usize; BATCH];
        let mut count = 0;
        for (slot, length) in self.slots.chunks_exact_mut(SLOT).zip(&mut lengths) {
            // An error here is one that goes away or that the writer sees too (the device was deleted).
            let Ok(Some(n)) = self.queue.read(slot) else { break };
            *length = n;
            count += 1;
        }
        let mut batch = FrameBatch::new(store);
        for (slot, n) in self.slots.chunks_exact(SLOT).zip(&lengths[..count]) {
            if let Some((header, frame)) = slot[..*n].split_first_chunk() {
                batch.push_slice(NetHeader::from_bytes(header), frame);
            }
        }
        batch
    }

    fn send(&mut self, _from: &Nic, batch: &mut FrameBatch<'_>, cx: &mut Context) -> u64 {
        write_frames(&self.queue, batch, rx::all(batch), cx).count_ones().into()
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.as_fd())
    }
}
