use proptest::prelude::*;

use super::*;
use crate::packet::frames::{Frame, tcp4, udp6};

fn rss(hash_types: u32) -> Rss {
    Rss::new(RssConfig { hash_types, ..RssConfig::default() }, TABLE_DEFAULT)
}

/// Source, source port, destination, destination port, hash of addresses and ports, hash of addresses.
const PUBLISHED: [(&str, u16, &str, u16, u32, u32); 8] = [
    ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x51cc_c178, 0x323e_8fc2),
    ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xc626_b0ea, 0xd718_262a),
    ("24.19.198.95", 12898, "12.22.207.184", 38024, 0x5c2b_394a, 0xd2d0_a5de),
    ("38.27.205.30", 48228, "209.142.163.6", 2217, 0xafc7_327f, 0x8298_9176),
    ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x10e8_28a2, 0x5d18_09c5),
    ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x4020_7d3d, 0x2cc1_8cd5),
    ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0xdde5_1bbf, 0x0f0c_461c),
    (
        "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
        44251,
        "fe80::200:f8ff:fe21:67cf",
        38024,
        0x02d1_feef,
        0x4b61_e985,
    ),
];

#[test]
fn the_published_vectors_hold() {
    use HashReport::{Ipv4, Ipv6, TcpV4, TcpV6, UdpV4, UdpV6};
    for (src, src_port, dst, dst_port, with_ports, without) in PUBLISHED {
        let [tcp, udp] =
            [PROTO_TCP, PROTO_UDP].map(|p| Frame::new(src, dst, p, (src_port, dst_port)).headers());
        let v6 = src.contains(':');
        let reports = if v6 { [TcpV6, UdpV6, Ipv6] } else { [TcpV4, UdpV4, Ipv4] };
        let all = rss(hash_type::SUPPORTED);
        assert_eq!(all.hash(&tcp), Some((with_ports, reports[0])), "{src}");
        assert_eq!(all.hash(&udp), Some((with_ports, reports[1])), "{src}");
        let ip = rss(hash_type::IPV4 | hash_type::IPV6);
        assert_eq!(ip.hash(&tcp), Some((without, reports[2])), "{src}");
        assert_eq!(ip.hash(&udp), Some((without, reports[2])), "{src}");
    }
}

#[test]
fn each_hash_type_has_its_own_packets() {
    let udp4 = Frame { protocol: PROTO_UDP, ..tcp4() };
    let tcp6 = Frame { protocol: PROTO_TCP, ..udp6() };
    let packets = [tcp4(), udp4, tcp6, udp6()].map(|f| f.headers());
    let hashed = |types| packets.each_ref().map(|h| rss(types).hash(h).is_some());
    assert_eq!(hashed(0), [false; 4]);
    assert_eq!(hashed(hash_type::TCPV4), [true, false, false, false]);
    assert_eq!(hashed(hash_type::UDPV4), [false, true, false, false]);
    assert_eq!(hashed(hash_type::TCPV6), [false, false, true, false]);
    assert_eq!(hashed(hash_type::UDPV6), [false, false, false, true]);
    assert_eq!(hashed(hash_type::IPV4), [true, true, false, false]);
    assert_eq!(hashed(hash_type::IPV6), [false, false, true, true]);
}

#[test]
fn all_fragments_of_a_datagram_hash_alike() {
    let rss = rss(hash_type::SUPPORTED);
    let [first, last] = [0x2000, 0x0010].map(|fragment| Frame { fragment, ..tcp4() }.headers());
    assert_eq!(rss.hash(&first), rss.hash(&last));
    assert_eq!(rss.hash(&first).unwrap().1, HashReport::Ipv4);
}

#[test]
fn the_default_table_spreads_over_what_is_enabled() {
    let mut rss = Rss::new(RssConfig::default(), 8);
    rss.update(&[0, 1, 2]);
    assert_eq!(rss.effective_table(), [0, 1, 2, 0, 1, 2, 0, 1]);
    rss.update(&[1, 5]);
    assert_eq!(rss.effective_table(), [1, 5, 1, 5, 1, 5, 1, 5]);
    assert_eq!(rss.table(4), [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn a_configured_table_keeps_its_entries_and_spreads_the_others() {
    let table = vec![3, 2, 3, 2, 0, 0, 3, 3];
    let mut rss = Rss::new(RssConfig { table: Some(table.clone()), ..RssConfig::default() }, 128);
    rss.update(&[0, 1, 2]);
    assert_eq!(rss.effective_table(), [0, 2, 2, 2, 0, 0, 0, 1]);
    rss.update(&[0, 1, 2, 3]);
    assert_eq!(rss.effective_table(), table);
}

#[test]
fn impossible_configurations_are_refused() {
    let check = |config: RssConfig| Rss::check(&config, 4);
    let base = RssConfig::default();
    assert_eq!(check(base.clone()), Ok(()));
    for length in [0, 3, 8192] {
        let table = Some(vec![0; length]);
        assert_eq!(check(RssConfig { table, ..base.clone() }), Err(RssError::TableLength(length)));
    }
    let table = Some(vec![0, 1, 4, 0]);
    let refused = Err(RssError::Queue { entry: 2, queue: 4, last: 3 });
    assert_eq!(check(RssConfig { table, ..base.clone() }), refused);
    let refused = Err(RssError::Unclassified { queue: 4, last: 3 });
    assert_eq!(check(RssConfig { unclassified: 4, ..base.clone() }), refused);
    assert_eq!(check(RssConfig { hash_types: 0x41, ..base }), Err(RssError::HashTypes(0x40)));
    assert_eq!(RssKey::new(&[0; 39]), Err(RssError::KeyLength(39)));
    assert_eq!(RssKey::new(&[0; 53]), Err(RssError::KeyLength(53)));
}

/// The definition: for every bit of the input that is set, the 32 key bits from its position on.
fn bit_by_bit(key: &[u8], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], i: usize| u32::from(bytes[i / 8] >> (7 - i % 8) & 1);
    (0..input.len() * 8)
        .filter(|&i| bit(input, i) == 1)
        .fold(0, |hash, i| hash ^ (i..i + 32).fold(0, |window, k| window << 1 | bit(key, k)))
}

proptest! {
    #[test]
    fn tables_agree_with_the_definition(
        key in prop::collection::vec(any::<u8>(), KEY_MIN..=KEY_MAX),
        input in prop::array::uniform32(any::<u8>()),
        ports in any::<(u16, u16)>(),
        v6: bool,
    ) {
        let toeplitz = Toeplitz::new(&RssKey::new(&key).unwrap());
        let (words, _) = input.as_chunks::<8>();
        let addr: [u64; 4] = std::array::from_fn(|i| u64::from_be_bytes(words[i]));
        let (l3, used) = if v6 { (L3::V6, 32) } else { (L3::V4, 8) };
        let bytes = [&input[..used], &ports.0.to_be_bytes(), &ports.1.to_be_bytes()].concat();
        prop_assert_eq!(toeplitz.addresses(l3, &addr), bit_by_bit(&key, &bytes[..used]));
        prop_assert_eq!(toeplitz.addresses(l3, &addr) ^ toeplitz.ports(l3, ports), bit_by_bit(&key, &bytes));
    }
}
