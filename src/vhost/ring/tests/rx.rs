use super::super::testing::*;
use super::super::{BATCH, HEAD, MIN_FRAME, RingFault, RxRefused, RxRing, Segment};
use crate::virtio::{HDR_F_DATA_VALID, NetHeader};

const NET: NetHeader = NetHeader {
    flags: HDR_F_DATA_VALID,
    gso_type: 1,
    hdr_len: 54,
    gso_size: 1448,
    csum_start: 0x1122,
    csum_offset: 0x3344,
    num_buffers: 0x5566,
};

fn push(ring: &mut RxRing, frame: &[u8]) -> Result<(), RxRefused> {
    let (head, tail) = frame.split_at(frame.len().min(HEAD));
    let (a, b) = tail.split_at(tail.len() / 3);
    ring.push(NET, head, &[Segment::from_slice(a), Segment::from_slice(b)], frame.len())
}

/// What the guest should find: header and frame.
fn message(guest: &Guest, num_buffers: u16, frame: &[u8]) -> Vec<u8> {
    [&NetHeader { num_buffers, ..NET }.to_bytes()[..guest.setup.header_len], frame].concat()
}

#[test]
fn bytes_behind_the_frame_in_its_buffer_are_not_touched() {
    for new in BOTH {
        for header_len in [10, 12] {
            for frame_len in (MIN_FRAME..300).chain([1514, 9014, 60_000]) {
                let mut guest = new(4);
                guest.setup.header_len = header_len;
                let frame = noise(frame_len, frame_len);
                let room = header_len + frame_len + 33;
                let at = guest.post(room);
                let mut ring = guest.rx();
                push(&mut ring, &frame).unwrap();
                ring.publish();
                let expected = message(&guest, 1, &frame);
                assert_eq!(guest.used(), [(0, expected.len() as u32)]);
                let buffer = guest.read(at, room);
                assert!(buffer.starts_with(&expected), "{frame_len}");
                assert!(buffer[expected.len()..].iter().all(|b| *b == 0xee), "{frame_len}");
            }
        }
    }
}

#[test]
fn the_header_is_right_wherever_it_lies_and_whatever_was_there_before() {
    for new in BOTH {
        const ROOM: usize = 12 + 60;
        for header_len in [10, 12] {
            // Up to, at, and beyond the end of a cache line.
            for offset in 40..64 {
                let mut guest = new(4);
                guest.setup.header_len = header_len;
                let at = guest.alloc(ROOM + 128).next_multiple_of(64) + offset;
                let mut ring = guest.rx();
                let frame = noise(1, 60);
                let expected = message(&guest, 1, &frame);
                // The same header, and others that differ in one byte only.
                for other in std::iter::once(None).chain((0..header_len).map(Some)) {
                    guest.write(at, &expected);
                    if let Some(i) = other {
                        guest.write(at + i as u64, &[!expected[i]]);
                    }
                    guest.chain(&[(at, ROOM as u32, WRITE)]);
                    push(&mut ring, &frame).unwrap();
                    ring.publish();
                    assert_eq!(guest.read(at, expected.len()), expected, "{header_len}, {offset}, {other:?}");
                    guest.used();
                }
            }
        }
    }
}

#[test]
fn a_buffer_that_fits_exactly_is_enough() {
    for new in BOTH {
        let mut guest = new(4);
        let frame = noise(1, 1514);
        let at = guest.post(1526);
        assert_eq!(push(&mut guest.rx(), &frame), Ok(()));
        assert_eq!(guest.read(at, 1526), message(&guest, 1, &frame));
    }
}

#[test]
fn num_buffers_says_how_many_were_merged_and_all_but_the_last_are_full() {
    for new in BOTH {
        for (buffers, frame_len) in
            [(12, 60), (13, 60), (64, 500), (100, 1514), (256, 2000), (1536, 9014), (1536, 60_000)]
        {
            let mut guest = new(64);
            guest.setup.mergeable = true;
            let posted: Vec<u64> = (0..60).map(|_| guest.post(buffers)).collect();
            let mut ring = guest.rx();
            let frame = noise(buffers, frame_len);
            push(&mut ring, &frame).unwrap();
            ring.publish();
            let used = guest.used();
            let count = (12 + frame_len).div_ceil(buffers);
            assert_eq!(used.iter().map(|u| u.0).collect::<Vec<_>>(), (0..count as u32).collect::<Vec<_>>());
            assert!(used[..count - 1].iter().all(|u| u.1 == buffers as u32));
            assert_eq!(used.iter().map(|u| u.1 as usize).sum::<usize>(), 12 + frame_len);
            let read = posted.iter().zip(&used).map(|(at, u)| guest.read(*at, u.1 as usize));
            assert_eq!(read.collect::<Vec<_>>().concat(), message(&guest, count as u16, &frame));
            let last = guest.read(posted[count - 1], buffers);
            assert!(last[used[count - 1].1 as usize..].iter().all(|b| *b == 0xee));
            assert_eq!(guest.places(ring.base()), count);
        }
    }
}

#[test]
fn a_frame_of_many_buffers_is_not_begun_before_there_are_enough() {
    for new in BOTH {
        let mut guest = new(8);
        guest.setup.mergeable = true;
        let posted: Vec<u64> = (0..3).map(|_| guest.post(100)).collect();
        let mut ring = guest.rx();
        let frame = noise(2, 350);
        assert_eq!(push(&mut ring, &frame), Err(RxRefused::NoBuffer));
        ring.publish();
        assert_eq!((guest.used(), guest.places(ring.base()), ring.has_unsignalled()), (vec![], 0, false));
        assert!(posted.iter().all(|at| guest.read(*at, 100) == [0xee; 100]));
        guest.post(100);
        assert_eq!(push(&mut ring, &frame), Ok(()));
    }
}

#[test]
fn without_mergeable_buffers_a_frame_that_does_not_fit_leaves_the_buffer_to_the_next_one() {
    for new in BOTH {
        let mut guest = new(8);
        let at = guest.post(100);
        guest.post(1536);
        let mut ring = guest.rx();
        assert_eq!(push(&mut ring, &noise(3, 89)), Err(RxRefused::BufferTooSmall));
        let frame = noise(4, 88);
        assert_eq!(push(&mut ring, &frame), Ok(()));
        assert_eq!(guest.read(at, 100), message(&guest, 1, &frame));
        ring.publish();
        assert_eq!((guest.used(), ring.take_bad_buffers()), (vec![(0, 100)], 0));
    }
}

#[test]
fn without_a_buffer_a_frame_is_refused() {
    for new in BOTH {
        let guest = new(8);
        assert_eq!(push(&mut guest.rx(), &noise(5, 60)), Err(RxRefused::NoBuffer));
    }
}

#[test]
fn no_assumption_about_the_arrangement_of_descriptors_header_and_frame_split_at_every_byte() {
    for new in BOTH {
        for header_len in [10u32, 12] {
            let mut guest = new(256);
            guest.setup.header_len = header_len as usize;
            let frame = noise(6, 150);
            let total = header_len + 150;
            let mut ring = guest.rx();
            for split in 0..=total {
                let at = guest.alloc(total as usize + 8);
                guest.write(at, &[0xee; 170][..total as usize + 8]);
                // The second part may be longer than what is left.
                guest.chain(&[(at, split, WRITE), (at + u64::from(split), total - split + 4, WRITE)]);
                assert_eq!(push(&mut ring, &frame), Ok(()));
                ring.publish();
                assert_eq!(guest.used().last().unwrap().1, total);
                assert_eq!(guest.read(at, total as usize), message(&guest, 1, &frame), "{split}");
                assert_eq!(guest.read(at + u64::from(total), 8), [0xee; 8]);
            }
        }
    }
}

#[test]
fn a_buffer_may_lie_across_two_regions_of_memory() {
    for new in BOTH {
        let mut guest = new(256);
        let frame = noise(7, 180);
        let mut ring = guest.rx();
        for before in 0..=192 {
            guest.write(BOUNDARY - 256, &[0xee; 512]);
            guest.chain(&[(BOUNDARY - before, 192, WRITE)]);
            assert_eq!(push(&mut ring, &frame), Ok(()));
            assert_eq!(guest.read(BOUNDARY - before, 192), message(&guest, 1, &frame), "{before}");
            assert_eq!(guest.read(BOUNDARY - before + 192, 8), [0xee; 8]);
        }
    }
}

#[test]
fn buffers_in_an_indirect_table_take_a_frame_together_with_direct_ones() {
    let mut guest = Guest::new(8);
    let at = guest.alloc(1600);
    let (table, len) = guest.table(&[(at + 12, 500, WRITE), (at + 512, 1088, WRITE)]);
    guest.chain(&[(at, 12, WRITE), (table, len, INDIRECT)]);
    let frame = noise(8, 1514);
    let mut ring = guest.rx();
    assert_eq!(push(&mut ring, &frame), Ok(()));
    ring.publish();
    assert_eq!((guest.read(at, 1526), guest.used()), (message(&guest, 1, &frame), vec![(0, 1526)]));
}

#[test]
fn chains_of_several_descriptors_are_merged_too() {
    for new in BOTH {
        let mut guest = new(16);
        guest.setup.mergeable = true;
        let at = guest.alloc(4096);
        for i in 0..4u64 {
            guest.chain(&[(at + 300 * i, 100, WRITE), (at + 300 * i + 100, 200, WRITE)]);
        }
        let frame = noise(9, 1000);
        let mut ring = guest.rx();
        assert_eq!(push(&mut ring, &frame), Ok(()));
        ring.publish();
        assert_eq!(guest.read(at, 1012), message(&guest, 4, &frame));
        assert_eq!(guest.used(), [(0, 300), (2, 300), (4, 300), (6, 112)]);
    }
}

#[test]
fn a_buffer_that_is_none_is_returned_with_length_0_and_counted_and_the_next_one_serves() {
    type Bad = fn(&mut Guest) -> u16;
    let cases: [(&str, Bad); 5] = [
        ("read-only", |g| g.chain(&[(FAR, 1536, 0)])),
        ("unmapped", |g| g.chain(&[(NOWHERE, 1536, WRITE)])),
        ("too short for the header", |g| g.chain(&[(FAR, 11, WRITE)])),
        ("partly read-only", |g| g.chain(&[(FAR, 12, WRITE), (FAR, 1514, 0)])),
        ("an empty table", |g| g.chain(&[(FAR, 0, INDIRECT | WRITE)])),
    ];
    for (what, bad) in cases {
        for (new, mergeable) in BOTH.into_iter().flat_map(|new| [(new, false), (new, true)]) {
            let mut guest = new(8);
            guest.setup.mergeable = mergeable;
            bad(&mut guest);
            let frame = noise(10, 100);
            let at = guest.post(1536);
            let mut ring = guest.rx();
            assert_eq!(push(&mut ring, &frame), Ok(()), "{what}");
            ring.publish();
            let used = guest.used();
            assert_eq!((used[0], used[1].1, used.len()), ((0, 0), 112, 2), "{what}");
            assert_eq!(guest.read(at, 112), message(&guest, 1, &frame));
            assert_eq!((ring.take_bad_buffers(), ring.take_bad_buffers()), (1, 0));
        }
    }
}

#[test]
fn a_guest_that_makes_bad_buffers_without_end_does_not_keep_the_worker() {
    for new in BOTH {
        let mut guest = new(128);
        (0..128).for_each(|_| _ = guest.chain(&[(NOWHERE, 1536, WRITE)]));
        let mut ring = guest.rx();
        for frame in 1..=3 {
            assert_eq!(push(&mut ring, &noise(1, 60)), Err(RxRefused::NoBuffer));
            assert_eq!(guest.places(ring.base()), frame * BATCH);
        }
        ring.publish();
        assert_eq!((guest.used().len(), ring.take_bad_buffers()), (96, 96));
    }
}

#[test]
fn buffers_of_dust_cost_a_burst_no_more_than_it_is_worth() {
    let mut guest = Guest::new(1024);
    guest.setup.mergeable = true;
    let at = guest.alloc(64);
    // All chains are the same one: a thousand empty descriptors before the few bytes that a chain must have.
    guest.chain(&[vec![(at, 0, WRITE); 1000], vec![(at, 12, WRITE)]].concat());
    (1..1024).for_each(|_| guest.offer(0));
    let mut ring = guest.rx();
    assert_eq!(push(&mut ring, &noise(1, 9000)), Err(RxRefused::NoBuffer), "enough of them, but too dear");
    ring.publish();
    assert_eq!(
        (ring.base(), push(&mut ring, &noise(1, 60))),
        (0, Ok(())),
        "the next burst has its own share"
    );
}

#[test]
fn nor_do_they_in_a_packed_ring_where_each_is_looked_through_for_its_end() {
    let mut guest = Guest::packed(32768);
    guest.setup.mergeable = true;
    let at = guest.alloc(64);
    for _ in 0..32 {
        guest.chain(&[vec![(at, 0, WRITE); 1000], vec![(at, 12, WRITE)]].concat());
    }
    let mut ring = guest.rx();
    assert_eq!(push(&mut ring, &noise(1, 300)), Err(RxRefused::NoBuffer), "enough of them, but too dear");
    ring.publish();
    assert_eq!((guest.places(ring.base()), push(&mut ring, &noise(1, 60))), (0, Ok(())));
}

#[test]
fn a_chain_that_loops_is_no_buffer() {
    let mut guest = Guest::new(8);
    guest.chain(&[(FAR, 1, WRITE)]);
    guest.write_desc(guest.setup.desc, 0, (FAR, 1, WRITE | NEXT, 0));
    guest.post(1536);
    let mut ring = guest.rx();
    assert_eq!(push(&mut ring, &noise(10, 100)), Ok(()));
    ring.publish();
    assert_eq!((guest.used(), ring.take_bad_buffers()), (vec![(0, 0), (1, 112)], 1));
}

#[test]
fn a_buffer_has_1024_descriptors_at_most_however_long_the_ring_is() {
    for new in BOTH {
        for (descriptors, result) in [(1024, Ok(())), (1025, Err(RxRefused::NoBuffer))] {
            let mut guest = new(32768);
            let at = guest.alloc(2048);
            guest.chain(&vec![(at, 1, WRITE); descriptors]);
            let mut ring = guest.rx();
            assert_eq!(push(&mut ring, &noise(2, 100)), result, "{descriptors}");
            assert_eq!(ring.take_bad_buffers(), u64::from(result.is_err()));
        }
    }
}

#[test]
fn buffers_come_back_in_order_so_a_bad_one_waits_for_the_good_ones_before_it() {
    for new in BOTH {
        let mut guest = new(8);
        guest.setup.mergeable = true;
        guest.post(100);
        guest.chain(&[(NOWHERE, 100, WRITE)]);
        guest.post(500);
        let mut ring = guest.rx();
        assert_eq!(push(&mut ring, &noise(11, 300)), Err(RxRefused::NoBuffer));
        assert_eq!((ring.take_bad_buffers(), guest.places(ring.base())), (0, 0));
        assert_eq!(push(&mut ring, &noise(12, 60)), Ok(()));
        assert_eq!(push(&mut ring, &noise(11, 300)), Ok(()));
        ring.publish();
        assert_eq!(guest.used(), [(0, 72), (1, 0), (2, 312)]);
        assert_eq!(ring.take_bad_buffers(), 1);
    }
}

#[test]
fn a_frame_is_not_visible_before_publish() {
    for new in BOTH {
        let mut guest = new(8);
        guest.post(200);
        guest.post(200);
        let mut ring = guest.rx();
        push(&mut ring, &noise(13, 60)).unwrap();
        push(&mut ring, &noise(14, 60)).unwrap();
        assert_eq!((guest.used_idx(), ring.has_unsignalled()), (0, false));
        ring.publish();
        assert_eq!((guest.used_idx(), ring.has_unsignalled()), (2, true));
    }
}

#[test]
fn preparing_takes_nothing_and_survives_a_broken_ring() {
    let mut guest = Guest::new(8);
    guest.post(200);
    guest.chain(&[(NOWHERE, 100, WRITE)]);
    let mut ring = guest.rx();
    ring.prepare();
    guest.offer(9);
    ring.prepare();
    guest.write_u16(guest.setup.avail + 2, 1000);
    ring.prepare();
    assert_eq!((ring.base(), guest.used_idx()), (0, 0));
}

#[test]
fn a_head_that_does_not_exist_or_an_index_that_jumps_breaks_the_ring() {
    let mut guest = Guest::new(8);
    guest.offer(0x8000);
    let fault = RingFault::BadHead { entry: 0, head: 0x8000, size: 8 };
    assert_eq!(push(&mut guest.rx(), &noise(1, 60)), Err(RxRefused::Broken(fault)));
    // Among the buffers of one frame.
    let mut guest = Guest::new(8);
    guest.setup.mergeable = true;
    guest.post(50);
    guest.offer(8);
    let fault = RingFault::BadHead { entry: 1, head: 8, size: 8 };
    assert_eq!(push(&mut guest.rx(), &noise(1, 60)), Err(RxRefused::Broken(fault)));
    guest.write_u16(guest.setup.avail + 2, 9);
    let fault = RingFault::AvailJump { from: 0, to: 9, size: 8 };
    assert_eq!(push(&mut guest.rx(), &noise(1, 60)), Err(RxRefused::Broken(fault)));
    assert_eq!(fault.to_string(), "The available index jumped from 0 to 9 in a ring of 8 entries");
}

#[test]
fn free_running_16_bit_indices_wrap() {
    let mut guest = Guest::new(16);
    guest.setup.mergeable = true;
    guest.start_at(64_000);
    let at = guest.alloc(16 * 128);
    for i in 0..16 {
        guest.write_desc(guest.setup.desc, i, (at + 128 * u64::from(i), 128, WRITE, 0));
    }
    let mut ring = guest.rx();
    let (mut posted, mut returned) = (0u32, 0u32);
    for n in 0..50_000u32 {
        while posted - returned < 16 {
            guest.offer((posted % 16) as u16);
            posted += 1;
        }
        // One or two buffers.
        let mut frame = [0; 200];
        frame[..4].copy_from_slice(&n.to_le_bytes());
        let (len, count) = if n % 2 == 0 { (100, 1) } else { (200, 2) };
        assert_eq!(push(&mut ring, &frame[..len]), Ok(()));
        ring.publish();
        let first = u64::from(returned % 16);
        assert_eq!(guest.read(at + 128 * first + 10, 6)[..2], [count as u8, 0]);
        assert_eq!(guest.read(at + 128 * first + 12, 4), n.to_le_bytes());
        returned += count;
        assert_eq!(u32::from(guest.used_idx()), (64_000 + returned) % 65_536);
    }
    assert!(returned > 65_536);
}
