//! Which receive queue a packet goes to, and why.
//!
//! # Theory of operation
//!
//! [`Steering`] is the state of one NIC. Its order of precedence, each step of which may decide:
//!
//! 1. no receive queue is enabled: drop;
//! 2. receive mode: MAC and VLAN filters (promiscuous and without VLAN filter until someone sets them);
//! 3. the flow-filter rule that matches best (`filter`): drop, a queue, or the queue that an RSS context names (`context`). If that
//!    queue is not enabled, the packet goes on as if no rule had matched (a lesser rule is not tried);
//! 4. in [`Mode::Automatic`] the learned flows (`learn`), if the queue is enabled;
//! 5. the RSS hash (`rss`), over enabled queues only; packets without a hash go to the queue set for them;
//! 6. queue 0, or the lowest enabled one.
//!
//! `classify` only reads: hits are counted by the worker, by [`RuleSlot`] and [`Reason`]. The control path changes a `Steering` under the write
//! half of a lock whose read half the data plane takes once for a batch with packets that it can't decide about without ([`SharedSteering`]);
//! each change leaves it complete.

mod burst;
mod cache;
mod context;
mod filter;
mod guest;
mod hash;
mod index;
mod key;
mod knobs;
mod learn;
mod lock;
mod ntuple;
mod program;
mod recent;
mod rss;
mod rule;
mod rules;
mod rxmode;
mod shape;
mod staged;
mod tuple;

pub use burst::BURST;
pub(crate) use burst::indices;
pub use cache::{Moment, VerdictCache};
pub use context::{CONTEXTS_MAX, ContextError};
pub use filter::{CLASSIFIERS_LIMIT, FilterError, FilterTable, GROUPS_LIMIT, Rule};
pub use key::{Mask, Match};
pub use knobs::{DELAY_MAX, FilterKey, IN_FLIGHT_MAX, Knobs, Replace, parse_delay};
pub use learn::{LearnConfig, LearnStats, LearnTable, Tick};
pub use lock::{SharedSteering, SteeringChange};
pub use ntuple::{FlowType, Masked, NtupleSpec};
pub use program::FilterFaults;
pub use recent::RecentFlows;
pub use rss::{
    DEFAULT_KEY, HashReport, KEY_MAX, KEY_MIN, Rss, RssConfig, RssError, RssKey, TABLE_DEFAULT, TABLE_MAX,
    Toeplitz, hash_type,
};
pub use rxmode::{RxFilter, RxMode, VlanFilter};
pub use tuple::{Action, RuleSlot};

use context::Contexts;
use guest::HostRss;

use crate::packet::Headers;

/// Where a stamp says which NIC it is of.
const NIC: u32 = 48;

/// What a verdict depends on beside the packet, see [`Steering::stamp`].
#[inline]
fn stamp(changes: u64, learned: &LearnTable, now: Tick, nic: u16) -> u64 {
    // None of the three ever goes back, so their sum is another one as soon as one of them is. If they change while they are
    // read, it is the sum of a moment in between, or of none.
    u64::from(nic) << NIC | (changes + learned.version() + now.as_secs()) & ((1 << NIC) - 1)
}

/// Receive queues that a NIC can have: as many as a learned flow can name.
pub const MAX_QUEUE_PAIRS: u16 = 127;

/// Which step of the precedence found the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Reason {
    /// A flow-filter rule.
    Filter,
    /// A learned flow.
    Learned,
    /// The RSS hash.
    Rss,
    /// Nothing said anything: a packet without a hash, or all steering is off.
    #[default]
    Default,
}

impl Reason {
    /// Every reason, in the order of declaration (so `ALL[r as usize] == r`).
    pub const ALL: [Reason; 4] = [Reason::Filter, Reason::Learned, Reason::Rss, Reason::Default];

    /// A short name for counters and traces.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Filter => "filter",
            Reason::Learned => "learned",
            Reason::Rss => "rss",
            Reason::Default => "default",
        }
    }
}

/// Why steering dropped a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The receive mode does not take its destination MAC address.
    MacFilter,
    /// The VLAN filter does not take its VLAN.
    VlanFilter,
    /// A flow-filter rule said so.
    Rule,
    /// No receive queue is enabled.
    NoQueue,
}

impl DropReason {
    /// Every reason, in the order of declaration (so `ALL[r as usize] == r`).
    pub const ALL: [DropReason; 4] =
        [DropReason::MacFilter, DropReason::VlanFilter, DropReason::Rule, DropReason::NoQueue];

    /// A short name for counters and traces.
    pub fn name(self) -> &'static str {
        match self {
            DropReason::MacFilter => "mac_filter",
            DropReason::VlanFilter => "vlan_filter",
            DropReason::Rule => "rule",
            DropReason::NoQueue => "no_queue",
        }
    }
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to a receive queue, which is enabled.
    Queue {
        /// The queue, counted from 0.
        queue: u16,
        /// What decided.
        reason: Reason,
        /// The rule that decided.
        rule: Option<RuleSlot>,
    },
    /// It is dropped.
    Drop {
        /// What decided.
        reason: DropReason,
        /// The rule that decided.
        rule: Option<RuleSlot>,
    },
}

/// Whether learned flows have a say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Learned flows, then the RSS hash (5.1.6.5.6, automatic receive steering).
    #[default]
    Automatic,
    /// The RSS hash alone (5.1.6.5.7): a driver or user has configured RSS.
    Rss,
}

/// How a [`Steering`] starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SteerConfig {
    /// Receive queues that the NIC has: 1 to [`MAX_QUEUE_PAIRS`] (else the nearest of both).
    pub queue_pairs: u16,
    /// Flow-filter rules that fit, 2^20 at most.
    pub filter_capacity: u32,
    /// Toeplitz key.
    pub rss_key: RssKey,
    /// Entries of the default indirection table: a power of two up to [`TABLE_MAX`] (else the next one).
    pub rss_table_len: u16,
    /// How the filter table takes rules of the guest.
    pub knobs: Knobs,
    /// Whether learned flows are on.
    pub learn_on: bool,
}

impl Default for SteerConfig {
    fn default() -> Self {
        Self {
            queue_pairs: 1,
            filter_capacity: 8192,
            rss_key: RssKey::default(),
            rss_table_len: TABLE_DEFAULT as u16,
            knobs: Knobs::default(),
            learn_on: true,
        }
    }
}

/// The steering state of one NIC. See the module's documentation.
#[derive(Clone)]
pub struct Steering {
    queue_pairs: u16,
    enabled: u128,
    mode: Mode,
    learn_on: bool,
    rss_on: bool,
    rx: RxFilter,
    filters: FilterTable,
    rss: Rss,
    contexts: Contexts,
    /// What the host had set, while the RSS configuration is the guest's.
    host_rss: Option<HostRss>,
    /// How often anything was, or may have been, changed.
    changes: u64,
}

impl Steering {
    /// Automatic mode, RSS on, no rule, no queue enabled.
    pub fn new(config: &SteerConfig) -> Self {
        let queue_pairs = config.queue_pairs.clamp(1, MAX_QUEUE_PAIRS);
        let table_len = usize::from(config.rss_table_len).clamp(1, TABLE_MAX).next_power_of_two();
        let rss = RssConfig { key: config.rss_key.clone(), ..RssConfig::default() };
        Self {
            queue_pairs,
            enabled: 0,
            mode: Mode::default(),
            learn_on: config.learn_on,
            rss_on: true,
            rx: RxFilter::default(),
            filters: FilterTable::new(config.filter_capacity, queue_pairs).with_knobs(config.knobs),
            rss: Rss::new(rss, table_len),
            contexts: Contexts::default(),
            host_rss: None,
            changes: 0,
        }
    }

    /// Decides about a packet that came from the wire. The queue of the verdict is always an enabled one.
    #[inline]
    pub fn classify(&self, h: &Headers, learned: &LearnTable, now: Tick) -> Verdict {
        if let Some(refusal) = self.refusal(h) {
            return refusal;
        }
        self.decide(h, self.filters.lookup(h), || learned.lookup(&h.flow()?, now))
    }

    /// The verdict about a packet that is not even looked at.
    #[inline]
    fn refusal(&self, h: &Headers) -> Option<Verdict> {
        let reason = if self.enabled == 0 { Some(DropReason::NoQueue) } else { self.rx.refuses(h) };
        reason.map(|reason| Verdict::Drop { reason, rule: None })
    }

    /// Decides, given the rule that matches best. Where a flow was learned is asked for only if it matters.
    #[inline]
    fn decide(
        &self,
        h: &Headers,
        rule: Option<(RuleSlot, Action)>,
        learned: impl FnOnce() -> Option<u16>,
    ) -> Verdict {
        match rule {
            Some((slot, Action::Drop)) => {
                return Verdict::Drop { reason: DropReason::Rule, rule: Some(slot) };
            }
            Some((slot, Action::Queue(queue))) if self.is_enabled(queue) => {
                return Verdict::Queue { queue, reason: Reason::Filter, rule: Some(slot) };
            }
            Some((slot, Action::Context { id, offset })) => {
                if let Some(queue) = self.context_queue(id, offset, h)
                    && self.is_enabled(queue)
                {
                    return Verdict::Queue { queue, reason: Reason::Filter, rule: Some(slot) };
                }
            }
            _ => {}
        }
        if self.learns()
            && let Some(queue) = learned()
            && self.is_enabled(queue)
        {
            return Verdict::Queue { queue, reason: Reason::Learned, rule: None };
        }
        let (queue, reason) = if self.rss_on {
            match self.rss.queue(h) {
                Ok(queue) => (queue, Reason::Rss),
                Err(queue) => (queue, Reason::Default),
            }
        } else {
            (self.enabled.trailing_zeros() as u16, Reason::Default)
        };
        Verdict::Queue { queue, reason, rule: None }
    }

    /// The RSS hash of a packet with this verdict, for who wants to see it, and what it covers; `None` if no hash type applies. It
    /// is that of the RSS context, if one chose the queue.
    pub fn hash(&self, h: &Headers, verdict: Verdict) -> Option<(u32, HashReport)> {
        if let Verdict::Queue { rule: Some(slot), .. } = verdict
            && let Some(Action::Context { id: id @ 1.., .. }) = self.filters.action(slot)
        {
            return self.contexts.hash(id, h);
        }
        self.rss.hash(h)
    }

    /// Stands for all that a verdict depends on beside the packet: as long as it stays the same, verdicts do. `nic` (1 to
    /// 65535) tells several NICs apart. Take it while the lock is held under which verdicts are reached.
    #[inline]
    pub fn stamp(&self, learned: &LearnTable, now: Tick, nic: u16) -> u64 {
        stamp(self.changes, learned, now, nic)
    }

    /// How often anything has changed that could change a verdict.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether sent packets are to be shown to the [`LearnTable`].
    #[inline]
    pub fn learns(&self) -> bool {
        self.learn_on && self.mode == Mode::Automatic
    }

    /// Says which receive queues may be targets: bit i = queue i. Queues that the NIC does not have are ignored.
    pub fn set_enabled(&mut self, mask: u128) {
        self.changes += 1;
        self.enabled = mask & (u128::MAX >> (128 - self.queue_pairs));
        self.update_rss();
    }

    /// The receive queues that may be targets.
    pub fn enabled(&self) -> u128 {
        self.enabled
    }

    /// Receive queues that the NIC has.
    pub fn queue_pairs(&self) -> u16 {
        self.queue_pairs
    }

    /// The host sets whether learned flows have a say.
    pub fn set_mode(&mut self, mode: Mode) {
        self.changes += 1;
        self.host_rss = None;
        self.mode = mode;
    }

    /// Whether learned flows have a say, as far as learning is on.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Switches learned flows on or off, in either mode.
    pub fn set_learn(&mut self, on: bool) {
        self.changes += 1;
        self.learn_on = on;
    }

    /// The host switches the RSS hash on or off. Without it, and without learned flows and rules, everything goes to queue 0.
    pub fn set_rss_on(&mut self, on: bool) {
        self.changes += 1;
        self.host_rss = None;
        self.rss_on = on;
    }

    /// Whether learned flows are on.
    pub fn learn_on(&self) -> bool {
        self.learn_on
    }

    /// Whether the RSS hash is on.
    pub fn rss_on(&self) -> bool {
        self.rss_on
    }

    /// Receive mode, MAC addresses and VLANs.
    pub fn rx_filter(&self) -> &RxFilter {
        &self.rx
    }

    /// Receive mode, MAC addresses and VLANs, to change.
    pub fn rx_filter_mut(&mut self) -> &mut RxFilter {
        self.changes += 1;
        &mut self.rx
    }

    /// The flow-filter table.
    pub fn filters(&self) -> &FilterTable {
        &self.filters
    }

    /// The flow-filter table, to change.
    pub fn filters_mut(&mut self) -> &mut FilterTable {
        self.changes += 1;
        &mut self.filters
    }

    /// The RSS stage.
    pub fn rss(&self) -> &Rss {
        &self.rss
    }

    /// The host configures RSS; a refused configuration changes nothing. The mode is [`Steering::set_mode`]'s.
    pub fn set_rss(&mut self, config: RssConfig) -> Result<(), RssError> {
        Rss::check(&config, self.queue_pairs)?;
        self.changes += 1;
        self.host_rss = None;
        self.rss.set_config(config);
        self.update_rss();
        Ok(())
    }

    #[inline]
    fn is_enabled(&self, queue: u16) -> bool {
        // Shifting all 128 bits takes the processor four times as long.
        let half = if queue < 64 { self.enabled } else { self.enabled >> 64 };
        queue < MAX_QUEUE_PAIRS && half as u64 >> (queue & 63) & 1 == 1
    }

    fn update_rss(&mut self) {
        let enabled: Vec<u8> = (0..MAX_QUEUE_PAIRS as u8).filter(|q| self.enabled >> q & 1 == 1).collect();
        self.rss.update(&enabled);
    }
}

#[cfg(test)]
mod tests;
