//! Receive-side scaling (5.1.6.5.7): the Toeplitz hash and the indirection table.
//!
//! # Theory of operation
//!
//! The Toeplitz hash is linear: the hash of an input is the exclusive or of what each of its bytes contributes at
//! its position, so a table per position, computed from the key once, replaces the walk over bits. See [`Toeplitz`].
//!
//! The *configured* indirection table is what the driver or the user has set, or the default one, which spreads evenly. The
//! *effective* table is computed from it whenever it or the set of enabled queues changes; in it every entry names an enabled queue. A
//! packet reads only the effective table: one load.

use std::sync::Arc;

use thiserror::Error;

use super::shape::{self, Flow, SHAPES};
use crate::packet::{Headers, L3, PROTO_TCP, PROTO_UDP};

/// Key bytes that the hash needs at least: 36 bytes of input and a window of 4.
pub const KEY_MIN: usize = 40;
/// Longest key that is taken.
pub const KEY_MAX: usize = 52;
/// Entries that an indirection table may have at most.
pub const TABLE_MAX: usize = 4096;
/// Entries of an indirection table unless configured otherwise.
pub const TABLE_DEFAULT: usize = 128;

/// The key of the published verification suite, the default of most NICs.
pub const DEFAULT_KEY: [u8; KEY_MIN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Hash-type bits (5.1.6.4.3 and 5.1.6.5.7.1).
pub mod hash_type {
    /// IPv4 addresses.
    pub const IPV4: u32 = 1 << 0;
    /// IPv4 addresses and TCP ports.
    pub const TCPV4: u32 = 1 << 1;
    /// IPv4 addresses and UDP ports.
    pub const UDPV4: u32 = 1 << 2;
    /// IPv6 addresses.
    pub const IPV6: u32 = 1 << 3;
    /// IPv6 addresses and TCP ports.
    pub const TCPV6: u32 = 1 << 4;
    /// IPv6 addresses and UDP ports.
    pub const UDPV6: u32 = 1 << 5;
    /// IPv6 addresses, of extension headers where those give one. Not supported.
    pub const IP_EX: u32 = 1 << 6;
    /// Like `IP_EX`, and TCP ports. Not supported.
    pub const TCP_EX: u32 = 1 << 7;
    /// Like `IP_EX`, and UDP ports. Not supported.
    pub const UDP_EX: u32 = 1 << 8;
    /// What the device offers in `supported_hash_types`.
    pub const SUPPORTED: u32 = IPV4 | TCPV4 | UDPV4 | IPV6 | TCPV6 | UDPV6;
}

/// What a hash was computed over, with the values of the network header's `hash_report` (5.1.6.4.3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum HashReport {
    /// IPv4 addresses.
    Ipv4 = 1,
    /// IPv4 addresses and TCP ports.
    TcpV4 = 2,
    /// IPv4 addresses and UDP ports.
    UdpV4 = 3,
    /// IPv6 addresses.
    Ipv6 = 4,
    /// IPv6 addresses and TCP ports.
    TcpV6 = 5,
    /// IPv6 addresses and UDP ports.
    UdpV6 = 6,
}

impl HashReport {
    /// Whether ports were hashed, too.
    pub fn has_ports(self) -> bool {
        !matches!(self, HashReport::Ipv4 | HashReport::Ipv6)
    }
}

/// What is wrong with an RSS configuration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RssError {
    /// Key length.
    #[error("An RSS key of {0} bytes is not possible: {KEY_MIN} to {KEY_MAX} bytes are")]
    KeyLength(usize),
    /// Table length.
    #[error("An indirection table of {0} entries is not possible: a power of two up to {TABLE_MAX} is")]
    TableLength(usize),
    /// A queue that the NIC does not have.
    #[error("Indirection table entry {entry} names queue {queue}, but queues go from 0 to {last}")]
    Queue {
        /// Which entry.
        entry: usize,
        /// What it names.
        queue: u16,
        /// The NIC's last queue.
        last: u16,
    },
    /// The queue for packets without a hash is none.
    #[error("Packets without a hash cannot go to queue {queue}: queues go from 0 to {last}")]
    Unclassified {
        /// The queue asked for.
        queue: u16,
        /// The NIC's last queue.
        last: u16,
    },
    /// Hash types that the device does not offer.
    #[error("Hash types {0:#x} are not supported: of 0x3f any are")]
    HashTypes(u32),
}

/// A key of a proper length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RssKey(Vec<u8>);

impl RssKey {
    /// Takes [`KEY_MIN`] to [`KEY_MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, RssError> {
        match bytes.len() {
            KEY_MIN..=KEY_MAX => Ok(Self(bytes.to_vec())),
            n => Err(RssError::KeyLength(n)),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Default for RssKey {
    fn default() -> Self {
        Self(DEFAULT_KEY.to_vec())
    }
}

/// What a user or driver sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RssConfig {
    /// The key.
    pub key: RssKey,
    /// Bits of [`hash_type`].
    pub hash_types: u32,
    /// Receive queues by hash, a power of two of them; `None` = spread evenly over the enabled queues.
    pub table: Option<Vec<u16>>,
    /// Receive queue of packets that have no hash (ARP, or types that are switched off).
    pub unclassified: u16,
}

impl Default for RssConfig {
    fn default() -> Self {
        Self { key: RssKey::default(), hash_types: hash_type::SUPPORTED, table: None, unclassified: 0 }
    }
}

/// Positions with a table: source and destination IPv6 address and ports.
const POSITIONS: usize = 36;

/// A key prepared for hashing: what each value of each input byte contributes.
///
/// 36 KiB, of which IPv4 with ports uses 12. Tables by nibble (4.5 KiB) were measured against it: with IPv4 and ports 4.8 ns
/// against 2.7, and 5.2 against 4.3 when everything else had just left the first-level cache.
#[derive(Clone)]
pub struct Toeplitz {
    bytes: Arc<[[u32; 256]; POSITIONS]>,
}

impl Toeplitz {
    /// Prepares a key.
    pub fn new(key: &RssKey) -> Self {
        let mut bytes = Box::new([[0; 256]; POSITIONS]);
        for (position, table) in bytes.iter_mut().enumerate() {
            // The 40 key bits that the windows of this byte's eight bits lie in.
            let bits = key.bytes()[position..].iter().take(5).fold(0u64, |bits, &b| bits << 8 | u64::from(b));
            for (value, sum) in table.iter_mut().enumerate() {
                for bit in (0..8).filter(|bit| value & 0x80 >> bit != 0) {
                    *sum ^= (bits >> (8 - bit)) as u32;
                }
            }
        }
        Self { bytes: bytes.into() }
    }

    /// The contribution of the eight bytes of `word` (the first in its top bits) at `position`.
    #[inline]
    fn word(&self, position: usize, word: u64) -> u32 {
        word.to_be_bytes()
            .iter()
            .zip(&self.bytes[position..position + 8])
            .fold(0, |sum, (&b, t)| sum ^ t[usize::from(b)])
    }

    #[inline]
    fn half(&self, position: usize, half: u32) -> u32 {
        half.to_be_bytes()
            .iter()
            .zip(&self.bytes[position..position + 4])
            .fold(0, |sum, (&b, t)| sum ^ t[usize::from(b)])
    }

    #[inline]
    fn addresses(&self, l3: L3, addr: &[u64; 4]) -> u32 {
        if l3 == L3::V6 {
            self.word(0, addr[0]) ^ self.word(8, addr[1]) ^ self.word(16, addr[2]) ^ self.word(24, addr[3])
        } else {
            self.word(0, addr[0])
        }
    }

    #[inline]
    fn ports(&self, l3: L3, (src, dst): (u16, u16)) -> u32 {
        let ports = u32::from(src) << 16 | u32::from(dst);
        if l3 == L3::V6 { self.half(32, ports) } else { self.half(8, ports) }
    }

    /// The hash of a packet and what it covers, or `None` if none of the hash `types` applies.
    #[inline]
    pub(super) fn hash(&self, types: u32, h: &Headers) -> Option<(u32, HashReport)> {
        use hash_type::{IPV4, IPV6, TCPV4, TCPV6, UDPV4, UDPV6};
        if types & SHAPES != 0 {
            return self.shaped_hash(types, h);
        }
        let (tcp, udp, ip, reports) = match h.l3() {
            L3::None => return None,
            L3::V4 => (TCPV4, UDPV4, IPV4, [HashReport::TcpV4, HashReport::UdpV4, HashReport::Ipv4]),
            L3::V6 => (TCPV6, UDPV6, IPV6, [HashReport::TcpV6, HashReport::UdpV6, HashReport::Ipv6]),
        };
        if let Some(ports) = h.ports() {
            let report = match h.protocol() {
                PROTO_TCP if types & tcp != 0 => Some(reports[0]),
                PROTO_UDP if types & udp != 0 => Some(reports[1]),
                _ => None,
            };
            if let Some(report) = report {
                let hash = self.addresses(h.l3(), h.addr()) ^ self.ports(h.l3(), ports);
                return Some((hash, report));
            }
        }
        (types & ip != 0).then(|| (self.addresses(h.l3(), h.addr()), reports[2]))
    }

    /// As [`Self::hash`], where not all of a packet is hashed as it is.
    #[inline(never)]
    fn shaped_hash(&self, types: u32, h: &Headers) -> Option<(u32, HashReport)> {
        let (_, report) = self.hash(types & !SHAPES, h)?;
        let flow = match report {
            HashReport::TcpV4 => Some(Flow::TcpV4),
            HashReport::UdpV4 => Some(Flow::UdpV4),
            HashReport::TcpV6 => Some(Flow::TcpV6),
            HashReport::UdpV6 => Some(Flow::UdpV6),
            HashReport::Ipv4 | HashReport::Ipv6 => None,
        };
        let ports = if report.has_ports() { h.ports()? } else { (0, 0) };
        let left_out = flow.map_or(0, |flow| flow.left_out(types));
        let (addr, ports) = shape::shape(types, left_out, h.l3(), h.addr(), ports);
        let addresses = self.addresses(h.l3(), &addr);
        let no_ports = shape::SOURCE_PORT | shape::DESTINATION_PORT;
        if flow.is_none() || left_out & no_ports == no_ports {
            let report = if h.l3() == L3::V6 { HashReport::Ipv6 } else { HashReport::Ipv4 };
            return Some((addresses, report));
        }
        Some((addresses ^ self.ports(h.l3(), ports), report))
    }
}

/// The RSS stage of one NIC. See the module's documentation.
#[derive(Clone)]
pub struct Rss {
    config: RssConfig,
    toeplitz: Toeplitz,
    default_len: usize,
    effective: Box<[u8]>,
    unclassified: u8,
}

impl Rss {
    /// The stage with a default table of `default_len` entries; nothing is enabled yet.
    pub(super) fn new(config: RssConfig, default_len: usize) -> Self {
        let toeplitz = Toeplitz::new(&config.key);
        let mut rss = Self { config, toeplitz, default_len, effective: Box::default(), unclassified: 0 };
        rss.update(&[]);
        rss
    }

    /// The configuration in force.
    pub fn config(&self) -> &RssConfig {
        &self.config
    }

    /// The configured table: the default one is shown as if all of `queue_pairs` were enabled.
    pub fn table(&self, queue_pairs: u16) -> Vec<u16> {
        match &self.config.table {
            Some(table) => table.clone(),
            None => (0..self.default_len).map(|i| (i % usize::from(queue_pairs.max(1))) as u16).collect(),
        }
    }

    /// The table in force: only enabled queues, or all 0 if there is none.
    pub fn effective_table(&self) -> Vec<u16> {
        self.effective.iter().map(|&q| q.into()).collect()
    }

    /// The hash of a packet and what it covers, or `None` if no enabled hash type applies.
    #[inline]
    pub fn hash(&self, h: &Headers) -> Option<(u32, HashReport)> {
        self.toeplitz.hash(self.config.hash_types, h)
    }

    /// The prepared key.
    pub(super) fn toeplitz(&self) -> &Toeplitz {
        &self.toeplitz
    }

    /// The queue of a packet: by hash, or `Err` with the one for packets without.
    #[inline]
    pub(super) fn queue(&self, h: &Headers) -> Result<u16, u16> {
        match self.hash(h) {
            Some((hash, _)) => Ok(self.effective[hash as usize & (self.effective.len() - 1)].into()),
            None => Err(self.unclassified.into()),
        }
    }

    /// Puts a checked configuration in force; `update` must follow.
    pub(super) fn set_config(&mut self, config: RssConfig) {
        if config.key != self.config.key {
            self.toeplitz = Toeplitz::new(&config.key);
        }
        self.config = config;
    }

    /// Computes the effective table for these enabled queues, in ascending order.
    pub(super) fn update(&mut self, enabled: &[u8]) {
        let spread = |i: usize| if enabled.is_empty() { 0 } else { enabled[i % enabled.len()] };
        let target = |queue: u16| enabled.iter().copied().find(|&q| u16::from(q) == queue);
        self.effective = match &self.config.table {
            None => (0..self.default_len).map(spread).collect(),
            Some(table) => {
                table.iter().enumerate().map(|(i, &q)| target(q).unwrap_or_else(|| spread(i))).collect()
            }
        };
        self.unclassified = target(self.config.unclassified).unwrap_or_else(|| spread(0));
    }

    /// Checks a configuration for a NIC with `queue_pairs`.
    pub(super) fn check(config: &RssConfig, queue_pairs: u16) -> Result<(), RssError> {
        let last = queue_pairs.saturating_sub(1);
        let unknown = config.hash_types & !(hash_type::SUPPORTED | SHAPES);
        if unknown != 0 || !shape::possible(config.hash_types) {
            return Err(RssError::HashTypes(if unknown != 0 { unknown } else { config.hash_types }));
        }
        if let Some(table) = &config.table {
            if !table.len().is_power_of_two() || table.len() > TABLE_MAX {
                return Err(RssError::TableLength(table.len()));
            }
            if let Some((entry, &queue)) = table.iter().enumerate().find(|&(_, &q)| q > last) {
                return Err(RssError::Queue { entry, queue, last });
            }
        }
        if config.unclassified > last {
            return Err(RssError::Unclassified { queue: config.unclassified, last });
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "rss_tests.rs"]
mod tests;
