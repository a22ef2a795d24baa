//! What only packed rings have: chains that are wrong in their way, and rings that stop for it.

use flownic::testkit::ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE};
use flownic::testkit::{Desc, Guest, frame, soon};

use crate::hostile::{NOWHERE, SIZE, desc, valid};
use crate::signals::assert_sleeps;
use crate::{expect_counter, nic, ping};

/// Transmit chains of a packed ring that carry no frame: descriptors from the first one on, with ids.
fn malformed(guest: &Guest) -> Vec<(&'static str, Vec<Desc>)> {
    let (addr, len) = valid(guest);
    let table = |entries: &[Desc]| {
        let at = guest.ram.alloc(Desc::SIZE * entries.len() as u64);
        guest.ram.write(at, &entries.iter().flat_map(|d| d.to_packed_bytes()).collect::<Vec<u8>>());
        at
    };
    let good = desc(addr, len, 0, 0);
    vec![
        ("unmapped", vec![desc(NOWHERE, len, 0, 0)]),
        ("writable", vec![desc(addr, len, DESC_WRITE, 0xffff)]),
        ("shorter than the header", vec![desc(addr, 5, DESC_NEXT, 1), desc(addr, 6, 0, 2)]),
        ("indirect of no bytes", vec![desc(addr, 0, DESC_INDIRECT, 3)]),
        ("indirect of 17 bytes", vec![desc(table(&[good, good]), 17, DESC_INDIRECT, 4)]),
        ("indirect and next", vec![desc(table(&[good]), 16, DESC_INDIRECT | DESC_NEXT, 5), good]),
        (
            "indirect behind another",
            vec![desc(addr, 12, DESC_NEXT, 6), desc(table(&[good]), 16, DESC_INDIRECT, 7)],
        ),
        ("indirect longer than the queue", vec![desc(addr, 16 * u32::from(SIZE + 1), DESC_INDIRECT, 8)]),
    ]
}

#[test]
fn a_chain_of_a_packed_ring_without_a_frame_is_returned_with_its_id_and_the_queue_lives() {
    let flownic = nic("queues=2,port=loopback");
    let mut guest =
        flownic.guest("n0").queue_pairs(2).ring_size(SIZE).features("+ring_packed").connect().unwrap();
    for (i, (name, bad)) in malformed(&guest).into_iter().enumerate() {
        let id = bad.last().expect("a descriptor").next;
        // The first one shows the others.
        for (slot, d) in bad.iter().enumerate().skip(1) {
            guest.tx(0).write_packed_raw(slot as u16, *d);
        }
        guest.tx(0).write_packed_raw(0, bad[0]);
        guest.tx(0).kick();
        let until = soon();
        while guest.tx(0).packed_used_raw(0).is_none() {
            assert!(std::time::Instant::now() < until, "'{name}' never comes back");
        }
        assert_eq!(guest.tx(0).packed_used_raw(0), Some((id, 0)), "'{name}'");
        expect_counter(&flownic, ("tx", 0, "drop_malformed"), i as u64 + 1, name);
        guest.reboot().unwrap();
        ping(&mut guest, 0);
        guest.reboot().unwrap();
    }
}

#[test]
fn a_packed_ring_without_an_end_stops_once_and_others_go_on() {
    for direction in 0..2 {
        let flownic = nic("queues=2,port=loopback");
        let builder = flownic.guest("n0").queue_pairs(2).ring_size(SIZE).features("+ring_packed");
        let mut guest = builder.no_rx_buffers().connect().unwrap();
        guest.fill_rx(1);
        let (addr, _) = valid(&guest);
        let ring = &mut guest.rings[direction];
        let flags = DESC_NEXT | if direction == 0 { DESC_WRITE } else { 0 };
        (0..SIZE).rev().for_each(|slot| ring.write_packed_raw(slot, desc(addr, 20, flags, 0)));
        ring.kick();
        let side = ["rx", "tx"][direction];
        for i in 0..200 {
            // Some of these are for the first queue.
            guest.send(1, &frame::udp(&format!("10.0.0.1:{}", 1000 + i), "10.0.0.2:9", 60));
        }
        expect_counter(&flownic, (side, 0, "ring_faults"), 1, "a chain without an end");
        assert_sleeps(&flownic);
        guest.reboot().unwrap();
        (0..2).for_each(|pair| drop(ping(&mut guest, pair)));
        expect_counter(&flownic, (side, 0, "ring_faults"), 1, "a new driver repairs it");
    }
}
