//! Which receive queue a packet goes to, and why.
//!
//! # Theory of operation
//!
//! [`Steering`] is the state of one NIC. Its order of precedence, each step of which may decide:
//!
//! 1. no receive queue is enabled: drop;
//! 2. receive mode: MAC and VLAN filters (promiscuous and without VLAN filter until someone sets them);
//! 3. the flow-filter rule that matches best (`filter`): drop, or a queue. If that queue is not enabled, the packet goes on as if
//!    no rule had matched (a lesser rule is not tried);
//! 4. in [`Mode::Automatic`] the learned flows (`learn`), if the queue is enabled;
//! 5. the RSS hash (`rss`), over enabled queues only; packets without a hash go to the queue set for them;
//! 6. queue 0, or the lowest enabled one.
//!
//! `classify` only reads: hits are counted by the worker, by [`RuleSlot`] and [`Reason`]. The control path changes a `Steering` under the write
//! half of a lock whose read half the data plane takes once per batch; each change leaves it complete.

mod filter;
mod hash;
mod key;
mod learn;
mod ntuple;
mod rss;
mod rxmode;
mod tuple;

pub use filter::{CLASSIFIERS_LIMIT, FilterError, FilterTable, GROUPS_LIMIT, Rule};
pub use key::{Mask, Match};
pub use learn::{LearnConfig, LearnStats, LearnTable, Tick};
pub use ntuple::{FlowType, Masked, NtupleSpec};
pub use rss::{
    DEFAULT_KEY, HashReport, KEY_MAX, KEY_MIN, Rss, RssConfig, RssError, RssKey, TABLE_DEFAULT, TABLE_MAX,
    Toeplitz, hash_type,
};
pub use rxmode::{RxFilter, RxMode, VlanFilter};
pub use tuple::{Action, RuleSlot};

use crate::packet::Headers;

/// Receive queues that a NIC can have.
pub const MAX_QUEUE_PAIRS: u16 = 64;

/// Which step of the precedence found the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A flow-filter rule.
    Filter,
    /// A learned flow.
    Learned,
    /// The RSS hash.
    Rss,
    /// Nothing said anything: a packet without a hash, or all steering is off.
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
}

impl Default for SteerConfig {
    fn default() -> Self {
        Self {
            queue_pairs: 1,
            filter_capacity: 8192,
            rss_key: RssKey::default(),
            rss_table_len: TABLE_DEFAULT as u16,
        }
    }
}

/// The steering state of one NIC. See the module's documentation.
#[derive(Clone)]
pub struct Steering {
    queue_pairs: u16,
    enabled: u64,
    mode: Mode,
    learn_on: bool,
    rss_on: bool,
    rx: RxFilter,
    filters: FilterTable,
    rss: Rss,
}

impl Steering {
    /// Automatic mode, everything on, no rule, no queue enabled.
    pub fn new(config: &SteerConfig) -> Self {
        let queue_pairs = config.queue_pairs.clamp(1, MAX_QUEUE_PAIRS);
        let table_len = usize::from(config.rss_table_len).clamp(1, TABLE_MAX).next_power_of_two();
        let rss = RssConfig { key: config.rss_key.clone(), ..RssConfig::default() };
        Self {
            queue_pairs,
            enabled: 0,
            mode: Mode::default(),
            learn_on: true,
            rss_on: true,
            rx: RxFilter::default(),
            filters: FilterTable::new(config.filter_capacity, queue_pairs),
            rss: Rss::new(rss, table_len),
        }
    }

    /// Decides about a packet that came from the wire. The queue of the verdict is always an enabled one.
    #[inline]
    pub fn classify(&self, h: &Headers, learned: &LearnTable, now: Tick) -> Verdict {
        if self.enabled == 0 {
            return Verdict::Drop { reason: DropReason::NoQueue, rule: None };
        }
        if let Some(reason) = self.rx.refuses(h) {
            return Verdict::Drop { reason, rule: None };
        }
        match self.filters.lookup(h) {
            Some((slot, Action::Drop)) => {
                return Verdict::Drop { reason: DropReason::Rule, rule: Some(slot) };
            }
            Some((slot, Action::Queue(queue))) if self.is_enabled(queue) => {
                return Verdict::Queue { queue, reason: Reason::Filter, rule: Some(slot) };
            }
            _ => {}
        }
        if self.learn_on
            && self.mode == Mode::Automatic
            && let Some(flow) = h.flow()
            && let Some(queue) = learned.lookup(&flow, now)
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

    /// Whether sent packets are to be shown to the [`LearnTable`].
    #[inline]
    pub fn learns(&self) -> bool {
        self.learn_on && self.mode == Mode::Automatic
    }

    /// Says which receive queues may be targets: bit i = queue i. Queues that the NIC does not have are ignored.
    pub fn set_enabled(&mut self, mask: u64) {
        self.enabled = mask & (u64::MAX >> (64 - self.queue_pairs));
        self.update_rss();
    }

    /// The receive queues that may be targets.
    pub fn enabled(&self) -> u64 {
        self.enabled
    }

    /// Receive queues that the NIC has.
    pub fn queue_pairs(&self) -> u16 {
        self.queue_pairs
    }

    /// Sets whether learned flows have a say.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
    }

    /// Whether learned flows have a say, as far as learning is on.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Switches learned flows on or off, in either mode.
    pub fn set_learn(&mut self, on: bool) {
        self.learn_on = on;
    }

    /// Switches the RSS hash on or off. Without it, and without learned flows and rules, everything goes to queue 0.
    pub fn set_rss_on(&mut self, on: bool) {
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
        &mut self.rx
    }

    /// The flow-filter table.
    pub fn filters(&self) -> &FilterTable {
        &self.filters
    }

    /// The flow-filter table, to change.
    pub fn filters_mut(&mut self) -> &mut FilterTable {
        &mut self.filters
    }

    /// The RSS stage.
    pub fn rss(&self) -> &Rss {
        &self.rss
    }

    /// Configures RSS; a refused configuration changes nothing. The mode is [`Steering::set_mode`]'s.
    pub fn set_rss(&mut self, config: RssConfig) -> Result<(), RssError> {
        Rss::check(&config, self.queue_pairs)?;
        self.rss.set_config(config);
        self.update_rss();
        Ok(())
    }

    #[inline]
    fn is_enabled(&self, queue: u16) -> bool {
        queue < MAX_QUEUE_PAIRS && self.enabled >> queue & 1 == 1
    }

    fn update_rss(&mut self) {
        let enabled: Vec<u8> = (0..64).filter(|q| self.enabled >> q & 1 == 1).collect();
        self.rss.update(&enabled);
    }
}
