//! Segmentation: one large TCP or UDP frame becomes many small ones.
//!
//! The headers of every segment are a copy of the frame's, patched: lengths, IPv4 id and header checksum, TCP
//! sequence number and flags, L4 checksum. The payload is never copied here; the caller gets slices of the
//! frame.

use super::{BadOffload, ETH_HEADER, Sum, TCP_CSUM_OFFSET, UDP_CSUM_OFFSET, validate};
use crate::virtio::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NetHeader};

/// The longest headers, Ethernet to L4, that can be segmented. IPv4 and TCP with all their options behind two
/// VLAN tags take 142 bytes; the rest is room for IPv6 extension headers.
pub const MAX_HEADERS: usize = 256;

/// The largest number of segments from one frame, so that a guest cannot make 64 Ki frames from one. A frame of
/// 64 KiB with segments of 48 bytes, the smallest that Linux sends, makes 1366.
pub const MAX_SEGMENTS: usize = 2048;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// 802.1Q, 802.1ad, and what was used before the latter.
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const PROTO_TCP: u8 = 6;
const PROTO_UDP: u8 = 17;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// Where the headers of a frame lie that is about to be segmented; all checked against the frame.
#[derive(Clone, Copy)]
struct Layout {
    ipv6: bool,
    tcp: bool,
    /// Start of the IP header.
    ip: usize,
    /// Start of the TCP or UDP header.
    l4: usize,
    /// Start of the payload.
    payload: usize,
}

fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn put16(b: &mut [u8], at: usize, value: u16) {
    b[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

impl Layout {
    /// Finds the headers. `hdr` is valid (`csum_start` and the checksum field lie within the frame).
    fn find(frame: &[u8], hdr: &NetHeader) -> Result<Layout, BadOffload> {
        let l4 = usize::from(hdr.csum_start);
        let mut ip = ETH_HEADER;
        let mut ethertype = be16(frame, ip - 2);
        while ETHERTYPES_VLAN.contains(&ethertype) && ip + 4 <= l4 {
            ethertype = be16(frame, ip + 2);
            ip += 4;
        }
        let (ipv6, protocol) = match ethertype {
            ETHERTYPE_IPV4 => (false, ipv4_protocol(&frame[ip..l4])?),
            ETHERTYPE_IPV6 => (true, ipv6_protocol(&frame[ip..l4])?),
            _ => return Err(BadOffload::Mismatch("neither IPv4 nor IPv6")),
        };
        let tcp = match (hdr.gso_type & !GSO_ECN, ipv6, protocol) {
            (GSO_TCPV4, false, PROTO_TCP) | (GSO_TCPV6, true, PROTO_TCP) => true,
            (GSO_UDP_L4, _, PROTO_UDP) => false,
            _ => return Err(BadOffload::Mismatch("another IP version or protocol")),
        };
        let l4_len = if tcp { 4 * usize::from(frame[l4 + 12] >> 4) } else { 8 };
        let payload = l4 + l4_len;
        if tcp && l4_len < 20 {
            return Err(BadOffload::Mismatch("a TCP header of less than 20 bytes"));
        }
        if payload > frame.len() {
            return Err(BadOffload::Mismatch("a frame that ends in its L4 header"));
        }
        if payload > MAX_HEADERS {
            return Err(BadOffload::HeadersTooLong(payload));
        }
        Ok(Layout { ipv6, tcp, ip, l4, payload })
    }
}

/// The protocol of an IPv4 header that takes up all of `b`.
fn ipv4_protocol(b: &[u8]) -> Result<u8, BadOffload> {
    if b.len() < 20 || b[0] >> 4 != 4 || 4 * usize::from(b[0] & 0xf) != b.len() {
        return Err(BadOffload::Mismatch("no IPv4 header that ends at csum_start"));
    }
    if be16(b, 6) & 0x3fff != 0 {
        return Err(BadOffload::Mismatch("an IPv4 fragment"));
    }
    Ok(b[9])
}

/// The protocol behind an IPv6 header and its extensions, which together take up all of `b`.
fn ipv6_protocol(b: &[u8]) -> Result<u8, BadOffload> {
    let bad = BadOffload::Mismatch("no IPv6 headers that end at csum_start");
    if b.len() < 40 || b[0] >> 4 != 6 {
        return Err(bad);
    }
    let (mut next, mut at) = (b[6], 40);
    while at + 8 <= b.len() {
        let units = usize::from(b[at + 1]);
        let len = match next {
            // Hop-by-hop, routing, destination options, mobility, HIP, shim6.
            0 | 43 | 60 | 135 | 139 | 140 => 8 * (units + 1),
            // Authentication.
            51 => 4 * (units + 2),
            44 => return Err(BadOffload::Mismatch("an IPv6 fragment")),
            _ => return Err(bad),
        };
        next = b[at];
        at += len;
    }
    if at == b.len() { Ok(next) } else { Err(bad) }
}

/// Splits a frame into segments of `gso_size` payload bytes. `emit` gets each one in order as two pieces: the
/// headers, Ethernet to L4, and the slice of `frame` that is the payload. Every segment is a plain frame: its
/// virtio-net header is all zero. Returns the number of segments, at least 1.
///
/// The sum that each L4 checksum starts from is taken from the frame's checksum field, which holds that of the
/// pseudo header (5.1.6.2.1); so it is right behind a routing header too.
///
/// # Errors
/// When header and frame contradict each other, see [`BadOffload`]; nothing was emitted then.
///
/// # Panics
/// Never, whatever header and frame hold.
pub fn segment(
    frame: &[u8],
    hdr: &NetHeader,
    emit: &mut impl FnMut(&[u8], &[u8]),
) -> Result<usize, BadOffload> {
    validate(hdr, frame.len())?;
    if hdr.gso_type == 0 {
        return Err(BadOffload::Mismatch("nothing to segment"));
    }
    let at = Layout::find(frame, hdr)?;
    let gso_size = usize::from(hdr.gso_size);
    let payload = &frame[at.payload..];
    let count = payload.len().div_ceil(gso_size).max(1);
    if count > MAX_SEGMENTS {
        return Err(BadOffload::TooManySegments(count));
    }
    if at.payload - at.ip + gso_size.min(payload.len()) > 0xffff {
        return Err(BadOffload::SegmentTooLong(hdr.gso_size));
    }

    let mut buf = [0; MAX_HEADERS];
    let headers = &mut buf[..at.payload];
    headers.copy_from_slice(&frame[..at.payload]);
    let fixed = Fixed::take(headers, &at, frame.len());
    for i in 0..count {
        let from = i * gso_size;
        let piece = &payload[from..payload.len().min(from + gso_size)];
        fixed.patch_ip(headers, &at, i, piece.len());
        let csum_offset = if at.tcp {
            fixed.patch_tcp(headers, &at, from, i == 0, i + 1 == count);
            usize::from(TCP_CSUM_OFFSET)
        } else {
            put16(headers, at.l4 + 4, l4_len(&at, piece.len()));
            usize::from(UDP_CSUM_OFFSET)
        };
        put16(headers, at.l4 + csum_offset, 0);
        let sum = Sum::new().add_word(fixed.pseudo).add_word(l4_len(&at, piece.len()));
        let sum = sum.add_bytes(&headers[at.l4..]).add_bytes(piece);
        // For TCP, 0 and all ones are the same checksum; only UDP minds which.
        let sum = if at.tcp { sum.checksum() } else { sum.nonzero_checksum() };
        put16(headers, at.l4 + csum_offset, sum);
        emit(headers, piece);
    }
    Ok(count)
}

/// Length of the L4 header and `payload` bytes; [`segment`] has checked that it fits.
fn l4_len(at: &Layout, payload: usize) -> u16 {
    (at.payload - at.l4 + payload) as u16
}

/// What the segments' headers are computed from.
struct Fixed {
    /// Sum of the pseudo header without its length.
    pseudo: u16,
    /// IPv4 identification of the first segment.
    id: u16,
    /// Sum of the IPv4 header without length, id and checksum.
    ip_sum: u16,
    /// TCP sequence number of the first segment.
    seq: u32,
    /// TCP flags as they were.
    flags: u8,
}

impl Fixed {
    fn take(headers: &[u8], at: &Layout, frame_len: usize) -> Fixed {
        let csum = at.l4 + usize::from(if at.tcp { TCP_CSUM_OFFSET } else { UDP_CSUM_OFFSET });
        let len = Sum::new().add_long((frame_len - at.l4) as u32).folded();
        let mut fixed = Fixed {
            pseudo: Sum::new().add_word(be16(headers, csum)).sub_word(len).folded(),
            id: 0,
            ip_sum: 0,
            seq: 0,
            flags: 0,
        };
        if !at.ipv6 {
            let ip = &headers[at.ip..at.l4];
            fixed.id = be16(ip, 4);
            fixed.ip_sum = Sum::new().add_bytes(&ip[..2]).add_bytes(&ip[6..10]).add_bytes(&ip[12..]).folded();
        }
        if at.tcp {
            let tcp = &headers[at.l4..];
            fixed.seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
            fixed.flags = tcp[13];
        }
        fixed
    }

    fn patch_ip(&self, headers: &mut [u8], at: &Layout, segment: usize, payload: usize) {
        let len = (at.payload - at.ip + payload) as u16;
        let ip = &mut headers[at.ip..at.l4];
        if at.ipv6 {
            put16(ip, 4, len - 40);
        } else {
            let id = self.id.wrapping_add(segment as u16);
            put16(ip, 2, len);
            put16(ip, 4, id);
            put16(ip, 10, Sum::new().add_word(self.ip_sum).add_word(len).add_word(id).checksum());
        }
    }

    /// CWR stays in the first segment, FIN and PSH in the last.
    fn patch_tcp(&self, headers: &mut [u8], at: &Layout, from: usize, first: bool, last: bool) {
        let tcp = &mut headers[at.l4..];
        tcp[4..8].copy_from_slice(&self.seq.wrapping_add(from as u32).to_be_bytes());
        tcp[13] =
            self.flags & !(if first { 0 } else { TCP_CWR }) & !(if last { 0 } else { TCP_FIN | TCP_PSH });
    }
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
