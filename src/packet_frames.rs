//! Frames for tests.

use std::net::IpAddr;

use super::*;
use crate::virtio::MacAddr;

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
