//! Signals to the guest: the policy of [`notify`](super::notify), applied to queues.
//!
//! Once per burst, after its entries were published. Without moderation that is one comparison, and what the guest wants; with
//! it, the clock is looked at, and the signal may be held. Packets never are.

use super::Context;
use super::adaptive::Adaptive;
use super::notify::{Cause, CoalesceRule, Decision, Limits, Moment, Nanos, Pending};
use super::timers::Timer;
use crate::latency::QueueLatency;
use crate::nic::{Nic, Notifier, RxQueue, TxQueue};
use crate::stats::{Counter, RxCounters, TxCounters};
use crate::vhost::ring::Ring;

/// What a queue keeps about its signals.
#[derive(Debug, Clone, Copy, Default)]
pub struct SignalState {
    pending: Pending,
    adaptive: Adaptive,
    /// If that is kept: when the first packet was found of those that the guest was not told about.
    first_found: Option<Nanos>,
}

/// A queue's counters of signals.
struct Counts<'a> {
    sent: &'a Counter,
    suppressed: &'a Counter,
    held: &'a Counter,
    by_time: &'a Counter,
    by_count: &'a Counter,
}

macro_rules! counts {
    ($counters:expr) => {{
        let c = $counters;
        Counts {
            sent: &c.signals,
            suppressed: &c.signals_suppressed,
            held: &c.signals_held,
            by_time: &c.signals_by_time,
            by_count: &c.signals_by_count,
        }
    }};
}

impl<'a> From<&'a RxCounters> for Counts<'a> {
    #[inline(always)]
    fn from(c: &'a RxCounters) -> Self {
        counts!(c)
    }
}

impl<'a> From<&'a TxCounters> for Counts<'a> {
    #[inline(always)]
    fn from(c: &'a TxCounters) -> Self {
        counts!(c)
    }
}

/// A queue of either direction.
struct Queue<'a> {
    nic: &'a Nic,
    vq: usize,
    ring: &'a mut Ring,
    call: &'a Option<Notifier>,
    state: &'a mut SignalState,
    counts: Counts<'a>,
    /// If it is kept how long packets take.
    latency: Option<&'a QueueLatency>,
}

impl RxQueue {
    /// Receive queue `i` has got so many packets (of so many bytes), and they are published.
    #[inline]
    pub(super) fn signal(&mut self, nic: &Nic, i: usize, packets: u64, bytes: u64, cx: &mut Context) {
        let word = nic.limits.word(2 * i);
        self.parts(nic, i).published(word, packets, bytes, cx);
    }

    /// The queue stops. A signal that is held is sent, if the guest wants it: it hears of these packets in no other way.
    pub fn flush_signal(&mut self, nic: &Nic, i: usize) {
        self.parts(nic, i).flush();
    }

    #[inline(always)]
    fn parts<'a>(&'a mut self, nic: &'a Nic, i: usize) -> Queue<'a> {
        Queue {
            nic,
            vq: 2 * i,
            ring: &mut self.ring,
            call: &self.call,
            state: &mut self.signals,
            counts: (&nic.rx_counters[i]).into(),
            latency: nic.latency.as_ref().map(|l| &l[i]),
        }
    }
}

impl TxQueue {
    /// So many chains of transmit queue `i` were returned.
    #[inline]
    pub(super) fn signal(&mut self, nic: &Nic, i: usize, chains: u64, cx: &mut Context) {
        let word = tx_word(nic, i, cx);
        self.parts(nic, i).published(word, chains, 0, cx);
    }

    /// The queue stops. A signal that is held is sent, if the guest wants it.
    pub fn flush_signal(&mut self, nic: &Nic, i: usize) {
        self.parts(nic, i).flush();
    }

    #[inline(always)]
    fn parts<'a>(&'a mut self, nic: &'a Nic, i: usize) -> Queue<'a> {
        Queue {
            nic,
            vq: 2 * i + 1,
            ring: &mut self.ring,
            call: &self.call,
            state: &mut self.signals,
            counts: (&nic.tx_counters[i]).into(),
            latency: None,
        }
    }
}

impl Queue<'_> {
    #[inline(always)]
    fn published(self, word: u64, packets: u64, bytes: u64, cx: &mut Context) {
        if let Some(latency) = self.latency
            && packets != 0
        {
            latency.published.add(cx.clock.now().saturating_sub(cx.turn), packets);
            self.state.first_found.get_or_insert(cx.turn);
        }
        if word != 0 {
            return self.moderated(Limits::from_word(word), packets, bytes, cx);
        }
        self.state.pending.settle();
        if self.ring.wants_signal() {
            self.time_signal(cx);
            self.send();
        } else {
            self.counts.suppressed.add(1);
        }
        self.state.first_found = None;
    }

    /// A signal is about to be sent.
    #[inline(always)]
    fn time_signal(&self, cx: &Context) {
        if let (Some(latency), Some(found)) = (self.latency, self.state.first_found) {
            latency.signalled.add(cx.clock.now().saturating_sub(found), 1);
        }
    }

    fn flush(self) {
        if self.ring.wants_signal() {
            self.send();
        }
    }

    #[inline(always)]
    fn send(&self) {
        if let Some(call) = self.call {
            call.fire();
            self.counts.sent.add(1);
        } else {
            self.counts.suppressed.add(1);
        }
    }

    #[inline(never)]
    fn moderated(self, limits: Limits, packets: u64, bytes: u64, cx: &mut Context) {
        let wanted = self.call.is_some() && self.ring.is_signal_wanted();
        // Who stays quiet needs no clock.
        let now = if wanted || limits.adaptive { cx.clock.now() } else { 0 };
        let limits = if limits.adaptive {
            let adaptive = &mut self.state.adaptive;
            if adaptive.published(now, packets, bytes) {
                self.nic.limits.adapted(self.vq, adaptive.usecs());
            }
            adaptive.limits()
        } else {
            limits
        };
        // What was returned without being a packet (a bad buffer) has to be told as well.
        let entries = self.ring.unsignalled();
        let packets = if packets == 0 && entries != 0 && !self.state.pending.is_held() { 1 } else { packets };
        let size = self.ring.size();
        let m = Moment { now, packets, wanted, crowded: entries >= size - size / 4 };
        match self.state.pending.decide(limits, m) {
            Decision::Nothing => {}
            Decision::Quiet => {
                self.ring.forgo_signal();
                self.counts.suppressed.add(1);
                self.state.first_found = None;
            }
            Decision::Fire(cause) => {
                self.ring.forgo_signal();
                self.time_signal(cx);
                self.send();
                self.state.first_found = None;
                self.state.adaptive.signalled();
                match cause {
                    Cause::Burst => {}
                    Cause::Count => self.counts.by_count.add(1),
                    Cause::Time => self.counts.by_time.add(1),
                }
            }
            Decision::Hold(due) => {
                self.counts.held.add(u64::from(m.packets != 0));
                if self.state.pending.sets_timer(due) {
                    cx.timers.add(Timer { due, nic: self.nic.id(), vq: self.vq as u16 });
                }
            }
        }
    }
}

/// A timer has run out, or what it was set by has changed: decides again.
pub(super) fn reconsider(nic: &Nic, timer: Timer, cx: &mut Context) {
    let (i, vq) = (usize::from(timer.vq / 2), usize::from(timer.vq));
    if vq.is_multiple_of(2) {
        let Some(mut guard) = nic.rx[i].enter_waiting() else { return };
        let Some(q) = guard.as_mut() else { return };
        if q.signals.pending.timer_runs_out(timer.due) && q.signals.pending.is_held() {
            q.parts(nic, i).moderated(Limits::from_word(nic.limits.word(vq)), 0, 0, cx);
        }
    } else {
        let Some(mut guard) = nic.tx[i].enter_waiting() else { return };
        let Some(q) = guard.as_mut() else { return };
        if q.signals.pending.timer_runs_out(timer.due) && q.signals.pending.is_held() {
            q.parts(nic, i).moderated(Limits::from_word(tx_word(nic, i, cx)), 0, 0, cx);
        }
    }
}

/// The limits of a transmit queue.
#[inline(always)]
fn tx_word(nic: &Nic, i: usize, cx: &Context) -> u64 {
    match nic.limits.word(2 * i + 1) {
        0 if cx.tx_grace != 0 && nic.config.coalesce == CoalesceRule::Nic => cx.tx_grace,
        word => word,
    }
}

/// For how long a worker that polls holds the signals of transmit queues without moderation, as such a limit's word.
///
/// A guest that polls takes back what it has sent while it looks for what it receives, and says then that it wants no signal for
/// it. But when it sends it wants one for the very next completion, so one that is signalled at once costs an interrupt for
/// each request. A few turns of its loop later the signal has become unnecessary. Nobody waits for it urgently.
pub(super) const fn tx_grace(polls: bool) -> u64 {
    const GRACE_USECS: u64 = 20;
    if polls { GRACE_USECS } else { 0 }
}
