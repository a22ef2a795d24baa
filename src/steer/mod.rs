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
//! half of a lock whose read half the data plane takes once per batch; each change leaves it complete.

mod cache;
mod context;
mod filter;
mod guest;
mod hash;
mod key;
mod knobs;
mod learn;
mod ntuple;
mod program;
mod recent;
mod rss;
mod rxmode;
mod shape;
mod staged;
mod tuple;

pub use cache::VerdictCache;
pub use context::{CONTEXTS_MAX, ContextError};
pub use filter::{CLASSIFIERS_LIMIT, FilterError, FilterTable, GROUPS_LIMIT, Rule};
pub use key::{Mask, Match};
pub use knobs::{DELAY_MAX, FilterKey, IN_FLIGHT_MAX, Knobs, Replace, parse_delay};
pub use learn::{LearnConfig, LearnStats, LearnTable, Tick};
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
            Some((slot, Action::Context { id, offset })) => {
                if let Some(queue) = self.context_queue(id, offset, h)
                    && self.is_enabled(queue)
                {
                    return Verdict::Queue { queue, reason: Reason::Filter, rule: Some(slot) };
                }
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
        // None of the three ever goes back, so their sum is another one as soon as one of them is.
        u64::from(nic) << 48 | (self.changes + learned.version() + now.as_secs()) & (u64::MAX >> 16)
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
        queue < MAX_QUEUE_PAIRS && self.enabled >> queue & 1 == 1
    }

    fn update_rss(&mut self) {
        let enabled: Vec<u8> = (0..MAX_QUEUE_PAIRS as u8).filter(|q| self.enabled >> q & 1 == 1).collect();
        self.rss.update(&enabled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::frames::{Frame, tcp4, udp6};
    use crate::packet::{ETHERTYPE_ARP, ETHERTYPE_QINQ, ETHERTYPE_VLAN, parse};
    use crate::virtio::MacAddr;

    const NOW: Tick = Tick::ZERO;

    struct Nic {
        steering: Steering,
        learned: LearnTable,
    }

    /// Four queues, all enabled.
    fn nic() -> Nic {
        let mut steering = Steering::new(&SteerConfig { queue_pairs: 4, ..SteerConfig::default() });
        steering.set_enabled(0xf);
        Nic { steering, learned: LearnTable::new(LearnConfig::default()) }
    }

    impl Nic {
        fn verdict(&self, frame: &Frame) -> Verdict {
            self.steering.classify(&frame.headers(), &self.learned, NOW)
        }

        /// Queue and reason.
        fn queue(&self, frame: &Frame) -> (u16, Reason) {
            match self.verdict(frame) {
                Verdict::Queue { queue, reason, .. } => (queue, reason),
                drop => panic!("{drop:?}"),
            }
        }

        fn drop_reason(&self, frame: &Frame) -> Option<DropReason> {
            match self.verdict(frame) {
                Verdict::Drop { reason, .. } => Some(reason),
                Verdict::Queue { .. } => None,
            }
        }

        fn learn(&self, received: &Frame, queue: u16) {
            self.learned.learn(&received.headers().flow().unwrap().reversed(), queue, NOW);
        }

        fn rule(&mut self, action: i64) -> RuleSlot {
            let port = Some(Masked { value: 80, mask: 0xffff });
            let spec = NtupleSpec { dst_port: port, ..NtupleSpec::new(FlowType::Tcp4, action) };
            self.steering.filters_mut().add_ntuple(spec).unwrap().1
        }
    }

    #[test]
    fn a_rule_beats_a_learned_flow_which_beats_rss_which_beats_queue_0() {
        let mut nic = nic();
        let (by_hash, reason) = nic.queue(&tcp4());
        assert_eq!(reason, Reason::Rss);
        let learned = (by_hash + 1) % 4;
        nic.learn(&tcp4(), learned);
        assert_eq!(nic.queue(&tcp4()), (learned, Reason::Learned));
        let ruled = (by_hash + 2) % 4;
        let slot = nic.rule(ruled.into());
        let expected = Verdict::Queue { queue: ruled, reason: Reason::Filter, rule: Some(slot) };
        assert_eq!(nic.verdict(&tcp4()), expected);
        nic.steering.filters_mut().clear_ntuples();
        assert_eq!(nic.queue(&tcp4()), (learned, Reason::Learned));

        nic.steering.set_mode(Mode::Rss);
        assert_eq!(nic.queue(&tcp4()), (by_hash, Reason::Rss));
        assert!(!nic.steering.learns());
        nic.steering.set_mode(Mode::Automatic);
        nic.steering.set_learn(false);
        assert_eq!(nic.queue(&tcp4()), (by_hash, Reason::Rss));
        nic.steering.set_rss_on(false);
        assert_eq!(nic.queue(&tcp4()), (0, Reason::Default));
    }

    #[test]
    fn rss_spreads_by_the_published_hash() {
        // 0x51ccc178 & 127 = 120, 120 % 4 = 0; 0xc626b0ea & 127 = 106, 106 % 4 = 2.
        let nic = nic();
        assert_eq!(
            nic.queue(&Frame::new("66.9.149.187", "161.142.100.80", 6, (2794, 1766))),
            (0, Reason::Rss)
        );
        assert_eq!(
            nic.queue(&Frame::new("199.92.111.2", "65.69.140.83", 6, (14230, 4739))),
            (2, Reason::Rss)
        );
    }

    #[test]
    fn a_drop_rule_drops_and_is_named() {
        let mut nic = nic();
        let slot = nic.rule(-1);
        let expected = Verdict::Drop { reason: DropReason::Rule, rule: Some(slot) };
        assert_eq!(nic.verdict(&tcp4()), expected);
        assert_eq!(nic.drop_reason(&udp6()), None);
    }

    #[test]
    fn when_queues_shrink_everything_falls_through_to_what_is_left() {
        let mut nic = nic();
        nic.rule(3);
        nic.learn(&tcp4(), 2);
        assert_eq!(nic.queue(&tcp4()), (3, Reason::Filter));
        nic.steering.set_enabled(0b0111);
        assert_eq!(nic.queue(&tcp4()), (2, Reason::Learned));
        nic.steering.set_enabled(0b0011);
        let (queue, reason) = nic.queue(&tcp4());
        assert!(queue < 2 && reason == Reason::Rss);
        nic.steering.set_enabled(0b1000);
        assert_eq!(nic.queue(&tcp4()), (3, Reason::Filter));
        assert_eq!(nic.queue(&udp6()), (3, Reason::Rss));
        // Queues that the NIC does not have cannot be enabled.
        nic.steering.set_enabled(0b1_0000);
        assert_eq!(nic.drop_reason(&tcp4()), Some(DropReason::NoQueue));
        nic.steering.set_enabled(0xf);
        assert_eq!(nic.queue(&tcp4()), (3, Reason::Filter));
    }

    #[test]
    fn no_verdict_names_a_disabled_queue_whatever_is_configured() {
        let mut nic = nic();
        nic.rule(3);
        nic.learn(&udp6(), 2);
        let table = Some((0..16).map(|i| i % 4).collect());
        let mut arp = tcp4().bytes();
        arp[12..14].copy_from_slice(&ETHERTYPE_ARP.to_be_bytes());
        let frames: Vec<Headers> = (0..64u16)
            .map(|n| Frame { ports: (n, 80 + n % 2), ..tcp4() }.headers())
            .chain([udp6().headers(), parse(&arp, arp.len()), parse(&[1, 2], 2)])
            .collect();
        for config in [RssConfig::default(), RssConfig { table, unclassified: 3, ..RssConfig::default() }] {
            nic.steering.set_rss(config).unwrap();
            for (enabled, rss, mode) in (1..16u128)
                .flat_map(|e| [(e, true, Mode::Automatic), (e, true, Mode::Rss), (e, false, Mode::Automatic)])
            {
                nic.steering.set_enabled(enabled);
                nic.steering.set_rss_on(rss);
                nic.steering.set_mode(mode);
                for h in &frames {
                    match nic.steering.classify(h, &nic.learned, NOW) {
                        Verdict::Queue { queue, .. } => {
                            assert_eq!(enabled >> queue & 1, 1, "{enabled:b} {h:?}")
                        }
                        drop => panic!("{drop:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn a_refused_rss_configuration_changes_nothing() {
        let mut nic = nic();
        let before = nic.steering.rss().effective_table();
        assert!(nic.steering.set_rss(RssConfig { table: Some(vec![4]), ..RssConfig::default() }).is_err());
        assert_eq!(nic.steering.rss().effective_table(), before);
        let key = RssKey::new(&[7; KEY_MIN]).unwrap();
        let h = tcp4().headers();
        let hash = nic.steering.rss().hash(&h);
        nic.steering.set_rss(RssConfig { key, table: Some(vec![1]), ..RssConfig::default() }).unwrap();
        assert_eq!(nic.steering.rss().effective_table(), [1]);
        assert_ne!(nic.steering.rss().hash(&h), hash);
    }

    #[test]
    fn packets_without_a_hash_go_to_their_queue() {
        let mut nic = nic();
        let h = parse(&[0; 60], 60);
        let queue = |nic: &Nic| nic.steering.classify(&h, &nic.learned, NOW);
        let expected = |queue| Verdict::Queue { queue, reason: Reason::Default, rule: None };
        assert_eq!(queue(&nic), expected(0));
        nic.steering.set_rss(RssConfig { unclassified: 2, ..RssConfig::default() }).unwrap();
        assert_eq!(queue(&nic), expected(2));
        nic.steering.set_enabled(0b1010);
        assert_eq!(queue(&nic), expected(1));
    }

    #[test]
    fn the_receive_mode_filters_by_destination() {
        let mut nic = nic();
        let mac = |s: &str| s.parse::<MacAddr>().unwrap();
        let own = mac("02:00:00:00:00:01");
        let [other, group, listed_group] =
            ["02:00:00:00:00:99", "01:00:5e:00:00:01", "33:33:00:00:00:01"].map(mac);
        let broadcast = mac("ff:ff:ff:ff:ff:ff");
        let all = [own, other, group, listed_group, broadcast];
        let taken = |nic: &Nic| all.map(|dst| nic.drop_reason(&Frame { dst, ..tcp4() }).is_none());
        assert_eq!(taken(&nic), [true; 5]);
        let rx = nic.steering.rx_filter_mut();
        rx.set_mac(own);
        rx.set_addresses(vec![listed_group, mac("02:00:00:00:00:05")]);
        let base = RxMode::FILTERED;
        for (mode, expected) in [
            (base, [true, false, false, true, true]),
            (RxMode { all_multicast: true, ..base }, [true, false, true, true, true]),
            (RxMode { all_unicast: true, ..base }, [true, true, false, true, true]),
            (RxMode { no_multicast: true, all_multicast: true, ..base }, [true, false, false, false, true]),
            (RxMode { no_unicast: true, ..base }, [false, false, false, true, true]),
            (RxMode { no_broadcast: true, ..base }, [true, false, false, true, false]),
            (RxMode::PROMISCUOUS, [true; 5]),
        ] {
            nic.steering.rx_filter_mut().set_mode(mode);
            assert_eq!(taken(&nic), expected, "{mode:?}");
        }
        nic.steering.rx_filter_mut().set_mode(base);
        assert_eq!(nic.drop_reason(&Frame { dst: other, ..tcp4() }), Some(DropReason::MacFilter));
        let runt = nic.steering.classify(&parse(&[0; 13], 13), &nic.learned, NOW);
        assert_eq!(runt, Verdict::Drop { reason: DropReason::MacFilter, rule: None });
    }

    #[test]
    fn the_vlan_filter_takes_its_vlans_and_untagged_frames() {
        let mut nic = nic();
        let mut vlans = VlanFilter::new();
        vlans.add(0);
        vlans.add(4095);
        nic.steering.rx_filter_mut().set_vlans(Some(vlans));
        let tagged = |protocol, tci| Frame { tags: vec![(protocol, tci), (ETHERTYPE_VLAN, 1)], ..tcp4() };
        assert_eq!(nic.drop_reason(&tcp4()), None);
        assert_eq!(nic.drop_reason(&tagged(ETHERTYPE_VLAN, 0xffff)), None);
        assert_eq!(nic.drop_reason(&tagged(ETHERTYPE_QINQ, 0xf000)), None);
        assert_eq!(nic.drop_reason(&tagged(ETHERTYPE_VLAN, 0xf001)), Some(DropReason::VlanFilter));
        nic.steering.rx_filter_mut().vlans_mut().unwrap().remove(4095);
        assert_eq!(nic.drop_reason(&tagged(ETHERTYPE_VLAN, 0xffff)), Some(DropReason::VlanFilter));
    }

    #[test]
    fn names_are_indexed_by_value() {
        assert!(Reason::ALL.iter().enumerate().all(|(i, r)| *r as usize == i));
        assert!(DropReason::ALL.iter().enumerate().all(|(i, r)| *r as usize == i));
        assert!(crate::packet::Malformed::ALL.iter().enumerate().all(|(i, m)| *m as usize == i));
    }
}
