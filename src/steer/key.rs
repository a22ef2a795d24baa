//! The fields that a filter can look at, packed into seven words, and how to name them.
//!
//! | word | contents, from the top bit |
//! |---|---|
//! | 0 | destination MAC (48), EtherType (16) |
//! | 1 | source MAC (48), VLAN TCI (16) |
//! | 2..6 | IPv4: word 2 holds source and destination; IPv6: source in 2 and 3, destination in 4 and 5 |
//! | 6 | source port (16), destination port (16), protocol (8), TOS (8), TCP flags (8), presence (8) |
//!
//! A presence bit says that a header is there. Whoever selects a field also selects, and demands, the presence of its
//! header: so a rule on port 0 does not match a packet without ports, nor an IPv4 address an IPv6 packet.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::packet::{Headers, L3};
use crate::virtio::MacAddr;

/// Number of words.
pub(crate) const WORDS: usize = 7;
const LAST: usize = WORDS - 1;

/// There is an Ethernet header.
const HAS_ETH: u64 = 1;
/// There is an IPv4 header.
pub(super) const HAS_V4: u64 = 2;
/// There is an IPv6 header.
pub(super) const HAS_V6: u64 = 4;
/// There are ports.
const HAS_PORTS: u64 = 8;
/// There is a VLAN tag.
const HAS_VLAN: u64 = 16;
/// There are TCP flags.
const HAS_TCP_FLAGS: u64 = 32;
/// No packet has this: who demands it is never found.
pub(super) const NEVER: u64 = 128;
/// All presence bits.
const PRESENCE: u64 = 0xff;

/// A packet's fields, or those of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Key(pub(crate) [u64; WORDS]);

impl Key {
    /// Packs the headers of a packet.
    #[inline]
    pub(crate) fn of(h: &Headers) -> Self {
        let &[a, b, c, d] = h.addr();
        let l3 = match h.l3 {
            L3::None => 0,
            L3::V4 => HAS_V4,
            L3::V6 => HAS_V6,
        };
        let eth = if h.ethernet { HAS_ETH } else { 0 };
        let vlan = if h.vlan.is_some() { HAS_VLAN } else { 0 };
        let ports = if h.ports.is_some() { HAS_PORTS } else { 0 };
        let flags = if h.tcp_flags.is_some() { HAS_TCP_FLAGS } else { 0 };
        let (src_port, dst_port) = h.ports.unwrap_or_default();
        let last = u64::from(src_port) << 48
            | u64::from(dst_port) << 32
            | u64::from(h.protocol) << 24
            | u64::from(h.tos) << 16
            | u64::from(h.tcp_flags.unwrap_or_default()) << 8
            | (l3 | eth | vlan | ports | flags);
        Self([
            mac(h.dst) << 16 | u64::from(h.ethertype),
            mac(h.src) << 16 | u64::from(h.vlan.unwrap_or_default()),
            a,
            b,
            c,
            d,
            last,
        ])
    }

    /// The key with only the bits of `mask`.
    #[inline]
    pub(crate) fn masked(&self, mask: &Key) -> Key {
        Key(std::array::from_fn(|i| self.0[i] & mask.0[i]))
    }

    /// Equality without branches: on the fast path the answer is nearly always yes.
    #[inline]
    pub(crate) fn same(&self, other: &Key) -> bool {
        self.0.iter().zip(&other.0).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
    }

    /// The headers that are there, or, in a mask, that are demanded.
    #[inline]
    pub(crate) fn presence(&self) -> u64 {
        self.0[LAST] & PRESENCE
    }
}

#[inline]
fn mac(m: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = m.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// What a rule matches: a value and a mask for every field; fields that nobody named match anything.
///
/// A mask has 1 where the bit is compared. Naming a field twice replaces its value and mask.
///
/// ```
/// use flownic::steer::Match;
/// let ssh = Match::new().tcp().dst_port(22, 0xffff);
/// assert_eq!(ssh, Match::new().dst_port(22, 0xffff).tcp());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Match {
    value: Key,
    mask: Key,
}

/// The mask of a [`Match`]: which bits of which fields are compared. This is a classifier without its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mask(pub(crate) Key);

impl Match {
    /// Matches every packet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Destination MAC address.
    pub fn eth_dst(self, value: MacAddr, mask: MacAddr) -> Self {
        self.field(0, 16, 48, self::mac(value), self::mac(mask), HAS_ETH)
    }

    /// Source MAC address.
    pub fn eth_src(self, value: MacAddr, mask: MacAddr) -> Self {
        self.field(1, 16, 48, self::mac(value), self::mac(mask), HAS_ETH)
    }

    /// EtherType, the one after all VLAN tags.
    pub fn ethertype(self, value: u16, mask: u16) -> Self {
        self.field(0, 0, 16, value.into(), mask.into(), HAS_ETH)
    }

    /// TCI of the outermost VLAN tag.
    pub fn vlan(self, tci: u16, mask: u16) -> Self {
        self.field(1, 0, 16, tci.into(), mask.into(), HAS_VLAN)
    }

    /// Demands an IPv4 header.
    pub fn ipv4(self) -> Self {
        self.demand(HAS_V4)
    }

    /// Demands an IPv6 header.
    pub fn ipv6(self) -> Self {
        self.demand(HAS_V6)
    }

    /// IPv4 source address.
    pub fn ipv4_src(self, value: Ipv4Addr, mask: Ipv4Addr) -> Self {
        self.field(2, 32, 32, value.to_bits().into(), mask.to_bits().into(), HAS_V4)
    }

    /// IPv4 destination address.
    pub fn ipv4_dst(self, value: Ipv4Addr, mask: Ipv4Addr) -> Self {
        self.field(2, 0, 32, value.to_bits().into(), mask.to_bits().into(), HAS_V4)
    }

    /// IPv6 source address.
    pub fn ipv6_src(self, value: Ipv6Addr, mask: Ipv6Addr) -> Self {
        self.ipv6_field(2, value, mask)
    }

    /// IPv6 destination address.
    pub fn ipv6_dst(self, value: Ipv6Addr, mask: Ipv6Addr) -> Self {
        self.ipv6_field(4, value, mask)
    }

    /// IP protocol; of IPv6 the one after the extension headers. Demands no IP version by itself: say [`Match::ipv4`] or
    /// [`Match::ipv6`] too, or a packet without IP matches protocol 0.
    pub fn protocol(self, value: u8, mask: u8) -> Self {
        self.field(LAST, 24, 8, value.into(), mask.into(), 0)
    }

    /// IPv4 type of service or IPv6 traffic class; demands no IP version by itself.
    pub fn tos(self, value: u8, mask: u8) -> Self {
        self.field(LAST, 16, 8, value.into(), mask.into(), 0)
    }

    /// Demands protocol TCP.
    pub fn tcp(self) -> Self {
        self.protocol(crate::packet::PROTO_TCP, 0xff)
    }

    /// Demands protocol UDP.
    pub fn udp(self) -> Self {
        self.protocol(crate::packet::PROTO_UDP, 0xff)
    }

    /// TCP or UDP source port. Fragments have none.
    pub fn src_port(self, value: u16, mask: u16) -> Self {
        self.field(LAST, 48, 16, value.into(), mask.into(), HAS_PORTS)
    }

    /// TCP or UDP destination port. Fragments have none.
    pub fn dst_port(self, value: u16, mask: u16) -> Self {
        self.field(LAST, 32, 16, value.into(), mask.into(), HAS_PORTS)
    }

    /// TCP flags, CWR (0x80) to FIN (0x01).
    pub fn tcp_flags(self, value: u8, mask: u8) -> Self {
        self.field(LAST, 8, 8, value.into(), mask.into(), HAS_TCP_FLAGS)
    }

    /// Whether a packet matches. The table does not use this: it is the definition that the table is tested against.
    pub fn matches(&self, h: &Headers) -> bool {
        Key::of(h).masked(&self.mask) == self.value
    }

    /// The classifier that this match needs.
    pub fn mask(&self) -> Mask {
        Mask(self.mask)
    }

    /// The masked value.
    pub(crate) fn key(&self) -> &Key {
        &self.value
    }

    fn ipv6_field(self, word: usize, value: Ipv6Addr, mask: Ipv6Addr) -> Self {
        let (value, mask) = (value.to_bits(), mask.to_bits());
        self.field(word, 0, 64, (value >> 64) as u64, (mask >> 64) as u64, HAS_V6).field(
            word + 1,
            0,
            64,
            value as u64,
            mask as u64,
            HAS_V6,
        )
    }

    fn demand(mut self, presence: u64) -> Self {
        self.value.0[LAST] |= presence;
        self.mask.0[LAST] |= presence;
        self
    }

    /// Sets a field of `width` bits at `shift`. A field whose mask is zero demands nothing.
    fn field(mut self, word: usize, shift: u32, width: u32, value: u64, mask: u64, presence: u64) -> Self {
        let all = (u64::MAX >> (64 - width)) << shift;
        self.value.0[word] = self.value.0[word] & !all | (value & mask) << shift;
        self.mask.0[word] = self.mask.0[word] & !all | mask << shift;
        if mask == 0 { self } else { self.demand(presence) }
    }
}
