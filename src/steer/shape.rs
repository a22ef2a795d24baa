//! What of a packet is hashed where that is not all of it as it is: users of a NIC may leave out addresses or ports of a
//! flow type, or want both directions of a flow to hash alike. The specification knows neither, so these are bits of
//! `hash_types` that it does not use (`docs/guest-abi.md`).
//!
//! What is left out counts as zero. What is symmetric is computed after that: [`SYM_XOR`] hashes source ^ destination in both
//! places, [`SYM_OR_XOR`] source | destination and source ^ destination.

use crate::packet::L3;

/// Source and destination are replaced by their XOR, twice.
pub(super) const SYM_XOR: u32 = 1 << 9;
/// The source is replaced by the OR of both, the destination by their XOR.
pub(super) const SYM_OR_XOR: u32 = 1 << 10;
/// Where the fields that are left out are: four bits for each [`Flow`], [`SOURCE`] and so on.
const LEFT_OUT_SHIFT: u32 = 16;
/// The source address is left out.
pub(super) const SOURCE: u32 = 1 << 0;
/// The destination address is left out.
pub(super) const DESTINATION: u32 = 1 << 1;
/// The source port is left out.
pub(super) const SOURCE_PORT: u32 = 1 << 2;
/// The destination port is left out.
pub(super) const DESTINATION_PORT: u32 = 1 << 3;
/// All bits that say something here.
pub(super) const SHAPES: u32 = SYM_XOR | SYM_OR_XOR | 0xffff << LEFT_OUT_SHIFT;

/// Flow types that fields can be left out of, in the order of their bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Flow {
    /// TCP over IPv4.
    TcpV4,
    /// UDP over IPv4.
    UdpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over IPv6.
    UdpV6,
}

impl Flow {
    /// What is left out of it.
    pub(super) fn left_out(self, types: u32) -> u32 {
        types >> (LEFT_OUT_SHIFT + 4 * self as u32) & 0xf
    }

    /// The bits that leave these fields out of it.
    #[cfg(test)]
    pub(super) fn leave_out(self, fields: u32) -> u32 {
        (fields & 0xf) << (LEFT_OUT_SHIFT + 4 * self as u32)
    }
}

/// Whether `types` can be: at most one way to be symmetric.
pub(super) fn possible(types: u32) -> bool {
    types & (SYM_XOR | SYM_OR_XOR) != SYM_XOR | SYM_OR_XOR
}

/// The addresses and ports to hash, packed as they were; `left_out` of them is.
#[inline(never)]
pub(super) fn shape(
    types: u32,
    left_out: u32,
    l3: L3,
    addr: &[u64; 4],
    ports: (u16, u16),
) -> ([u64; 4], (u16, u16)) {
    let keep = |bit: u32| if left_out & bit == 0 { u64::MAX } else { 0 };
    let (mut source, mut destination) = if l3 == L3::V6 {
        ([addr[0], addr[1]], [addr[2], addr[3]])
    } else {
        ([addr[0] >> 32, 0], [addr[0] & u64::from(u32::MAX), 0])
    };
    source = source.map(|word| word & keep(SOURCE));
    destination = destination.map(|word| word & keep(DESTINATION));
    let ports = [u64::from(ports.0) & keep(SOURCE_PORT), u64::from(ports.1) & keep(DESTINATION_PORT)];

    let (first, first_port) = pair(types, source[0], destination[0], ports);
    let second = symmetric(types, source[1], destination[1]);
    let addr = if l3 == L3::V6 {
        [first.0, second.0, first.1, second.1]
    } else {
        [first.0 << 32 | first.1, 0, 0, 0]
    };
    (addr, (first_port.0 as u16, first_port.1 as u16))
}

fn pair(types: u32, source: u64, destination: u64, ports: [u64; 2]) -> ((u64, u64), (u64, u64)) {
    (symmetric(types, source, destination), symmetric(types, ports[0], ports[1]))
}

fn symmetric(types: u32, source: u64, destination: u64) -> (u64, u64) {
    match types & (SYM_XOR | SYM_OR_XOR) {
        SYM_XOR => (source ^ destination, source ^ destination),
        SYM_OR_XOR => (source | destination, source ^ destination),
        _ => (source, destination),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::frames::{Frame, tcp4};
    use crate::packet::{PROTO_TCP, PROTO_UDP};
    use crate::steer::rss::{RssKey, Toeplitz, hash_type};

    fn hash(types: u32, frame: &Frame) -> (u32, bool) {
        let (hash, report) = Toeplitz::new(&RssKey::default()).hash(types, &frame.headers()).expect("a hash");
        (hash, report.has_ports())
    }

    const FLOWS: [(Flow, &str, &str, u8); 4] = [
        (Flow::TcpV4, "192.0.2.1", "192.0.2.200", PROTO_TCP),
        (Flow::UdpV4, "192.0.2.1", "192.0.2.200", PROTO_UDP),
        (Flow::TcpV6, "2001:db8::1", "2001:db8:0:1::2", PROTO_TCP),
        (Flow::UdpV6, "2001:db8::1", "2001:db8:0:1::2", PROTO_UDP),
    ];

    #[test]
    fn what_is_left_out_counts_as_zero_for_its_flow_type_only() {
        for (flow, source, destination, protocol) in FLOWS {
            let frame = Frame::new(source, destination, protocol, (1000, 2000));
            let zero = if source.contains(':') { "::" } else { "0.0.0.0" };
            let cases = [
                (SOURCE, Frame::new(zero, destination, protocol, (1000, 2000))),
                (DESTINATION, Frame::new(source, zero, protocol, (1000, 2000))),
                (SOURCE_PORT, Frame::new(source, destination, protocol, (0, 2000))),
                (DESTINATION_PORT, Frame::new(source, destination, protocol, (1000, 0))),
                (SOURCE | DESTINATION_PORT, Frame::new(zero, destination, protocol, (1000, 0))),
            ];
            for (fields, without) in cases {
                let types = hash_type::SUPPORTED | flow.leave_out(fields);
                assert_eq!(hash(types, &frame), hash(hash_type::SUPPORTED, &without), "{flow:?} {fields:x}");
                for (other, source, destination, protocol) in FLOWS {
                    let frame = Frame::new(source, destination, protocol, (1000, 2000));
                    let changed = hash(types, &frame) != hash(hash_type::SUPPORTED, &frame);
                    assert_eq!(changed, other == flow, "{other:?} with {flow:?} {fields:x}");
                }
            }
            // Without any port, it is no hash over ports.
            let types = hash_type::SUPPORTED | flow.leave_out(SOURCE_PORT | DESTINATION_PORT);
            assert_eq!(hash(types, &frame), (hash(hash_type::IPV4 | hash_type::IPV6, &frame).0, false));
        }
    }

    #[test]
    fn both_directions_hash_alike_where_symmetric() {
        for (_, source, destination, protocol) in FLOWS {
            let there = Frame::new(source, destination, protocol, (1000, 2000));
            let back = Frame::new(destination, source, protocol, (2000, 1000));
            let other = Frame::new(source, destination, protocol, (1000, 2001));
            for symmetric in [SYM_XOR, SYM_OR_XOR] {
                let types = hash_type::SUPPORTED | symmetric;
                assert_eq!(hash(types, &there), hash(types, &back));
                assert_ne!(hash(types, &there), hash(types, &other));
            }
            assert_ne!(hash(hash_type::SUPPORTED, &there), hash(hash_type::SUPPORTED, &back));
        }
        let same = Frame::new("192.0.2.1", "192.0.2.1", PROTO_TCP, (7, 7));
        let nothing = Frame::new("0.0.0.0", "0.0.0.0", PROTO_TCP, (0, 0));
        let xor = hash_type::SUPPORTED | SYM_XOR;
        assert_eq!(hash(xor, &same), hash(xor, &nothing), "x ^ x is 0");
        assert_ne!(hash(hash_type::SUPPORTED | SYM_OR_XOR, &same), hash(xor, &nothing));
        assert!(possible(SYM_XOR) && possible(SHAPES & !SYM_XOR) && !possible(SYM_XOR | SYM_OR_XOR));
        assert_eq!(Flow::UdpV6.left_out(Flow::UdpV6.leave_out(5) | Flow::TcpV4.leave_out(2)), 5);
        assert!(tcp4().headers().ports().is_some());
    }
}
