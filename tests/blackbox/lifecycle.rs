//! Rings and connections that come and go, and processes that die.

use flownic::testkit::proto::*;
use flownic::testkit::{Builder, Guest, frame, soon};

use crate::{FORMATS, counter, expect_counter, nic, ping};

#[test]
fn a_ring_stopped_twice_stands_where_it_stood() {
    for features in FORMATS {
        let flownic = nic("queues=1,port=echo");
        let mut guest = flownic.guest("n0").features(features).connect().unwrap();
        (0..30).for_each(|_| drop(ping(&mut guest, 0)));
        assert!(guest.drain_tx(0, soon()));
        let bases = guest.stop().unwrap();
        assert_eq!(bases, [guest.rx(0).base(), guest.tx(0).base()], "GET_VRING_BASE");
        assert_eq!(guest.stop().unwrap(), bases, "GET_VRING_BASE again");
        guest.restart(&bases).unwrap();
        ping(&mut guest, 0);
    }
}

#[test]
fn a_stopped_ring_holds_nothing_back_and_a_started_one_looks_at_what_is_there() {
    for features in FORMATS {
        let flownic = nic("queues=1,port=echo");
        let mut guest = flownic.guest("n0").features(features).connect().unwrap();
        for round in 0..50 {
            (0..20).for_each(|_| guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100)));
            // Transmit first: what is on its way still finds the receive ring.
            let tx = guest.stop_vring(1).unwrap();
            let bases = [guest.stop_vring(0).unwrap(), tx];
            // What was taken from a ring has been returned when its stop is answered.
            assert_eq!(bases, [guest.rx(0).base(), guest.tx(0).base()], "round {round}");
            // Sent while nobody looks, and the kick is gone before the ring starts.
            guest.send(0, &frame::udp("10.0.0.1:8", "10.0.0.2:9", 100));
            let _ = guest.tx(0).kick_fd.read();
            guest.restart(&bases).unwrap();
            assert_eq!(guest.fence(0).len(), 21, "round {round}");
        }
    }
}

#[test]
fn disabling_a_pair_takes_it_out_of_steering_and_enabling_brings_it_back() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let spread = |guest: &mut Guest| {
        (0..200)
            .for_each(|i| guest.send(0, &frame::udp(&format!("10.0.0.1:{}", 1000 + i), "10.0.0.2:9", 60)));
        let mut by_pair = [0; 4];
        guest.fence(0).iter().for_each(|got| by_pair[got.pair] += 1);
        by_pair
    };
    assert!(spread(&mut guest).iter().all(|&n| n > 0));
    for pair in [3, 2] {
        guest.enable(pair, false).unwrap();
    }
    let by_pair = spread(&mut guest);
    assert_eq!((by_pair[0] + by_pair[1], by_pair[2], by_pair[3]), (200, 0, 0));
    (2..4).for_each(|pair| guest.enable(pair, true).unwrap());
    let by_pair = spread(&mut guest);
    assert!(by_pair.iter().all(|&n| n > 0), "{by_pair:?}");
    assert_eq!(by_pair.iter().sum::<i32>(), 200);
}

#[test]
fn only_the_second_pair_is_enabled() {
    let flownic = nic("queues=2,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(2).enabled(0).connect().unwrap();
    guest.enable(1, true).unwrap();
    assert_eq!(ping(&mut guest, 1).pair, 1);
    assert_eq!(guest.rx(0).used_idx(), 0);
}

#[test]
fn only_the_first_pair_is_used_until_the_guest_asks_for_more() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).enabled(1).connect().unwrap();
    for round in 0..3 {
        for i in 0..100 {
            guest.send(0, &frame::udp(&format!("10.0.0.1:{}", 1000 + i), "10.0.0.2:9", 60));
        }
        let got = guest.fence(0);
        let elsewhere = got.iter().filter(|g| g.pair > 0).count();
        assert_eq!((got.len(), elsewhere > 0), (100, round == 1), "round {round}");
        (1..4).for_each(|pair| guest.enable(pair, round == 0).unwrap());
    }
}

#[test]
fn no_enabled_receive_queue_means_a_counted_drop() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    guest.channel().set_vring(SET_VRING_ENABLE, 0, 0).unwrap();
    guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
    assert!(guest.drain_tx(0, soon()));
    assert_eq!(guest.rx(0).used_idx(), 0);
    expect_counter(&flownic, "drop_no_queue", 1, "nothing is enabled");
    guest.channel().set_vring(SET_VRING_ENABLE, 0, 1).unwrap();
    ping(&mut guest, 0);
}

#[test]
fn guests_reboot_under_flood() {
    for features in FORMATS {
        let flownic = nic("queues=2,port=gen:flows=64;size=200");
        let mut guest = flownic.guest("n0").queue_pairs(2).features(features).connect().unwrap();
        for round in 0..30 {
            (0..50).for_each(|_| assert!(guest.recv_any(soon()).is_some(), "round {round}"));
            guest.reboot().unwrap();
        }
        (0..2).for_each(|pair| {
            expect_counter(&flownic, ("rx", pair, "ring_faults"), 0, "a reboot is no fault")
        });
    }
}

#[test]
fn firmware_hands_over_to_a_kernel_and_back() {
    let flownic = nic("queues=4,port=loopback");
    let firmware = |b: Builder| b.ring_size(16).features("version_1").rx_buffer(1526);
    let mut guest = firmware(flownic.guest("n0").queue_pairs(4).enabled(1)).connect().unwrap();
    for _ in 0..3 {
        ping(&mut guest, 0);
        // A kernel with all features, more queues and larger rings.
        for features in FORMATS {
            let kernel = flownic.guest("n0").queue_pairs(4).ring_size(1024).features(features);
            guest.change_driver(|_| kernel).unwrap();
            (0..4).for_each(|pair| drop(ping(&mut guest, pair)));
        }
        // A reboot: the firmware's small rings, one pair, no features.
        guest.change_driver(|_| firmware(flownic.guest("n0"))).unwrap();
        for i in 0..100 {
            guest.send(0, &frame::udp(&format!("10.0.0.1:{}", 1000 + i), "10.0.0.2:9", 60));
            assert!(guest.recv(0, soon()).is_some());
        }
        guest.change_driver(|_| flownic.guest("n0").queue_pairs(1).ring_size(64)).unwrap();
    }
}

#[test]
fn reset_device_disables_everything_and_a_new_driver_starts() {
    for features in FORMATS {
        let flownic = nic("queues=2,port=echo");
        let mut guest = flownic.guest("n0").queue_pairs(2).features(features).connect().unwrap();
        for _ in 0..5 {
            (0..2).for_each(|pair| drop(ping(&mut guest, pair)));
            guest.reset_device().unwrap();
            guest.renew_rings();
            let bases: Vec<u16> = guest.rings.iter().map(|ring| ring.first_base()).collect();
            guest.restart(&bases).unwrap();
            guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
            guest.channel().sync().unwrap();
            assert_eq!(guest.tx(0).returned(), 0, "rings are disabled after a reset");
            guest.fill_all_rx();
            (0..2).for_each(|pair| guest.enable(pair, true).unwrap());
            assert!(guest.recv_any(soon()).is_some());
        }
    }
}

#[test]
fn a_front_end_that_vanishes_finds_its_nic_as_it_was() {
    for features in FORMATS {
        let flownic = nic("queues=2,port=echo");
        let mut guest = flownic.guest("n0").queue_pairs(2).features(features).connect().unwrap();
        let mut seen = 0;
        for _ in 0..20 {
            (0..2).for_each(|pair| drop(ping(&mut guest, pair)));
            guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
            guest.disconnect();
            guest.connect().unwrap();
            seen += guest.fence(0).len() as u64;
        }
        // Each frame was answered, before the connection ended or after it came back; or it was taken while the receive
        // queues were being stopped, and counted.
        let lost: u64 = (0..2).map(|q| counter(&flownic, ("rx", q, "drop_queue_stopped"))).sum();
        assert_eq!(seen + lost + counter(&flownic, "drop_no_queue"), 20);
        expect_counter(&flownic, "connections", 21, "one and twenty more");
        assert!(counter(&flownic, ("tx", 0, "packets")) >= 60, "counters survive");
    }
}

#[test]
fn a_front_end_comes_back_with_buffers_posted_and_hears_first() {
    for features in FORMATS {
        // The guest's next receive buffers are in the ring already; nobody kicks.
        let flownic = nic("queues=1,port=gen:flows=1;size=100");
        let mut guest = flownic.guest("n0").features(features).connect().unwrap();
        for _ in 0..5 {
            assert!(guest.recv(0, soon()).is_some());
            guest.disconnect();
            while guest.rx(0).take_used().is_some() {}
            guest.fill_rx(0);
            let _ = guest.rx(0).kick_fd.read();
            guest.connect().unwrap();
            assert!(guest.rx(0).wait_used(soon()), "a frame without a kick");
        }
    }
}

#[test]
fn the_back_end_is_killed_and_comes_back() {
    for features in FORMATS {
        let mut flownic = nic("queues=2,port=echo");
        let mut guest = flownic.guest("n0").queue_pairs(2).features(features).connect().unwrap();
        for _ in 0..5 {
            (0..2).for_each(|pair| drop(ping(&mut guest, pair)));
            // A chain that is not returned yet would be served again.
            (0..2).for_each(|pair| assert!(guest.drain_tx(pair, soon())));
            flownic.kill();
            assert!(guest.channel().closed_by(soon()));
            // Sent while there is no back end: served by the next one.
            guest.send(1, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
            flownic.start_again();
            guest.connect().unwrap();
            assert_eq!(guest.fence(1).len(), 1);
        }
    }
}

#[test]
fn the_socket_never_vanishes_over_a_restart() {
    let mut flownic = nic("queues=1,port=echo");
    let socket = flownic.path("n0");
    flownic.kill();
    assert!(socket.exists(), "left behind by SIGKILL");
    flownic.start_again();
    assert!(socket.exists());
    ping(&mut flownic.guest("n0").connect().unwrap(), 0);
}

#[test]
fn a_connection_made_while_the_old_process_dies_works_when_tried_again() {
    let mut flownic = nic("queues=1,port=echo");
    let mut early = flownic.guest("n0").connect().unwrap();
    // In the backlog of a process that never gets to it.
    let mut late = flownic.guest("n0").unconnected();
    late.open().unwrap();
    ping(&mut early, 0);
    flownic.kill();
    assert!(late.negotiate().is_err());
    flownic.start_again();
    late.connect().unwrap();
    ping(&mut late, 0);
}

#[test]
fn sigterm_ends_it_in_order_and_takes_the_sockets_away() {
    for poll in ["off", "adaptive", "always"] {
        let mut flownic = flownic::testkit::Flownic::serve(
            crate::FLOWNIC,
            &["--nic", "n0,socket=@/n0,queues=2,port=echo", "--poll", poll],
        );
        let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
        ping(&mut guest, 0);
        let status = flownic.terminate();
        assert!(status.success(), "--poll {poll}: {status}");
        assert!(!flownic.path("n0").exists() && !flownic.path("ctl").exists());
        assert!(guest.channel().closed_by(soon()));
    }
}
