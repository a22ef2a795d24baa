use super::super::testing::*;
use super::super::{BATCH, BatchStore, MAX_FRAME, MIN_FRAME, RingFault};
use crate::virtio::{HDR_F_NEEDS_CSUM, NetHeader};

fn header() -> NetHeader {
    NetHeader {
        flags: HDR_F_NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 6,
        gso_size: 1448,
        ..Default::default()
    }
}

/// Header and frame, as the driver lays them out one after the other.
fn message(guest: &Guest, frame: &[u8]) -> Vec<u8> {
    [&header().to_bytes()[..guest.setup.header_len], frame].concat()
}

#[test]
fn no_assumption_about_the_arrangement_of_descriptors_header_and_frame_split_at_every_byte() {
    for new in BOTH {
        for header_len in [10, 12] {
            for frame_len in [MIN_FRAME, 60, 200] {
                let mut guest = new(256);
                guest.setup.header_len = header_len;
                let frame = noise(header_len, frame_len);
                let bytes = message(&guest, &frame);
                let at = guest.alloc(bytes.len());
                guest.write(at, &bytes);
                let mut ring = guest.tx();
                let total = bytes.len() as u32;
                for split in 0..=total {
                    guest.chain(&[(at, split, 0), (at + u64::from(split), total - split, 0)]);
                    assert_eq!(take(&mut ring), [(header(), frame.clone())], "split at {split}");
                }
                assert_eq!(ring.take_malformed(), 0);
            }
        }
    }
}

#[test]
fn a_descriptor_for_each_byte_is_a_frame_too() {
    for new in BOTH {
        let mut guest = new(128);
        let frame = noise(1, 116);
        let bytes = message(&guest, &frame);
        let at = guest.alloc(bytes.len());
        guest.write(at, &bytes);
        let single: Vec<_> = (0..bytes.len() as u64).map(|i| (at + i, 1, 0)).collect();
        assert_eq!(single.len(), 128, "as many as the ring has");
        guest.chain(&single);
        assert_eq!(take(&mut guest.tx()), [(header(), frame)]);
    }
}

#[test]
fn a_chain_may_be_indirect_and_in_a_split_ring_end_in_an_indirect_table() {
    for new in BOTH {
        let mut guest = new(16);
        let frame = noise(2, 300);
        let bytes = message(&guest, &frame);
        let at = guest.alloc(bytes.len());
        guest.write(at, &bytes);
        let (a, b, c) = ((at, 12, 0), (at + 12, 100, 0), (at + 112, 200, 0));
        let (table, len) = guest.table(&[a, b, c]);
        guest.chain(&[(table, len, INDIRECT)]);
        if guest.setup.packed {
            assert_eq!(take(&mut guest.tx()), [(header(), frame)]);
            continue;
        }
        let (table, len) = guest.table(&[b, c]);
        guest.chain(&[a, (table, len, INDIRECT)]);
        assert_eq!(take(&mut guest.tx()), vec![(header(), frame); 2]);
    }
}

#[test]
fn the_device_ignores_the_write_only_flag_of_a_descriptor_that_refers_to_an_indirect_table() {
    for new in BOTH {
        let mut guest = new(16);
        let at = guest.alloc(72);
        let (table, len) = guest.table(&[(at, 72, 0)]);
        guest.chain(&[(table, len, INDIRECT | WRITE)]);
        assert_eq!(take(&mut guest.tx()).len(), 1);
    }
}

#[test]
fn a_buffer_may_lie_across_two_regions_of_memory() {
    for new in BOTH {
        let mut guest = new(256);
        let frame = noise(3, 400);
        let bytes = message(&guest, &frame);
        let mut ring = guest.tx();
        for before in 0..=bytes.len() as u64 {
            guest.write(BOUNDARY - before, &bytes);
            guest.chain(&[(BOUNDARY - before, bytes.len() as u32, 0)]);
            assert_eq!(take(&mut ring), [(header(), frame.clone())], "{before} bytes in the first one");
        }
        assert_eq!(ring.take_malformed(), 0);
    }
}

#[test]
fn num_buffers_of_a_sent_frame_is_not_looked_at() {
    for new in BOTH {
        let mut guest = new(4);
        let at = guest.alloc(72);
        guest.write(at, &NetHeader { num_buffers: 7, ..header() }.to_bytes());
        guest.chain(&[(at, 72, 0)]);
        guest.chain(&[(at, 5, 0), (at + 5, 67, 0)]);
        let taken = take(&mut guest.tx());
        assert_eq!([taken[0].0, taken[1].0], [header(); 2]);
    }
}

#[test]
fn the_longest_frame_is_taken_and_a_longer_one_is_not() {
    for new in BOTH {
        let mut guest = new(16);
        for (extra, frames) in [(0, 1), (1, 0)] {
            let bytes = message(&guest, &noise(4, MAX_FRAME + extra));
            let at = guest.alloc(bytes.len());
            guest.write(at, &bytes);
            let n = bytes.len() as u32;
            let mut ring = guest.tx();
            guest.chain(&[(at, n, 0)]);
            guest.chain(&[(at, 100, 0), (at + 100, n - 100, 0)]);
            let taken = take(&mut ring);
            assert_eq!((taken.len(), ring.take_malformed()), (2 * frames, 2 - 2 * frames as u64));
            assert!(taken.iter().all(|(_, frame)| *frame == bytes[12..]));
            guest.setup.base = ring.base();
        }
    }
}

/// Makes one bad chain available in a ring of 8 entries.
type Bad = fn(&mut Guest, at: u64) -> u16;

/// What only a split ring can have.
const BAD_IN_SPLIT: &[(&str, Bad)] = &[
    ("a loop", |g, at| {
        let head = g.chain(&[(at, 1, 0), (at, 1, 0)]);
        g.write_desc(g.setup.desc, 1, (at, 1, NEXT, 0));
        head
    }),
    ("one that names a descriptor outside of the table", |g, at| {
        let head = g.chain(&[(at, 72, 0)]);
        g.write_desc(g.setup.desc, 0, (at, 72, NEXT, 8));
        head
    }),
    ("a table in a table", |g, at| {
        let (inner, inner_len) = g.table(&[(at, 72, 0)]);
        let (table, len) = g.table(&[(at, 12, 0), (inner, inner_len, INDIRECT)]);
        g.chain(&[(table, len, INDIRECT)])
    }),
    ("a loop in a table", |g, at| {
        let (table, len) = g.table(&[(at, 12, 0)]);
        g.write_desc(table, 0, (at, 12, NEXT, 0));
        g.chain(&[(table, len, INDIRECT)])
    }),
    ("a table that names a descriptor behind itself", |g, at| {
        let (table, len) = g.table(&[(at, 72, 0), (at, 72, 0)]);
        g.write_desc(table, 1, (at, 72, NEXT, 2));
        g.chain(&[(table, len, INDIRECT)])
    }),
];

/// What only a packed ring does not take.
const BAD_IN_PACKED: &[(&str, Bad)] = &[("a table behind direct descriptors", |g, at| {
    let (table, len) = g.table(&[(at, 72, 0)]);
    g.chain(&[(at, 12, 0), (table, len, INDIRECT)])
})];

const BAD: &[(&str, Bad)] = &[
    ("no longer than the header", |g, at| g.chain(&[(at, 12, 0)])),
    ("one byte short of an Ethernet header", |g, at| g.chain(&[(at, 12, 0), (at + 12, 13, 0)])),
    ("without a byte", |g, at| g.chain(&[(at, 0, 0)])),
    ("device-writable", |g, at| g.chain(&[(at, 72, WRITE)])),
    ("device-writable at its end", |g, at| g.chain(&[(at, 72, 0), (at, 8, WRITE)])),
    ("unmapped", |g, _| g.chain(&[(NOWHERE, 72, 0)])),
    ("unmapped at its end", |g, _| g.chain(&[(FAR + 0x1_0000 - 71, 72, 0)])),
    ("at the end of all addresses", |g, _| g.chain(&[(u64::MAX - 10, 72, 0)])),
    ("of 4 GiB", |g, at| g.chain(&[(at, u32::MAX, 0)])),
    ("an empty indirect table", |g, at| g.chain(&[(at, 0, INDIRECT)])),
    ("a table that is no multiple of 16", |g, at| {
        let (table, len) = g.table(&[(at, 72, 0)]);
        g.chain(&[(table, len + 8, INDIRECT)])
    }),
    ("a table longer than the ring", |g, at| {
        let (table, len) = g.table(&[(at, 12, 0); 9]);
        g.chain(&[(table, len, INDIRECT)])
    }),
    ("a table and direct descriptors, together longer than the ring", |g, at| {
        let (table, len) = g.table(&[(at, 12, 0); 8]);
        g.chain(&[(at, 12, 0), (table, len, INDIRECT)])
    }),
    ("INDIRECT and NEXT", |g, at| {
        let (table, len) = g.table(&[(at, 72, 0)]);
        g.chain(&[(table, len, INDIRECT), (at, 72, 0)])
    }),
    ("an unaligned table", |g, at| {
        let (table, _) = g.table(&[(at, 72, 0), (at, 72, 0)]);
        g.write_desc(table + 4, 0, (at, 72, 0, 0));
        g.chain(&[(table + 4, 16, INDIRECT)])
    }),
    ("a table across two regions", |g, at| {
        g.write_desc(BOUNDARY - 16, 0, (at, 12, NEXT, 1));
        g.write_desc(BOUNDARY, 0, (at, 60, 0, 0));
        g.chain(&[(BOUNDARY - 16, 32, INDIRECT)])
    }),
    ("an unmapped table", |g, _| g.chain(&[(NOWHERE, 16, INDIRECT)])),
    ("a table of 4 GiB", |g, _| g.chain(&[(FAR, !15, INDIRECT)])),
];

#[test]
fn a_chain_that_is_wrong_is_returned_and_counted_and_the_ring_goes_on() {
    let on_split = BAD.iter().chain(BAD_IN_SPLIT).map(|bad| (bad, Guest::new as New));
    let on_packed = BAD.iter().chain(BAD_IN_PACKED).map(|bad| (bad, Guest::packed as New));
    for ((what, bad), new) in on_split.chain(on_packed) {
        let mut guest = new(8);
        let at = guest.alloc(128);
        let mut ring = guest.tx();
        bad(&mut guest, at);
        assert_eq!((take(&mut ring).len(), ring.take_malformed()), (0, 1), "{what}");
        assert_eq!(guest.used(), [(0, 0)], "{what}");
        let frame = noise(5, 60);
        let head = guest.send(&frame);
        assert_eq!(take(&mut ring), [(NetHeader::default(), frame)], "after {what}");
        assert_eq!((guest.used(), ring.take_malformed()), (vec![(u32::from(head), 0)], 0), "after {what}");
    }
}

#[test]
fn bad_chains_among_good_ones_of_a_burst_leave_no_segments_behind() {
    for new in BOTH {
        let mut guest = new(32);
        let at = guest.alloc(1024);
        let good = [noise(6, 500), noise(7, 600), noise(8, 60)];
        for frame in &good {
            guest.send(frame);
            // A long piece that would be a segment, then the fault.
            guest.chain(&[(at, 700, 0), (NOWHERE, 1, 0)]);
        }
        let mut ring = guest.tx();
        assert_eq!(take(&mut ring).into_iter().map(|(_, f)| f).collect::<Vec<_>>(), good);
        assert_eq!((ring.take_malformed(), guest.used().len()), (3, 6));
    }
}

#[test]
fn an_indirect_table_that_was_not_negotiated_is_a_bad_chain() {
    for new in BOTH {
        let mut guest = new(8);
        guest.setup.indirect = false;
        let at = guest.alloc(72);
        let (table, len) = guest.table(&[(at, 72, 0)]);
        guest.chain(&[(table, len, INDIRECT)]);
        let mut ring = guest.tx();
        assert_eq!((take(&mut ring).len(), ring.take_malformed()), (0, 1));
    }
}

#[test]
fn a_table_as_long_as_the_ring_is_not_too_long() {
    for new in BOTH {
        let mut guest = new(8);
        let at = guest.alloc(128);
        let (table, len) = guest.table(&[(at, 16, 0); 8]);
        guest.chain(&[(table, len, INDIRECT)]);
        if !guest.setup.packed {
            let (table, len) = guest.table(&[(at, 16, 0); 7]);
            guest.chain(&[(at, 16, 0), (table, len, INDIRECT)]);
        }
        let lengths: Vec<_> = take(&mut guest.tx()).iter().map(|(_, f)| f.len()).collect();
        assert_eq!(lengths, vec![116; if guest.setup.packed { 1 } else { 2 }]);
    }
}

#[test]
fn a_burst_is_at_most_a_batch_and_heads_come_back_in_their_order() {
    let mut guest = Guest::new(64);
    let at = guest.alloc(72);
    guest.write(at, &[0; 72]);
    for i in 0..64 {
        guest.write_desc(guest.setup.desc, i, (at, 72, 0, 0));
    }
    let heads: Vec<u16> = (0..40).map(|i| i * 37 % 64).collect();
    heads.iter().for_each(|h| guest.offer(*h));
    let mut ring = guest.tx();
    assert_eq!((take(&mut ring).len(), take(&mut ring).len(), take(&mut ring).len()), (BATCH, 8, 0));
    assert_eq!(guest.used(), heads.iter().map(|h| (u32::from(*h), 0)).collect::<Vec<_>>());
}

#[test]
fn with_in_order_one_entry_returns_a_burst_and_the_next_one_follows_behind_it() {
    for new in BOTH {
        let mut guest = new(64);
        guest.setup.in_order = true;
        let bytes = message(&guest, &noise(3, 60));
        let at = guest.alloc(bytes.len());
        guest.write(at, &bytes);
        let mut ring = guest.tx();
        let mut places = 0;
        for burst in [7, 1, 12] {
            let mut last = 0;
            let before = places;
            for n in 0..burst {
                let (one, two) = ([(at, 72, 0)], [(at, 30, 0), (at + 30, 42, 0)]);
                last = guest.chain(if n % 3 == 1 { &two } else { &one });
                places += if n % 3 == 1 && guest.setup.packed { 2 } else { 1 };
            }
            assert_eq!(take(&mut ring).len(), burst);
            assert_eq!(guest.places(ring.base()), places);
            // Id and length, the other way round in the two formats.
            let entry = if guest.setup.packed {
                let b = guest.read(guest.setup.desc + 16 * before as u64 + 8, 8);
                assert_eq!(b[6..], (AVAIL | USED).to_le_bytes(), "flags of the first descriptor");
                [[b[4], b[5], 0, 0], [b[0], b[1], b[2], b[3]]].concat()
            } else {
                assert_eq!(usize::from(guest.used_idx()), places);
                guest.read(guest.setup.used + 4 + 8 * before as u64, 8)
            };
            assert_eq!(entry, [u32::from(last).to_le_bytes(), [0; 4]].concat(), "burst of {burst}");
        }
    }
}

#[test]
fn nothing_is_returned_before_complete() {
    for new in BOTH {
        let mut guest = new(4);
        guest.send(&noise(9, 60));
        let (mut ring, mut store) = (guest.tx(), BatchStore::default());
        let _ = ring.pop(&mut store).unwrap();
        assert_eq!(guest.used(), []);
        assert_eq!((ring.complete(), ring.complete()), (1, 0));
        assert_eq!(guest.used().len(), 1);
    }
}

#[test]
fn free_running_16_bit_indices_wrap() {
    let mut guest = Guest::new(32);
    guest.start_at(65000);
    let at = guest.alloc(32 * 128);
    for i in 0..32 {
        guest.write_desc(guest.setup.desc, i, (at + 128 * u64::from(i), 74, 0, 0));
    }
    let (mut ring, mut store) = (guest.tx(), BatchStore::default());
    let (mut sent, mut taken) = (0u32, 0u32);
    while taken < 70_000 {
        for _ in 0..1 + sent % 31 {
            let slot = sent % 32;
            guest.write(at + 128 * u64::from(slot) + 70, &sent.to_le_bytes());
            guest.offer(slot as u16);
            sent += 1;
        }
        let batch = ring.pop(&mut store).unwrap();
        for i in 0..batch.len() {
            assert_eq!(batch.frame(i).head()[58..], taken.to_le_bytes());
            taken += 1;
        }
        ring.complete();
        assert_eq!(taken, sent);
        assert_eq!(u32::from(guest.used_idx()), (65000 + sent) % 65536);
    }
    assert_eq!(u32::from(ring.base()), (65000 + sent) % 65536);
}

#[test]
fn a_head_that_does_not_exist_breaks_the_ring_and_nothing_is_taken() {
    let mut guest = Guest::new(8);
    guest.send(&noise(1, 60));
    guest.send(&noise(2, 60));
    guest.offer(8);
    let (mut ring, mut store) = (guest.tx(), BatchStore::default());
    let fault = RingFault::BadHead { entry: 2, head: 8, size: 8 };
    assert_eq!(ring.pop(&mut store).err(), Some(fault));
    assert_eq!(fault.to_string(), "Available entry 2 names descriptor 8 in a table of 8");
    assert_eq!((ring.base(), ring.complete(), guest.used()), (0, 0, vec![]));
}

#[test]
fn an_available_index_may_be_a_ring_ahead_and_no_farther() {
    for start in [0u16, 65533] {
        let mut guest = Guest::new(8);
        guest.start_at(start);
        let at = guest.alloc(72);
        (0..8).for_each(|i| guest.write_desc(guest.setup.desc, i, (at, 72, 0, 0)));
        (0..8).for_each(|i| guest.offer(i));
        assert_eq!(take(&mut guest.tx()).len(), 8);
        let idx = start.wrapping_add(9);
        guest.write_u16(guest.setup.avail + 2, idx);
        let (mut ring, mut store) = (guest.tx(), BatchStore::default());
        assert_eq!(ring.pop(&mut store).err(), Some(RingFault::AvailJump { from: start, to: idx, size: 8 }));
        // Nor back.
        guest.write_u16(guest.setup.avail + 2, start.wrapping_sub(1));
        assert!(matches!(ring.pop(&mut store), Err(RingFault::AvailJump { .. })));
        assert_eq!(ring.base(), start);
    }
}

#[test]
fn what_the_guest_wrote_is_read_once_a_head_is_a_copy() {
    for new in BOTH {
        let mut guest = new(4);
        let frame = noise(10, 200);
        guest.send(&frame);
        let (mut ring, mut store) = (guest.tx(), BatchStore::default());
        let batch = ring.pop(&mut store).unwrap();
        let at = guest.read(guest.setup.desc, 8);
        let at = u64::from_le_bytes(at.try_into().unwrap());
        guest.write(at, &[0xff; 212]);
        assert_eq!(batch.frame(0).head(), &frame[..128]);
        assert_eq!(&frames(&batch)[0].1[128..], &[0xff; 72], "the tail stays where it is");
    }
}
