//! Descriptors, as both ring formats have them.

/// `VIRTQ_DESC_F_NEXT` (2.7.5, 2.8.6).
pub(super) const DESC_F_NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`: the device writes.
pub(super) const DESC_F_WRITE: u16 = 2;
/// `VIRTQ_DESC_F_INDIRECT` (2.7.5.3, 2.8.7).
pub(super) const DESC_F_INDIRECT: u16 = 4;
/// Size of a descriptor.
pub(super) const DESC_SIZE: u64 = 16;

/// A descriptor as it was read, once.
#[derive(Clone, Copy, Default)]
pub struct Desc {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    /// Where the chain goes on, if it does.
    pub(super) next: u16,
}
