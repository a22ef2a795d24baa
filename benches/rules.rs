//! What deciding costs as the number of rules grows, in nanoseconds per packet, and how fast rules come and go.
//!
//! Rules are of flows of the four kinds that accelerated RFS has (TCP and UDP, IPv4 and IPv6), mixed. Packets come in bursts, parsed
//! and decided about as by a worker. `flows=32` stays in the first-level cache; `flows=65536` come in an order without a
//! pattern, and nothing about them is in a cache that is near.
//!
//! `cargo bench --bench rules -- rules/` leaves out the changes; with `FLOWNIC_WRITE_DOCS=1` the figures are printed as a table, too, and
//! drawn, as they stand in docs/performance.md.

use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use flownic::packet::{Headers, parse_into};
use flownic::steer::{
    Action, DropReason, LearnConfig, LearnTable, Match, Moment, Rule, SharedSteering, SteerConfig, Steering,
    Tick, Verdict, VerdictCache,
};
use flows::{BATCH, DEST_PORT, DEST4, DEST6, HEAD, Kind, Random, frame, port, source4, source6};

mod flows;
#[path = "rules/plot.rs"]
mod plot;

const RULES: [u32; 4] = [0, 1_000, 64_000, 1_000_000];
const FEW: usize = 32;
const MANY: usize = 1 << 16;
/// Flows from this one on have no rule.
const STRANGERS: u32 = 1 << 22;

/// What accelerated RFS has classifiers for.
const KINDS: [Kind; 4] = [Kind::TCP4, Kind::UDP4, Kind { v6: true, ..Kind::TCP4 }, Kind::UDP6];

type Head = [u8; HEAD];

/// One kind after the other.
fn kind(flow: u32) -> Kind {
    KINDS[flow as usize % KINDS.len()]
}

/// What a rule for flow `n` compares, as the reference driver's accelerated RFS asks for it.
fn fields(n: u32, kind: Kind) -> Match {
    let ip = match kind.v6 {
        false => Match::new()
            .ethertype(0x0800, 0xffff)
            .ipv4()
            .ipv4_src(source4(n), Ipv4Addr::BROADCAST)
            .ipv4_dst(DEST4, Ipv4Addr::BROADCAST),
        true => {
            Match::new().ethertype(0x86dd, 0xffff).ipv6().ipv6_src(source6(n), ONES6).ipv6_dst(DEST6, ONES6)
        }
    };
    ip.protocol(kind.protocol, 0xff).src_port(port(n), 0xffff).dst_port(DEST_PORT, 0xffff)
}

const ONES6: Ipv6Addr = Ipv6Addr::from_bits(u128::MAX);

/// A rule of accelerated RFS for a flow.
fn rule(flow: u32) -> Rule {
    let kind = kind(flow);
    let classifier = KINDS.iter().position(|k| *k == kind).unwrap_or_default() as u32;
    let action = Action::Queue((flow / 4 % 16) as u16);
    Rule { group: 0, classifier, priority: 0, fields: fields(flow, kind), action }
}

/// A NIC with a rule for each of the first `rules` flows, and room for about as many.
fn nic(rules: u32) -> (Steering, LearnTable) {
    let filter_capacity = rules.next_power_of_two().max(8192);
    let mut nic = Steering::new(&SteerConfig { queue_pairs: 16, filter_capacity, ..SteerConfig::default() });
    nic.set_enabled(0xffff);
    let table = nic.filters_mut();
    table.create_group(0, 1).expect("room for a group");
    for (id, kind) in (0..).zip(KINDS) {
        table.create_classifier(id, fields(0, kind).mask()).expect("room for a classifier");
    }
    for n in 0..rules {
        table.create_rule(n, rule(n)).expect("room for a rule");
    }
    (nic, LearnTable::new(LearnConfig::default()))
}

/// So many frames of flows out of these, in an order without a pattern.
fn frames(count: usize, flows: Range<u32>) -> Vec<Head> {
    let mut random = Random::default();
    let mut flows: Vec<u32> = if flows.len() > count {
        (0..count).map(|_| flows.start + random.below(flows.len()) as u32).collect()
    } else {
        flows.cycle().take(count).collect()
    };
    random.shuffle(&mut flows);
    flows.iter().map(|n| frame(*n, kind(*n), 0)).collect()
}

fn queue(verdict: Verdict) -> u64 {
    match verdict {
        Verdict::Queue { queue, .. } => queue.into(),
        Verdict::Drop { .. } => u16::MAX.into(),
    }
}

/// What a worker has for itself.
struct Worker {
    headers: [Headers; BATCH],
    verdicts: VerdictCache,
    decided: [Verdict; BATCH],
}

impl Worker {
    fn new() -> Self {
        Worker {
            headers: [Headers::default(); BATCH],
            verdicts: VerdictCache::default(),
            decided: [Verdict::Drop { reason: DropReason::NoQueue, rule: None }; BATCH],
        }
    }

    /// Parses all frames and decides about them, burst by burst, with the verdicts of a moment ago or without.
    #[inline(never)]
    fn take(&mut self, frames: &[Head], steering: &Steering, learned: &LearnTable, cached: bool) -> u64 {
        let (now, mut sum) = (Tick::ZERO, 0);
        for burst in frames.chunks_exact(BATCH) {
            for (frame, h) in burst.iter().zip(&mut self.headers) {
                parse_into(h, frame, HEAD);
            }
            let Self { headers, verdicts, decided } = self;
            black_box(&mut *headers);
            if !cached {
                steering.classify_burst(u32::MAX, |i| &headers[i], learned, now, decided);
                sum += decided.iter().map(|v| queue(*v)).sum::<u64>();
                continue;
            }
            let moment = Moment { steering, learned, now, stamp: steering.stamp(learned, now, 1) };
            let mut unknown = 0;
            for i in 0..BATCH {
                let known = if unknown >> i & 1 == 1 {
                    Some(&decided[i])
                } else {
                    verdicts.find(moment.stamp, &headers[i])
                };
                sum += queue(known.copied().unwrap_or_else(|| {
                    unknown |= verdicts.decide(&moment, u32::MAX << i & !unknown, |i| &headers[i], decided);
                    decided[i]
                }));
            }
        }
        sum
    }
}

fn lookups(c: &mut Criterion) {
    let mut group = c.benchmark_group("rules");
    for rules in RULES {
        let (nic, learned) = nic(rules);
        let mut worker = Worker::new();
        for (flows, cached) in [(FEW, true), (FEW, false), (MANY, true)] {
            group.throughput(Throughput::Elements(flows as u64));
            let how = if cached { "" } else { ",not cached" };
            // A rule matches, where there are rules enough; or none does, and the hash decides.
            for (name, of) in [("match", 0..rules), ("none", STRANGERS..STRANGERS + flows as u32)] {
                if of.len() < flows.min(64_000) {
                    continue;
                }
                let frames = frames(flows, of);
                let id = BenchmarkId::new(format!("{name},flows={flows}{how}"), rules);
                group.bench_function(id, |b| b.iter(|| worker.take(&frames, &nic, &learned, cached)));
            }
        }
    }
    group.finish();
}

/// Rules that are deleted and added again, each under the lock for itself: alone, and while a worker decides about packets.
fn changes(c: &mut Criterion) {
    let mut group = c.benchmark_group("changes");
    group.throughput(Throughput::Elements(2));
    for rules in [64_000, 1_000_000] {
        let (nic, learned) = nic(rules);
        let steering = SharedSteering::new(nic);
        let mut n = 0;
        let mut change = || {
            n = (n + 7919) % rules;
            steering.write().filters_mut().destroy_rule(n).expect("it is there");
            steering.write().filters_mut().create_rule(n, rule(n)).expect("room for it");
        };
        group.bench_function(BenchmarkId::new("alone", rules), |b| b.iter(&mut change));
        let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|s| {
            s.spawn(|| {
                let (mut worker, frames) = (Worker::new(), frames(FEW, 0..rules));
                while !stop.load(Ordering::Relaxed) {
                    black_box(worker.take(&frames, &steering.read(), &learned, true));
                    seen.fetch_add(FEW as u64, Ordering::Relaxed);
                }
            });
            let (mut spent, mut beside) = (Duration::ZERO, 0);
            group.bench_function(BenchmarkId::new("beside a worker", rules), |b| {
                b.iter_custom(|iterations| {
                    let (start, before) = (Instant::now(), seen.load(Ordering::Relaxed));
                    (0..iterations).for_each(|_| change());
                    beside += seen.load(Ordering::Relaxed) - before;
                    spent += start.elapsed();
                    start.elapsed()
                });
            });
            if !spent.is_zero() {
                println!(
                    "The worker took {:.1} M packets/s meanwhile",
                    beside as f64 / spent.as_secs_f64() / 1e6
                );
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
    group.finish();
}

criterion_group!(benches, lookups, changes);

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    if std::env::var_os("FLOWNIC_WRITE_DOCS").is_some() {
        plot::write();
    }
}
