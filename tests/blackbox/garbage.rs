//! Guests that write anything anywhere, at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flownic::testkit::ring::DESC_NEXT;
use flownic::testkit::{Desc, Guest, frame, soon};
use flownic::virtio::*;

use crate::hostile::{NOWHERE, SIZE, desc, guest, valid};
use crate::{nic, signals::assert_sleeps};

/// A region for what must not be seen elsewhere.
const PLAYGROUND: u64 = 0x50_0000_0000;

#[test]
fn garbage_in_the_rings_never_ends_the_process() {
    let mut flownic = nic("queues=2,port=loopback");
    let mut seed = 0x2545_f491u32;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        seed
    };
    for _ in 0..60 {
        let mut guest = guest(&flownic);
        // What the device is made to write must not hit the rings of pair 1.
        guest.add_memory_region(PLAYGROUND, 1 << 20).unwrap();
        let valid =
            [&NetHeader::default().to_bytes()[..], &frame::udp("10.0.0.3:7", "10.0.0.4:9", 100)].concat();
        guest.ram.write(PLAYGROUND, &valid);
        for _ in 0..200 {
            let ring = &mut guest.rings[random() as usize % 2];
            let slot = random() as u16 % SIZE;
            match random() % 8 {
                0 => ring.write_avail(slot, random() as u16 % (SIZE + 1)),
                1 => ring.set_avail_idx(ring.avail_idx().wrapping_add(random() as u16 % 8)),
                2 => ring.set_used_event(random() as u16),
                3 => ring.set_avail_flags(random() as u16),
                _ => {
                    let place = [0, u64::from(random() % 4096), NOWHERE, u64::from(random())];
                    let at = PLAYGROUND + place[random() as usize % 4];
                    let len = [random() % 100, random() % 70000, random()][random() as usize % 3];
                    ring.write_desc(slot, desc(at, len, random() as u16 % 8, random() as u16 % (SIZE + 2)));
                }
            }
            ring.kick();
        }
        ping_pair_1(&mut guest);
        assert!(flownic.is_alive());
    }
    assert_sleeps(&flownic);
}

/// A round trip that stays on pair 1: the guest sends both directions of a flow there, so both are learned. Whatever
/// pair 0 still sends is stopped first, since it may fill receive ring 1.
fn ping_pair_1(guest: &mut Guest) {
    guest.stop_vring(1).unwrap();
    while guest.try_recv(1).is_some() {}
    guest.send(1, &frame::udp("10.0.0.2:9", "10.0.0.1:7", 50));
    let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 51);
    guest.send(1, &sent);
    while guest.recv(1, soon()).expect("the frame on receive queue 1").frame != sent {}
}

#[test]
fn descriptors_that_change_while_they_are_read_never_end_the_process() {
    let mut flownic = nic("queues=2,port=loopback");
    let mut guest = guest(&flownic);
    let (addr, len) = valid(&guest);
    let (ram, table) = (guest.ram.clone(), guest.tx(0).desc);
    let stop = Arc::new(AtomicBool::new(false));
    let flipper = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let forms = [desc(addr, len, 0, 0), desc(NOWHERE, len, 0, 0), desc(addr, 60000, DESC_NEXT, 0)];
            let forms = forms.map(Desc::to_bytes);
            let mut i = 0;
            while !stop.load(Ordering::Relaxed) {
                ram.write(table, &forms[i % forms.len()]);
                i += 1;
            }
        }
    });
    for _ in 0..3000 {
        guest.tx(0).offer_raw(0);
        assert!(guest.tx(0).wait_used(soon()));
        guest.tx(0).take_used_raw();
        while guest.try_recv(0).or_else(|| guest.try_recv(1)).is_some() {}
    }
    stop.store(true, Ordering::Relaxed);
    flipper.join().unwrap();
    assert!(flownic.is_alive());
    ping_pair_1(&mut guest);
}
