use super::frames::{Frame, tcp4, udp6};

use super::*;
use crate::virtio::MacAddr;
use proptest::prelude::*;

fn whole(bytes: &[u8]) -> Headers {
    parse(bytes, bytes.len())
}

#[test]
fn tcp_over_ipv4() {
    let h = tcp4().headers();
    assert_eq!((h.dst(), h.src()), (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])));
    assert_eq!((h.ethernet(), h.ethertype(), h.vlan(), h.l3()), (true, ETHERTYPE_IPV4, None, L3::V4));
    assert_eq!(h.src_ip(), Some("10.0.0.1".parse().unwrap()));
    assert_eq!(h.dst_ip(), Some("10.0.0.2".parse().unwrap()));
    assert_eq!((h.protocol(), h.tos(), h.fragment), (PROTO_TCP, 0x2e, false));
    assert_eq!((h.ports(), h.tcp_flags()), (Some((40000, 80)), Some(0x18)));
    assert_eq!((h.l3_offset, h.l4_offset, h.malformed), (14, Some(34), None));
}

#[test]
fn udp_over_ipv6() {
    let h = udp6().headers();
    assert_eq!((h.ethertype(), h.l3(), h.protocol(), h.tos()), (ETHERTYPE_IPV6, L3::V6, PROTO_UDP, 0x2e));
    assert_eq!(h.src_ip(), Some("fd00::1".parse().unwrap()));
    assert_eq!(h.dst_ip(), Some("fd00::2".parse().unwrap()));
    assert_eq!((h.ports(), h.tcp_flags()), (Some((40000, 53)), None));
    assert_eq!((h.l3_offset, h.l4_offset, h.malformed), (14, Some(54), None));
}

#[test]
fn tags_are_walked_and_the_outermost_is_reported() {
    for tags in [
        vec![(ETHERTYPE_VLAN, 0x6123)],
        vec![(ETHERTYPE_QINQ, 0x6123), (ETHERTYPE_VLAN, 7)],
        vec![(ETHERTYPE_QINQ_OLD, 0x6123), (ETHERTYPE_VLAN, 7), (ETHERTYPE_VLAN, 8), (ETHERTYPE_VLAN, 9)],
    ] {
        let h = Frame { tags: tags.clone(), ..tcp4() }.headers();
        assert_eq!((h.vlan(), h.ethertype(), h.ports()), (Some(0x6123), ETHERTYPE_IPV4, Some((40000, 80))));
        assert_eq!(usize::from(h.l3_offset), 14 + 4 * tags.len());
    }
    let h = Frame { tags: vec![(ETHERTYPE_VLAN, 1); MAX_TAGS + 1], ..tcp4() }.headers();
    assert_eq!((h.malformed, h.l3(), h.ports()), (Some(Malformed::TooManyTags), L3::None, None));
    let tagged = Frame { tags: vec![(ETHERTYPE_VLAN, 1)], ..tcp4() }.bytes();
    for cut in 14..18 {
        let h = whole(&tagged[..cut]);
        assert_eq!((h.malformed, h.vlan(), h.ethertype()), (Some(Malformed::VlanTag), None, 0), "{cut}");
    }
}

#[test]
fn ipv4_options_are_skipped() {
    let h = Frame { options: 40, ..tcp4() }.headers();
    assert_eq!((h.ports(), h.l4_offset), (Some((40000, 80)), Some(14 + 60)));
    // The snapshot ends in the options.
    let b = Frame { options: 40, ..tcp4() }.bytes();
    let h = parse(&b[..50], b.len());
    assert_eq!((h.l3(), h.ports(), h.malformed), (L3::None, None, None));
}

#[test]
fn ipv6_extension_headers_are_walked() {
    let options = vec![0, 1, 5, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let ah = vec![0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    let extensions = vec![
        (PROTO_HOP_BY_HOP, options.clone()),
        (PROTO_DEST_OPTS, options.clone()),
        (PROTO_ROUTING, options),
        (PROTO_AH, ah),
    ];
    let frame = Frame { extensions, ..udp6() };
    let h = frame.headers();
    assert_eq!((h.protocol(), h.ports(), h.malformed), (PROTO_UDP, Some((40000, 53)), None));
    assert_eq!(h.l4_offset, Some(54 + 48 + 24));
    // Cut within the headers: the frame is malformed, a snapshot is just short.
    let b = frame.bytes();
    for cut in 54..b.len() - 8 {
        let (frame, snapshot) = (whole(&b[..cut]), parse(&b[..cut], b.len()));
        assert_eq!((frame.ports(), frame.malformed), (None, Some(Malformed::IpLength)), "{cut}");
        assert_eq!(snapshot.malformed, None, "{cut}");
        assert_eq!(snapshot.ports(), (cut >= 54 + 72 + 8).then_some((40000, 53)), "{cut}");
    }
}

#[test]
fn ipv6_walk_is_bounded_and_ends_at_esp_and_none() {
    let padding = (PROTO_DEST_OPTS, vec![0, 0, 1, 4, 0, 0, 0, 0]);
    let h = Frame { extensions: vec![padding.clone(); MAX_EXTENSIONS], ..udp6() }.headers();
    assert_eq!((h.ports(), h.malformed), (Some((40000, 53)), None));
    let h = Frame { extensions: vec![padding.clone(); MAX_EXTENSIONS + 1], ..udp6() }.headers();
    assert_eq!((h.ports(), h.malformed, h.l4_offset), (None, Some(Malformed::Extension), None));
    for protocol in [50, 59] {
        let h = Frame { extensions: vec![padding.clone()], protocol, ..udp6() }.headers();
        assert_eq!((h.protocol(), h.ports(), h.malformed), (protocol, None, None));
    }
    // A header that claims to be longer than the packet.
    let h = Frame { extensions: vec![(PROTO_DEST_OPTS, vec![0, 9, 1, 4, 0, 0, 0, 0])], ..udp6() }.headers();
    assert_eq!((h.ports(), h.malformed, h.protocol()), (None, Some(Malformed::Extension), PROTO_DEST_OPTS));
}

#[test]
fn no_fragment_has_ports() {
    for fragment in [0x2000, 0x2001, 0x0001, 0x1fff] {
        let h = Frame { fragment, ..tcp4() }.headers();
        assert_eq!(
            (h.fragment, h.ports(), h.flow(), h.protocol()),
            (true, None, None, PROTO_TCP),
            "{fragment:#x}"
        );
    }
    assert_eq!(Frame { fragment: 0, ..tcp4() }.headers().ports(), Some((40000, 80)));
    for offset in [[0, 1], [0, 9], [0, 8], [0, 0]] {
        let header = vec![0, 0, offset[0], offset[1], 0, 0, 0, 1];
        let h = Frame { extensions: vec![(PROTO_FRAGMENT, header)], ..udp6() }.headers();
        assert_eq!(
            (h.fragment, h.ports(), h.protocol(), h.l4_offset),
            (true, None, PROTO_UDP, None),
            "{offset:?}"
        );
    }
}

#[test]
fn what_is_not_ip_has_addresses_of_ethernet_only() {
    let mut b = tcp4().bytes();
    b[12..14].copy_from_slice(&ETHERTYPE_ARP.to_be_bytes());
    let h = whole(&b);
    assert_eq!((h.ethertype(), h.l3(), h.src_ip(), h.ports()), (ETHERTYPE_ARP, L3::None, None, None));
    assert_eq!((h.protocol(), h.malformed, h.l3_offset), (0, None, 14));
}

#[test]
fn every_cut_of_a_frame_is_malformed_until_the_ports_are_whole() {
    for frame in [tcp4(), udp6(), Frame { tags: vec![(ETHERTYPE_VLAN, 5)], ..tcp4() }] {
        let b = frame.bytes();
        let l4_end = b.len() - frame.payload;
        for cut in 0..b.len() {
            let h = whole(&b[..cut]);
            assert_eq!(h.ports(), (cut >= l4_end).then_some(frame.ports), "{cut}");
            // Cut exactly after the Ethernet header, the frame has no IP header at all: that is malformed, too.
            assert!(h.malformed.is_some(), "{cut}");
            assert_eq!(h.malformed == Some(Malformed::Runt), cut < 14, "{cut}");
            assert_eq!(h.ethernet(), cut >= 14);
            assert_eq!(parse(&b[..cut], b.len()).malformed, None, "{cut}");
        }
    }
}

#[test]
fn padding_is_not_taken_for_a_header() {
    // Total length covers the IP header and half a UDP header; what looks like the rest is padding.
    let mut b = Frame { protocol: PROTO_UDP, ..tcp4() }.bytes();
    b[16..18].copy_from_slice(&24u16.to_be_bytes());
    let h = whole(&b);
    assert_eq!((h.l3(), h.ports(), h.malformed), (L3::V4, None, Some(Malformed::L4Header)));
    b[16..18].copy_from_slice(&28u16.to_be_bytes());
    assert_eq!((whole(&b).ports(), whole(&b).malformed), (Some((40000, 80)), None));
    b.extend([0; 30]);
    assert_eq!((whole(&b).ports(), whole(&b).malformed), (Some((40000, 80)), None));
}

#[test]
fn a_packet_longer_than_its_frame_is_reported_and_still_has_ports() {
    let mut b = tcp4().bytes();
    b[16..18].copy_from_slice(&1500u16.to_be_bytes());
    assert_eq!((whole(&b).ports(), whole(&b).malformed), (Some((40000, 80)), Some(Malformed::IpLength)));
}

#[test]
fn impossible_headers_yield_nothing() {
    let set = |frame: Frame, at: usize, value: u8| {
        let mut b = frame.bytes();
        b[at] = value;
        whole(&b)
    };
    for (at, value) in [(14, 0x65), (14, 0x44), (14, 0x05), (17, 19)] {
        let h = set(tcp4(), at, value);
        assert_eq!((h.l3(), h.ports(), h.malformed), (L3::None, None, Some(Malformed::Ipv4Header)), "{at}");
    }
    // A header length beyond the total length, and beyond the frame.
    assert_eq!(set(Frame { payload: 0, ..tcp4() }, 14, 0x4f).malformed, Some(Malformed::Ipv4Header));
    let h = set(udp6(), 14, 0x45);
    assert_eq!((h.l3(), h.ports(), h.malformed), (L3::None, None, Some(Malformed::Ipv6Header)));
    let h = set(tcp4(), 46, 0x40);
    assert_eq!((h.l3(), h.ports(), h.malformed), (L3::V4, None, Some(Malformed::L4Header)));
}

#[test]
fn flows_reverse() {
    for frame in [tcp4(), udp6()] {
        let flow = frame.headers().flow().unwrap();
        let back =
            Frame { ips: (frame.ips.1, frame.ips.0), ports: (frame.ports.1, frame.ports.0), ..frame.clone() };
        assert_eq!(flow.reversed(), back.headers().flow().unwrap());
        assert_eq!(flow.reversed().reversed(), flow);
        assert_eq!(FlowKey::new(frame.ips.0, frame.ips.1, frame.protocol, frame.ports), Some(flow));
        assert_eq!((flow.src(), flow.dst()), frame.ips);
        assert_eq!((flow.ports(), flow.protocol()), (frame.ports, frame.protocol));
    }
    assert_eq!(FlowKey::new(tcp4().ips.0, udp6().ips.0, PROTO_TCP, (1, 2)), None);
}

/// Bytes that are likely to lead deep into the parser.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let extension = (
        prop::sample::select(vec![0u8, 43, 44, 51, 60]),
        prop::collection::vec(any::<u8>(), 8..=8).prop_map(|mut b| {
            b[1] %= 2;
            b
        }),
    );
    let frame = (
        any::<bool>(),
        prop::collection::vec(extension, 0..4),
        prop::collection::vec((Just(ETHERTYPE_VLAN), any::<u16>()), 0..3),
        prop::sample::select(vec![PROTO_TCP, PROTO_UDP, 1]),
        (0..=10usize, 0..30usize),
    )
        .prop_map(|(v6, extensions, tags, protocol, (options, payload))| {
            let base = if v6 { udp6() } else { tcp4() };
            Frame { extensions, tags, protocol, options: options * 4, payload, ..base }.bytes()
        });
    let broken = (frame, prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)).prop_map(
        |(mut b, changes)| {
            for (at, value) in changes {
                let at = at.index(b.len());
                b[at] = value;
            }
            b
        },
    );
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..160), 4 => broken]
}

/// IPv4 with UDP or TCP and nothing else, as most frames are.
fn plain_frame(tcp: bool) -> Vec<u8> {
    if tcp { tcp4().bytes() } else { Frame { protocol: PROTO_UDP, ..tcp4() }.bytes() }
}

#[test]
fn plain_frames_go_the_short_way() {
    for tcp in [false, true] {
        let b = plain_frame(tcp);
        assert!(super::plain(super::Frame { head: &b, len: b.len() }, &mut Headers::default()), "{tcp}");
    }
}

proptest! {
    #[test]
    fn nothing_remains_of_the_frame_before(b in plausible(), before in plausible()) {
        let mut h = whole(&before);
        parse_into(&mut h, &b, b.len());
        prop_assert_eq!(h, whole(&b));
    }

    #[test]
    fn the_short_way_finds_what_the_long_way_does(
        b in prop_oneof![plausible(), any::<bool>().prop_map(plain_frame)],
        frame_len in 0..200usize,
        changes in prop::collection::vec((12..60usize, any::<u8>()), 0..3),
    ) {
        let mut b = b;
        for (at, value) in changes {
            if let Some(byte) = b.get_mut(at) {
                *byte = value;
            }
        }
        for len in [frame_len, b.len()] {
            let frame = super::Frame { head: &b[..b.len().min(len)], len };
            let (mut short, mut long) = (parse(&[9; 60], 60), parse(&[9; 60], 60));
            super::general(frame, &mut long);
            if super::plain(frame, &mut short) {
                prop_assert_eq!(short, long);
            }
        }
    }

    #[test]
    fn a_longer_snapshot_only_adds(b in plausible(), extra in 0..64usize) {
        let frame_len = b.len() + extra;
        let full = parse(&b, frame_len);
        for cut in 0..b.len() {
            let h = parse(&b[..cut], frame_len);
            prop_assert!(h.l3() == L3::None || (h.l3(), h.addr(), h.tos()) == (full.l3(), full.addr(), full.tos()));
            prop_assert!(h.ports().is_none() || (h.ports(), h.flow()) == (full.ports(), full.flow()));
            prop_assert!(h.ethertype() == 0 || h.ethertype() == full.ethertype());
            prop_assert!(h.vlan().is_none() || h.vlan() == full.vlan());
            prop_assert!(h.tcp_flags().is_none() || h.tcp_flags() == full.tcp_flags());
            prop_assert!(h.l4_offset.is_none() || h.l4_offset == full.l4_offset);
            prop_assert!(h.malformed.is_none() || h.malformed == full.malformed);
            prop_assert!(!h.fragment || full.fragment);
        }
    }

    #[test]
    fn ports_lie_inside_frame_and_packet(b in plausible(), frame_len in 0..200usize) {
        let h = parse(&b, frame_len);
        if let Some((src, dst)) = h.ports() {
            let at = usize::from(h.l4_offset.unwrap());
            prop_assert!(at + 8 <= b.len().min(frame_len) && !h.fragment);
            prop_assert_eq!(&b[at..at + 4], &[src.to_be_bytes(), dst.to_be_bytes()].concat()[..]);
            let l3 = usize::from(h.l3_offset);
            let length = |i| usize::from(u16::from_be_bytes([b[l3 + i], b[l3 + i + 1]]));
            let end = if h.l3() == L3::V4 { l3 + length(2) } else { l3 + 40 + length(4) };
            prop_assert!(at + 8 <= end);
        }
    }
}
