//! Packed rings of any size against a driver that does anything a driver may, for many laps.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::testing::*;
use super::super::{RxRefused, Segment};
use crate::virtio::NetHeader;

/// A buffer: how many descriptors it has, whether they are in a table, and bytes.
#[derive(Debug, Clone)]
struct Buffer {
    pieces: u16,
    in_table: bool,
    len: u32,
}

fn buffer() -> impl Strategy<Value = Buffer> {
    let pieces = prop_oneof![3 => Just(1u16), 1 => 1u16..6];
    (pieces, any::<bool>(), 26u32..400).prop_map(|(pieces, in_table, len)| Buffer { pieces, in_table, len })
}

fn bursts() -> impl Strategy<Value = Vec<Vec<Buffer>>> {
    prop::collection::vec(prop::collection::vec(buffer(), 0..40), 1..20)
}

/// Where a ring of this size may start.
fn start(size: u16) -> impl Strategy<Value = u16> {
    (0..size, any::<bool>()).prop_map(|(slot, wrap)| slot | u16::from(wrap) << 15)
}

fn ring() -> impl Strategy<Value = (u16, u16)> {
    prop_oneof![1u16..20, Just(33), Just(64), Just(100)].prop_flat_map(|size| (Just(size), start(size)))
}

/// Makes a buffer available at `at`, if there is room for it; returns how many descriptors of the ring it has.
fn offer(guest: &mut Guest, b: &Buffer, at: u64, flags: u16, id: u16, room: u16) -> Option<u16> {
    let size = guest.setup.size;
    let pieces = b.pieces.min(size);
    let piece = b.len / u32::from(pieces);
    let parts: Vec<_> = (0..pieces)
        .map(|i| {
            let from = piece * u32::from(i);
            (at + u64::from(from), if i + 1 == pieces { b.len - from } else { piece }, flags)
        })
        .collect();
    let places = if b.in_table { 1 } else { pieces };
    if places > room {
        return None;
    }
    if b.in_table {
        let (table, len) = guest.table(&parts);
        guest.packed_chain(id, &[(table, len, INDIRECT)]);
    } else {
        guest.packed_chain(id, &parts);
    }
    Some(places)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_come_out_as_they_were_sent_and_ids_go_back((size, base) in ring(), bursts in bursts()) {
        let mut guest = Guest::packed(size);
        guest.start_at(base);
        let mut ring = guest.tx();
        let mut id = 60_000u16;
        for burst in bursts {
            let (mut sent, mut ids, mut room) = (Vec::new(), Vec::new(), size);
            for b in &burst {
                let bytes = noise(id.into(), b.len as usize);
                let at = guest.alloc(bytes.len());
                guest.write(at, &bytes);
                let Some(places) = offer(&mut guest, b, at, 0, id, room) else { break };
                room -= places;
                sent.push(bytes[12..].to_vec());
                ids.push((u32::from(id), 0));
                id = id.wrapping_add(1);
            }
            let mut frames = Vec::new();
            while !ring.is_empty().unwrap() {
                frames.extend(take(&mut ring).into_iter().map(|(_, frame)| frame));
            }
            prop_assert_eq!(frames, sent);
            prop_assert_eq!(guest.used(), ids);
        }
        prop_assert_eq!(ring.take_malformed(), 0);
    }

    #[test]
    fn frames_go_into_the_buffers_in_order_and_nothing_beside_them(
        (size, base) in ring(),
        bursts in bursts(),
        mergeable in any::<bool>(),
        lengths in prop::collection::vec(14usize..900, 1..40),
    ) {
        let mut guest = Guest::packed(size);
        guest.start_at(base);
        guest.setup.mergeable = mergeable;
        let mut ring = guest.rx();
        let mut lengths = lengths.iter().cycle();
        // Id, address, bytes, places.
        let mut posted: VecDeque<(u16, u64, u32, u16)> = VecDeque::new();
        let (mut id, mut room) = (60_000u16, size);
        for burst in bursts {
            for b in &burst {
                let at = guest.alloc(b.len as usize + 8);
                guest.write(at, &vec![0xee; b.len as usize + 8]);
                let Some(places) = offer(&mut guest, b, at, WRITE, id, room) else { break };
                room -= places;
                posted.push_back((id, at, b.len, places));
                id = id.wrapping_add(1);
            }
            let mut expected = Vec::new();
            for len in lengths.by_ref().take(burst.len() / 2) {
                let frame = noise(*len, *len);
                let (head, tail) = frame.split_at(frame.len().min(128));
                let result = ring.push(NetHeader::default(), head, &[Segment::from_slice(tail)], *len);
                let need = 12 + *len as u32;
                let most = if mergeable { posted.len() } else { posted.len().min(1) };
                let mut count = 0;
                let mut bytes = 0;
                while bytes < need && count < most {
                    bytes += posted[count].2;
                    count += 1;
                }
                if bytes < need {
                    let too_small = !mergeable && count == 1;
                    let refused = if too_small { RxRefused::BufferTooSmall } else { RxRefused::NoBuffer };
                    prop_assert_eq!(result, Err(refused));
                    continue;
                }
                prop_assert_eq!(result, Ok(()));
                let net = NetHeader { num_buffers: count as u16, ..NetHeader::default() };
                let mut rest = [&net.to_bytes()[..], &frame].concat();
                for (id, at, room, places) in posted.drain(..count) {
                    let now = rest.len().min(room as usize);
                    let later = rest.split_off(now);
                    let behind = room as usize + 8 - now;
                    expected.push((u32::from(id), now as u32, at, rest, behind, places));
                    rest = later;
                }
            }
            ring.publish();
            let used: Vec<_> = expected.iter().map(|e| (e.0, e.1)).collect();
            prop_assert_eq!(guest.used(), used);
            for (_, len, at, bytes, behind, places) in expected {
                prop_assert_eq!(guest.read(at, len as usize), bytes);
                prop_assert_eq!(guest.read(at + u64::from(len), behind), vec![0xee; behind]);
                room += places;
            }
        }
        prop_assert_eq!(ring.take_bad_buffers(), 0);
    }
}
