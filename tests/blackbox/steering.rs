//! The queue that steering says, and silence on the others.

use std::collections::BTreeMap;

use flownic::testkit::{Guest, frame, soon};

use crate::{counter, nic};

/// The key of the published verification suite, 40 bytes.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// The suite: source, destination, hash over addresses and TCP ports, hash over addresses alone.
const VECTORS: [(&str, &str, u32, u32); 8] = [
    ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178, 0x323e_8fc2),
    ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea, 0xd718_262a),
    ("24.19.198.95:12898", "12.22.207.184:38024", 0x5c2b_394a, 0xd2d0_a5de),
    ("38.27.205.30:48228", "209.142.163.6:2217", 0xafc7_327f, 0x8298_9176),
    ("153.39.163.191:44251", "202.188.127.2:1303", 0x10e8_28a2, 0x5d18_09c5),
    ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x4020_7d3d, 0x2cc1_8cd5),
    ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0xdde5_1bbf, 0x0f0c_461c),
    (
        "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
        "[fe80::200:f8ff:fe21:67cf]:38024",
        0x02d1_feef,
        0x4b61_e985,
    ),
];

/// Sends frames through transmit queue `tx` of a loopback NIC; where each came back.
fn queues(guest: &mut Guest, tx: usize, frames: &[Vec<u8>]) -> Vec<usize> {
    let mut by_frame: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for sent in frames {
        guest.send(tx, sent);
    }
    for got in guest.fence(tx) {
        assert!(by_frame.insert(got.frame, got.pair).is_none(), "a frame arrived twice");
    }
    frames.iter().map(|f| by_frame.remove(f).expect("every frame arrives")).collect()
}

#[test]
fn flows_land_where_the_published_hash_says() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    // The table has 128 entries, filled with the queues in turn.
    let queue = |hash: u32| hash as usize % 128 % 4;
    let tcp: Vec<_> = VECTORS.iter().map(|v| frame::tcp(v.0, v.1, 40)).collect();
    let expected: Vec<_> = VECTORS.iter().map(|v| queue(v.2)).collect();
    assert_eq!(queues(&mut guest, 0, &tcp), expected, "TCP");
    let udp: Vec<_> = VECTORS.iter().map(|v| frame::udp(v.0, v.1, 40)).collect();
    assert_eq!(queues(&mut guest, 0, &udp), expected, "UDP");
    let other = VECTORS.iter().map(|v| {
        let (src, dst): (std::net::SocketAddr, std::net::SocketAddr) =
            (v.0.parse().unwrap(), v.1.parse().unwrap());
        frame::frame().ip(src.ip(), dst.ip()).protocol(132).payload(&[9; 40]).build()
    });
    let expected: Vec<_> = VECTORS.iter().map(|v| queue(v.3)).collect();
    assert_eq!(queues(&mut guest, 0, &other.collect::<Vec<_>>()), expected, "another protocol");
}

#[test]
fn the_hash_is_toeplitz_for_any_flow() {
    let flownic = nic("queues=8,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(8).connect().unwrap();
    let flows: Vec<_> =
        (0..200u16).map(|i| (format!("10.3.{}.7:{}", i % 50, 999 + i), format!("10.4.0.{i}:80"))).collect();
    let frames: Vec<_> = flows.iter().map(|f| frame::tcp(&f.0, &f.1, 30)).collect();
    let expected: Vec<_> = flows.iter().map(|f| toeplitz(&f.0, &f.1) as usize % 128 % 8).collect();
    assert_eq!(queues(&mut guest, 3, &frames), expected);
    let hashed: u64 = (0..8).map(|q| counter(&flownic, ("rx", q, "by_rss"))).sum();
    assert_eq!(hashed, 200);
}

/// The hash of an IPv4 flow, bit by bit.
fn toeplitz(src: &str, dst: &str) -> u32 {
    let (src, dst): (std::net::SocketAddrV4, std::net::SocketAddrV4) =
        (src.parse().unwrap(), dst.parse().unwrap());
    let mut input = [src.ip().octets(), dst.ip().octets()].concat();
    input.extend(src.port().to_be_bytes());
    input.extend(dst.port().to_be_bytes());
    let window = |bit: usize| {
        (0..32).fold(0u32, |w, i| w << 1 | u32::from(KEY[(bit + i) / 8] >> (7 - (bit + i) % 8) & 1))
    };
    let bits = input.len() * 8;
    (0..bits).filter(|i| input[i / 8] >> (7 - i % 8) & 1 == 1).fold(0, |hash, i| hash ^ window(i))
}

#[test]
fn tags_options_and_extensions_do_not_hide_the_flow() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let v4 = || frame::frame().ip([66, 9, 149, 187].into(), [161, 142, 100, 80].into());
    let v6 =
        || frame::frame().ip("3ffe:2501:200:1fff::7".parse().unwrap(), "3ffe:2501:200:3::1".parse().unwrap());
    let frames = [
        v4().vlan(7).tcp(2794, 1766).payload(&[1; 30]).build(),
        v4().tag(frame::QINQ, 5).vlan(7).tcp(2794, 1766).payload(&[2; 30]).build(),
        v4().options(&[1; 40]).tcp(2794, 1766).payload(&[3; 30]).build(),
        v6().vlan(7).extension(0, &[0; 6]).extension(60, &[0; 14]).tcp(2794, 1766).payload(&[4; 30]).build(),
    ];
    let (q4, q6) = (0x51cc_c178 % 128 % 4, 0x4020_7d3d % 128 % 4);
    assert_eq!(queues(&mut guest, 1, &frames), [q4, q4, q4, q6]);
}

#[test]
fn fragments_go_by_their_addresses_and_stay_together() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    for (src, dst, _, hash) in [VECTORS[0], VECTORS[1], VECTORS[5]] {
        let (src, dst): (std::net::SocketAddr, std::net::SocketAddr) =
            (src.parse().unwrap(), dst.parse().unwrap());
        let base = frame::frame().ip(src.ip(), dst.ip()).udp(src.port(), dst.port());
        let frames = [
            base.clone().fragment(0, true).payload(&[1; 96]).build(),
            base.clone().fragment(13, true).payload(&[2; 96]).build(),
            base.fragment(25, false).payload(&[3; 20]).build(),
        ];
        assert_eq!(queues(&mut guest, 0, &frames), [hash as usize % 128 % 4; 3]);
    }
}

#[test]
fn what_has_no_flow_goes_to_queue_0() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let udp = frame::udp("10.0.0.1:7", "10.0.0.2:9", 60);
    let mut frames = vec![
        frame::arp([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
        frame::frame().ether_type(0x88cc).payload(&[4; 60]).build(),
        frame::frame().vlan(7).ether_type(0x0801).payload(&[5; 60]).build(),
        udp[..20].to_vec(),
        udp[..14].to_vec(),
    ];
    let mut version = udp.clone();
    version[14] = 0x65;
    frames.push(version);
    assert_eq!(queues(&mut guest, 2, &frames), [0; 6]);
}

#[test]
fn a_truncated_transport_header_has_no_ports_and_no_frame_is_lost() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    for whole in [frame::tcp(VECTORS[0].0, VECTORS[0].1, 40), frame::udp(VECTORS[5].0, VECTORS[5].1, 40)] {
        let frames: Vec<_> = (14..whole.len()).map(|len| whole[..len].to_vec()).collect();
        assert_eq!(queues(&mut guest, 0, &frames).len(), frames.len());
    }
}

#[test]
fn a_flow_that_the_guest_sends_comes_back_on_its_own_queue() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let answer = |n: u8| frame::tcp("10.9.0.2:80", "10.9.0.1:5000", 30 + usize::from(n));
    for (n, queue) in [3, 1, 2, 0, 3].into_iter().enumerate() {
        // The guest talks on one queue; the answer comes in on the same one, wherever it was before.
        guest.send(queue, &frame::tcp("10.9.0.1:5000", "10.9.0.2:80", 10));
        guest.fence(queue);
        assert_eq!(queues(&mut guest, 0, &[answer(n as u8)]), [queue], "round {n}");
    }
    let learned: u64 = (0..4).map(|q| counter(&flownic, ("rx", q, "by_learned"))).sum();
    assert!(learned >= 5, "{learned}");
}

#[test]
fn a_shrunk_guest_gets_everything_on_the_queues_that_are_left() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let frames: Vec<_> =
        (0..100).map(|i| frame::tcp(&format!("10.0.0.1:{}", 100 + i), "10.0.0.2:9", 30)).collect();
    guest.send(3, &frame::tcp("10.0.0.2:9", "10.0.0.1:150", 30));
    guest.fence(3);
    assert_eq!(queues(&mut guest, 0, &frames)[50], 3, "learned");
    (1..4).for_each(|pair| guest.enable(pair, false).unwrap());
    assert_eq!(queues(&mut guest, 0, &frames), [0; 100]);
    (1..4).for_each(|pair| guest.enable(pair, true).unwrap());
    assert!(queues(&mut guest, 0, &frames).iter().any(|&q| q != 0));
    assert!(guest.drain_tx(0, soon()));
}
