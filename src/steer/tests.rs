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
    assert_eq!(nic.queue(&Frame::new("66.9.149.187", "161.142.100.80", 6, (2794, 1766))), (0, Reason::Rss));
    assert_eq!(nic.queue(&Frame::new("199.92.111.2", "65.69.140.83", 6, (14230, 4739))), (2, Reason::Rss));
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

#[test]
fn a_burst_is_decided_about_as_its_packets_one_by_one() {
    use crate::packet::frames::{Frame, tcp4, udp6};
    let mut nic = Steering::new(&SteerConfig { queue_pairs: 8, ..SteerConfig::default() });
    let learned = LearnTable::new(LearnConfig::default());
    nic.set_enabled(0b0111_1111);
    let frame =
        |i: usize| Frame { ports: (i as u16, 80), ..if i.is_multiple_of(2) { tcp4() } else { udp6() } };
    let mut headers: Vec<Headers> = (0..BURST).map(|i| frame(i).headers()).collect();
    headers[5] = Headers::default();
    // More combinations of fields than are fetched ahead, rules that drop, and some whose queue is not enabled.
    for mask in [0xffff, 0xfff, 0xff0f, 0x7f, 0x3f, 7] {
        for port in 0..6 {
            let spec = NtupleSpec {
                src_port: Some(Masked { value: port, mask }),
                ..NtupleSpec::new(FlowType::Tcp4, i64::from(port * 2) - 1)
            };
            if spec.action < 8 {
                nic.filters_mut().add_ntuple(spec).unwrap();
            }
        }
    }
    headers
        .iter()
        .filter_map(Headers::flow)
        .step_by(3)
        .for_each(|f| learned.learn(&f.reversed(), 6, Tick::ZERO));
    for packets in [u32::MAX, 0x8421_0001, 0, 1 << 31] {
        let untouched = Verdict::Queue { queue: 99, reason: Reason::Default, rule: None };
        let mut verdicts = [untouched; BURST];
        nic.classify_burst(packets, |i| &headers[i], &learned, Tick::ZERO, &mut verdicts);
        for (i, (h, verdict)) in headers.iter().zip(verdicts).enumerate() {
            let expected =
                if packets >> i & 1 == 1 { nic.classify(h, &learned, Tick::ZERO) } else { untouched };
            assert_eq!(verdict, expected, "packet {i}");
        }
    }
    nic.set_enabled(0);
    let mut verdicts = [Verdict::Queue { queue: 99, reason: Reason::Default, rule: None }; BURST];
    nic.classify_burst(u32::MAX, |i| &headers[i], &learned, Tick::ZERO, &mut verdicts);
    assert_eq!(verdicts, [Verdict::Drop { reason: DropReason::NoQueue, rule: None }; BURST]);
}
