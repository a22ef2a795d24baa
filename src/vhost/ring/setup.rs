//! What a ring is started with, and why it may not start or go on.

use thiserror::Error;

/// What the front end said about a ring before it started.
#[derive(Debug, Clone, Copy, Default)]
pub struct RingSetup {
    /// `VIRTIO_F_RING_PACKED` was negotiated.
    pub packed: bool,
    /// Entries, up to 32768; in a split ring a power of two.
    pub size: u16,
    /// Guest address of the descriptor table, or of the descriptor ring.
    pub desc: u64,
    /// Guest address of the available ring, or of the driver's event suppression.
    pub avail: u64,
    /// Guest address of the used ring, or of the device's event suppression.
    pub used: u64,
    /// What has not been taken yet (`SET_VRING_BASE`): the available index of a split ring; in a packed one the descriptor's
    /// number and, in bit 15, the wrap counter.
    pub base: u16,
    /// `VIRTIO_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC` was negotiated.
    pub indirect: bool,
    /// `VIRTIO_F_IN_ORDER` was negotiated (matters for transmit rings).
    pub in_order: bool,
    /// Bytes of the virtio-net header: 12, or 10 for a legacy driver without mergeable buffers (5.1.6).
    pub header_len: usize,
    /// `VIRTIO_NET_F_MRG_RXBUF` was negotiated (matters for receive rings).
    pub mergeable: bool,
    /// Pages that are written must be marked in the migration log.
    pub logging: bool,
    /// Commands to the NIC itself are taken out of a transmit ring (in-band channel).
    pub in_band: bool,
}

impl RingSetup {
    /// The base of a ring that its driver has just made: wrap counters begin with 1 (2.8.1).
    pub const fn first_base(packed: bool) -> u16 {
        if packed { 1 << 15 } else { 0 }
    }
}

/// Why a ring can't start or has stopped: the guest or its front end broke the ring's own rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RingFault {
    /// Sizes of split rings are powers of two (2.7).
    #[error("Ring size {0} is not a power of two between 1 and 32768")]
    Size(u16),
    /// Sizes of packed rings are any (2.8.10.1).
    #[error("Packed ring size {0} is not between 1 and 32768")]
    PackedSize(u16),
    /// A packed ring can't go on behind its end.
    #[error("A packed ring of {size} descriptors can't start at descriptor {slot}")]
    Base {
        /// Where it was to start.
        slot: u16,
        /// Descriptors.
        size: u16,
    },
    /// Part of the ring is outside of the guest's memory.
    #[error("The {part} at guest address {gpa:#x} is not wholly inside one region of guest memory")]
    Unmapped {
        /// Which part.
        part: &'static str,
        /// Where.
        gpa: u64,
    },
    /// 2.7: descriptor table 16, available ring 2, used ring 4 bytes. 2.8.10.1: descriptor ring 16, event suppression 4.
    #[error("The {part} at guest address {gpa:#x} is not aligned to {align} bytes")]
    Misaligned {
        /// Which part.
        part: &'static str,
        /// Where.
        gpa: u64,
        /// To what.
        align: usize,
    },
    /// The available index moved by more than the ring's size.
    #[error("The available index jumped from {from} to {to} in a ring of {size} entries")]
    AvailJump {
        /// The entry that was next.
        from: u16,
        /// What the guest wrote.
        to: u16,
        /// Entries.
        size: u16,
    },
    /// An available entry names a descriptor that does not exist.
    #[error("Available entry {entry} names descriptor {head} in a table of {size}")]
    BadHead {
        /// Position in the available ring.
        entry: u16,
        /// The descriptor's number.
        head: u16,
        /// Entries.
        size: u16,
    },
    /// A chain in a packed ring goes on into what was taken before, or once around: where the next one begins is not known.
    #[error("The chain at descriptor {slot} of a packed ring does not end within its {size} descriptors")]
    NoEnd {
        /// Its first descriptor.
        slot: u16,
        /// Descriptors.
        size: u16,
    },
}
