//! What a packet costs in the parser and the classifier, in nanoseconds per packet.
//!
//! Every iteration handles a burst of packets of different flows, as the data plane does, so that the branch predictor
//! and the cache see a mix. `flows` of a name is how many flows the packets are spread over.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use flownic::packet::{FlowKey, Headers, parse, parse_into};
use flownic::steer::{
    FlowType, LearnConfig, LearnTable, Masked, Mode, NtupleSpec, SteerConfig, Steering, Tick, Verdict,
};
use flows::{BATCH, DEST_PORT, DEST4, HEAD, Kind, Random, frame, port, source4};

mod flows;

/// Frames of `flows` flows in an order without a pattern.
fn frames(flows: u32, kind: Kind, tags: usize) -> Vec<[u8; HEAD]> {
    let mut frames: Vec<_> = (0..flows).map(|n| frame(n, kind, tags)).collect();
    Random::default().shuffle(&mut frames);
    frames
}

fn nic() -> (Steering, LearnTable) {
    let mut nic =
        Steering::new(&SteerConfig { queue_pairs: 16, filter_capacity: 65536, ..SteerConfig::default() });
    nic.set_enabled(0xffff);
    (nic, LearnTable::new(LearnConfig::default()))
}

/// A 5-tuple rule for UDP flow `n`.
fn rule(n: u32) -> NtupleSpec {
    let ones = IpAddr::V4(Ipv4Addr::BROADCAST);
    NtupleSpec {
        src_ip: Some(Masked { value: source4(n).into(), mask: ones }),
        dst_ip: Some(Masked { value: DEST4.into(), mask: ones }),
        src_port: Some(Masked { value: port(n), mask: 0xffff }),
        dst_port: Some(Masked { value: DEST_PORT, mask: 0xffff }),
        ..NtupleSpec::new(FlowType::Udp4, i64::from(n % 16))
    }
}

fn queue(verdict: Verdict) -> u16 {
    match verdict {
        Verdict::Queue { queue, .. } => queue,
        Verdict::Drop { .. } => u16::MAX,
    }
}

fn parse_bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    for (name, kind, tags) in [
        ("udp4", Kind::UDP4, 0),
        ("tcp4", Kind::TCP4, 0),
        ("udp6", Kind::UDP6, 0),
        ("udp4-qinq", Kind::UDP4, 2),
    ] {
        let frames = frames(BATCH as u32, kind, tags);
        group.throughput(Throughput::Elements(frames.len() as u64));
        let mut headers = [Headers::default(); BATCH];
        group.bench_function(name, |b| {
            b.iter(|| {
                for (frame, h) in frames.iter().zip(&mut headers) {
                    parse_into(h, frame, HEAD);
                }
                black_box(&mut headers);
            });
        });
    }
    group.finish();
}

/// Parse and classify all frames, in batches as a worker does.
fn run(b: &mut criterion::Bencher, frames: &[[u8; HEAD]], nic: &Steering, learned: &LearnTable) {
    let mut headers = [Headers::default(); BATCH];
    b.iter(|| {
        let mut sum = 0u64;
        for batch in frames.chunks(BATCH) {
            for (frame, h) in batch.iter().zip(&mut headers) {
                parse_into(h, frame, HEAD);
            }
            black_box(&mut headers);
            for h in &headers[..batch.len()] {
                sum += u64::from(queue(nic.classify(h, learned, Tick::ZERO)));
            }
        }
        sum
    });
}

fn classify_bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse+classify");
    for (rules, flows) in
        [(10, 10), (1_000, 32), (1_000, 1_000), (64_000, 32), (64_000, 1_000), (64_000, 64_000)]
    {
        let (mut nic, learned) = nic();
        for n in 0..rules {
            nic.filters_mut().add_ntuple(rule(n)).unwrap();
        }
        // Hits: flows that have a rule. Misses: flows behind those, which end at the hash.
        let hits: Vec<_> = frames(rules, Kind::UDP4, 0).into_iter().take(flows).collect();
        let mut misses = hits.clone();
        misses.iter_mut().for_each(|f| f[36] = 1);
        group.throughput(Throughput::Elements(hits.len() as u64));
        let id = |kind| BenchmarkId::new(kind, format!("rules={rules},flows={flows}"));
        group.bench_function(id("hit"), |b| run(b, &hits, &nic, &learned));
        nic.set_mode(Mode::Rss);
        group.bench_function(id("miss-rss"), |b| run(b, &misses, &nic, &learned));
    }
    // Several masks, that is several hash tables, none of which matches.
    for masks in [1u16, 4, 16] {
        let (mut nic, learned) = nic();
        nic.set_mode(Mode::Rss);
        for n in 0..1000u32 {
            let mask = 0xff00 | (n as u16 % masks);
            let spec = NtupleSpec { dst_port: Some(Masked { value: 0x5000, mask }), ..rule(n) };
            nic.filters_mut().add_ntuple(spec).unwrap();
        }
        let frames = frames(1000, Kind::UDP4, 0);
        group.throughput(Throughput::Elements(frames.len() as u64));
        group.bench_function(BenchmarkId::new("miss-rss", format!("rules=1000,masks={masks}")), |b| {
            run(b, &frames, &nic, &learned);
        });
    }
    for (name, kind) in [("v4", Kind::UDP4), ("v6", Kind::UDP6)] {
        for flows in [32, 1_000] {
            let frames = frames(flows, kind, 0);
            group.throughput(Throughput::Elements(frames.len() as u64));
            let (mut nic, learned) = nic();
            for frame in &frames {
                let sent: FlowKey = parse(frame, HEAD).flow().unwrap().reversed();
                learned.learn(&sent, 3, Tick::ZERO);
            }
            let id = |kind| BenchmarkId::new(kind, format!("{name},flows={flows}"));
            group.bench_function(id("learned"), |b| run(b, &frames, &nic, &learned));
            learned.clear();
            group.bench_function(id("learn-miss-rss"), |b| run(b, &frames, &nic, &learned));
            nic.set_mode(Mode::Rss);
            group.bench_function(id("rss"), |b| run(b, &frames, &nic, &learned));
        }
    }
    group.finish();
}

fn stages_bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("stage");
    for (name, kind) in [("v4", Kind::UDP4), ("v6", Kind::UDP6)] {
        let headers: Vec<Headers> = frames(1_000, kind, 0).iter().map(|f| parse(f, HEAD)).collect();
        let flows: Vec<FlowKey> = headers.iter().filter_map(Headers::flow).collect();
        group.throughput(Throughput::Elements(headers.len() as u64));
        let (nic, learned) = nic();
        group.bench_function(BenchmarkId::new("toeplitz", name), |b| {
            b.iter(|| headers.iter().filter_map(|h| nic.rss().hash(h)).fold(0, |sum, (hash, _)| sum ^ hash));
        });
        flows.iter().for_each(|flow| learned.learn(flow, 3, Tick::ZERO));
        group.bench_function(BenchmarkId::new("learn-known", name), |b| {
            b.iter(|| flows.iter().for_each(|flow| learned.learn(flow, 3, Tick::ZERO)));
        });
    }
    let mut n = 0;
    let (mut nic, _) = nic();
    group.throughput(Throughput::Elements(1));
    for n in 0..32_000 {
        nic.filters_mut().add_ntuple(NtupleSpec { loc: Some(n), ..rule(n) }).unwrap();
    }
    group.bench_function("add+remove at 32000 rules", |b| {
        b.iter(|| {
            n = (n + 7919) % 32_000;
            let (loc, _) = nic.filters_mut().add_ntuple(rule(32_000 + n)).unwrap();
            nic.filters_mut().remove_ntuple(loc).unwrap();
        });
    });
    group.finish();
}

criterion_group!(benches, parse_bench, classify_bench, stages_bench);
criterion_main!(benches);
