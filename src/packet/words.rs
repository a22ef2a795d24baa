//! The fields of a packet, packed into a few words: the form in which tables compare them, as a whole.
//!
//! | word | contents, from the top bit |
//! |---|---|
//! | 0 | destination MAC (48), EtherType after all VLAN tags (16) |
//! | 1 | source MAC (48), TCI of the outermost VLAN tag (16) |
//! | 2..6 | IPv4: word 2 holds source and destination; IPv6: source in 2 and 3, destination in 4 and 5 |
//! | 6 | source port (16), destination port (16), protocol (8), TOS (8), TCP flags (8), presence (8) |
//!
//! A presence bit says that a header is there. What is not there is 0.

/// Number of words.
pub(crate) const WORDS: usize = 7;

/// Where the Ethernet header's fields are: destination and source.
pub(super) const MACS: [usize; 2] = [0, 1];
/// The bits of those words that are a MAC address.
pub(super) const MAC_BITS: u64 = !0xffff;
/// Where the addresses begin.
pub(super) const ADDR: usize = 2;
/// Where what is most often asked for is.
pub(crate) const LAST: usize = WORDS - 1;

/// Its fields: by how many bits they are shifted.
pub(super) const PORTS: u32 = 32;
pub(super) const PROTOCOL: u32 = 24;
pub(super) const TOS: u32 = 16;
pub(super) const TCP_FLAGS: u32 = 8;

/// Which headers there are, as bits of the last word.
pub(crate) mod presence {
    /// An Ethernet header.
    pub(crate) const ETHERNET: u64 = 1;
    /// An IPv4 header.
    pub(crate) const V4: u64 = 2;
    /// An IPv6 header.
    pub(crate) const V6: u64 = 4;
    /// Ports.
    pub(crate) const PORTS: u64 = 8;
    /// A VLAN tag.
    pub(crate) const VLAN: u64 = 16;
    /// TCP flags.
    pub(crate) const TCP_FLAGS: u64 = 32;
}

/// One of `PLACES`, a power of two, for the words from the addresses on. Cheap and unkeyed: who makes packets collide must gain
/// nothing by it.
#[inline(always)]
pub(crate) fn place<const PLACES: usize>(&[a, b, c, d]: &[u64; 4], last: u64) -> usize {
    const { assert!(PLACES.is_power_of_two() && PLACES > 1) };
    let mixed = (a ^ b.rotate_left(16) ^ c.rotate_left(32) ^ d.rotate_left(48) ^ last.rotate_left(8))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - PLACES.trailing_zeros())) as usize
}

/// Equality without a call of the general comparison, which costs more than these few words do.
#[inline(always)]
pub(crate) fn same<const N: usize>(a: &[u64; N], b: &[u64; N]) -> bool {
    a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}
