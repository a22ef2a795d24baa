//! Which fields of headers the flow filter can compare, and selectors with their masks and keys as a [`Match`].
//!
//! Bits of a header that are no field here (lengths, checksums, TTL, the IPv6 flow label) cannot be compared. The EtherType is
//! the one after all VLAN tags, so a classifier for IPv4 finds tagged packets, too.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_TCP, PROTO_UDP};
use crate::steer::{FilterKey, Match};
use crate::virtio::MacAddr;
use crate::virtio::flow::{Classifier, Selector, SelectorType};
use crate::virtio::wire::Reader;

/// Selectors of one classifier: Ethernet, IP, and TCP or UDP.
pub(super) const MOST: u8 = 3;

/// The fields of a header: first bit and number of bits, in network order. Without partial masks, all bits of one are compared
/// or none; TCP's control bits are fields of their own.
const fn fields(kind: SelectorType) -> &'static [(usize, usize)] {
    match kind {
        // Destination, source, EtherType.
        SelectorType::Ethernet => &[(0, 48), (48, 48), (96, 16)],
        // Type of service, protocol, source, destination.
        SelectorType::Ipv4 => &[(8, 8), (72, 8), (96, 32), (128, 32)],
        // Traffic class, next header, source, destination.
        SelectorType::Ipv6 => &[(4, 8), (48, 8), (64, 128), (192, 128)],
        // Ports; CWR to FIN.
        SelectorType::Tcp => &[
            (0, 16),
            (16, 16),
            (104, 1),
            (105, 1),
            (106, 1),
            (107, 1),
            (108, 1),
            (109, 1),
            (110, 1),
            (111, 1),
        ],
        // Ports.
        SelectorType::Udp => &[(0, 16), (16, 16)],
    }
}

fn bit(bytes: &[u8], i: usize) -> bool {
    bytes[i / 8] >> (7 - i % 8) & 1 == 1
}

/// Everything that a card with this key can compare: the capability of the device. That some can only compare fields
/// together a capability can't say; classifiers are checked for it.
pub(super) fn device(key: FilterKey) -> Classifier {
    let partial = if key == FilterKey::Any { Selector::PARTIAL_MASK } else { 0 };
    let selector = |kind: SelectorType| {
        let mut selector = Selector { flags: partial, ..Selector::new(kind) };
        for i in offered(kind, key).iter().flat_map(|(first, bits)| *first..first + bits) {
            selector.mask[i / 8] |= 0x80 >> (i % 8);
        }
        selector
    };
    let kinds = SelectorType::ALL.iter().filter(|k| key != FilterKey::Ipv4 || **k != SelectorType::Ipv6);
    Classifier { selectors: kinds.map(|kind| selector(*kind)).collect() }
}

/// The fields of a header that a card with this key can compare.
fn offered(kind: SelectorType, key: FilterKey) -> &'static [(usize, usize)] {
    let all = fields(kind);
    match kind {
        _ if key == FilterKey::Any => all,
        // The EtherType, which says what comes.
        SelectorType::Ethernet => &all[2..],
        // All but the type of service and the traffic class.
        SelectorType::Ipv4 | SelectorType::Ipv6 => &all[1..],
        // Ports.
        SelectorType::Tcp | SelectorType::Udp => &all[..2],
    }
}

/// Whether one capability has no more than another, and its selectors are in order.
pub(super) fn is_within(wanted: &Classifier, device: &Classifier) -> bool {
    let fits = |wanted: &Selector| {
        find(device, wanted.kind).is_some_and(|device| {
            wanted.flags & !device.flags == 0
                && wanted.mask.len() == device.mask.len()
                && wanted.mask.iter().zip(&device.mask).all(|(w, d)| w & !d == 0)
        })
    };
    wanted.selectors.iter().all(fits) && wanted.selectors.is_sorted_by(|a, b| a.kind < b.kind)
}

fn find(capability: &Classifier, kind: u8) -> Option<&Selector> {
    capability.selectors.iter().find(|s| s.kind == kind)
}

/// Whether a classifier is possible under this capability, of this many selectors at most.
///
/// Partial masks are a matter of the capability: a selector may carry the flag or not, as drivers do.
pub(super) fn is_possible(classifier: &Classifier, capability: &Classifier, most: u8) -> bool {
    use SelectorType::{Ethernet, Ipv4, Ipv6, Tcp, Udp};
    let selectors = &classifier.selectors;
    let Some(kinds) = selectors.iter().map(|s| SelectorType::from_code(s.kind)).collect::<Option<Vec<_>>>()
    else {
        return false;
    };
    let in_order = matches!(
        kinds[..],
        [Ethernet] | [Ethernet, Ipv4 | Ipv6] | [Ethernet, Ipv4 | Ipv6, Tcp | Udp] if kinds.len() <= most.into()
    );
    let known = |(s, kind): (&Selector, &SelectorType)| {
        find(capability, s.kind).is_some_and(|c| {
            let whole = |(first, bits): &(usize, usize)| {
                let mut compared = (*first..first + bits).map(|i| bit(&s.mask, i));
                let first = compared.next();
                compared.all(|b| Some(b) == first)
            };
            s.mask.len() == kind.size()
                && s.mask.iter().zip(&c.mask).all(|(mask, can)| mask & !can == 0)
                && s.flags & !c.flags == 0
                && (c.flags & Selector::PARTIAL_MASK != 0 || fields(*kind).iter().all(whole))
        })
    };
    // The next header can only be trusted where this one is compared to say that it comes.
    let leads_on =
        |(s, kind): (&Selector, &SelectorType)| s.mask[next_header(*kind)].iter().all(|b| *b == 0xff);
    in_order
        && selectors.iter().zip(&kinds).all(known)
        && selectors.iter().zip(&kinds).rev().skip(1).all(leads_on)
}

/// Where a header says what comes after it.
const fn next_header(kind: SelectorType) -> std::ops::Range<usize> {
    match kind {
        SelectorType::Ethernet => 12..14,
        SelectorType::Ipv4 => 9..10,
        SelectorType::Ipv6 => 6..7,
        SelectorType::Tcp | SelectorType::Udp => 0..0,
    }
}

/// What a rule with these keys compares; `None` if the keys are not of the classifier's length, or a key says that another header
/// comes than the one that is selected. The classifier is a possible one.
pub(super) fn fields_of(classifier: &Classifier, keys: &[u8]) -> Option<Match> {
    if keys.len() != classifier.key_length() {
        return None;
    }
    let mut fields = Match::new();
    let mut rest = keys;
    let mut expected: Option<&[u8]> = None;
    for selector in classifier.selectors.iter().rev() {
        let kind = SelectorType::from_code(selector.kind)?;
        let (before, key) = rest.split_at(rest.len() - selector.mask.len());
        if expected.is_some_and(|e| key[next_header(kind)] != *e) {
            return None;
        }
        expected = match kind {
            SelectorType::Ethernet => None,
            SelectorType::Ipv4 => Some(const { &ETHERTYPE_IPV4.to_be_bytes() }),
            SelectorType::Ipv6 => Some(const { &ETHERTYPE_IPV6.to_be_bytes() }),
            SelectorType::Tcp => Some(&[PROTO_TCP]),
            SelectorType::Udp => Some(&[PROTO_UDP]),
        };
        fields = add(fields, kind, key, &selector.mask);
        rest = before;
    }
    Some(fields)
}

/// What a rule of this classifier compares when its keys are zeros, for its mask: the same for all its rules.
pub(super) fn mask_of(classifier: &Classifier) -> Match {
    classifier.selectors.iter().fold(Match::new(), |fields, s| match SelectorType::from_code(s.kind) {
        Some(kind) => add(fields, kind, &vec![0; s.mask.len()], &s.mask),
        None => fields,
    })
}

/// Fields of a header, read one after the other in network byte order.
struct Header<'a>(Reader<'a>);

impl<'a> Header<'a> {
    fn at(bytes: &'a [u8], from: usize) -> Self {
        Header(Reader::new(bytes.get(from..).unwrap_or_default()))
    }

    fn be16(&mut self) -> u16 {
        u16::from_be_bytes(self.0.array())
    }

    fn v4(&mut self) -> Ipv4Addr {
        Ipv4Addr::from(self.0.array::<4>())
    }

    fn v6(&mut self) -> Ipv6Addr {
        Ipv6Addr::from(self.0.array::<16>())
    }

    fn mac(&mut self) -> MacAddr {
        MacAddr(self.0.array())
    }
}

fn add(fields: Match, kind: SelectorType, key: &[u8], mask: &[u8]) -> Match {
    let (mut k, mut m) = (Header::at(key, 0), Header::at(mask, 0));
    match kind {
        SelectorType::Ethernet => {
            fields.eth_dst(k.mac(), m.mac()).eth_src(k.mac(), m.mac()).ethertype(k.be16(), m.be16())
        }
        SelectorType::Ipv4 => {
            let (mut k, mut m) = (Header::at(key, 12), Header::at(mask, 12));
            fields
                .ipv4()
                .tos(key[1], mask[1])
                .protocol(key[9], mask[9])
                .ipv4_src(k.v4(), m.v4())
                .ipv4_dst(k.v4(), m.v4())
        }
        SelectorType::Ipv6 => {
            let class = |b: &[u8]| b[0] << 4 | b[1] >> 4;
            let (mut k, mut m) = (Header::at(key, 8), Header::at(mask, 8));
            fields
                .ipv6()
                .tos(class(key), class(mask))
                .protocol(key[6], mask[6])
                .ipv6_src(k.v6(), m.v6())
                .ipv6_dst(k.v6(), m.v6())
        }
        SelectorType::Tcp => {
            fields.src_port(k.be16(), m.be16()).dst_port(k.be16(), m.be16()).tcp_flags(key[13], mask[13])
        }
        SelectorType::Udp => fields.src_port(k.be16(), m.be16()).dst_port(k.be16(), m.be16()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::frames::{Frame, tcp4, udp6};

    fn selector(kind: SelectorType, compared: &[(usize, usize)]) -> Selector {
        let mut selector = Selector::new(kind);
        compared.iter().for_each(|(first, end)| selector.mask[*first..*end].fill(0xff));
        selector
    }

    fn ethernet() -> Selector {
        selector(SelectorType::Ethernet, &[(12, 14)])
    }

    fn possible(selectors: &[Selector]) -> bool {
        is_possible(&Classifier { selectors: selectors.to_vec() }, &device(FilterKey::Any), MOST)
    }

    #[test]
    fn the_device_compares_the_fields_that_steering_knows() {
        let hex = |s: &Selector| s.mask.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let device = device(FilterKey::Any);
        assert!(device.selectors.iter().all(|s| s.flags == Selector::PARTIAL_MASK));
        assert_eq!(device.selectors.iter().map(|s| s.kind).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let f = |n: usize| "f".repeat(n);
        let expected = [
            f(28),
            format!("00ff{}00ff0000{}", "0".repeat(12), f(16)),
            format!("0ff0{}ff00{}", "0".repeat(8), f(64)),
            format!("{}{}00ff{}", f(8), "0".repeat(16), "0".repeat(12)),
            format!("{}{}", f(8), "0".repeat(8)),
        ];
        assert_eq!(device.selectors.iter().map(hex).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_card_with_a_key_offers_whole_fields_of_it() {
        for key in [FilterKey::FiveTuple, FilterKey::FourTuple, FilterKey::Ipv4] {
            let selectors = device(key).selectors;
            let compared = |kind: SelectorType| {
                let s = selectors.iter().find(|s| s.kind == kind.code())?;
                let at = |(i, m): (usize, &u8)| (*m != 0).then_some(i);
                assert!(s.flags == 0 && s.mask.iter().all(|m| *m == 0 || *m == 0xff));
                Some(s.mask.iter().enumerate().filter_map(at).collect::<Vec<_>>())
            };
            assert_eq!(compared(SelectorType::Ethernet), Some(vec![12, 13]));
            let v4: Vec<_> = [9].into_iter().chain(12..20).collect();
            assert_eq!(compared(SelectorType::Ipv4), Some(v4));
            let v6 = [6].into_iter().chain(8..40).collect();
            assert_eq!(compared(SelectorType::Ipv6), (key != FilterKey::Ipv4).then_some(v6));
            assert_eq!(compared(SelectorType::Tcp), Some((0..4).collect()));
            assert_eq!(compared(SelectorType::Udp), Some((0..4).collect()));
        }
    }

    #[test]
    fn ethernet_comes_first_then_ip_then_tcp_or_udp() {
        let ip4 = selector(SelectorType::Ipv4, &[(9, 10)]);
        let ip6 = selector(SelectorType::Ipv6, &[(6, 7)]);
        let [tcp, udp] = [SelectorType::Tcp, SelectorType::Udp].map(|k| selector(k, &[(2, 4)]));
        let e = ethernet;
        for good in [
            vec![e()],
            vec![e(), ip4.clone()],
            vec![e(), ip6.clone()],
            vec![e(), ip4.clone(), udp.clone()],
            vec![e(), ip6.clone(), tcp.clone()],
        ] {
            assert!(possible(&good), "{good:?}");
        }
        for bad in [
            vec![],
            vec![ip4.clone()],
            vec![e(), tcp.clone()],
            vec![e(), e()],
            vec![e(), ip4.clone(), ip6.clone()],
            vec![e(), ip4.clone(), tcp.clone(), udp.clone()],
            vec![e(), Selector { kind: 6, flags: 0, mask: vec![0; 8] }],
        ] {
            assert!(!possible(&bad), "{bad:?}");
        }
        assert!(
            !is_possible(&Classifier { selectors: vec![e(), ip4] }, &device(FilterKey::Any), 1),
            "more than agreed"
        );
    }

    #[test]
    fn a_header_before_another_is_compared_where_it_says_what_comes() {
        let all = selector(SelectorType::Ethernet, &[(0, 14)]);
        let none = Selector::new(SelectorType::Ethernet);
        let ip4 = Selector::new(SelectorType::Ipv4);
        assert!(possible(&[all, ip4.clone()]));
        assert!(possible(std::slice::from_ref(&none)), "it is the last");
        assert!(!possible(&[none, ip4.clone()]));
        let udp = Selector::new(SelectorType::Udp);
        assert!(!possible(&[ethernet(), ip4, udp.clone()]));
        let mut part = selector(SelectorType::Ipv6, &[(6, 7)]);
        part.mask[6] = 0x7f;
        assert!(!possible(&[ethernet(), part, udp]));
    }

    #[test]
    fn a_mask_may_only_compare_what_the_capability_has_and_in_part_only_where_it_says_so() {
        let mut ip4 = Selector::new(SelectorType::Ipv4);
        ip4.mask[8] = 1; // the TTL
        assert!(!possible(&[ethernet(), ip4.clone()]));
        ip4.mask[8] = 0;
        ip4.mask[15] = 0xf0;
        assert!(possible(&[ethernet(), ip4.clone()]), "the flag need not be repeated");
        ip4.flags = Selector::PARTIAL_MASK;
        assert!(possible(&[ethernet(), ip4.clone()]));
        ip4.flags = 2;
        assert!(!possible(&[ethernet(), ip4.clone()]));
        ip4.flags = 0;
        ip4.mask.pop();
        assert!(!possible(&[ethernet(), ip4.clone()]));
        ip4.mask.push(0);

        let mut whole = device(FilterKey::Any);
        whole.selectors.iter_mut().for_each(|s| s.flags = 0);
        let under = |s: &[Selector]| is_possible(&Classifier { selectors: s.to_vec() }, &whole, MOST);
        assert!(!under(&[ethernet(), ip4.clone()]));
        ip4.mask[12..16].fill(0xff);
        assert!(under(&[ethernet(), ip4.clone()]));
        let ip4 = selector(SelectorType::Ipv4, &[(9, 10)]);
        let mut syn = Selector::new(SelectorType::Tcp);
        syn.mask[13] = 2;
        assert!(under(&[ethernet(), ip4, syn]), "control bits are fields of their own");
    }

    #[test]
    fn capabilities_are_in_order_and_within_the_device_s() {
        let device = device(FilterKey::Any);
        assert!(is_within(&device, &device) && is_within(&Classifier::default(), &device));
        let change = |f: &dyn Fn(&mut Vec<Selector>)| {
            let mut wanted = device.clone();
            f(&mut wanted.selectors);
            is_within(&wanted, &device)
        };
        assert!(change(&|s| drop(s.remove(2))));
        assert!(change(&|s| s[0].mask[0] = 0));
        assert!(!change(&|s| s.swap(0, 1)));
        assert!(!change(&|s| s.insert(1, s[0].clone())));
        assert!(!change(&|s| s[1].mask[0] = 0xff));
        assert!(!change(&|s| s[1].flags = 3));
        assert!(!change(&|s| s[4].kind = 6));
        assert!(!change(&|s| s[4].mask.push(0)));
    }

    #[test]
    fn keys_become_what_a_rule_compares() {
        let ip4 = selector(SelectorType::Ipv4, &[(9, 10), (16, 20)]);
        let tcp = selector(SelectorType::Tcp, &[(2, 4), (13, 14)]);
        let classifier = Classifier { selectors: vec![ethernet(), ip4, tcp] };
        let mut keys = vec![0; 54];
        keys[12..14].copy_from_slice(&[8, 0]);
        keys[14 + 9] = 6;
        keys[14 + 16..14 + 20].copy_from_slice(&[10, 0, 0, 2]);
        keys[34 + 2..34 + 4].copy_from_slice(&[0, 80]);
        keys[34 + 13] = 0x10;
        let fields = fields_of(&classifier, &keys).unwrap();
        assert_eq!(fields.mask(), mask_of(&classifier).mask());
        let frame = Frame::new("10.0.0.1", "10.0.0.2", 6, (9, 80));
        let flags = frame.headers().tcp_flags().unwrap();
        assert_eq!(fields.matches(&frame.headers()), flags == 0x10);
        keys[34 + 13] = flags;
        assert!(fields_of(&classifier, &keys).unwrap().matches(&frame.headers()));
        assert!(
            !fields_of(&classifier, &keys).unwrap().matches(&Frame { ports: (9, 81), ..frame }.headers())
        );
        assert!(!fields_of(&classifier, &keys).unwrap().matches(&udp6().headers()));

        for (at, value) in [(12, 9), (13, 6), (14 + 9, 17)] {
            let mut wrong = keys.clone();
            wrong[at] = value;
            assert_eq!(fields_of(&classifier, &wrong), None, "byte {at}");
        }
        assert_eq!(fields_of(&classifier, &keys[..53]), None);
        keys.push(0);
        assert_eq!(fields_of(&classifier, &keys), None);
    }

    #[test]
    fn ipv6_and_udp_become_fields_too() {
        let ip6 = selector(SelectorType::Ipv6, &[(6, 7), (8, 24), (24, 40)]);
        let udp = selector(SelectorType::Udp, &[(0, 2), (2, 4)]);
        let classifier = Classifier { selectors: vec![ethernet(), ip6, udp] };
        let frame = Frame::new("fd00::1", "fd00::2", 17, (5, 6));
        let mut keys = vec![0; 62];
        keys[12..14].copy_from_slice(&[0x86, 0xdd]);
        keys[14 + 6] = 17;
        keys[14 + 8..14 + 24].copy_from_slice(&"fd00::1".parse::<Ipv6Addr>().unwrap().octets());
        keys[14 + 24..14 + 40].copy_from_slice(&"fd00::2".parse::<Ipv6Addr>().unwrap().octets());
        keys[54..58].copy_from_slice(&[0, 5, 0, 6]);
        let fields = fields_of(&classifier, &keys).unwrap();
        assert_eq!(fields.mask(), mask_of(&classifier).mask());
        assert!(fields.matches(&frame.headers()) && !fields.matches(&tcp4().headers()));
        assert!(!fields.matches(&Frame { ports: (6, 5), ..frame }.headers()));
    }
}
