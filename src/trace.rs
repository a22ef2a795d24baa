//! "Why this queue?": steering decisions, packet by packet, for whoever asks.
//!
//! States: *off* (nobody watches; the data plane reads one flag per frame) and *on* (one watcher, with a filter).
//! Workers put records into a bounded buffer and count what does not fit; they never wait for the watcher. The watcher
//! takes records out, and waits for more. Switching off empties the buffer.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::packet::Headers;
use crate::steer::Verdict;

/// Records that wait for the watcher, at most.
const CAPACITY: usize = 4096;

/// What a watcher wants to see. Empty fields match everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceFilter {
    /// Only this receive queue.
    pub queue: Option<u16>,
    /// Only this reason: `filter`, `learned`, `rss`, `default`, or `drop` for all drops.
    pub reason: Option<String>,
    /// Only from or to this address.
    pub ip: Option<IpAddr>,
    /// Only from or to this port.
    pub port: Option<u16>,
    /// Only this IP protocol.
    pub protocol: Option<u8>,
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRecord {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// The queue; none for a dropped frame.
    pub queue: Option<u16>,
    /// What decided: a steering reason, or why it was dropped.
    pub reason: String,
    /// The rule that decided: its slot, and on the control socket its location.
    pub rule: Option<u32>,
    /// The guest's rule that decided, on the control socket: its id.
    #[serde(default)]
    pub guest_rule: Option<u32>,
    /// Bytes of the frame.
    pub len: usize,
    /// Source MAC address.
    pub src_mac: String,
    /// Destination MAC address.
    pub dst_mac: String,
    /// EtherType, after VLAN tags.
    pub ethertype: u16,
    /// VLAN id.
    pub vlan: Option<u16>,
    /// Source IP address.
    pub src_ip: Option<IpAddr>,
    /// Destination IP address.
    pub dst_ip: Option<IpAddr>,
    /// IP protocol.
    pub protocol: Option<u8>,
    /// Source port.
    pub src_port: Option<u16>,
    /// Destination port.
    pub dst_port: Option<u16>,
    /// Whether it is an IP fragment.
    pub fragment: bool,
    /// What is wrong with its headers.
    pub malformed: Option<String>,
}

impl TraceRecord {
    fn new(h: &Headers, len: usize, verdict: Verdict) -> Self {
        let (queue, reason, rule) = match verdict {
            Verdict::Queue { queue, reason, rule } => (Some(queue), reason.name(), rule),
            Verdict::Drop { reason, rule } => (None, reason.name(), rule),
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        TraceRecord {
            time_ns: now.as_nanos() as u64,
            queue,
            reason: reason.into(),
            rule: rule.map(|slot| slot.0),
            guest_rule: None,
            len,
            src_mac: h.src().to_string(),
            dst_mac: h.dst().to_string(),
            ethertype: h.ethertype(),
            vlan: h.vlan().map(|tci| tci & 0xfff),
            src_ip: h.src_ip(),
            dst_ip: h.dst_ip(),
            protocol: h.src_ip().map(|_| h.protocol()),
            src_port: h.ports().map(|p| p.0),
            dst_port: h.ports().map(|p| p.1),
            fragment: h.fragment,
            malformed: h.malformed.map(|m| m.name().into()),
        }
    }
}

impl TraceFilter {
    /// Whether the record is wanted.
    pub fn matches(&self, r: &TraceRecord) -> bool {
        let is = |wanted: Option<u16>, a: Option<u16>, b: Option<u16>| {
            wanted.is_none() || a == wanted || b == wanted
        };
        is(self.queue, r.queue, r.queue)
            && is(self.port, r.src_port, r.dst_port)
            && self.reason.as_deref().is_none_or(|w| w == r.reason || (w == "drop" && r.queue.is_none()))
            && (self.ip.is_none() || r.src_ip == self.ip || r.dst_ip == self.ip)
            && self.protocol.is_none_or(|p| r.protocol == Some(p))
    }
}

/// The decisions of one NIC.
#[derive(Default)]
pub struct Trace {
    on: AtomicBool,
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Default)]
struct State {
    filter: TraceFilter,
    records: VecDeque<TraceRecord>,
    lost: u64,
}

impl Trace {
    /// Whether anybody watches.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Starts watching; false if somebody does already.
    pub fn start(&self, filter: TraceFilter) -> bool {
        let mut state = self.state.lock().unwrap();
        if self.is_on() {
            return false;
        }
        *state = State { filter, ..State::default() };
        self.on.store(true, Ordering::Relaxed);
        true
    }

    /// Stops watching.
    pub fn stop(&self) {
        let mut state = self.state.lock().unwrap();
        self.on.store(false, Ordering::Relaxed);
        *state = State::default();
    }

    /// For a worker: a decision has been made.
    #[cold]
    pub fn record(&self, h: &Headers, len: usize, verdict: Verdict) {
        let record = TraceRecord::new(h, len, verdict);
        let mut state = self.state.lock().unwrap();
        if !self.is_on() || !state.filter.matches(&record) {
            return;
        }
        if state.records.len() == CAPACITY {
            state.lost += 1;
        } else {
            state.records.push_back(record);
            self.more.notify_one();
        }
    }

    /// For the watcher: what has come in, after waiting for something at most `time`; and how many records did not
    /// fit since the last call.
    pub fn take(&self, time: Duration) -> (Vec<TraceRecord>, u64) {
        let state = self.state.lock().unwrap();
        let (mut state, _) = self
            .more
            .wait_timeout_while(state, time, |s| s.records.is_empty() && self.is_on())
            .expect("nobody panics with the records in hand");
        (state.records.drain(..).collect(), std::mem::take(&mut state.lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::parse;
    use crate::steer::{DropReason, Reason, RuleSlot};

    fn queue(queue: u16) -> Verdict {
        Verdict::Queue { queue, reason: Reason::Rss, rule: None }
    }

    #[test]
    fn only_what_was_asked_for_is_recorded() {
        let (trace, h) = (Trace::default(), parse(&[0; 60], 60));
        trace.record(&h, 60, queue(1)); // nobody watches
        assert!(trace.start(TraceFilter { queue: Some(2), ..TraceFilter::default() }));
        assert!(!trace.start(TraceFilter::default()), "one watcher at a time");
        trace.record(&h, 60, queue(1));
        trace.record(&h, 61, queue(2));
        trace.record(&h, 62, Verdict::Drop { reason: DropReason::Rule, rule: None });
        let (records, lost) = trace.take(Duration::ZERO);
        assert_eq!((records.len(), records[0].len, lost), (1, 61, 0));
        trace.stop();
        assert!(trace.start(TraceFilter { reason: Some("drop".into()), ..TraceFilter::default() }));
        trace.record(&h, 60, queue(2));
        trace.record(&h, 62, Verdict::Drop { reason: DropReason::Rule, rule: Some(RuleSlot(7)) });
        assert_eq!(trace.take(Duration::ZERO).0.iter().map(|r| r.rule).collect::<Vec<_>>(), [Some(7)]);
    }

    #[test]
    fn a_watcher_that_does_not_keep_up_costs_records_and_no_memory() {
        let (trace, h) = (Trace::default(), parse(&[0; 60], 60));
        trace.start(TraceFilter::default());
        for _ in 0..CAPACITY + 5 {
            trace.record(&h, 60, queue(0));
        }
        let (records, lost) = trace.take(Duration::ZERO);
        assert_eq!((records.len(), lost), (CAPACITY, 5));
    }
}
