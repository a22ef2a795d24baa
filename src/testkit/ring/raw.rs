//! Any field of a ring, on its own.

use super::{Desc, Ring};

/// Raw access to the three areas.
impl Ring {
    /// Writes entry `slot` of the descriptor table.
    pub fn write_desc(&self, slot: u16, desc: Desc) {
        self.ram.write(self.desc + Desc::SIZE * u64::from(slot), &desc.to_bytes());
    }

    /// Writes entry `slot` (not the running index) of the available ring.
    pub fn write_avail(&self, slot: u16, head: u16) {
        self.ram.store16(self.avail + 4 + 2 * u64::from(slot), head);
    }

    /// Writes `avail.idx` and nothing else.
    pub fn set_avail_idx(&self, idx: u16) {
        self.ram.store16(self.avail + 2, idx);
    }

    /// Reads `avail.idx`.
    pub fn avail_idx(&self) -> u16 {
        self.ram.load16(self.avail + 2)
    }

    /// Writes `avail.flags`.
    pub fn set_avail_flags(&self, flags: u16) {
        self.ram.store16(self.avail, flags);
    }

    /// Writes the driver's event index: signal when `used.idx` passes it.
    pub fn set_used_event(&self, idx: u16) {
        self.ram.store16(self.avail + 4 + 2 * u64::from(self.size), idx);
    }

    /// Reads the driver's event index.
    pub fn used_event(&self) -> u16 {
        self.ram.load16(self.avail + 4 + 2 * u64::from(self.size))
    }

    /// Reads `used.flags`.
    pub fn used_flags(&self) -> u16 {
        self.ram.load16(self.used)
    }

    /// Reads `used.idx`.
    pub fn used_idx(&self) -> u16 {
        self.ram.load16(self.used + 2)
    }

    /// Reads the device's event index: kick when `avail.idx` passes it.
    pub fn avail_event(&self) -> u16 {
        self.ram.load16(self.used + 4 + 8 * u64::from(self.size))
    }

    /// Reads entry `slot` of the used ring: id and length.
    pub fn used_entry(&self, slot: u16) -> (u32, u32) {
        let b = self.ram.read(self.used + 4 + 8 * u64::from(slot), 8);
        (u32::from_le_bytes([b[0], b[1], b[2], b[3]]), u32::from_le_bytes([b[4], b[5], b[6], b[7]]))
    }

    /// Publishes one raw head at the next slot and kicks, after the caller wrote its descriptors.
    pub fn offer_raw(&mut self, head: u16) {
        self.write_avail(self.next_avail % self.size, head);
        self.next_avail = self.next_avail.wrapping_add(1);
        self.publish();
        self.kick();
    }

    /// Bytes of the used ring, for the dirty log.
    pub fn used_len(&self) -> u64 {
        6 + 8 * u64::from(self.size)
    }
}
