//! What a frame costs in a whole step of a worker, in nanoseconds per frame: out of the transmit ring, through steering,
//! and into the receive ring, as the port has it. Everything is in the first-level cache, 16 flows, one queue pair.
//!
//! `spread`: the same with four queue pairs, the receive rings of which are full, and all frames sent on one queue: RSS spreads
//! each burst.
//!
//! `turn`: what a step costs that finds one frame, which is what the NIC adds to a round trip, and one that finds none.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use flownic::config::{DEVICE_FEATURES, InBand, NicConfig, PollMode, PortConfig};
use flownic::dataplane::notify::CoalesceRule;
use flownic::dataplane::worker::{Source, Worker, WorkerHandle};
use flownic::nic::{Nic, RxQueue, TxQueue};
use flownic::port::template::{GenConfig, Template};
use flownic::port::{Generator, PortQueue, Reflector};
use flownic::steer::{FlowType, LearnConfig, Masked, Mode, NtupleSpec, SteerConfig};
use flownic::vhost::Endpoint;
use flownic::vhost::ring::{RingSetup, RxRing, TxRing};
use guest::{BURST, Guest, Layout};

mod guest;

const FRAME: usize = 60;

fn traffic() -> GenConfig {
    format!("flows=16,size={FRAME}").parse().expect("a generator")
}

/// A NIC that is sent to on one queue, and its worker.
struct Bed {
    nic: Arc<Nic>,
    worker: Worker,
    sender: Guest,
    receivers: Vec<Guest>,
}

impl Bed {
    fn new(port: &str, mode: Mode, rules: u32, packed: bool, queues: u16) -> Self {
        let handle = Arc::new(WorkerHandle::new(0).expect("descriptors"));
        let config = NicConfig {
            name: "n0".into(),
            endpoint: Endpoint::Listen(PathBuf::new()),
            queue_pairs: queues,
            port: PortConfig::Null,
            features: DEVICE_FEATURES,
            mtu: 1500,
            steer: SteerConfig { queue_pairs: queues, ..SteerConfig::default() },
            learn: LearnConfig::default(),
            capture: None,
            in_band: InBand::default(),
            coalesce: CoalesceRule::default(),
            latency: false,
            profile: None,
        };
        let nic = Arc::new(Nic::new(1, config, vec![Arc::clone(&handle); queues.into()], 1, None));
        nic.features.store(DEVICE_FEATURES, Ordering::Relaxed);

        let mut template = Template::new(&traffic());
        let frames: Vec<Vec<u8>> = (0..16).map(|flow| template.stamp(flow).to_vec()).collect();
        let format = |guest: Guest| if packed { guest.into_packed() } else { guest };
        let sender = format(Guest::sender(&frames, Layout::One));
        let setup = RingSetup { in_band: true, ..sender.setup };
        let tx = TxRing::start(Arc::clone(&sender.memory), setup).expect("a ring");
        let kick = File::open("/dev/null").expect("a file");
        nic.tx[0].change(|q| *q = Some(TxQueue::new(tx, None, None, kick)));
        let receivers: Vec<_> = (0..queues).map(|_| format(Guest::receiver(128))).collect();
        for (guest, queue) in receivers.iter().zip(&nic.rx) {
            let rx = RxRing::start(Arc::clone(&guest.memory), guest.setup).expect("a ring");
            queue.change(|q| *q = Some(RxQueue::new(rx, None, None)));
        }
        nic.update_targets();

        let mut steering = nic.steering.write();
        steering.set_mode(mode);
        for n in 0..rules {
            let spec = NtupleSpec {
                dst_port: Some(Masked { value: 20_000 + n as u16, mask: 0xffff }),
                ..NtupleSpec::new(FlowType::Udp4, 0)
            };
            steering.filters_mut().add_ntuple(spec).expect("room for a rule");
        }
        drop(steering);

        let port = match port {
            "echo" => PortQueue::Reflect(Reflector { swap_macs: true }),
            "gen" => PortQueue::Generator(Generator::new(&nic, &traffic(), 0)),
            _ => PortQueue::Null,
        };
        let sources = vec![Source::new(Arc::clone(&nic), 0, port)];
        let worker = Worker::new(handle, sources, PollMode::Always, Instant::now()).expect("descriptors");
        Bed { nic, worker, sender, receivers }
    }
}

fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("step");
    group.throughput(Throughput::Elements(BURST.into()));
    for port in ["null", "echo", "gen"] {
        for (mode_name, mode) in [("automatic", Mode::Automatic), ("rss", Mode::Rss)] {
            for (rules, packed) in [(0, false), (1000, false), (1000, true)] {
                let format = if packed { ",packed" } else { "" };
                let mut bed = Bed::new(port, mode, rules, packed, 1);
                let (sends, receives) = (port != "gen", port != "null");
                group.bench_function(
                    BenchmarkId::new(port, format!("{mode_name},rules={rules}{format}")),
                    |b| {
                        b.iter(|| {
                            if sends {
                                bed.sender.offer(BURST);
                            }
                            if receives {
                                bed.receivers[0].offer(BURST);
                            }
                            assert_ne!(bed.worker.step(), 0);
                        });
                    },
                );
                let (tx, rx) = (bed.nic.tx_counters[0].packets.get(), bed.nic.rx_counters[0].packets.get());
                // Nothing happened if it was not asked for on the command line.
                let as_expected = (tx > 0, rx > 0) == (sends, receives) && (!sends || !receives || tx == rx);
                assert!(tx + rx == 0 || as_expected, "{:?}", bed.nic.stats());
            }
        }
    }
    group.finish();
}

fn spread(c: &mut Criterion) {
    const QUEUES: u16 = 4;
    let mut group = c.benchmark_group("spread");
    group.throughput(Throughput::Elements(BURST.into()));
    for packed in [false, true] {
        let mut bed = Bed::new("echo", Mode::Rss, 1000, packed, QUEUES);
        // Rings that are full at first, and again after each step.
        bed.receivers.iter_mut().for_each(|guest| guest.offer(guest.setup.size));
        let mut received = [0; QUEUES as usize];
        group.bench_function(if packed { "packed" } else { "split" }, |b| {
            b.iter(|| {
                bed.sender.offer(BURST);
                assert_ne!(bed.worker.step(), 0);
                for ((guest, queue), before) in
                    bed.receivers.iter_mut().zip(&bed.nic.rx_counters).zip(&mut received)
                {
                    let now = queue.packets.get();
                    guest.offer((now - *before) as u16);
                    *before = now;
                }
            });
        });
        let sent = bed.nic.tx_counters[0].packets.get();
        let spread = received.iter().all(|got| sent == 0 || *got > 0);
        assert!(spread && received.iter().sum::<u64>() == sent, "{received:?} of {sent}");
    }
    group.finish();
}

fn turn(c: &mut Criterion) {
    let mut group = c.benchmark_group("turn");
    let mut bed = Bed::new("echo", Mode::Automatic, 1000, false, 1);
    for frames in [0, 1] {
        group.bench_function(BenchmarkId::new("echo", frames), |b| {
            b.iter(|| {
                bed.sender.offer(frames);
                bed.receivers[0].offer(frames);
                assert_eq!(bed.worker.step() != 0, frames != 0);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, step, spread, turn);
criterion_main!(benches);
