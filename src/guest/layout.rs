//! Rules in ethtool's words as the flow filter lays them out: selectors and a key, and back.
//!
//! The first selector is Ethernet, then perhaps IP, then perhaps TCP or UDP, which is there only if a port is compared.
//! `EtherType` and protocol are compared in full where another selector follows (5.1.6.6).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_TCP, PROTO_UDP};
use crate::steer::{FlowType, Masked, NtupleSpec};
use crate::virtio::MacAddr;
use crate::virtio::flow::{Classifier, Selector, SelectorType};

/// What a rule compares, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) classifier: Classifier,
    pub(super) key: Vec<u8>,
}

/// One header: which bits are compared, and with what.
struct Header {
    selector: Selector,
    key: Vec<u8>,
}

impl Header {
    fn new(kind: SelectorType) -> Self {
        let selector = Selector::new(kind);
        Header { key: vec![0; selector.mask.len()], selector }
    }

    /// Compares these bytes at `at`.
    fn put(&mut self, at: usize, value: &[u8], mask: &[u8]) {
        for (i, (v, m)) in value.iter().zip(mask).enumerate() {
            self.selector.mask[at + i] |= m;
            self.key[at + i] |= v & m;
        }
    }

    fn put16(&mut self, at: usize, field: Option<Masked<u16>>) {
        if let Some(f) = field {
            self.put(at, &f.value.to_be_bytes(), &f.mask.to_be_bytes());
        }
    }

    fn put_ip(&mut self, at: usize, field: Option<Masked<IpAddr>>) {
        match field.map(|f| (f.value, f.mask)) {
            Some((IpAddr::V4(v), IpAddr::V4(m))) => self.put(at, &v.octets(), &m.octets()),
            Some((IpAddr::V6(v), IpAddr::V6(m))) => self.put(at, &v.octets(), &m.octets()),
            _ => {}
        }
    }
}

/// Lays a rule out.
///
/// # Errors
/// Says which field does not go with the type, or can't be compared by any flow filter.
pub(super) fn lay_out(spec: &NtupleSpec) -> Result<Layout, String> {
    spec.fields().map_err(|e| e.to_string())?;
    if spec.vlan.is_some() {
        return Err("vlan can't be compared: the flow filter knows no tags (rules of the host do)".into());
    }
    let (ethertype, protocol) = match spec.flow_type {
        FlowType::Ether => (None, None),
        FlowType::Ip4 => (Some(ETHERTYPE_IPV4), spec.l4_proto),
        FlowType::Ip6 => (Some(ETHERTYPE_IPV6), spec.l4_proto),
        FlowType::Tcp4 => (Some(ETHERTYPE_IPV4), Some(PROTO_TCP)),
        FlowType::Udp4 => (Some(ETHERTYPE_IPV4), Some(PROTO_UDP)),
        FlowType::Tcp6 => (Some(ETHERTYPE_IPV6), Some(PROTO_TCP)),
        FlowType::Udp6 => (Some(ETHERTYPE_IPV6), Some(PROTO_UDP)),
    };
    let whole = |value| Masked { value, mask: u16::MAX };
    let mut ethernet = Header::new(SelectorType::Ethernet);
    for (at, field) in [(0, spec.dst_mac), (6, spec.src_mac)] {
        if let Some(f) = field {
            ethernet.put(at, &f.value.0, &f.mask.0);
        }
    }
    ethernet.put16(12, ethertype.map(whole).or(spec.ethertype));
    let mut headers = vec![ethernet];
    match ethertype {
        Some(ETHERTYPE_IPV4) => headers.push(ipv4(spec, protocol)),
        Some(_) => headers.push(ipv6(spec, protocol)),
        None => {}
    }
    if [spec.src_port, spec.dst_port].iter().flatten().any(|port| port.mask != 0) {
        let kind = if protocol == Some(PROTO_TCP) { SelectorType::Tcp } else { SelectorType::Udp };
        let mut ports = Header::new(kind);
        ports.put16(0, spec.src_port);
        ports.put16(2, spec.dst_port);
        headers.push(ports);
    }
    let key = headers.iter().flat_map(|h| h.key.iter().copied()).collect();
    Ok(Layout {
        classifier: Classifier { selectors: headers.into_iter().map(|h| h.selector).collect() },
        key,
    })
}

fn ipv4(spec: &NtupleSpec, protocol: Option<u8>) -> Header {
    let mut h = Header::new(SelectorType::Ipv4);
    if let Some(tos) = spec.tos {
        h.put(1, &[tos.value], &[tos.mask]);
    }
    if let Some(protocol) = protocol {
        h.put(9, &[protocol], &[0xff]);
    }
    h.put_ip(12, spec.src_ip);
    h.put_ip(16, spec.dst_ip);
    h
}

fn ipv6(spec: &NtupleSpec, protocol: Option<u8>) -> Header {
    let mut h = Header::new(SelectorType::Ipv6);
    if let Some(class) = spec.tos {
        // Between the version and the flow label, four bits each.
        let spread = |b: u8| (u16::from(b) << 4).to_be_bytes();
        h.put(0, &spread(class.value), &spread(class.mask));
    }
    if let Some(protocol) = protocol {
        h.put(6, &[protocol], &[0xff]);
    }
    h.put_ip(8, spec.src_ip);
    h.put_ip(24, spec.dst_ip);
    h
}

/// One header of a rule that is read back.
struct Read<'a> {
    mask: &'a [u8],
    key: &'a [u8],
}

impl<'a> Read<'a> {
    fn bytes<const N: usize>(&self, at: usize) -> Option<([u8; N], [u8; N])> {
        let of = |s: &'a [u8]| s.get(at..at + N)?.try_into().ok();
        let (key, mask): ([u8; N], [u8; N]) = (of(self.key)?, of(self.mask)?);
        (mask != [0; N]).then_some((key, mask))
    }

    fn field<const N: usize, T>(&self, at: usize, from: impl Fn([u8; N]) -> T) -> Option<Masked<T>> {
        self.bytes(at).map(|(key, mask)| Masked { value: from(key), mask: from(mask) })
    }

    /// Whether it compares nothing beyond these ranges of bytes.
    fn only(&self, ranges: &[std::ops::Range<usize>]) -> bool {
        self.mask.iter().enumerate().all(|(i, m)| *m == 0 || ranges.iter().any(|r| r.contains(&i)))
    }
}

/// Reads a rule back; none if ethtool has no words for it. Action and location are the caller's.
pub(super) fn read_back(classifier: &Classifier, key: &[u8]) -> Option<NtupleSpec> {
    let mut at = 0;
    let mut parts = classifier.selectors.iter().map(|s| {
        let part = Read { mask: &s.mask, key: key.get(at..at + s.mask.len())? };
        at += s.mask.len();
        Some((SelectorType::from_code(s.kind)?, part))
    });
    let (SelectorType::Ethernet, ethernet) = parts.next()?? else { return None };
    let mut spec = NtupleSpec::new(FlowType::Ether, 0);
    spec.dst_mac = ethernet.field(0, MacAddr);
    spec.src_mac = ethernet.field(6, MacAddr);
    let ethertype = ethernet.field(12, u16::from_be_bytes);
    let Some(ip) = parts.next() else {
        spec.ethertype = ethertype;
        return Some(spec);
    };
    let (kind, ip) = ip?;
    let protocol = match kind {
        SelectorType::Ipv4 if ip.only(&[1..2, 9..10, 12..20]) => {
            let address = |b: [u8; 4]| IpAddr::from(Ipv4Addr::from(b));
            spec.tos = ip.field(1, |[b]: [u8; 1]| b);
            (spec.src_ip, spec.dst_ip) = (ip.field(12, address), ip.field(16, address));
            ip.field(9, |[b]: [u8; 1]| b)
        }
        SelectorType::Ipv6 if ip.only(&[0..2, 6..7, 8..40]) => {
            let address = |b: [u8; 16]| IpAddr::from(Ipv6Addr::from(b));
            spec.tos = ip.field(0, |b: [u8; 2]| (u16::from_be_bytes(b) >> 4) as u8);
            if ip.mask[0] & 0xf0 != 0 || ip.mask[1] & 0x0f != 0 {
                return None;
            }
            (spec.src_ip, spec.dst_ip) = (ip.field(8, address), ip.field(24, address));
            ip.field(6, |[b]: [u8; 1]| b)
        }
        _ => return None,
    };
    let v4 = kind == SelectorType::Ipv4;
    let is = |protocol: Masked<u8>, p| (protocol.value, protocol.mask) == (p, 0xff);
    spec.flow_type = match protocol {
        Some(p) if is(p, PROTO_TCP) => {
            if v4 {
                FlowType::Tcp4
            } else {
                FlowType::Tcp6
            }
        }
        Some(p) if is(p, PROTO_UDP) => {
            if v4 {
                FlowType::Udp4
            } else {
                FlowType::Udp6
            }
        }
        _ => {
            if v4 {
                FlowType::Ip4
            } else {
                FlowType::Ip6
            }
        }
    };
    if matches!(spec.flow_type, FlowType::Ip4 | FlowType::Ip6) {
        spec.l4_proto = match protocol {
            Some(Masked { value, mask: 0xff }) => Some(value),
            Some(_) => return None,
            None => None,
        };
    }
    if let Some(ports) = parts.next() {
        let (SelectorType::Tcp | SelectorType::Udp, ports) = ports? else { return None };
        if !ports.only(&[0..2, 2..4]) {
            return None;
        }
        spec.src_port = ports.field(0, u16::from_be_bytes);
        spec.dst_port = ports.field(2, u16::from_be_bytes);
    }
    parts.next().is_none().then_some(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{FlowRule, parse_flow};

    fn spec(s: &str) -> NtupleSpec {
        let words: Vec<_> = s.split_whitespace().map(str::to_string).collect();
        parse_flow(&words).unwrap().into()
    }

    #[test]
    fn rules_are_laid_out_as_the_headers_are() {
        let layout = lay_out(&spec("flow-type udp4 src-ip 10.0.0.0/8 dst-port 5000 action 3")).unwrap();
        let [ethernet, ip, udp] = &layout.classifier.selectors[..] else { panic!("{layout:?}") };
        assert_eq!((ethernet.kind, ip.kind, udp.kind), (1, 2, 5));
        assert_eq!((&ethernet.mask[..12], &ethernet.mask[12..]), (&[0; 12][..], &[0xff; 2][..]));
        assert_eq!(ip.mask, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(udp.mask, [0, 0, 0xff, 0xff, 0, 0, 0, 0]);
        assert_eq!(layout.key.len(), layout.classifier.key_length());
        assert_eq!(layout.key[12..14], [8, 0]);
        assert_eq!((layout.key[14 + 9], layout.key[14 + 12]), (17, 10));
        assert_eq!(layout.key[14 + 20 + 2..][..2], [0x13, 0x88]);
        let class = lay_out(&spec("flow-type ip6 tclass 0xab action 0")).unwrap();
        assert_eq!(
            (class.classifier.selectors[1].mask[..2].to_vec(), &class.key[14..16]),
            (vec![0x0f, 0xf0], &[0x0a, 0xb0][..])
        );
    }

    #[test]
    fn what_is_laid_out_is_read_back() {
        for s in [
            "flow-type ether src 02:00:00:00:00:01 dst 02:00:00:00:00:00 m 00:00:00:00:00:ff proto 0x88b5 action 0",
            "flow-type ether action 0",
            "flow-type ip4 action 0",
            "flow-type ip6 action 0",
            "flow-type ip4 tos 0x10 l4proto 132 action 0",
            "flow-type tcp4 action 0",
            "flow-type tcp4 dst-ip 10.0.1.0 m 0.0.0.255 src-port 1 dst-port 80 m 3 action 0",
            "flow-type udp4 src-port 0 action 0",
            "flow-type tcp6 src-ip 2001:db8::1 tclass 0x8 m 0x3 dst-port 80 action 0",
            "flow-type udp6 dst 02:00:00:00:00:02 dst-ip 2001:db8:: m ::ffff action 0",
            "flow-type ip6 l4proto 58 action 0",
        ] {
            let layout = lay_out(&spec(s)).unwrap();
            let read = read_back(&layout.classifier, &layout.key).unwrap_or_else(|| panic!("{s}"));
            assert_eq!(FlowRule::from(&read).to_string(), s);
            assert_eq!(lay_out(&read).unwrap(), layout);
        }
    }

    #[test]
    fn what_no_flow_filter_compares_is_named() {
        let refused = |s| lay_out(&spec(s)).unwrap_err();
        assert!(refused("flow-type ether vlan 5 action 0").starts_with("vlan can't be compared"));
        assert!(refused("flow-type ip4 dst-port 5 action 0").contains("only with tcp4, udp4, tcp6 and udp6"));
        // What others compare has no words here.
        let mut layout = lay_out(&spec("flow-type tcp4 dst-port 80 action 0")).unwrap();
        layout.classifier.selectors[2].mask[13] = 2;
        assert_eq!(read_back(&layout.classifier, &layout.key), None);
        assert_eq!(read_back(&layout.classifier, &layout.key[..40]), None);
        assert_eq!(read_back(&Classifier::default(), &[]), None);
    }
}
