//! The flow of a packet, in the form that tables hash.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::L3;

/// The 5-tuple of a TCP or UDP packet, packed for hashing.
///
/// IPv4: `addr[0]` holds source (high half) and destination, the others are 0. IPv6: source in `addr[0..2]`, destination
/// in `addr[2..4]`. `rest` holds, from the top, source port, destination port (16 bits each), 16 zero bits, protocol and
/// IP version (8 bits each).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    pub(crate) addr: [u64; 4],
    pub(crate) rest: u64,
}

impl FlowKey {
    /// From addresses that are packed already.
    #[inline]
    pub(super) fn packed(addr: [u64; 4], ports: (u16, u16), protocol: u8, l3: L3) -> Self {
        let rest = u64::from(ports.0) << 48 | u64::from(ports.1) << 32 | u64::from(protocol) << 8 | l3 as u64;
        Self { addr, rest }
    }

    /// A flow from its parts; `None` if the addresses are of different families.
    pub fn new(src: IpAddr, dst: IpAddr, protocol: u8, ports: (u16, u16)) -> Option<Self> {
        let (addr, l3) = match (src, dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                ([u64::from(s.to_bits()) << 32 | u64::from(d.to_bits()), 0, 0, 0], L3::V4)
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                let ([a, b], [c, d]) = (halves(s), halves(d));
                ([a, b, c, d], L3::V6)
            }
            _ => return None,
        };
        Some(Self::packed(addr, ports, protocol, l3))
    }

    /// The flow of the answers: source and destination exchanged.
    #[inline]
    pub fn reversed(&self) -> Self {
        let [a, b, c, d] = self.addr;
        let addr = if self.is_v6() { [c, d, a, b] } else { [a.rotate_left(32), 0, 0, 0] };
        let ports = ((self.rest >> 32) as u32).rotate_left(16);
        Self { addr, rest: u64::from(ports) << 32 | self.rest & 0xffff_ffff }
    }

    /// Source address.
    pub fn src(&self) -> IpAddr {
        if self.is_v6() { v6(self.addr[0], self.addr[1]) } else { v4((self.addr[0] >> 32) as u32) }
    }

    /// Destination address.
    pub fn dst(&self) -> IpAddr {
        if self.is_v6() { v6(self.addr[2], self.addr[3]) } else { v4(self.addr[0] as u32) }
    }

    /// Source and destination port.
    pub fn ports(&self) -> (u16, u16) {
        ((self.rest >> 48) as u16, (self.rest >> 32) as u16)
    }

    /// IP protocol: TCP or UDP.
    pub fn protocol(&self) -> u8 {
        (self.rest >> 8) as u8
    }

    #[inline]
    fn is_v6(&self) -> bool {
        self.rest as u8 == L3::V6 as u8
    }
}

fn halves(a: Ipv6Addr) -> [u64; 2] {
    let bits = a.to_bits();
    [(bits >> 64) as u64, bits as u64]
}

pub(super) fn v4(bits: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(bits))
}

pub(super) fn v6(high: u64, low: u64) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)))
}
