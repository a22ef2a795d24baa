//! `loopback` and `echo`: what the guest sends comes back to it, copied straight from its transmit buffers into its
//! receive buffers.

use super::Port;
use crate::dataplane::{Context, rx, tx};
use crate::nic::Nic;
use crate::vhost::ring::{BatchStore, FrameBatch};

/// Sends everything back.
#[derive(Debug, Clone, Copy)]
pub struct Reflector {
    /// Swap the MAC addresses, so that the frame comes from whom it was for (`echo`).
    pub swap_macs: bool,
}

impl Port for Reflector {
    fn receive<'a>(&'a mut self, store: &'a mut BatchStore) -> FrameBatch<'a> {
        FrameBatch::new(store)
    }

    fn send(&mut self, from: &Nic, batch: &mut FrameBatch<'_>, cx: &mut Context) -> u64 {
        batch.parse();
        if self.swap_macs {
            for i in 0..batch.len() {
                let (dst, src) = batch.frame_mut(i).head_mut()[..12].split_at_mut(6);
                dst.swap_with_slice(src);
                let h = batch.headers_mut(i);
                std::mem::swap(&mut h.dst, &mut h.src);
            }
        }
        tx::cross(from, batch, rx::all(batch), cx);
        0
    }
}
