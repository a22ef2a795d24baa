//! Frames through the rings, in every shape that a driver may give them.

use flownic::testkit::{Guest, Layout, frame, soon};
use flownic::virtio::*;

use crate::{FORMATS, counter, expect_counter, nic, ping};

/// Ways to lay out header and frame; the frames of this file have 60 bytes or more.
fn layouts() -> Vec<Layout> {
    let cuts: [&[usize]; 8] =
        [&[], &[12], &[1], &[11, 13], &[6, 12], &[12, 26, 46], &[13, 14, 15, 16, 17], &[12, 71]];
    let plain = cuts.iter().map(|c| Layout::cut_at(c));
    plain.clone().map(|l| l.skewed(1)).chain(plain.clone().map(Layout::indirect)).chain(plain).collect()
}

/// Sends frames of many sizes in all layouts through all pairs; what comes back must be the same, byte for byte.
fn check_loopback(guest: &mut Guest, rounds: usize) {
    let mut total = 0;
    for round in 0..rounds {
        for layout in layouts() {
            total += 1;
            let layout = Layout { indirect: layout.indirect && guest.indirect(), ..layout };
            let sent =
                frame::udp(&format!("10.1.0.{}:7", total % 200), "10.0.0.2:9", 18 + (total * 53) % 1400);
            guest.send_with(total % guest.pairs(), NetHeader::default(), &sent, &layout);
            let got = guest
                .recv_any(soon())
                .unwrap_or_else(|| panic!("round {round}, {layout:?}: nothing came back"));
            assert!(
                got.frame == sent,
                "round {round}, {layout:?}: {} bytes in, {} out",
                sent.len(),
                got.frame.len()
            );
        }
    }
    (0..guest.pairs())
        .for_each(|pair| assert!(guest.drain_tx(pair, soon()), "transmit queue {pair} keeps buffers"));
}

#[test]
fn every_layout_with_every_ring_feature() {
    let flownic = nic("queues=2,port=loopback");
    for bits in 0..32 {
        let names = ["-mrg_rxbuf", "-indirect_desc", "-event_idx", "+in_order", "+ring_packed"];
        let list: Vec<&str> = (0..5).filter(|b| bits >> b & 1 == 1).map(|b| names[b]).collect();
        let mut guest = flownic.guest("n0").queue_pairs(2).features(&list.join(",")).connect().unwrap();
        check_loopback(&mut guest, 1);
    }
}

#[test]
fn every_ring_size_and_the_wrap_of_the_index() {
    let flownic = nic("queues=1,port=loopback");
    for bits in [3, 4, 6, 8, 10, 12, 15] {
        for features in ["", "-event_idx", "+in_order"] {
            let builder = flownic.guest("n0").ring_size(1 << bits).features(features);
            let builder = builder.rx_buffer(2048).memory(&[(0, 128 << 20), (4 << 30, 128 << 20)]);
            let mut guest = builder.first_index(0xffff - 40).connect().unwrap();
            check_loopback(&mut guest, 4);
            assert!(guest.tx(0).next_avail() < 0x8000, "the index has wrapped");
        }
    }
}

#[test]
fn packed_rings_of_any_size_round_and_round() {
    let flownic = nic("queues=1,port=loopback");
    for (size, first) in [(7, 0), (8, 5), (9, 8), (100, 99), (255, 0), (1000, 990)] {
        for features in ["+ring_packed", "+ring_packed,-event_idx", "+ring_packed,+in_order,-mrg_rxbuf"] {
            let builder = flownic.guest("n0").ring_size(size).features(features).rx_buffer(2048);
            check_loopback(&mut builder.first_index(first).connect().unwrap(), 4);
        }
    }
}

#[test]
fn a_ring_of_two_descriptors() {
    let flownic = nic("queues=1,port=loopback");
    for features in FORMATS {
        let mut guest = flownic.guest("n0").ring_size(2).features(features).connect().unwrap();
        for len in 18..60 {
            let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", len);
            guest.send_with(0, NetHeader::default(), &sent, &Layout::header_apart());
            assert!(guest.recv(0, soon()).unwrap().frame == sent);
        }
    }
}

#[test]
fn one_to_eight_pairs() {
    for pairs in 1..=8 {
        let flownic = nic(&format!("queues={pairs},port=loopback"));
        let mut guest = flownic.guest("n0").queue_pairs(pairs).ring_size(64).connect().unwrap();
        check_loopback(&mut guest, 2);
        assert!((0..pairs).all(|q| counter(&flownic, ("tx", q, "packets")) > 0));
    }
}

#[test]
fn as_many_pairs_as_there_can_be() {
    let flownic = nic("queues=127,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(127).ring_size(16).connect().unwrap();
    for pair in 0..127 {
        flownic.ctl(&[
            "flows",
            "add",
            "flow-type",
            "udp4",
            "dst-port",
            "4001",
            "action",
            &pair.to_string(),
            "loc",
            "0",
        ]);
        assert_eq!(ping(&mut guest, pair).pair, pair);
    }
}

#[test]
fn legacy_drivers_have_a_header_of_ten_bytes() {
    let flownic = nic("queues=1,port=loopback");
    for features in FORMATS {
        let guest = flownic.guest("n0").features("-version_1,-mrg_rxbuf").features(features);
        let mut guest = guest.connect().unwrap();
        assert_eq!(guest.header_len(), 10);
        check_loopback(&mut guest, 1);
    }
}

#[test]
fn random_sizes_up_to_64_kib_byte_for_byte_into_merged_buffers() {
    let flownic = nic("queues=1,port=loopback");
    for rx_buffer in [600, 1526, 4096] {
        let mut guest = flownic.guest("n0").rx_buffer(rx_buffer).ring_size(256).connect().unwrap();
        let mut seed = 12345u32;
        for _ in 0..60 {
            seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
            let sent = frame::frame().payload(&frame::pattern(46 + (seed >> 8) as usize % 65500)).build();
            guest.send_with(0, NetHeader::default(), &sent, &Layout::cut_at(&[12, 4108, 8204, 30000]));
            let got = guest.recv(0, soon()).unwrap_or_else(|| panic!("{} bytes are lost", sent.len()));
            assert!(
                got.frame == sent,
                "{} bytes, {} buffers of {rx_buffer}",
                sent.len(),
                got.header.num_buffers
            );
            let least = (sent.len() + 12).div_ceil(rx_buffer as usize);
            assert_eq!(usize::from(got.header.num_buffers), least, "no buffer more than it takes");
        }
    }
}

#[test]
fn receive_buffers_may_be_chains() {
    let flownic = nic("queues=1,port=loopback");
    for (features, buffer, descs) in
        [("-mrg_rxbuf", 70000, 19), ("-mrg_rxbuf", 1600, 2), ("", 900, 3), ("", 64, 4)]
    {
        let builder = flownic.guest("n0").features(features).rx_buffer(buffer).rx_descriptors(descs);
        let mut guest = builder.connect().unwrap();
        check_loopback(&mut guest, 1);
    }
}

#[test]
fn a_burst_larger_than_the_ring_comes_back_complete_and_in_order() {
    let flownic = nic("queues=1,port=loopback");
    for features in ["", "-event_idx"] {
        let mut guest = flownic.guest("n0").ring_sizes(1024, 64).features(features).connect().unwrap();
        for batch in [1, 7, 32, 33, 64] {
            let mut sent = Vec::new();
            for i in 0..600 {
                sent.push(frame::udp(&format!("10.0.0.1:{}", 1 + i), "10.0.0.2:9", 20 + i % 500));
                guest.queue_tx(0, NetHeader::default(), &sent[i], &Layout::joined());
                if i % batch == batch - 1 {
                    guest.flush_tx(0);
                }
            }
            guest.flush_tx(0);
            for (i, sent) in sent.iter().enumerate() {
                let got = guest
                    .recv(0, soon())
                    .unwrap_or_else(|| panic!("frame {i} of batches of {batch} is lost"));
                assert!(got.frame == *sent, "frame {i} of batches of {batch}");
            }
        }
    }
}

#[test]
fn echo_swaps_the_mac_addresses_and_nothing_else() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let sent = frame::frame()
        .vlan(7)
        .ip([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
        .udp(1, 2)
        .payload(&[5; 70])
        .build();
    guest.send(0, &sent);
    let got = guest.recv(0, soon()).unwrap().frame;
    assert_eq!((&got[..6], &got[6..12]), (&sent[6..12], &sent[..6]));
    assert_eq!(got[12..], sent[12..]);
}

#[test]
fn null_takes_everything_and_gives_nothing() {
    let flownic = nic("queues=2,port=null");
    let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
    for i in 0..500 {
        guest.send(i % 2, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
    }
    (0..2).for_each(|pair| assert!(guest.drain_tx(pair, soon())));
    assert_eq!((guest.rx(0).used_idx(), guest.rx(1).used_idx()), (0, 0));
    assert_eq!(counter(&flownic, ("tx", 0, "packets")) + counter(&flownic, ("tx", 1, "packets")), 500);
}

#[test]
fn gen_makes_valid_frames_of_the_size_asked_for() {
    let flownic = nic("queues=4,port=gen:flows=16;size=60");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let mut queues = std::collections::BTreeSet::new();
    let mut flows = std::collections::BTreeSet::new();
    for _ in 0..400 {
        let got = guest.recv_any(soon()).expect("a generated frame");
        let parsed = frame::verify(&got.frame).unwrap();
        assert_eq!(got.frame.len(), 60);
        queues.insert(got.pair);
        flows.insert((parsed.addrs, parsed.ports));
    }
    assert!(queues.len() > 1, "16 flows land on {queues:?}");
    assert!((2..=16).contains(&flows.len()), "{} flows", flows.len());
}

#[test]
fn frames_without_a_buffer_are_dropped_counted_and_do_not_stop_the_rest() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").no_rx_buffers().connect().unwrap();
    (0..10).for_each(|_| guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100)));
    assert!(guest.drain_tx(0, soon()));
    expect_counter(&flownic, ("rx", 0, "drop_no_buffer"), 10, "no buffers were posted");
    guest.fill_rx(0);
    ping(&mut guest, 0);
}

#[test]
fn a_frame_that_fits_no_buffer_is_dropped_and_the_buffer_stays() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").features("-mrg_rxbuf").rx_buffer(500).connect().unwrap();
    guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 1000));
    let small = frame::udp("10.0.0.1:7", "10.0.0.2:9", 446);
    assert_eq!(small.len() + 12, 500);
    guest.send(0, &small);
    assert!(guest.recv(0, soon()).unwrap().frame == small);
    expect_counter(&flownic, ("rx", 0, "drop_buffer_too_small"), 1, "500 bytes do not hold 1000");
    let mut guest = {
        drop(guest);
        flownic.guest("n0").rx_buffer(500).ring_size(4).connect().unwrap()
    };
    guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 4000));
    guest.send(0, &small);
    assert!(guest.recv(0, soon()).unwrap().frame == small, "four buffers of 500 bytes do not hold 4000");
}
