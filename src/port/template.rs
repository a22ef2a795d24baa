//! Frames of the traffic generator: one frame is built, and stamped anew for every flow.
//!
//! Flows differ in the source port, and beyond [`PORTS`] of them in the source address. A stamp patches these
//! and the checksums, at a cost that does not depend on the frame's size.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::offload::Sum;
use crate::virtio::MacAddr;

/// The smallest frame, without frame check sequence.
pub const MIN_SIZE: usize = 60;
/// The largest frame: an MTU of 9000 with its Ethernet header and tag, and what switches call jumbo.
pub const MAX_SIZE: usize = 9216;
/// The most flows.
pub const MAX_FLOWS: u32 = 100_000_000;
/// Source ports in use, from [`FIRST_PORT`]; the next flow has the first port again and another address.
pub const PORTS: u32 = 50_000;
/// The source port of flow 0.
pub const FIRST_PORT: u16 = 10_000;

const DEFAULT_SRC_MAC: MacAddr = MacAddr([0x02, 0x67, 0x65, 0x6e, 0, 1]);
const DEFAULT_DST_MAC: MacAddr = MacAddr([0x02, 0x67, 0x65, 0x6e, 0, 2]);
/// RFC 2544 sets 198.18.0.0/15 aside for benchmarks, RFC 5180 2001:2::/48.
const DEFAULT_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 19, 0, 1)];
const DEFAULT_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1)];
/// The port of the discard service (RFC 863).
const DEFAULT_DST_PORT: u16 = 9;
const KEYS: &str = "flows, size, rate, proto, ip, vlan, src-mac, dst-mac, src-ip, dst-ip, dst-port";

/// Transport protocol of the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proto {
    /// UDP.
    Udp = 17,
    /// TCP: segments with ACK set, of no connection.
    Tcp = 6,
}

impl Proto {
    fn name(self) -> &'static str {
        match self {
            Proto::Udp => "udp",
            Proto::Tcp => "tcp",
        }
    }

    fn header_len(self) -> usize {
        match self {
            Proto::Udp => 8,
            Proto::Tcp => 20,
        }
    }
}

/// What the generator sends. Written as `flows=16,size=60,proto=udp`, with `,` or `;` in between; what is not
/// said has its default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenConfig {
    /// Number of flows, 1 to [`MAX_FLOWS`]. Default 1.
    pub flows: u32,
    /// Bytes of a frame without frame check sequence, [`MIN_SIZE`] to [`MAX_SIZE`]. Default: the smallest that
    /// holds the headers.
    pub size: usize,
    /// Frames a second of all flows together; `None`, the default, is as many as possible.
    pub rate: Option<u64>,
    /// Default UDP.
    pub proto: Proto,
    /// VLAN id, 1 to 4094. Default none.
    pub vlan: Option<u16>,
    /// Sender's MAC address.
    pub src_mac: MacAddr,
    /// Receiver's MAC address; `None` leaves it to the port, which knows that of its NIC.
    pub dst_mac: Option<MacAddr>,
    /// Sender's address of the first [`PORTS`] flows.
    pub src_ip: IpAddr,
    /// Receiver's address, of the same version.
    pub dst_ip: IpAddr,
    /// Receiver's port. Default 9 (discard).
    pub dst_port: u16,
}

/// What is wrong with a generator's configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenError {
    /// A part that is no `key=value`.
    #[error("'{0}' is no key=value; the generator takes {KEYS}")]
    NotKeyValue(String),
    /// A key that nobody knows.
    #[error("The generator knows no '{0}'; it takes {KEYS}")]
    UnknownKey(String),
    /// A key that is there twice.
    #[error("'{0}' is given twice")]
    Twice(String),
    /// A value that a key cannot have.
    #[error("{key}={value} is not possible; {key} takes {allowed}")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A frame of this size cannot hold its headers.
    #[error("size={size} is too small: {what} takes at least {min}")]
    TooSmall {
        /// The size that was asked for.
        size: usize,
        /// What it shall hold.
        what: String,
        /// The smallest possible size.
        min: usize,
    },
    /// Addresses of both versions, or of another than `ip` says.
    #[error("src-ip={src}, dst-ip={dst}{} are not of one IP version", .ip.map(|v| format!(" and ip={v}")).unwrap_or_default())]
    Versions {
        /// Sender's address.
        src: IpAddr,
        /// Receiver's address.
        dst: IpAddr,
        /// What `ip` says.
        ip: Option<u8>,
    },
    /// The flows need addresses beyond the last one.
    #[error(
        "{flows} flows need {more} addresses after src-ip={src}, and there are fewer; take a lower address"
    )]
    Addresses {
        /// Number of flows.
        flows: u32,
        /// Addresses besides the first one.
        more: u32,
        /// The first address.
        src: IpAddr,
    },
}

impl Default for GenConfig {
    fn default() -> Self {
        GenConfig {
            flows: 1,
            size: MIN_SIZE,
            rate: None,
            proto: Proto::Udp,
            vlan: None,
            src_mac: DEFAULT_SRC_MAC,
            dst_mac: None,
            src_ip: DEFAULT_V4[0].into(),
            dst_ip: DEFAULT_V4[1].into(),
            dst_port: DEFAULT_DST_PORT,
        }
    }
}

impl GenConfig {
    fn headers(&self) -> usize {
        let tag = if self.vlan.is_some() { 4 } else { 0 };
        14 + tag + if self.src_ip.is_ipv4() { 20 } else { 40 } + self.proto.header_len()
    }
}

impl FromStr for GenConfig {
    type Err = GenError;

    fn from_str(s: &str) -> Result<Self, GenError> {
        let mut config = GenConfig::default();
        let (mut size, mut ip, mut src_ip, mut dst_ip) = (None, None, None, None);
        let mut seen: Vec<&str> = Vec::new();
        for part in s.split([',', ';']).filter(|p| !p.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| GenError::NotKeyValue(part.to_string()))?;
            if seen.contains(&key) {
                return Err(GenError::Twice(key.to_string()));
            }
            seen.push(key);
            match key {
                "flows" => config.flows = number("flows", value, 1, MAX_FLOWS.into())? as u32,
                "size" => size = Some(number("size", value, MIN_SIZE as u64, MAX_SIZE as u64)? as usize),
                "rate" => config.rate = Some(number("rate", value, 1, 1_000_000_000)?),
                "proto" => {
                    config.proto = choice("proto", value, &[("udp", Proto::Udp), ("tcp", Proto::Tcp)])?
                }
                "ip" => ip = Some(choice("ip", value, &[("4", 4), ("6", 6)])?),
                "vlan" => config.vlan = Some(number("vlan", value, 1, 4094)? as u16),
                "src-mac" => config.src_mac = typed("src-mac", value, "an address like 02:00:00:00:00:01")?,
                "dst-mac" => {
                    config.dst_mac = Some(typed("dst-mac", value, "an address like 02:00:00:00:00:01")?)
                }
                "src-ip" => src_ip = Some(typed("src-ip", value, "an IPv4 or IPv6 address")?),
                "dst-ip" => dst_ip = Some(typed("dst-ip", value, "an IPv4 or IPv6 address")?),
                "dst-port" => config.dst_port = number("dst-port", value, 1, 65_535)? as u16,
                _ => return Err(GenError::UnknownKey(key.to_string())),
            }
        }

        // Without `ip`, an address tells the version.
        let ipv6 = ip.map_or_else(|| src_ip.or(dst_ip).is_some_and(|a: IpAddr| a.is_ipv6()), |v| v == 6);
        let defaults = if ipv6 { DEFAULT_V6.map(IpAddr::V6) } else { DEFAULT_V4.map(IpAddr::V4) };
        config.src_ip = src_ip.unwrap_or(defaults[0]);
        config.dst_ip = dst_ip.unwrap_or(defaults[1]);
        if config.src_ip.is_ipv6() != ipv6 || config.dst_ip.is_ipv6() != ipv6 {
            return Err(GenError::Versions { src: config.src_ip, dst: config.dst_ip, ip });
        }
        let more = (config.flows - 1) / PORTS;
        if low_word(config.src_ip).checked_add(more).is_none() {
            return Err(GenError::Addresses { flows: config.flows, more, src: config.src_ip });
        }
        let min = config.headers().max(MIN_SIZE);
        config.size = size.unwrap_or(min);
        if config.size < min {
            let version = if ipv6 { 6 } else { 4 };
            let tag = if config.vlan.is_some() { " with a VLAN tag" } else { "" };
            let what = format!("{} over IPv{version}{tag}", config.proto.name());
            return Err(GenError::TooSmall { size: config.size, what, min });
        }
        Ok(config)
    }
}

/// A number between two limits; `k`, `M` and `G` stand for thousands, millions and so on.
fn number(key: &'static str, value: &str, min: u64, max: u64) -> Result<u64, GenError> {
    let (digits, unit) = match value.strip_suffix(['k', 'M', 'G']) {
        Some(digits) if value.ends_with('k') => (digits, 1_000),
        Some(digits) if value.ends_with('M') => (digits, 1_000_000),
        Some(digits) => (digits, 1_000_000_000),
        None => (value, 1),
    };
    let parsed =
        digits.parse::<u64>().ok().filter(|_| !digits.starts_with('+')).and_then(|n| n.checked_mul(unit));
    parsed.filter(|n| (min..=max).contains(n)).ok_or_else(|| GenError::Value {
        key,
        value: value.to_string(),
        allowed: format!("{min} to {max}"),
    })
}

fn choice<T: Copy>(key: &'static str, value: &str, choices: &[(&str, T)]) -> Result<T, GenError> {
    choices.iter().find(|(name, _)| *name == value).map(|(_, v)| *v).ok_or_else(|| GenError::Value {
        key,
        value: value.to_string(),
        allowed: choices.iter().map(|c| c.0).collect::<Vec<_>>().join(" or "),
    })
}

fn typed<T: FromStr>(key: &'static str, value: &str, allowed: &str) -> Result<T, GenError> {
    value.parse().map_err(|_| GenError::Value { key, value: value.to_string(), allowed: allowed.to_string() })
}

/// The part of an address that flows count up.
fn low_word(ip: IpAddr) -> u32 {
    match ip {
        IpAddr::V4(a) => a.to_bits(),
        IpAddr::V6(a) => a.to_bits() as u32,
    }
}

/// A generated frame, ready for any of its flows.
#[derive(Debug, Clone)]
pub struct Template {
    frame: Box<[u8]>,
    flows: u32,
    /// Last 32 bits of the source address of flow 0.
    address: u32,
    /// Where they lie.
    address_at: usize,
    /// Where the IPv4 header checksum lies, and the sum of the header without these 32 bits.
    ip_csum: Option<(usize, Sum)>,
    /// Where the source port lies.
    port_at: usize,
    /// Where the L4 checksum lies.
    csum_at: usize,
    /// What it covers, without these 32 bits and the source port.
    csum: Sum,
}

impl Template {
    /// Builds the frame of flow 0.
    ///
    /// # Panics
    /// When the size cannot hold the headers or the addresses are of two versions, which a parsed configuration
    /// excludes.
    pub fn new(config: &GenConfig) -> Template {
        assert!((config.headers()..=MAX_SIZE).contains(&config.size), "frame of {} bytes", config.size);
        let mut f = Vec::with_capacity(config.size);
        f.extend(config.dst_mac.unwrap_or(DEFAULT_DST_MAC).0);
        f.extend(config.src_mac.0);
        if let Some(id) = config.vlan {
            f.extend([0x81, 0x00]);
            f.extend(id.to_be_bytes());
        }
        let proto = config.proto as u8;
        let ip = f.len() + 2;
        let (addresses, ip_csum) = match (config.src_ip, config.dst_ip) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                f.extend([0x08, 0x00, 0x45, 0]);
                f.extend(((config.size - ip) as u16).to_be_bytes());
                f.extend([0, 0, 0x40, 0, 64, proto, 0, 0]);
                f.extend([src.octets(), dst.octets()].concat());
                (ip + 12..ip + 20, true)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                f.extend(((config.size - ip - 40) as u16).to_be_bytes());
                f.extend([proto, 64]);
                f.extend([src.octets(), dst.octets()].concat());
                (ip + 8..ip + 40, false)
            }
            (src, dst) => panic!("{src} and {dst} are not of one IP version"),
        };
        let l4 = f.len();
        f.extend([0, 0]);
        f.extend(config.dst_port.to_be_bytes());
        match config.proto {
            Proto::Udp => f.extend(((config.size - l4) as u16).to_be_bytes()),
            // Sequence numbers 1, ACK, the largest window.
            Proto::Tcp => f.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff]),
        }
        let csum_at = f.len();
        f.resize(l4 + config.proto.header_len(), 0);
        let filler = config.size - f.len();
        f.extend((0..filler).map(|i| i as u8));

        let address_at = addresses.start + addresses.len() / 2 - 4;
        let address = low_word(config.src_ip);
        f[address_at..address_at + 4].fill(0);
        let csum = Sum::new()
            .add_bytes(&f[addresses])
            .add_word(proto.into())
            .add_word((config.size - l4) as u16)
            .add_bytes(&f[l4..]);
        let mut template = Template {
            ip_csum: ip_csum.then(|| (ip + 10, Sum::new().add_bytes(&f[ip..l4]))),
            flows: config.flows.max(1),
            address,
            address_at,
            port_at: l4,
            csum_at,
            csum,
            frame: f.into(),
        };
        template.stamp(0);
        template
    }

    /// Bytes of the frame.
    pub fn size(&self) -> usize {
        self.frame.len()
    }

    /// Number of flows.
    pub fn flows(&self) -> u32 {
        self.flows
    }

    /// The frame, of the flow that it was last made one of.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Makes the frame one of flow `flow` (modulo the number of flows), with its checksums.
    pub fn stamp(&mut self, flow: u32) -> &[u8] {
        let mut frame = std::mem::take(&mut self.frame);
        self.stamp_copy(&mut frame, flow);
        self.frame = frame;
        &self.frame
    }

    /// Makes a copy of the frame, or of a part with all its headers, one of flow `flow`. For many frames in a row: to copy
    /// what was just stamped would have to wait for the small stores to get to the cache.
    ///
    /// # Panics
    /// When the copy is shorter than the headers.
    #[inline]
    pub fn stamp_copy(&self, copy: &mut [u8], flow: u32) {
        // A division costs as much as the rest of the stamp.
        let flow = if flow < self.flows { flow } else { flow % self.flows };
        let port = FIRST_PORT + (flow % PORTS) as u16;
        let address = self.address.wrapping_add(flow / PORTS);
        let mut put = |at: usize, value: u16| copy[at..at + 2].copy_from_slice(&value.to_be_bytes());
        if let Some((at, sum)) = self.ip_csum {
            put(at, sum.add_long(address).checksum());
        }
        put(self.port_at, port);
        put(self.csum_at, self.csum.add_long(address).add_word(port).nonzero_checksum());
        copy[self.address_at..self.address_at + 4].copy_from_slice(&address.to_be_bytes());
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
