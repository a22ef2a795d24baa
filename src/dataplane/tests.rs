use std::time::{Duration, Instant};

use super::testing::{Bed, frame};
use super::tx::transmit;
use super::worker::{Source, Worker};
use crate::config::PollMode;
use crate::port::{PortQueue, Reflector};
use crate::steer::{FlowType, Masked, NtupleSpec, RxMode, Tick};
use crate::vhost::ring::BatchStore;
use crate::vhost::ring::testing::{NOWHERE, WRITE};
use crate::virtio::{F_GUEST_CSUM, F_GUEST_TSO4, GSO_TCPV4, HDR_F_DATA_VALID, HDR_F_NEEDS_CSUM, NetHeader};

/// The counters of a queue that are not zero, but for those of looks at its ring.
macro_rules! nonzero {
    ($counters:expr, $names:expr) => {
        $names
            .iter()
            .copied()
            .zip($counters.values())
            .filter(|(n, v)| *v != 0 && !n.starts_with("polls"))
            .collect::<Vec<_>>()
    };
}

fn rx_counts(bed: &Bed, i: usize) -> Vec<(&'static str, u64)> {
    nonzero!(bed.nic.rx_counters[i], crate::stats::RxCounters::NAMES)
}

fn tx_counts(bed: &Bed, i: usize) -> Vec<(&'static str, u64)> {
    nonzero!(bed.nic.tx_counters[i], crate::stats::TxCounters::NAMES)
}

fn nic_counts(bed: &Bed) -> Vec<(&'static str, u64)> {
    nonzero!(bed.nic.counters, crate::stats::NicCounters::NAMES)
}

fn send(bed: &mut Bed, i: usize, port: &mut PortQueue) -> bool {
    transmit(&bed.nic, i, port, &mut BatchStore::default(), &mut bed.cx) > 0
}

/// A TCP segment of `len` bytes that its sender wants cut up.
fn large(len: usize) -> (NetHeader, Vec<u8>) {
    let template = crate::port::template::Template::new;
    let frame = template(&format!("size={len},proto=tcp").parse().unwrap()).stamp(0).to_vec();
    let net = NetHeader {
        flags: HDR_F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1000,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    (net, frame)
}

#[test]
fn a_burst_is_spread_over_the_queues_in_order_with_one_signal_for_each() {
    let mut bed = Bed::new(4, 0);
    bed.post(32);
    let frames: Vec<_> = (0..32).map(frame).collect();
    let burst: Vec<_> = frames.iter().map(|f| (NetHeader::default(), &f[..])).collect();
    bed.receive(&burst);
    let mut total = 0;
    for i in 0..4 {
        let got = bed.received(i);
        // All frames of the burst that are on this queue, in the order they came in.
        let mine: Vec<_> = frames.iter().filter(|f| got.contains(f)).cloned().collect();
        assert_eq!(got, mine);
        assert!(!got.is_empty());
        assert_eq!(bed.rx[i].call.count(), 1);
        let n = got.len() as u64;
        assert_eq!(rx_counts(&bed, i), [("packets", n), ("bytes", 60 * n), ("by_rss", n), ("signals", 1)]);
        total += got.len();
    }
    assert_eq!((total, nic_counts(&bed)), (32, vec![("port_rx_packets", 32)]));
}

#[test]
fn every_frame_is_counted_once_more_under_what_decided_or_why_it_was_dropped() {
    let mut bed = Bed::new(2, 0);
    bed.post(4);
    let mut steering = bed.nic.steering.write();
    let port = |value| Some(Masked { value, mask: 0xffff });
    let rule = |src: u16, queue| NtupleSpec { src_port: port(src), ..NtupleSpec::new(FlowType::Udp4, queue) };
    steering.filters_mut().add_ntuple(rule(10_001, 1)).unwrap();
    let (_, dropping) = steering.filters_mut().add_ntuple(rule(10_002, -1)).unwrap();
    drop(steering);
    bed.receive(&[
        (NetHeader::default(), &frame(1)),
        (NetHeader::default(), &frame(2)),
        (NetHeader::default(), &[0; 13]),
        (NetHeader { flags: HDR_F_NEEDS_CSUM, csum_start: 60, ..Default::default() }, &frame(1)),
    ]);
    assert_eq!(nic_counts(&bed), [("port_rx_packets", 4), ("drop_by_rule", 1), ("drop_runt", 1)]);
    let counts = [("packets", 1), ("bytes", 60), ("by_filter", 1), ("signals", 1), ("drop_bad_offload", 1)];
    assert_eq!(rx_counts(&bed, 1), counts);
    assert_eq!((bed.nic.rule_hits.get(dropping), bed.received(1)), (1, vec![frame(1)]));
}

#[test]
fn without_a_driver_a_link_or_a_buffer_a_frame_is_dropped_for_that_reason() {
    let mut bed = Bed::new(1, 0);
    bed.receive_plain(&frame(0));
    assert_eq!(rx_counts(&bed, 0), [("drop_no_buffer", 1)]);
    assert_eq!(bed.rx[0].call.count(), 0);
    bed.post(1);
    bed.nic.set_link(false);
    bed.receive_plain(&frame(0));
    bed.nic.set_link(true);
    // Stopped after steering had last heard of it.
    let queue = bed.nic.rx[0].change(Option::take);
    bed.receive_plain(&frame(0));
    bed.nic.update_targets();
    bed.receive_plain(&frame(0));
    assert_eq!(nic_counts(&bed), [("port_rx_packets", 4), ("drop_link_down", 1), ("drop_no_queue", 1)]);
    bed.nic.rx[0].change(|slot| *slot = queue);
    bed.nic.update_targets();
    bed.receive_plain(&frame(0));
    assert_eq!(bed.received(0), [frame(0)]);
    let counts = [
        ("packets", 1),
        ("bytes", 60),
        ("by_rss", 1),
        ("signals", 1),
        ("drop_no_buffer", 1),
        ("drop_queue_stopped", 1),
    ];
    assert_eq!(rx_counts(&bed, 0), counts);
}

#[test]
fn a_guest_that_asks_for_no_interrupt_gets_none() {
    let mut bed = Bed::new(1, 0);
    bed.post(2);
    bed.rx[0].guest.write_u16(bed.rx[0].guest.setup.avail, 1);
    bed.receive_plain(&frame(0));
    assert_eq!((bed.rx[0].call.count(), bed.nic.rx_counters[0].signals_suppressed.get()), (0, 1));
    bed.rx[0].guest.write_u16(bed.rx[0].guest.setup.avail, 0);
    bed.receive_plain(&frame(0));
    assert_eq!((bed.rx[0].call.count(), bed.nic.rx_counters[0].signals.get()), (1, 1));
}

#[test]
fn offloads_are_done_for_a_guest_that_does_not_take_them() {
    let (net, tcp) = large(3054);
    let partial = NetHeader { gso_type: 0, gso_size: 0, ..net };
    for (features, frames, segmented, checksummed) in
        [(F_GUEST_CSUM | F_GUEST_TSO4, 1, 0, 0), (F_GUEST_CSUM, 3, 1, 0), (0, 3, 1, 1)]
    {
        let mut bed = Bed::new(1, features);
        bed.post(8);
        let (cx, c) = (&bed.cx.worker, &bed.nic.rx_counters[0]);
        assert_eq!((*cx, c.packets.get()), (0, 0));
        bed.receive(&[(net, &tcp)]);
        let used = bed.rx[0].guest.used();
        let expected: &[u32] = if frames == 1 { &[2048, 3066 - 2048] } else { &[1066; 3] };
        assert_eq!(used.iter().map(|u| u.1).collect::<Vec<_>>(), expected, "{features:#x}");
        bed.receive(&[(partial, &tcp[..1054])]);
        let c = &bed.nic.rx_counters[0];
        assert_eq!((c.segmented.get(), c.checksummed.get()), (segmented, checksummed), "{features:#x}");
    }
}

#[test]
fn data_valid_reaches_a_guest_that_takes_checksums_and_no_other() {
    for (features, flags) in [(F_GUEST_CSUM, HDR_F_DATA_VALID), (0, 0)] {
        let mut bed = Bed::new(1, features);
        let at = bed.rx[0].guest.post(2048);
        bed.receive(&[(NetHeader { flags: HDR_F_DATA_VALID, ..Default::default() }, &frame(0))]);
        assert_eq!(bed.rx[0].guest.read(at, 12), [flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    }
}

#[test]
fn a_receive_ring_that_its_guest_broke_stops_and_is_reported_and_its_flows_go_elsewhere() {
    let mut bed = Bed::new(2, 0);
    let to_0 = NtupleSpec {
        src_port: Some(Masked { value: 10_000, mask: 0xffff }),
        ..NtupleSpec::new(FlowType::Udp4, 0)
    };
    bed.nic.steering.write().filters_mut().add_ntuple(to_0).unwrap();
    bed.post(2);
    bed.rx[0].guest.offer(64);
    (0..3).for_each(|_| bed.receive_plain(&frame(0)));
    assert_eq!((bed.received(0).len(), bed.rx[0].err.count()), (2, 1));
    assert_eq!((bed.nic.rx_counters[0].ring_faults.get(), bed.nic.rx[0].is_running()), (1, false));
    bed.receive_plain(&frame(0));
    assert_eq!(bed.received(1), [frame(0)]);
    assert_eq!((bed.nic.rx[1].is_running(), bed.rx[1].err.count()), (true, 0));
}

#[test]
fn bad_receive_buffers_are_counted() {
    let mut bed = Bed::new(1, 0);
    bed.rx[0].guest.chain(&[(NOWHERE, 2048, WRITE)]);
    bed.post(1);
    bed.receive_plain(&frame(0));
    let c = &bed.nic.rx_counters[0];
    assert_eq!((c.bad_buffers.get(), c.packets.get()), (1, 1));
}

#[test]
fn what_a_guest_sends_is_counted_returned_and_learned() {
    let mut bed = Bed::new(2, 0);
    bed.tx[1].guest.send(&frame(3));
    bed.tx[1].guest.send(&frame(4));
    bed.tx[1].guest.chain(&[(NOWHERE, 72, 0)]);
    assert!(send(&mut bed, 1, &mut PortQueue::Null));
    assert_eq!((bed.tx[1].guest.used().len(), bed.tx[1].call.count()), (3, 1));
    let counts = [("packets", 2), ("bytes", 120), ("signals", 1), ("drop_malformed", 1)];
    assert_eq!(tx_counts(&bed, 1), counts);
    assert_eq!(nic_counts(&bed), [("port_tx_packets", 2)]);
    assert_eq!(bed.nic.learned.flows_per_queue(2, Tick::ZERO), [0, 2]);
    assert!(!send(&mut bed, 1, &mut PortQueue::Null), "nothing more");
    bed.nic.steering.write().set_learn(false);
    bed.tx[1].guest.send(&frame(5));
    assert!(send(&mut bed, 1, &mut PortQueue::Null));
    assert_eq!(bed.nic.learned.flows_per_queue(2, Tick::ZERO), [0, 2]);
}

#[test]
fn with_the_link_down_frames_are_taken_and_dropped() {
    let mut bed = Bed::new(1, 0);
    bed.post(1);
    bed.nic.set_link(false);
    bed.tx[0].guest.send(&frame(0));
    assert!(send(&mut bed, 0, &mut PortQueue::Reflect(Reflector { swap_macs: false })));
    assert_eq!(bed.tx[0].guest.used().len(), 1);
    assert_eq!((bed.nic.tx_counters[0].drop_link_down.get(), nic_counts(&bed)), (1, vec![]));
    assert_eq!(bed.received(0), [[0u8; 0]; 0]);
}

#[test]
fn a_transmit_ring_that_its_guest_broke_stops_and_is_reported() {
    let mut bed = Bed::new(1, 0);
    bed.tx[0].guest.offer(64);
    assert!(send(&mut bed, 0, &mut PortQueue::Null));
    assert_eq!((bed.tx[0].err.count(), tx_counts(&bed, 0)), (1, vec![("ring_faults", 1)]));
    assert!(!bed.nic.tx[0].is_running());
    assert!(!send(&mut bed, 0, &mut PortQueue::Null));
}

#[test]
fn a_flow_comes_back_on_the_queue_that_sent_it() {
    let mut bed = Bed::new(4, 0);
    bed.post(16);
    for i in 0..4 {
        bed.tx[i].guest.send(&frame(7));
        assert!(send(&mut bed, i, &mut PortQueue::Null));
        // The same flow, the other way round.
        let mut back = frame(7);
        for (a, b) in [(0..6, 6..12), (26..30, 30..34), (34..36, 36..38)] {
            let (left, right) = (back[a.clone()].to_vec(), back[b.clone()].to_vec());
            back[a].copy_from_slice(&right);
            back[b].copy_from_slice(&left);
        }
        bed.receive_plain(&back);
        assert_eq!(bed.received(i), [back]);
        assert_eq!(bed.nic.rx_counters[i].by_learned.get(), 1);
    }
}

#[test]
fn frames_that_are_not_for_this_nic_are_dropped_once_it_is_not_promiscuous() {
    let mut bed = Bed::new(1, 0);
    bed.post(1);
    bed.nic.steering.write().rx_filter_mut().set_mode(RxMode::FILTERED);
    bed.receive_plain(&frame(0));
    assert_eq!(nic_counts(&bed), [("port_rx_packets", 1), ("drop_rx_mode", 1)]);
}

fn worker(bed: &Bed, poll: PollMode, port: PortQueue) -> Worker {
    let sources = vec![Source::new(bed.nic.clone(), 0, port)];
    Worker::new(bed.worker.clone(), sources, poll, Instant::now()).unwrap()
}

#[test]
fn a_step_is_busy_while_there_is_something() {
    let mut bed = Bed::new(1, 0);
    bed.post(4);
    let mut worker = worker(&bed, PollMode::Off, PortQueue::Reflect(Reflector { swap_macs: false }));
    assert_eq!(worker.step(), 0);
    bed.tx[0].guest.send(&frame(9));
    assert_ne!(worker.step(), 0);
    assert_eq!(worker.step(), 0);
    assert_eq!(bed.received(0), [frame(9)]);
}

#[test]
fn a_step_carries_out_one_command_for_each_queue() {
    let mut bed = Bed::new(2, 0);
    let command = [&[2; 12][..], &[0x88, 0xb5], b"flwn", &[1, 2], &[0; 40]].concat();
    for q in &mut bed.tx {
        q.guest.setup.in_band = true;
    }
    for i in 0..2 {
        let ring = bed.tx[i].guest.tx();
        bed.nic.tx[i].change(|q| q.as_mut().unwrap().ring = ring);
        (0..20).for_each(|_| _ = bed.tx[i].guest.send(&command));
    }
    let sources = (0..2).map(|i| Source::new(bed.nic.clone(), i, PortQueue::Null)).collect();
    let mut worker = Worker::new(bed.worker.clone(), sources, PollMode::Off, Instant::now()).unwrap();
    for n in 1..=20 {
        assert_eq!(worker.step(), 2);
        for i in 0..2 {
            let counts = [("signals", n), ("in_band_commands", n), ("in_band_replies_lost", n)];
            assert_eq!(tx_counts(&bed, i), counts);
        }
    }
    assert_eq!((worker.step(), nic_counts(&bed)), (0, vec![]));
}

#[test]
fn a_sleeping_worker_is_woken_by_a_kick_and_counts_it_and_a_polling_one_needs_none() {
    for poll in [PollMode::Off, PollMode::Adaptive(Duration::from_nanos(1)), PollMode::Always] {
        let mut bed = Bed::new(1, 0);
        let worker = worker(&bed, poll, PortQueue::Null);
        let thread = std::thread::spawn(|| worker.run());
        let off = poll != PollMode::Always;
        for n in 1..=20 {
            if off {
                // It asks for kicks before it sleeps.
                while bed.tx[0].guest.read_u16(bed.tx[0].guest.setup.used) != 0 {
                    std::thread::yield_now();
                }
            }
            bed.tx[0].guest.send(&frame(0));
            if off {
                bed.tx[0].kick.fire();
            }
            bed.tx[0].call.wait();
            assert_eq!(usize::from(bed.tx[0].guest.used_idx()), n);
        }
        bed.worker.stop();
        thread.join().unwrap();
        assert_eq!(bed.nic.tx_counters[0].packets.get(), 20);
        let kicks = bed.nic.tx_counters[0].kicks.get();
        assert_eq!(kicks > 0, off, "{poll:?}: {kicks}");
    }
}

#[test]
fn a_worker_that_is_woken_looks_at_everything() {
    let mut bed = Bed::new(1, 0);
    let worker = worker(&bed, PollMode::Off, PortQueue::Null);
    let thread = std::thread::spawn(|| worker.run());
    // No kick: a ring that was filled before it was started.
    bed.tx[0].guest.send(&frame(0));
    bed.worker.wake();
    bed.tx[0].call.wait();
    bed.worker.stop();
    thread.join().unwrap();
}

#[test]
fn a_ring_found_broken_before_sleep_stops() {
    let bed = Bed::new(1, 0);
    bed.tx[0].guest.write_u16(bed.tx[0].guest.setup.avail + 2, 1000);
    let worker = worker(&bed, PollMode::Off, PortQueue::Null);
    let thread = std::thread::spawn(|| worker.run());
    bed.tx[0].err.wait();
    bed.worker.stop();
    thread.join().unwrap();
    assert_eq!(bed.nic.tx_counters[0].ring_faults.get(), 1);
}
