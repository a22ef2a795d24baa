//! Verdicts that a worker has reached a moment ago.
//!
//! # Theory of operation
//!
//! Deciding about a packet takes a look into the rules, the learned flows and the RSS table, each with a hash of its own.
//! Most packets follow others of the same flow, so each worker keeps verdicts, direct-mapped: a verdict is a function of the
//! fields that steering can look at ([`Headers`] have all of them in a few words) and of the state of steering alone, and an entry holds
//! both, the latter as a *stamp* that is never the same again once anything has changed that could change a verdict
//! ([`Steering::stamp`]). So an entry is either right or does not match, and nothing ever has to be removed. Costs stay
//! the same however many rules there are.
//!
//! The place of an entry is a cheap, unkeyed mix of the flow: who makes flows collide here loses the shortcut for them,
//! and nothing else. Packets that are no flow (ARP, fragments, malformed ones) always take the long way.

use super::burst::{BURST, indices};
use super::{LearnTable, NIC, Steering, Tick, Verdict};
use crate::packet::Headers;
use crate::packet::words::{self, LAST, WORDS, presence, same};

/// Verdicts that are kept. A few flows shall hardly ever meet at the same place, and of the rest nothing is touched.
const VERDICTS: usize = 1024;
/// How many of them a burst brings at most. A few flows are all known after a few bursts; and where all of a burst are
/// unknown again and again, since there are many flows or rules change all the time, keeping them would cost more than it saves.
const KEPT: usize = 8;

/// What verdicts depend on beside packets, for as long as steering is locked.
#[derive(Clone, Copy)]
pub struct Moment<'a> {
    /// Steering.
    pub steering: &'a Steering,
    /// Learned flows.
    pub learned: &'a LearnTable,
    /// The time.
    pub now: Tick,
    /// Stands for all of it: [`Steering::stamp`].
    pub stamp: u64,
}

/// What a verdict is about, and its stamp (0 is none): one cache line.
#[repr(align(64))]
#[derive(Clone, Copy, Default)]
struct Line {
    words: [u64; WORDS],
    stamp: u64,
}

/// A worker's recent verdicts, about packets for any of its NICs.
pub struct VerdictCache {
    lines: Box<[Line; VERDICTS]>,
    verdicts: Box<[Verdict; VERDICTS]>,
}

impl Default for VerdictCache {
    fn default() -> Self {
        let none = Verdict::Drop { reason: super::DropReason::NoQueue, rule: None };
        VerdictCache { lines: Box::new([Line::default(); VERDICTS]), verdicts: Box::new([none; VERDICTS]) }
    }
}

impl VerdictCache {
    /// The verdict about a packet with these headers, if it is known. `stamp` is not 0.
    #[inline]
    pub fn find(&self, stamp: u64, headers: &Headers) -> Option<&Verdict> {
        let place = place(stamp, headers);
        let line = &self.lines[place];
        (line.stamp == stamp && same(&line.words, headers.words())).then(|| &self.verdicts[place])
    }

    /// Keeps a verdict, if it is one about a flow. `stamp` must have been taken before it was reached.
    pub fn keep(&mut self, stamp: u64, headers: &Headers, verdict: Verdict) -> bool {
        let is_flow = headers.has(presence::PORTS);
        if is_flow {
            let place = place(stamp, headers);
            self.lines[place] = Line { words: *headers.words(), stamp };
            self.verdicts[place] = verdict;
        }
        is_flow
    }

    /// Goes the long way to verdicts about packets that none is known of, puts them into `verdicts`, and keeps some: about the first of the
    /// `packets` (bit `i` is packet `i`), which is such a one, and, if the next one is, too, about the others of them. Returns
    /// which packets that were.
    pub fn decide<'h>(
        &mut self,
        moment: &Moment<'_>,
        packets: u32,
        headers: impl Fn(usize) -> &'h Headers,
        verdicts: &mut [Verdict; BURST],
    ) -> u32 {
        let unknown = |i: &usize| self.find(moment.stamp, headers(*i)).is_none();
        let others = packets & packets.wrapping_sub(1);
        let first = packets & !others;
        if others == 0 || !unknown(&(others.trailing_zeros() as usize)) {
            let i = first.trailing_zeros() as usize;
            verdicts[i] = moment.steering.classify(headers(i), moment.learned, moment.now);
            self.keep(moment.stamp, headers(i), verdicts[i]);
            return first;
        }
        let unknown = indices(others).filter(unknown).fold(first, |set, i| set | 1 << i);
        moment.steering.classify_burst(unknown, &headers, moment.learned, moment.now, verdicts);
        let mut kept = 0;
        for i in indices(unknown) {
            if kept == KEPT {
                break;
            }
            kept += usize::from(self.keep(moment.stamp, headers(i), verdicts[i]));
        }
        unknown
    }
}

/// By addresses and ports, and by TCP flags: segments of one flow that differ in them must not push each other out. Nor must the
/// two NICs of a link that a flow goes through, hence the stamp's part that says which it is.
#[inline]
fn place(stamp: u64, headers: &Headers) -> usize {
    words::place::<VERDICTS>(headers.addr(), headers.words()[LAST] ^ stamp >> NIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::frames::{tcp4, udp6};
    use crate::steer::{
        FlowType, LearnConfig, LearnTable, Masked, Mode, NtupleSpec, RssConfig, SteerConfig, Steering, Tick,
    };

    /// Steering with a cache beside it, which must never disagree.
    struct Both {
        steering: Steering,
        learned: LearnTable,
        cache: VerdictCache,
        now: Tick,
    }

    impl Both {
        fn new() -> Self {
            let mut steering = Steering::new(&SteerConfig { queue_pairs: 4, ..SteerConfig::default() });
            steering.set_enabled(0b1111);
            Both {
                steering,
                learned: LearnTable::new(LearnConfig { idle_secs: 2, ..LearnConfig::default() }),
                cache: VerdictCache::default(),
                now: Tick::from_secs(10),
            }
        }

        #[track_caller]
        fn check(&mut self, h: &Headers) -> Verdict {
            let stamp = self.steering.stamp(&self.learned, self.now, 1);
            let truth = self.steering.classify(h, &self.learned, self.now);
            if let Some(known) = self.cache.find(stamp, h) {
                assert_eq!(*known, truth);
            }
            self.cache.keep(stamp, h, truth);
            assert_eq!(self.cache.find(stamp, h), Some(&truth));
            truth
        }
    }

    #[test]
    fn no_change_of_steering_is_missed() {
        let mut t = Both::new();
        let headers = [tcp4().headers(), udp6().headers()];
        for h in headers {
            let flow = h.flow().unwrap();
            let before = t.check(&h);
            // Learned for each queue in turn, then forgotten, then expired.
            for queue in 0..4 {
                t.learned.learn(&flow.reversed(), queue, t.now);
                assert!(matches!(t.check(&h), Verdict::Queue { queue: q, .. } if q == queue));
            }
            t.learned.clear();
            assert_eq!(t.check(&h), before);
            t.learned.learn(&flow.reversed(), 2, t.now);
            t.check(&h);
            t.now = Tick::from_secs(t.now.as_secs() + 10);
            assert_eq!(t.check(&h), before);
        }
        let h = tcp4().headers();
        let port = h.ports().unwrap().1;
        let rule = |action| NtupleSpec {
            dst_port: Some(Masked { value: port, mask: 0xffff }),
            ..NtupleSpec::new(FlowType::Tcp4, action)
        };
        let (loc, _) = t.steering.filters_mut().add_ntuple(rule(3)).unwrap();
        assert!(matches!(t.check(&h), Verdict::Queue { queue: 3, .. }));
        t.steering.filters_mut().add_ntuple(NtupleSpec { loc: Some(loc), ..rule(-1) }).unwrap();
        assert!(matches!(t.check(&h), Verdict::Drop { .. }));
        t.steering.filters_mut().remove_ntuple(loc).unwrap();
        for mask in [0b0001, 0b1110, 0b1111] {
            t.steering.set_enabled(mask);
            t.check(&h);
        }
        t.steering.set_rss(RssConfig { table: Some(vec![2; 128]), ..RssConfig::default() }).unwrap();
        assert!(matches!(t.check(&h), Verdict::Queue { queue: 2, .. }));
        t.steering.set_rss_on(false);
        t.check(&h);
        t.steering.set_learn(false);
        t.check(&h);
        t.steering.set_mode(Mode::Rss);
        t.check(&h);
    }

    #[test]
    fn every_field_of_the_headers_counts() {
        let mut t = Both::new();
        let h = tcp4().headers();
        let rule = NtupleSpec {
            src_mac: Some(Masked { value: h.src(), mask: crate::virtio::MacAddr([255; 6]) }),
            ..NtupleSpec::new(FlowType::Tcp4, 3)
        };
        t.steering.filters_mut().add_ntuple(rule).unwrap();
        let src = crate::virtio::MacAddr([2, 9, 9, 9, 9, 9]);
        let other = crate::packet::frames::Frame { src, ..tcp4() }.headers();
        for _ in 0..2 {
            assert!(matches!(t.check(&h), Verdict::Queue { queue: 3, .. }));
            assert!(!matches!(t.check(&other), Verdict::Queue { rule: Some(_), .. }));
        }
    }

    #[test]
    fn nics_do_not_share_verdicts() {
        let t = Both::new();
        assert_ne!(t.steering.stamp(&t.learned, t.now, 1), t.steering.stamp(&t.learned, t.now, 2));
    }

    #[test]
    fn flows_that_go_through_two_nics_do_not_push_their_own_verdicts_out() {
        let mut t = Both::new();
        let stamps = [1, 2].map(|nic| t.steering.stamp(&t.learned, t.now, nic));
        let flows: Vec<_> = (0..16)
            .map(|port| crate::packet::frames::Frame { ports: (port, 80), ..tcp4() }.headers())
            .collect();
        for (stamp, h) in stamps.iter().flat_map(|stamp| flows.iter().map(move |h| (*stamp, h))) {
            let verdict = t.steering.classify(h, &t.learned, t.now);
            t.cache.keep(stamp, h, verdict);
        }
        let kept = |stamp: &u64| flows.iter().filter(|h| t.cache.find(*stamp, h).is_some()).count();
        let kept = stamps.iter().map(kept).sum::<usize>();
        assert!(kept > 28, "{kept} of 32");
    }
}
