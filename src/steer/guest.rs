//! What a guest may change of steering, and how it is undone.
//!
//! The RSS configuration belongs to whoever has set it last. When a guest sets it, what the host had is kept aside, and
//! comes back when the guest is forgotten; when the host changes anything of it then, all of it is the host's and stays.

use super::context::{CONTEXTS_MAX, ContextError};
use super::rss::{Rss, RssConfig, RssError};
use super::rxmode::RxFilter;
use super::{Mode, Steering};
use crate::packet::Headers;

/// What the host had set before the guest did.
#[derive(Clone)]
pub(super) struct HostRss {
    config: RssConfig,
    mode: Mode,
    on: bool,
}

impl Steering {
    /// The queue that RSS context `id` and the `offset` of a rule give; 0 is the NIC's own RSS. `None` if there is no such
    /// context.
    pub(super) fn context_queue(&self, id: u16, offset: u16, h: &Headers) -> Option<u16> {
        match id {
            0 => self.rss.queue(h).unwrap_or_else(|unclassified| unclassified).checked_add(offset),
            _ => self.contexts.queue(id, offset, h),
        }
    }

    /// The guest configures RSS: from now on the table decides, and learned flows do not (5.1.6.5.7). A refused configuration
    /// changes nothing.
    pub fn set_guest_rss(&mut self, config: RssConfig) -> Result<(), RssError> {
        self.set_guest_hash(config)?;
        (self.mode, self.rss_on) = (Mode::Rss, true);
        Ok(())
    }

    /// The guest says what is hashed and how: the mode stays as it is (5.1.6.5.6.4).
    pub fn set_guest_hash(&mut self, config: RssConfig) -> Result<(), RssError> {
        Rss::check(&config, self.queue_pairs)?;
        if self.host_rss.is_none() {
            let config = self.rss.config().clone();
            self.host_rss = Some(HostRss { config, mode: self.mode, on: self.rss_on });
        }
        self.changes += 1;
        self.rss.set_config(config);
        self.update_rss();
        Ok(())
    }

    /// Whether the RSS configuration in force is the guest's.
    pub fn rss_is_guests(&self) -> bool {
        self.host_rss.is_some()
    }

    /// Forgets groups, classifiers and their rules, RSS contexts, receive mode, and an RSS configuration of the guest.
    pub fn forget_guest(&mut self) {
        self.changes += 1;
        self.filters.reset_objects();
        self.contexts.clear();
        self.rx = RxFilter::default();
        if let Some(host) = self.host_rss.take() {
            (self.mode, self.rss_on) = (host.mode, host.on);
            self.rss.set_config(host.config);
            self.update_rss();
        }
    }

    /// The configuration of an RSS context.
    pub fn context(&self, id: u16) -> Option<&RssConfig> {
        self.contexts.get(id)
    }

    /// All RSS contexts, by id.
    pub fn contexts(&self) -> impl Iterator<Item = (u16, &RssConfig)> {
        self.contexts.iter()
    }

    /// Makes an RSS context. Its configuration must have a table.
    pub fn add_context(&mut self, id: u16, config: RssConfig) -> Result<(), ContextError> {
        if !(1..=CONTEXTS_MAX).contains(&id) {
            return Err(ContextError::Id(id));
        }
        if self.contexts.get(id).is_some() {
            return Err(ContextError::Exists(id));
        }
        self.put_context(id, config)
    }

    /// Gives an RSS context another configuration, in one step for packets. A refused one changes nothing.
    pub fn modify_context(&mut self, id: u16, config: RssConfig) -> Result<(), ContextError> {
        self.contexts.get(id).ok_or(ContextError::NotFound(id))?;
        self.put_context(id, config)
    }

    /// Deletes an RSS context that no rule refers to.
    pub fn delete_context(&mut self, id: u16) -> Result<(), ContextError> {
        self.contexts.get(id).ok_or(ContextError::NotFound(id))?;
        match self.filters.rules_of_context(id) {
            0 => {
                self.changes += 1;
                self.contexts.remove(id);
                Ok(())
            }
            rules => Err(ContextError::Busy { id, rules }),
        }
    }

    fn put_context(&mut self, id: u16, config: RssConfig) -> Result<(), ContextError> {
        if config.table.is_none() {
            return Err(ContextError::NoTable);
        }
        Rss::check(&config, self.queue_pairs)?;
        self.changes += 1;
        self.contexts.put(id, config, (self.rss.config(), self.rss.toeplitz()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::frames::{Frame, tcp4, udp6};
    use crate::steer::rss::{KEY_MIN, RssKey, hash_type};
    use crate::steer::{
        Action, FilterError, LearnConfig, LearnTable, Match, Reason, Rule, RxMode, SteerConfig, Tick,
        Verdict, VerdictCache,
    };

    const NOW: Tick = Tick::ZERO;

    fn steering() -> Steering {
        let mut steering = Steering::new(&SteerConfig { queue_pairs: 4, ..SteerConfig::default() });
        steering.set_enabled(0xf);
        steering
    }

    fn learned() -> LearnTable {
        LearnTable::new(LearnConfig::default())
    }

    fn table(table: &[u16]) -> RssConfig {
        RssConfig { table: Some(table.to_vec()), ..RssConfig::default() }
    }

    fn verdict(steering: &Steering, h: &Headers) -> Verdict {
        steering.classify(h, &learned(), NOW)
    }

    fn queue(steering: &Steering, h: &Headers) -> (u16, Reason) {
        match verdict(steering, h) {
            Verdict::Queue { queue, reason, .. } => (queue, reason),
            drop => panic!("{drop:?}"),
        }
    }

    /// A rule for all TCP over IPv4 that goes through context `id`.
    fn through(steering: &mut Steering, id: u16, offset: u16) {
        let fields = Match::new().ipv4().tcp();
        let filters = steering.filters_mut();
        filters.create_group(0, 1).unwrap();
        filters.create_classifier(0, fields.mask()).unwrap();
        let action = Action::Context { id, offset };
        filters.create_rule(0, Rule { group: 0, classifier: 0, priority: 0, fields, action }).unwrap();
    }

    #[test]
    fn a_rule_sends_packets_through_its_context_and_others_through_the_nic_s() {
        let mut steering = steering();
        steering.set_rss(table(&[3])).unwrap();
        steering.add_context(7, table(&[0, 1])).unwrap();
        through(&mut steering, 7, 0);
        let flows: Vec<_> = (0..64).map(|n| Frame { ports: (n, 80), ..tcp4() }.headers()).collect();
        let hit = |steering: &Steering| {
            let mut queues: Vec<_> = flows.iter().map(|h| queue(steering, h)).collect();
            queues.sort_by_key(|q| q.0);
            queues.dedup();
            queues
        };
        assert_eq!(hit(&steering), [(0, Reason::Filter), (1, Reason::Filter)]);
        assert_eq!(queue(&steering, &udp6().headers()), (3, Reason::Rss));
        // The queue is that of the context's own hash.
        for h in &flows {
            let (hash, _) = steering.rss().hash(h).unwrap();
            assert_eq!(queue(&steering, h).0, hash as u16 & 1);
        }
        steering.filters_mut().modify_rule(0, Action::Context { id: 7, offset: 2 }).unwrap();
        assert_eq!(hit(&steering), [(2, Reason::Filter), (3, Reason::Filter)]);
        // The hash to show is the one that chose the queue.
        let shown = |s: &Steering, h: &Headers| s.hash(h, verdict(s, h));
        assert_eq!(shown(&steering, &flows[0]), steering.rss().hash(&flows[0]));
        // Another key spreads otherwise, and hash types that do not apply lead to the queue for those.
        let key = RssKey::new(&[1; KEY_MIN]).unwrap();
        steering.modify_context(7, RssConfig { key, unclassified: 1, ..table(&[0]) }).unwrap();
        assert_eq!(hit(&steering), [(2, Reason::Filter)]);
        assert_ne!(shown(&steering, &flows[0]), steering.rss().hash(&flows[0]));
        assert_eq!(shown(&steering, &udp6().headers()), steering.rss().hash(&udp6().headers()));
        let udp_only = RssConfig { hash_types: hash_type::UDPV4, unclassified: 1, ..table(&[0]) };
        steering.modify_context(7, udp_only).unwrap();
        assert_eq!(hit(&steering), [(3, Reason::Filter)]);
        assert_eq!(shown(&steering, &flows[0]), None);
        // Context 0 is the NIC's own RSS.
        steering.set_rss(table(&[1, 2])).unwrap();
        steering.filters_mut().modify_rule(0, Action::Context { id: 0, offset: 1 }).unwrap();
        assert_eq!(hit(&steering), [(2, Reason::Filter), (3, Reason::Filter)]);
        assert_eq!(shown(&steering, &flows[0]), steering.rss().hash(&flows[0]));
    }

    #[test]
    fn a_context_whose_queue_is_not_enabled_is_passed_over() {
        let mut steering = steering();
        steering.set_rss(table(&[0])).unwrap();
        steering.add_context(1, table(&[2])).unwrap();
        through(&mut steering, 1, 1);
        let h = tcp4().headers();
        assert_eq!(queue(&steering, &h), (3, Reason::Filter));
        steering.set_enabled(0b0111);
        assert_eq!(queue(&steering, &h), (0, Reason::Rss));
        steering.filters_mut().modify_rule(0, Action::Context { id: 1, offset: 0 }).unwrap();
        assert_eq!(queue(&steering, &h), (2, Reason::Filter));
        // 3 + 3 is no queue at all; nor is a context that is not there one.
        steering.set_enabled(0b1111);
        steering.modify_context(1, table(&[3])).unwrap();
        steering.filters_mut().modify_rule(0, Action::Context { id: 1, offset: 3 }).unwrap();
        assert_eq!(queue(&steering, &h), (0, Reason::Rss));
        for id in [2, 33, u16::MAX] {
            steering.filters_mut().modify_rule(0, Action::Context { id, offset: 0 }).unwrap();
            assert_eq!(queue(&steering, &h), (0, Reason::Rss));
        }
    }

    #[test]
    fn contexts_in_use_stay_and_impossible_ones_are_refused() {
        let mut steering = steering();
        assert_eq!(steering.add_context(0, table(&[0])), Err(ContextError::Id(0)));
        assert_eq!(steering.add_context(CONTEXTS_MAX + 1, table(&[0])), Err(ContextError::Id(33)));
        assert_eq!(steering.add_context(1, RssConfig::default()), Err(ContextError::NoTable));
        assert!(matches!(steering.add_context(1, table(&[4])), Err(ContextError::Config(_))));
        assert_eq!(steering.modify_context(1, table(&[0])), Err(ContextError::NotFound(1)));
        assert_eq!(steering.delete_context(1), Err(ContextError::NotFound(1)));
        assert_eq!(steering.contexts().count(), 0);
        for id in 1..=CONTEXTS_MAX {
            steering.add_context(id, table(&[id % 4])).unwrap();
        }
        assert_eq!(steering.add_context(5, table(&[0])), Err(ContextError::Exists(5)));
        assert!(steering.modify_context(5, table(&[0, 1, 2])).is_err());
        assert_eq!(steering.context(5), Some(&table(&[1])), "what is refused changes nothing");
        through(&mut steering, 5, 0);
        assert_eq!(steering.delete_context(5), Err(ContextError::Busy { id: 5, rules: 1 }));
        steering.delete_context(4).unwrap();
        steering.filters_mut().destroy_rule(0).unwrap();
        steering.delete_context(5).unwrap();
        assert!(
            steering.contexts().map(|(id, _)| id).eq((1..=CONTEXTS_MAX).filter(|id| ![4, 5].contains(id)))
        );
    }

    #[test]
    fn no_change_of_contexts_is_missed_by_kept_verdicts() {
        let (mut steering, learned) = (steering(), learned());
        let mut cache = VerdictCache::default();
        let h = tcp4().headers();
        let mut check = |steering: &Steering, expected: Option<u16>| {
            let stamp = steering.stamp(&learned, NOW, 1);
            for _ in 0..2 {
                let kept =
                    cache.find(stamp, &h).copied().unwrap_or_else(|| steering.classify(&h, &learned, NOW));
                cache.keep(stamp, &h, kept);
                assert_eq!(kept, steering.classify(&h, &learned, NOW));
                if let Some(queue) = expected {
                    assert!(matches!(kept, Verdict::Queue { queue: q, .. } if q == queue), "{kept:?}");
                }
            }
        };
        through(&mut steering, 1, 0);
        check(&steering, None);
        for queue in [1, 2] {
            steering.add_context(1, table(&[queue])).unwrap();
            check(&steering, Some(queue));
            steering.modify_context(1, table(&[3])).unwrap();
            check(&steering, Some(3));
            steering.filters_mut().modify_rule(0, Action::Queue(queue)).unwrap();
            check(&steering, Some(queue));
            steering.delete_context(1).unwrap();
            steering.filters_mut().modify_rule(0, Action::Context { id: 1, offset: 0 }).unwrap();
            check(&steering, None);
        }
        steering.set_guest_rss(table(&[1])).unwrap();
        check(&steering, Some(1));
        steering.set_guest_hash(table(&[2])).unwrap();
        check(&steering, Some(2));
        steering.forget_guest();
        check(&steering, None);
    }

    #[test]
    fn the_host_s_rss_comes_back_when_the_guest_is_forgotten() {
        let mut steering = steering();
        let state = |s: &Steering| (s.rss().config().clone(), s.mode(), s.rss_on(), s.rss_is_guests());
        steering.set_rss(table(&[1])).unwrap();
        steering.set_rss_on(false);
        let host = state(&steering);
        assert!(steering.set_guest_rss(table(&[9])).is_err());
        assert_eq!(state(&steering), host, "what is refused changes nothing");
        steering.set_guest_rss(table(&[2])).unwrap();
        steering.set_guest_rss(table(&[3])).unwrap();
        assert_eq!(state(&steering), (table(&[3]), Mode::Rss, true, true));
        steering.forget_guest();
        assert_eq!(state(&steering), host);
        // Setting what is hashed does not change who decides.
        let types = RssConfig { hash_types: hash_type::TCPV4, ..table(&[1]) };
        steering.set_guest_hash(types.clone()).unwrap();
        assert_eq!(state(&steering), (types, Mode::Automatic, false, true));
        steering.forget_guest();
        assert_eq!(state(&steering), host);
    }

    #[test]
    fn what_the_host_changes_of_a_guest_s_rss_is_the_host_s() {
        for change in [
            |s: &mut Steering| s.set_rss_on(true),
            |s: &mut Steering| s.set_mode(Mode::Automatic),
            |s: &mut Steering| s.set_rss(table(&[2])).unwrap(),
        ] {
            let mut steering = steering();
            steering.set_guest_rss(table(&[1])).unwrap();
            change(&mut steering);
            let (config, mode, on) = (steering.rss().config().clone(), steering.mode(), steering.rss_on());
            steering.forget_guest();
            assert_eq!((steering.rss().config(), steering.mode(), steering.rss_on()), (&config, mode, on));
        }
    }

    #[test]
    fn a_guest_is_forgotten_without_a_trace() {
        let mut steering = steering();
        let ntuple = crate::steer::NtupleSpec::new(crate::steer::FlowType::Ip6, 1);
        steering.filters_mut().add_ntuple(ntuple).unwrap();
        steering.add_context(1, table(&[2])).unwrap();
        through(&mut steering, 1, 0);
        steering.rx_filter_mut().set_mode(RxMode::FILTERED);
        assert!(matches!(verdict(&steering, &udp6().headers()), Verdict::Drop { .. }));
        steering.forget_guest();
        assert_eq!(steering.contexts().count(), 0);
        assert_eq!((steering.filters().len(), steering.filters().rules().count()), (1, 0));
        assert_eq!(
            steering.filters_mut().destroy_group(0),
            Err(FilterError::NotFound { what: "group", id: 0 })
        );
        assert_eq!(queue(&steering, &udp6().headers()), (1, Reason::Filter), "the host's rule stays");
        assert_eq!(queue(&steering, &tcp4().headers()).1, Reason::Rss);
    }
}
