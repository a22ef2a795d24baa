//! Ethernet frames made by hand, to steer what no ordinary program sends, and the hash that says where they go.

use std::net::{IpAddr, SocketAddr};

/// MAC address of the sender unless told otherwise; locally administered.
const SOURCE_MAC: [u8; 6] = [0x02, 0xf1, 0, 0, 0, 1];
const VLAN: u16 = 0x8100;
const QINQ: u16 = 0x88a8;
const UDP: u8 = 17;
const TCP: u8 = 6;
const FRAGMENT_HEADER: u8 = 44;
const HOP_BY_HOP: u8 = 0;

/// Frames of a UDP or TCP packet between two addresses of one family.
#[derive(Debug, Clone)]
pub struct Packet {
    source: SocketAddr,
    destination: SocketAddr,
    destination_mac: [u8; 6],
    protocol: u8,
    tags: Vec<(u16, u16)>,
    options: bool,
    fragment: Option<(u16, bool)>,
    payload: usize,
}

impl Packet {
    /// A UDP packet from `source` to `destination`, such as `192.0.2.1:1000` or `[2001:db8::1]:1000`, to a MAC address
    /// that is nobody's.
    ///
    /// # Panics
    /// When these are no socket addresses of one family.
    #[track_caller]
    pub fn udp(source: &str, destination: &str) -> Packet {
        let parse = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text:?} is no socket address"));
        let (source, destination): (SocketAddr, SocketAddr) = (parse(source), parse(destination));
        assert_eq!(source.is_ipv4(), destination.is_ipv4(), "{source} and {destination} differ in family");
        Packet {
            source,
            destination,
            destination_mac: [0x02, 0xf1, 0, 0, 0, 2],
            protocol: UDP,
            tags: Vec::new(),
            options: false,
            fragment: None,
            payload: 32,
        }
    }

    /// As [`Packet::udp`], for TCP.
    ///
    /// # Panics
    /// As [`Packet::udp`].
    #[track_caller]
    pub fn tcp(source: &str, destination: &str) -> Packet {
        Packet { protocol: TCP, ..Packet::udp(source, destination) }
    }

    /// Sends to this MAC address, such as `52:54:00:00:00:01`.
    ///
    /// # Panics
    /// When it is none.
    #[track_caller]
    pub fn to_mac(self, mac: &str) -> Packet {
        let bytes: Option<Vec<u8>> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        let destination_mac = bytes.and_then(|bytes| bytes.try_into().ok());
        Packet {
            destination_mac: destination_mac.unwrap_or_else(|| panic!("{mac:?} is no MAC address")),
            ..self
        }
    }

    /// Puts an 802.1Q tag in front of what is there.
    pub fn vlan(mut self, id: u16) -> Packet {
        self.tags.insert(0, (VLAN, id));
        self
    }

    /// Puts an 802.1ad service tag in front of what is there.
    pub fn service_vlan(mut self, id: u16) -> Packet {
        self.tags.insert(0, (QINQ, id));
        self
    }

    /// Adds IPv4 options or an IPv6 hop-by-hop header: 8 bytes of padding.
    pub fn options(self) -> Packet {
        Packet { options: true, ..self }
    }

    /// Makes it the fragment that starts at `offset`, in units of 8 bytes. Only the one at 0 has ports.
    pub fn fragment(self, offset: u16, more: bool) -> Packet {
        Packet { fragment: Some((offset, more)), ..self }
    }

    /// Length of the payload.
    pub fn payload(self, payload: usize) -> Packet {
        Packet { payload, ..self }
    }

    /// With these ports instead.
    pub fn ports(mut self, source: u16, destination: u16) -> Packet {
        self.source.set_port(source);
        self.destination.set_port(destination);
        self
    }

    /// The bytes on the wire, without frame check sequence. Checksums are right.
    pub fn build(&self) -> Vec<u8> {
        let mut frame = [self.destination_mac, SOURCE_MAC].concat();
        for (kind, id) in &self.tags {
            frame.extend(kind.to_be_bytes());
            frame.extend(id.to_be_bytes());
        }
        let transport = match self.fragment {
            Some((1.., _)) => vec![0xa5; self.payload],
            _ => self.transport(),
        };
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend(0x0800u16.to_be_bytes());
                frame.extend(self.ipv4_header(source.octets(), destination.octets(), transport.len()));
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend(0x86ddu16.to_be_bytes());
                frame.extend(self.ipv6_headers(source.octets(), destination.octets(), transport.len()));
            }
            _ => unreachable!("addresses of one family, by construction"),
        }
        frame.extend(transport);
        // Ethernet's shortest frame.
        frame.resize(frame.len().max(60), 0);
        frame
    }

    fn transport(&self) -> Vec<u8> {
        let mut segment = Vec::new();
        segment.extend(self.source.port().to_be_bytes());
        segment.extend(self.destination.port().to_be_bytes());
        let checksum_at = if self.protocol == UDP {
            segment.extend((8 + self.payload as u16).to_be_bytes());
            6
        } else {
            // Sequence and acknowledgement, five words of header with ACK set, the window.
            segment.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff]);
            16
        };
        segment.extend(vec![0; if self.protocol == UDP { 2 } else { 4 }]);
        segment.extend(vec![0x5a; self.payload]);
        let mut pseudo = addresses(&self.source.ip(), &self.destination.ip());
        pseudo.extend((segment.len() as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, self.protocol]);
        pseudo.extend(&segment);
        segment[checksum_at..checksum_at + 2].copy_from_slice(&checksum(&pseudo).to_be_bytes());
        segment
    }

    fn ipv4_header(&self, source: [u8; 4], destination: [u8; 4], rest: usize) -> Vec<u8> {
        let options: &[u8] = if self.options { &[1, 1, 1, 1, 1, 1, 1, 0] } else { &[] };
        let length = 20 + options.len();
        let (offset, more) = self.fragment.unwrap_or_default();
        let mut header = vec![0x40 | (length / 4) as u8, 0];
        header.extend(((length + rest) as u16).to_be_bytes());
        header.extend(0x1234u16.to_be_bytes());
        header.extend((offset | u16::from(more) << 13).to_be_bytes());
        header.extend([64, self.protocol, 0, 0]);
        header.extend(source);
        header.extend(destination);
        header.extend(options);
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn ipv6_headers(&self, source: [u8; 16], destination: [u8; 16], rest: usize) -> Vec<u8> {
        let mut extensions = Vec::new();
        let mut next = self.protocol;
        if let Some((offset, more)) = self.fragment {
            extensions =
                [vec![next, 0], (offset << 3 | u16::from(more)).to_be_bytes().to_vec(), vec![0, 0, 0, 1]]
                    .concat();
            next = FRAGMENT_HEADER;
        }
        if self.options {
            // Next header, length, and a padding option over the other six bytes.
            extensions = [vec![next, 0, 1, 4, 0, 0, 0, 0], extensions].concat();
            next = HOP_BY_HOP;
        }
        let mut header = vec![0x60, 0, 0, 0];
        header.extend(((extensions.len() + rest) as u16).to_be_bytes());
        header.extend([next, 64]);
        header.extend(source);
        header.extend(destination);
        header.extend(extensions);
        header
    }

    /// The Toeplitz hash with the standard key, over addresses and ports, or addresses alone for fragments.
    pub fn hash(&self) -> u32 {
        let mut input = addresses(&self.source.ip(), &self.destination.ip());
        if self.fragment.is_none() {
            input.extend(self.source.port().to_be_bytes());
            input.extend(self.destination.port().to_be_bytes());
        }
        toeplitz(&KEY, &input)
    }

    /// Queue that RSS picks with a table of 128 entries that goes round over `queues`.
    pub fn rss_queue(&self, queues: usize) -> usize {
        self.hash() as usize % 128 % queues
    }
}

fn addresses(source: &IpAddr, destination: &IpAddr) -> Vec<u8> {
    let bytes = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    [bytes(source), bytes(destination)].concat()
}

/// The internet checksum (RFC 1071), never 0 for the sake of UDP.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !(sum as u16) {
        0 => 0xffff,
        sum => sum,
    }
}

/// The key that the hash's published test vectors use.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// For each bit of the input that is set, the 32 bits of the key that start at its place.
fn toeplitz(key: &[u8; 40], input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1 == 1;
    let window = |at: usize| (at..at + 32).fold(0, |word: u32, place| word << 1 | u32::from(bit(key, place)));
    (0..input.len() * 8).filter(|at| bit(input, *at)).fold(0, |hash, at| hash ^ window(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_gives_the_published_values() {
        let vectors = [
            ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178, 0x323e_8fc2),
            ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea, 0xd718_262a),
            ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x4020_7d3d, 0x2cc1_8cd5),
        ];
        for (source, destination, with_ports, without) in vectors {
            let packet = Packet::tcp(source, destination);
            assert_eq!(packet.hash(), with_ports, "{source}");
            assert_eq!(packet.fragment(0, true).hash(), without, "{source}");
        }
    }

    #[test]
    fn checksums_cancel_out() {
        let packet = Packet::udp("192.0.2.1:1000", "192.0.2.2:2000").payload(31).options();
        let frame = packet.build();
        assert_eq!(frame[14], 0x47);
        assert_eq!(checksum(&frame[14..14 + 28]), 0xffff);
        let segment = packet.transport();
        let pseudo =
            [addresses(&packet.source.ip(), &packet.destination.ip()), vec![0, UDP, 0, segment.len() as u8]];
        assert_eq!(checksum(&[pseudo.concat(), segment].concat()), 0xffff);
    }

    #[test]
    fn headers_chain_in_their_order() {
        let packet = Packet::udp("[2001:db8::1]:1", "[2001:db8::2]:2").options().fragment(2, false);
        let frame = packet.vlan(5).service_vlan(7).build();
        assert_eq!(frame[12..22], [0x88, 0xa8, 0, 7, 0x81, 0, 0, 5, 0x86, 0xdd]);
        assert_eq!((frame[28], frame[62], frame[70]), (HOP_BY_HOP, FRAGMENT_HEADER, UDP));
        assert_eq!(frame[72..74], [0, 2 << 3]);
    }
}
