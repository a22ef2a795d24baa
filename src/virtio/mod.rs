//! The virtio specification as types: feature bits, the network header, commands and what they are about.
//!
//! Section numbers are those of virtio 1.4 (committee specification 01).

pub mod admin;
pub mod channel;
pub mod ctrl;
pub mod flow;
pub mod statistics;
pub mod vendor;
pub mod wire;

use std::fmt;

/// A named feature bit of the network device (5.1.3) or of the transport (6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Bit number.
    pub bit: u8,
    /// The specification's name, in lower case and without its prefix: `mrg_rxbuf`.
    pub name: &'static str,
}

macro_rules! features {
    ($($konst:ident = $bit:literal, $name:literal;)*) => {
        $(#[doc = concat!("Feature bit ", $bit, ", `", $name, "`.")]
          pub const $konst: u64 = 1 << $bit;)*
        /// Every feature bit that has a name here, in ascending order.
        pub const FEATURES: &[Feature] = &[$(Feature { bit: $bit, name: $name }),*];
    };
}

features! {
    F_CSUM = 0, "csum";
    F_GUEST_CSUM = 1, "guest_csum";
    F_MTU = 3, "mtu";
    F_MAC = 5, "mac";
    F_GUEST_TSO4 = 7, "guest_tso4";
    F_GUEST_TSO6 = 8, "guest_tso6";
    F_GUEST_ECN = 9, "guest_ecn";
    F_HOST_TSO4 = 11, "host_tso4";
    F_HOST_TSO6 = 12, "host_tso6";
    F_HOST_ECN = 13, "host_ecn";
    F_MRG_RXBUF = 15, "mrg_rxbuf";
    F_STATUS = 16, "status";
    F_CTRL_VQ = 17, "ctrl_vq";
    F_CTRL_RX = 18, "ctrl_rx";
    F_CTRL_VLAN = 19, "ctrl_vlan";
    F_CTRL_RX_EXTRA = 20, "ctrl_rx_extra";
    F_GUEST_ANNOUNCE = 21, "guest_announce";
    F_MQ = 22, "mq";
    F_CTRL_MAC_ADDR = 23, "ctrl_mac_addr";
    F_LOG_ALL = 26, "log_all";
    F_ANY_LAYOUT = 27, "any_layout";
    F_INDIRECT_DESC = 28, "indirect_desc";
    F_EVENT_IDX = 29, "event_idx";
    F_PROTOCOL_FEATURES = 30, "protocol_features";
    F_VERSION_1 = 32, "version_1";
    F_RING_PACKED = 34, "ring_packed";
    F_IN_ORDER = 35, "in_order";
    F_DEVICE_STATS = 50, "device_stats";
    F_VQ_NOTF_COAL = 52, "vq_notf_coal";
    F_NOTF_COAL = 53, "notf_coal";
    F_GUEST_USO4 = 54, "guest_uso4";
    F_GUEST_USO6 = 55, "guest_uso6";
    F_HOST_USO = 56, "host_uso";
    F_HASH_REPORT = 57, "hash_report";
    F_RSS = 60, "rss";
}

/// The bit of a feature's name, or `None` for a name that nobody knows.
pub fn feature_by_name(name: &str) -> Option<u64> {
    FEATURES.iter().find(|f| f.name == name).map(|f| 1 << f.bit)
}

/// The names of all bits that are set; a bit without a name shows as `bit N`.
pub fn feature_names(bits: u64) -> Vec<String> {
    (0..64u8)
        .filter(|b| bits >> b & 1 == 1)
        .map(|b| match FEATURES.iter().find(|f| f.bit == b) {
            Some(f) => f.name.to_string(),
            None => format!("bit {b}"),
        })
        .collect()
}

/// `struct virtio_net_hdr_mrg_rxbuf` (5.1.6), the 12-byte form that every VERSION_1 device uses.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetHeader {
    /// `HDR_F_*` bits.
    pub flags: u8,
    /// `GSO_*`, perhaps with `GSO_ECN`.
    pub gso_type: u8,
    /// Length of the headers, a hint that nobody may rely upon.
    pub hdr_len: u16,
    /// Payload bytes in each segment.
    pub gso_size: u16,
    /// Where checksumming starts, from the start of the frame.
    pub csum_start: u16,
    /// Where the checksum is stored, from `csum_start`.
    pub csum_offset: u16,
    /// Number of receive buffers that the frame takes (written by the device).
    pub num_buffers: u16,
}

const _: () = assert!(size_of::<NetHeader>() == NetHeader::SIZE);

/// The checksum at `csum_start + csum_offset` is partial: it covers the pseudo header only.
pub const HDR_F_NEEDS_CSUM: u8 = 1;
/// The checksum has been verified.
pub const HDR_F_DATA_VALID: u8 = 2;
/// flownic's own: the frame's RSS hash is in fields that are unused otherwise, if the guest has asked for it.
pub const HDR_F_HASH: u8 = 0x80;
/// Beside [`HDR_F_HASH`]: the hash covers ports.
pub const HDR_F_HASH_PORTS: u8 = 0x40;
/// No segmentation.
pub const GSO_NONE: u8 = 0;
/// TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// UDP datagrams of `gso_size` bytes (USO), either IP version.
pub const GSO_UDP_L4: u8 = 5;
/// Or-ed in: the TCP segment has CWR set and only the first resulting one keeps it.
pub const GSO_ECN: u8 = 0x80;

impl NetHeader {
    /// Bytes on the ring.
    pub const SIZE: usize = 12;

    /// Decodes the little-endian wire form.
    #[inline]
    pub fn from_bytes(b: &[u8; Self::SIZE]) -> Self {
        let (low, high) = b.split_at(8);
        Self::from_words(
            u64::from_le_bytes(low.try_into().expect("8 bytes")),
            u32::from_le_bytes(high.try_into().expect("4 bytes")),
        )
    }

    /// Encodes to the little-endian wire form.
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let (low, high) = self.to_words();
        let mut b = [0; Self::SIZE];
        b[..8].copy_from_slice(&low.to_le_bytes());
        b[8..].copy_from_slice(&high.to_le_bytes());
        b
    }

    /// Decodes the first 8 and the last 4 bytes, each read as one little-endian number. Field by field would be a
    /// dozen accesses to memory, some of which the processor can't forward from the store before.
    #[inline]
    pub fn from_words(low: u64, high: u32) -> Self {
        NetHeader {
            flags: low as u8,
            gso_type: (low >> 8) as u8,
            hdr_len: (low >> 16) as u16,
            gso_size: (low >> 32) as u16,
            csum_start: (low >> 48) as u16,
            csum_offset: high as u16,
            num_buffers: (high >> 16) as u16,
        }
    }

    /// The opposite of [`from_words`](Self::from_words).
    #[inline]
    pub fn to_words(self) -> (u64, u32) {
        (
            u64::from(self.flags)
                | u64::from(self.gso_type) << 8
                | u64::from(self.hdr_len) << 16
                | u64::from(self.gso_size) << 32
                | u64::from(self.csum_start) << 48,
            u32::from(self.csum_offset) | u32::from(self.num_buffers) << 16,
        )
    }

    /// Whether the frame asks nothing of the receiver: no partial checksum, no segmentation.
    #[inline]
    pub fn is_plain(self) -> bool {
        self.flags & HDR_F_NEEDS_CSUM == 0 && self.gso_type & !GSO_ECN == GSO_NONE
    }
}

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Whether the group bit is set (multicast or broadcast).
    pub fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for MacAddr {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let mut mac = [0u8; 6];
        let parts: Vec<&str> = s.split(':').collect();
        let ok = parts.len() == 6
            && parts.iter().zip(&mut mac).all(|(p, m)| {
                p.len() <= 2 && u8::from_str_radix(p, 16).map(|v| *m = v).is_ok() && !p.starts_with('+')
            });
        if ok {
            Ok(MacAddr(mac))
        } else {
            Err(format!("'{s}' is no MAC address; write it as 02:00:00:00:00:01"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips_and_is_little_endian() {
        let h = NetHeader {
            flags: HDR_F_NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            hdr_len: 0x0102,
            gso_size: 0x0304,
            csum_start: 0x0506,
            csum_offset: 0x0708,
            num_buffers: 0x090a,
        };
        let b = h.to_bytes();
        assert_eq!(b, [1, 0x81, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9]);
        assert_eq!(NetHeader::from_bytes(&b), h);
        assert!(!h.is_plain());
        assert!(NetHeader { flags: HDR_F_DATA_VALID, ..NetHeader::default() }.is_plain());
    }

    #[test]
    fn feature_names_round_trip() {
        for f in FEATURES {
            assert_eq!(feature_by_name(f.name), Some(1 << f.bit));
            assert_eq!(feature_names(1 << f.bit), [f.name]);
        }
        assert_eq!(feature_by_name("turbo"), None);
        assert_eq!(feature_names(1 << 63), ["bit 63"]);
        assert!(FEATURES.windows(2).all(|w| w[0].bit < w[1].bit));
    }

    #[test]
    fn mac_addresses_parse_strictly() {
        assert_eq!("02:00:00:00:00:fF".parse(), Ok(MacAddr([2, 0, 0, 0, 0, 255])));
        for bad in ["", "02:00", "02:00:00:00:00:00:00", "02:00:00:00:00:0g", "002:0:0:0:0:0", "+2:0:0:0:0:0"]
        {
            assert!(bad.parse::<MacAddr>().unwrap_err().contains("02:00:00:00:00:01"), "{bad}");
        }
        assert_eq!(MacAddr([0xab, 1, 2, 3, 4, 5]).to_string(), "ab:01:02:03:04:05");
    }
}
