//! The driver's side of a virtqueue, split (virtio 1.4, 2.7) or packed (2.8).
//!
//! Cooked use: [`Ring::add`] puts a chain into the table, [`Ring::publish`] shows it to the device,
//! [`Ring::kick_if_needed`] decides like Linux, [`Ring::take_used`] gets the chain back. Raw use: every field of
//! a split ring's three areas can be written on its own. The two don't mix on one ring: the cooked side panics when the
//! device returns a head that it did not hand out. With IN_ORDER (2.7.9) descriptors are taken in the order of
//! the table, and one used entry may stand for several chains.

mod desc;
mod packed;
mod raw;

pub use desc::*;
pub use packed::{DESC_AVAIL, DESC_USED, EVENTS_DESC, EVENTS_DISABLE, EVENTS_ENABLE};

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::memory::Ram;
use super::wait;
use crate::virtio::{F_EVENT_IDX, F_IN_ORDER, F_RING_PACKED};
use packed::Packed;

/// A piece of guest memory in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seg {
    /// Guest-physical address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Whether the device may write.
    pub writable: bool,
}

/// A chain that came back.
#[derive(Debug, Clone)]
pub struct Used {
    /// Its head.
    pub head: u16,
    /// Bytes that the device says it wrote.
    pub len: u32,
    /// The pieces it was made of.
    pub segs: Vec<Seg>,
}

struct Chain {
    descs: Vec<u16>,
    segs: Vec<Seg>,
    /// Address and length of the indirect table, if there is one.
    table: Option<(u64, u64)>,
}

/// One virtqueue.
pub struct Ring {
    /// The vring's index: 2n receives, 2n + 1 transmits.
    pub index: usize,
    /// Descriptors.
    pub size: u16,
    /// Guest-physical address of the descriptor table.
    pub desc: u64,
    /// Guest-physical address of the available ring.
    pub avail: u64,
    /// Guest-physical address of the used ring.
    pub used: u64,
    /// Whether EVENT_IDX is negotiated.
    pub event_idx: bool,
    /// Whether IN_ORDER is negotiated.
    pub in_order: bool,
    /// The descriptor the device waits on.
    pub kick_fd: EventFd,
    /// The descriptor the device signals.
    pub call_fd: EventFd,
    /// Kicks written so far.
    pub kicks: u64,
    signals: u64,
    signals_wanted: bool,
    ram: Arc<Ram>,
    /// Free descriptors, the next one to use in front.
    free: VecDeque<u16>,
    chains: Vec<Option<Chain>>,
    /// Heads in the order they were made available, for IN_ORDER.
    order: VecDeque<u16>,
    /// The entry that ends a batch of used chains, while some of them are still to be taken.
    batch: Option<(u32, u32)>,
    next_avail: u16,
    added: u16,
    last_used: u16,
    /// What a packed ring has instead.
    packed: Option<Packed>,
}

impl Ring {
    /// A ring with zeroed areas; the three lie in different regions where the guest has them. The driver has negotiated
    /// these features.
    pub fn new(ram: Arc<Ram>, index: usize, size: u16, features: u64) -> Self {
        let has = |feature| features & feature != 0;
        let (event_idx, in_order) = (has(F_EVENT_IDX), has(F_IN_ORDER));
        let packed = has(F_RING_PACKED).then(Packed::default);
        let [desc, avail, used] = area_sizes(size).map(|len| ram.alloc(len));
        let eventfd = || EventFd::new(EFD_NONBLOCK).expect("an eventfd");
        let mut ring = Ring {
            index,
            size,
            desc,
            avail,
            used,
            event_idx,
            in_order,
            kick_fd: eventfd(),
            call_fd: eventfd(),
            kicks: 0,
            signals: 0,
            signals_wanted: true,
            ram,
            free: VecDeque::new(),
            chains: Vec::new(),
            order: VecDeque::new(),
            batch: None,
            next_avail: 0,
            added: 0,
            last_used: 0,
            packed,
        };
        ring.reset(0);
        ring
    }

    /// Starts over like a driver after a reset: areas zeroed, nothing in flight, both indexes at `base` (0 unless
    /// a test wants the 16-bit wrap near), or a packed ring at its descriptor of that number. Returns what was in flight.
    pub fn reset(&mut self, base: u16) -> Vec<Seg> {
        for (addr, len) in [self.desc, self.avail, self.used].into_iter().zip(area_sizes(self.size)) {
            self.ram.write(addr, &vec![0; len as usize]);
        }
        let lost: Vec<Chain> = std::mem::take(&mut self.chains).into_iter().flatten().collect();
        for (addr, len) in lost.iter().filter_map(|c| c.table) {
            self.ram.free(addr, len);
        }
        self.free = (0..self.size).collect();
        self.order.clear();
        self.batch = None;
        self.chains.resize_with(self.size.into(), || None);
        (self.next_avail, self.last_used, self.added) = (base, base, 0);
        if self.packed.is_some() {
            self.start_packed(base % self.size);
        } else {
            self.set_avail_idx(base);
            self.ram.store16(self.used + 2, base);
        }
        self.want_signals(self.signals_wanted);
        lost.into_iter().flat_map(|c| c.segs).collect()
    }

    /// Gives the memory of the three areas back.
    pub fn release(self) {
        for (addr, len) in [self.desc, self.avail, self.used].into_iter().zip(area_sizes(self.size)) {
            self.ram.free(addr, len);
        }
    }

    /// Descriptors that are free.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Chains that the device has not returned.
    pub fn in_flight(&self) -> usize {
        self.chains.iter().flatten().count()
    }

    /// Where the device goes on, as `SET_VRING_BASE` has it: behind all that it has returned.
    pub fn base(&self) -> u16 {
        if self.packed.is_some() { self.packed_returned().1.bits() } else { self.used_idx() }
    }

    /// The base of a ring that was just made.
    pub fn first_base(&self) -> u16 {
        if self.packed.is_some() { 1 << 15 } else { 0 }
    }

    /// Chains that the device has returned and that were not taken yet.
    pub fn returned(&self) -> u16 {
        if self.packed.is_some() {
            self.packed_returned().0
        } else {
            self.used_idx().wrapping_sub(self.last_used)
        }
    }

    /// Index of the next available entry, the `avail.idx` that [`Ring::publish`] writes.
    pub fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Index of the next used entry to look at.
    pub fn last_used(&self) -> u16 {
        self.last_used
    }

    /// Puts a chain into the table and the available ring, unseen by the device until [`Ring::publish`].
    /// Returns the head, or `None` without enough free descriptors.
    pub fn add(&mut self, segs: &[Seg], indirect: bool) -> Option<u16> {
        let needed = if indirect { 1 } else { segs.len() };
        if needed == 0 || self.free.len() < needed {
            return None;
        }
        let descs: Vec<u16> = (0..needed).map(|_| self.free.pop_front().expect("counted")).collect();
        let head = descs[0];
        let table = indirect.then(|| Desc::SIZE * segs.len() as u64).map(|len| (self.ram.alloc(len), len));
        if self.packed.is_some() {
            self.add_packed(head, segs, table);
        } else {
            self.add_split(&descs, segs, table);
        }
        self.added += 1;
        if self.in_order {
            self.order.push_back(head);
        }
        self.chains[usize::from(head)] = Some(Chain { descs, segs: segs.to_vec(), table });
        Some(head)
    }

    fn add_split(&mut self, descs: &[u16], segs: &[Seg], table: Option<(u64, u64)>) {
        let head = descs[0];
        if let Some((addr, len)) = table {
            let numbers: Vec<u16> = (0..segs.len() as u16).collect();
            self.write_chain(addr, segs, &numbers);
            self.write_desc(head, Desc { addr, len: len as u32, flags: DESC_INDIRECT, next: 0 });
        } else {
            self.write_chain(self.desc, segs, descs);
        }
        self.write_avail(self.next_avail % self.size, head);
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    fn write_chain(&self, table: u64, segs: &[Seg], numbers: &[u16]) {
        for (i, seg) in segs.iter().enumerate() {
            let next = numbers.get(i + 1).copied();
            let flags =
                if seg.writable { DESC_WRITE } else { 0 } | if next.is_some() { DESC_NEXT } else { 0 };
            let desc = Desc { addr: seg.addr, len: seg.len, flags, next: next.unwrap_or(0) };
            self.ram.write(table + Desc::SIZE * u64::from(numbers[i]), &desc.to_bytes());
        }
    }

    /// Shows everything added so far to the device.
    pub fn publish(&mut self) {
        if self.packed.is_some() {
            return self.publish_packed();
        }
        self.set_avail_idx(self.next_avail);
    }

    /// Publishes, then kicks unless the device asked not to be (2.7.13.4 and 2.7.10, as Linux does it).
    /// Returns whether it kicked.
    pub fn kick_if_needed(&mut self) -> bool {
        self.publish();
        fence(Ordering::SeqCst);
        let old = self.next_avail.wrapping_sub(self.added);
        self.added = 0;
        let needed = if self.packed.is_some() {
            self.is_kick_wanted()
        } else if self.event_idx {
            // The device wants a kick when its event index lies among the entries just published.
            let event = self.avail_event();
            self.next_avail.wrapping_sub(event).wrapping_sub(1) < self.next_avail.wrapping_sub(old)
        } else {
            self.used_flags() & USED_NO_NOTIFY == 0
        };
        if needed {
            self.kick();
        }
        needed
    }

    /// Kicks whatever the device asked for.
    pub fn kick(&mut self) {
        self.kick_fd.write(1).expect("a kick eventfd with room");
        self.kicks += 1;
    }

    /// Whether the device has returned a chain that was not taken yet.
    pub fn has_used(&self) -> bool {
        if self.packed.is_some() {
            self.batch.is_some() || self.next_packed_used().is_some()
        } else {
            self.used_idx() != self.last_used
        }
    }

    /// Takes the next chain that the device returned. Its memory belongs to the caller.
    pub fn take_used(&mut self) -> Option<Used> {
        let (id, len) = if self.in_order { self.take_in_order()? } else { self.next_used()? };
        let chain = usize::try_from(id).ok().and_then(|id| self.chains.get_mut(id)?.take());
        let chain =
            chain.unwrap_or_else(|| panic!("vring {}: head {id} came back but is not in flight", self.index));
        self.step_used(chain.descs.len() as u16);
        if self.in_order {
            self.free.extend(&chain.descs);
        } else {
            // Used again at once and in another order than the table's, as in Linux.
            chain.descs.iter().rev().for_each(|&d| self.free.push_front(d));
        }
        if let Some((addr, len)) = chain.table {
            self.ram.free(addr, len);
        }
        Some(Used { head: id as u16, len, segs: chain.segs })
    }

    /// The oldest chain, once the device has returned it or a later one. Chains that have no used entry of their own
    /// count as filled (2.7.9).
    fn take_in_order(&mut self) -> Option<(u32, u32)> {
        let (last, len) = match self.batch {
            Some(batch) => batch,
            None => self.next_used()?,
        };
        assert!(
            self.order.iter().any(|&h| u32::from(h) == last),
            "vring {}: head {last} came back but is not in flight",
            self.index
        );
        let head = u32::from(self.order.pop_front().expect("not empty: it has `last`"));
        self.batch = (head != last).then_some((last, len));
        let written = |c: &Chain| c.segs.iter().filter(|s| s.writable).map(|s| s.len).sum();
        let full = self.chains[head as usize].as_ref().map_or(0, written);
        Some((head, if head == last { len } else { full }))
    }

    /// What the device has returned next: head or id, and length.
    fn next_used(&self) -> Option<(u32, u32)> {
        if self.packed.is_some() {
            return self.next_packed_used();
        }
        self.has_used().then(|| self.used_entry(self.last_used % self.size))
    }

    /// Goes on behind a chain of so many descriptors.
    fn step_used(&mut self, places: u16) {
        if self.packed.is_some() {
            return self.step_packed_used(places);
        }
        self.last_used = self.last_used.wrapping_add(1);
        if self.event_idx && self.signals_wanted {
            self.set_used_event(self.last_used);
        }
    }

    /// Takes the next used entry (id and length) without looking for a chain; in a packed ring it has one descriptor.
    pub fn take_used_raw(&mut self) -> Option<(u32, u32)> {
        let entry = self.next_used()?;
        self.step_used(1);
        Some(entry)
    }

    /// Asks for a signal after the next used entry, or for none at all.
    pub fn want_signals(&mut self, wanted: bool) {
        self.signals_wanted = wanted;
        if self.packed.is_some() {
            return self.want_packed_signals(wanted);
        }
        match (self.event_idx, wanted) {
            (true, true) => self.set_used_event(self.last_used),
            // Behind the device by one: it is passed again only after 65535 more entries.
            (true, false) => self.set_used_event(self.last_used.wrapping_sub(1)),
            (false, _) => self.set_avail_flags(if wanted { 0 } else { AVAIL_NO_INTERRUPT }),
        }
        fence(Ordering::SeqCst);
    }

    /// Whether the driver wants signals at the moment.
    pub fn signals_wanted(&self) -> bool {
        self.signals_wanted
    }

    /// Signals seen so far.
    pub fn signals(&mut self) -> u64 {
        // EAGAIN means that there was none since the last look.
        self.signals += self.call_fd.read().unwrap_or(0);
        self.signals
    }

    /// Waits for a signal, whatever was returned; `false` when the deadline passed first.
    pub fn wait_call(&mut self, until: Instant) -> bool {
        let came = wait::readable(&[&self.call_fd], until);
        self.signals();
        came
    }

    /// Waits until the device has returned something. Blocks on the call descriptor while signals are wanted,
    /// else looks again and again; panics when the device returned something and owes the signal.
    pub fn wait_used(&mut self, until: Instant) -> bool {
        loop {
            if self.has_used() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            if !self.signals_wanted {
                std::thread::yield_now();
                continue;
            }
            self.want_signals(true);
            self.signals();
            if self.has_used() {
                return true;
            }
            if !wait::readable(&[&self.call_fd], until) {
                self.assert_signalled();
            }
            self.signals();
        }
    }

    /// Panics when something was returned, a signal was wanted, and none comes within a second.
    pub(super) fn assert_signalled(&self) {
        let owed = self.has_used() && self.signals_wanted;
        assert!(
            !owed || wait::readable(&[&self.call_fd], Instant::now() + Duration::from_secs(1)),
            "vring {}: {} chains were returned without a signal (suppression {:?}, {:?})",
            self.index,
            self.returned(),
            self.ram.read(self.avail, 4),
            self.packed.is_none().then(|| self.used_event()),
        );
    }

    /// Waits until `count` used entries beyond the last one taken are there.
    pub fn wait_used_count(&mut self, count: u16, until: Instant) -> bool {
        while self.returned() < count {
            if Instant::now() >= until {
                return false;
            }
            if self.event_idx && self.signals_wanted {
                // Where the last of them is in a packed ring depends on how long the chains are.
                match &self.packed {
                    Some(_) => self.set_driver_event(0, EVENTS_ENABLE),
                    None => self.set_used_event(self.last_used.wrapping_add(count - 1)),
                }
                fence(Ordering::SeqCst);
            }
            if self.returned() >= count {
                break;
            }
            if self.signals_wanted {
                wait::readable(&[&self.call_fd], until);
                self.signals();
            } else {
                std::thread::yield_now();
            }
        }
        true
    }
}

/// Bytes of descriptor table, available ring and used ring (2.7), with both event indexes.
fn area_sizes(size: u16) -> [u64; 3] {
    let n = u64::from(size);
    [16 * n, 6 + 2 * n, 6 + 8 * n]
}
