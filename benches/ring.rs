//! What a frame costs in a ring, in nanoseconds per frame, with everything in the first-level cache.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use flownic::vhost::ring::{BatchStore, HEAD, RxRing, Segment, TxRing};
use flownic::virtio::NetHeader;
use guest::{BURST, Guest, HEADER, Layout};

mod guest;

fn transmit(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring/pop+complete");
    group.throughput(Throughput::Elements(BURST.into()));
    for (name, len, layout) in [
        ("60", 60, Layout::One),
        ("1514", 1514, Layout::One),
        ("60,two descriptors", 60, Layout::Two),
        ("60,indirect", 60, Layout::Table),
    ] {
        let mut guest = Guest::sender(&[vec![7; len]], layout);
        let mut ring = TxRing::start(Arc::clone(&guest.memory), guest.setup).expect("a ring");
        let mut store = BatchStore::default();
        group.bench_function(name, |b| {
            b.iter(|| {
                guest.offer(BURST);
                black_box(ring.pop(&mut store).expect("a good ring").len());
                assert_eq!(ring.complete(), usize::from(BURST));
                black_box(ring.wants_signal())
            });
        });
        assert_eq!(ring.take_malformed(), 0);
    }
    group.finish();
}

fn receive(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring/push+publish");
    group.throughput(Throughput::Elements(BURST.into()));
    for (name, len, buffer) in
        [("60", 60, 128), ("1514", 1514, 1536), ("60,two buffers", 60, (HEADER + 59) as u32)]
    {
        let mut guest = Guest::receiver(buffer);
        let mut ring = RxRing::start(Arc::clone(&guest.memory), guest.setup).expect("a ring");
        let frame = vec![7; len];
        let (head, tail) = frame.split_at(len.min(HEAD));
        let tail = [Segment::from_slice(tail)];
        let tail = if len > HEAD { &tail[..] } else { &[] };
        let buffers = BURST * (HEADER + len).div_ceil(buffer as usize) as u16;
        group.bench_function(name, |b| {
            b.iter(|| {
                guest.offer(buffers);
                ring.prepare();
                for _ in 0..BURST {
                    ring.push(black_box(NetHeader::default()), head, tail, len).expect("a buffer");
                }
                ring.publish();
                black_box(ring.wants_signal())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, transmit, receive);
criterion_main!(benches);
