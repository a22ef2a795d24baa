//! The driver's side of a packed virtqueue (virtio 1.4, 2.8), behind the same methods as a split one.

use std::sync::atomic::{Ordering, fence};

use super::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Desc, Ring, Seg};

/// With the wrap counter 1 a descriptor is available with this flag alone, with 0 with the other one alone.
pub const DESC_AVAIL: u16 = 1 << 7;
/// It is used with both of them, or none.
pub const DESC_USED: u16 = 1 << 15;
/// Event suppression: every event, none, or that of one descriptor.
pub const EVENTS_ENABLE: u16 = 0;
/// No events.
pub const EVENTS_DISABLE: u16 = 1;
/// The event of one descriptor, with `EVENT_IDX`.
pub const EVENTS_DESC: u16 = 2;

/// A descriptor's number and the wrap counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slot: u16,
    pub(super) wrap: bool,
}

impl Place {
    /// As bases and events have it.
    pub(super) fn bits(self) -> u16 {
        self.slot | u16::from(self.wrap) << 15
    }

    fn plus(self, n: u16, size: u16) -> Place {
        let slot = u32::from(self.slot) + u32::from(n);
        let turns = slot >= size.into();
        Place { slot: (slot % u32::from(size)) as u16, wrap: self.wrap != turns }
    }

    /// `n` is not more than `size`.
    fn minus(self, n: u16, size: u16) -> Place {
        if n <= self.slot {
            Place { slot: self.slot - n, ..self }
        } else {
            Place { slot: self.slot + (size - n), wrap: !self.wrap }
        }
    }

    fn available(self) -> u16 {
        if self.wrap { DESC_AVAIL } else { DESC_USED }
    }
}

/// What the driver keeps.
pub(super) struct Packed {
    /// Where the next descriptor is written.
    avail: Place,
    /// Where the device returns the oldest chain.
    pub(super) used: Place,
    /// The flags that show what was added: those of its first descriptor, by number.
    held: Option<(u16, u16)>,
    /// Descriptors since the device was last kicked, or did not want to be.
    added: u16,
}

impl Default for Packed {
    fn default() -> Self {
        let start = Place { slot: 0, wrap: true };
        Packed { avail: start, used: start, held: None, added: 0 }
    }
}

impl Ring {
    pub(super) fn packed_mut(&mut self) -> &mut Packed {
        self.packed.as_mut().expect("a packed ring")
    }

    /// Starts at a descriptor of the first lap, with zeroed areas.
    pub(super) fn start_packed(&mut self, slot: u16) {
        let start = Place { slot, wrap: true };
        self.packed = Some(Packed { avail: start, used: start, ..Packed::default() });
        // Those before it have been used, else they would seem so in the next lap.
        for before in 0..slot {
            self.ram.store16(self.slot_address(before) + 14, DESC_AVAIL | DESC_USED);
        }
    }

    fn slot_address(&self, slot: u16) -> u64 {
        self.desc + Desc::SIZE * u64::from(slot)
    }

    /// Writes a chain, with `id` for its id. The first descriptor of all that was added since the last publish does not become
    /// available yet, and the device looks at none behind it.
    pub(super) fn add_packed(&mut self, id: u16, segs: &[Seg], table: Option<(u64, u64)>) {
        let of = |seg: &Seg| Desc {
            addr: seg.addr,
            len: seg.len,
            flags: if seg.writable { DESC_WRITE } else { 0 },
            next: id,
        };
        let mut chain: Vec<Desc> = segs.iter().map(of).collect();
        if let Some((addr, len)) = table {
            let bytes: Vec<u8> = chain.iter().flat_map(|d| d.to_packed_bytes()).collect();
            self.ram.write(addr, &bytes);
            chain = vec![Desc { addr, len: len as u32, flags: DESC_INDIRECT, next: id }];
        }
        let (size, last) = (self.size, chain.len() - 1);
        for (i, mut desc) in chain.into_iter().enumerate() {
            let at = self.packed_mut().avail;
            self.packed_mut().avail = at.plus(1, size);
            self.packed_mut().added += 1;
            desc.flags |= at.available() | if i < last { DESC_NEXT } else { 0 };
            let bytes = desc.to_packed_bytes();
            if self.packed_mut().held.is_none() {
                self.packed_mut().held = Some((at.slot, desc.flags));
                self.ram.write(self.slot_address(at.slot), &bytes[..14]);
            } else {
                self.ram.write(self.slot_address(at.slot), &bytes);
            }
        }
    }

    pub(super) fn publish_packed(&mut self) {
        if let Some((slot, flags)) = self.packed_mut().held.take() {
            self.ram.store16(self.slot_address(slot) + 14, flags);
        }
    }

    /// Whether the device wants to be kicked for what was added since it was last asked.
    pub(super) fn is_kick_wanted(&mut self) -> bool {
        let (event, flags) = (self.ram.load16(self.used), self.ram.load16(self.used + 2));
        let (size, added, end) = (self.size, self.packed_mut().added, self.packed_mut().avail);
        self.packed_mut().added = 0;
        match flags {
            EVENTS_DESC => (1..=added).any(|n| end.minus(n, size).bits() == event),
            flags => flags == EVENTS_ENABLE,
        }
    }

    /// The used descriptor at a place: id and length. Only for where the oldest chain is.
    fn used_at(&self, at: Place) -> Option<(u32, u32)> {
        let address = self.slot_address(at.slot);
        let flags = self.ram.load16(address + 14);
        let used = if at.wrap { DESC_AVAIL | DESC_USED } else { 0 };
        if flags & (DESC_AVAIL | DESC_USED) != used {
            return None;
        }
        let b = self.ram.read(address + 8, 6);
        let len = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        assert_eq!(
            flags & DESC_WRITE != 0,
            len != 0,
            "vring {}: 2.8.3, WRITE says that bytes were written",
            self.index
        );
        Some((u16::from_le_bytes([b[4], b[5]]).into(), len))
    }

    pub(super) fn next_packed_used(&self) -> Option<(u32, u32)> {
        // Where nothing is in flight old flags say nothing.
        let in_flight = self.free.len() < self.size.into();
        in_flight.then(|| self.used_at(self.packed.as_ref().expect("a packed ring").used)).flatten()
    }

    /// Goes on behind a chain of so many descriptors.
    pub(super) fn step_packed_used(&mut self, places: u16) {
        let size = self.size;
        let packed = self.packed_mut();
        packed.used = packed.used.plus(places, size);
        if self.event_idx && self.signals_wanted {
            self.want_packed_signals(true);
        }
    }

    /// Chains that were returned and not taken, and where the device goes on.
    pub(super) fn packed_returned(&self) -> (u16, Place) {
        let mut at = self.packed.as_ref().expect("a packed ring").used;
        let (mut count, mut places) = (0, self.free.len());
        let (mut batch, mut order) = (self.batch, self.order.iter().map(|&head| u32::from(head)));
        while places < self.size.into() {
            let Some((id, _)) = batch.take().or_else(|| self.used_at(at)) else { break };
            // With IN_ORDER those before it have come back as well.
            for id in order.by_ref().take_while(|head| *head != id).chain([id]) {
                let chain = self.chains.get(id as usize).and_then(Option::as_ref);
                let n = chain.map_or_else(
                    || panic!("vring {}: id {id} is not in flight", self.index),
                    |c| c.descs.len(),
                );
                (count, places, at) = (count + 1, places + n, at.plus(n as u16, self.size));
            }
        }
        (count, at)
    }

    pub(super) fn want_packed_signals(&self, wanted: bool) {
        let place = self.packed.as_ref().expect("a packed ring").used;
        match (wanted, self.event_idx) {
            (true, true) => self.set_driver_event(place.bits(), EVENTS_DESC),
            (true, false) => self.set_driver_event(0, EVENTS_ENABLE),
            (false, _) => self.set_driver_event(0, EVENTS_DISABLE),
        }
    }

    /// Writes the driver's event suppression: a place with its wrap counter, and flags.
    pub fn set_driver_event(&self, place: u16, flags: u16) {
        self.ram.store16(self.avail, place);
        self.ram.store16(self.avail + 2, flags);
        fence(Ordering::SeqCst);
    }

    /// Writes descriptor `slot` as one that is available in the first lap, and nothing else.
    pub fn write_packed_raw(&self, slot: u16, desc: Desc) {
        let desc = Desc { flags: desc.flags | DESC_AVAIL, ..desc };
        let bytes = desc.to_packed_bytes();
        self.ram.write(self.slot_address(slot), &bytes[..14]);
        self.ram.store16(self.slot_address(slot) + 14, desc.flags);
    }

    /// What was returned in descriptor `slot` in the first lap: id and length.
    pub fn packed_used_raw(&self, slot: u16) -> Option<(u16, u32)> {
        self.used_at(Place { slot, wrap: true }).map(|(id, len)| (id as u16, len))
    }
}
