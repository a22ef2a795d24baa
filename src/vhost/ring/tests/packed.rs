use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::testing::*;
use super::super::{BatchStore, Memory, RingFault, RingSetup, RxRefused, RxRing, Segment, TxRing};
use crate::virtio::NetHeader;

/// Wrap counter 1, in a base or an event.
const WRAP: u16 = 1 << 15;
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const DESC: u16 = 2;

fn sends(guest: &mut Guest, n: u16) {
    (0..n).for_each(|_| _ = guest.send(&[0; 60]));
}

fn push(ring: &mut RxRing, frame: &[u8]) -> Result<(), RxRefused> {
    let (head, tail) = frame.split_at(frame.len().min(128));
    ring.push(NetHeader::default(), head, &[Segment::from_slice(tail)], frame.len())
}

/// Both words of a descriptor.
fn words(guest: &Guest, slot: u16) -> Vec<u8> {
    guest.read(guest.setup.desc + 16 * u64::from(slot), 16)
}

/// The place `n` descriptors behind another one.
fn behind(place: u16, n: u16, size: u16) -> u16 {
    let slot = u32::from(place & !WRAP) + u32::from(n);
    let turns = (slot / u32::from(size) % 2) as u16;
    (slot % u32::from(size)) as u16 | (place & WRAP ^ turns << 15)
}

#[test]
fn the_queue_size_is_any_up_to_32768() {
    for (size, ok) in
        [(0, false), (1, true), (3, true), (256, true), (1000, true), (32768, true), (32769, false)]
    {
        let guest = Guest::packed(if ok { size } else { 8 });
        let setup = RingSetup { size, ..guest.setup };
        let fault = (!ok).then_some(RingFault::PackedSize(size));
        assert_eq!(TxRing::start(guest.memory(), setup).err(), fault);
        assert_eq!(RxRing::start(guest.memory(), setup).err(), fault);
        if ok {
            assert_eq!((guest.tx().size(), guest.rx().size()), (size, size));
        }
    }
    assert_eq!(RingFault::PackedSize(0).to_string(), "Packed ring size 0 is not between 1 and 32768");
}

#[test]
fn a_ring_starts_at_one_of_its_descriptors() {
    let guest = Guest::packed(6);
    let start = |base| TxRing::start(guest.memory(), RingSetup { base, ..guest.setup }).map(|r| r.base());
    for base in [0, 5, WRAP, WRAP | 5] {
        assert_eq!(start(base), Ok(base));
    }
    for base in [6, WRAP | 6, u16::MAX] {
        let fault = RingFault::Base { slot: base & !WRAP, size: 6 };
        assert_eq!(start(base), Err(fault));
    }
    let text = "A packed ring of 6 descriptors can't start at descriptor 9";
    assert_eq!(start(WRAP | 9).unwrap_err().to_string(), text);
}

#[test]
fn each_part_is_wholly_inside_one_region_and_aligned() {
    let guest = Guest::packed(60);
    let start = |change: fn(&mut RingSetup)| {
        let mut setup = guest.setup;
        change(&mut setup);
        TxRing::start(guest.memory(), setup).err()
    };
    let unmapped = |part, gpa| Some(RingFault::Unmapped { part, gpa });
    let misaligned = |part, gpa, align| Some(RingFault::Misaligned { part, gpa, align });
    assert_eq!(start(|s| s.desc = NOWHERE), unmapped("descriptor ring", NOWHERE));
    assert_eq!(start(|s| s.desc = BOUNDARY - 944), unmapped("descriptor ring", BOUNDARY - 944));
    assert_eq!(start(|s| s.desc = BOUNDARY - 960), None);
    assert_eq!(start(|s| s.avail = BOUNDARY - 4), None);
    assert_eq!(start(|s| s.avail = NOWHERE), unmapped("driver's event suppression", NOWHERE));
    assert_eq!(start(|s| s.used = BOUNDARY - 2), unmapped("device's event suppression", BOUNDARY - 2));
    assert_eq!(start(|s| s.used = u64::MAX - 3), unmapped("device's event suppression", u64::MAX - 3));
    let (desc, avail, used) = (guest.setup.desc + 8, guest.setup.avail + 2, guest.setup.used + 2);
    assert_eq!(start(|s| s.desc += 8), misaligned("descriptor ring", desc, 16));
    assert_eq!(start(|s| s.avail += 2), misaligned("driver's event suppression", avail, 4));
    assert_eq!(start(|s| s.used += 2), misaligned("device's event suppression", used, 4));
    assert!(TxRing::start(Arc::new(Memory::empty()), guest.setup).is_err());
}

#[test]
fn a_buffer_id_comes_back_whatever_it_is_and_is_that_of_the_last_descriptor() {
    let mut guest = Guest::packed(8);
    let at = guest.alloc(200);
    for (id, n) in [(0xffff, 1), (0x1234, 3), (8, 2), (0x8000, 1)] {
        guest.packed_chain(id, &vec![(at, 72, 0); n]);
    }
    let mut ring = guest.tx();
    assert_eq!(take(&mut ring).len(), 4);
    assert_eq!(guest.used(), [(0xffff, 0), (0x1234, 0), (8, 0), (0x8000, 0)]);
    guest.packed_chain(0xfffe, &[(at, 20, WRITE), (at, 100, WRITE)]);
    guest.setup.base = ring.base();
    let mut ring = guest.rx();
    push(&mut ring, &noise(1, 60)).unwrap();
    ring.publish();
    assert_eq!(guest.used(), [(0xfffe, 72)]);
}

#[test]
fn a_used_descriptor_overwrites_the_first_of_its_chain_and_the_others_are_left() {
    let mut guest = Guest::packed(5);
    let at = guest.alloc(100);
    let mut ring = guest.tx();
    // Across the end of the ring, too.
    for n in [3u16, 4, 2] {
        let first = guest.places(ring.base()) as u16;
        guest.packed_chain(7, &vec![(at, 30, 0); n.into()]);
        let before: Vec<_> = (0..5).map(|slot| words(&guest, slot)).collect();
        assert_eq!(take(&mut ring).len(), 1);
        for slot in (0..5).filter(|slot| *slot != first) {
            assert_eq!(words(&guest, slot), before[usize::from(slot)], "{slot}, {n} from {first}");
        }
        assert_eq!(words(&guest, first)[..8], before[usize::from(first)][..8], "the address is of no use");
        assert_eq!(guest.used(), [(7, 0)]);
    }
    assert_eq!(ring.base(), 4, "9 descriptors: the second lap");
}

#[test]
fn a_burst_becomes_visible_with_its_first_descriptor() {
    let mut guest = Guest::packed(4);
    (0..3).for_each(|_| _ = guest.post(100));
    let first = words(&guest, 0);
    let mut ring = guest.rx();
    (0..3).for_each(|i| push(&mut ring, &noise(i, 60)).unwrap());
    assert_eq!((words(&guest, 0), guest.used(), ring.has_unsignalled()), (first, vec![], false));
    ring.publish();
    assert_eq!((guest.used(), ring.unsignalled()), (vec![(0, 72), (1, 72), (2, 72)], 3));
}

#[test]
fn what_is_left_of_the_last_lap_is_not_available_in_this_one() {
    for size in [1, 2, 3, 32, 33] {
        for base in [WRAP, 0] {
            let mut guest = Guest::packed(size);
            guest.start_at(base);
            let mut ring = guest.tx();
            for lap in 0..5 {
                assert!(ring.is_empty().unwrap(), "{size}, {lap}");
                sends(&mut guest, size);
                let taken: usize = std::iter::repeat_with(|| take(&mut ring).len()).take(3).sum();
                assert_eq!(taken, usize::from(size));
                assert_eq!(guest.used().len(), usize::from(size));
                assert_eq!(ring.base(), base ^ if lap % 2 == 0 { WRAP } else { 0 });
            }
        }
    }
}

#[test]
fn a_chain_that_does_not_end_breaks_the_ring_and_nothing_is_taken() {
    for (new_ring, size) in [(true, 8), (false, 8), (true, 5000)] {
        let mut guest = Guest::packed(size);
        guest.setup.mergeable = true;
        let at = guest.alloc(100);
        let write = if new_ring { 0 } else { WRITE };
        guest.chain(&[(at, 72, write)]);
        (1..size)
            .for_each(|slot| guest.write_desc(guest.setup.desc, slot, (at, 72, NEXT | AVAIL | write, 0)));
        let fault = RingFault::NoEnd { slot: 1, size };
        if new_ring {
            let (mut ring, mut store) = (guest.tx(), BatchStore::default());
            // It would go on into the first one, which has been taken.
            assert_eq!(ring.pop(&mut store).err(), Some(fault));
            assert_eq!((ring.base(), ring.complete(), guest.used()), (WRAP, 0, vec![]));
        } else {
            assert_eq!(push(&mut guest.rx(), &noise(1, 100)), Err(RxRefused::Broken(fault)));
        }
    }
    let text = "The chain at descriptor 1 of a packed ring does not end within its 8 descriptors";
    assert_eq!(RingFault::NoEnd { slot: 1, size: 8 }.to_string(), text);
}

#[test]
fn what_was_taken_is_not_taken_again_before_it_is_published_whatever_the_guest_writes() {
    let mut guest = Guest::packed(4);
    (0..4).for_each(|_| _ = guest.post(100));
    let at = guest.alloc(100);
    let mut ring = guest.rx();
    for i in 0..4 {
        push(&mut ring, &noise(i, 60)).unwrap();
    }
    // As they would be in the next lap.
    (0..4).for_each(|slot| guest.write_desc(guest.setup.desc, slot, (at, 100, WRITE | USED, 9)));
    assert_eq!(push(&mut ring, &noise(5, 60)), Err(RxRefused::NoBuffer));
    ring.publish();
    assert_eq!(guest.used().len(), 1, "the others were overwritten by the guest");
}

#[test]
fn in_an_indirect_table_no_flag_but_write_means_anything_and_the_length_says_how_many() {
    let mut guest = Guest::packed(8);
    let at = guest.alloc(100);
    guest.write(at, &noise(4, 100));
    let table = guest.alloc(48);
    for (i, flags) in [0, INDIRECT | 0xff00, NEXT | 8].into_iter().enumerate() {
        guest.write_desc(table, i as u16, (at + 32 * i as u64, 32, flags, 0x7777));
    }
    guest.chain(&[(table, 48, INDIRECT)]);
    guest.chain(&[(table, 32, INDIRECT)]);
    guest.chain(&[(table, 48, INDIRECT | WRITE)]);
    let lengths: Vec<_> = take(&mut guest.tx()).into_iter().map(|(_, frame)| frame.len()).collect();
    assert_eq!(lengths, [84, 52, 84]);
    assert_eq!(guest.used(), [(0, 0), (1, 0), (2, 0)]);
}

#[test]
fn flags_of_event_suppression_decide_about_signals() {
    for event_idx in [false, true] {
        let mut guest = Guest::packed(8);
        guest.setup.event_idx = event_idx;
        let mut ring = guest.tx();
        // An event that has passed; the upper bits of the flags are reserved, and so is 3.
        for (flags, wants) in
            [(ENABLE, true), (DISABLE, false), (DESC, !event_idx), (3, true), (0xfffd, false)]
        {
            assert!(!ring.wants_signal(), "nothing was returned");
            sends(&mut guest, 1);
            take(&mut ring);
            guest.set_driver_event(ring.base(), flags);
            assert_eq!(
                (ring.is_signal_wanted(), ring.wants_signal()),
                (wants, wants),
                "{flags:#x} {event_idx}"
            );
        }
    }
}

#[test]
fn with_event_idx_a_signal_is_due_if_the_event_is_among_those_used_since_the_last_question() {
    for size in [1u16, 2, 5, 8] {
        for burst in 1..=size {
            for start in (0..size).flat_map(|slot| [slot, slot | WRAP]) {
                for event in (0..size).flat_map(|slot| [slot, slot | WRAP]) {
                    let mut guest = Guest::packed(size);
                    guest.setup.event_idx = true;
                    guest.start_at(start);
                    let mut ring = guest.tx();
                    sends(&mut guest, burst);
                    take(&mut ring);
                    guest.set_driver_event(event, DESC);
                    let wanted = (0..burst).any(|n| behind(start, n, size) == event);
                    let case = format!("{burst} of {size} from {start:#x}, event {event:#x}");
                    assert_eq!(ring.wants_signal(), wanted, "{case}");
                    assert!(!ring.wants_signal(), "one signal per burst");
                }
            }
        }
    }
}

#[test]
fn an_event_in_the_middle_of_a_chain_or_nowhere_is_passed_too() {
    let mut guest = Guest::packed(8);
    guest.setup.event_idx = true;
    let at = guest.alloc(100);
    for (event, wanted) in [(WRAP, true), (2 | WRAP, true), (3 | WRAP, false), (2, false), (8 | WRAP, true)] {
        guest.start_at(WRAP);
        guest.chain(&[(at, 30, 0); 3]);
        let mut ring = guest.tx();
        take(&mut ring);
        guest.set_driver_event(event, DESC);
        assert_eq!(ring.wants_signal(), wanted, "{event:#x}");
    }
}

#[test]
fn a_signal_may_be_held_for_as_long_as_the_guest_wants_it() {
    let mut guest = Guest::packed(3);
    guest.setup.event_idx = true;
    let mut ring = guest.tx();
    guest.set_driver_event(WRAP, DESC);
    // Everything that was used since is among them, however often the ring was gone round.
    for n in 1..=9u16 {
        sends(&mut guest, 1);
        take(&mut ring);
        guest.used();
        assert_eq!((ring.is_signal_wanted(), ring.unsignalled()), (true, n.min(6)), "{n}");
    }
    ring.forgo_signal();
    assert!(!ring.is_signal_wanted() && !ring.has_unsignalled());
}

#[test]
fn asking_for_kicks_names_the_next_descriptor_or_enables_them_and_refusing_disables_them() {
    for base in [WRAP, 0, 6, 6 | WRAP] {
        let mut guest = Guest::packed(7);
        guest.start_at(base);
        let mut ring = guest.tx();
        assert_eq!(guest.device_event().1, DISABLE, "a ring starts with kicks refused");
        assert_eq!(ring.want_kicks(), Ok(false));
        assert_eq!(guest.device_event().1, ENABLE);
        ring.refuse_kicks();
        assert_eq!(guest.device_event().1, DISABLE);
        guest.setup.event_idx = true;
        let mut ring = guest.tx();
        assert_eq!(ring.want_kicks(), Ok(false));
        assert_eq!(guest.device_event(), (base, DESC));
        ring.refuse_kicks();
        assert_eq!(guest.device_event().1, DISABLE);
        sends(&mut guest, 1);
        take(&mut ring);
        assert_eq!(ring.want_kicks(), Ok(false));
        assert_eq!(guest.device_event(), (behind(base, 1, 7), DESC));
    }
    let guest = Guest::packed(7);
    let _rx = guest.rx();
    assert_eq!(guest.device_event().1, DISABLE, "whoever brings frames never wants kicks");
}

#[test]
fn what_came_before_kicks_were_asked_for_is_not_lost() {
    for event_idx in [false, true] {
        let mut guest = Guest::packed(3);
        guest.setup.event_idx = event_idx;
        let mut ring = guest.tx();
        for _ in 0..7 {
            assert_eq!(take(&mut ring).len(), 0);
            sends(&mut guest, 1);
            assert_eq!(ring.want_kicks(), Ok(true));
            assert_eq!((take(&mut ring).len(), ring.want_kicks()), (1, Ok(false)));
        }
    }
}

#[test]
fn a_ring_that_starts_again_goes_on_where_it_was() {
    let mut guest = Guest::packed(5);
    for n in [3, 4, 0, 1, 5] {
        sends(&mut guest, n);
        let mut ring = guest.tx();
        assert_eq!(take(&mut ring).len(), usize::from(n));
        assert_eq!(guest.used().len(), usize::from(n));
        guest.setup.base = ring.base();
    }
    assert_eq!(guest.setup.base, 3 | WRAP, "13 descriptors: in the third lap");
}

#[test]
fn what_was_taken_and_not_returned_is_taken_again() {
    let mut guest = Guest::packed(5);
    sends(&mut guest, 3);
    let (mut ring, mut store) = (guest.tx(), BatchStore::default());
    assert_eq!(ring.pop(&mut store).unwrap().len(), 3);
    assert_eq!(ring.base(), WRAP);
    assert_eq!(take(&mut guest.tx()).len(), 3);
    assert_eq!(guest.used().len(), 3);
}

#[test]
fn a_ring_goes_over_to_another_memory_table_and_stays_if_it_is_not_there() {
    let (mut guest, mut other) = (Guest::packed(4), Guest::packed(4));
    let frame = noise(1, 300);
    guest.send(&frame);
    let mut ring = guest.tx();
    let fault = RingFault::Unmapped { part: "descriptor ring", gpa: 0x1000 };
    assert_eq!(ring.set_memory(Arc::new(Memory::empty())), Err(fault));
    assert_eq!(take(&mut ring)[0].1, frame);
    let old = guest.read(0x1000, 0x1_0000);
    ring.set_memory(other.memory()).unwrap();
    other.start_at(ring.base());
    let frame = noise(2, 200);
    other.send(&frame);
    assert_eq!(take(&mut ring)[0].1, frame);
    assert_eq!((other.used(), guest.read(0x1000, 0x1_0000)), (vec![(1, 0)], old));
}

fn pages(ranges: &[(u64, u64)]) -> BTreeSet<u64> {
    ranges.iter().flat_map(|(gpa, len)| gpa / PAGE..=(gpa + len - 1) / PAGE).collect()
}

#[test]
fn while_logging_all_that_is_written_is_marked_buffers_descriptors_and_event_suppression() {
    let mut guest = Guest::packed(1000);
    guest.log();
    let desc = guest.setup.desc;
    guest.setup.used = guest.alloc(4).next_multiple_of(PAGE) + PAGE;
    let buffer = guest.setup.used + PAGE;
    guest.start_at(998 | WRAP);
    let mut ring = guest.rx();
    let used = guest.setup.used;
    assert_eq!(guest.marked(), pages(&[(used, 4)]), "refusing kicks");
    (0..4).for_each(|i| _ = guest.chain(&[(buffer + PAGE * i, 100, WRITE)]));
    (0..4).for_each(|_| push(&mut ring, &noise(1, 60)).unwrap());
    assert_eq!(guest.marked(), pages(&[(buffer, 3 * PAGE + 1)]));
    // Around the end.
    ring.publish();
    assert_eq!(guest.marked(), pages(&[(desc + 16 * 998, 32), (desc, 32)]));
    ring.publish();
    assert_eq!(guest.marked(), pages(&[]), "nothing to publish");
    guest.setup.base = ring.base();
    let mut ring = guest.tx();
    guest.marked();
    ring.want_kicks().unwrap();
    assert_eq!(guest.marked(), pages(&[(used, 4)]));
    ring.set_logging(false);
    ring.refuse_kicks();
    assert_eq!(guest.marked(), pages(&[]));
}
