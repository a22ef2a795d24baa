use super::*;
use crate::packet::frames::{Frame, tcp4, udp6};
use crate::packet::{ETHERTYPE_VLAN, PROTO_TCP, PROTO_UDP};

fn exact<T: Copy>(value: T, mask: T) -> Option<Masked<T>> {
    Some(Masked { value, mask })
}

fn to(port: u16, action: i64, loc: Option<u32>) -> NtupleSpec {
    NtupleSpec { dst_port: exact(port, 0xffff), loc, ..NtupleSpec::new(FlowType::Tcp4, action) }
}

fn action(table: &FilterTable, frame: &Frame) -> Option<Action> {
    table.lookup(&frame.headers()).map(|(_, action)| action)
}

#[test]
fn flow_types_match_their_own_packets() {
    let packets = [
        tcp4(),
        Frame { protocol: PROTO_UDP, ..tcp4() },
        Frame { protocol: 1, ..tcp4() },
        Frame { protocol: PROTO_TCP, ..udp6() },
        udp6(),
    ];
    for (flow_type, expected) in [
        (FlowType::Ether, [true; 5]),
        (FlowType::Ip4, [true, true, true, false, false]),
        (FlowType::Ip6, [false, false, false, true, true]),
        (FlowType::Tcp4, [true, false, false, false, false]),
        (FlowType::Udp4, [false, true, false, false, false]),
        (FlowType::Tcp6, [false, false, false, true, false]),
        (FlowType::Udp6, [false, false, false, false, true]),
    ] {
        let mut table = FilterTable::new(4, 4);
        table.add_ntuple(NtupleSpec::new(flow_type, 1)).unwrap();
        let found = packets.each_ref().map(|frame| action(&table, frame).is_some());
        assert_eq!(found, expected, "{flow_type}");
        assert_eq!(FlowType::by_name(flow_type.name()), Some(flow_type));
    }
}

#[test]
fn every_field_is_compared_under_its_mask() {
    let ip = |s: &str| s.parse::<IpAddr>().unwrap();
    let mac = |s: &str| s.parse::<MacAddr>().unwrap();
    let frame = Frame { tags: vec![(ETHERTYPE_VLAN, 0x2005)], ..tcp4() };
    let base = NtupleSpec::new(FlowType::Tcp4, 1);
    let ones = mac("ff:ff:ff:ff:ff:ff");
    let cases = [
        (NtupleSpec { src_mac: exact(mac("02:00:00:00:00:02"), ones), ..base.clone() }, true),
        (NtupleSpec { src_mac: exact(mac("02:00:00:00:00:03"), ones), ..base.clone() }, false),
        (
            NtupleSpec { dst_mac: exact(mac("02:00:00:00:00:ff"), mac("ff:00:00:00:00:00")), ..base.clone() },
            true,
        ),
        (NtupleSpec { vlan: exact(0xf005, 0x0fff), ..base.clone() }, true),
        (NtupleSpec { vlan: exact(0xf005, 0xffff), ..base.clone() }, false),
        (NtupleSpec { src_ip: exact(ip("10.0.0.9"), ip("255.255.255.0")), ..base.clone() }, true),
        (NtupleSpec { src_ip: exact(ip("10.0.0.9"), ip("255.255.255.255")), ..base.clone() }, false),
        (NtupleSpec { dst_ip: exact(ip("10.0.0.2"), ip("255.255.255.255")), ..base.clone() }, true),
        (NtupleSpec { tos: exact(0x2e, 0xff), ..base.clone() }, true),
        (NtupleSpec { tos: exact(0x20, 0xff), ..base.clone() }, false),
        (NtupleSpec { src_port: exact(40001, 0xfff0), ..base.clone() }, true),
        (NtupleSpec { dst_port: exact(81, 0xffff), ..base.clone() }, false),
        (NtupleSpec { l4_proto: Some(PROTO_TCP), ..NtupleSpec::new(FlowType::Ip4, 1) }, true),
        (NtupleSpec { l4_proto: Some(1), ..NtupleSpec::new(FlowType::Ip4, 1) }, false),
        (NtupleSpec { ethertype: exact(0x0800, 0xffff), ..NtupleSpec::new(FlowType::Ether, 1) }, true),
        (NtupleSpec { ethertype: exact(0x0806, 0xffff), ..NtupleSpec::new(FlowType::Ether, 1) }, false),
    ];
    for (spec, expected) in cases {
        let mut table = FilterTable::new(4, 4);
        table.add_ntuple(spec.clone()).unwrap();
        assert_eq!(action(&table, &frame).is_some(), expected, "{spec:?}");
    }
    let mut table = FilterTable::new(4, 4);
    let net = Masked { value: ip("fd00::"), mask: ip("ffff:ffff:ffff:ffff::") };
    table.add_ntuple(NtupleSpec { dst_ip: Some(net), ..NtupleSpec::new(FlowType::Udp6, 2) }).unwrap();
    assert_eq!(action(&table, &udp6()), Some(Action::Queue(2)));
    assert_eq!(action(&table, &Frame::new("fd00::1", "fd01::2", PROTO_UDP, (1, 2))), None);
}

#[test]
fn a_port_rule_takes_no_fragment_and_an_untagged_frame_has_no_vlan_0() {
    let mut table = FilterTable::new(4, 4);
    table.add_ntuple(to(80, 1, None)).unwrap();
    table.add_ntuple(to(0, 1, None)).unwrap();
    assert_eq!(action(&table, &Frame { fragment: 0x2000, ..tcp4() }), None);
    let mut table = FilterTable::new(4, 4);
    table.add_ntuple(NtupleSpec { vlan: exact(0, 0xfff), ..NtupleSpec::new(FlowType::Ether, 1) }).unwrap();
    assert_eq!(action(&table, &tcp4()), None);
    assert_eq!(action(&table, &Frame { tags: vec![(ETHERTYPE_VLAN, 0)], ..tcp4() }), Some(Action::Queue(1)));
}

#[test]
fn the_lowest_location_wins_and_free_ones_are_taken_from_the_top() {
    let mut table = FilterTable::new(8, 4);
    let all = NtupleSpec::new(FlowType::Ip4, 1);
    assert_eq!(table.add_ntuple(all.clone()).unwrap().0, 7);
    assert_eq!(table.add_ntuple(to(80, 2, None)).unwrap().0, 6);
    assert_eq!(action(&table, &tcp4()), Some(Action::Queue(2)));
    table.add_ntuple(NtupleSpec { loc: Some(0), action: -1, ..all }).unwrap();
    assert_eq!(action(&table, &tcp4()), Some(Action::Drop));
    assert_eq!(table.remove_ntuple(7).unwrap().loc, Some(7));
    assert_eq!(table.add_ntuple(to(81, 2, None)).unwrap().0, 7);
    assert_eq!(table.add_ntuple(to(82, 2, None)).unwrap().0, 5);
    assert_eq!(table.ntuples().map(|r| r.0).collect::<Vec<_>>(), [0, 5, 6, 7]);
    assert_eq!(table.remove_ntuple(3), Err(FilterError::NotFound { what: "rule at location", id: 3 }));
}

#[test]
fn a_rule_at_a_taken_location_replaces_the_old_one_or_leaves_it_alone() {
    let mut table = FilterTable::new(1, 4);
    table.add_ntuple(to(80, 1, Some(0))).unwrap();
    // The table is full, yet there is room in the old rule's place.
    table.add_ntuple(to(80, 2, Some(0))).unwrap();
    assert_eq!(action(&table, &tcp4()), Some(Action::Queue(2)));
    table.add_ntuple(to(81, 2, Some(0))).unwrap();
    assert_eq!((action(&table, &tcp4()), table.len()), (None, 1));

    let mut table = FilterTable::new(128, 4);
    let masked = |i: u16| NtupleSpec {
        src_port: exact(0, i + 1),
        loc: Some(i.into()),
        ..NtupleSpec::new(FlowType::Tcp4, 3)
    };
    table.add_ntuple(to(80, 1, Some(100))).unwrap();
    table.add_ntuple(to(81, 1, Some(101))).unwrap();
    for i in 0..63 {
        table.add_ntuple(masked(i)).unwrap();
    }
    // One mask too many, in the place of a rule whose mask another one still needs.
    let refused = NtupleSpec { loc: Some(100), ..masked(63) };
    assert!(matches!(table.add_ntuple(refused), Err(FilterError::NoSpace(_))));
    let kept: Vec<_> = table.ntuples().filter(|r| r.0 == 100).map(|r| r.2.dst_port).collect();
    assert_eq!((kept, table.len()), (vec![exact(80, 0xffff)], 65));
    for i in 0..63 {
        table.remove_ntuple(i).unwrap();
    }
    assert_eq!(action(&table, &tcp4()), Some(Action::Queue(1)));
}

#[test]
fn what_ethtool_would_refuse_is_refused_with_the_reason() {
    let mut table = FilterTable::new(4, 4);
    let v6: IpAddr = "fd00::1".parse().unwrap();
    let v4: IpAddr = "10.0.0.1".parse().unwrap();
    for (spec, word) in [
        (to(80, 4, None), "queue 4"),
        (to(80, -2, None), "action -2"),
        (to(80, 70000, None), "action 70000"),
        (to(80, 0, Some(4)), "location 4"),
        (NtupleSpec { flow_type: FlowType::Ip4, ..to(80, 0, None) }, "dst-port"),
        (NtupleSpec { src_ip: exact(v6, v6), ..to(80, 0, None) }, "src-ip"),
        (NtupleSpec { dst_ip: exact(v4, v6), ..to(80, 0, None) }, "dst-ip"),
        (NtupleSpec { ethertype: exact(1, 1), ..to(80, 0, None) }, "proto"),
        (NtupleSpec { l4_proto: Some(1), ..to(80, 0, None) }, "l4proto"),
        (NtupleSpec { tos: exact(1, 1), ..NtupleSpec::new(FlowType::Ether, 0) }, "tos"),
    ] {
        let error = table.add_ntuple(spec).unwrap_err();
        assert!(matches!(error, FilterError::Invalid(_)) && error.to_string().contains(word), "{error}");
    }
    assert!(table.is_empty());
}
