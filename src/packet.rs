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

use std::net::IpAddr;

pub use flow::FlowKey;

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
    /// Addresses in the form of [`FlowKey`].
    addr: [u64; 4],
    /// Destination MAC address (zero in a runt).
    pub dst: MacAddr,
    /// Source MAC address (zero in a runt).
    pub src: MacAddr,
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
    /// The flow that the packet belongs to: unfragmented TCP and UDP only.
    #[inline]
    pub fn flow(&self) -> Option<FlowKey> {
        let ports = self.ports?;
        Some(FlowKey::packed(self.addr, ports, self.protocol, self.l3))
    }

    /// Source IP address.
    pub fn src_ip(&self) -> Option<IpAddr> {
        match self.l3 {
            L3::None => None,
            L3::V4 => Some(flow::v4((self.addr[0] >> 32) as u32)),
            L3::V6 => Some(flow::v6(self.addr[0], self.addr[1])),
        }
    }

    /// Destination IP address.
    pub fn dst_ip(&self) -> Option<IpAddr> {
        match self.l3 {
            L3::None => None,
            L3::V4 => Some(flow::v4(self.addr[0] as u32)),
            L3::V6 => Some(flow::v6(self.addr[2], self.addr[3])),
        }
    }

    /// The addresses in [`FlowKey`]'s form.
    #[inline]
    pub(crate) fn addr(&self) -> &[u64; 4] {
        &self.addr
    }
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
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *eth;
    h.dst = MacAddr([d0, d1, d2, d3, d4, d5]);
    h.src = MacAddr([s0, s1, s2, s3, s4, s5]);
    match u16::from_be_bytes([t0, t1]) {
        ETHERTYPE_VLAN | ETHERTYPE_QINQ | ETHERTYPE_QINQ_OLD => tagged(&frame, h),
        ethertype => network(&frame, ETH_LEN, ethertype, h),
    }
}

/// A snapshot and the length of the frame that it was taken of; never longer than the frame.
struct Frame<'a> {
    head: &'a [u8],
    len: usize,
}

impl<'a> Frame<'a> {
    /// `N` bytes from `at`, if the snapshot holds them.
    #[inline]
    fn take<const N: usize>(&self, at: usize) -> Option<&'a [u8; N]> {
        self.head.get(at..)?.first_chunk()
    }

    /// Whether the frame itself, not only the snapshot, is shorter than `end`.
    #[inline]
    fn ends_before(&self, end: usize) -> bool {
        self.len < end
    }
}

/// Walks the VLAN tags and goes on behind them. Apart from [`parse`] so that there all offsets are constants.
#[inline(never)]
fn tagged(frame: &Frame, h: &mut Headers) {
    let mut at = ETH_LEN;
    for _ in 0..MAX_TAGS {
        let Some(&[c0, c1, t0, t1]) = frame.take::<TAG_LEN>(at) else {
            h.malformed = frame.ends_before(at + TAG_LEN).then_some(Malformed::VlanTag);
            return;
        };
        h.vlan = h.vlan.or(Some(u16::from_be_bytes([c0, c1])));
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
fn network(frame: &Frame, at: usize, ethertype: u16, h: &mut Headers) {
    h.ethertype = ethertype;
    h.l3_offset = at as u16;
    match ethertype {
        ETHERTYPE_IPV4 => ipv4(frame, at, h),
        ETHERTYPE_IPV6 => ipv6(frame, at, h),
        _ => {}
    }
}

#[inline(always)]
fn ipv4(frame: &Frame, at: usize, h: &mut Headers) {
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
    h.addr[0] = u64::from_be_bytes([ip[12], ip[13], ip[14], ip[15], ip[16], ip[17], ip[18], ip[19]]);
    h.protocol = ip[9];
    h.tos = ip[1];
    // More-fragments or an offset; the don't-fragment bit means nothing here.
    h.fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    if !h.fragment {
        transport(frame, at + header_len, at + total_len, h);
    }
}

#[inline(always)]
fn ipv6(frame: &Frame, at: usize, h: &mut Headers) {
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
    for (addr, word) in h.addr.iter_mut().zip(words) {
        *addr = u64::from_be_bytes(*word);
    }
    h.tos = (u16::from_be_bytes([ip[0], ip[1]]) >> 4) as u8;
    h.protocol = ip[6];
    let l4 = at + IPV6_LEN;
    match ip[6] {
        PROTO_TCP | PROTO_UDP => transport(frame, l4, end, h),
        _ => extensions(frame, l4, end, h),
    }
}

/// Walks IPv6 extension headers from `at`; the packet ends at `end`.
#[inline(never)]
fn extensions(frame: &Frame, mut at: usize, end: usize, h: &mut Headers) {
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
    frame: &Frame<'a>,
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
fn transport(frame: &Frame, at: usize, end: usize, h: &mut Headers) {
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
        h.ports = Some(ports([tcp[0], tcp[1], tcp[2], tcp[3]]));
    } else if let Some(&[a, b, c, d, ..]) = frame.take::<UDP_LEN>(at) {
        h.ports = Some(ports([a, b, c, d]));
    }
}

#[inline]
fn ports([a, b, c, d]: [u8; 4]) -> (u16, u16) {
    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

/// Frames for tests.
#[cfg(test)]
pub(crate) mod frames {
    use super::*;

    /// What goes into a frame.
    #[derive(Debug, Clone)]
    pub(crate) struct Frame {
        pub(crate) dst: MacAddr,
        pub(crate) src: MacAddr,
        /// Tag protocol and TCI, outermost first.
        pub(crate) tags: Vec<(u16, u16)>,
        pub(crate) ips: (IpAddr, IpAddr),
        /// IPv4: bytes of options (a multiple of 4).
        pub(crate) options: usize,
        /// IPv4: the 16 bits of flags and fragment offset.
        pub(crate) fragment: u16,
        /// IPv6: extension headers as type and bytes, the next-header byte of which is filled in.
        pub(crate) extensions: Vec<(u8, Vec<u8>)>,
        pub(crate) protocol: u8,
        pub(crate) ports: (u16, u16),
        pub(crate) payload: usize,
    }

    impl Frame {
        pub(crate) fn new(src: &str, dst: &str, protocol: u8, ports: (u16, u16)) -> Self {
            Self {
                dst: MacAddr([2, 0, 0, 0, 0, 1]),
                src: MacAddr([2, 0, 0, 0, 0, 2]),
                tags: vec![],
                ips: (src.parse().unwrap(), dst.parse().unwrap()),
                options: 0,
                fragment: 0x4000,
                extensions: vec![],
                protocol,
                ports,
                payload: 8,
            }
        }

        pub(crate) fn bytes(&self) -> Vec<u8> {
            let mut l4 = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
            match self.protocol {
                PROTO_TCP => l4.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 0, 64, 0, 0, 0, 0]),
                PROTO_UDP => l4.extend([0, 8 + self.payload as u8, 0, 0]),
                _ => {}
            }
            l4.resize(l4.len() + self.payload, 0xda);
            let mut b = [self.dst.0, self.src.0].concat();
            for (protocol, tci) in &self.tags {
                b.extend([protocol.to_be_bytes(), tci.to_be_bytes()].concat());
            }
            match self.ips {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    b.extend(ETHERTYPE_IPV4.to_be_bytes());
                    let total = (20 + self.options + l4.len()) as u16;
                    b.extend([0x45 + self.options as u8 / 4, 0x2e]);
                    b.extend(total.to_be_bytes());
                    b.extend([0, 1]);
                    b.extend(self.fragment.to_be_bytes());
                    b.extend([64, self.protocol, 0, 0]);
                    b.extend([src.octets(), dst.octets()].concat());
                    b.extend(vec![1; self.options]);
                }
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    b.extend(ETHERTYPE_IPV6.to_be_bytes());
                    let mut next: Vec<u8> = self.extensions.iter().map(|(t, _)| *t).collect();
                    next.push(self.protocol);
                    let ext: Vec<u8> = self
                        .extensions
                        .iter()
                        .zip(&next[1..])
                        .flat_map(|((_, bytes), &next)| [&[next], &bytes[1..]].concat())
                        .collect();
                    b.extend([0x62, 0xe0, 0, 0]);
                    b.extend(((ext.len() + l4.len()) as u16).to_be_bytes());
                    b.extend([next[0], 64]);
                    b.extend([src.octets(), dst.octets()].concat());
                    b.extend(ext);
                }
                _ => panic!("mixed families"),
            }
            b.extend(l4);
            b
        }

        pub(crate) fn headers(&self) -> Headers {
            let b = self.bytes();
            parse(&b, b.len())
        }
    }

    pub(crate) fn tcp4() -> Frame {
        Frame::new("10.0.0.1", "10.0.0.2", PROTO_TCP, (40000, 80))
    }

    pub(crate) fn udp6() -> Frame {
        Frame::new("fd00::1", "fd00::2", PROTO_UDP, (40000, 53))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::frames::{Frame, tcp4, udp6};
    use super::*;

    fn whole(bytes: &[u8]) -> Headers {
        parse(bytes, bytes.len())
    }

    #[test]
    fn tcp_over_ipv4() {
        let h = tcp4().headers();
        assert_eq!((h.dst, h.src), (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])));
        assert_eq!((h.ethernet, h.ethertype, h.vlan, h.l3), (true, ETHERTYPE_IPV4, None, L3::V4));
        assert_eq!(h.src_ip(), Some("10.0.0.1".parse().unwrap()));
        assert_eq!(h.dst_ip(), Some("10.0.0.2".parse().unwrap()));
        assert_eq!((h.protocol, h.tos, h.fragment), (PROTO_TCP, 0x2e, false));
        assert_eq!((h.ports, h.tcp_flags), (Some((40000, 80)), Some(0x18)));
        assert_eq!((h.l3_offset, h.l4_offset, h.malformed), (14, Some(34), None));
    }

    #[test]
    fn udp_over_ipv6() {
        let h = udp6().headers();
        assert_eq!((h.ethertype, h.l3, h.protocol, h.tos), (ETHERTYPE_IPV6, L3::V6, PROTO_UDP, 0x2e));
        assert_eq!(h.src_ip(), Some("fd00::1".parse().unwrap()));
        assert_eq!(h.dst_ip(), Some("fd00::2".parse().unwrap()));
        assert_eq!((h.ports, h.tcp_flags), (Some((40000, 53)), None));
        assert_eq!((h.l3_offset, h.l4_offset, h.malformed), (14, Some(54), None));
    }

    #[test]
    fn tags_are_walked_and_the_outermost_is_reported() {
        for tags in [
            vec![(ETHERTYPE_VLAN, 0x6123)],
            vec![(ETHERTYPE_QINQ, 0x6123), (ETHERTYPE_VLAN, 7)],
            vec![(ETHERTYPE_QINQ_OLD, 0x6123), (ETHERTYPE_VLAN, 7), (ETHERTYPE_VLAN, 8), (ETHERTYPE_VLAN, 9)],
        ] {
            let h = Frame { tags: tags.clone(), ..tcp4() }.headers();
            assert_eq!((h.vlan, h.ethertype, h.ports), (Some(0x6123), ETHERTYPE_IPV4, Some((40000, 80))));
            assert_eq!(usize::from(h.l3_offset), 14 + 4 * tags.len());
        }
        let h = Frame { tags: vec![(ETHERTYPE_VLAN, 1); MAX_TAGS + 1], ..tcp4() }.headers();
        assert_eq!((h.malformed, h.l3, h.ports), (Some(Malformed::TooManyTags), L3::None, None));
        let tagged = Frame { tags: vec![(ETHERTYPE_VLAN, 1)], ..tcp4() }.bytes();
        for cut in 14..18 {
            let h = whole(&tagged[..cut]);
            assert_eq!((h.malformed, h.vlan, h.ethertype), (Some(Malformed::VlanTag), None, 0), "{cut}");
        }
    }

    #[test]
    fn ipv4_options_are_skipped() {
        let h = Frame { options: 40, ..tcp4() }.headers();
        assert_eq!((h.ports, h.l4_offset), (Some((40000, 80)), Some(14 + 60)));
        // The snapshot ends in the options.
        let b = Frame { options: 40, ..tcp4() }.bytes();
        let h = parse(&b[..50], b.len());
        assert_eq!((h.l3, h.ports, h.malformed), (L3::None, None, None));
    }

    #[test]
    fn ipv6_extension_headers_are_walked() {
        let options = vec![0, 1, 5, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let ah = vec![0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let extensions = vec![
            (PROTO_HOP_BY_HOP, options.clone()),
            (PROTO_DEST_OPTS, options.clone()),
            (PROTO_ROUTING, options),
            (PROTO_AH, ah),
        ];
        let frame = Frame { extensions, ..udp6() };
        let h = frame.headers();
        assert_eq!((h.protocol, h.ports, h.malformed), (PROTO_UDP, Some((40000, 53)), None));
        assert_eq!(h.l4_offset, Some(54 + 48 + 24));
        // Cut within the headers: the frame is malformed, a snapshot is just short.
        let b = frame.bytes();
        for cut in 54..b.len() - 8 {
            let (frame, snapshot) = (whole(&b[..cut]), parse(&b[..cut], b.len()));
            assert_eq!((frame.ports, frame.malformed), (None, Some(Malformed::IpLength)), "{cut}");
            assert_eq!(snapshot.malformed, None, "{cut}");
            assert_eq!(snapshot.ports, (cut >= 54 + 72 + 8).then_some((40000, 53)), "{cut}");
        }
    }

    #[test]
    fn ipv6_walk_is_bounded_and_ends_at_esp_and_none() {
        let padding = (PROTO_DEST_OPTS, vec![0, 0, 1, 4, 0, 0, 0, 0]);
        let h = Frame { extensions: vec![padding.clone(); MAX_EXTENSIONS], ..udp6() }.headers();
        assert_eq!((h.ports, h.malformed), (Some((40000, 53)), None));
        let h = Frame { extensions: vec![padding.clone(); MAX_EXTENSIONS + 1], ..udp6() }.headers();
        assert_eq!((h.ports, h.malformed, h.l4_offset), (None, Some(Malformed::Extension), None));
        for protocol in [50, 59] {
            let h = Frame { extensions: vec![padding.clone()], protocol, ..udp6() }.headers();
            assert_eq!((h.protocol, h.ports, h.malformed), (protocol, None, None));
        }
        // A header that claims to be longer than the packet.
        let h =
            Frame { extensions: vec![(PROTO_DEST_OPTS, vec![0, 9, 1, 4, 0, 0, 0, 0])], ..udp6() }.headers();
        assert_eq!((h.ports, h.malformed, h.protocol), (None, Some(Malformed::Extension), PROTO_DEST_OPTS));
    }

    #[test]
    fn no_fragment_has_ports() {
        for fragment in [0x2000, 0x2001, 0x0001, 0x1fff] {
            let h = Frame { fragment, ..tcp4() }.headers();
            assert_eq!(
                (h.fragment, h.ports, h.flow(), h.protocol),
                (true, None, None, PROTO_TCP),
                "{fragment:#x}"
            );
        }
        assert_eq!(Frame { fragment: 0, ..tcp4() }.headers().ports, Some((40000, 80)));
        for offset in [[0, 1], [0, 9], [0, 8], [0, 0]] {
            let header = vec![0, 0, offset[0], offset[1], 0, 0, 0, 1];
            let h = Frame { extensions: vec![(PROTO_FRAGMENT, header)], ..udp6() }.headers();
            assert_eq!(
                (h.fragment, h.ports, h.protocol, h.l4_offset),
                (true, None, PROTO_UDP, None),
                "{offset:?}"
            );
        }
    }

    #[test]
    fn what_is_not_ip_has_addresses_of_ethernet_only() {
        let mut b = tcp4().bytes();
        b[12..14].copy_from_slice(&ETHERTYPE_ARP.to_be_bytes());
        let h = whole(&b);
        assert_eq!((h.ethertype, h.l3, h.src_ip(), h.ports), (ETHERTYPE_ARP, L3::None, None, None));
        assert_eq!((h.protocol, h.malformed, h.l3_offset), (0, None, 14));
    }

    #[test]
    fn every_cut_of_a_frame_is_malformed_until_the_ports_are_whole() {
        for frame in [tcp4(), udp6(), Frame { tags: vec![(ETHERTYPE_VLAN, 5)], ..tcp4() }] {
            let b = frame.bytes();
            let l4_end = b.len() - frame.payload;
            for cut in 0..b.len() {
                let h = whole(&b[..cut]);
                assert_eq!(h.ports, (cut >= l4_end).then_some(frame.ports), "{cut}");
                // Cut exactly after the Ethernet header, the frame has no IP header at all: that is malformed, too.
                assert!(h.malformed.is_some(), "{cut}");
                assert_eq!(h.malformed == Some(Malformed::Runt), cut < 14, "{cut}");
                assert_eq!(h.ethernet, cut >= 14);
                assert_eq!(parse(&b[..cut], b.len()).malformed, None, "{cut}");
            }
        }
    }

    #[test]
    fn padding_is_not_taken_for_a_header() {
        // Total length covers the IP header and half a UDP header; what looks like the rest is padding.
        let mut b = Frame { protocol: PROTO_UDP, ..tcp4() }.bytes();
        b[16..18].copy_from_slice(&24u16.to_be_bytes());
        let h = whole(&b);
        assert_eq!((h.l3, h.ports, h.malformed), (L3::V4, None, Some(Malformed::L4Header)));
        b[16..18].copy_from_slice(&28u16.to_be_bytes());
        assert_eq!((whole(&b).ports, whole(&b).malformed), (Some((40000, 80)), None));
        b.extend([0; 30]);
        assert_eq!((whole(&b).ports, whole(&b).malformed), (Some((40000, 80)), None));
    }

    #[test]
    fn a_packet_longer_than_its_frame_is_reported_and_still_has_ports() {
        let mut b = tcp4().bytes();
        b[16..18].copy_from_slice(&1500u16.to_be_bytes());
        assert_eq!((whole(&b).ports, whole(&b).malformed), (Some((40000, 80)), Some(Malformed::IpLength)));
    }

    #[test]
    fn impossible_headers_yield_nothing() {
        let set = |frame: Frame, at: usize, value: u8| {
            let mut b = frame.bytes();
            b[at] = value;
            whole(&b)
        };
        for (at, value) in [(14, 0x65), (14, 0x44), (14, 0x05), (17, 19)] {
            let h = set(tcp4(), at, value);
            assert_eq!((h.l3, h.ports, h.malformed), (L3::None, None, Some(Malformed::Ipv4Header)), "{at}");
        }
        // A header length beyond the total length, and beyond the frame.
        assert_eq!(set(Frame { payload: 0, ..tcp4() }, 14, 0x4f).malformed, Some(Malformed::Ipv4Header));
        let h = set(udp6(), 14, 0x45);
        assert_eq!((h.l3, h.ports, h.malformed), (L3::None, None, Some(Malformed::Ipv6Header)));
        let h = set(tcp4(), 46, 0x40);
        assert_eq!((h.l3, h.ports, h.malformed), (L3::V4, None, Some(Malformed::L4Header)));
    }

    #[test]
    fn flows_reverse() {
        for frame in [tcp4(), udp6()] {
            let flow = frame.headers().flow().unwrap();
            let back = Frame {
                ips: (frame.ips.1, frame.ips.0),
                ports: (frame.ports.1, frame.ports.0),
                ..frame.clone()
            };
            assert_eq!(flow.reversed(), back.headers().flow().unwrap());
            assert_eq!(flow.reversed().reversed(), flow);
            assert_eq!(FlowKey::new(frame.ips.0, frame.ips.1, frame.protocol, frame.ports), Some(flow));
            assert_eq!((flow.src(), flow.dst()), frame.ips);
            assert_eq!((flow.ports(), flow.protocol()), (frame.ports, frame.protocol));
        }
        assert_eq!(FlowKey::new(tcp4().ips.0, udp6().ips.0, PROTO_TCP, (1, 2)), None);
    }

    /// Bytes that are likely to lead deep into the parser.
    fn plausible() -> impl Strategy<Value = Vec<u8>> {
        let extension = (
            prop::sample::select(vec![0u8, 43, 44, 51, 60]),
            prop::collection::vec(any::<u8>(), 8..=8).prop_map(|mut b| {
                b[1] %= 2;
                b
            }),
        );
        let frame = (
            any::<bool>(),
            prop::collection::vec(extension, 0..4),
            prop::collection::vec((Just(ETHERTYPE_VLAN), any::<u16>()), 0..3),
            prop::sample::select(vec![PROTO_TCP, PROTO_UDP, 1]),
            (0..=10usize, 0..30usize),
        )
            .prop_map(|(v6, extensions, tags, protocol, (options, payload))| {
                let base = if v6 { udp6() } else { tcp4() };
                Frame { extensions, tags, protocol, options: options * 4, payload, ..base }.bytes()
            });
        let broken = (frame, prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4))
            .prop_map(|(mut b, changes)| {
                for (at, value) in changes {
                    let at = at.index(b.len());
                    b[at] = value;
                }
                b
            });
        prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..160), 4 => broken]
    }

    proptest! {
        #[test]
        fn nothing_remains_of_the_frame_before(b in plausible(), before in plausible()) {
            let mut h = whole(&before);
            parse_into(&mut h, &b, b.len());
            prop_assert_eq!(h, whole(&b));
        }

        #[test]
        fn a_longer_snapshot_only_adds(b in plausible(), extra in 0..64usize) {
            let frame_len = b.len() + extra;
            let full = parse(&b, frame_len);
            for cut in 0..b.len() {
                let h = parse(&b[..cut], frame_len);
                prop_assert!(h.l3 == L3::None || (h.l3, h.addr, h.tos) == (full.l3, full.addr, full.tos));
                prop_assert!(h.ports.is_none() || (h.ports, h.flow()) == (full.ports, full.flow()));
                prop_assert!(h.ethertype == 0 || h.ethertype == full.ethertype);
                prop_assert!(h.vlan.is_none() || h.vlan == full.vlan);
                prop_assert!(h.tcp_flags.is_none() || h.tcp_flags == full.tcp_flags);
                prop_assert!(h.l4_offset.is_none() || h.l4_offset == full.l4_offset);
                prop_assert!(h.malformed.is_none() || h.malformed == full.malformed);
                prop_assert!(!h.fragment || full.fragment);
            }
        }

        #[test]
        fn ports_lie_inside_frame_and_packet(b in plausible(), frame_len in 0..200usize) {
            let h = parse(&b, frame_len);
            if let Some((src, dst)) = h.ports {
                let at = usize::from(h.l4_offset.unwrap());
                prop_assert!(at + 8 <= b.len().min(frame_len) && !h.fragment);
                prop_assert_eq!(&b[at..at + 4], &[src.to_be_bytes(), dst.to_be_bytes()].concat()[..]);
                let l3 = usize::from(h.l3_offset);
                let length = |i| usize::from(u16::from_be_bytes([b[l3 + i], b[l3 + i + 1]]));
                let end = if h.l3 == L3::V4 { l3 + length(2) } else { l3 + 40 + length(4) };
                prop_assert!(at + 8 <= end);
            }
        }
    }
}
