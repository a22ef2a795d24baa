//! `gen`: a source of traffic. What the guest sends is taken and forgotten.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Port;
use super::template::{GenConfig, Template};
use crate::dataplane::Context;
use crate::nic::Nic;
use crate::vhost::ring::{BATCH, BatchStore, FrameBatch, HEAD};
use crate::virtio::NetHeader;

/// A generator that was kept from sending makes up for that much of the time, and forgets the rest.
const CATCH_UP: Duration = Duration::from_millis(10);

/// One queue pair's share of the generated traffic: every `stride`-th flow.
///
/// All frames of a batch are of different flows, as far as there are so many: bursts of one flow would flatter whatever is measured.
pub struct Generator {
    nic: Arc<Nic>,
    template: Template,
    /// What follows the head, the same in all frames.
    tail: Box<[u8]>,
    first: u32,
    stride: u32,
    flow: u32,
    /// Time between two frames of this share.
    interval: Option<Duration>,
    next: Instant,
}

impl Generator {
    /// The share of queue pair `pair` of the NIC.
    pub fn new(nic: &Arc<Nic>, config: &GenConfig, pair: usize) -> Self {
        let template = Template::new(config);
        let frame = template.frame();
        let tail = frame[frame.len().min(HEAD)..].into();
        // With fewer flows than pairs, some have none to send: they would only repeat the others'.
        let stride = u32::from(nic.config.queue_pairs).min(config.flows);
        let interval = config.rate.map(|rate| Duration::from_secs(1) * stride / rate.max(1) as u32);
        Generator {
            nic: Arc::clone(nic),
            template,
            tail,
            first: pair as u32,
            stride,
            flow: pair as u32,
            interval,
            next: Instant::now(),
        }
    }

    /// Nobody would get a frame, or all flows are the other pairs'.
    fn is_silent(&self) -> bool {
        self.first >= self.stride || !self.nic.has_targets()
    }

    /// How many frames may go now.
    fn allowance(&mut self) -> usize {
        let Some(interval) = self.interval else { return BATCH };
        let now = Instant::now();
        if now < self.next {
            return 0;
        }
        let behind = now - self.next;
        if behind > CATCH_UP.max(interval) {
            self.next = now - CATCH_UP;
        }
        let due = 1 + ((now - self.next).as_nanos() / interval.as_nanos().max(1)) as usize;
        let n = due.min(BATCH);
        self.next += interval * n as u32;
        n
    }
}

impl Port for Generator {
    fn receive<'a>(&'a mut self, store: &'a mut BatchStore) -> FrameBatch<'a> {
        let n = if self.is_silent() { 0 } else { self.allowance() };
        let mut batch = FrameBatch::new(store);
        for _ in 0..n {
            let frame = self.template.frame();
            batch.push_parts(NetHeader::default(), &frame[..frame.len().min(HEAD)], &self.tail);
            let last = batch.len() - 1;
            self.template.stamp_copy(batch.frame_mut(last).head_mut(), self.flow);
            self.flow += self.stride;
            if self.flow >= self.template.flows() {
                self.flow = self.first;
            }
        }
        batch
    }

    fn send(&mut self, _from: &Nic, _batch: &mut FrameBatch<'_>, _cx: &mut Context) -> u64 {
        0
    }

    fn due(&self) -> Option<Instant> {
        (!self.is_silent()).then_some(self.next)
    }
}
