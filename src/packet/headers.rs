//! What was found in the headers of a frame.

use std::net::IpAddr;

use super::flow::{self, FlowKey};
use super::words::{ADDR, LAST, MAC_BITS, MACS, PORTS, PROTOCOL, TCP_FLAGS, TOS, WORDS, presence};
use crate::virtio::MacAddr;

/// The network layer of a frame, as far as its header is complete and sane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum L3 {
    /// Neither IPv4 nor IPv6, or nothing that one could rely upon.
    #[default]
    None = 0,
    /// IPv4.
    V4 = 1,
    /// IPv6.
    V6 = 2,
}

/// What is wrong with a frame. The first defect found is the one reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than an Ethernet header.
    Runt,
    /// The frame ends within a VLAN tag.
    VlanTag,
    /// More than [`MAX_TAGS`](super::MAX_TAGS) VLAN tags.
    TooManyTags,
    /// The IPv4 header is cut, or its version, header length or total length is impossible.
    Ipv4Header,
    /// The IPv6 header is cut or its version is wrong.
    Ipv6Header,
    /// IP says that the packet is longer than the frame that carries it.
    IpLength,
    /// An IPv6 extension header is cut, or there are more than [`MAX_EXTENSIONS`](super::MAX_EXTENSIONS).
    Extension,
    /// The TCP or UDP header is cut, or TCP's data offset is impossible.
    L4Header,
}

impl Malformed {
    /// Every defect, in the order of declaration (so `ALL[m as usize] == m`).
    pub const ALL: [Malformed; 8] = [
        Malformed::Runt,
        Malformed::VlanTag,
        Malformed::TooManyTags,
        Malformed::Ipv4Header,
        Malformed::Ipv6Header,
        Malformed::IpLength,
        Malformed::Extension,
        Malformed::L4Header,
    ];

    /// A short name for counters and traces.
    pub fn name(self) -> &'static str {
        match self {
            Malformed::Runt => "runt",
            Malformed::VlanTag => "vlan_tag",
            Malformed::TooManyTags => "too_many_tags",
            Malformed::Ipv4Header => "ipv4_header",
            Malformed::Ipv6Header => "ipv6_header",
            Malformed::IpLength => "ip_length",
            Malformed::Extension => "extension",
            Malformed::L4Header => "l4_header",
        }
    }
}

/// The headers of one frame. Absent fields are `None`, zero or [`L3::None`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Headers {
    /// See [`words`](Self::words).
    pub(super) words: [u64; WORDS],
    /// Where the network header starts, after all VLAN tags (0 if unknown).
    pub l3_offset: u16,
    /// Where the transport header starts; known only for a whole (unfragmented) IP packet whose extension headers could
    /// be walked. It may lie at the end of the frame.
    pub l4_offset: Option<u16>,
    /// The packet is a fragment, whichever.
    pub fragment: bool,
    /// What is wrong with the frame.
    pub malformed: Option<Malformed>,
}

impl Headers {
    /// Destination MAC address (zero in a runt).
    #[inline]
    pub fn dst(&self) -> MacAddr {
        mac(self.words[MACS[0]])
    }

    /// Source MAC address (zero in a runt).
    #[inline]
    pub fn src(&self) -> MacAddr {
        mac(self.words[MACS[1]])
    }

    /// Keeps in step with a frame whose MAC addresses were swapped.
    #[inline]
    pub fn swap_macs(&mut self) {
        let [dst, src] = MACS;
        let difference = (self.words[dst] ^ self.words[src]) & MAC_BITS;
        self.words[dst] ^= difference;
        self.words[src] ^= difference;
    }

    /// There is an Ethernet header, so the MAC addresses mean something.
    #[inline]
    pub fn ethernet(&self) -> bool {
        self.has(presence::ETHERNET)
    }

    /// EtherType after all VLAN tags; 0 where the frame ends before it.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        self.words[MACS[0]] as u16
    }

    /// TCI of the outermost VLAN tag: priority, DEI and 12 bits of VLAN id.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        self.has(presence::VLAN).then_some(self.words[MACS[1]] as u16)
    }

    /// Network layer.
    #[inline]
    pub fn l3(&self) -> L3 {
        match self.words[LAST] & (presence::V4 | presence::V6) {
            0 => L3::None,
            presence::V4 => L3::V4,
            _ => L3::V6,
        }
    }

    /// IP protocol; for IPv6 the one after the last extension header that could be walked. 0 without IP.
    #[inline]
    pub fn protocol(&self) -> u8 {
        (self.words[LAST] >> PROTOCOL) as u8
    }

    /// IPv4 type of service or IPv6 traffic class.
    #[inline]
    pub fn tos(&self) -> u8 {
        (self.words[LAST] >> TOS) as u8
    }

    /// Source and destination port, of unfragmented TCP and UDP only.
    #[inline]
    pub fn ports(&self) -> Option<(u16, u16)> {
        let both = self.words[LAST] >> PORTS;
        self.has(presence::PORTS).then_some(((both >> 16) as u16, both as u16))
    }

    /// TCP flags (CWR..FIN), present when the ports of a TCP packet are.
    #[inline]
    pub fn tcp_flags(&self) -> Option<u8> {
        self.has(presence::TCP_FLAGS).then_some((self.words[LAST] >> TCP_FLAGS) as u8)
    }

    /// The flow that the packet belongs to: unfragmented TCP and UDP only.
    #[inline]
    pub fn flow(&self) -> Option<FlowKey> {
        Some(FlowKey::packed(*self.addr(), self.ports()?, self.protocol(), self.l3()))
    }

    /// Source IP address.
    pub fn src_ip(&self) -> Option<IpAddr> {
        let addr = self.addr();
        match self.l3() {
            L3::None => None,
            L3::V4 => Some(flow::v4((addr[0] >> 32) as u32)),
            L3::V6 => Some(flow::v6(addr[0], addr[1])),
        }
    }

    /// Destination IP address.
    pub fn dst_ip(&self) -> Option<IpAddr> {
        let addr = self.addr();
        match self.l3() {
            L3::None => None,
            L3::V4 => Some(flow::v4(addr[0] as u32)),
            L3::V6 => Some(flow::v6(addr[2], addr[3])),
        }
    }

    /// The fields that tables compare, packed as [`words`] says.
    #[inline]
    pub(crate) fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    /// Whether the packet has all of these headers ([`presence`]).
    #[inline]
    pub(crate) fn has(&self, presence: u64) -> bool {
        self.words[LAST] & presence == presence
    }

    /// The addresses in [`FlowKey`]'s form.
    #[inline]
    pub(crate) fn addr(&self) -> &[u64; 4] {
        self.words[ADDR..].first_chunk().expect("there are more words than that")
    }
}

#[inline]
fn mac(word: u64) -> MacAddr {
    let [a, b, c, d, e, f, ..] = word.to_be_bytes();
    MacAddr([a, b, c, d, e, f])
}
