//! What filters compare: the fields of a packet, packed as [`words`](crate::packet::words) says, and how to name them.
//!
//! Whoever selects a field also selects, and demands, the presence of its header: so a rule on port 0 does not match a
//! packet without ports, nor an IPv4 address an IPv6 packet.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::packet::Headers;
pub(crate) use crate::packet::words::WORDS;
use crate::packet::words::{LAST, presence};
use crate::virtio::MacAddr;

/// No packet has this: who demands it is never found.
pub(super) const NEVER: u64 = 128;
/// All presence bits.
const PRESENCE: u64 = 0xff;

/// A packet's fields, or those of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Key(pub(crate) [u64; WORDS]);

impl Key {
    /// Only the bits of `mask` of a packet's fields.
    #[inline(always)]
    pub(crate) fn masked(fields: &[u64; WORDS], mask: &Key) -> Key {
        Key(std::array::from_fn(|i| fields[i] & mask.0[i]))
    }

    /// Whether these are the bits of `fields` under `mask`.
    #[inline(always)]
    pub(crate) fn is(&self, fields: &[u64; WORDS], mask: &Key) -> bool {
        (0..WORDS).fold(0, |difference, i| difference | (self.0[i] ^ fields[i] & mask.0[i])) == 0
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
        self.field(0, 16, 48, self::mac(value), self::mac(mask), presence::ETHERNET)
    }

    /// Source MAC address.
    pub fn eth_src(self, value: MacAddr, mask: MacAddr) -> Self {
        self.field(1, 16, 48, self::mac(value), self::mac(mask), presence::ETHERNET)
    }

    /// EtherType, the one after all VLAN tags.
    pub fn ethertype(self, value: u16, mask: u16) -> Self {
        self.field(0, 0, 16, value.into(), mask.into(), presence::ETHERNET)
    }

    /// TCI of the outermost VLAN tag.
    pub fn vlan(self, tci: u16, mask: u16) -> Self {
        self.field(1, 0, 16, tci.into(), mask.into(), presence::VLAN)
    }

    /// Demands an IPv4 header.
    pub fn ipv4(self) -> Self {
        self.demand(presence::V4)
    }

    /// Demands an IPv6 header.
    pub fn ipv6(self) -> Self {
        self.demand(presence::V6)
    }

    /// IPv4 source address.
    pub fn ipv4_src(self, value: Ipv4Addr, mask: Ipv4Addr) -> Self {
        self.field(2, 32, 32, value.to_bits().into(), mask.to_bits().into(), presence::V4)
    }

    /// IPv4 destination address.
    pub fn ipv4_dst(self, value: Ipv4Addr, mask: Ipv4Addr) -> Self {
        self.field(2, 0, 32, value.to_bits().into(), mask.to_bits().into(), presence::V4)
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
        self.field(LAST, 48, 16, value.into(), mask.into(), presence::PORTS)
    }

    /// TCP or UDP destination port. Fragments have none.
    pub fn dst_port(self, value: u16, mask: u16) -> Self {
        self.field(LAST, 32, 16, value.into(), mask.into(), presence::PORTS)
    }

    /// TCP flags, CWR (0x80) to FIN (0x01).
    pub fn tcp_flags(self, value: u8, mask: u8) -> Self {
        self.field(LAST, 8, 8, value.into(), mask.into(), presence::TCP_FLAGS)
    }

    /// Whether a packet matches. The table does not use this: it is the definition that the table is tested against.
    pub fn matches(&self, h: &Headers) -> bool {
        Key::masked(h.words(), &self.mask) == self.value
    }

    /// The classifier that this match needs.
    pub fn mask(&self) -> Mask {
        Mask(self.mask)
    }

    /// A masked value and its mask.
    pub(super) fn from_parts(value: Key, mask: Mask) -> Self {
        Self { value, mask: mask.0 }
    }

    /// The masked value.
    pub(crate) fn key(&self) -> &Key {
        &self.value
    }

    fn ipv6_field(self, word: usize, value: Ipv6Addr, mask: Ipv6Addr) -> Self {
        let (value, mask) = (value.to_bits(), mask.to_bits());
        self.field(word, 0, 64, (value >> 64) as u64, (mask >> 64) as u64, presence::V6).field(
            word + 1,
            0,
            64,
            value as u64,
            mask as u64,
            presence::V6,
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
