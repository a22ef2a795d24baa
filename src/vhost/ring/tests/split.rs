use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::testing::*;
use super::super::{Memory, RingFault, RingSetup, RxRing, Segment, TxRing};
use crate::virtio::NetHeader;

fn sends(guest: &mut Guest, n: u16) {
    for _ in 0..n {
        guest.send(&[0; 60]);
    }
}

fn push(ring: &mut RxRing, len: usize) {
    let frame = noise(1, len);
    let (head, tail) = frame.split_at(len.min(128));
    ring.push(NetHeader::default(), head, &[Segment::from_slice(tail)], len).unwrap();
}

#[test]
fn with_event_idx_a_signal_is_due_if_used_event_is_among_the_entries_since_the_last_question() {
    for (start, burst) in [(0u16, 1), (0, 5), (65534, 5), (32765, 32), (65535, 1)] {
        let mut guest = Guest::new(64);
        guest.setup.event_idx = true;
        guest.start_at(start);
        let mut ring = guest.tx();
        for round in 0..3u16 {
            sends(&mut guest, burst);
            take(&mut ring);
            // The specification's vring_need_event(), said otherwise: `event` is one of the entries start..start+burst.
            let first = start.wrapping_add(round * burst);
            let event = match round {
                0 => first,
                1 => first.wrapping_add(burst - 1),
                _ => first.wrapping_add(burst),
            };
            guest.set_used_event(event);
            assert_eq!(ring.wants_signal(), round < 2, "start {start} burst {burst} round {round}");
            assert!(!ring.wants_signal(), "one signal per burst");
        }
    }
}

#[test]
fn every_used_event_that_was_passed_signals_and_no_other() {
    let mut guest = Guest::new(64);
    guest.setup.event_idx = true;
    let mut ring = guest.tx();
    let mut next = 0u16;
    for event in (0..=u16::MAX).step_by(7) {
        let burst = 1 + event % 32;
        let at = guest.alloc(0);
        guest.write_desc(guest.setup.desc, 0, (at, 72, 0, 0));
        (0..burst).for_each(|_| guest.offer(0));
        take(&mut ring);
        guest.set_used_event(event);
        let passed = event.wrapping_sub(next) < burst;
        assert_eq!(ring.wants_signal(), passed, "entries from {next}, {burst} of them, event {event}");
        next = next.wrapping_add(burst);
    }
}

#[test]
fn without_event_idx_the_flag_no_interrupt_decides() {
    let mut guest = Guest::new(8);
    let mut ring = guest.tx();
    for (flags, wants) in [(0, true), (1, false), (2, true), (0xffff, false)] {
        guest.write_u16(guest.setup.avail, flags);
        assert!(!ring.wants_signal(), "nothing was returned");
        sends(&mut guest, 1);
        take(&mut ring);
        // What stands where used_event would be is of no matter.
        guest.set_used_event(0x5555);
        assert_eq!(ring.wants_signal(), wants, "{flags:#x}");
    }
}

#[test]
fn a_bad_chain_that_was_returned_is_worth_a_signal_too() {
    let mut guest = Guest::new(8);
    guest.chain(&[(NOWHERE, 72, 0)]);
    let mut ring = guest.tx();
    assert_eq!(take(&mut ring).len(), 0);
    assert!(ring.wants_signal());
}

#[test]
fn asking_for_kicks_names_the_next_entry_and_refusing_them_the_farthest_one() {
    for start in [0u16, 65535] {
        let mut guest = Guest::new(8);
        guest.setup.event_idx = true;
        guest.start_at(start);
        let mut ring = guest.tx();
        // What a driver does (2.7.10): it kicks if avail_event is among the entries that it has added.
        let kicks =
            |event: u16, old: u16, new: u16| new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old);
        assert_eq!(ring.want_kicks(), Ok(false));
        assert_eq!(guest.avail_event(), start);
        assert!((1..=8).all(|n| kicks(guest.avail_event(), start, start.wrapping_add(n))));
        ring.refuse_kicks();
        assert!((1..=8).all(|n| !kicks(guest.avail_event(), start, start.wrapping_add(n))));
        assert_eq!(guest.read_u16(guest.setup.used), 0, "flags stay 0 with EVENT_IDX (2.7.10.2)");
    }
}

#[test]
fn without_event_idx_kicks_are_refused_by_the_flag_no_notify() {
    let guest = Guest::new(8);
    let mut ring = guest.tx();
    ring.refuse_kicks();
    assert_eq!(guest.read_u16(guest.setup.used), 1);
    assert_eq!(ring.want_kicks(), Ok(false));
    assert_eq!((guest.read_u16(guest.setup.used), guest.avail_event()), (0, 0));
    // Whoever brings frames never wants kicks.
    let _rx = guest.rx();
    assert_eq!(guest.read_u16(guest.setup.used), 1);
}

#[test]
fn what_came_before_kicks_were_asked_for_is_not_lost() {
    for event_idx in [false, true] {
        let mut guest = Guest::new(8);
        guest.setup.event_idx = event_idx;
        let mut ring = guest.tx();
        assert_eq!(take(&mut ring).len(), 0);
        sends(&mut guest, 1);
        assert_eq!(ring.want_kicks(), Ok(true));
        assert_eq!((take(&mut ring).len(), ring.want_kicks()), (1, Ok(false)));
        // It looks again also if it knew of something and the guest took it back.
        sends(&mut guest, 1);
        assert_eq!(ring.want_kicks(), Ok(true));
        guest.write_u16(guest.setup.avail + 2, 1);
        assert_eq!(ring.want_kicks(), Ok(false));
        guest.write_u16(guest.setup.avail + 2, 10);
        assert_eq!(ring.want_kicks(), Err(RingFault::AvailJump { from: 1, to: 10, size: 8 }));
    }
}

#[test]
fn the_queue_size_is_a_power_of_two_up_to_32768() {
    for (size, ok) in
        [(0, false), (1, true), (3, false), (256, true), (1000, false), (32768, true), (65535, false)]
    {
        let guest = Guest::new(if ok { size } else { 8 });
        let setup = RingSetup { size, ..guest.setup };
        assert_eq!(TxRing::start(guest.memory(), setup).err(), (!ok).then_some(RingFault::Size(size)));
        if ok {
            assert_eq!((guest.tx().size(), guest.rx().size()), (size, size));
        }
    }
    assert_eq!(RingFault::Size(3).to_string(), "Ring size 3 is not a power of two between 1 and 32768");
}

#[test]
fn the_largest_ring_works_to_its_last_entry() {
    let mut guest = Guest::new(32768);
    let at = guest.alloc(72);
    for i in [0, 1, 32767] {
        guest.write_desc(guest.setup.desc, i, (at, 72, 0, 0));
    }
    guest.start_at(32766);
    [32767, 0, 32767, 1].iter().for_each(|head| guest.offer(*head));
    assert_eq!(take(&mut guest.tx()).len(), 4);
    assert_eq!(guest.used(), [(32767, 0), (0, 0), (32767, 0), (1, 0)]);
}

#[test]
fn each_part_is_wholly_inside_one_region_and_aligned() {
    let guest = Guest::new(64);
    let start = |change: fn(&mut RingSetup)| {
        let mut setup = guest.setup;
        change(&mut setup);
        (TxRing::start(guest.memory(), setup).err(), RxRing::start(guest.memory(), setup).err())
    };
    let both = |fault: RingFault| (Some(fault), Some(fault));
    let unmapped = |part, gpa| both(RingFault::Unmapped { part, gpa });
    let misaligned = |part, gpa, align| both(RingFault::Misaligned { part, gpa, align });
    assert_eq!(start(|s| s.desc = NOWHERE), unmapped("descriptor table", NOWHERE));
    assert_eq!(start(|s| s.desc = BOUNDARY - 16), unmapped("descriptor table", BOUNDARY - 16));
    assert_eq!(start(|s| s.desc = BOUNDARY - 1024), (None, None));
    // used_event and avail_event are parts of the rings.
    assert_eq!(start(|s| s.avail = BOUNDARY - 132), unmapped("available ring", BOUNDARY - 132));
    assert_eq!(start(|s| s.avail = BOUNDARY - 134), (None, None));
    assert_eq!(start(|s| s.used = BOUNDARY - 516), unmapped("used ring", BOUNDARY - 516));
    assert_eq!(start(|s| s.used = BOUNDARY - 520), (None, None));
    assert_eq!(start(|s| s.used = u64::MAX - 3), unmapped("used ring", u64::MAX - 3));
    assert_eq!(start(|s| s.desc += 8), misaligned("descriptor table", guest.setup.desc + 8, 16));
    assert_eq!(start(|s| s.avail += 1), misaligned("available ring", guest.setup.avail + 1, 2));
    assert_eq!(start(|s| s.used += 2), misaligned("used ring", guest.setup.used + 2, 4));
    assert!(TxRing::start(Arc::new(Memory::empty()), guest.setup).is_err());
    let text = RingFault::Misaligned { part: "used ring", gpa: 0x1002, align: 4 }.to_string();
    assert_eq!(text, "The used ring at guest address 0x1002 is not aligned to 4 bytes");
}

#[test]
fn a_ring_that_starts_again_goes_on_where_it_was() {
    let mut guest = Guest::new(8);
    sends(&mut guest, 3);
    let mut ring = guest.tx();
    assert_eq!(take(&mut ring).len(), 3);
    sends(&mut guest, 2);
    guest.setup.base = ring.base();
    drop(ring);
    assert_eq!(guest.setup.base, 3);
    let mut ring = guest.tx();
    assert_eq!(take(&mut ring).len(), 2);
    // The used index is taken from guest memory.
    assert_eq!(guest.used(), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]);
}

/// The same guest with its memory in another place.
fn moved(guest: &Guest) -> Guest {
    let mut other = Guest::new(guest.setup.size);
    let len = (BOUNDARY - 0x1000) as usize;
    other.write(0x1000, &guest.read(0x1000, len));
    other.setup = guest.setup;
    other.idx = guest.idx;
    other
}

#[test]
fn a_ring_goes_over_to_another_memory_table_between_two_bursts() {
    let mut guest = Guest::new(8);
    let frame = noise(1, 300);
    guest.send(&frame);
    let mut ring = guest.tx();
    assert_eq!(take(&mut ring).len(), 1);
    let mut other = moved(&guest);
    let old = guest.read(0x1000, 0x1_0000);
    ring.set_memory(other.memory()).unwrap();
    let at = other.alloc(0x4000) + 0x2000;
    other.write(at, &[&[0; 12], &frame[..]].concat());
    other.write_desc(other.setup.desc, 5, (at, 312, 0, 0));
    other.offer(5);
    assert_eq!(take(&mut ring)[0].1, frame);
    assert_eq!(other.used(), [(0, 0), (5, 0)]);
    assert_eq!(guest.read(0x1000, 0x1_0000), old, "the old memory is left alone");
}

#[test]
fn a_receive_ring_goes_over_to_another_memory_table_too() {
    let mut guest = Guest::new(8);
    let at = guest.post(200);
    let other = moved(&guest);
    let mut ring = guest.rx();
    ring.set_memory(other.memory()).unwrap();
    push(&mut ring, 150);
    ring.publish();
    assert_eq!(other.read(at + 12, 150), noise(1, 150));
    assert_eq!((other.used_idx(), guest.used_idx(), guest.read(at, 4)), (1, 0, vec![0xee; 4]));
}

#[test]
fn a_memory_table_without_the_ring_is_refused() {
    let mut guest = Guest::new(8);
    sends(&mut guest, 1);
    let (mut tx, mut rx) = (guest.tx(), guest.rx());
    let fault = RingFault::Unmapped { part: "descriptor table", gpa: 0x1000 };
    assert_eq!(tx.set_memory(Arc::new(Memory::empty())), Err(fault));
    assert_eq!(rx.set_memory(Arc::new(Memory::empty())), Err(fault));
    assert_eq!(take(&mut tx).len(), 1, "it stays where it was");
}

fn pages(ranges: &[(u64, u64)]) -> BTreeSet<u64> {
    ranges.iter().flat_map(|(gpa, len)| gpa / PAGE..=(gpa + len - 1) / PAGE).collect()
}

#[test]
fn while_logging_all_that_is_written_is_marked_buffers_used_entries_and_used_index() {
    let mut guest = Guest::new(1024);
    guest.log();
    guest.setup.mergeable = true;
    // The used ring on pages of its own: entries 0..511 on the first one or two, the last on the third.
    guest.setup.used = guest.alloc(0).next_multiple_of(PAGE) + 0x2000;
    guest.start_at(1020);
    let mut ring = guest.rx();
    assert_eq!(guest.marked(), pages(&[(guest.setup.used, 2)]), "refusing kicks");

    // One buffer, of which only a part is written.
    let buffer = guest.setup.used + 0x10_000;
    guest.chain(&[(buffer + PAGE - 100, 3 * PAGE as u32, WRITE)]);
    push(&mut ring, 500);
    assert_eq!(guest.marked(), pages(&[(buffer + PAGE - 100, 512)]));
    // Several, across regions.
    guest.chain(&[(buffer + 0x8000, 100, WRITE), (buffer + 0xa000, 100, WRITE)]);
    guest.chain(&[(BOUNDARY - 50, 400, WRITE), (FAR, 8000, WRITE)]);
    push(&mut ring, 400);
    assert_eq!(
        guest.marked(),
        pages(&[(buffer + 0x8000, 100), (buffer + 0xa000, 100), (BOUNDARY - 50, 212)])
    );
    // A bad one: only its used entry.
    guest.chain(&[(NOWHERE, 400, WRITE)]);
    guest.chain(&[(buffer, 100, WRITE)]);
    push(&mut ring, 60);
    assert_eq!(guest.marked(), pages(&[(buffer, 72)]));
    // Entries 1020..1025 wrap.
    ring.publish();
    let used = guest.setup.used;
    assert_eq!(guest.marked(), pages(&[(used, 4), (used + 4 + 8 * 1020, 32), (used + 4, 8)]));
    ring.publish();
    assert_eq!(guest.marked(), pages(&[]), "nothing to publish");
}

#[test]
fn while_logging_a_transmit_ring_marks_what_it_returns_and_its_wish_for_kicks() {
    let mut guest = Guest::new(1024);
    guest.log();
    guest.setup.event_idx = true;
    sends(&mut guest, 3);
    let used = guest.setup.used;
    let event = used + 4 + 8 * 1024;
    assert_ne!(event / PAGE, used / PAGE);
    let mut ring = guest.tx();
    assert_eq!(guest.marked(), pages(&[(event, 2)]), "a ring starts with kicks refused");
    take(&mut ring);
    assert_eq!(guest.marked(), pages(&[(used, 4 + 3 * 8)]));
    ring.want_kicks().unwrap();
    assert_eq!(guest.marked(), pages(&[(event, 2)]));
    ring.refuse_kicks();
    assert_eq!(guest.marked(), pages(&[(event, 2)]));
}

#[test]
fn nothing_is_marked_before_logging_is_on_and_after_it_is_off() {
    let mut guest = Guest::new(8);
    guest.log();
    guest.setup.logging = false;
    let (mut rx, mut marks) = (guest.rx(), Vec::new());
    for logging in [false, true, false] {
        rx.set_logging(logging);
        guest.post(200);
        push(&mut rx, 100);
        rx.publish();
        marks.push(!guest.marked().is_empty());
    }
    assert_eq!(marks, [false, true, false]);
    let mut guest = Guest::new(8);
    guest.log();
    guest.setup.logging = false;
    let mut tx = guest.tx();
    for logging in [false, true, false] {
        tx.set_logging(logging);
        sends(&mut guest, 1);
        take(&mut tx);
        assert_eq!(!guest.marked().is_empty(), logging);
    }
}
