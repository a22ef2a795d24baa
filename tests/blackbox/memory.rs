//! Memory tables: translation, hot-plug, the dirty log.

use flownic::testkit::front::PROTOCOL_KNOWN;
use flownic::testkit::memory::PAGE;
use flownic::testkit::proto::{GET_MAX_MEM_SLOTS, PROTOCOL_CONFIGURE_MEM_SLOTS, PROTOCOL_LOG_SHMFD};
use flownic::testkit::{Guest, Layout, Seg, frame, soon};
use flownic::virtio::*;

use crate::{expect_counter, nic, ping, stats};

const PLUGGED: u64 = 0x40_0000_0000;

/// Sends a frame that lies in the plugged region and receives it there.
fn use_plugged(guest: &mut Guest) {
    let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 500);
    let bytes = [&NetHeader::default().to_bytes()[..], &sent].concat();
    let addr = guest.ram.alloc_in(PLUGGED, bytes.len() as u64);
    guest.ram.write(addr, &bytes);
    guest.tx(0).add(&[Seg { addr, len: bytes.len() as u32, writable: false }], false).unwrap();
    guest.flush_tx(0);
    let got = guest.recv(0, soon()).expect("a frame from the new region");
    assert!(got.frame == sent);
    assert!(guest.drain_tx(0, soon()));
}

#[test]
fn rings_and_buffers_spread_over_many_regions() {
    let flownic = nic("queues=2,port=loopback");
    let layout: Vec<(u64, u64)> = (0..8).map(|i| (i * 0x1_1000_0000, 4 << 20)).collect();
    for protocol in [PROTOCOL_KNOWN, PROTOCOL_KNOWN & !PROTOCOL_CONFIGURE_MEM_SLOTS] {
        let builder = flownic.guest("n0").queue_pairs(2).memory(&layout).protocol_features(protocol);
        let mut guest = builder.connect().unwrap();
        for i in 0..300 {
            let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 20 + i * 4);
            guest.send_with(i % 2, NetHeader::default(), &sent, &Layout::cut_at(&[12, 20, 40]));
            assert!(guest.recv_any(soon()).unwrap().frame == sent);
        }
    }
}

#[test]
fn the_first_and_the_last_byte_of_a_region_can_be_used() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    guest.add_memory_region(PLUGGED, 2 * PAGE).unwrap();
    let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 100);
    let bytes = [&NetHeader::default().to_bytes()[..], &sent].concat();
    for addr in [PLUGGED, PLUGGED + 2 * PAGE - bytes.len() as u64] {
        guest.ram.write(addr, &bytes);
        guest.tx(0).add(&[Seg { addr, len: bytes.len() as u32, writable: false }], false).unwrap();
        guest.flush_tx(0);
        assert!(guest.recv(0, soon()).expect("the frame at the edge").frame == sent);
        assert!(guest.tx(0).wait_used(soon()));
        guest.tx(0).take_used().expect("its chain");
    }
    expect_counter(&flownic, ("tx", 0, "drop_malformed"), 0, "both ends are mapped");
}

#[test]
fn memory_is_plugged_and_unplugged_under_traffic() {
    let flownic = nic("queues=1,port=loopback");
    for protocol in [PROTOCOL_KNOWN, PROTOCOL_KNOWN & !PROTOCOL_CONFIGURE_MEM_SLOTS] {
        let mut guest = flownic.guest("n0").protocol_features(protocol).connect().unwrap();
        let mut seen = 0;
        for round in 0..20 {
            // A burst is on its way while the table changes.
            (0..100).for_each(|_| guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 200)));
            guest.add_memory_region(PLUGGED, 1 << 20).unwrap();
            seen += guest.fence(0).len();
            assert_eq!(seen, 100 * (round + 1), "frames of round {round}: {}", stats(&flownic, "n0"));
            use_plugged(&mut guest);
            (0..100).for_each(|_| guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 200)));
            seen -= 100;
            guest.remove_memory_region(PLUGGED).unwrap();
            seen += guest.fence(0).len();
        }
        assert!(guest.drain_tx(0, soon()));
    }
}

#[test]
fn a_chain_into_memory_that_was_unplugged_comes_back_and_harms_nobody() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    guest.add_memory_region(PLUGGED, 1 << 20).unwrap();
    use_plugged(&mut guest);
    guest.remove_memory_region(PLUGGED).unwrap();
    guest.tx(0).add(&[Seg { addr: PLUGGED, len: 100, writable: false }], false).unwrap();
    guest.flush_tx(0);
    assert!(guest.tx(0).wait_used(soon()));
    guest.tx(0).take_used().unwrap();
    expect_counter(&flownic, ("tx", 0, "drop_malformed"), 1, "unplugged");
    ping(&mut guest, 0);
}

#[test]
fn the_dirty_log_has_every_page_that_was_written() {
    let flownic = nic("queues=2,port=loopback");
    for features in ["", "-mrg_rxbuf", "+in_order", "+ring_packed"] {
        let memory = [(0, 8 << 20), (2 << 30, 8 << 20)];
        let builder = flownic.guest("n0").queue_pairs(2).ring_size(64).memory(&memory).features(features);
        let mut guest = builder.rx_buffer(9000).rx_descriptors(3).connect().unwrap();
        ping(&mut guest, 1);
        guest.start_log().unwrap();
        for len in [20, 1400, 8000] {
            guest.send(1, &frame::udp("10.0.0.1:7", "10.0.0.2:9", len));
            let pair = (0..2).find(|&p| guest.rx(p).has_used()).unwrap_or_else(|| wait_any(&mut guest));
            let used = guest.rx(pair).take_used().unwrap();
            let mut left = used.len;
            for seg in &used.segs {
                let written = left.min(seg.len);
                left -= written;
                if written > 0 {
                    let missing = guest.log().unmarked(seg.addr, written.into());
                    assert!(missing.is_empty(), "'{features}': pages {missing:x?} of a receive buffer");
                }
            }
            let slot = u64::from(guest.rx(pair).last_used().wrapping_sub(1) % 64);
            let used_ring = guest.rx(pair).used;
            let split = [("index", used_ring, 4), ("entry", used_ring + 4 + 8 * slot, 8)];
            let packed = [("descriptor", guest.rx(pair).desc, 1024); 2];
            for (what, at, len) in if guest.has(F_RING_PACKED) { packed } else { split } {
                assert!(
                    guest.log().unmarked(at, len).is_empty(),
                    "'{features}': used {what} of receive queue {pair}"
                );
            }
            assert!(guest.drain_tx(1, soon()));
            let returned = if guest.has(F_RING_PACKED) { guest.tx(1).desc } else { guest.tx(1).used };
            assert!(
                guest.log().unmarked(returned, 12).is_empty(),
                "'{features}': used ring of transmit queue 1"
            );
        }
        let marked = guest.log().pages();
        assert!(marked.len() < 60, "'{features}': {} pages are marked, most for nothing", marked.len());
        // The log is off: nothing more is marked, and traffic goes on.
        let log = guest.stop_log().unwrap();
        log.clear();
        ping(&mut guest, 0);
        assert!(log.pages().is_empty());
    }
}

fn wait_any(guest: &mut Guest) -> usize {
    let until = soon();
    loop {
        if let Some(pair) = (0..guest.pairs()).find(|&p| guest.rx(p).has_used()) {
            return pair;
        }
        assert!(std::time::Instant::now() < until, "nothing was received");
        std::thread::yield_now();
    }
}

#[test]
fn memory_that_is_plugged_during_a_migration_is_logged_too() {
    let flownic = nic("queues=1,port=loopback");
    let memory = [(0, 8 << 20), (PLUGGED + (1 << 30), 8 << 20)];
    let mut guest = flownic.guest("n0").memory(&memory).ring_size(4).no_rx_buffers().connect().unwrap();
    guest.start_log().unwrap();
    guest.add_memory_region(PLUGGED, 1 << 20).unwrap();
    let addr = guest.ram.alloc_in(PLUGGED, 2048);
    guest.rx(0).add(&[Seg { addr, len: 2048, writable: true }], false).unwrap();
    guest.rx(0).kick_if_needed();
    guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 200));
    assert!(guest.rx(0).wait_used(soon()));
    assert!(guest.log().unmarked(addr, 200).is_empty());
}

#[test]
fn toggling_the_log_under_traffic_stops_nothing() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let mut seen = 0;
    for _ in 0..20 {
        (0..50).for_each(|_| guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 200)));
        guest.start_log().unwrap();
        (0..50).for_each(|_| guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 200)));
        guest.stop_log().unwrap();
        seen += guest.fence(0).len();
    }
    assert_eq!(seen, 2000);
}

#[test]
fn features_are_set_again_while_rings_run() {
    let flownic = nic("queues=1,port=loopback");
    for protocol in [PROTOCOL_KNOWN, PROTOCOL_KNOWN & !PROTOCOL_LOG_SHMFD] {
        let mut guest = flownic.guest("n0").protocol_features(protocol).connect().unwrap();
        for _ in 0..10 {
            guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 200));
            guest.send_features().unwrap();
            assert_eq!(guest.fence(0).len(), 1);
        }
    }
}

#[test]
fn a_buffer_may_reach_over_two_regions_that_touch() {
    const EDGE: u64 = PLUGGED + (1 << 20);
    let flownic = nic("queues=1,port=loopback");
    for features in ["", "-mrg_rxbuf"] {
        let builder = flownic.guest("n0").features(features).ring_size(4).no_rx_buffers();
        let mut guest = builder.connect().unwrap();
        guest.add_memory_region(PLUGGED, 1 << 20).unwrap();
        guest.add_memory_region(EDGE, 1 << 20).unwrap();
        let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 900);
        let bytes = [&NetHeader::default().to_bytes()[..], &sent].concat();
        let len = bytes.len() as u64;
        for before in [1, 6, 11, 12, 13, 500, len - 1] {
            let (tx, rx) = (EDGE - before, EDGE - len + before);
            guest.ram.write(tx, &bytes);
            guest.tx(0).add(&[Seg { addr: tx, len: len as u32, writable: false }], false).unwrap();
            guest.flush_tx(0);
            assert!(guest.tx(0).wait_used(soon()));
            // Nothing was posted: the frame is gone, and the memory can be used for receiving.
            guest.tx(0).take_used().unwrap();
            guest.rx(0).add(&[Seg { addr: rx, len: len as u32, writable: true }], false).unwrap();
            guest.rx(0).kick_if_needed();
            guest.send(0, &sent);
            assert!(guest.rx(0).wait_used(soon()), "'{features}', {before} bytes before the edge");
            assert_eq!(guest.rx(0).take_used().unwrap().len, len as u32);
            assert!(
                guest.ram.read(rx + 12, sent.len()) == sent,
                "'{features}', {before} bytes before the edge"
            );
            assert!(guest.drain_tx(0, soon()));
        }
        expect_counter(&flownic, ("tx", 0, "drop_malformed"), 0, "regions touch");
    }
}

#[test]
fn memory_comes_and_goes_under_flood() {
    let flownic = nic("queues=2,port=gen:flows=64;size=200");
    let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
    for round in 0..50 {
        guest.add_memory_region(PLUGGED, 1 << 20).unwrap();
        (0..20).for_each(|_| assert!(guest.recv_any(soon()).is_some(), "round {round}"));
        guest.remove_memory_region(PLUGGED).unwrap();
        (0..20).for_each(|_| assert!(guest.recv_any(soon()).is_some(), "round {round}"));
    }
    (0..2).for_each(|q| {
        expect_counter(&flownic, ("rx", q, "ring_faults"), 0, "the rings stayed where they are")
    });
}

#[test]
fn hundreds_of_regions() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let slots = guest.channel().get(GET_MAX_MEM_SLOTS).unwrap().min(300);
    for i in 0..slots - 2 {
        guest.add_memory_region(PLUGGED + i * (2 << 20), 64 << 10).unwrap();
    }
    for i in (0..slots - 2).step_by(37) {
        let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 100);
        let bytes = [&NetHeader::default().to_bytes()[..], &sent].concat();
        let addr = guest.ram.alloc_in(PLUGGED + i * (2 << 20), bytes.len() as u64);
        guest.ram.write(addr, &bytes);
        guest.tx(0).add(&[Seg { addr, len: bytes.len() as u32, writable: false }], false).unwrap();
        guest.flush_tx(0);
        assert!(guest.recv(0, soon()).unwrap_or_else(|| panic!("region {i}")).frame == sent);
        assert!(guest.drain_tx(0, soon()));
    }
}
