use std::net::{IpAddr, Ipv4Addr};

use super::*;
use crate::packet::PROTO_TCP;
use crate::packet::frames::{tcp4, udp6};

fn table(entries: u32, idle_secs: u16) -> LearnTable {
    LearnTable::new(LearnConfig { entries, idle_secs })
}

fn flow(n: u32) -> FlowKey {
    let ip = |b| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | b));
    FlowKey::new(ip(n), ip(1 << 23), PROTO_TCP, (n as u16, 80)).unwrap()
}

fn at(secs: u64) -> Tick {
    Tick::from_secs(secs)
}

#[test]
fn the_reverse_of_a_sent_flow_is_found_and_follows_its_sender() {
    let table = table(64, 10);
    for sent in [tcp4(), udp6()].map(|f| f.headers().flow().unwrap()) {
        table.learn(&sent, 3, at(100));
        assert_eq!(table.lookup(&sent.reversed(), at(100)), Some(3));
        assert_eq!(table.lookup(&sent, at(100)), None);
        table.learn(&sent, 0, at(100));
        assert_eq!(table.lookup(&sent.reversed(), at(100)), Some(0));
    }
    assert_eq!(table.stats(), LearnStats { learned: 2, moved: 2, ..LearnStats::default() });
    table.learn(&flow(9), QUEUES, at(100));
    assert_eq!(table.lookup(&flow(9).reversed(), at(100)), None);
    table.learn(&flow(9), QUEUES - 1, at(100));
    assert_eq!(table.lookup(&flow(9).reversed(), at(100)), Some(QUEUES - 1));
}

#[test]
fn an_idle_flow_expires_and_a_sent_packet_keeps_it() {
    let table = table(64, 10);
    table.learn(&flow(1), 1, at(100));
    assert_eq!(table.lookup(&flow(1).reversed(), at(110)), Some(1));
    assert_eq!(table.lookup(&flow(1).reversed(), at(111)), None);
    table.learn(&flow(1), 2, at(120));
    assert_eq!(table.stats(), LearnStats { learned: 2, expired: 1, ..LearnStats::default() });
    for now in (120..200).step_by(10) {
        table.learn(&flow(1), 2, at(now));
    }
    assert_eq!(table.lookup(&flow(1).reversed(), at(200)), Some(2));
    assert_eq!(table.stats().learned, 2);
    // Another worker's clock may be a moment behind.
    assert_eq!(table.lookup(&flow(1).reversed(), at(189)), Some(2));
}

#[test]
fn seconds_that_come_round_do_not_revive_a_flow() {
    let idle = 10;
    for gap in [1 << 14, 1 << 15, 1 << 16, (1 << 16) + 5, 3 << 16, 1 << 31, (1 << 32) - (1 << 16)] {
        let table = table(64, idle);
        table.learn(&flow(1), 1, at(1000));
        assert_eq!(table.lookup(&flow(1).reversed(), at(1000 + gap)), None, "{gap}");
        assert_eq!(table.flows_per_queue(2, at(1000 + gap)), [0, 0], "{gap}");
    }
    // Used by others all the time, so that only the periodic sweeps stand between it and its second youth.
    let table = table(64, idle);
    table.learn(&flow(1), 1, at(1000));
    for now in 1011..(1 << 17) {
        assert_eq!(table.lookup(&flow(1).reversed(), at(now)), None, "{now}");
    }
}

#[test]
fn a_full_set_evicts_its_oldest() {
    let table = table(WAYS as u32, 100);
    assert_eq!(table.capacity(), WAYS);
    for n in 0..WAYS as u32 {
        table.learn(&flow(n), 1, at(10 + u64::from(n)));
    }
    table.learn(&flow(0), 1, at(50));
    table.learn(&flow(99), 1, at(51));
    let found: Vec<u32> = (0..100).filter(|&n| table.lookup(&flow(n).reversed(), at(51)).is_some()).collect();
    assert_eq!(found, [0, 2, 3, 4, 5, 6, 7, 99]);
    assert_eq!(table.stats(), LearnStats { learned: 9, evicted: 1, ..LearnStats::default() });
}

#[test]
fn an_expired_entry_is_taken_before_a_live_one_is_evicted() {
    let table = table(WAYS as u32, 10);
    for n in 0..WAYS as u32 {
        table.learn(&flow(n), 1, at(if n == 5 { 10 } else { 20 }));
    }
    table.learn(&flow(99), 1, at(25));
    assert_eq!(table.stats(), LearnStats { learned: 9, expired: 1, ..LearnStats::default() });
}

#[test]
fn flows_are_counted_and_forgotten_by_queue() {
    let table = table(4096, 10);
    for n in 0..300 {
        table.learn(&flow(n), (n % 3) as u16, at(7));
    }
    assert_eq!(table.flows_per_queue(3, at(7)), [100, 100, 100]);
    assert_eq!(table.flows_per_queue(3, at(18)), [0, 0, 0]);
    table.clear_queue(1);
    assert_eq!(table.flows_per_queue(4, at(7)), [100, 0, 100, 0]);
    assert_eq!(table.lookup(&flow(1).reversed(), at(7)), None);
    table.clear();
    assert_eq!(table.flows_per_queue(1, at(7)), [0]);
}

#[test]
fn steady_traffic_writes_nothing_within_a_second() {
    let table = table(64, 10);
    table.learn(&flow(1), 1, at(5));
    let before: Vec<u64> = table.ways().map(|w| w.load(Relaxed)).collect();
    table.learn(&flow(1), 1, at(5));
    assert!(table.ways().map(|w| w.load(Relaxed)).eq(before.iter().copied()));
    table.learn(&flow(1), 1, at(6));
    assert!(!table.ways().map(|w| w.load(Relaxed)).eq(before));
}

#[test]
fn workers_share_a_table() {
    let table = table(1 << 20, 10);
    std::thread::scope(|scope| {
        for worker in 0..4u32 {
            let table = &table;
            scope.spawn(move || {
                for n in 0..1000 {
                    // Whoever loses a claim to another worker tries again with the next packet.
                    while table.lookup(&flow(worker << 16 | n).reversed(), at(5)).is_none() {
                        table.learn(&flow(worker << 16 | n), worker as u16, at(5));
                    }
                }
            });
        }
    });
    for worker in 0..4u32 {
        for n in 0..1000 {
            assert_eq!(table.lookup(&flow(worker << 16 | n).reversed(), at(10)), Some(worker as u16));
        }
    }
    assert_eq!(table.stats().learned, 4000);
}
