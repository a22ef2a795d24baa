//! The RSS hash in the header of a received frame (`docs/guest-abi.md`, "Hash in the header").

use crate::virtio::{GSO_NONE, HDR_F_HASH, HDR_F_HASH_PORTS, HDR_F_NEEDS_CSUM, NetHeader};

/// The RSS hash of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxHash {
    /// The Toeplitz hash.
    pub value: u32,
    /// It covers ports, not addresses alone.
    pub ports: bool,
}

impl RxHash {
    /// Puts the hash into a header that a receiver gets, if it has fields to spare.
    pub fn put_into(self, hdr: NetHeader) -> NetHeader {
        let (low, high) = (self.value as u16, (self.value >> 16) as u16);
        let flags = hdr.flags | HDR_F_HASH | if self.ports { HDR_F_HASH_PORTS } else { 0 };
        match (hdr.flags & HDR_F_NEEDS_CSUM != 0, hdr.gso_type) {
            (false, GSO_NONE) => NetHeader { flags, csum_start: low, csum_offset: high, ..hdr },
            (true, GSO_NONE) => NetHeader { flags, hdr_len: low, gso_size: high, ..hdr },
            _ => hdr,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::{GSO_TCPV4, HDR_F_DATA_VALID};

    #[test]
    fn the_hash_is_where_the_header_has_room() {
        let hash = RxHash { value: 0x1234_5678, ports: true };
        let plain = NetHeader { flags: HDR_F_DATA_VALID, num_buffers: 1, ..NetHeader::default() };
        let expected = NetHeader { flags: 0xc2, csum_start: 0x5678, csum_offset: 0x1234, ..plain };
        assert_eq!(hash.put_into(plain), expected);
        let partial = NetHeader { flags: HDR_F_NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..plain };
        let expected = NetHeader { flags: 0x81, hdr_len: 0x5678, gso_size: 0x1234, ..partial };
        assert_eq!(RxHash { ports: false, ..hash }.put_into(partial), expected);
        let large = NetHeader { gso_type: GSO_TCPV4, gso_size: 1448, hdr_len: 54, ..partial };
        assert_eq!(hash.put_into(large), large);
    }
}
