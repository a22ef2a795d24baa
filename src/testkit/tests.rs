//! The kit against the reference back end.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use super::reference::Reference;
use super::ring::{DESC_NEXT, DESC_WRITE};
use super::*;
use crate::virtio::*;

const ALL: u64 = F_VERSION_1 | F_MRG_RXBUF | F_INDIRECT_DESC | F_EVENT_IDX | F_MQ;

fn layouts() -> Vec<Layout> {
    let cuts: [&[usize]; 6] = [&[], &[12], &[1], &[11, 13], &[12, 26, 46], &[5, 12, 13, 14, 50, 51]];
    let plain = cuts.iter().map(|c| Layout::cut_at(c));
    plain.clone().chain(plain.map(|l| l.indirect().skewed(3))).collect()
}

fn check_echo(guest: &mut Guest, rounds: usize) {
    for round in 0..rounds {
        for (i, layout) in layouts().iter().enumerate() {
            let layout =
                if guest.indirect() { layout.clone() } else { Layout { indirect: false, ..layout.clone() } };
            let pair = (round + i) % guest.pairs();
            let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 20 + 97 * i + round);
            guest.send_with(pair, NetHeader::default(), &sent, &layout);
            let got = guest.recv(pair, soon()).expect("an echo");
            assert_eq!(got.frame, sent, "round {round}, {layout:?}");
        }
    }
    for pair in 0..guest.pairs() {
        assert!(guest.drain_tx(pair, soon()));
    }
}

#[test]
fn every_layout_comes_back_with_every_feature_set_and_across_the_index_wrap() {
    let sets = ["", "-event_idx", "-indirect_desc", "-mrg_rxbuf", "-event_idx,-indirect_desc,-mrg_rxbuf"];
    let reference = Reference::start(2, ALL, sets.len());
    for set in sets {
        let builder = Guest::builder(reference.socket()).queue_pairs(2).ring_size(16).features(set);
        let mut guest = builder.first_index(0xfff0).rx_buffer(3000).connect().unwrap();
        assert_eq!(guest.queue_num, 4);
        check_echo(&mut guest, 8);
    }
    reference.finish();
}

#[test]
fn a_long_frame_is_put_together_from_many_buffers() {
    let reference = Reference::start(1, ALL, 1);
    let mut guest = Guest::builder(reference.socket()).ring_size(64).rx_buffer(2048).connect().unwrap();
    let sent = frame::pattern(65000);
    guest.send_with(0, NetHeader::default(), &sent, &Layout::cut_at(&[12, 4096, 40000]));
    let got = guest.recv(0, soon()).unwrap();
    assert_eq!((got.header.num_buffers, got.frame == sent), (65012u32.div_ceil(2048) as u16, true));
    drop(guest);
    reference.finish();
}

#[test]
fn buffers_may_be_chains_of_descriptors() {
    let reference = Reference::start(1, ALL & !F_MRG_RXBUF, 1);
    let mut guest = Guest::builder(reference.socket()).rx_buffer(1600).rx_descriptors(5).connect().unwrap();
    assert_eq!(guest.rx(0).in_flight(), 51);
    check_echo(&mut guest, 12);
    drop(guest);
    reference.finish();
}

#[test]
fn signals_come_when_wanted_and_only_then() {
    for set in ["", "-event_idx"] {
        let reference = Reference::start(1, ALL, 1);
        let mut guest = Guest::builder(reference.socket()).features(set).connect().unwrap();
        guest.rx(0).want_signals(false);
        guest.tx(0).want_signals(false);
        (0..40).for_each(|_| guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 30)));
        assert!(guest.rx(0).wait_used_count(40, soon()));
        assert_eq!(guest.rx(0).signals(), 0, "{set}");
        while guest.try_recv(0).is_some() {}
        guest.rx(0).want_signals(true);
        guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 30));
        assert!(guest.recv(0, soon()).is_some());
        assert!(guest.fence(0).is_empty());
        assert!(guest.rx(0).signals() > 0, "{set}");
        drop(guest);
        reference.finish();
    }
}

#[test]
fn stop_returns_the_base_and_restart_goes_on() {
    let reference = Reference::start(1, ALL, 1);
    let mut guest = Guest::builder(reference.socket()).connect().unwrap();
    check_echo(&mut guest, 2);
    let bases = guest.stop().unwrap();
    assert_eq!(bases, [guest.rx(0).last_used(), guest.tx(0).last_used()]);
    guest.restart(&bases).unwrap();
    check_echo(&mut guest, 2);
    guest.reboot().unwrap();
    assert_eq!(guest.rx(0).last_used(), 0);
    check_echo(&mut guest, 1);
    drop(guest);
    reference.finish();
}

#[test]
fn another_driver_takes_over_with_other_rings_and_features() {
    let reference = Reference::start(2, ALL, 1);
    let mut guest = Guest::builder(reference.socket()).queue_pairs(2).connect().unwrap();
    check_echo(&mut guest, 1);
    for (size, features) in [(16, "-event_idx"), (512, "+event_idx,-mrg_rxbuf"), (64, "+mrg_rxbuf")] {
        guest.change_driver(|b| b.ring_size(size).features(features).rx_buffer(2048)).unwrap();
        assert_eq!((guest.tx(1).size, guest.has(F_EVENT_IDX)), (size, size != 16));
        check_echo(&mut guest, 1);
    }
    drop(guest);
    reference.finish();
}

#[test]
fn a_guest_reconnects_where_its_rings_stood() {
    let reference = Reference::start(1, ALL, 3);
    let mut guest = Guest::builder(reference.socket()).connect().unwrap();
    for _ in 0..2 {
        check_echo(&mut guest, 1);
        guest.disconnect();
        guest.connect().unwrap();
    }
    check_echo(&mut guest, 1);
    drop(guest);
    reference.finish();
}

#[test]
fn the_dirty_log_covers_what_the_back_end_wrote() {
    let reference = Reference::start(1, ALL, 1);
    let memory = [(0, 8 << 20), (1 << 30, 8 << 20)];
    let mut guest = Guest::builder(reference.socket()).memory(&memory).connect().unwrap();
    guest.start_log().unwrap();
    guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 30));
    assert!(guest.rx(0).wait_used(soon()));
    let used = guest.rx(0).take_used().unwrap();
    assert!(guest.log().unmarked(used.segs[0].addr, used.len.into()).is_empty());
    let used_ring = guest.rx(0).used;
    assert!(guest.log().unmarked(used_ring, 12).is_empty());
    let log = guest.stop_log().unwrap();
    log.clear();
    assert!(log.pages().is_empty());
    drop(guest);
    reference.finish();
}

#[test]
fn memory_comes_and_goes_one_region_at_a_time_or_as_a_table() {
    for protocol in [front::PROTOCOL_KNOWN, front::PROTOCOL_KNOWN & !proto::PROTOCOL_CONFIGURE_MEM_SLOTS] {
        let reference = Reference::start(1, ALL, 1);
        let mut guest = Guest::builder(reference.socket()).protocol_features(protocol).connect().unwrap();
        guest.add_memory_region(0x30_0000_0000, 1 << 20).unwrap();
        let addr = guest.ram.alloc_in(0x30_0000_0000, 200);
        guest.ram.write(addr, &[&NetHeader::default().to_bytes()[..], &frame::pattern(188)].concat());
        guest.tx(0).add(&[Seg { addr, len: 200, writable: false }], false).unwrap();
        guest.flush_tx(0);
        assert_eq!(guest.recv(0, soon()).unwrap().frame, frame::pattern(188));
        assert!(guest.drain_tx(0, soon()));
        guest.remove_memory_region(0x30_0000_0000).unwrap();
        check_echo(&mut guest, 1);
        drop(guest);
        reference.finish();
    }
}

#[test]
fn a_back_end_may_be_the_client_and_unknown_requests_end_the_connection() {
    let dir = process::TempDir::new();
    let path = dir.path().join("listen");
    let mut guest = Guest::builder(&path).listen().unwrap().unconnected();
    let backend = std::os::unix::net::UnixStream::connect(&path).unwrap();
    guest.open().unwrap();
    assert!(!guest.channel().closed_by(Instant::now()));
    drop(backend);
    assert!(guest.channel().closed_by(soon()));
    assert!(matches!(guest.negotiate(), Err(proto::ProtoError::Socket { request: "GET_FEATURES", .. })));
}

#[test]
fn raw_descriptors_reach_the_device_as_written() {
    let reference = Reference::start(1, ALL, 1);
    let mut guest = Guest::builder(reference.socket()).connect().unwrap();
    let bytes = [&NetHeader::default().to_bytes()[..], &[9; 50]].concat();
    let addr = guest.ram.alloc(62);
    guest.ram.write(addr, &bytes);
    let tx = guest.tx(0);
    tx.write_desc(200, Desc { addr, len: 12, flags: DESC_NEXT, next: 7 });
    tx.write_desc(7, Desc { addr: addr + 12, len: 50, flags: 0, next: 0 });
    tx.offer_raw(200);
    assert!(tx.wait_used(soon()));
    assert_eq!(tx.take_used_raw(), Some((200, 0)));
    assert_eq!(guest.recv(0, soon()).unwrap().frame, [9; 50]);
    assert_eq!(
        Desc { addr: 1, len: 2, flags: DESC_WRITE, next: 3 }.to_bytes()[8..],
        [2, 0, 0, 0, 2, 0, 3, 0]
    );
    drop(guest);
    reference.finish();
}

#[test]
fn a_kick_is_left_out_when_the_device_does_not_want_it() {
    let ram = std::sync::Arc::new(memory::Ram::new(&[(0, 1 << 20)]));
    let seg = |ram: &memory::Ram| [Seg { addr: ram.alloc(64), len: 64, writable: false }];
    for event_idx in [true, false] {
        let mut ring = Ring::new(ram.clone(), 1, 8, if event_idx { F_EVENT_IDX } else { 0 });
        ring.reset(0xfffe);
        // The device last asked to hear of entry 0xfffe, the next one; then of one five further on.
        let ask = |ring: &Ring, flags: u16, event: u16| {
            ram.store16(ring.used, flags);
            ram.store16(ring.used + 4 + 8 * 8, event);
        };
        ask(&ring, 0, 0xfffe);
        ring.add(&seg(&ram), false).unwrap();
        assert!(ring.kick_if_needed());
        ask(&ring, ring::USED_NO_NOTIFY, 0x0002);
        (0..3).for_each(|_| assert!(ring.add(&seg(&ram), false).is_some()));
        assert!(!ring.kick_if_needed());
        ask(&ring, 0, 0x0002);
        (0..2).for_each(|_| assert!(ring.add(&seg(&ram), false).is_some()));
        assert!(ring.kick_if_needed());
        assert_eq!((ring.kicks, ring.avail_idx(), ring.room()), (2, 4, 2));
    }
}

#[test]
#[should_panic(expected = "without a signal")]
fn a_device_that_owes_a_signal_is_found_out() {
    let ram = std::sync::Arc::new(memory::Ram::new(&[(0, 1 << 20)]));
    let mut ring = Ring::new(ram.clone(), 1, 8, F_EVENT_IDX);
    let addr = ram.alloc(64);
    ring.add(&[Seg { addr, len: 64, writable: false }], false).unwrap();
    let used = ring.used;
    let device = std::thread::spawn(move || ram.store16(used + 2, 1));
    // Whoever wins, the entry is there and the call descriptor stays silent.
    device.join().unwrap();
    ring.assert_signalled();
}

#[test]
fn connecting_waits_for_the_socket() {
    let dir = process::TempDir::new();
    let path = dir.path().join("late");
    assert!(dial::dial(&path, Instant::now() + Duration::from_millis(3)).is_err());
    let late = path.clone();
    let server = std::thread::spawn(move || UnixListener::bind(late).unwrap().accept().unwrap());
    dial::dial(&path, soon()).unwrap();
    server.join().unwrap();
}

#[test]
fn frames_are_verified_as_they_were_built() {
    let parsed = frame::verify(&frame::udp("10.0.0.1:1000", "10.0.0.2:2000", 33)).unwrap();
    assert_eq!((parsed.ports, parsed.protocol), (Some((1000, 2000)), Some(frame::UDP)));
    assert_eq!(parsed.payload, frame::pattern(33));
    let parsed = frame::verify(&frame::tcp("[fd00::1]:1", "[fd00::2]:2", 7)).unwrap();
    assert_eq!((parsed.ports, parsed.tcp), (Some((1, 2)), Some((1000, 0x10))));
    let odd = frame::frame().vlan(5).tag(frame::QINQ, 6).ip([1, 2, 3, 4].into(), [5, 6, 7, 8].into());
    let odd = odd.options(&[1; 8]).udp(1, 2).payload(b"abc");
    let parsed = frame::verify(&odd.build()).unwrap();
    assert_eq!((parsed.tags, parsed.payload), (vec![5, 6], b"abc".to_vec()));
    assert_eq!(odd.transport_start(), 14 + 8 + 28);
    let v6 = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
    let extended = frame::frame().ip(v6.0, v6.1).extension(0, &[0; 6]).extension(60, &[0; 14]).udp(1, 2);
    assert_eq!(frame::verify(&extended.build()).unwrap().ports, Some((1, 2)));
    assert_eq!(extended.transport_start(), 14 + 40 + 8 + 16);
    let fragment = frame::verify(&extended.fragment(3, true).payload(&[1; 16]).build()).unwrap();
    assert_eq!((fragment.ports, fragment.payload.len()), (None, 16));
    let mut bad = frame::udp("10.0.0.1:1000", "10.0.0.2:2000", 33);
    for (at, what) in [(60, "checksum"), (22, "header checksum"), (39, "UDP says")] {
        bad[at] ^= 1;
        assert!(frame::verify(&bad).unwrap_err().contains(what), "byte {at}");
        bad[at] ^= 1;
    }
    assert!(frame::verify(&bad[..40]).is_err());
}

#[test]
fn the_checksum_is_the_one_of_rfc_1071() {
    // The example of RFC 1071 section 3: the sum is 0xddf2.
    assert_eq!(frame::checksum(&[&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
    assert_eq!(frame::checksum(&[&[0x12]]), !0x1200);
    let full = frame::frame().ip([1, 1, 1, 1].into(), [2, 2, 2, 2].into()).udp(1, 2).payload(&[7; 9]);
    let start = usize::from(full.transport_start());
    let (partial, full) = (full.clone().partial_checksum().build(), full.build());
    // Completing the partial sum as a device does gives the full one.
    let sum = frame::checksum(&[&partial[start..]]);
    assert_eq!(sum.to_be_bytes(), full[start + 6..start + 8]);
}

#[test]
fn in_order_rings_take_descriptors_by_the_table_and_one_entry_for_many_chains() {
    let ram = std::sync::Arc::new(memory::Ram::new(&[(0, 1 << 20)]));
    let mut ring = Ring::new(ram.clone(), 0, 4, F_EVENT_IDX | F_IN_ORDER);
    let seg = Seg { addr: ram.alloc(64), len: 64, writable: true };
    let heads: Vec<_> = (0..3).map(|_| ring.add(&[seg], false).unwrap()).collect();
    assert_eq!(heads, [0, 1, 2]);
    // The device uses the first two and writes one entry, for the second.
    ram.write(ring.used + 4, &[1, 0, 0, 0, 20, 0, 0, 0]);
    ram.store16(ring.used + 2, 2);
    let used = [ring.take_used().unwrap(), ring.take_used().unwrap()];
    assert_eq!(used.map(|u| (u.head, u.len)), [(0, 64), (1, 20)]);
    assert!(ring.take_used().is_none());
    assert_eq!(
        [ring.add(&[seg], false), ring.add(&[seg], false), ring.add(&[seg], false)],
        [Some(3), Some(0), Some(1)]
    );
    assert_eq!(ring.add(&[seg], false), None);
}
