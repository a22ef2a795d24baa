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
        .prop_map(|((tags, ipv6, tcp, ip_options, tcp_options), (flags, id, seq), payload, gso_size)| {
            Sample {
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
            }
        })
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
    let segments = Sample { flags: 0x10 | TCP_CWR | TCP_FIN | TCP_PSH, ..Sample::tcp4(300, 100) }.segments();
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
