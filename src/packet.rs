//! One pass over the headers of a frame, without allocation: bytes become [`Headers`], and flows [`FlowKey`]s.
//!
//! The parser sees a snapshot, the first bytes of a frame, and knows the frame's full length. Hence three outcomes for
//! every header: it is there and sane, and its fields are reported; the *frame* ends too early or the header contradicts
//! itself, and [`Headers::malformed`] says so; or only the *snapshot* ends too early, and the fields stay absent without
//! blame. A longer snapshot of the same frame never changes what a shorter one has reported, it only adds.
//!
//! Nothing here can panic, whatever the bytes: all access goes through checked slices.
//!
//! Ports are reported for whole TCP and UDP packets only. Of a fragment, not even of the first, no port is ever taken,
//! so that all fragments of a datagram are steered alike. An IPv6 packet with a fragment header counts as a fragment even
//! if it is the only one.

mod flow;
pub(crate) mod words;

use std::net::IpAddr;

pub use flow::FlowKey;
use words::{ADDR, LAST, MACS, WORDS, presence};

use crate::virtio::MacAddr;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Tag protocol of an 802.1Q customer tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// Tag protocol of an 802.1ad service tag.
pub const ETHERTYPE_QINQ: u16 = 0x88a8;
/// Tag protocol that switches used for the outer tag before 802.1ad.
pub const ETHERTYPE_QINQ_OLD: u16 = 0x9100;

/// IP protocol number of TCP.
pub const PROTO_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTO_UDP: u8 = 17;

const PROTO_HOP_BY_HOP: u8 = 0;
const PROTO_ROUTING: u8 = 43;
const PROTO_FRAGMENT: u8 = 44;
const PROTO_AH: u8 = 51;
const PROTO_DEST_OPTS: u8 = 60;

const ETH_LEN: usize = 14;
const TAG_LEN: usize = 4;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const TCP_LEN: usize = 20;
const UDP_LEN: usize = 8;

/// VLAN tags that are walked; a frame with more is reported as [`Malformed::TooManyTags`].
pub const MAX_TAGS: usize = 4;
/// IPv6 extension headers that are walked; a packet with more is reported as [`Malformed::Extension`].
pub const MAX_EXTENSIONS: usize = 8;

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
    /// More than [`MAX_TAGS`] VLAN tags.
    TooManyTags,
    /// The IPv4 header is cut, or its version, header length or total length is impossible.
    Ipv4Header,
    /// The IPv6 header is cut or its version is wrong.
    Ipv6Header,
    /// IP says that the packet is longer than the frame that carries it.
    IpLength,
    /// An IPv6 extension header is cut, or there are more than [`MAX_EXTENSIONS`].
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

/// The headers of one frame. Plain data; absent fields are `None`, zero or [`L3::None`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Headers {
    /// See [`words`](Self::words).
    words: [u64; WORDS],
    /// EtherType after all VLAN tags; 0 where the frame ends before it.
    pub ethertype: u16,
    /// TCI of the outermost VLAN tag: priority, DEI and 12 bits of VLAN id.
    pub vlan: Option<u16>,
    /// Where the network header starts, after all VLAN tags (0 if unknown).
    pub l3_offset: u16,
    /// Where the transport header starts; known only for a whole (unfragmented) IP packet whose extension headers could
    /// be walked. It may lie at the end of the frame.
    pub l4_offset: Option<u16>,
    /// Source and destination port, of unfragmented TCP and UDP only.
    pub ports: Option<(u16, u16)>,
    /// TCP flags (CWR..FIN), present when the ports of a TCP packet are.
    pub tcp_flags: Option<u8>,
    /// Network layer.
    pub l3: L3,
    /// IP protocol; for IPv6 the one after the last extension header that could be walked. 0 without IP.
    pub protocol: u8,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// There is an Ethernet header, so the MAC addresses mean something.
    pub ethernet: bool,
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

    /// The flow that the packet belongs to: unfragmented TCP and UDP only.
    #[inline]
    pub fn flow(&self) -> Option<FlowKey> {
        let ports = self.ports?;
        Some(FlowKey::packed(*self.addr(), ports, self.protocol, self.l3))
    }

    /// Source IP address.
    pub fn src_ip(&self) -> Option<IpAddr> {
        let addr = self.addr();
        match self.l3 {
            L3::None => None,
            L3::V4 => Some(flow::v4((addr[0] >> 32) as u32)),
            L3::V6 => Some(flow::v6(addr[0], addr[1])),
        }
    }

    /// Destination IP address.
    pub fn dst_ip(&self) -> Option<IpAddr> {
        let addr = self.addr();
        match self.l3 {
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

/// The bits of a word that are a MAC address.
const MAC_BITS: u64 = !0xffff;

#[inline]
fn mac(word: u64) -> MacAddr {
    let [a, b, c, d, e, f, ..] = word.to_be_bytes();
    MacAddr([a, b, c, d, e, f])
}

/// Parses `head`, the first bytes of a frame of `frame_len` bytes; bytes of `head` beyond `frame_len` are not looked at.
///
/// 128 bytes hold the headers of all but exotic frames.
#[inline]
pub fn parse(head: &[u8], frame_len: usize) -> Headers {
    let mut h = Headers::default();
    parse_into(&mut h, head, frame_len);
    h
}

/// As [`parse`], in place: for batches, where moving the result would cost as much as finding it.
pub fn parse_into(h: &mut Headers, head: &[u8], frame_len: usize) {
    *h = Headers::default();
    let frame = Frame { head: &head[..head.len().min(frame_len)], len: frame_len };
    let Some(eth) = frame.take::<ETH_LEN>(0) else {
        h.malformed = frame.ends_before(ETH_LEN).then_some(Malformed::Runt);
        return;
    };
    h.ethernet = true;
    h.words[LAST] = presence::ETHERNET;
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *eth;
    let src_and_type = u64::from_be_bytes([s0, s1, s2, s3, s4, s5, t0, t1]);
    h.words[MACS[0]] = u64::from_be_bytes([d0, d1, d2, d3, d4, d5, s0, s1]) & MAC_BITS;
    h.words[MACS[1]] = src_and_type & MAC_BITS;
    match src_and_type as u16 {
        ETHERTYPE_VLAN | ETHERTYPE_QINQ | ETHERTYPE_QINQ_OLD => tagged(frame, h),
        ethertype => network(frame, ETH_LEN, ethertype, h),
    }
}

/// A snapshot and the length of the frame that it was taken of; never longer than the frame.
#[derive(Clone, Copy)]
struct Frame<'a> {
    head: &'a [u8],
    len: usize,
}

impl<'a> Frame<'a> {
    /// `N` bytes from `at`, if the snapshot holds them.
    #[inline]
    fn take<const N: usize>(self, at: usize) -> Option<&'a [u8; N]> {
        self.head.get(at..)?.first_chunk()
    }

    /// Whether the frame itself, not only the snapshot, is shorter than `end`.
    #[inline]
    fn ends_before(self, end: usize) -> bool {
        self.len < end
    }
}

/// Walks the VLAN tags and goes on behind them. Apart from [`parse`] so that there all offsets are constants.
#[inline(never)]
fn tagged(frame: Frame, h: &mut Headers) {
    let mut at = ETH_LEN;
    for _ in 0..MAX_TAGS {
        let Some(&[c0, c1, t0, t1]) = frame.take::<TAG_LEN>(at) else {
            h.malformed = frame.ends_before(at + TAG_LEN).then_some(Malformed::VlanTag);
            return;
        };
        if h.vlan.is_none() {
            let tci = u16::from_be_bytes([c0, c1]);
            h.vlan = Some(tci);
            h.words[MACS[1]] |= u64::from(tci);
            h.words[LAST] |= presence::VLAN;
        }
        at += TAG_LEN;
        match u16::from_be_bytes([t0, t1]) {
            ETHERTYPE_VLAN | ETHERTYPE_QINQ | ETHERTYPE_QINQ_OLD => {}
            ethertype => return network(frame, at, ethertype, h),
        }
    }
    h.malformed = Some(Malformed::TooManyTags);
}

/// The network layer, `ethertype`, that starts at `at`.
#[inline(always)]
fn network(frame: Frame, at: usize, ethertype: u16, h: &mut Headers) {
    h.ethertype = ethertype;
    h.words[MACS[0]] |= u64::from(ethertype);
    h.l3_offset = at as u16;
    match ethertype {
        ETHERTYPE_IPV4 => ipv4(frame, at, h),
        ETHERTYPE_IPV6 => ipv6(frame, at, h),
        _ => {}
    }
}

#[inline(always)]
fn ipv4(frame: Frame, at: usize, h: &mut Headers) {
    let Some(ip) = frame.take::<IPV4_LEN>(at) else {
        h.malformed = frame.ends_before(at + IPV4_LEN).then_some(Malformed::Ipv4Header);
        return;
    };
    let header_len = usize::from(ip[0] & 0xf) * 4;
    let total_len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let sane = ip[0] >> 4 == 4 && header_len >= IPV4_LEN && total_len >= header_len;
    if !sane || frame.ends_before(at + header_len) {
        h.malformed = Some(Malformed::Ipv4Header);
        return;
    }
    if frame.head.len() < at + header_len {
        return;
    }
    if frame.ends_before(at + total_len) {
        h.malformed = Some(Malformed::IpLength);
    }
    h.l3 = L3::V4;
    h.words[ADDR] = u64::from_be_bytes([ip[12], ip[13], ip[14], ip[15], ip[16], ip[17], ip[18], ip[19]]);
    h.protocol = ip[9];
    h.tos = ip[1];
    h.words[LAST] |= u64::from(h.protocol) << 24 | u64::from(h.tos) << 16 | presence::V4;
    // More-fragments or an offset; the don't-fragment bit means nothing here.
    h.fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    if !h.fragment {
        transport(frame, at + header_len, at + total_len, h);
    }
}

#[inline(always)]
fn ipv6(frame: Frame, at: usize, h: &mut Headers) {
    let Some(ip) = frame.take::<IPV6_LEN>(at) else {
        h.malformed = frame.ends_before(at + IPV6_LEN).then_some(Malformed::Ipv6Header);
        return;
    };
    if ip[0] >> 4 != 6 {
        h.malformed = Some(Malformed::Ipv6Header);
        return;
    }
    // A jumbogram (length 0) cannot reach a device whose frames are shorter than 64 KiB, so 0 is taken at its word.
    let end = at + IPV6_LEN + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
    if frame.ends_before(end) {
        h.malformed = Some(Malformed::IpLength);
    }
    h.l3 = L3::V6;
    let (words, _) = ip[8..].as_chunks::<8>();
    for (addr, word) in h.words[ADDR..LAST].iter_mut().zip(words) {
        *addr = u64::from_be_bytes(*word);
    }
    h.tos = (u16::from_be_bytes([ip[0], ip[1]]) >> 4) as u8;
    h.protocol = ip[6];
    let l4 = at + IPV6_LEN;
    match ip[6] {
        PROTO_TCP | PROTO_UDP => transport(frame, l4, end, h),
        _ => extensions(frame, l4, end, h),
    }
    h.words[LAST] |= u64::from(h.protocol) << 24 | u64::from(h.tos) << 16 | presence::V6;
}

/// Walks IPv6 extension headers from `at`; the packet ends at `end`.
#[inline(never)]
fn extensions(frame: Frame, mut at: usize, end: usize, h: &mut Headers) {
    for _ in 0..MAX_EXTENSIONS {
        if !matches!(
            h.protocol,
            PROTO_HOP_BY_HOP | PROTO_ROUTING | PROTO_DEST_OPTS | PROTO_FRAGMENT | PROTO_AH
        ) {
            return transport(frame, at, end, h);
        }
        let Some(&[next, len, ..]) = extension(frame, at, 8, end, h) else { return };
        let size = match h.protocol {
            PROTO_FRAGMENT => {
                // What follows may be the middle of a datagram: the walk ends here.
                h.fragment = true;
                h.protocol = next;
                return;
            }
            PROTO_AH => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        if extension(frame, at, size, end, h).is_none() {
            return;
        }
        h.protocol = next;
        at += size;
    }
    if matches!(h.protocol, PROTO_HOP_BY_HOP | PROTO_ROUTING | PROTO_DEST_OPTS | PROTO_FRAGMENT | PROTO_AH) {
        h.malformed.get_or_insert(Malformed::Extension);
    } else {
        transport(frame, at, end, h);
    }
}

/// The first bytes of an extension header of `size` bytes, if packet, frame and snapshot hold all of it.
fn extension<'a>(
    frame: Frame<'a>,
    at: usize,
    size: usize,
    end: usize,
    h: &mut Headers,
) -> Option<&'a [u8; 8]> {
    if at + size > end.min(frame.len) {
        h.malformed.get_or_insert(Malformed::Extension);
        return None;
    }
    if at + size > frame.head.len() {
        return None;
    }
    frame.take(at)
}

/// The transport header at `at` of an IP packet that ends at `end`.
#[inline(always)]
fn transport(frame: Frame, at: usize, end: usize, h: &mut Headers) {
    h.l4_offset = Some(at as u16);
    let size = match h.protocol {
        PROTO_TCP => TCP_LEN,
        PROTO_UDP => UDP_LEN,
        _ => return,
    };
    if at + size > end.min(frame.len) {
        h.malformed.get_or_insert(Malformed::L4Header);
        return;
    }
    if h.protocol == PROTO_TCP {
        let Some(tcp) = frame.take::<TCP_LEN>(at) else { return };
        if tcp[12] >> 4 < 5 {
            h.malformed.get_or_insert(Malformed::L4Header);
            return;
        }
        h.tcp_flags = Some(tcp[13]);
        h.words[LAST] |= u64::from(tcp[13]) << 8 | presence::TCP_FLAGS;
        ports([tcp[0], tcp[1], tcp[2], tcp[3]], h);
    } else if let Some(&[a, b, c, d, ..]) = frame.take::<UDP_LEN>(at) {
        ports([a, b, c, d], h);
    }
}

#[inline(always)]
fn ports(bytes: [u8; 4], h: &mut Headers) {
    let both = u32::from_be_bytes(bytes);
    h.ports = Some(((both >> 16) as u16, both as u16));
    h.words[LAST] |= u64::from(both) << 32 | presence::PORTS;
}

#[cfg(test)]
#[path = "packet_frames.rs"]
pub(crate) mod frames;

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
