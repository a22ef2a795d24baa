//! What a guest has set up with commands: in force, kept, and forgotten.

use flownic::testkit::{Command, Flownic, Guest, Received, frame, soon};
use flownic::virtio::{HDR_F_HASH, HDR_F_HASH_PORTS, NetHeader};

use crate::{counter, expect_counter, nic, ping};

/// Carries out a control command that has no result; whether it was.
fn control(guest: &mut Guest, bytes: &[u8]) -> bool {
    let reply = guest.command(0, &Command::control(bytes), 64);
    assert_eq!((reply.status, reply.length), (0, 1));
    reply.answer[0] == 0
}

/// HASH_SET.
fn want_hash(guest: &mut Guest, on: bool) {
    assert!(control(guest, &[0xf0, 2, on.into(), 0, 0, 0]));
}

/// A flow whose hash is published, sent and come back.
fn published(guest: &mut Guest) -> Received {
    let sent = frame::udp("66.9.149.187:2794", "161.142.100.80:1766", 64);
    guest.send(0, &sent);
    guest.recv_any(soon()).expect("it comes back")
}

/// What the header of a frame of that flow says of its hash.
fn hash(guest: &mut Guest) -> Option<u32> {
    let NetHeader { flags, csum_start, csum_offset, .. } = published(guest).header;
    let there = flags & HDR_F_HASH != 0;
    assert_eq!(flags, if there { HDR_F_HASH | HDR_F_HASH_PORTS } else { 0 });
    there.then_some(u32::from(csum_start) | u32::from(csum_offset) << 16)
}

/// The published hash of that flow under the published key.
const PUBLISHED: Option<u32> = Some(0x51cc_c178);

#[test]
fn the_hash_that_a_guest_asked_for_is_in_the_headers_it_gets() {
    let flownic = nic("queues=2,port=loopback");
    for features in ["", "-guest_csum", "-version_1,-mrg_rxbuf"] {
        let mut guest = flownic.guest("n0").queue_pairs(2).features(features).connect().unwrap();
        assert_eq!(hash(&mut guest), None);
        want_hash(&mut guest, true);
        assert_eq!(hash(&mut guest), PUBLISHED, "{features}");
        want_hash(&mut guest, false);
        assert_eq!(hash(&mut guest), None);
        guest.send(0, &[7; 60]);
        assert_eq!(guest.recv_any(soon()).unwrap().header.flags, 0, "no hash of that");
    }
}

#[test]
fn what_a_guest_has_set_up_is_forgotten_with_its_driver_and_only_then() {
    let flownic = nic("queues=2,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
    want_hash(&mut guest, true);
    // It pauses; its front end goes and comes back; it uses fewer queues for a while.
    for _ in 0..2 {
        let bases = guest.stop().unwrap();
        guest.restart(&bases).unwrap();
        assert_eq!(hash(&mut guest), PUBLISHED);
    }
    guest.disconnect();
    guest.connect().unwrap();
    assert_eq!(hash(&mut guest), PUBLISHED);
    for pair in [1, 0] {
        guest.enable(pair, false).unwrap();
        guest.enable(pair, true).unwrap();
    }
    assert_eq!(hash(&mut guest), PUBLISHED);
    // Another driver.
    guest.reboot().unwrap();
    assert_eq!(hash(&mut guest), None);
    // A reset of the device.
    want_hash(&mut guest, true);
    guest.reset_device().unwrap();
    guest.renew_rings();
    guest.restart(&[0; 4]).unwrap();
    guest.fill_all_rx();
    (0..2).for_each(|pair| guest.enable(pair, true).unwrap());
    assert_eq!(hash(&mut guest), None);
    // Its own wish.
    want_hash(&mut guest, true);
    assert!(control(&mut guest, &[0xf0, 1]));
    assert_eq!(hash(&mut guest), None);
    // Another virtual machine.
    want_hash(&mut guest, true);
    drop(guest);
    let mut guest = flownic.guest("n0").connect().unwrap();
    assert_eq!(hash(&mut guest), None);
}

#[test]
fn what_the_host_has_set_stays() {
    let flownic = nic("queues=2,port=loopback");
    flownic.ctl(&["flows", "add", "n0", "flow-type", "udp4", "dst-port", "1766", "action", "1"]);
    let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
    assert_eq!(published(&mut guest).pair, 1);
    assert!(control(&mut guest, &[0xf0, 1]));
    assert_eq!(published(&mut guest).pair, 1);
    guest.reboot().unwrap();
    assert_eq!(published(&mut guest).pair, 1);
    expect_counter(&flownic, ("rx", 1, "by_filter"), 3, "all by the host's rule");
}

/// Drivers that started anew, as far as the NIC can tell.
fn driver_starts(flownic: &Flownic) -> u64 {
    counter(flownic, "driver_starts")
}

#[test]
fn a_driver_that_starts_anew_is_told_from_one_that_goes_on() {
    let flownic = nic("queues=2,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
    expect_counter(&flownic, "driver_starts", 1, "the first one");
    // A pause before anything was sent on queue 0, and after.
    ping(&mut guest, 1);
    for round in 0..2 {
        let bases = guest.stop().unwrap();
        guest.restart(&bases).unwrap();
        assert_eq!(driver_starts(&flownic), 1, "pause {round}");
        ping(&mut guest, 0);
    }
    // Queues of a driver that uses fewer.
    for pair in [1, 0] {
        guest.enable(pair, false).unwrap();
        guest.enable(pair, true).unwrap();
    }
    assert_eq!(driver_starts(&flownic), 1, "no queue started from 0");
    // The front end goes and comes back.
    guest.disconnect();
    guest.connect().unwrap();
    ping(&mut guest, 0);
    assert_eq!(driver_starts(&flownic), 1, "it went on");
    for starts in [2, 3] {
        guest.reboot().unwrap();
        ping(&mut guest, 0);
        assert_eq!(driver_starts(&flownic), starts, "rebooted");
    }
    // One queue alone is reset while the others run.
    guest.stop_vring(1).unwrap();
    let lost = guest.tx(0).reset(0);
    guest.free_segs(&lost);
    guest.start_vring(1, 0).unwrap();
    ping(&mut guest, 0);
    assert_eq!(driver_starts(&flownic), 3, "a queue that is reset");
    // Another virtual machine.
    drop(guest);
    let mut guest = flownic.guest("n0").connect().unwrap();
    ping(&mut guest, 0);
    assert_eq!(driver_starts(&flownic), 4, "another one");
}
