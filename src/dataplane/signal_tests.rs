//! Signals of real rings, held and sent, on a clock that is turned by hand; and by a worker that sleeps.

use std::time::{Duration, Instant};

use super::notify::Limits;
use super::testing::{Bed, frame};
use super::timers::Clock;
use super::tx::transmit;
use super::worker::{Source, Worker};
use super::{Context, signal};
use crate::config::PollMode;
use crate::latency::Bucket;
use crate::port::{PortQueue, Reflector};
use crate::vhost::ring::BatchStore;

/// Hours that no test takes.
const LONG: u32 = 3_600_000_000;

fn limits(frames: u32, usecs: u32) -> Limits {
    Limits { frames, usecs, adaptive: false }
}

/// A NIC with one pair whose receive queue has these limits, at microsecond 0.
fn bed(rx: Limits) -> Bed {
    let mut bed = Bed::new(1, 0);
    bed.post(60);
    bed.nic.limits.set_all(|vq| if vq == 0 { rx } else { Limits::OFF });
    at(&mut bed.cx, 0);
    bed
}

fn at(cx: &mut Context, usecs: u64) {
    cx.clock = Clock::Manual(usecs * 1000);
}

/// What a worker does after each step.
fn run_out(bed: &mut Bed, usecs: u64) {
    at(&mut bed.cx, usecs);
    while let Some(timer) = bed.cx.timers.take_due(usecs * 1000) {
        signal::reconsider(&bed.nic.clone(), timer, &mut bed.cx);
    }
}

fn counts(bed: &Bed) -> [u64; 5] {
    let c = &bed.nic.rx_counters[0];
    [&c.signals, &c.signals_suppressed, &c.signals_held, &c.signals_by_time, &c.signals_by_count]
        .map(|c| c.get())
}

#[test]
fn a_signal_is_held_and_the_packet_is_not() {
    let mut bed = bed(limits(0, 20));
    bed.receive_plain(&frame(0));
    assert_eq!((bed.received(0), bed.rx[0].call.count()), (vec![frame(0)], 0));
    at(&mut bed.cx, 15);
    bed.receive_plain(&frame(0));
    run_out(&mut bed, 19);
    assert_eq!((bed.received(0), bed.rx[0].call.count()), (vec![frame(0)], 0));
    run_out(&mut bed, 20);
    assert_eq!((bed.rx[0].call.count(), counts(&bed)), (1, [1, 0, 2, 1, 0]));
    run_out(&mut bed, 1000);
    assert_eq!((bed.rx[0].call.count(), bed.cx.timers.is_empty()), (0, true));
}

#[test]
fn how_long_frames_and_signals_take_is_kept_if_it_is_asked_for() {
    let mut bed = bed(limits(0, 20));
    bed.receive_plain(&frame(0));
    run_out(&mut bed, 20);
    assert_eq!(bed.nic.stats().latency, [], "nobody asked");
    bed.keep_latency();
    // Found at 100 us, published at 103, and another one before the signal at 123.
    for (found, published) in [(100, 103), (110, 111)] {
        at(&mut bed.cx, published);
        bed.cx.turn = found * 1000;
        bed.receive_plain(&frame(0));
    }
    run_out(&mut bed, 123);
    assert_eq!(bed.rx[0].call.count(), 2);
    let kept = |bed: &Bed| {
        let [queue] = &bed.nic.stats().latency[..] else { panic!("one queue") };
        let pairs = |of: &[Bucket]| of.iter().map(|b| (b.below_ns, b.count)).collect::<Vec<_>>();
        (pairs(&queue.published), pairs(&queue.signalled))
    };
    let published = vec![(Some(1024), 1), (Some(4096), 1)];
    assert_eq!(kept(&bed), (published, vec![(Some(32_768), 1)]), "1 and 3 us; 23 us from the first one");
    bed.nic.reset_stats();
    assert_eq!(kept(&bed), (vec![], vec![]));
    // Each signal stands for what has come since the one before.
    bed.nic.limits.set_all(|_| Limits::OFF);
    for (found, published) in [(200, 202), (300, 304)] {
        at(&mut bed.cx, published);
        bed.cx.turn = found * 1000;
        bed.receive_plain(&frame(0));
    }
    let both = vec![(Some(2048), 1), (Some(4096), 1)];
    assert_eq!(kept(&bed), (both.clone(), both));
}

#[test]
fn a_signal_is_sent_by_count_and_one_timer_is_enough_for_many_of_them() {
    let mut bed = bed(limits(4, 20));
    for i in 0..12 {
        bed.receive_plain(&frame(0));
        assert_eq!(bed.rx[0].call.count(), usize::from(i % 4 == 3));
    }
    assert_eq!((counts(&bed), bed.cx.timers.take_all().len()), ([3, 0, 9, 0, 3], 1));
}

#[test]
fn a_timer_that_was_set_for_an_earlier_signal_is_pushed_along() {
    let mut bed = bed(limits(2, 20));
    bed.receive_plain(&frame(0));
    bed.receive_plain(&frame(0));
    assert_eq!(bed.rx[0].call.count(), 1);
    at(&mut bed.cx, 15);
    bed.receive_plain(&frame(0));
    run_out(&mut bed, 20);
    assert_eq!((bed.rx[0].call.count(), bed.cx.timers.next_due()), (0, Some(35_000)));
    run_out(&mut bed, 35);
    assert_eq!((bed.rx[0].call.count(), counts(&bed)), (1, [2, 0, 2, 1, 1]));
}

#[test]
fn a_guest_that_has_looked_meanwhile_is_left_alone() {
    for event_idx in [false, true] {
        let mut bed = Bed::new(1, 0);
        bed.post(60);
        bed.rx[0].guest.setup.event_idx = event_idx;
        let ring = bed.rx[0].guest.rx();
        bed.nic.rx[0].change(|q| q.as_mut().unwrap().ring = ring);
        bed.nic.limits.set_all(|_| limits(0, 20));
        at(&mut bed.cx, 0);
        bed.receive_plain(&frame(0));
        let guest = &bed.rx[0].guest;
        if event_idx {
            guest.set_used_event(1)
        } else {
            guest.write_u16(guest.setup.avail, 1)
        }
        run_out(&mut bed, 20);
        assert_eq!((bed.rx[0].call.count(), counts(&bed)), (0, [0, 1, 1, 0, 0]), "{event_idx}");
        // It wants to hear of the next one.
        let guest = &bed.rx[0].guest;
        if !event_idx {
            guest.write_u16(guest.setup.avail, 0);
        }
        bed.receive_plain(&frame(0));
        run_out(&mut bed, 40);
        assert_eq!((bed.rx[0].call.count(), counts(&bed)), (1, [1, 1, 2, 1, 0]), "{event_idx}");
    }
}

#[test]
fn a_ring_of_which_three_quarters_came_back_unheard_is_signalled() {
    let mut bed = bed(limits(1000, 0));
    for i in 1..=60 {
        bed.receive_plain(&frame(0));
        assert_eq!(bed.rx[0].call.count(), usize::from(i == 48), "{i}");
    }
    assert_eq!((counts(&bed), bed.cx.timers.next_due()), ([1, 0, 59, 0, 1], None));
}

#[test]
fn limits_that_are_taken_away_or_set_reach_what_is_held() {
    let mut bed = bed(limits(50, 0));
    bed.receive_plain(&frame(0));
    for new in [limits(2, 0), limits(50, LONG), Limits::OFF] {
        bed.nic.limits.set_all(|_| new);
        for timer in bed.cx.timers.take_all() {
            signal::reconsider(&bed.nic.clone(), timer, &mut bed.cx);
        }
        assert_eq!(bed.rx[0].call.count(), usize::from(new == Limits::OFF), "{new:?}");
    }
    bed.receive_plain(&frame(0));
    assert_eq!((bed.rx[0].call.count(), counts(&bed)), (1, [2, 0, 1, 0, 0]), "as without moderation");
}

#[test]
fn a_timer_of_a_queue_that_was_replaced_does_nothing() {
    let mut bed = bed(limits(0, 20));
    bed.receive_plain(&frame(0));
    let mut old = bed.nic.rx[0].change(Option::take).unwrap();
    old.flush_signal(&bed.nic, 0);
    assert_eq!((bed.rx[0].call.count(), counts(&bed)), (1, [1, 0, 1, 0, 0]), "a stop sends what is held");
    old.flush_signal(&bed.nic, 0);
    assert_eq!(bed.rx[0].call.count(), 0, "once");
    let q = crate::nic::RxQueue::new(old.ring, old.call, None);
    bed.nic.rx[0].change(|slot| *slot = Some(q));
    bed.nic.update_targets();
    at(&mut bed.cx, 10);
    bed.receive_plain(&frame(0));
    run_out(&mut bed, 20);
    assert_eq!(bed.rx[0].call.count(), 0);
    run_out(&mut bed, 30);
    assert_eq!(bed.rx[0].call.count(), 1);
}

#[test]
fn transmit_queues_have_limits_of_their_own_and_a_worker_that_polls_is_in_no_hurry() {
    for (polls, strict, own, expected) in [
        (false, false, Limits::OFF, None),
        (true, false, Limits::OFF, Some(20)),
        (true, true, Limits::OFF, None),
        (true, false, limits(0, 300), Some(300)),
        (false, true, limits(9, 300), Some(300)),
    ] {
        let mut bed = Bed::new(1, 0);
        if strict {
            bed.make_strict();
        }
        bed.nic.limits.set_all(|vq| if vq == 1 { own } else { limits(0, 7) });
        bed.cx.tx_grace = signal::tx_grace(polls);
        at(&mut bed.cx, 0);
        bed.tx[0].guest.send(&frame(0));
        transmit(&bed.nic.clone(), 0, &mut PortQueue::Null, &mut BatchStore::default(), &mut bed.cx);
        assert_eq!(bed.tx[0].guest.used().len(), 1);
        let Some(usecs) = expected else {
            assert_eq!((bed.tx[0].call.count(), bed.cx.timers.is_empty()), (1, true));
            continue;
        };
        assert_eq!((bed.tx[0].call.count(), bed.cx.timers.next_due()), (0, Some(usecs * 1000)));
        run_out(&mut bed, usecs);
        let c = &bed.nic.tx_counters[0];
        assert_eq!((bed.tx[0].call.count(), c.signals_by_time.get(), c.signals_held.get()), (1, 1, 1));
    }
}

#[test]
fn an_adaptive_queue_is_held_when_there_is_much_and_says_how_long() {
    let mut bed = bed(Limits::ADAPTIVE);
    bed.receive_plain(&frame(0));
    assert_eq!((bed.rx[0].call.count(), bed.nic.limits.get(0).usecs), (1, 0));
    // 20 000 a second, and large; the guest posts its buffers again.
    let mut large = frame(0);
    large.resize(1514, 0);
    for i in 0..12_000u64 {
        if i % 40 == 0 {
            bed = repost(bed);
        }
        run_out(&mut bed, i * 50);
        bed.receive_plain(&large);
    }
    assert_eq!(bed.nic.limits.get(0), Limits { usecs: 64, ..Limits::ADAPTIVE });
    let [sent, _, held, by_time, _] = counts(&bed);
    assert!(held > 6_000 && by_time > 3_000 && sent < 10_000, "{:?}", counts(&bed));
    // After a pause the first one is not held.
    bed.rx[0].call.count();
    run_out(&mut bed, 2_000_000);
    bed.rx[0].call.count();
    bed.receive_plain(&frame(0));
    assert_eq!((bed.rx[0].call.count(), bed.nic.limits.get(0).usecs), (1, 0));
}

/// The same NIC with a fresh ring of buffers, in which nothing has happened.
fn repost(mut bed: Bed) -> Bed {
    let mut fresh = Bed::new(1, 0);
    fresh.post(60);
    let q = fresh.nic.rx[0].change(Option::take).unwrap();
    bed.nic.rx[0].change(|slot| {
        let slot = slot.as_mut().unwrap();
        (slot.ring, slot.call) = (q.ring, q.call);
    });
    bed.rx = fresh.rx;
    bed
}

#[test]
fn a_sleeping_worker_gets_up_for_a_signal_that_it_holds() {
    let mut bed = bed(limits(0, 3000));
    let mut worker = echo(&bed);
    bed.tx[0].guest.send(&frame(0));
    assert_ne!(worker.step(), 0);
    assert_eq!(bed.rx[0].call.count(), 0);
    let thread = std::thread::spawn(|| worker.run());
    bed.rx[0].call.wait();
    bed.worker.stop();
    thread.join().unwrap();
    assert_eq!(counts(&bed), [1, 0, 1, 1, 0]);
}

#[test]
fn a_sleeping_worker_is_woken_by_new_limits() {
    for old in [limits(0, LONG), limits(1000, 0)] {
        let mut bed = bed(old);
        bed.nic.limits.set_workers(&[bed.worker.clone()]);
        let mut worker = echo(&bed);
        bed.tx[0].guest.send(&frame(0));
        assert_ne!(worker.step(), 0);
        let thread = std::thread::spawn(|| worker.run());
        bed.nic.limits.set_all(|_| Limits::OFF);
        bed.rx[0].call.wait();
        bed.worker.stop();
        thread.join().unwrap();
    }
}

fn echo(bed: &Bed) -> Worker {
    let port = PortQueue::Reflect(Reflector { swap_macs: false });
    let sources = vec![Source::new(bed.nic.clone(), 0, port)];
    Worker::new(bed.worker.clone(), sources, PollMode::Adaptive(Duration::from_nanos(1)), Instant::now())
        .unwrap()
}
