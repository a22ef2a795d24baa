//! Signals that are held, values in force at once, and no wake-up that is lost, whatever is held by whom.

use std::time::{Duration, Instant};

use flownic::testkit::{Command, Flownic, Guest, Layout, frame, soon};
use flownic::virtio::*;

use crate::{FLOWNIC, NOTIFICATIONS, counter, expect_counter, nic, ping};

/// An hour, in microseconds: no test takes that long.
const LONG: &str = "3600000000";

fn datagram() -> Vec<u8> {
    frame::udp("192.0.2.1:4000", "192.0.2.2:4001", 64)
}

/// Waits until so many frames more are in the ring, by looking at it: signals stay wanted, and are not needed.
fn look(guest: &mut Guest, frames: u16) {
    let until = soon();
    let ring = guest.rx(0);
    while ring.returned() != frames {
        assert!(Instant::now() < until, "frames are held: {} of {frames} are there", ring.returned());
        std::thread::yield_now();
    }
}

/// A guest whose start has been signalled, and that has seen everything.
fn settled(flownic: &Flownic, features: &str) -> Guest {
    let mut guest = flownic.guest("n0").features(features).connect().unwrap();
    ping(&mut guest, 0);
    assert!(guest.drain_tx(0, soon()));
    guest.rx(0).want_signals(true);
    guest.rx(0).signals();
    guest
}

#[test]
fn packets_are_in_the_ring_before_their_signal_is_sent_and_the_count_sends_it() {
    let flownic = nic("queues=1,port=echo");
    for features in NOTIFICATIONS {
        let mut guest = settled(&flownic, features);
        let by_count = counter(&flownic, ("rx", 0, "signals_by_count"));
        flownic.ctl(&["coalesce", "set", "rx-usecs", LONG, "rx-frames", "4"]);
        let before = guest.rx(0).signals();
        for _ in 0..3 {
            guest.send(0, &datagram());
        }
        look(&mut guest, 3);
        assert_eq!(guest.rx(0).signals(), before, "'{features}'");
        guest.send(0, &datagram());
        assert!(guest.rx(0).wait_call(soon()), "'{features}': four of them make a signal");
        assert_eq!(guest.rx(0).signals(), before + 1);
        expect_counter(&flownic, ("rx", 0, "signals_by_count"), by_count + 1, "that one");
        flownic.ctl(&["coalesce", "set", "rx-usecs", "0", "rx-frames", "0"]);
    }
}

#[test]
fn the_time_sends_a_signal_to_a_guest_that_waits() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = settled(&flownic, "");
    flownic.ctl(&["coalesce", "set", "rx-usecs", "1500", "tx-usecs", "700"]);
    for i in 0..20 {
        guest.rx(0).want_signals(true);
        guest.rx(0).signals();
        guest.send(0, &datagram());
        // It does not look before it is told to.
        assert!(guest.rx(0).wait_call(soon()), "frame {i}");
        assert!(guest.try_recv(0).is_some());
        assert!(guest.drain_tx(0, soon()));
    }
    expect_counter(&flownic, ("rx", 0, "signals_by_time"), 20, "one for each");
    assert_eq!(counter(&flownic, ("rx", 0, "signals_held")), 20);
}

#[test]
fn new_values_go_for_the_signal_that_is_held() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = settled(&flownic, "");
    for (frames, new) in [("0", ["rx-usecs", "1"]), ("9", ["rx-frames", "2"]), ("100", ["rx-usecs", "100"])] {
        flownic.ctl(&["coalesce", "set", "rx-usecs", LONG, "rx-frames", frames]);
        guest.send(0, &datagram());
        guest.send(0, &datagram());
        look(&mut guest, 2);
        flownic.ctl(&["coalesce", "set", new[0], new[1]]);
        assert!(guest.rx(0).wait_call(soon()), "held in spite of {new:?}");
        while guest.try_recv(0).is_some() {}
        guest.rx(0).want_signals(true);
    }
    // Without a limit by time nobody's clock runs; a change gets through all the same.
    flownic.ctl(&["coalesce", "set", "rx-usecs", "0", "rx-frames", "50"]);
    guest.send(0, &datagram());
    look(&mut guest, 1);
    flownic.ctl(&["coalesce", "set", "rx-frames", "0"]);
    assert!(guest.rx(0).wait_call(soon()));
}

#[test]
fn a_queue_that_stops_sends_what_it_holds() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = settled(&flownic, "");
    flownic.ctl(&["coalesce", "set", "rx-usecs", LONG]);
    guest.send(0, &datagram());
    look(&mut guest, 1);
    let bases = guest.stop().unwrap();
    assert!(guest.rx(0).wait_call(soon()));
    guest.restart(&bases).unwrap();
}

#[test]
fn strict_reads_zero_as_no_moderation() {
    let flownic = nic("queues=1,port=echo,coalesce=strict");
    let mut guest = settled(&flownic, "");
    flownic.ctl(&["coalesce", "set", "rx-usecs", LONG]);
    ping(&mut guest, 0);
    flownic.ctl(&["coalesce", "set", "rx-frames", "2"]);
    guest.send(0, &datagram());
    look(&mut guest, 1);
    assert!(counter(&flownic, ("rx", 0, "signals_held")) <= 1);
    guest.send(0, &datagram());
    assert!(guest.rx(0).wait_call(soon()));
}

#[test]
fn a_guest_sets_the_moderation_of_one_queue_and_of_all() {
    let flownic = nic("queues=2,port=echo");
    let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
    let vq_set = |vq: u16, frames: u32, usecs: u32| {
        let values = [frames.to_le_bytes(), usecs.to_le_bytes()].concat();
        Command::control(&[&[6, 2][..], &vq.to_le_bytes(), &[0, 0], &values].concat())
    };
    for (port, queue) in [("4001", "1"), ("4002", "0")] {
        flownic.ctl(&["flows", "add", "flow-type", "udp4", "dst-port", port, "action", queue]);
    }
    assert_eq!(guest.command(0, &vq_set(0, 5, 3_600_000_000), 64).answer[..1], [0]);
    // The other queue is not moderated.
    (0..10).for_each(|_| drop(ping(&mut guest, 1)));
    assert_eq!(counter(&flownic, ("rx", 1, "signals_held")), 0);
    let to_0 = frame::udp("192.0.2.1:4000", "192.0.2.2:4002", 64);
    guest.rx(0).want_signals(true);
    let before = guest.rx(0).signals();
    (0..4).for_each(|_| guest.send(0, &to_0));
    look(&mut guest, 4);
    assert_eq!(guest.rx(0).signals(), before);
    guest.send(0, &to_0);
    assert!(guest.rx(0).wait_call(soon()));
    expect_counter(&flownic, ("rx", 0, "signals_by_count"), 1, "five of them");
    while guest.try_recv(0).is_some() {}
    // RX_SET is for all of them, and the last word.
    let rx_set = [&[6, 1][..], &0u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
    assert_eq!(guest.command(0, &Command::control(&rx_set), 64).answer[..1], [0]);
    let held = counter(&flownic, ("rx", 0, "signals_held"));
    guest.rx(0).want_signals(true);
    guest.send(0, &to_0);
    assert!(guest.rx(0).wait_call(soon()));
    assert_eq!(counter(&flownic, ("rx", 0, "signals_held")), held);
}

#[test]
fn a_kick_for_nothing_is_counted_as_such() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = settled(&flownic, "");
    let (kicks, spurious) =
        (counter(&flownic, ("tx", 0, "kicks")), counter(&flownic, ("tx", 0, "kicks_spurious")));
    guest.tx(0).kick();
    expect_counter(&flownic, ("tx", 0, "kicks"), kicks + 1, "it was one");
    expect_counter(&flownic, ("tx", 0, "kicks_spurious"), spurious + 1, "and for nothing");
    assert!(
        counter(&flownic, ("tx", 0, "polls_empty")) > 0 && counter(&flownic, ("tx", 0, "polls_useful")) > 0
    );
}

/// Numbers that look random, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Frames to send and get back for each kind of ring and worker: `FLOWNIC_STALL_FRAMES` says how many.
fn stall_frames() -> u64 {
    std::env::var("FLOWNIC_STALL_FRAMES").ok().and_then(|n| n.parse().ok()).unwrap_or(12_000)
}

/// Frames after which a long run says how far it is.
const MANY: u64 = 1_000_000;

/// How long a wake-up may take. What is lost never comes, and a machine may be so busy that what is not lost takes long.
const LOST: Duration = Duration::from_secs(110);

/// Bursts of frames with pauses of any length in between. The guest sleeps whenever it waits, and at times polls; the device
/// does what its settings say. A wake-up that is lost, of either side, hangs it.
fn no_stall(poll: &str, moderation: &[&str]) {
    let flownic = Flownic::serve(FLOWNIC, &["--nic", "n0,socket=@/n0,queues=1,port=echo", "--poll", poll]);
    flownic.ctl(&[&["coalesce", "set"], moderation].concat());
    for features in NOTIFICATIONS {
        let (begin, mut told) = (Instant::now(), 0);
        // The 16-bit indexes wrap soon, and again after 65536 entries.
        let mut guest = flownic.guest("n0").features(features).first_index(0xff80).connect().unwrap();
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        let (mut sent, all) = (0, stall_frames());
        let frame = datagram();
        while sent < all {
            let longest = if dice.below(8) == 0 { 64 } else { 8 };
            let burst = 1 + dice.below(longest);
            let polls = dice.below(4) == 0;
            guest.rx(0).want_signals(!polls);
            for _ in 0..burst {
                guest.queue_tx(0, NetHeader::default(), &frame, &Layout::joined());
                if dice.below(3) == 0 {
                    guest.flush_tx(0);
                }
            }
            guest.flush_tx(0);
            for i in 0..burst {
                if guest.recv(0, Instant::now() + LOST).is_none() {
                    let n = sent + i;
                    let stats = flownic.ctl(&["stats", "--all"]);
                    panic!(
                        "--poll {poll} {moderation:?} '{features}': frame {n} of {all} is missing\n{stats}"
                    );
                }
            }
            if dice.below(16) == 0 {
                assert!(
                    guest.drain_tx(0, Instant::now() + LOST),
                    "--poll {poll} '{features}': a transmitted frame is not returned"
                );
            }
            sent += burst;
            let longest = if dice.below(64) == 0 { 100_000 } else { 500 };
            (0..dice.below(longest)).for_each(|_| std::hint::spin_loop());
            // Somebody watches a long run.
            if sent >= told + MANY || told > 0 && sent >= all {
                told = sent;
                let seconds = begin.elapsed().as_secs();
                println!(
                    "--poll {poll} {moderation:?} '{features}': {sent} of {all} frames after {seconds} s"
                );
            }
        }
        assert_eq!(counter(&flownic, ("rx", 0, "drop_no_buffer")), 0);
    }
}

#[test]
fn no_wake_up_is_lost() {
    no_stall("off", &["rx-usecs", "0"]);
}

#[test]
fn no_wake_up_is_lost_by_a_worker_that_polls_for_a_while() {
    no_stall("adaptive=20", &["rx-usecs", "0"]);
}

#[test]
fn no_wake_up_is_lost_while_signals_are_held() {
    no_stall("off", &["rx-usecs", "30", "tx-usecs", "50"]);
    no_stall("off", &["rx-usecs", "200", "rx-frames", "3", "tx-usecs", "500", "tx-frames", "7"]);
}

/// `scripts/stall` runs it, with `FLOWNIC_STALL_FRAMES` a quarter of the frames: there are two kinds of workers, and for each of them
/// rings with `EVENT_IDX` and with flags.
#[test]
#[ignore = "takes minutes to hours"]
fn no_wake_up_is_lost_in_a_long_run() {
    no_stall("off", &["rx-usecs", "0"]);
    no_stall("adaptive", &["rx-usecs", "20", "tx-usecs", "20"]);
}
