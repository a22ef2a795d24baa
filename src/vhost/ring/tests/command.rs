use super::super::testing::*;
use super::super::{BATCH, BatchStore, MAX_FRAME, TxRing};
use crate::virtio::channel::{COMMAND_MAX, COMMAND_OFFSET, Road};

/// A command's frame with `n` bytes of command, not padded.
fn frame(n: usize) -> Vec<u8> {
    let header = [&[2; 12][..], &[0x88, 0xb5], b"flwn", &[1, 2, 0, 0, 9, 9, 9, 9], &(n as u16).to_le_bytes()];
    [header.concat(), vec![0; 2], noise(n, n)].concat()
}

/// A guest whose NIC takes commands, with the bytes of a message at an address.
fn guest(new: New, size: u16, frame: &[u8]) -> (Guest, u64, u32) {
    let mut guest = new(size);
    guest.setup.in_band = true;
    let bytes = [&vec![0; 12][..], frame].concat();
    let at = guest.alloc(bytes.len());
    guest.write(at, &bytes);
    (guest, at, bytes.len() as u32)
}

/// Takes one burst: road and frame of its command, which is answered with `reply`, and how many frames came before.
fn take_command(ring: &mut TxRing, reply: &[u8]) -> (usize, Option<(Road, Vec<u8>, u64)>) {
    let mut store = BatchStore::default();
    let frames = ring.pop(&mut store).unwrap().len();
    let command = ring.command().map(|c| (c.road, c.frame.to_vec(), c.room));
    if command.as_ref().is_some_and(|c| c.0 == Road::Kernel) {
        ring.reply(reply);
    }
    ring.complete();
    assert_eq!(ring.command(), None, "it is forgotten when its chain has been returned");
    (frames, command)
}

#[test]
fn a_command_may_be_split_anywhere_and_so_may_the_room_for_its_reply() {
    for new in BOTH {
        let sent = frame(40);
        for header_len in [10, 12] {
            let mut guest = new(64);
            (guest.setup.in_band, guest.setup.header_len) = (true, header_len);
            let bytes = [&vec![0; header_len][..], &sent].concat();
            let (at, room) = (guest.alloc(bytes.len()), guest.alloc(64));
            guest.write(at, &bytes);
            let mut ring = guest.tx();
            let total = bytes.len() as u32;
            for split in 0..=total {
                let cut = split % 33;
                let reply = noise(split as usize, 32);
                guest.chain(&[
                    (at, split, 0),
                    (at + u64::from(split), total - split, 0),
                    (room, cut, WRITE),
                    (room + u64::from(cut), 32 - cut, WRITE),
                ]);
                let taken = take_command(&mut ring, &reply);
                assert_eq!(taken, (0, Some((Road::Kernel, sent.clone(), 32))), "split at {split}");
                assert_eq!(guest.read(room, 32), reply);
                assert_eq!(guest.used().last().unwrap().1, 32);
            }
            assert_eq!(ring.take_malformed(), 0);
        }
    }
}

#[test]
fn a_command_with_a_descriptor_for_each_byte_of_it_and_of_its_reply() {
    for new in BOTH {
        let sent = frame(0);
        let (mut guest, at, len) = guest(new, 64, &sent);
        let room = guest.alloc(16);
        let mut chain: Vec<_> = (0..u64::from(len)).map(|i| (at + i, 1, 0)).collect();
        chain.extend((0..16).map(|i| (room + i, 1, WRITE)));
        assert_eq!(chain.len(), 58);
        guest.chain(&chain);
        assert_eq!(take_command(&mut guest.tx(), &noise(3, 16)).1, Some((Road::Kernel, sent, 16)));
        assert_eq!((guest.read(room, 16), guest.used()), (noise(3, 16), vec![(0, 16)]));
    }
}

#[test]
fn a_command_may_be_indirect_or_end_in_an_indirect_table() {
    let sent = frame(100);
    let (mut guest, at, len) = guest(Guest::new, 16, &sent);
    let room = guest.alloc(64);
    let (read, write) = ((at, len, 0), (room, 64, WRITE));
    let (table, n) = guest.table(&[read, (room, 0, WRITE), write]);
    guest.chain(&[(table, n, INDIRECT)]);
    let (table, n) = guest.table(&[write]);
    guest.chain(&[read, (table, n, INDIRECT)]);
    let mut ring = guest.tx();
    for _ in 0..2 {
        assert_eq!(take_command(&mut ring, &noise(5, 64)).1, Some((Road::Kernel, sent.clone(), 64)));
        assert_eq!(guest.read(room, 64), noise(5, 64));
        guest.write(room, &[0; 64]);
    }
}

#[test]
fn command_and_reply_may_lie_across_two_regions() {
    for new in BOTH {
        let sent = frame(60);
        let (mut guest, _, len) = guest(new, 16, &[]);
        guest.log();
        let mut ring = guest.tx();
        for before in [1, 13, 40] {
            guest.write(BOUNDARY - 4096 - before, &[&[0; 12][..], &sent].concat());
            let room = BOUNDARY - before;
            guest.marked();
            guest.chain(&[(BOUNDARY - 4096 - before, len + sent.len() as u32, 0), (room, 64, WRITE)]);
            assert!(take_command(&mut ring, &noise(1, 64)).1.is_some());
            assert_eq!(guest.read(room, 64), noise(1, 64));
            let marked = guest.marked();
            assert!(
                marked.contains(&(BOUNDARY / PAGE)) && marked.contains(&(BOUNDARY / PAGE - 1)),
                "{marked:?}"
            );
        }
    }
}

#[test]
fn only_pages_that_are_written_are_logged() {
    for new in BOTH {
        let sent = frame(0);
        let (mut guest, at, len) = guest(new, 16, &sent);
        let room = guest.alloc(4 * PAGE as usize).next_multiple_of(PAGE);
        guest.log();
        let mut ring = guest.tx();
        guest.chain(&[(at, len, 0), (room, 2 * PAGE as u32, WRITE)]);
        guest.marked();
        take_command(&mut ring, &[7; 20]);
        assert_eq!(guest.used(), [(0, 20)]);
        let used = guest.setup.used / PAGE;
        assert_eq!(guest.marked().into_iter().collect::<Vec<_>>(), [used, room / PAGE]);
    }
}

#[test]
fn a_reply_that_does_not_fit_is_cut_off_and_one_that_is_short_leaves_the_rest() {
    for new in BOTH {
        let (mut guest, at, len) = guest(new, 16, &frame(1));
        let room = guest.alloc(64);
        guest.write(room, &[0xee; 64]);
        let mut ring = guest.tx();
        for (rooms, reply, written) in [([10, 8], 30, 18), ([16, 16], 20, 20), ([0, 16], 16, 16)] {
            guest.chain(&[
                (at, len, 0),
                (room, rooms[0], WRITE),
                (room + u64::from(rooms[0]), rooms[1], WRITE),
            ]);
            take_command(&mut ring, &noise(9, reply));
            assert_eq!(guest.used().pop().unwrap().1, written);
            let expected =
                [noise(9, reply)[..written as usize].to_vec(), vec![0xee; 64 - written as usize]].concat();
            assert_eq!(guest.read(room, 64), expected);
            guest.write(room, &[0xee; 64]);
        }
    }
}

#[test]
fn a_long_command_is_kept_as_far_as_anybody_looks() {
    for new in BOTH {
        for (n, kept) in [(COMMAND_MAX, COMMAND_MAX), (COMMAND_MAX + 1, COMMAND_MAX), (60000, COMMAND_MAX)] {
            let sent = frame(n);
            let (mut guest, at, len) = guest(new, 16, &sent);
            let room = guest.alloc(32);
            let mut ring = guest.tx();
            guest.chain(&[(at, 1000, 0), (at + 1000, len - 1000, 0), (room, 32, WRITE)]);
            guest.chain(&[(at, 500, 0), (at + 500, len - 500, 0)]);
            let kept = sent[..COMMAND_OFFSET + kept].to_vec();
            assert_eq!(take_command(&mut ring, &[]).1, Some((Road::Kernel, kept.clone(), 32)));
            assert_eq!(take_command(&mut ring, &[]).1, Some((Road::User, kept, 0)));
        }
    }
}

#[test]
fn a_burst_ends_with_a_command_of_either_road_and_order_is_kept() {
    for new in BOTH {
        let sent = frame(10);
        let (mut guest, at, len) = guest(new, 64, &sent);
        let room = guest.alloc(32);
        guest.send(&noise(1, 60));
        guest.send(&noise(2, 300));
        let user = guest.chain(&[(at, len, 0)]);
        guest.send(&noise(3, 60));
        let kernel = guest.chain(&[(at, len, 0), (room, 32, WRITE)]);
        guest.chain(&[(at, 20, 0), (room, 32, WRITE)]); // malformed
        guest.send(&noise(4, 60));
        let mut ring = guest.tx();
        assert_eq!(take_command(&mut ring, &[]), (2, Some((Road::User, sent.clone(), 0))));
        assert_eq!(guest.used().into_iter().skip(2).collect::<Vec<_>>(), [(u32::from(user), 0)]);
        assert_eq!(take_command(&mut ring, &[1; 17]), (1, Some((Road::Kernel, sent, 32))));
        assert_eq!(guest.used().into_iter().skip(1).collect::<Vec<_>>(), [(u32::from(kernel), 17)]);
        assert_eq!(take_command(&mut ring, &[]), (1, None));
        assert_eq!((guest.used().len(), ring.take_malformed()), (2, 1));
    }
}

#[test]
fn the_frames_before_a_command_are_whole() {
    for new in BOTH {
        let sent = frame(300);
        let (mut guest, at, len) = guest(new, 64, &sent);
        let long = noise(6, 1000);
        guest.send(&long);
        guest.chain(&[(at, 100, 0), (at + 100, len - 100, 0)]);
        let (mut ring, mut store) = (guest.tx(), BatchStore::default());
        let batch = ring.pop(&mut store).unwrap();
        assert_eq!(frames(&batch).into_iter().map(|f| f.1).collect::<Vec<_>>(), [long]);
        assert_eq!(ring.command().unwrap().frame, sent);
    }
}

/// Chains that look like a command and are none, in a ring of 8 entries; each is malformed.
type Wrong = fn(&mut Guest, at: u64, len: u32, room: u64);

const WRONG: &[(&str, Wrong)] = &[
    ("without room for a header", |g, at, len, room| _ = g.chain(&[(at, len, 0), (room, 15, WRITE)])),
    ("without any room", |g, at, len, room| _ = g.chain(&[(at, len, 0), (room, 0, WRITE)])),
    ("with a readable one behind", |g, at, len, room| {
        _ = g.chain(&[(at, len, 0), (room, 32, WRITE), (at, 1, 0)]);
    }),
    ("with a writable one before", |g, at, len, room| _ = g.chain(&[(room, 32, WRITE), (at, len, 0)])),
    ("with a writable one in between", |g, at, len, room| {
        _ = g.chain(&[(at, 30, 0), (room, 32, WRITE), (at + 30, len - 30, 0), (room, 32, WRITE)]);
    }),
    ("with a header that is cut", |g, at, _, room| _ = g.chain(&[(at, 12 + 29, 0), (room, 32, WRITE)])),
    ("of which nothing is readable", |g, _, _, room| _ = g.chain(&[(room, 64, WRITE)])),
    ("unmapped where it is written", |g, at, len, _| _ = g.chain(&[(at, len, 0), (NOWHERE, 32, WRITE)])),
    ("unmapped at its end", |g, at, len, room| {
        _ = g.chain(&[(at, len, 0), (room, 16, WRITE), (FAR + 0x1_0000 - 8, 16, WRITE)]);
    }),
    ("of 4 GiB to be written", |g, at, len, room| _ = g.chain(&[(at, len, 0), (room, u32::MAX, WRITE)])),
    ("of 4 GiB to be read", |g, at, len, room| {
        _ = g.chain(&[(at, len, 0), (at, u32::MAX, 0), (room, 32, WRITE)]);
    }),
    ("longer than a frame can be", |g, at, len, room| {
        g.chain(&[(at, len, 0), (0x10_0000, MAX_FRAME as u32 + 1 - (len - 12), 0), (room, 32, WRITE)]);
    }),
    ("with another magic", |g, at, len, room| {
        g.write(at + 12 + 14, b"f1wn");
        g.chain(&[(at, len, 0), (room, 32, WRITE)]);
    }),
    ("of another type", |g, at, len, room| {
        g.write(at + 12 + 12, &[0x88, 0xb6]);
        g.chain(&[(at, len, 0), (room, 32, WRITE)]);
    }),
    ("with a tag", |g, at, _, room| {
        g.write(at + 12 + 12, &[&[0x81, 0, 0, 5][..], &frame(20)[12..]].concat());
        g.chain(&[(at, 12 + 54, 0), (room, 32, WRITE)]);
    }),
];

#[test]
fn a_chain_with_a_writable_part_that_is_no_command_is_malformed_and_nothing_is_written() {
    for ((what, wrong), new) in WRONG.iter().flat_map(|wrong| BOTH.map(|new| (wrong, new))) {
        let (mut guest, at, len) = guest(new, 8, &[frame(20), vec![0; 20]].concat());
        let room = guest.alloc(64);
        guest.write(room, &[0xee; 64]);
        let mut ring = guest.tx();
        wrong(&mut guest, at, len, room);
        assert_eq!((take_command(&mut ring, &[1; 16]), ring.take_malformed()), ((0, None), 1), "{what}");
        assert_eq!((guest.used()[0].1, guest.read(room, 64)), (0, vec![0xee; 64]), "{what}");
        guest.write(at, &[&[0; 12][..], &frame(20)].concat());
        guest.chain(&[(at, len, 0), (room, 32, WRITE)]);
        assert!(take_command(&mut ring, &[]).1.is_some(), "after {what}");
    }
}

#[test]
fn a_command_that_is_looped_is_malformed_too() {
    let (mut guest, at, len) = guest(Guest::new, 8, &frame(20));
    guest.chain(&[(at, len, 0), (at, 1, WRITE)]);
    guest.write_desc(guest.setup.desc, 1, (at, 1, WRITE | NEXT, 1));
    let mut ring = guest.tx();
    assert_eq!((take_command(&mut ring, &[1; 16]), ring.take_malformed()), ((0, None), 1));
}

#[test]
fn what_is_not_quite_a_command_is_an_ordinary_frame() {
    for new in BOTH {
        let mut cut = frame(0);
        cut.truncate(29);
        let (mut magic, mut kind) = (frame(20), frame(20));
        magic[17] ^= 1;
        kind[13] ^= 1;
        let tagged = [&frame(20)[..12], &[0x81, 0, 0, 5], &frame(20)[12..]].concat();
        for sent in [cut, magic, kind, tagged] {
            let (mut guest, ..) = guest(new, 8, &[]);
            guest.send(&sent);
            assert_eq!(take(&mut guest.tx())[0].1, sent);
        }
    }
}

#[test]
fn without_the_channel_nothing_is_a_command() {
    for new in BOTH {
        let sent = frame(20);
        let (mut guest, at, len) = guest(new, 8, &sent);
        guest.setup.in_band = false;
        guest.chain(&[(at, len, 0)]);
        guest.chain(&[(at, len, 0), (at, 32, WRITE)]);
        let mut ring = guest.tx();
        assert_eq!(take(&mut ring).into_iter().map(|f| f.1).collect::<Vec<_>>(), [sent]);
        assert_eq!((ring.take_malformed(), guest.used().len()), (1, 2));
    }
}

#[test]
fn what_the_guest_changes_after_it_was_taken_changes_nothing() {
    for new in BOTH {
        let sent = frame(200);
        let (mut guest, at, len) = guest(new, 8, &sent);
        let room = guest.alloc(32);
        guest.chain(&[(at, len, 0), (room, 32, WRITE)]);
        let (mut ring, mut store) = (guest.tx(), BatchStore::default());
        assert!(ring.pop(&mut store).unwrap().is_empty());
        guest.write(at, &vec![0xff; len as usize]);
        (0..2).for_each(|i| guest.write_desc(guest.setup.desc, i, (NOWHERE, 1, 0, 0)));
        assert_eq!(ring.command().unwrap().frame, sent);
        ring.reply(&[5; 32]);
        ring.complete();
        assert_eq!((guest.used(), guest.read(room, 32)), (vec![(0, 32)], vec![5; 32]));
    }
}

#[test]
fn a_flood_of_commands_is_taken_one_in_a_burst() {
    for new in BOTH {
        let (mut guest, at, len) = guest(new, 64, &frame(4));
        (0..BATCH).for_each(|_| _ = guest.chain(&[(at, len, 0)]));
        let mut ring = guest.tx();
        for i in 1..=BATCH {
            assert!(take_command(&mut ring, &[]).1.is_some());
            assert_eq!(usize::from(guest.used_idx()), i);
        }
        assert_eq!(take_command(&mut ring, &[]), (0, None));
    }
}
