//! Kicks, signals and sleep.

use std::time::{Duration, Instant};

use flownic::testkit::ring::EVENTS_DESC;
use flownic::testkit::{Flownic, Layout, frame, soon};
use flownic::virtio::*;

use crate::{FLOWNIC, FORMATS, NOTIFICATIONS, counter, nic, ping};

#[test]
fn no_signal_that_the_driver_does_not_want() {
    let flownic = nic("queues=1,port=loopback");
    for features in NOTIFICATIONS {
        let mut guest = flownic.guest("n0").features(features).connect().unwrap();
        // What the start itself signalled.
        ping(&mut guest, 0);
        guest.rx(0).want_signals(false);
        guest.tx(0).want_signals(false);
        let before = (guest.rx(0).signals(), guest.tx(0).signals());
        for _ in 0..200 {
            guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
        }
        assert!(guest.rx(0).wait_used_count(200, soon()));
        assert!(guest.tx(0).wait_used_count(0, soon()));
        assert_eq!((guest.rx(0).signals(), guest.tx(0).signals()), before, "'{features}'");
        while guest.try_recv(0).is_some() {}
        guest.rx(0).want_signals(true);
        guest.tx(0).want_signals(true);
        ping(&mut guest, 0);
    }
    assert!(counter(&flownic, ("rx", 0, "signals_suppressed")) > 0);
}

#[test]
fn used_event_counts_entries_not_bursts() {
    let flownic = nic("queues=1,port=loopback");
    for features in FORMATS {
        let mut guest = flownic.guest("n0").features(features).connect().unwrap();
        ping(&mut guest, 0);
        guest.rx(0).want_signals(false);
        let before = guest.rx(0).signals();
        // A signal when the tenth entry from here is there, and no sooner.
        if guest.has(F_RING_PACKED) {
            let rx = guest.rx(0);
            rx.set_driver_event(rx.base() + 9, EVENTS_DESC);
        } else {
            let rx = guest.rx(0);
            rx.set_used_event(rx.last_used().wrapping_add(9));
        }
        for _ in 0..9 {
            guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
        }
        assert!(guest.rx(0).wait_used_count(9, soon()));
        assert_eq!(guest.rx(0).signals(), before, "'{features}'");
        guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
        assert!(guest.rx(0).wait_used_count(10, soon()));
        guest.rx(0).wait_call(soon());
        assert_eq!(guest.rx(0).signals(), before + 1, "'{features}'");
    }
}

#[test]
fn a_burst_of_frames_makes_few_signals() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").features("-event_idx").connect().unwrap();
    ping(&mut guest, 0);
    let before = guest.rx(0).signals();
    for _ in 0..128 {
        guest.queue_tx(
            0,
            NetHeader::default(),
            &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100),
            &Layout::joined(),
        );
    }
    guest.flush_tx(0);
    assert!(guest.rx(0).wait_used_count(128, soon()));
    let made = guest.rx(0).signals() - before;
    assert!((1..=128 / 8).contains(&made), "{made} signals for 128 frames in one burst");
}

#[test]
fn every_kick_that_is_due_wakes_a_sleeping_worker() {
    // Each round trip ends with both sides asleep, or about to be: a lost kick or signal hangs the next one.
    for poll in ["off", "adaptive"] {
        let flownic =
            Flownic::serve(FLOWNIC, &["--nic", "n0,socket=@/n0,queues=2,port=echo", "--poll", poll]);
        for features in NOTIFICATIONS {
            let mut guest = flownic.guest("n0").queue_pairs(2).features(features).connect().unwrap();
            (0..3000).for_each(|i| drop(ping(&mut guest, i % 2)));
        }
    }
}

#[test]
fn a_frame_that_comes_while_the_worker_goes_to_sleep_wakes_it() {
    // The guest polls, and sends a little later each time: one of the frames comes between the worker's last look at
    // the ring and the moment it asks for kicks.
    let flownic = nic("queues=1,port=echo");
    for features in NOTIFICATIONS {
        let mut guest = flownic.guest("n0").features(features).connect().unwrap();
        guest.rx(0).want_signals(false);
        guest.tx(0).want_signals(false);
        let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 100);
        guest.send(0, &sent);
        for i in 0..20_000 {
            // The next frame is in the ring already and only has to be shown.
            guest.queue_tx(0, NetHeader::default(), &sent, &Layout::joined());
            assert!(guest.rx(0).wait_used(soon()), "'{features}': frame {i} is still waiting");
            (0..i % 500).for_each(|_| std::hint::spin_loop());
            guest.flush_tx(0);
            guest.try_recv(0).expect("waited for");
        }
    }
}

#[test]
fn a_polling_worker_wants_no_kicks_and_lets_the_front_end_come_and_go() {
    let flownic =
        Flownic::serve(FLOWNIC, &["--nic", "n0,socket=@/n0,queues=1,port=echo", "--poll", "always"]);
    for features in NOTIFICATIONS {
        let mut guest = flownic.guest("n0").features(features).connect().unwrap();
        ping(&mut guest, 0);
        let before = guest.tx(0).kicks;
        (0..500).for_each(|_| drop(ping(&mut guest, 0)));
        // The wish for no kicks may come just after the next frame.
        let kicks = guest.tx(0).kicks - before;
        assert!(kicks < 5, "'{features}': {kicks} kicks for 500 frames");
        let bases = guest.stop().unwrap();
        guest.restart(&bases).unwrap();
        ping(&mut guest, 0);
    }
}

#[test]
fn idle_guests_cost_nothing() {
    let flownic = nic("queues=4,port=echo");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    (0..4).for_each(|pair| drop(ping(&mut guest, pair)));
    assert_sleeps(&flownic);
}

#[test]
fn a_guest_without_receive_buffers_costs_nothing_once_its_frames_are_gone() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").no_rx_buffers().connect().unwrap();
    (0..1000).for_each(|_| guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100)));
    assert!(guest.drain_tx(0, soon()));
    assert_sleeps(&flownic);
}

/// Watches the process for a while in which nothing happens. This is the one thing that can only be seen by letting
/// time pass; the bounds are far from what a spinning or ticking thread would need.
pub(crate) fn assert_sleeps(flownic: &Flownic) {
    let until = Instant::now() + Duration::from_secs(30);
    let span = Duration::from_millis(500);
    loop {
        let before = flownic.usage();
        std::thread::sleep(span);
        let after = flownic.usage();
        let (cpu, sleeps) =
            (after.cpu.saturating_sub(before.cpu), after.sleeps.saturating_sub(before.sleeps));
        // In the first span a worker may have been on its way to sleep, or a connection's thread on its way out.
        if cpu < span / 50 && sleeps <= 2 && after.threads == before.threads {
            return;
        }
        assert!(Instant::now() < until, "idle, yet in {span:?} it used {cpu:?} and woke {sleeps} times");
    }
}
