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
mod tests {
    use super::*;
    use crate::offload::checksum;
    use crate::virtio::HDR_F_NEEDS_CSUM;
    use proptest::prelude::*;

    /// A frame to segment, described by what varies.
    #[derive(Debug, Clone)]
    struct Sample {
        tags: usize,
        ipv6: bool,
        tcp: bool,
        /// IPv4 options (of 4 bytes) or IPv6 destination options (of 8).
        ip_options: usize,
        tcp_options: usize,
        flags: u8,
        id: u16,
        seq: u32,
        payload: Vec<u8>,
        gso_size: u16,
    }

    impl Sample {
        fn tcp4(payload: usize, gso_size: u16) -> Sample {
            Sample {
                tags: 0,
                ipv6: false,
                tcp: true,
                ip_options: 0,
                tcp_options: 0,
                flags: 0x10,
                id: 7,
                seq: 1000,
                payload: (0..payload).map(|i| i as u8).collect(),
                gso_size,
            }
        }

        fn l4(&self) -> usize {
            14 + 4 * self.tags + if self.ipv6 { 40 + 8 * self.ip_options } else { 20 + 4 * self.ip_options }
        }

        /// The frame as a guest's kernel would hand it over: the checksum field holds the pseudo header's sum.
        fn frame(&self) -> (Vec<u8>, NetHeader) {
            let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
            for tag in 0..self.tags {
                f.extend([[0x88, 0xa8], [0x81, 0x00]][usize::from(tag + 1 == self.tags)]);
                f.extend([0x20, tag as u8 + 1]);
            }
            let proto = if self.tcp { 6 } else { 17 };
            let l4_len = if self.tcp { 20 + 4 * self.tcp_options } else { 8 } + self.payload.len();
            if self.ipv6 {
                f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                f.extend(((8 * self.ip_options + l4_len) as u16).to_be_bytes());
                f.extend([if self.ip_options > 0 { 60 } else { proto }, 64]);
                f.extend((0..32u8).map(|i| i * 3));
                for i in 0..self.ip_options {
                    f.extend([if i + 1 < self.ip_options { 60 } else { proto }, 0, 1, 4, 0, 0, 0, 0]);
                }
            } else {
                f.extend([0x08, 0x00, 0x45 + self.ip_options as u8, 0]);
                f.extend(((20 + 4 * self.ip_options + l4_len) as u16).to_be_bytes());
                f.extend(self.id.to_be_bytes());
                f.extend([0x40, 0, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
                f.extend([1, 1, 1, 1].repeat(self.ip_options));
            }
            assert_eq!(f.len(), self.l4());
            let pseudo = pseudo_header(&f, self.ipv6, proto, l4_len).folded().to_be_bytes();
            f.extend([0x12, 0x34, 0x56, 0x78]);
            if self.tcp {
                f.extend(self.seq.to_be_bytes());
                f.extend([0, 0, 0, 9, (5 + self.tcp_options as u8) << 4, self.flags, 1, 0]);
                f.extend(pseudo);
                f.extend([0, 0]);
                f.extend([1, 1, 1, 1].repeat(self.tcp_options));
            } else {
                f.extend((l4_len as u16).to_be_bytes());
                f.extend(pseudo);
            }
            f.extend(&self.payload);
            let gso_type = match (self.tcp, self.ipv6) {
                (false, _) => GSO_UDP_L4,
                (true, false) => GSO_TCPV4,
                (true, true) => GSO_TCPV6,
            };
            let hdr = NetHeader {
                flags: HDR_F_NEEDS_CSUM,
                gso_type: gso_type | if self.flags & TCP_CWR != 0 && self.tcp { GSO_ECN } else { 0 },
                gso_size: self.gso_size,
                csum_start: self.l4() as u16,
                csum_offset: if self.tcp { 16 } else { 6 },
                ..NetHeader::default()
            };
            (f, hdr)
        }

        fn segments(&self) -> Vec<Vec<u8>> {
            let (frame, hdr) = self.frame();
            let mut out = Vec::new();
            let n = segment(&frame, &hdr, &mut |h: &[u8], p: &[u8]| out.push([h, p].concat())).unwrap();
            assert_eq!(n, out.len());
            out
        }
    }

    /// The sum of the pseudo header of a frame whose IP header follows the Ethernet header or its tags.
    fn pseudo_header(frame: &[u8], ipv6: bool, proto: u8, l4_len: usize) -> Sum {
        let mut ip = 14;
        while matches!(be16(frame, ip - 2), 0x8100 | 0x88a8) {
            ip += 4;
        }
        let addresses = if ipv6 { &frame[ip + 8..ip + 40] } else { &frame[ip + 12..ip + 20] };
        Sum::new().add_bytes(addresses).add_word(u16::from(proto)).add_long(l4_len as u32)
    }

    fn samples() -> impl Strategy<Value = Sample> {
        (
            (0usize..3, any::<bool>(), any::<bool>(), 0usize..4, 0usize..6),
            (any::<u8>(), any::<u16>(), any::<u32>()),
            prop::collection::vec(any::<u8>(), 0..4000),
            1u16..3000,
        )
            .prop_map(
                |((tags, ipv6, tcp, ip_options, tcp_options), (flags, id, seq), payload, gso_size)| Sample {
                    tags,
                    ipv6,
                    tcp,
                    ip_options,
                    tcp_options,
                    flags,
                    id,
                    seq,
                    gso_size: gso_size.max((payload.len() / MAX_SEGMENTS + 1) as u16),
                    payload,
                },
            )
    }

    proptest! {
        #[test]
        fn segments_are_right_and_make_up_the_payload(s in samples()) {
            let (frame, _) = s.frame();
            let (l4, ip) = (s.l4(), 14 + 4 * s.tags);
            let payload_at = frame.len() - s.payload.len();
            let segments = s.segments();
            prop_assert_eq!(segments.len(), s.payload.len().div_ceil(usize::from(s.gso_size)).max(1));
            let mut data: Vec<u8> = Vec::new();
            for (i, seg) in segments.iter().enumerate() {
                let (first, last) = (i == 0, i + 1 == segments.len());
                let piece = &seg[payload_at..];
                prop_assert!(last || piece.len() == usize::from(s.gso_size));
                // Ethernet, tags, addresses and options are as they were.
                prop_assert_eq!(&seg[..ip], &frame[..ip]);
                if s.ipv6 {
                    prop_assert_eq!(usize::from(be16(seg, ip + 4)), seg.len() - ip - 40);
                    prop_assert_eq!(&seg[ip..ip + 4], &frame[ip..ip + 4]);
                    prop_assert_eq!(&seg[ip + 6..l4], &frame[ip + 6..l4]);
                } else {
                    prop_assert_eq!(usize::from(be16(seg, ip + 2)), seg.len() - ip);
                    prop_assert_eq!(be16(seg, ip + 4), s.id.wrapping_add(i as u16));
                    prop_assert_eq!(Sum::new().add_bytes(&seg[ip..l4]).folded(), 0xffff);
                    prop_assert_eq!(&seg[ip + 6..ip + 10], &frame[ip + 6..ip + 10]);
                    prop_assert_eq!(&seg[ip + 12..l4], &frame[ip + 12..l4]);
                }
                let proto = if s.tcp { 6 } else { 17 };
                let sum = pseudo_header(seg, s.ipv6, proto, seg.len() - l4).add_bytes(&seg[l4..]);
                prop_assert_eq!(sum.folded(), 0xffff);
                if s.tcp {
                    let seq = u32::from_be_bytes(seg[l4 + 4..l4 + 8].try_into().unwrap());
                    prop_assert_eq!(seq, s.seq.wrapping_add(data.len() as u32));
                    let mut flags = s.flags;
                    if !first { flags &= !TCP_CWR }
                    if !last { flags &= !(TCP_FIN | TCP_PSH) }
                    prop_assert_eq!(seg[l4 + 13], flags);
                    prop_assert_eq!(&seg[l4 + 20..payload_at], &frame[l4 + 20..payload_at]);
                } else {
                    prop_assert_eq!(usize::from(be16(seg, l4 + 4)), seg.len() - l4);
                    prop_assert_ne!(be16(seg, l4 + 6), 0);
                }
                data.extend(piece);
            }
            prop_assert_eq!(data, s.payload);
        }

        #[test]
        fn one_segment_is_the_frame_with_its_checksum(mut s in samples()) {
            s.gso_size = 4000;
            s.id = 7;
            let segments = s.segments();
            let (mut frame, hdr) = s.frame();
            if !s.ipv6 {
                let ip = 14 + 4 * s.tags;
                let sum = Sum::new().add_bytes(&frame[ip..s.l4()]).checksum();
                put16(&mut frame, ip + 10, sum);
            }
            checksum(&mut frame, &mut NetHeader { gso_type: 0, ..hdr }).unwrap();
            // Completing a checksum, which does not know the protocol, never leaves 0, for UDP's sake; a TCP segment may have it.
            // As numbers of one's complement the two are the same.
            let field = usize::from(hdr.csum_start + hdr.csum_offset);
            if s.tcp && be16(&segments[0], field) == 0 {
                prop_assert_eq!(be16(&frame, field), 0xffff);
                put16(&mut frame, field, 0);
            }
            prop_assert_eq!(&segments[..], &[frame][..]);
        }

        #[test]
        fn a_damaged_frame_is_refused_or_cut_but_never_a_panic(
            s in samples(), at in 0usize..160, value in any::<u8>(), cut in 0usize..200,
        ) {
            let (mut frame, hdr) = s.frame();
            let at = at % frame.len();
            frame[at] = value;
            let _ = segment(&frame, &hdr, &mut |_: &[u8], _: &[u8]| ());
            frame.truncate(cut);
            let _ = segment(&frame, &hdr, &mut |_: &[u8], _: &[u8]| ());
        }
    }

    fn refusal(frame: &[u8], hdr: &NetHeader) -> BadOffload {
        segment(frame, hdr, &mut |_: &[u8], _: &[u8]| panic!("emitted")).unwrap_err()
    }

    #[test]
    fn a_full_frame_of_64_kib_is_cut_to_the_mtu() {
        let segments = Sample::tcp4(65_483, 1460).segments();
        assert_eq!(segments.len(), 45);
        assert!(segments[..44].iter().all(|s| s.len() == 1514));
        assert_eq!(segments[44].len(), 54 + 65_483 - 44 * 1460);
    }

    #[test]
    fn cwr_only_in_the_first_and_fin_and_psh_only_in_the_last() {
        let segments =
            Sample { flags: 0x10 | TCP_CWR | TCP_FIN | TCP_PSH, ..Sample::tcp4(300, 100) }.segments();
        let flags: Vec<u8> = segments.iter().map(|s| s[34 + 13]).collect();
        assert_eq!(flags, [0x90, 0x10, 0x19]);
    }

    #[test]
    fn sequence_number_and_ip_id_wrap() {
        let segments = Sample { seq: u32::MAX - 99, id: 0xffff, ..Sample::tcp4(300, 100) }.segments();
        assert_eq!(segments[1][38..42], [0; 4]);
        assert_eq!(segments[1][18..20], [0; 2]);
    }

    #[test]
    fn a_datagram_whose_checksum_is_zero_stores_all_ones() {
        let mut s = Sample { tcp: false, payload: vec![0; 4], ..Sample::tcp4(0, 2) };
        // As payload of the second segment, the checksum takes the sum to all ones.
        let sum = s.segments()[1][40..42].to_vec();
        s.payload[2..].copy_from_slice(&sum);
        assert_eq!(s.segments()[1][40..], [0xff, 0xff, sum[0], sum[1]]);
    }

    #[test]
    fn one_frame_cannot_become_arbitrarily_many() {
        let (frame, hdr) = Sample::tcp4(MAX_SEGMENTS + 1, 1).frame();
        assert_eq!(refusal(&frame, &hdr), BadOffload::TooManySegments(MAX_SEGMENTS + 1));
        assert_eq!(Sample::tcp4(MAX_SEGMENTS, 1).segments().len(), MAX_SEGMENTS);
    }

    #[test]
    fn a_segment_fits_an_ip_packet() {
        let (mut frame, hdr) = Sample::tcp4(60_000, 65_535).frame();
        frame.resize(54 + 65_535 - 40, 0);
        segment(&frame, &hdr, &mut |_: &[u8], _: &[u8]| ()).unwrap();
        frame.push(0);
        assert_eq!(refusal(&frame, &hdr), BadOffload::SegmentTooLong(65_535));
    }

    #[test]
    fn frames_that_are_not_what_the_header_says_are_refused() {
        let (frame, hdr) = Sample::tcp4(300, 100).frame();
        let with = |at: usize, value: u8| {
            let mut f = frame.clone();
            f[at] = value;
            refusal(&f, &hdr).to_string()
        };
        assert!(with(12, 0x12).contains("neither IPv4 nor IPv6"));
        assert!(with(14, 0x46).contains("no IPv4 header that ends at csum_start"));
        assert!(with(14, 0x65).contains("no IPv4 header that ends at csum_start"));
        assert!(with(20, 0x20).contains("an IPv4 fragment"));
        assert!(with(21, 0x01).contains("an IPv4 fragment"));
        assert!(with(23, 17).contains("another IP version or protocol"));
        assert!(with(34 + 12, 0x40).contains("less than 20 bytes"));
        let six = NetHeader { gso_type: GSO_TCPV6, ..hdr };
        assert!(refusal(&frame, &six).to_string().contains("another IP version"));
        assert!(refusal(&frame[..54 - 2], &hdr).to_string().contains("ends in its L4 header"));
        assert!(matches!(refusal(&frame, &NetHeader { gso_type: 0, ..hdr }), BadOffload::Mismatch(_)));
    }

    #[test]
    fn ipv6_extension_headers_are_walked_to_csum_start() {
        let s = Sample { ipv6: true, ip_options: 2, ..Sample::tcp4(300, 100) };
        let (frame, hdr) = s.frame();
        let with = |at: usize, value: u8| {
            let mut f = frame.clone();
            f[at] = value;
            refusal(&f, &hdr).to_string()
        };
        assert!(with(14 + 6, 44).contains("an IPv6 fragment"));
        assert!(with(14 + 6, 59).contains("no IPv6 headers"));
        assert!(with(14 + 41, 2).contains("no IPv6 headers"));
        assert!(with(14 + 48, 50).contains("another IP version or protocol"));
        let long = Sample { ip_options: 30, ..s };
        let (frame, hdr) = long.frame();
        assert_eq!(refusal(&frame, &hdr), BadOffload::HeadersTooLong(14 + 40 + 240 + 20));
    }
}
