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
/// Flows of which the heads are made once and kept, as long as they fit into the fastest cache. Those of more flows are
/// stamped frame by frame.
const KEPT: usize = 64;

/// One queue pair's share of the generated traffic: every `stride`-th flow.
///
/// All frames of a batch are of different flows, as far as there are so many: bursts of one flow would flatter whatever is measured.
pub struct Generator {
    nic: Arc<Nic>,
    template: Template,
    /// What follows the head, the same in all frames.
    tail: Box<[u8]>,
    /// Heads of the share's flows in turn; none if there are too many.
    heads: Box<[[u8; HEAD]]>,
    first: u32,
    stride: u32,
    /// The next frame's flow, and which of the share it is.
    flow: u32,
    turn: usize,
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
        let share = (pair as u32..config.flows).step_by(stride as usize);
        let head = |flow| {
            let mut head = [0; HEAD];
            let len = frame.len().min(HEAD);
            head[..len].copy_from_slice(&frame[..len]);
            template.stamp_copy(&mut head, flow);
            head
        };
        let heads = if share.len() <= KEPT { share.map(head).collect() } else { [].into() };
        let interval = config.rate.map(|rate| Duration::from_secs(1) * stride / rate.max(1) as u32);
        Generator {
            nic: Arc::clone(nic),
            tail,
            heads,
            turn: 0,
            template,
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
        let head_len = self.template.frame().len().min(HEAD);
        for _ in 0..n {
            if let Some(head) = self.heads.get(self.turn) {
                batch.push_parts(NetHeader::default(), &head[..head_len], &self.tail);
            } else {
                batch.push_parts(NetHeader::default(), &self.template.frame()[..head_len], &self.tail);
                let last = batch.len() - 1;
                self.template.stamp_copy(batch.frame_mut(last).head_mut(), self.flow);
            }
            self.flow += self.stride;
            self.turn += 1;
            if self.flow >= self.template.flows() {
                (self.flow, self.turn) = (self.first, 0);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::testing::Bed;

    fn generator(bed: &Bed, config: &str, pair: usize) -> Generator {
        Generator::new(&bed.nic, &config.parse().unwrap(), pair)
    }

    /// Source ports of one batch, less that of flow 0: the flows.
    fn flows(g: &mut Generator) -> Vec<u16> {
        let mut store = BatchStore::default();
        let batch = g.receive(&mut store);
        let port = |i: usize| u16::from_be_bytes(batch.frame(i).head()[34..36].try_into().unwrap());
        (0..batch.len()).map(|i| port(i) - 10_000).collect()
    }

    #[test]
    fn pairs_share_the_flows_and_each_of_their_batches_is_a_mix() {
        let bed = Bed::new(2, 0);
        let (mut a, mut b) = (generator(&bed, "flows=5", 0), generator(&bed, "flows=5", 1));
        let repeat = |of: &[u16]| of.iter().copied().cycle().take(2 * BATCH).collect::<Vec<_>>();
        assert_eq!([flows(&mut a), flows(&mut a)].concat(), repeat(&[0, 2, 4]));
        assert_eq!([flows(&mut b), flows(&mut b)].concat(), repeat(&[1, 3]));
    }

    #[test]
    fn a_pair_without_a_flow_is_silent_and_never_due() {
        let bed = Bed::new(4, 0);
        for (pair, speaks) in [(0, true), (1, true), (2, false), (3, false)] {
            let mut g = generator(&bed, "flows=2", pair);
            assert_eq!((g.due().is_some(), !flows(&mut g).is_empty()), (speaks, speaks), "{pair}");
        }
    }

    #[test]
    fn without_a_receiver_there_is_silence() {
        let bed = Bed::new(1, 0);
        let mut g = generator(&bed, "flows=1", 0);
        bed.nic.rx[0].change(Option::take);
        bed.nic.update_targets();
        assert_eq!((g.due(), flows(&mut g)), (None, vec![]));
    }

    #[test]
    fn frames_are_whole_also_where_their_head_is_only_a_part() {
        let bed = Bed::new(1, 0);
        // Kept heads and stamped ones.
        for flows in [3, KEPT + 1] {
            for size in [60, HEAD, HEAD + 1, 9014] {
                let mut g = generator(&bed, &format!("flows={flows},size={size}"), 0);
                let mut template = g.template.clone();
                let mut store = BatchStore::default();
                for first in [0, BATCH, 2 * BATCH] {
                    let batch = g.receive(&mut store);
                    for i in 0..BATCH {
                        let mut frame = vec![0; batch.frame(i).len()];
                        batch.copy_frame(i, &mut frame);
                        assert_eq!(frame, template.stamp(((first + i) % flows) as u32));
                    }
                }
            }
        }
    }

    #[test]
    fn a_rate_is_kept_and_what_was_missed_is_made_up_for_within_bounds() {
        let bed = Bed::new(1, 0);
        let mut g = generator(&bed, "flows=1,rate=1000", 0);
        assert_eq!(g.interval, Some(Duration::from_millis(1)));
        let far = Instant::now() + Duration::from_secs(3600);
        g.next = far;
        assert_eq!((flows(&mut g), g.due()), (vec![], Some(far)));
        // An hour behind: 10 ms of it, and the frame that is due now.
        g.next = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
        assert_eq!(flows(&mut g).len(), 11);
        assert!(g.next <= Instant::now() + Duration::from_millis(1));
        // At a high rate a batch at a time, the rest is due at once.
        let mut g = generator(&bed, "flows=1,rate=1M", 0);
        g.next = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(flows(&mut g).len(), BATCH);
        assert!(g.due().unwrap() < Instant::now());
    }

    #[test]
    fn the_rate_is_that_of_all_pairs_together() {
        let bed = Bed::new(4, 0);
        assert_eq!(generator(&bed, "flows=8,rate=1000", 1).interval, Some(Duration::from_millis(4)));
        assert_eq!(generator(&bed, "flows=2,rate=1000", 1).interval, Some(Duration::from_millis(2)));
        assert_eq!(generator(&bed, "flows=2", 1).interval, None);
    }
}
