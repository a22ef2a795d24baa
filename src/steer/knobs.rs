//! In what filter hardware differs: how soon a rule is in force, how many are on their way at a time, what changing one does,
//! and what a rule can compare.
//!
//! A driver that is right on one card is wrong on another because of these. They are about rules of the guest; the host's
//! rules (`ntuple`) are in force at once.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::key::{Key, Mask};
use crate::packet::words::presence;

/// Longest delay.
pub const DELAY_MAX: Duration = Duration::from_secs(3600);
/// Most inserts that can be on their way.
pub const IN_FLIGHT_MAX: u32 = 1 << 20;

/// What changing a rule's action does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replace {
    /// The old action holds until the new one takes its place.
    #[default]
    Atomic,
    /// The rule is taken out at once, and is back with the new action after the delay.
    DeleteAdd,
    /// Nothing, though the answer says that it was done: the old action holds until the rule is destroyed.
    None,
}

/// What a rule can compare. A field is compared whole or not at all, except with [`FilterKey::Any`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FilterKey {
    /// Any fields under any masks.
    #[default]
    Any,
    /// Both addresses, both ports and the protocol: all five, of IPv4 or IPv6.
    FiveTuple,
    /// Any of addresses and ports, one at least, of TCP and UDP over IPv4 or IPv6.
    FourTuple,
    /// As [`FilterKey::FiveTuple`], of IPv4 only.
    Ipv4,
}

/// The named values of both.
macro_rules! words {
    ($type:ty, $what:literal, $($word:literal = $value:path),*) => {
        impl $type {
            /// Every value, in the order in which they are explained.
            pub const ALL: &'static [Self] = &[$($value),*];

            /// Its word in settings.
            pub fn name(self) -> &'static str {
                match self { $($value => $word),* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(s: &str) -> Result<Self, String> {
                let all = [$($word),*];
                Self::ALL.iter().copied().find(|v| v.name() == s)
                    .ok_or_else(|| format!("'{s}' is no {}; there are {}", $what, all.join(", ")))
            }
        }
    };
}

words!(
    Replace,
    "way to replace",
    "atomic" = Replace::Atomic,
    "delete-add" = Replace::DeleteAdd,
    "none" = Replace::None
);
words!(
    FilterKey,
    "filter key",
    "any" = FilterKey::Any,
    "5-tuple" = FilterKey::FiveTuple,
    "4-tuple" = FilterKey::FourTuple,
    "ipv4" = FilterKey::Ipv4
);

/// How the filter table takes rules of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Knobs {
    /// A rule is in force so long after it was accepted.
    pub delay: Duration,
    /// Rules that may be accepted and not in force yet; any number if there is none.
    pub in_flight: Option<u32>,
    /// What changing a rule does.
    pub replace: Replace,
    /// What a rule can compare.
    pub key: FilterKey,
}

impl FilterKey {
    /// Whether a classifier may have this mask.
    pub fn accepts(self, mask: &Mask) -> bool {
        if self == FilterKey::Any {
            return true;
        }
        let Mask(key) = mask;
        let Some((source, destination)) = addresses(key) else { return false };
        let last = key.0[6];
        let (ports, protocol, others) = (last >> 32, last >> 24 & 0xff, last >> 8 & 0xffff);
        let fields = [source, destination, part(ports >> 16, 0xffff), part(ports & 0xffff, 0xffff)];
        let macs_and_vlan = key.0[0] >> 16 | key.0[1];
        if protocol != 0xff || others != 0 || macs_and_vlan != 0 || fields.contains(&Part::Some) {
            return false;
        }
        let all = fields.iter().all(|f| *f == Part::All);
        match self {
            FilterKey::Any => true,
            FilterKey::FiveTuple => all,
            FilterKey::FourTuple => fields.contains(&Part::All),
            FilterKey::Ipv4 => all && key.presence() & presence::V4 != 0,
        }
    }
}

/// How much of a field is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    None,
    Some,
    All,
}

fn part(mask: u64, all: u64) -> Part {
    match mask {
        0 => Part::None,
        m if m == all => Part::All,
        _ => Part::Some,
    }
}

/// How much of both addresses is compared; none if the mask does not say of which IP version they are.
fn addresses(key: &Key) -> Option<(Part, Part)> {
    let [_, _, a, b, c, d, _] = key.0;
    match (key.presence() & presence::V4 != 0, key.presence() & presence::V6 != 0) {
        (true, false) => Some((part(a >> 32, 0xffff_ffff), part(a & 0xffff_ffff, 0xffff_ffff))),
        (false, true) => {
            let both = |x, y| match (part(x, u64::MAX), part(y, u64::MAX)) {
                (x, y) if x == y => x,
                _ => Part::Some,
            };
            Some((both(a, b), both(c, d)))
        }
        _ => None,
    }
}

/// A time as people write it: `0`, `20us`, `5ms`, `1s`.
///
/// # Errors
/// Says what is possible.
pub fn parse_delay(s: &str) -> Result<Duration, String> {
    let digits = s.len() - s.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = s.split_at(digits);
    let nanos = match (number.parse::<u64>(), unit) {
        (Ok(0), "") => Some(0),
        (Ok(n), "ns") => Some(n),
        (Ok(n), "us") => n.checked_mul(1_000),
        (Ok(n), "ms") => n.checked_mul(1_000_000),
        (Ok(n), "s") => n.checked_mul(1_000_000_000),
        _ => None,
    };
    let possible = nanos.map(Duration::from_nanos).filter(|d| *d <= DELAY_MAX);
    possible.ok_or_else(|| {
        format!("'{s}' is no delay; 0 to {} s are, with a unit: 20us, 5ms, 1s", DELAY_MAX.as_secs())
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::steer::Match;
    use crate::virtio::MacAddr;

    const V4: Ipv4Addr = Ipv4Addr::BROADCAST;
    const V6: Ipv6Addr = Ipv6Addr::from_bits(u128::MAX);

    fn tcp4() -> Match {
        Match::new().ethertype(0x0800, 0xffff).ipv4().tcp()
    }

    fn full4() -> Match {
        tcp4().ipv4_src(V4, V4).ipv4_dst(V4, V4).src_port(1, 0xffff).dst_port(2, 0xffff)
    }

    fn full6() -> Match {
        let m = Match::new().ethertype(0x86dd, 0xffff).ipv6().udp();
        m.ipv6_src(V6, V6).ipv6_dst(V6, V6).src_port(1, 0xffff).dst_port(2, 0xffff)
    }

    #[test]
    fn each_key_takes_what_it_says_and_nothing_else() {
        let half = Ipv6Addr::from_bits(u128::MAX << 64);
        // any, 5-tuple, 4-tuple, ipv4
        for (what, m, expected) in [
            ("all of IPv4", full4(), [true; 4]),
            ("all of IPv6", full6(), [true, true, true, false]),
            ("a port", tcp4().dst_port(80, 0xffff), [true, false, true, false]),
            ("an address", tcp4().ipv4_src(V4, V4), [true, false, true, false]),
            ("a protocol alone", tcp4(), [true, false, false, false]),
            ("a part of a port", full4().dst_port(80, 0xff00), [true, false, false, false]),
            ("a network", full4().ipv4_dst(V4, Ipv4Addr::new(255, 0, 0, 0)), [true, false, false, false]),
            ("a network of IPv6", full6().ipv6_dst(V6, half), [true, false, false, false]),
            (
                "a MAC address",
                full4().eth_dst(MacAddr([2; 6]), MacAddr([255; 6])),
                [true, false, false, false],
            ),
            ("a tag", full4().vlan(5, 0xfff), [true, false, false, false]),
            ("a TOS", full4().tos(4, 0xff), [true, false, false, false]),
            ("TCP flags", full4().tcp_flags(2, 2), [true, false, false, false]),
            ("no IP version", Match::new().ethertype(0x88b5, 0xffff), [true, false, false, false]),
            ("everything", Match::new(), [true, false, false, false]),
        ] {
            let found = FilterKey::ALL.iter().map(|k| k.accepts(&m.mask())).collect::<Vec<_>>();
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn words_and_delays_are_read_as_they_are_written() {
        for key in FilterKey::ALL {
            assert_eq!(key.to_string().parse(), Ok(*key));
        }
        for replace in Replace::ALL {
            assert_eq!(replace.to_string().parse(), Ok(*replace));
        }
        assert_eq!(
            "6-tuple".parse::<FilterKey>().unwrap_err(),
            "'6-tuple' is no filter key; there are any, 5-tuple, 4-tuple, ipv4"
        );
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("7ns", 7),
            ("20us", 20_000),
            ("5ms", 5_000_000),
            ("3600s", 3_600_000_000_000),
        ] {
            assert_eq!(parse_delay(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for bad in ["", "5", "ms", "-1ms", "1.5ms", "5 ms", "3601s", "99999999999999999999s", "5m"] {
            assert!(parse_delay(bad).unwrap_err().ends_with("with a unit: 20us, 5ms, 1s"), "{bad}");
        }
    }
}
