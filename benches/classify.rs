//! What a packet costs in the parser and the classifier, in nanoseconds per packet.
//!
//! Every iteration handles a burst of packets of different flows, as the data plane does, so that the branch predictor
//! and the cache see a mix. `flows` of a name is how many flows the packets are spread over.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use flownic::packet::{FlowKey, Headers, PROTO_TCP, PROTO_UDP, parse, parse_into};
use flownic::steer::{
    FlowType, LearnConfig, LearnTable, Masked, Mode, NtupleSpec, SteerConfig, Steering, Tick, Verdict,
};

const HEAD: usize = 128;
const BATCH: usize = 32;

/// A 60-byte UDP or TCP frame of flow `n`, padded to a snapshot of 128 bytes.
fn frame(n: u32, v6: bool, tags: usize, protocol: u8) -> [u8; HEAD] {
    let mut b = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in 0..tags {
        b.extend([0x81, 0, 0, tag as u8 + 1]);
    }
    let l4: u16 = if protocol == PROTO_TCP { 20 } else { 8 };
    if v6 {
        b.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        b.extend(l4.to_be_bytes());
        b.extend([protocol, 64]);
        b.extend(source6(n).octets());
        b.extend(DEST6.octets());
    } else {
        b.extend([0x08, 0, 0x45, 0]);
        b.extend((20 + l4).to_be_bytes());
        b.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
        b.extend(source4(n).octets());
        b.extend(DEST4.octets());
    }
    b.extend(port(n).to_be_bytes());
    b.extend(80u16.to_be_bytes());
    b.extend([0, 8, 0, 0, 0, 0, 0, 0, 0x50, 0x18, 0, 0, 0, 0, 0, 0]);
    b.resize(HEAD, 0);
    b.try_into().unwrap()
}

const DEST4: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
const DEST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

fn source4(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 | n >> 4)
}

fn source6(n: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfd01 << 112 | u128::from(n >> 4))
}

fn port(n: u32) -> u16 {
    1024 + (n & 15) as u16
}

/// Frames of `flows` flows in an order without a pattern.
fn frames(flows: u32, v6: bool, tags: usize, protocol: u8) -> Vec<[u8; HEAD]> {
    let mut frames: Vec<_> = (0..flows).map(|n| frame(n, v6, tags, protocol)).collect();
    let mut random = 0x2545_f491_4f6c_dd1du64;
    for i in (1..frames.len()).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        frames.swap(i, random as usize % (i + 1));
    }
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
        dst_port: Some(Masked { value: 80, mask: 0xffff }),
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
    for (name, v6, tags, protocol) in [
        ("udp4", false, 0, PROTO_UDP),
        ("tcp4", false, 0, PROTO_TCP),
        ("udp6", true, 0, PROTO_UDP),
        ("udp4-qinq", false, 2, PROTO_UDP),
    ] {
        let frames = frames(BATCH as u32, v6, tags, protocol);
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
        let hits: Vec<_> = frames(rules, false, 0, PROTO_UDP).into_iter().take(flows).collect();
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
        let frames = frames(1000, false, 0, PROTO_UDP);
        group.throughput(Throughput::Elements(frames.len() as u64));
        group.bench_function(BenchmarkId::new("miss-rss", format!("rules=1000,masks={masks}")), |b| {
            run(b, &frames, &nic, &learned);
        });
    }
    for (name, v6) in [("v4", false), ("v6", true)] {
        for flows in [32, 1_000] {
            let frames = frames(flows, v6, 0, PROTO_UDP);
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
    for (name, v6) in [("v4", false), ("v6", true)] {
        let headers: Vec<Headers> = frames(1_000, v6, 0, PROTO_UDP).iter().map(|f| parse(f, HEAD)).collect();
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
