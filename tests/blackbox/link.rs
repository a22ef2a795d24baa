//! Two and more NICs on one wire.

use flownic::testkit::frame::{self, FrameBuilder, mac};
use flownic::testkit::{Flownic, Guest, Layout, soon};
use flownic::virtio::*;

use crate::FLOWNIC;

/// Features of a driver that takes no offload at all on its receive side.
pub(crate) const PLAIN: &str = "-guest_csum,-guest_tso4,-guest_tso6,-guest_ecn,-guest_uso4,-guest_uso6";

fn pair_of_nics() -> Flownic {
    let nics = ["n0,socket=@/n0,queues=2,port=link:n1", "n1,socket=@/n1,queues=2,port=link:n0"];
    Flownic::serve(FLOWNIC, &["--nic", nics[0], "--nic", nics[1]])
}

fn guests(flownic: &Flownic, features: [&str; 2]) -> [Guest; 2] {
    let connect =
        |(i, f): (usize, &str)| flownic.guest(&format!("n{i}")).queue_pairs(2).features(f).connect().unwrap();
    [connect((0, features[0])), connect((1, features[1]))]
}

fn v4() -> FrameBuilder {
    frame::frame().ip([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
}

fn v6() -> FrameBuilder {
    frame::frame().ip("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap())
}

#[test]
fn frames_cross_both_ways_unchanged() {
    let flownic = pair_of_nics();
    let [mut a, mut b] = guests(&flownic, ["", ""]);
    for i in 0..300 {
        let sent = frame::udp(&format!("10.0.0.1:{}", 1000 + i), "10.0.0.2:9", 18 + i * 29 % 8900);
        a.send_with(i % 2, NetHeader::default(), &sent, &Layout::cut_at(&[12, 500]));
        assert!(b.recv_any(soon()).expect("a frame at b").frame == sent, "frame {i} from a");
        b.send(i % 2, &sent);
        assert!(a.recv_any(soon()).expect("a frame at a").frame == sent, "frame {i} from b");
    }
    assert!(a.fence_to(0, &mut b).is_empty());
    assert_eq!((a.rx(0).has_used(), a.rx(1).has_used()), (false, false), "nothing comes back to its sender");
}

#[test]
fn a_partial_checksum_stays_partial_for_who_takes_it_and_is_completed_for_who_does_not() {
    let flownic = pair_of_nics();
    for (features, completes) in [("", false), (PLAIN, true)] {
        let [mut a, mut b] = guests(&flownic, ["", features]);
        for (frame, offset) in [
            (v4().udp(7, 9).payload(&frame::pattern(333)), 6),
            (v6().udp(7, 9).payload(&frame::pattern(334)), 6),
            (v4().tcp(7, 9).payload(&frame::pattern(501)), 16),
            (v4().vlan(5).tcp(7, 9).payload(&[1]), 16),
            (v4().options(&[1; 8]).udp(7, 9).payload(&[]), 6),
        ] {
            let header = NetHeader {
                flags: HDR_F_NEEDS_CSUM,
                csum_start: frame.transport_start(),
                csum_offset: offset,
                ..NetHeader::default()
            };
            let partial = frame.clone().partial_checksum().build();
            a.send_with(0, header, &partial, &Layout::header_apart());
            let got = b.recv_any(soon()).expect("the frame");
            if completes {
                assert!(got.frame == frame.build(), "completed in software");
                assert_eq!(got.header.flags & HDR_F_NEEDS_CSUM, 0);
            } else {
                assert!(got.frame == partial);
                assert_eq!(got.header.flags, HDR_F_NEEDS_CSUM);
                assert_eq!((got.header.csum_start, got.header.csum_offset), (header.csum_start, offset));
            }
        }
    }
}

/// A TCP frame with `len` bytes of data, as a driver with TSO hands it over.
fn big_tcp(builder: &FrameBuilder, len: usize, gso_type: u8) -> (NetHeader, Vec<u8>) {
    let builder = builder.clone().tcp(7, 9).tcp_flags(0x18).payload(&frame::pattern(len)).partial_checksum();
    let start = builder.transport_start();
    let header = NetHeader {
        flags: HDR_F_NEEDS_CSUM,
        gso_type,
        hdr_len: start + 20,
        gso_size: 1400,
        csum_start: start,
        csum_offset: 16,
        num_buffers: 0,
    };
    (header, builder.build())
}

#[test]
fn large_tcp_crosses_whole_to_who_takes_it() {
    let flownic = pair_of_nics();
    let [mut a, mut b] = guests(&flownic, ["", ""]);
    for (builder, gso) in [(v4(), GSO_TCPV4), (v6(), GSO_TCPV6)] {
        let (header, sent) = big_tcp(&builder, 60000, gso);
        a.send_with(1, header, &sent, &Layout::cut_at(&[12, 5000, 30000]));
        let got = b.recv_any(soon()).expect("the frame");
        assert!(got.frame == sent);
        assert_eq!((got.header.gso_type, got.header.gso_size), (gso, 1400));
        assert_eq!((got.header.flags, got.header.csum_start), (HDR_F_NEEDS_CSUM, header.csum_start));
    }
}

#[test]
fn large_tcp_is_segmented_for_who_does_not_take_it() {
    let flownic = pair_of_nics();
    for features in [PLAIN, "-guest_tso4,-guest_tso6", &format!("{PLAIN},-mrg_rxbuf")] {
        let builder = |i: usize| flownic.guest(&format!("n{i}")).queue_pairs(2);
        let mut a = builder(0).connect().unwrap();
        let mut b = builder(1).features(features).rx_buffer(1526).connect().unwrap();
        for (builder, gso) in [(v4(), GSO_TCPV4), (v6(), GSO_TCPV6), (v4().vlan(9), GSO_TCPV4)] {
            for len in [1401, 2800, 30001] {
                let (header, sent) = big_tcp(&builder, len, gso);
                a.send_with(0, header, &sent, &Layout::cut_at(&[12, 80, 4000]));
                let mut data = Vec::new();
                let count = len.div_ceil(1400);
                for i in 0..count {
                    let got = b
                        .recv_any(soon())
                        .unwrap_or_else(|| panic!("segment {i} of {count} to '{features}'"));
                    assert_eq!(got.header.gso_type, GSO_NONE);
                    let whole =
                        if got.header.flags & HDR_F_NEEDS_CSUM != 0 { complete(&got) } else { got.frame };
                    let segment = frame::verify(&whole).unwrap_or_else(|e| panic!("segment {i}: {e}"));
                    let (seq, flags) = segment.tcp.unwrap();
                    assert_eq!(seq as usize, 1000 + data.len(), "segment {i}");
                    // PSH only on the last one.
                    assert_eq!(flags, if i + 1 == count { 0x18 } else { 0x10 }, "segment {i}");
                    data.extend(segment.payload);
                }
                assert!(data == frame::pattern(len), "{len} bytes to '{features}'");
            }
        }
        assert!(a.fence_to(0, &mut b).is_empty());
    }
}

#[test]
fn only_the_first_segment_keeps_cwr() {
    let flownic = pair_of_nics();
    let [mut a, mut b] = guests(&flownic, ["", PLAIN]);
    let builder = v4().tcp(7, 9).tcp_flags(0x90).payload(&frame::pattern(4000)).partial_checksum();
    let (mut header, _) = big_tcp(&v4(), 4000, GSO_TCPV4 | GSO_ECN);
    header.hdr_len = 54;
    a.send_with(0, header, &builder.build(), &Layout::joined());
    let flags: Vec<u8> = (0..3)
        .map(|i| {
            let got = b.recv_any(soon()).unwrap_or_else(|| panic!("segment {i}"));
            frame::verify(&got.frame).unwrap().tcp.unwrap().1
        })
        .collect();
    assert_eq!(flags, [0x90, 0x10, 0x10]);
}

#[test]
fn large_udp_is_segmented_for_who_does_not_take_it() {
    let flownic = pair_of_nics();
    for builder in [v4(), v6()] {
        let [mut a, mut b] = guests(&flownic, ["", PLAIN]);
        let builder = builder.udp(7, 9).payload(&frame::pattern(3001)).partial_checksum();
        let start = builder.transport_start();
        let header = NetHeader {
            flags: HDR_F_NEEDS_CSUM,
            gso_type: GSO_UDP_L4,
            hdr_len: start + 8,
            gso_size: 1000,
            csum_start: start,
            csum_offset: 6,
            num_buffers: 0,
        };
        a.send_with(0, header, &builder.build(), &Layout::header_apart());
        let mut data = Vec::new();
        for i in 0..4 {
            let got = b.recv_any(soon()).unwrap_or_else(|| panic!("datagram {i}"));
            data.extend(frame::verify(&got.frame).unwrap_or_else(|e| panic!("datagram {i}: {e}")).payload);
        }
        assert!(data == frame::pattern(3001));
    }
}

fn complete(got: &flownic::testkit::Received) -> Vec<u8> {
    let mut frame = got.frame.clone();
    let start = usize::from(got.header.csum_start);
    let at = start + usize::from(got.header.csum_offset);
    let sum = frame::checksum(&[&frame[start..]]);
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn requests_that_make_no_sense_are_dropped_and_counted() {
    let flownic = pair_of_nics();
    let [mut a, mut b] = guests(&flownic, ["", PLAIN]);
    let (good, sent) = big_tcp(&v4(), 5000, GSO_TCPV4);
    let bad = [
        NetHeader { csum_start: 60000, ..good },
        NetHeader { csum_offset: 60000, ..good },
        NetHeader { gso_size: 0, ..good },
        NetHeader { gso_type: 0x33, ..good },
        NetHeader { gso_type: GSO_TCPV6, ..good },
        NetHeader { csum_start: u16::MAX, csum_offset: u16::MAX, ..good },
    ];
    for header in bad {
        a.send_with(0, header, &sent, &Layout::joined());
    }
    let got = a.fence_to(0, &mut b);
    assert!(got.is_empty(), "{} frames arrived", got.len());
    let dropped: u64 = (0..2)
        .map(|q| crate::stats(&flownic, "n1")["rx"][q]["drop_bad_offload"].as_u64().expect("a counter"))
        .sum();
    assert_eq!(dropped, bad.len() as u64);
}

#[test]
fn a_guest_without_a_peer_loses_frames_and_nothing_else() {
    let flownic = pair_of_nics();
    let mut a = flownic.guest("n0").connect().unwrap();
    (0..100).for_each(|_| a.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100)));
    assert!(a.drain_tx(0, soon()));
    let mut b = flownic.guest("n1").connect().unwrap();
    a.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
    assert!(b.recv(0, soon()).is_some());
    assert!(a.fence_to(0, &mut b).is_empty(), "frames sent before it was there");
}

#[test]
fn a_switch_floods_what_it_does_not_know_and_learns() {
    let nics: Vec<String> =
        (0..4).map(|i| format!("n{i},socket=@/n{i},port=link:n{}", (i + 1) % 4)).collect();
    let args: Vec<&str> = nics.iter().flat_map(|n| ["--nic", n.as_str()]).collect();
    let flownic = Flownic::serve(FLOWNIC, &args);
    let mut guests: Vec<Guest> = (0..4).map(|i| flownic.guest(&format!("n{i}")).connect().unwrap()).collect();
    let frame = |from: u8, to: MacAddr| frame::frame().from(mac(from)).to(to).payload(&[from; 60]).build();
    // Who gets a frame: broadcasts from everybody close each round, so that silence shows.
    let round = |guests: &mut Vec<Guest>, from: usize, sent: &[u8]| -> Vec<usize> {
        guests[from].send(0, sent);
        guests[from].send(0, &frame(from as u8 + 10, MacAddr([0xff; 6])));
        let mut got = Vec::new();
        for i in (0..4).filter(|&i| i != from) {
            loop {
                let it = guests[i].recv(0, soon()).expect("the broadcast, at the latest").frame;
                if it[..6] == [0xff; 6] {
                    break;
                }
                assert_eq!(it, sent);
                got.push(i);
            }
        }
        got
    };
    assert_eq!(round(&mut guests, 0, &frame(10, mac(12))), [1, 2, 3], "an unknown address is flooded");
    assert_eq!(round(&mut guests, 2, &frame(12, mac(10))), [0], "0 has been heard");
    assert_eq!(round(&mut guests, 0, &frame(10, mac(12))), [2], "and 2 as well");
    assert_eq!(round(&mut guests, 1, &frame(12, mac(10))), [0], "station 12 moves to 1");
    assert_eq!(round(&mut guests, 0, &frame(10, mac(12))), [1]);
    assert_eq!(
        round(&mut guests, 3, &frame(13, MacAddr([1, 0, 0x5e, 0, 0, 1]))),
        [0, 1, 2],
        "groups are flooded"
    );
}
