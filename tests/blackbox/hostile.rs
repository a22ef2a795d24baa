//! Guests and front ends that break the rules. Each pays with its own queue at most.

use flownic::testkit::proto::*;
use flownic::testkit::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE};
use flownic::testkit::{Desc, Flownic, Guest, Layout, Ring, frame, soon};
use flownic::virtio::*;

use crate::{counter, expect_counter, nic, ping, signals::assert_sleeps};

/// Nothing is mapped here.
pub(crate) const NOWHERE: u64 = 0x7000_0000_0000;
pub(crate) const SIZE: u16 = 16;

pub(crate) fn guest(flownic: &Flownic) -> Guest {
    flownic.guest("n0").queue_pairs(2).ring_size(SIZE).connect().unwrap()
}

/// A valid frame with its header in guest memory; returns its address and length.
pub(crate) fn valid(guest: &Guest) -> (u64, u32) {
    let bytes = [&NetHeader::default().to_bytes()[..], &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100)].concat();
    let segs = guest.place(&bytes, &Layout::joined());
    (segs[0].addr, segs[0].len)
}

/// An indirect table with these entries.
fn table(guest: &Guest, entries: &[Desc]) -> u64 {
    let addr = guest.ram.alloc(Desc::SIZE * entries.len() as u64 + 64);
    guest.ram.write(addr, &entries.iter().flat_map(|d| d.to_bytes()).collect::<Vec<u8>>());
    addr
}

pub(crate) fn desc(addr: u64, len: u32, flags: u16, next: u16) -> Desc {
    Desc { addr, len, flags, next }
}

/// Transmit chains that carry no frame: written to the table by name, starting at descriptor 0.
fn malformed(name: &str, g: &mut Guest) {
    let (addr, len) = valid(g);
    let top = g.ram.regions()[0].size;
    let chain: Vec<Desc> = match name {
        "loop of two" => vec![desc(addr, len, DESC_NEXT, 1), desc(addr, len, DESC_NEXT, 0)],
        "loop on itself" => vec![desc(addr, 1, DESC_NEXT, 0)],
        "next outside of the table" => vec![desc(addr, len, DESC_NEXT, SIZE)],
        "next far outside" => vec![desc(addr, len, DESC_NEXT, 0xffff)],
        "unmapped" => vec![desc(NOWHERE, len, 0, 0)],
        "unmapped second" => vec![desc(addr, len, DESC_NEXT, 1), desc(NOWHERE, 1, 0, 0)],
        "over the end of a region" => vec![desc(top - 50, len, 0, 0)],
        "round the end of the address space" => vec![desc(u64::MAX - 20, len, 0, 0)],
        "four GiB long" => vec![desc(addr, u32::MAX, 0, 0)],
        "empty" => vec![desc(addr, 0, 0, 0)],
        "shorter than the header" => vec![desc(addr, 11, 0, 0)],
        "nothing but the header" => vec![desc(addr, 12, 0, 0)],
        "a frame of 13 bytes" => vec![desc(addr, 25, 0, 0)],
        "writable" => vec![desc(addr, len, DESC_WRITE, 0)],
        "writable first" => vec![desc(addr, 12, DESC_WRITE | DESC_NEXT, 1), desc(addr + 12, len - 12, 0, 0)],
        "longer than any frame" => {
            (0..9).map(|i| desc(addr, 8000, u16::from(i < 8) * DESC_NEXT, i + 1)).collect()
        }
        "indirect of no bytes" => vec![desc(addr, 0, DESC_INDIRECT, 0)],
        "indirect of 17 bytes" => vec![desc(table(g, &[desc(addr, len, 0, 0)]), 17, DESC_INDIRECT, 0)],
        "indirect and unmapped" => vec![desc(NOWHERE, 16, DESC_INDIRECT, 0)],
        "indirect over the end of a region" => vec![desc(top - 16, 32, DESC_INDIRECT, 0)],
        "indirect and next" => {
            vec![
                desc(table(g, &[desc(addr, len, 0, 0)]), 16, DESC_INDIRECT | DESC_NEXT, 1),
                desc(addr, len, 0, 0),
            ]
        }
        "nested indirect" => {
            let inner = table(g, &[desc(addr, len, 0, 0)]);
            vec![desc(table(g, &[desc(inner, 16, DESC_INDIRECT, 0)]), 16, DESC_INDIRECT, 0)]
        }
        "indirect loop" => {
            let looped = [desc(addr, len, DESC_NEXT, 1), desc(addr, len, DESC_NEXT, 0)];
            vec![desc(table(g, &looped), 32, DESC_INDIRECT, 0)]
        }
        "indirect next outside" => {
            vec![desc(table(g, &[desc(addr, len, DESC_NEXT, 1)]), 16, DESC_INDIRECT, 0)]
        }
        "indirect longer than the queue" => {
            let many: Vec<_> =
                (0..SIZE + 1).map(|i| desc(addr, 20, u16::from(i < SIZE) * DESC_NEXT, i + 1)).collect();
            vec![desc(table(g, &many), 16 * u32::from(SIZE + 1), DESC_INDIRECT, 0)]
        }
        _ => unreachable!("{name}"),
    };
    for (i, d) in chain.iter().enumerate() {
        g.tx(0).write_desc(i as u16, *d);
    }
}

const MALFORMED: &[&str] = &[
    "loop of two",
    "loop on itself",
    "next outside of the table",
    "next far outside",
    "unmapped",
    "unmapped second",
    "over the end of a region",
    "round the end of the address space",
    "four GiB long",
    "empty",
    "shorter than the header",
    "nothing but the header",
    "a frame of 13 bytes",
    "writable",
    "writable first",
    "longer than any frame",
    "indirect of no bytes",
    "indirect of 17 bytes",
    "indirect and unmapped",
    "indirect over the end of a region",
    "indirect and next",
    "nested indirect",
    "indirect loop",
    "indirect next outside",
    "indirect longer than the queue",
];

#[test]
fn a_transmit_chain_without_a_frame_is_returned_and_counted_and_the_queue_lives() {
    let flownic = nic("queues=2,port=loopback");
    let mut guest = guest(&flownic);
    for (i, name) in MALFORMED.iter().enumerate() {
        malformed(name, &mut guest);
        guest.tx(0).offer_raw(0);
        assert!(guest.tx(0).wait_used(soon()), "'{name}' never comes back");
        assert_eq!(guest.tx(0).take_used_raw(), Some((0, 0)), "'{name}'");
        expect_counter(&flownic, ("tx", 0, "drop_malformed"), i as u64 + 1, name);
        expect_counter(&flownic, ("tx", 0, "packets"), i as u64, name);
        // A good one behind it.
        let (addr, len) = valid(&guest);
        guest.tx(0).write_desc(3, desc(addr, len, 0, 0));
        guest.tx(0).offer_raw(3);
        assert!(guest.recv_any(soon()).is_some(), "nothing after '{name}'");
        assert!(guest.tx(0).wait_used(soon()));
        assert_eq!(guest.tx(0).take_used_raw(), Some((3, 0)), "after '{name}'");
    }
    assert_sleeps(&flownic);
}

#[test]
fn indirect_descriptors_that_were_not_negotiated_are_malformed() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").features("-indirect_desc").connect().unwrap();
    let (addr, len) = valid(&guest);
    let table = table(&guest, &[desc(addr, len, 0, 0)]);
    guest.tx(0).write_desc(0, desc(table, 16, DESC_INDIRECT, 0));
    guest.tx(0).offer_raw(0);
    assert!(guest.tx(0).wait_used(soon()));
    expect_counter(&flownic, ("tx", 0, "drop_malformed"), 1, "not negotiated");
}

#[test]
fn a_table_as_long_as_the_queue_is_fine() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").ring_size(SIZE).connect().unwrap();
    let cuts: Vec<usize> = (1..usize::from(SIZE)).map(|i| i * 8).collect();
    let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 200);
    guest.send_with(0, NetHeader::default(), &sent, &Layout::cut_at(&cuts).indirect());
    assert!(guest.recv(0, soon()).unwrap().frame == sent);
}

type Breaker = fn(&mut Ring);

/// What breaks a ring for good: done to a transmit or a receive ring.
const BREAKERS: [(&str, Breaker); 4] = [
    ("a jump of the available index", |r| r.set_avail_idx(r.avail_idx().wrapping_add(SIZE + 1))),
    ("a huge jump", |r| r.set_avail_idx(r.avail_idx().wrapping_add(0x8000))),
    ("an index that goes back", |r| r.set_avail_idx(r.avail_idx().wrapping_sub(SIZE * 2))),
    ("a head outside of the table", |r| {
        let slot = r.avail_idx() % SIZE;
        r.write_avail(slot, SIZE);
        r.set_avail_idx(r.avail_idx().wrapping_add(1));
    }),
];

#[test]
fn a_broken_transmit_ring_stops_once_and_is_counted_and_others_go_on() {
    for (name, break_it) in BREAKERS {
        let flownic = nic("queues=2,port=loopback");
        let mut guest = guest(&flownic);
        ping(&mut guest, 0);
        break_it(guest.tx(0));
        guest.tx(0).kick();
        for _ in 0..50 {
            ping(&mut guest, 1);
            guest.tx(0).kick();
        }
        expect_counter(&flownic, ("tx", 0, "ring_faults"), 1, name);
        assert_sleeps(&flownic);
        // A new driver repairs it.
        guest.reboot().unwrap();
        ping(&mut guest, 0);
        expect_counter(&flownic, ("tx", 0, "ring_faults"), 1, name);
    }
}

#[test]
fn a_broken_receive_ring_stops_once_and_is_counted_and_others_go_on() {
    for (name, break_it) in BREAKERS {
        let flownic = nic("queues=2,port=loopback");
        let builder = flownic.guest("n0").queue_pairs(2).ring_size(SIZE);
        let mut guest = builder.no_rx_buffers().connect().unwrap();
        guest.fill_rx(1);
        break_it(guest.rx(0));
        guest.rx(0).kick();
        // ARP goes to the lowest queue that is enabled: first into the broken ring, then past it.
        let arp = frame::arp([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        (0..20).for_each(|_| guest.send(1, &arp));
        assert!(guest.recv(1, soon()).is_some(), "{name}: nothing on the other queue");
        expect_counter(&flownic, ("rx", 0, "ring_faults"), 1, name);
        assert!(guest.drain_tx(1, soon()));
        assert_sleeps(&flownic);
        guest.reboot().unwrap();
        guest.send(0, &arp);
        assert!(guest.recv(0, soon()).is_some(), "{name}: not repaired");
    }
}

#[test]
fn a_bad_head_behind_good_ones_is_met_in_its_turn() {
    let flownic = nic("queues=2,port=loopback");
    for good in [1u16, 31, 32, 33, 63, 64, 100] {
        let mut guest = flownic.guest("n0").queue_pairs(2).ring_size(256).connect().unwrap();
        let before = counter(&flownic, ("tx", 0, "ring_faults"));
        for _ in 0..good {
            let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 100);
            guest.queue_tx(0, NetHeader::default(), &sent, &Layout::joined());
        }
        let tx = guest.tx(0);
        tx.write_avail(good, 0xffff);
        tx.write_avail(good + 1, 0);
        tx.set_avail_idx(good + 2);
        tx.kick();
        expect_counter(&flownic, ("tx", 0, "ring_faults"), before + 1, "the bad one");
        // A burst may end with the frame before it, or be given up as a whole.
        assert!(guest.tx(0).used_idx() <= good, "{} of {good} came back", guest.tx(0).used_idx());
        assert!(guest.tx(0).used_idx() + 64 > good, "{} of {good} came back", guest.tx(0).used_idx());
        // What came before it is in the receive rings.
        while guest.try_recv_any().is_some() {}
        ping(&mut guest, 1);
    }
}

#[test]
fn receive_buffers_that_are_none_are_returned_and_the_next_good_one_is_used() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").ring_size(SIZE).no_rx_buffers().connect().unwrap();
    let at = guest.ram.alloc(4096);
    let bad = [
        ("read-only", desc(at, 2048, 0, 0)),
        ("unmapped", desc(NOWHERE, 2048, DESC_WRITE, 0)),
        ("over the end of a region", desc(guest.ram.regions()[0].size - 100, 2048, DESC_WRITE, 0)),
        ("loop", desc(at, 8, DESC_WRITE | DESC_NEXT, 0)),
        ("next outside", desc(at, 8, DESC_WRITE | DESC_NEXT, 99)),
        ("shorter than the header", desc(at, 11, DESC_WRITE, 0)),
        ("empty", desc(at, 0, DESC_WRITE, 0)),
    ];
    let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 300);
    for (i, (name, broken)) in bad.iter().enumerate() {
        let rx = guest.rx(0);
        rx.write_desc(0, *broken);
        rx.offer_raw(0);
        rx.write_desc(1, desc(at, 2048, DESC_WRITE, 0));
        rx.offer_raw(1);
        guest.send(0, &sent);
        assert!(guest.rx(0).wait_used_count(2, soon()), "'{name}' blocks the queue");
        assert_eq!(guest.rx(0).take_used_raw(), Some((0, 0)), "'{name}'");
        assert_eq!(guest.rx(0).take_used_raw(), Some((1, sent.len() as u32 + 12)), "'{name}'");
        assert!(guest.ram.read(at + 12, sent.len()) == sent);
        expect_counter(&flownic, ("rx", 0, "bad_buffers"), i as u64 + 1, name);
    }
}

#[test]
fn nothing_is_written_outside_of_the_buffers() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").ring_size(SIZE).no_rx_buffers().connect().unwrap();
    let at = guest.ram.alloc(8192);
    guest.ram.write(at, &[0xee; 8192]);
    // 30 and 500 bytes, with guards around; frames of 100 and 600 bytes.
    for (slot, offset, len) in [(0, 100, 30), (1, 1000, 500), (2, 3000, 30), (3, 4000, 90)] {
        guest.rx(0).write_desc(slot, desc(at + offset, len, DESC_WRITE, 0));
        guest.rx(0).offer_raw(slot);
    }
    for len in [58, 58] {
        guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", len));
    }
    assert!(guest.rx(0).wait_used_count(4, soon()));
    let lens: Vec<_> = std::iter::from_fn(|| guest.rx(0).take_used_raw()).map(|u| u.1).collect();
    assert_eq!(lens, [30, 82, 30, 82]);
    let bytes = guest.ram.read(at, 8192);
    let inside = |i: usize| {
        [(100, 30), (1000, 82), (3000, 30), (4000, 82)].iter().any(|&(a, n)| (a..a + n).contains(&i))
    };
    let touched: Vec<_> = (0..8192).filter(|&i| !inside(i) && bytes[i] != 0xee).collect();
    assert!(touched.is_empty(), "bytes {touched:?}");
}

#[test]
fn rings_at_impossible_places_do_not_start_and_harm_nobody() {
    let flownic = nic("queues=2,port=loopback");
    for (name, shift) in [("unmapped", 0x1_0000_0000_0000u64), ("misaligned", 1), ("over the end", u64::MAX)]
    {
        let mut guest = guest(&flownic);
        let bases = guest.stop().unwrap();
        let ring = guest.rx(0);
        let (desc, used, avail) = (ring.desc, ring.used, ring.avail);
        for part in 0..3 {
            let end = guest.ram.regions()[0].size;
            let mut at = [desc, used, avail];
            at[part] = if shift == u64::MAX { end - 8 } else { at[part] + shift };
            (guest.rx(0).desc, guest.rx(0).used, guest.rx(0).avail) = (at[0], at[1], at[2]);
            let user: Vec<u64> = at.iter().map(|a| guest.ram.user_address(*a).unwrap_or(*a)).collect();
            let mut payload = pair(0, 0).to_vec();
            user.iter().chain([&0]).for_each(|a| payload.extend(a.to_ne_bytes()));
            let refused = guest.channel().set(SET_VRING_ADDR, &payload, &[]).is_err();
            (guest.rx(0).desc, guest.rx(0).used, guest.rx(0).avail) = (desc, used, avail);
            if refused {
                guest.connect().unwrap();
                guest.stop().unwrap();
            } else {
                guest.channel().set_vring(SET_VRING_ENABLE, 0, 1).unwrap();
            }
        }
        guest.restart(&bases).unwrap_or_else(|e| panic!("{name}: {e}"));
        (0..2).for_each(|pair| drop(ping(&mut guest, pair)));
    }
}
