//! Ring and channel beside their model, down to every byte of guest memory.

use std::sync::Arc;

use flownic::command::channel::{self, Outcome};
use flownic::nic::Nic;
use flownic::vhost::ring::{BATCH, BatchStore, RingFault, RingSetup, TxRing};
use flownic::virtio::channel::Road;

use crate::Script;
use crate::guest::{BASE, GUEST, PAGE, Table};
use crate::reference::{self, Chain, Mem};

/// A channel header and the longest answer that it can announce.
const REPLY_MAX: u64 = 16 + 65535;

pub struct Model {
    ring: TxRing,
    nic: &'static Nic,
    table: &'static Table,
    setup: RingSetup,
    store: BatchStore,
    next_avail: u16,
    next_used: u16,
    /// The farthest available index that the ring may have seen.
    seen: u16,
}

impl Model {
    pub fn new(ring: TxRing, nic: &'static Nic, table: &'static Table, setup: RingSetup) -> Self {
        let store = BatchStore::default();
        let base = setup.base;
        Model { ring, nic, table, setup, store, next_avail: base, next_used: base, seen: base }
    }

    fn mem(&self) -> &'static Mem {
        &self.table.plain
    }

    /// Takes one burst, carries out its command and returns it; false if the ring is broken.
    pub fn burst(&mut self, s: &mut Script<'_>) -> bool {
        let (mem, setup) = (self.mem(), self.setup);
        let idx = reference::u16_at(mem, setup.avail + 2);
        let pending = idx.wrapping_sub(self.next_avail);
        // What the ring has seen stays available for it. A reply may lie on the index; then nothing more can be said.
        if pending > setup.size || pending < self.seen.wrapping_sub(self.next_avail) {
            let result = self.ring.pop(&mut self.store).map(|batch| batch.len());
            assert!(
                result.is_ok() || pending > setup.size || matches!(result, Err(RingFault::BadHead { .. }))
            );
            return false;
        }
        self.seen = idx;
        let mut shadow = GUEST.snapshot();
        let heads: Vec<u16> = (0..pending.min(BATCH as u16))
            .map(|i| self.next_avail.wrapping_add(i) % setup.size)
            .map(|slot| reference::u16_at(mem, setup.avail + 4 + 2 * u64::from(slot)))
            .collect();
        let (mut frames, mut malformed, mut taken, mut command) = (Vec::new(), 0, 0, None);
        let broken = heads.iter().any(|h| *h >= setup.size);
        for head in heads.iter().take_while(|_| !broken) {
            taken += 1;
            match reference::chain(mem, &setup, *head) {
                Chain::Malformed => malformed += 1,
                Chain::Frame(frame) => frames.push(frame),
                found => {
                    command = Some(found);
                    break;
                }
            }
        }
        let batch = match self.ring.pop(&mut self.store) {
            Ok(batch) => batch,
            Err(fault) => {
                assert!(broken, "{fault}");
                return false;
            }
        };
        assert!(!broken);
        assert_eq!(batch.len(), frames.len());
        for (i, frame) in frames.iter().enumerate() {
            let mut copy = vec![0; batch.frame(i).len()];
            batch.copy_frame(i, &mut copy);
            assert!(copy == *frame, "frame {i}");
        }
        assert_eq!(self.ring.take_malformed(), malformed);
        self.next_avail = self.next_avail.wrapping_add(taken as u16);
        assert_eq!(self.ring.base(), self.next_avail);
        assert!(shadow == GUEST.bytes(), "taking frames writes nothing");
        if s.once_in(16) {
            // Not done with a command in hand, and of no harm.
            let table = &GUEST.tables[s.below(GUEST.tables.len())];
            if self.ring.set_memory(Arc::clone(&table.rings)).is_ok() {
                self.table = table;
            }
        }
        let mut marked = Vec::new();
        let written = self.carry_out(command, &mut shadow, &mut marked);
        assert_eq!(self.ring.complete(), taken);
        assert_eq!(self.ring.command(), None);
        let first = self.next_used;
        for (i, head) in heads[..taken].iter().enumerate() {
            let is_last = i + 1 == taken;
            let entry = |index: u16| setup.used + 4 + 8 * u64::from(index % setup.size);
            // In order one entry says it of all, in the place of the first.
            if is_last || !setup.in_order {
                let at = entry(if setup.in_order { first } else { self.next_used });
                let len = if is_last { written } else { 0 };
                put(&mut shadow, at, &[u32::from(*head).to_le_bytes(), len.to_le_bytes()].concat());
            }
            marked.push((entry(self.next_used), 8));
            self.next_used = self.next_used.wrapping_add(1);
        }
        if taken > 0 {
            put(&mut shadow, setup.used + 2, &self.next_used.to_le_bytes());
            marked.push((setup.used, 4));
        }
        if shadow != GUEST.bytes() {
            let at = shadow.iter().zip(GUEST.bytes()).position(|(a, b)| a != b).unwrap();
            panic!("memory differs at {:#x}", BASE + at as u64);
        }
        let pages = if setup.logging { pages(&marked) } else { 0 };
        assert_eq!(GUEST.take_log(), pages, "the log has the pages that were written");
        true
    }

    /// Does what the worker does with a command; returns how many bytes the chain got.
    fn carry_out(&mut self, expected: Option<Chain>, shadow: &mut [u8], marked: &mut Vec<(u64, u64)>) -> u32 {
        let Some(expected) = expected else {
            assert_eq!(self.ring.command(), None);
            return 0;
        };
        let (road, frame, rooms) = match expected {
            Chain::KernelCommand(frame, rooms) => (Road::Kernel, frame, rooms),
            Chain::UserCommand(frame) => (Road::User, frame, Vec::new()),
            other => unreachable!("{other:?}"),
        };
        let room: u64 = rooms.iter().map(|r| r.1).sum();
        let command = self.ring.command().expect("a command");
        assert_eq!((command.road, command.room), (road, room));
        assert!(command.frame == frame);
        let room = if road == Road::Kernel { room.min(REPLY_MAX) } else { 16 + 1484 } as usize;
        // An allocation of its own, so that writing one byte too many is seen.
        let mut reply = vec![0xaa; room].into_boxed_slice();
        let (outcome, len) = channel::answer(self.nic, road, command.frame, &mut reply);
        let reply = &reply[..len];
        self.check(road, &frame, reply, room, outcome);
        if road == Road::User {
            return 0;
        }
        self.ring.reply(reply);
        let mut done = 0;
        for (gpa, len) in rooms {
            let mut now = len.min((reply.len() - done) as u64);
            let mut gpa = gpa;
            while now > 0 {
                let n = reference::room_at(self.mem(), gpa).min(now);
                if n == 0 {
                    return done as u32;
                }
                put(shadow, gpa, &reply[done..done + n as usize]);
                marked.push((gpa, n));
                (gpa, now, done) = (gpa.wrapping_add(n), now - n, done + n as usize);
            }
        }
        assert_eq!(done, reply.len());
        done as u32
    }

    /// Whether a reply is what the ABI says.
    fn check(&self, road: Road, frame: &[u8], reply: &[u8], room: usize, outcome: Outcome) {
        let (version, kind, length) =
            (frame[18], frame[19], usize::from(u16::from_le_bytes([frame[26], frame[27]])));
        let status = if version != 1 {
            1
        } else if !self.nic.config.in_band.allows(road) {
            4
        } else if kind != 1 && kind != 2 {
            2
        } else if length > 16384 || length > frame.len() - 30 {
            3
        } else {
            0
        };
        assert_eq!(reply[..8], [b'f', b'l', b'w', b'n', 1, kind | 0x80, status, 0]);
        assert_eq!((&reply[8..12], &reply[14..16]), (&frame[22..26], &[0, 0][..]));
        let answer = usize::from(u16::from_le_bytes([reply[12], reply[13]]));
        assert_eq!(reply.len(), 16 + answer.min(room - 16));
        assert!(status == 0 || answer == 0);
        assert!(status != 0 || answer >= if kind == 1 { 8 } else { 1 });
        let expected = match status {
            _ if kind & 0x80 != 0 => Outcome::Reply,
            0 => Outcome::Done,
            3 => Outcome::Malformed,
            _ => Outcome::Refused,
        };
        assert_eq!(outcome, expected);
    }
}

fn put(shadow: &mut [u8], gpa: u64, bytes: &[u8]) {
    shadow[(gpa - BASE) as usize..][..bytes.len()].copy_from_slice(bytes);
}

/// Bit per page from [`BASE`].
fn pages(ranges: &[(u64, u64)]) -> u64 {
    ranges.iter().fold(0, |mask, &(gpa, len)| {
        let page = |gpa: u64| (gpa - BASE) / PAGE as u64;
        (page(gpa)..=page(gpa + len - 1)).fold(mask, |m, p| m | 1 << p)
    })
}
