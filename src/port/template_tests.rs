use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

fn config(s: &str) -> GenConfig {
    s.parse().unwrap_or_else(|e| panic!("{s}: {e}"))
}

fn error(s: &str) -> String {
    s.parse::<GenConfig>().unwrap_err().to_string()
}

#[test]
fn both_separators_and_every_key_are_understood() {
    assert_eq!(config(""), GenConfig::default());
    let all = "flows=16;size=1514,rate=2M;proto=tcp,ip=6;vlan=7,src-mac=02:00:00:00:00:0a;\
               dst-mac=02:00:00:00:00:0b,src-ip=fd00::1;dst-ip=fd00::2,dst-port=80";
    let expected = GenConfig {
        flows: 16,
        size: 1514,
        rate: Some(2_000_000),
        proto: Proto::Tcp,
        vlan: Some(7),
        src_mac: MacAddr([2, 0, 0, 0, 0, 10]),
        dst_mac: Some(MacAddr([2, 0, 0, 0, 0, 11])),
        src_ip: "fd00::1".parse().unwrap(),
        dst_ip: "fd00::2".parse().unwrap(),
        dst_port: 80,
    };
    assert_eq!(config(all), expected);
    assert_eq!(config("rate=15k").rate, Some(15_000));
    assert_eq!(config("rate=1G").rate, Some(1_000_000_000));
}

#[test]
fn what_is_left_out_fits_what_is_said() {
    assert_eq!(config("ip=6,proto=tcp,vlan=1").size, 78);
    assert_eq!(config("ip=6").src_ip, IpAddr::V6(DEFAULT_V6[0]));
    assert_eq!(config("dst-ip=fd00::9").src_ip, IpAddr::V6(DEFAULT_V6[0]));
    assert_eq!(config("dst-ip=10.0.0.9").src_ip, IpAddr::V4(DEFAULT_V4[0]));
}

#[test]
fn errors_name_the_fault_and_what_is_allowed() {
    for (bad, says) in [
        ("flow=1", "knows no 'flow'; it takes flows, size, rate"),
        ("flows", "'flows' is no key=value"),
        ("flows=1,flows=2", "'flows' is given twice"),
        ("flows=0", "flows=0 is not possible; flows takes 1 to 100000000"),
        ("flows=+1", "flows takes"),
        ("size=59", "size takes 60 to 9216"),
        ("size=9217", "size takes 60 to 9216"),
        ("rate=0", "rate takes 1 to 1000000000"),
        ("rate=99999999999999999G", "rate takes"),
        ("proto=sctp", "proto=sctp is not possible; proto takes udp or tcp"),
        ("ip=5", "ip takes 4 or 6"),
        ("vlan=4095", "vlan takes 1 to 4094"),
        ("dst-mac=02", "dst-mac takes an address like 02:00:00:00:00:01"),
        ("src-ip=10.0.0", "src-ip takes an IPv4 or IPv6 address"),
        ("dst-port=0", "dst-port takes 1 to 65535"),
        ("size=60,proto=tcp,ip=6,vlan=1", "tcp over IPv6 with a VLAN tag takes at least 78"),
        ("ip=4,dst-ip=fd00::1", "src-ip=198.18.0.1, dst-ip=fd00::1 and ip=4 are not of one IP version"),
        ("src-ip=10.0.0.1,dst-ip=fd00::1", "dst-ip=fd00::1 are not of one IP version"),
        ("src-ip=255.255.255.255,flows=50001", "50001 flows need 1 addresses after src-ip=255.255.255.255"),
    ] {
        assert!(error(bad).contains(says), "{bad}: {}", error(bad));
    }
}

/// The fields of a frame that a receiver looks at, found by parsing, with all checksums verified.
fn parse(f: &[u8]) -> (Option<u16>, Proto, Vec<u8>, u16) {
    let be = |at: usize| u16::from_be_bytes([f[at], f[at + 1]]);
    let (vlan, ip) = if be(12) == 0x8100 { (Some(be(14)), 18) } else { (None, 14) };
    let (src, addresses, proto, l4) = match be(ip - 2) {
        0x0800 => {
            assert_eq!(Sum::new().add_bytes(&f[ip..ip + 20]).folded(), 0xffff);
            assert_eq!(usize::from(be(ip + 2)), f.len() - ip);
            (&f[ip + 12..ip + 16], &f[ip + 12..ip + 20], f[ip + 9], ip + 20)
        }
        0x86dd => {
            assert_eq!(usize::from(be(ip + 4)), f.len() - ip - 40);
            (&f[ip + 8..ip + 24], &f[ip + 8..ip + 40], f[ip + 6], ip + 40)
        }
        other => panic!("EtherType {other:#x}"),
    };
    let sum = Sum::new().add_bytes(addresses).add_word(proto.into()).add_long((f.len() - l4) as u32);
    assert_eq!(sum.add_bytes(&f[l4..]).folded(), 0xffff);
    let proto = match proto {
        6 => Proto::Tcp,
        17 => Proto::Udp,
        other => panic!("protocol {other}"),
    };
    if proto == Proto::Udp {
        assert_eq!(usize::from(be(l4 + 4)), f.len() - l4);
        assert_ne!(be(l4 + 6), 0);
    }
    (vlan, proto, src.to_vec(), be(l4))
}

#[test]
fn flows_differ_in_port_and_then_in_address() {
    let mut t = Template::new(&config("flows=100001"));
    let seen: HashSet<_> = [0, 1, 49_999, 50_000, 99_999, 100_000].map(|flow| parse(t.stamp(flow)).2).into();
    assert_eq!(seen, [vec![198, 18, 0, 1], vec![198, 18, 0, 2], vec![198, 18, 0, 3]].into());
    assert_eq!(parse(t.stamp(0)).3, 10_000);
    assert_eq!(parse(t.stamp(49_999)).3, 59_999);
    assert_eq!((parse(t.stamp(50_001)).2, parse(t.stamp(50_001)).3), (vec![198, 18, 0, 2], 10_001));
    assert_eq!(t.stamp(100_001).to_vec(), t.stamp(0).to_vec());
    let mut six = Template::new(&config("flows=100000,ip=6"));
    assert_eq!(parse(six.stamp(99_999)).2[12..], [0, 0, 0, 2]);
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
    let mut t = Template::new(&config("flows=200k"));
    let sums: HashSet<_> = (0..200_000).map(|flow| t.stamp(flow)[40..42].to_vec()).collect();
    assert!(!sums.contains(&vec![0, 0]));
    assert!(sums.contains(&vec![0xff, 0xff]));
}

#[test]
fn mac_addresses_are_local_unless_set() {
    let mut t = Template::new(&GenConfig::default());
    for mac in [&t.stamp(0)[..6].to_vec(), &t.stamp(0)[6..12].to_vec()] {
        assert_eq!(mac[0] & 3, 2);
    }
    let mac = MacAddr([2, 9, 9, 9, 9, 9]);
    assert_eq!(Template::new(&config("dst-mac=02:09:09:09:09:09")).stamp(0)[..6], mac.0);
}

proptest! {
    #[test]
    fn every_frame_has_its_size_and_right_checksums(
        size in 78..MAX_SIZE, tcp in any::<bool>(), ipv6 in any::<bool>(), vlan in prop::option::of(1u16..4095),
        flows in prop::collection::vec(any::<u32>(), 1..5), port in 1u16..,
    ) {
        let proto = if tcp { Proto::Tcp } else { Proto::Udp };
        let vlan_key = vlan.map(|v| format!("vlan={v}")).unwrap_or_default();
        let ip = if ipv6 { 6 } else { 4 };
        let text = format!("flows=100M;size={size};proto={};ip={ip};dst-port={port};{vlan_key}", proto.name());
        let mut t = Template::new(&config(&text));
        for flow in flows {
            let f = t.stamp(flow);
            prop_assert_eq!(f.len(), size);
            let (got_vlan, got_proto, _, sport) = parse(f);
            prop_assert_eq!((got_vlan, got_proto), (vlan, proto));
            prop_assert_eq!(u32::from(sport), 10_000 + flow % MAX_FLOWS % PORTS);
        }
    }
}
