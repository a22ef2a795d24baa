//! Descriptors and flags, as they lie in guest memory.

/// The chain goes on at `next`.
pub const DESC_NEXT: u16 = 1;
/// The device writes to this buffer.
pub const DESC_WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub const DESC_INDIRECT: u16 = 4;
/// Available flag: the driver wants no signals.
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// Used flag: the device wants no kicks.
pub const USED_NO_NOTIFY: u16 = 1;

/// One descriptor (2.7.5), 16 bytes little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Desc {
    /// Guest-physical address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// `DESC_*` bits.
    pub flags: u16,
    /// Index of the next descriptor, where `DESC_NEXT` is set; in a packed ring the id.
    pub next: u16,
}

impl Desc {
    /// Bytes in the table.
    pub const SIZE: u64 = 16;

    /// Encodes to the little-endian wire form.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..8].copy_from_slice(&self.addr.to_le_bytes());
        b[8..12].copy_from_slice(&self.len.to_le_bytes());
        b[12..14].copy_from_slice(&self.flags.to_le_bytes());
        b[14..].copy_from_slice(&self.next.to_le_bytes());
        b
    }

    /// As it lies in a packed ring, with `next` for its id.
    pub fn to_packed_bytes(self) -> [u8; 16] {
        Desc { flags: self.next, next: self.flags, ..self }.to_bytes()
    }
}
