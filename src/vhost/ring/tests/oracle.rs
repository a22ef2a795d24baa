//! The virtio-queue crate, slow and thorough, as a second opinion.

use proptest::prelude::*;
use virtio_queue::{Queue, QueueT};
use vm_memory::Bytes;

use super::super::testing::*;
use super::super::{MAX_FRAME, MIN_FRAME};

const SIZE: u16 = 16;

/// A chain: buffers as lengths, and whether each is somewhere else than the one before; which of them are in a table.
#[derive(Debug, Clone)]
struct Chain {
    buffers: Vec<(u32, u8)>,
    /// From this one on they are in an indirect table.
    table_from: Option<usize>,
}

fn chain() -> impl Strategy<Value = Chain> {
    let len = prop_oneof![4 => 0u32..40, 2 => 40u32..300, 1 => Just(1514u32), 1 => Just(70_000u32)];
    (prop::collection::vec((len, any::<u8>()), 1..6), prop::option::weighted(0.3, 0usize..6))
        .prop_map(|(buffers, from)| Chain { table_from: from.filter(|f| *f < buffers.len()), buffers })
}

/// Makes the chain available. Buffers lie in all regions, some across the boundary of two.
fn offer(guest: &mut Guest, chain: &Chain) {
    let place = |(i, (len, place)): (usize, &(u32, u8))| {
        let at = match place % 4 {
            0 => FAR + u64::from(*place),
            1 => BOUNDARY - u64::from(len / 2) - i as u64,
            _ => BOUNDARY + 0x100 * u64::from(*place),
        };
        (at, (*len).min(0xff00), 0)
    };
    let mut direct: Vec<_> = chain.buffers.iter().enumerate().map(place).collect();
    if let Some(from) = chain.table_from {
        let (table, len) = guest.table(&direct.split_off(from));
        direct.push((table, len, INDIRECT));
    }
    guest.chain(&direct);
}

/// All bytes of the chains that the crate finds.
fn by_the_crate(guest: &Guest) -> (Vec<Vec<u8>>, Queue) {
    let mut queue = Queue::new(SIZE).unwrap();
    queue.try_set_desc_table_address(vm_memory::GuestAddress(guest.setup.desc)).unwrap();
    queue.try_set_avail_ring_address(vm_memory::GuestAddress(guest.setup.avail)).unwrap();
    queue.try_set_used_ring_address(vm_memory::GuestAddress(guest.setup.used)).unwrap();
    queue.set_event_idx(guest.setup.event_idx);
    queue.set_next_avail(guest.setup.base);
    queue.set_next_used(guest.setup.base);
    queue.set_ready(true);
    let mem = &*guest.mem;
    let mut chains = Vec::new();
    while let Some(chain) = queue.pop_descriptor_chain(mem) {
        let mut bytes = Vec::new();
        for d in chain.readable() {
            let at = bytes.len();
            bytes.resize(at + d.len() as usize, 0);
            mem.read_slice(&mut bytes[at..], d.addr()).unwrap();
        }
        chains.push(bytes);
    }
    (chains, queue)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_are_those_that_the_virtio_queue_crate_sees(
        chains in prop::collection::vec(chain(), 1..4),
        start in prop_oneof![Just(0u16), any::<u16>()],
        legacy in any::<bool>(),
    ) {
        let mut guest = Guest::new(SIZE);
        guest.start_at(start);
        guest.setup.header_len = if legacy { 10 } else { 12 };
        guest.write(BOUNDARY - 0x1_0000, &noise(3, 0x4_0000));
        guest.write(FAR, &noise(9, 0x1_0000));
        // No chain's descriptors may be written over by the next one's.
        let mut descriptors = 0;
        for c in &chains {
            descriptors += c.table_from.map_or(c.buffers.len(), |from| from + 1);
            if descriptors <= usize::from(SIZE) {
                offer(&mut guest, c);
            }
        }
        let header = guest.setup.header_len;
        let (seen, _) = by_the_crate(&guest);
        let expected: Vec<Vec<u8>> = seen
            .iter()
            .filter(|b| (header + MIN_FRAME..=header + MAX_FRAME).contains(&b.len()))
            .map(|b| b[header..].to_vec())
            .collect();
        let mut ring = guest.tx();
        let frames: Vec<_> = take(&mut ring).into_iter().map(|(_, frame)| frame).collect();
        prop_assert_eq!(frames, expected);
        prop_assert_eq!(guest.used().len(), seen.len());
    }

    #[test]
    fn a_signal_is_wanted_when_the_virtio_queue_crate_says_so(
        start in any::<u16>(),
        burst in 1u16..16,
        distance in -20i16..20,
        flags in 0u16..2,
        event_idx in any::<bool>(),
    ) {
        let mut guest = Guest::new(SIZE);
        guest.setup.event_idx = event_idx;
        guest.start_at(start);
        guest.write_u16(guest.setup.avail, flags);
        guest.set_used_event(start.wrapping_add_signed(distance));
        let (_, mut queue) = by_the_crate(&guest);
        // The crate always signals the first time; this is about the second one.
        let _ = queue.needs_notification(&*guest.mem).unwrap();
        (0..burst).for_each(|_| queue.add_used(&*guest.mem, 0, 0).unwrap());
        // The crate knows no flags.
        let expected = if event_idx { queue.needs_notification(&*guest.mem).unwrap() } else { flags & 1 == 0 };

        guest.write_u16(guest.setup.used + 2, start);
        let mut ring = guest.tx();
        (0..burst).for_each(|_| _ = guest.chain(&[(BOUNDARY, 72, 0)]));
        prop_assert_eq!(take(&mut ring).len(), usize::from(burst));
        prop_assert_eq!(ring.wants_signal(), expected);
    }
}
