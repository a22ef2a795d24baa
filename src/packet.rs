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
mod headers;
pub(crate) mod words;

pub use flow::FlowKey;
pub use headers::{Headers, L3, Malformed};
use words::{ADDR, LAST, MAC_BITS, MACS, PORTS, PROTOCOL, TCP_FLAGS, TOS, presence};

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
    let frame = Frame { head: &head[..head.len().min(frame_len)], len: frame_len };
    if !plain(frame, h) {
        general(frame, h);
    }
}

/// The frames that most traffic consists of: IPv4 without options, untagged and whole, with UDP or TCP. At most a third of the work of
/// [`general`], which would find the same. False for all others, and then nothing was written.
#[inline(always)]
fn plain(frame: Frame, h: &mut Headers) -> bool {
    const L4: usize = ETH_LEN + IPV4_LEN;
    const VERSION_AND_LEN: u32 = 0x45;
    let Some(b) = frame.take::<{ L4 + UDP_LEN }>(0) else { return false };
    let word = |at: usize| u64::from_be_bytes(*b[at..].first_chunk().expect("within the array"));
    let half = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
    let (macs, src_and_type) = (word(0), word(6));
    let type_and_ip = u32::from_be_bytes([b[12], b[13], b[14], b[15]]);
    let (total_len, protocol) = (usize::from(half(ETH_LEN + 2)), b[ETH_LEN + 9]);
    let is_whole = half(ETH_LEN + 6) & 0x3fff == 0 && !frame.ends_before(ETH_LEN + total_len);
    if type_and_ip >> 8 != u32::from(ETHERTYPE_IPV4) << 8 | VERSION_AND_LEN || !is_whole {
        return false;
    }
    let found = match protocol {
        PROTO_UDP if total_len >= IPV4_LEN + UDP_LEN => presence::PORTS,
        PROTO_TCP if total_len >= IPV4_LEN + TCP_LEN => match frame.take::<TCP_LEN>(L4) {
            Some(tcp) if tcp[12] >> 4 >= 5 => {
                u64::from(tcp[13]) << TCP_FLAGS | presence::PORTS | presence::TCP_FLAGS
            }
            _ => return false,
        },
        _ => return false,
    };
    let ports = u32::from_be_bytes([b[L4], b[L4 + 1], b[L4 + 2], b[L4 + 3]]);
    let last = u64::from(ports) << PORTS
        | u64::from(protocol) << PROTOCOL
        | u64::from(type_and_ip as u8) << TOS
        | (found | presence::ETHERNET | presence::V4);
    *h = Headers {
        words: [
            macs & MAC_BITS | u64::from(ETHERTYPE_IPV4),
            src_and_type & MAC_BITS,
            word(ETH_LEN + 12),
            0,
            0,
            0,
            last,
        ],
        l3_offset: ETH_LEN as u16,
        l4_offset: Some(L4 as u16),
        fragment: false,
        malformed: None,
    };
    true
}

/// Any frame.
#[inline(never)]
fn general(frame: Frame, h: &mut Headers) {
    *h = Headers::default();
    let Some(eth) = frame.take::<ETH_LEN>(0) else {
        h.malformed = frame.ends_before(ETH_LEN).then_some(Malformed::Runt);
        return;
    };
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *eth;
    let src_and_type = u64::from_be_bytes([s0, s1, s2, s3, s4, s5, t0, t1]);
    h.words[LAST] = presence::ETHERNET;
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
        if !h.has(presence::VLAN) {
            h.words[MACS[1]] |= u64::from(u16::from_be_bytes([c0, c1]));
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
    h.words[ADDR] = u64::from_be_bytes([ip[12], ip[13], ip[14], ip[15], ip[16], ip[17], ip[18], ip[19]]);
    let protocol = ip[9];
    h.words[LAST] |= u64::from(protocol) << PROTOCOL | u64::from(ip[1]) << TOS | presence::V4;
    // More-fragments or an offset; the don't-fragment bit means nothing here.
    h.fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    if !h.fragment {
        transport(frame, protocol, at + header_len, at + total_len, h);
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
    let (words, _) = ip[8..].as_chunks::<8>();
    for (addr, word) in h.words[ADDR..LAST].iter_mut().zip(words) {
        *addr = u64::from_be_bytes(*word);
    }
    let tos = (u16::from_be_bytes([ip[0], ip[1]]) >> 4) as u8;
    h.words[LAST] |= u64::from(tos) << TOS | presence::V6;
    let l4 = at + IPV6_LEN;
    let protocol = match ip[6] {
        protocol @ (PROTO_TCP | PROTO_UDP) => {
            transport(frame, protocol, l4, end, h);
            protocol
        }
        protocol => extensions(frame, protocol, l4, end, h),
    };
    h.words[LAST] |= u64::from(protocol) << PROTOCOL;
}

/// Walks IPv6 extension headers from `at`, the first of which is of type `protocol`; the packet ends at `end`. Returns the
/// protocol behind those that could be walked.
#[inline(never)]
fn extensions(frame: Frame, mut protocol: u8, mut at: usize, end: usize, h: &mut Headers) -> u8 {
    for _ in 0..MAX_EXTENSIONS {
        if !is_extension(protocol) {
            transport(frame, protocol, at, end, h);
            return protocol;
        }
        let Some(&[next, len, ..]) = extension(frame, at, 8, end, h) else { return protocol };
        let size = match protocol {
            PROTO_FRAGMENT => {
                // What follows may be the middle of a datagram: the walk ends here.
                h.fragment = true;
                return next;
            }
            PROTO_AH => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        if extension(frame, at, size, end, h).is_none() {
            return protocol;
        }
        protocol = next;
        at += size;
    }
    if is_extension(protocol) {
        h.malformed.get_or_insert(Malformed::Extension);
    } else {
        transport(frame, protocol, at, end, h);
    }
    protocol
}

fn is_extension(protocol: u8) -> bool {
    matches!(protocol, PROTO_HOP_BY_HOP | PROTO_ROUTING | PROTO_DEST_OPTS | PROTO_FRAGMENT | PROTO_AH)
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
fn transport(frame: Frame, protocol: u8, at: usize, end: usize, h: &mut Headers) {
    h.l4_offset = Some(at as u16);
    let size = match protocol {
        PROTO_TCP => TCP_LEN,
        PROTO_UDP => UDP_LEN,
        _ => return,
    };
    if at + size > end.min(frame.len) {
        h.malformed.get_or_insert(Malformed::L4Header);
        return;
    }
    if protocol == PROTO_TCP {
        let Some(tcp) = frame.take::<TCP_LEN>(at) else { return };
        if tcp[12] >> 4 < 5 {
            h.malformed.get_or_insert(Malformed::L4Header);
            return;
        }
        let ports = u32::from_be_bytes([tcp[0], tcp[1], tcp[2], tcp[3]]);
        h.words[LAST] |= u64::from(ports) << PORTS
            | u64::from(tcp[13]) << TCP_FLAGS
            | (presence::PORTS | presence::TCP_FLAGS);
    } else if let Some(&[a, b, c, d, ..]) = frame.take::<UDP_LEN>(at) {
        h.words[LAST] |= u64::from(u32::from_be_bytes([a, b, c, d])) << PORTS | presence::PORTS;
    }
}

#[cfg(test)]
#[path = "packet_frames.rs"]
pub(crate) mod frames;

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
