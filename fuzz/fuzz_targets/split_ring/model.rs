//! The device beside its model: each step is done by the ring and said by the reference, and the two are compared,
//! down to every byte of guest memory.

use std::sync::Arc;

use flownic::vhost::ring::{
    BATCH, BatchStore, HEAD, MAX_FRAME, MIN_FRAME, RingFault, RingSetup, RxRefused, RxRing, Segment, TxRing,
};
use flownic::virtio::NetHeader;

use crate::Script;
use crate::guest::{BASE, GUEST, PAGE, TOTAL, Table};
use crate::reference::{self, Mem, Outcome, Push};

pub enum Device {
    Tx(TxRing, BatchStore),
    Rx(RxRing),
}

pub struct Model {
    device: Device,
    table: &'static Table,
    setup: RingSetup,
    /// Guest memory as it should be.
    shadow: Vec<u8>,
    next_avail: u16,
    /// The farthest available index that the guest ever wrote; the ring may know it even if the guest took it back.
    announced: u16,
    next_used: u16,
    published: u16,
    signalled: u16,
    malformed: u64,
    bad_buffers: u64,
    /// Descriptors of receive buffers that were walked since the last publish, if that is known.
    walked: Option<u32>,
}

/// What a step wrote: address and bytes, in order.
type Writes = Vec<(u64, Vec<u8>)>;

impl Model {
    pub fn new(device: Device, table: &'static Table, setup: RingSetup, shadow: Vec<u8>) -> Self {
        let used = reference::u16_at(&table.plain, setup.used + 2);
        let mut model = Model {
            device,
            table,
            setup,
            shadow,
            next_avail: setup.base,
            announced: setup.base,
            next_used: used,
            published: used,
            signalled: used,
            malformed: 0,
            bad_buffers: 0,
            walked: Some(0),
        };
        // Both kinds of ring start with kicks refused.
        let writes = model.refusal();
        model.expect(&writes, &[]);
        model
    }

    fn mem(&self) -> &'static Mem {
        &self.table.plain
    }

    /// The guest changed its memory.
    pub fn guest_wrote(&mut self) {
        self.shadow.copy_from_slice(GUEST.bytes());
        self.observe();
    }

    fn observe(&mut self) {
        let idx = reference::avail_idx(self.mem(), &self.setup);
        let pending = idx.wrapping_sub(self.next_avail);
        if pending <= self.setup.size && pending > self.announced.wrapping_sub(self.next_avail) {
            self.announced = idx;
        }
    }

    /// Chains that wait; `None` if the guest's index is nonsense, or was taken back.
    fn pending(&self) -> Option<u16> {
        let idx = reference::avail_idx(self.mem(), &self.setup);
        let pending = idx.wrapping_sub(self.next_avail);
        (pending <= self.setup.size && idx == self.announced).then_some(pending)
    }

    fn index_is_nonsense(&self) -> bool {
        let idx = reference::avail_idx(self.mem(), &self.setup);
        idx.wrapping_sub(self.next_avail) > self.setup.size
    }

    /// Memory must be what it was, apart from `writes`; the log must have their pages (those of `logged_later` may, but
    /// need not, be in it), and no others.
    fn expect(&mut self, writes: &Writes, logged_later: &[(u64, u64)]) {
        for (gpa, bytes) in writes {
            let at = (gpa - BASE) as usize;
            self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
        }
        if self.shadow != GUEST.bytes() {
            let at = self.shadow.iter().zip(GUEST.bytes()).position(|(a, b)| a != b).unwrap();
            let show = |m: &[u8]| m[at..(at + 32).min(TOTAL)].to_vec();
            panic!(
                "memory differs at {:#x}: expected {:x?}, is {:x?}; {:x?}",
                BASE + at as u64,
                show(&self.shadow),
                show(GUEST.bytes()),
                self.setup
            );
        }
        let ranges = writes.iter().map(|(gpa, bytes)| (*gpa, bytes.len() as u64));
        self.expect_log(ranges.collect(), logged_later);
    }

    fn expect_log(&mut self, written: Vec<(u64, u64)>, logged_later: &[(u64, u64)]) {
        let log = GUEST.take_log();
        if !self.setup.logging {
            assert_eq!(log, 0, "marked without a migration");
            return;
        }
        let may_wait = pages(logged_later.iter().copied());
        let written = pages(written.into_iter());
        assert_eq!(written & !log & !may_wait, 0, "written, but not marked: {written:b} {log:b}");
        assert_eq!(log & !written & !may_wait, 0, "marked, but not written: {written:b} {log:b}");
    }

    fn used_entry(&self, i: u16, head: u16, len: u32) -> (u64, Vec<u8>) {
        let at = self.setup.used + 4 + 8 * u64::from(i % self.setup.size);
        (at, [u32::from(head).to_le_bytes(), len.to_le_bytes()].concat())
    }

    /// Where the entries are that were written and not published.
    fn unpublished(&self) -> Vec<(u64, u64)> {
        let n = self.next_used.wrapping_sub(self.published);
        (0..n).map(|i| (self.used_entry(self.published.wrapping_add(i), 0, 0).0, 8)).collect()
    }

    fn refusal(&self) -> Writes {
        vec![if self.setup.event_idx {
            self.avail_event(self.next_avail.wrapping_sub(1))
        } else {
            (self.setup.used, vec![1, 0])
        }]
    }

    fn avail_event(&self, value: u16) -> (u64, Vec<u8>) {
        (self.setup.used + 4 + 8 * u64::from(self.setup.size), value.to_le_bytes().to_vec())
    }

    /// Publishes: the index, and the log of the entries before it.
    fn expect_published(&mut self, mut writes: Writes) {
        let entries = self.unpublished();
        if entries.is_empty() {
            return self.expect(&writes, &[]);
        }
        writes.push((self.setup.used + 2, self.next_used.to_le_bytes().to_vec()));
        // Flags and index are one word for the log.
        let at = self.setup.used;
        for (gpa, bytes) in &writes {
            self.shadow[(gpa - BASE) as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        assert!(self.shadow == GUEST.bytes(), "memory differs after publishing");
        let mut written = entries;
        written.push((at + 2, 2));
        self.expect_log(written, &[(at, 4)]);
        self.published = self.next_used;
    }

    /// One step of the device; false if the ring is broken.
    pub fn step(&mut self, s: &mut Script<'_>) -> bool {
        let what = s.u8();
        match what % 32 {
            0 => self.change_memory(s),
            1 => self.restart(),
            2 => {
                self.setup.logging = !self.setup.logging;
                match &mut self.device {
                    Device::Tx(ring, _) => ring.set_logging(self.setup.logging),
                    Device::Rx(ring) => ring.set_logging(self.setup.logging),
                }
            }
            3..8 => self.wants_signal(),
            8..11 => return self.kicks(what & 1 == 0),
            _ if matches!(self.device, Device::Tx(..)) => return self.transmit(s),
            11..16 => self.publish(),
            16..18 => self.prepare(),
            _ => return self.receive(s),
        }
        true
    }

    /// The last words: everything is returned and seen.
    pub fn finish(&mut self) {
        match &mut self.device {
            Device::Tx(ring, _) => assert_eq!(ring.take_malformed(), self.malformed),
            Device::Rx(ring) => assert_eq!(ring.take_bad_buffers(), self.bad_buffers),
        }
        if matches!(self.device, Device::Rx(_)) {
            self.publish();
        }
        self.wants_signal();
        self.wants_signal();
    }

    fn base(&self) -> u16 {
        match &self.device {
            Device::Tx(ring, _) => ring.base(),
            Device::Rx(ring) => ring.base(),
        }
    }

    fn change_memory(&mut self, s: &mut Script<'_>) {
        let table = &GUEST.tables[s.below(GUEST.tables.len())];
        let memory = Arc::clone(&table.rings);
        let changed = match &mut self.device {
            Device::Tx(ring, _) => ring.set_memory(memory),
            Device::Rx(ring) => ring.set_memory(memory),
        };
        assert_eq!(changed.is_ok(), reference::can_start(&table.plain, &self.setup));
        // A ring that can't go over stays where it was.
        if changed.is_ok() {
            self.table = table;
        }
        self.expect(&vec![], &[]);
    }

    /// Stops and starts again, as for a front end that comes back.
    fn restart(&mut self) {
        if self.published != self.next_used {
            self.publish();
        }
        let used = reference::u16_at(self.mem(), self.setup.used + 2);
        self.setup.base = self.base();
        let memory = Arc::clone(&self.table.rings);
        self.device = match &self.device {
            Device::Tx(..) => {
                Device::Tx(TxRing::start(memory, self.setup).expect("as before"), BatchStore::default())
            }
            Device::Rx(_) => Device::Rx(RxRing::start(memory, self.setup).expect("as before")),
        };
        (self.next_used, self.published, self.signalled) = (used, used, used);
        (self.malformed, self.bad_buffers) = (0, 0);
        self.walked = Some(0);
        self.announced = self.next_avail;
        let writes = self.refusal();
        self.expect(&writes, &[]);
        self.observe();
    }

    fn wants_signal(&mut self) {
        let wants = match &mut self.device {
            Device::Tx(ring, _) => ring.wants_signal(),
            Device::Rx(ring) => {
                assert_eq!(ring.has_unsignalled(), self.signalled != self.published);
                ring.wants_signal()
            }
        };
        let (new, old) = (self.published, std::mem::replace(&mut self.signalled, self.published));
        let s = &self.setup;
        let expected = if s.event_idx {
            let event = reference::u16_at(self.mem(), s.avail + 4 + 2 * u64::from(s.size));
            reference::need_event(event, new, old)
        } else {
            new != old && reference::u16_at(self.mem(), s.avail) & 1 == 0
        };
        assert_eq!(wants, expected, "old {old} new {new}");
        self.expect(&vec![], &[]);
    }

    /// Kicks are asked for, or refused.
    fn kicks(&mut self, wanted: bool) -> bool {
        let Device::Tx(ring, _) = &mut self.device else { return true };
        if !wanted {
            ring.refuse_kicks();
            let writes = self.refusal();
            self.expect(&writes, &[]);
            self.observe();
            return true;
        }
        let more = ring.want_kicks();
        let write = if self.setup.event_idx {
            self.avail_event(self.next_avail)
        } else {
            (self.setup.used, vec![0, 0])
        };
        self.expect(&vec![write], &[]);
        self.observe();
        // It looks after it asked.
        let idx = reference::avail_idx(self.mem(), &self.setup);
        let pending = idx.wrapping_sub(self.next_avail);
        if pending > self.setup.size {
            let (from, to, size) = (self.next_avail, idx, self.setup.size);
            assert_eq!(more, Err(RingFault::AvailJump { from, to, size }));
            return false;
        }
        assert_eq!(more, Ok(pending > 0));
        true
    }

    fn transmit(&mut self, s: &mut Script<'_>) -> bool {
        let pending = self.pending();
        let (mem, setup, next) = (self.mem(), self.setup, self.next_avail);
        let nonsense = self.index_is_nonsense();
        let announced = self.announced.wrapping_sub(next);
        let Device::Tx(ring, store) = &mut self.device else { unreachable!() };
        let mut heads = Vec::new();
        match ring.pop(store) {
            Err(RingFault::AvailJump { .. }) => {
                assert!(nonsense, "no jump: {setup:x?}");
                return self.broke();
            }
            Err(RingFault::BadHead { entry, head, size }) => {
                assert_eq!((head, size), (reference::avail_entry(mem, &setup, entry), setup.size));
                let distance = entry.wrapping_sub(next) % setup.size;
                assert!(head >= size && distance < pending.unwrap_or(announced).min(BATCH as u16));
                return self.broke();
            }
            Err(other) => panic!("{other}"),
            Ok(batch) => {
                if let Some(pending) = pending {
                    heads = (0..pending.min(BATCH as u16))
                        .map(|i| reference::avail_entry(mem, &setup, next.wrapping_add(i)))
                        .collect();
                    let frames: Vec<_> =
                        heads.iter().filter_map(|h| reference::sent(mem, &setup, *h)).collect();
                    assert_eq!(batch.len(), frames.len(), "{setup:x?} {heads:?}");
                    for (i, (header, frame)) in frames.iter().enumerate() {
                        let f = batch.frame(i);
                        let net = NetHeader { num_buffers: 0, ..NetHeader::from_bytes(header) };
                        assert_eq!(f.net, net);
                        assert_eq!(f.len(), frame.len());
                        assert_eq!(f.head(), &frame[..frame.len().min(HEAD)]);
                        let tail: usize = batch.tail(i).iter().map(Segment::len).sum();
                        assert_eq!(f.head().len() + tail, frame.len());
                        let mut copy = vec![0; frame.len()].into_boxed_slice();
                        batch.copy_frame(i, &mut copy);
                        assert_eq!(&*copy, frame);
                    }
                    self.malformed += (heads.len() - frames.len()) as u64;
                } else {
                    // What the ring knew before the guest took it back; nothing more can be said.
                    for i in 0..batch.len() {
                        let mut copy = vec![0; batch.frame(i).len()];
                        batch.copy_frame(i, &mut copy);
                    }
                }
            }
        }
        let taken = ring.base().wrapping_sub(next);
        match pending {
            Some(_) => assert_eq!(usize::from(taken), heads.len()),
            None => {
                assert!(taken <= announced.min(BATCH as u16));
                heads =
                    (0..taken).map(|i| reference::avail_entry(mem, &setup, next.wrapping_add(i))).collect();
                ring.take_malformed();
                self.malformed = 0;
            }
        }
        self.next_avail = next.wrapping_add(taken);
        self.expect(&vec![], &[]);
        if s.once_in(8) {
            self.change_memory(s);
        }
        let Device::Tx(ring, _) = &mut self.device else { unreachable!() };
        assert_eq!(ring.complete(), heads.len());
        let mut writes = Vec::new();
        let count = heads.len() as u16;
        if self.setup.in_order {
            writes.extend(heads.last().map(|last| self.used_entry(self.next_used, *last, 0)));
        } else {
            let entries = (0..).zip(heads).map(|(i, head)| (self.next_used.wrapping_add(i), head));
            writes.extend(entries.map(|(i, head)| self.used_entry(i, head, 0)));
        }
        self.next_used = self.next_used.wrapping_add(count);
        self.expect_published(writes);
        self.observe();
        true
    }

    fn broke(&mut self) -> bool {
        assert_eq!(self.base(), self.next_avail, "taken from a broken ring");
        self.expect(&vec![], &[]);
        false
    }

    fn prepare(&mut self) {
        let Device::Rx(ring) = &mut self.device else { unreachable!() };
        ring.prepare();
        self.expect(&vec![], &[]);
    }

    fn publish(&mut self) {
        let Device::Rx(ring) = &mut self.device else { unreachable!() };
        ring.publish();
        self.walked = Some(0);
        self.expect_published(vec![]);
        self.observe();
    }

    fn receive(&mut self, s: &mut Script<'_>) -> bool {
        let len = match s.u8() % 8 {
            0 => MIN_FRAME,
            1 => MAX_FRAME - s.below(4),
            2 => 1514,
            3 => MIN_FRAME + s.below(MAX_FRAME - MIN_FRAME),
            _ => MIN_FRAME + s.below(240),
        };
        let from = usize::from(s.u8());
        let frame = &GUEST_NOISE[from..from + len];
        let head_len = if s.once_in(4) { s.below(HEAD + 1) } else { HEAD }.min(len);
        // Separate allocations, so that reading one byte too many is seen.
        let (head, mut rest) = frame.split_at(head_len);
        let head: Box<[u8]> = head.into();
        let mut tail: Vec<Box<[u8]>> = Vec::new();
        for _ in 0..s.below(3) {
            let (a, b) = rest.split_at(s.below(300).min(rest.len()));
            tail.push(a.into());
            rest = b;
        }
        tail.push(rest.into());
        let segments: Vec<Segment<'_>> = tail.iter().map(|t| Segment::from_slice(t)).collect();
        let low = s.u64();
        let net = NetHeader::from_words(low, low as u32 ^ 0x5a5a_0f0f);

        let need = (self.setup.header_len + len) as u64;
        let plan = self.pending().zip(self.walked).map(|(pending, mut walked)| {
            let plan = reference::push(self.mem(), &self.setup, self.next_avail, pending, need, &mut walked);
            (plan, walked)
        });
        let announced = self.announced.wrapping_sub(self.next_avail);
        let nonsense = self.index_is_nonsense();
        let Device::Rx(ring) = &mut self.device else { unreachable!() };
        let result = ring.push(net, &head, &segments, len);
        let taken = ring.base().wrapping_sub(self.next_avail);
        match plan {
            Some((plan, walked)) if self.is_predictable(&plan) => {
                self.walked = Some(walked);
                return self.compare(&plan, result, net, frame);
            }
            _ => self.walked = None,
        }
        // The ring overlaps itself, or the guest took back what it had announced: all that can be said is this.
        assert!(usize::from(taken) <= BATCH + usize::from(self.setup.size));
        if taken > announced {
            // What it wrote was its own index.
            self.announced = self.next_avail.wrapping_add(taken);
        }
        self.next_avail = self.next_avail.wrapping_add(taken);
        if matches!(result, Err(RxRefused::Broken(RingFault::AvailJump { .. }))) {
            assert!(nonsense || self.index_is_nonsense());
        }
        self.next_used = self.next_used.wrapping_add(taken);
        let Device::Rx(ring) = &mut self.device else { unreachable!() };
        ring.take_bad_buffers();
        self.bad_buffers = 0;
        GUEST.take_log();
        self.guest_wrote();
        !matches!(result, Err(RxRefused::Broken(_)))
    }

    /// Whether the reference could see everything that the ring saw: returning bad buffers writes used entries, and
    /// they may lie on what is read next.
    fn is_predictable(&self, plan: &Push) -> bool {
        let s = &self.setup;
        let n = u64::from(s.size);
        let used = (s.used + 4, 8 * n);
        let mut read = vec![(s.desc, 16 * n), (s.avail, 4 + 2 * n)];
        read.extend(&plan.tables);
        plan.bad.is_empty() || !read.iter().any(|r| overlap(*r, used))
    }

    fn compare(&mut self, plan: &Push, result: Result<(), RxRefused>, net: NetHeader, frame: &[u8]) -> bool {
        let mut writes = Vec::new();
        let at = |next_used: &mut u16| std::mem::replace(next_used, next_used.wrapping_add(1));
        for head in &plan.bad {
            let i = at(&mut self.next_used);
            writes.push(self.used_entry(i, *head, 0));
        }
        let outcome = match result {
            Ok(()) => Outcome::Delivered,
            Err(RxRefused::NoBuffer) => Outcome::NoBuffer,
            Err(RxRefused::BufferTooSmall) => Outcome::TooSmall,
            Err(RxRefused::Broken(RingFault::BadHead { .. })) => Outcome::BadHead,
            Err(RxRefused::Broken(fault)) => panic!("{fault}"),
        };
        assert_eq!(outcome, plan.outcome, "{:x?}", self.setup);
        let mut data: Vec<(u64, u64)> = Vec::new();
        if outcome == Outcome::Delivered {
            let header = NetHeader { num_buffers: plan.chains.len() as u16, ..net }.to_bytes();
            let bytes = [&header[..self.setup.header_len], frame].concat();
            let mut rest = &bytes[..];
            for (gpa, room) in &plan.buffers {
                let (now, later) = rest.split_at(rest.len().min(*room as usize));
                if !now.is_empty() {
                    writes.push((*gpa, now.to_vec()));
                    data.push((*gpa, now.len() as u64));
                }
                rest = later;
            }
            assert!(rest.is_empty());
            for (head, len) in &plan.chains {
                let i = at(&mut self.next_used);
                writes.push(self.used_entry(i, *head, *len));
            }
        }
        let taken = plan.bad.len() + if outcome == Outcome::Delivered { plan.chains.len() } else { 0 };
        self.next_avail = self.next_avail.wrapping_add(taken as u16);
        assert_eq!(self.base(), self.next_avail);
        self.bad_buffers += plan.bad.len() as u64;
        // Used entries are marked when they are published.
        for (gpa, bytes) in &writes {
            self.shadow[(gpa - BASE) as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        if self.shadow != GUEST.bytes() {
            let at = self.shadow.iter().zip(GUEST.bytes()).position(|(a, b)| a != b).unwrap();
            panic!("memory differs at {:#x} after a push; {:x?}", BASE + at as u64, self.setup);
        }
        self.expect_log(data, &[]);
        self.observe();
        outcome != Outcome::BadHead
    }
}

/// What is received; the start is chosen among the first 256 bytes.
static GUEST_NOISE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
    let mut x = 7u64;
    std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    })
    .take(MAX_FRAME + 256)
    .collect()
});

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

/// Bit per page from [`BASE`].
fn pages(ranges: impl Iterator<Item = (u64, u64)>) -> u64 {
    ranges.filter(|r| r.1 > 0).fold(0, |mask, (gpa, len)| {
        let page = |gpa: u64| (gpa - BASE) / PAGE as u64;
        (page(gpa)..=page(gpa + len - 1)).fold(mask, |m, p| m | 1 << p)
    })
}
