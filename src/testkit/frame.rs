//! Builders of Ethernet frames with correct checksums. [`verify`] takes them apart again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use super::verify::{Parsed, verify};
use crate::virtio::MacAddr;

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of a VLAN tag (802.1Q).
pub const VLAN: u16 = 0x8100;
/// EtherType of an outer VLAN tag (802.1ad).
pub const QINQ: u16 = 0x88a8;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;

/// A frame in the making: layers are added from the outside in, then [`FrameBuilder::build`].
#[derive(Debug, Clone)]
pub struct FrameBuilder {
    dst: MacAddr,
    src: MacAddr,
    tags: Vec<(u16, u16)>,
    net: Net,
    v4_options: Vec<u8>,
    v6_extensions: Vec<(u8, Vec<u8>)>,
    /// Fragment offset in units of 8 bytes, and whether more follow.
    fragment: Option<(u16, bool)>,
    transport: Transport,
    payload: Vec<u8>,
    partial: bool,
}

#[derive(Debug, Clone)]
enum Net {
    Raw(u16),
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

#[derive(Debug, Clone)]
enum Transport {
    None(u8),
    Udp(u16, u16),
    Tcp { ports: (u16, u16), seq: u32, flags: u8 },
}

/// A station of the tests: 02:00:00:00:00:NN.
pub fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n])
}

/// A frame from station 1 to station 2 with no network layer yet.
pub fn frame() -> FrameBuilder {
    FrameBuilder {
        dst: mac(2),
        src: mac(1),
        tags: Vec::new(),
        net: Net::Raw(0x88b5),
        v4_options: Vec::new(),
        v6_extensions: Vec::new(),
        fragment: None,
        transport: Transport::None(253),
        payload: Vec::new(),
        partial: false,
    }
}

/// A UDP datagram between two addresses of one family, `"10.0.0.1:1000"`, with `len` counting bytes as payload.
pub fn udp(src: &str, dst: &str, len: usize) -> Vec<u8> {
    let (src, dst) = (socket(src), socket(dst));
    frame().ip(src.ip(), dst.ip()).udp(src.port(), dst.port()).payload(&pattern(len)).build()
}

/// The same over TCP.
pub fn tcp(src: &str, dst: &str, len: usize) -> Vec<u8> {
    let (src, dst) = (socket(src), socket(dst));
    frame().ip(src.ip(), dst.ip()).tcp(src.port(), dst.port()).payload(&pattern(len)).build()
}

fn socket(text: &str) -> std::net::SocketAddr {
    text.parse()
        .unwrap_or_else(|_| panic!("'{text}' is no socket address; write 10.0.0.1:80 or [fd00::1]:80"))
}

/// Bytes that differ at every offset and every length.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256 + len) as u8).collect()
}

/// An ARP request.
pub fn arp(sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut payload = vec![0, 1, 8, 0, 6, 4, 0, 1];
    payload.extend(mac(1).0);
    payload.extend(sender.octets());
    payload.extend([0; 6]);
    payload.extend(target.octets());
    frame().to(MacAddr([0xff; 6])).ether_type(ARP).payload(&payload).build()
}

impl FrameBuilder {
    /// Destination.
    pub fn to(mut self, dst: MacAddr) -> Self {
        self.dst = dst;
        self
    }

    /// Source.
    pub fn from(mut self, src: MacAddr) -> Self {
        self.src = src;
        self
    }

    /// One more VLAN tag inside those before it: EtherType of the tag and its 16 bits.
    pub fn tag(mut self, tpid: u16, tci: u16) -> Self {
        self.tags.push((tpid, tci));
        self
    }

    /// An 802.1Q tag.
    pub fn vlan(self, id: u16) -> Self {
        self.tag(VLAN, id)
    }

    /// No IP: this EtherType with the payload right behind.
    pub fn ether_type(mut self, ether_type: u16) -> Self {
        self.net = Net::Raw(ether_type);
        self
    }

    /// IPv4 or IPv6.
    ///
    /// # Panics
    /// When the addresses are of two families.
    pub fn ip(mut self, src: IpAddr, dst: IpAddr) -> Self {
        self.net = match (src, dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => Net::V4(s, d),
            (IpAddr::V6(s), IpAddr::V6(d)) => Net::V6(s, d),
            _ => panic!("{src} and {dst} are of two families"),
        };
        self
    }

    /// IPv4 options, a multiple of 4 bytes, at most 40.
    pub fn options(mut self, options: &[u8]) -> Self {
        assert!(
            options.len().is_multiple_of(4) && options.len() <= 40,
            "options fill whole words, 40 bytes at most"
        );
        self.v4_options = options.to_vec();
        self
    }

    /// One more IPv6 extension header: its protocol number and its body without the first two bytes, of
    /// 8n + 6 bytes.
    pub fn extension(mut self, number: u8, body: &[u8]) -> Self {
        assert!(body.len() % 8 == 6, "an extension header is a multiple of 8 bytes with its first two");
        self.v6_extensions.push((number, body.to_vec()));
        self
    }

    /// A fragment: offset in units of 8 bytes, and whether more follow. A later fragment has no transport header.
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        self.fragment = Some((offset, more));
        self
    }

    /// No transport that anybody parses: this protocol number with the payload right behind.
    pub fn protocol(mut self, number: u8) -> Self {
        self.transport = Transport::None(number);
        self
    }

    /// UDP ports.
    pub fn udp(mut self, src: u16, dst: u16) -> Self {
        self.transport = Transport::Udp(src, dst);
        self
    }

    /// TCP ports; a bare ACK unless [`FrameBuilder::tcp_flags`] says otherwise.
    pub fn tcp(mut self, src: u16, dst: u16) -> Self {
        self.transport = Transport::Tcp { ports: (src, dst), seq: 1000, flags: 0x10 };
        self
    }

    /// TCP flags (0x02 SYN, 0x08 PSH, 0x10 ACK, 0x80 CWR).
    pub fn tcp_flags(mut self, new: u8) -> Self {
        if let Transport::Tcp { flags, .. } = &mut self.transport {
            *flags = new;
        }
        self
    }

    /// What the innermost header carries.
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// Leaves the sum of the pseudo header in the checksum field, as a driver with checksum offload does.
    pub fn partial_checksum(mut self) -> Self {
        self.partial = true;
        self
    }

    /// The frame, without padding: give a payload that makes it long enough where that matters.
    pub fn build(&self) -> Vec<u8> {
        let mut out = [self.dst.0, self.src.0].concat();
        for (tpid, tci) in &self.tags {
            out.extend(tpid.to_be_bytes());
            out.extend(tci.to_be_bytes());
        }
        match self.net {
            Net::Raw(ether_type) => {
                out.extend(ether_type.to_be_bytes());
                out.extend(&self.payload);
            }
            Net::V4(src, dst) => {
                out.extend(IPV4.to_be_bytes());
                out.extend(self.ipv4(src, dst));
            }
            Net::V6(src, dst) => {
                out.extend(IPV6.to_be_bytes());
                out.extend(self.ipv6(src, dst));
            }
        }
        out
    }

    /// Where the transport header starts, from the start of the frame: `csum_start` of a partial checksum.
    pub fn transport_start(&self) -> u16 {
        let link = 14 + 4 * self.tags.len();
        let net = match self.net {
            Net::Raw(_) => 0,
            Net::V4(..) => 20 + self.v4_options.len(),
            Net::V6(..) => 40 + self.extension_bytes().0.len(),
        };
        (link + net) as u16
    }

    fn ipv4(&self, src: Ipv4Addr, dst: Ipv4Addr) -> Vec<u8> {
        let body = self.transport_bytes(&pseudo_v4(src, dst));
        let header_len = 20 + self.v4_options.len();
        let (offset, more) = self.fragment.unwrap_or((0, false));
        let mut h = vec![0x40 | (header_len / 4) as u8, 0];
        h.extend(((header_len + body.len()) as u16).to_be_bytes());
        h.extend([0x12, 0x34]);
        h.extend((offset | if more { 0x2000 } else { 0 }).to_be_bytes());
        h.extend([64, self.number(), 0, 0]);
        h.extend(src.octets());
        h.extend(dst.octets());
        h.extend(&self.v4_options);
        let sum = checksum(&[&h]);
        h[10..12].copy_from_slice(&sum.to_be_bytes());
        h.extend(body);
        h
    }

    fn ipv6(&self, src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
        let (extensions, first) = self.extension_bytes();
        let body = self.transport_bytes(&pseudo_v6(src, dst));
        let mut h = vec![0x60, 0, 0, 0];
        h.extend(((extensions.len() + body.len()) as u16).to_be_bytes());
        h.extend([first, 64]);
        h.extend(src.octets());
        h.extend(dst.octets());
        h.extend(extensions);
        h.extend(body);
        h
    }

    /// All extension headers, and the number that names the first of what follows the fixed header.
    fn extension_bytes(&self) -> (Vec<u8>, u8) {
        let mut all = self.v6_extensions.clone();
        if let Some((offset, more)) = self.fragment {
            let field = (offset << 3 | u16::from(more)).to_be_bytes();
            all.push((44, vec![field[0], field[1], 0, 0, 0x12, 0x34]));
        }
        let mut bytes = Vec::new();
        for (i, (number, body)) in all.iter().enumerate() {
            let next = all.get(i + 1).map_or(self.number(), |e| e.0);
            // The fragment header keeps a reserved byte where others have their length.
            let len = if *number == 44 { 0 } else { (body.len() + 2) / 8 - 1 };
            bytes.extend([next, len as u8]);
            bytes.extend(body);
        }
        (bytes, all.first().map_or(self.number(), |e| e.0))
    }

    fn number(&self) -> u8 {
        match self.transport {
            Transport::None(number) => number,
            Transport::Udp(..) => UDP,
            Transport::Tcp { .. } => TCP,
        }
    }

    fn transport_bytes(&self, pseudo: &dyn Fn(u8, usize) -> Vec<u8>) -> Vec<u8> {
        let (mut h, at) = match self.transport {
            // Only the first fragment carries the transport header.
            _ if self.fragment.is_some_and(|f| f.0 > 0) => return self.payload.clone(),
            Transport::None(_) => return self.payload.clone(),
            Transport::Udp(src, dst) => {
                let mut h = [src.to_be_bytes(), dst.to_be_bytes()].concat();
                h.extend(((8 + self.payload.len()) as u16).to_be_bytes());
                h.extend([0, 0]);
                (h, 6)
            }
            Transport::Tcp { ports: (src, dst), seq, flags } => {
                let mut h = [src.to_be_bytes(), dst.to_be_bytes()].concat();
                h.extend(seq.to_be_bytes());
                h.extend(1u32.to_be_bytes());
                h.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
                (h, 16)
            }
        };
        h.extend(&self.payload);
        let pseudo = pseudo(self.number(), h.len());
        let sum = if self.partial {
            !checksum(&[&pseudo])
        } else {
            match checksum(&[&pseudo, &h]) {
                // RFC 768: a computed zero is sent as all ones.
                0 if self.number() == UDP => 0xffff,
                sum => sum,
            }
        };
        h[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        h
    }
}

pub(super) fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr) -> impl Fn(u8, usize) -> Vec<u8> {
    move |number, len| {
        let mut p = [src.octets(), dst.octets()].concat();
        p.extend([0, number]);
        p.extend((len as u16).to_be_bytes());
        p
    }
}

pub(super) fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr) -> impl Fn(u8, usize) -> Vec<u8> {
    move |number, len| {
        let mut p = [src.octets(), dst.octets()].concat();
        p.extend((len as u32).to_be_bytes());
        p.extend([0, 0, 0, number]);
        p
    }
}

/// The Internet checksum (RFC 1071) over the parts as one run of bytes; all but the last of even length.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|p| p.chunks(2));
    let mut sum: u64 = words.map(|w| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
