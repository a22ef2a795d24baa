//! Filter rules in the words of ethtool(8), `flow-type tcp4 dst-port 80 action 2 loc 7`, both ways.
//!
//! A mask after `m` is written as ethtool writes it: its 1 bits are *not* compared. An address may also have a prefix
//! length, `10.0.0.0/24`, which ethtool does not know.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::flows::{Field, FlowRule, Text, Whole, unknown_flow_type};
use crate::steer::FlowType;
use crate::virtio::MacAddr;

const WORDS: &str = "src, dst, dst-mac, proto, vlan, src-ip, dst-ip, tos, tclass, l4proto, src-port, dst-port (each with \
                     an optional 'm MASK'), action and loc";

/// Reads a rule.
///
/// # Errors
/// Names the word that is wrong, and what is allowed.
pub fn parse_flow(words: &[String]) -> Result<FlowRule, String> {
    let mut words = Words { rest: words };
    let first = words.next().unwrap_or_default();
    if first != "flow-type" {
        return Err(format!("A rule begins with 'flow-type TYPE', not with '{first}'"));
    }
    let name = words.value("flow-type")?;
    let flow_type = FlowType::by_name(name).ok_or_else(|| unknown_flow_type(name))?;
    let mut rule = FlowRule::new(flow_type, 0);
    let mut has_action = false;
    while let Some(word) = words.next() {
        match word {
            "src" => once(&mut rule.src_mac, word, words.field(word, mac)?)?,
            "dst" | "dst-mac" => once(&mut rule.dst_mac, word, words.field(word, mac)?)?,
            "proto" => once(&mut rule.ethertype, word, words.field(word, number16)?)?,
            "vlan" => once(&mut rule.vlan, word, words.field(word, number16)?)?,
            "src-ip" => once(&mut rule.src_ip, word, words.address(word)?)?,
            "dst-ip" => once(&mut rule.dst_ip, word, words.address(word)?)?,
            "tos" | "tclass" => once(&mut rule.tos, word, words.field(word, number8)?)?,
            "l4proto" => once(
                &mut rule.l4_proto,
                word,
                number8(words.value(word)?).map_err(|e| format!("{word}: {e}"))?,
            )?,
            "src-port" => once(&mut rule.src_port, word, words.field(word, number16)?)?,
            "dst-port" => once(&mut rule.dst_port, word, words.field(word, number16)?)?,
            "loc" => {
                let value = words.value(word)?;
                let loc = value.parse().map_err(|_| format!("loc: '{value}' is no location, a number is"))?;
                once(&mut rule.loc, word, loc)?;
            }
            "action" if has_action => return Err(twice(word)),
            "action" => {
                let value = words.value(word)?;
                rule.action = value
                    .parse()
                    .map_err(|_| format!("action: '{value}' is none; -1 drops, else a queue's number"))?;
                has_action = true;
            }
            _ => return Err(format!("A rule has no '{word}'; it has {WORDS}")),
        }
    }
    if has_action { Ok(rule) } else { Err("The rule has no action: -1 drops, else a queue's number".into()) }
}

fn twice(word: &str) -> String {
    format!("'{word}' is given twice")
}

fn once<T>(place: &mut Option<T>, word: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(twice(word)),
    }
}

struct Words<'a> {
    rest: &'a [String],
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn value(&mut self, word: &str) -> Result<&'a str, String> {
        self.next().ok_or_else(|| format!("'{word}' has no value"))
    }

    /// The mask that may follow, as it is written.
    fn mask(&mut self, word: &str) -> Result<Option<&'a str>, String> {
        if self.rest.first().is_none_or(|w| w != "m") {
            return Ok(None);
        }
        self.next();
        self.value(&format!("{word} m")).map(Some)
    }

    fn field<T: Whole + Inverse>(
        &mut self,
        word: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Field<T>, String> {
        let parse = |s: &str| parse(s).map_err(|e| format!("{word}: {e}"));
        let value = parse(self.value(word)?)?;
        Ok(match self.mask(word)? {
            Some(mask) => Field::new(value, parse(mask)?.inverse()),
            None => Field::Exact(value),
        })
    }

    fn address(&mut self, word: &str) -> Result<Field<IpAddr>, String> {
        let text = self.rest.first().map_or("", String::as_str);
        let Some((address, prefix)) = text.split_once('/') else { return self.field(word, ip) };
        self.next();
        let address = ip(address).map_err(|e| format!("{word}: {e}"))?;
        let bits: u32 = if address.is_ipv4() { 32 } else { 128 };
        let len: u32 = prefix
            .parse()
            .ok()
            .filter(|len| *len <= bits)
            .ok_or_else(|| format!("{word}: '/{prefix}' is no prefix length, /0 to /{bits} are"))?;
        if self.mask(word)?.is_some() {
            return Err(format!("{word} has a prefix length and a mask; it takes one"));
        }
        let mask: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - len).unwrap_or(0)).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(u128::MAX.checked_shl(128 - len).unwrap_or(0)).into(),
        };
        Ok(Field::new(address, mask))
    }
}

/// Decimal, or hexadecimal after `0x`.
fn number(s: &str, max: u64) -> Result<u64, String> {
    let parsed = match s.strip_prefix("0x").or_else(|| s.strip_prefix("0X")) {
        Some(hex) if !hex.starts_with('+') => u64::from_str_radix(hex, 16).ok(),
        _ => s.parse().ok(),
    };
    parsed.filter(|n| *n <= max).ok_or_else(|| format!("'{s}' is not possible; 0 to {max} (or {max:#x}) is"))
}

fn number8(s: &str) -> Result<u8, String> {
    number(s, 0xff).map(|n| n as u8)
}

fn number16(s: &str) -> Result<u16, String> {
    number(s, 0xffff).map(|n| n as u16)
}

fn mac(s: &str) -> Result<Text<MacAddr>, String> {
    s.parse().map(Text)
}

fn ip(s: &str) -> Result<IpAddr, String> {
    s.parse().map_err(|_| format!("'{s}' is no IP address"))
}

/// All bits the other way.
trait Inverse {
    fn inverse(self) -> Self;
}

impl Inverse for u8 {
    fn inverse(self) -> Self {
        !self
    }
}

impl Inverse for u16 {
    fn inverse(self) -> Self {
        !self
    }
}

impl Inverse for Text<MacAddr> {
    fn inverse(self) -> Self {
        Text(MacAddr(self.0.0.map(|b| !b)))
    }
}

impl Inverse for IpAddr {
    fn inverse(self) -> Self {
        match self {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(!ip.to_bits()).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(!ip.to_bits()).into(),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The words that [`parse_flow`] makes the same rule of.
impl fmt::Display for FlowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn put<T: Whole + Inverse>(
            f: &mut fmt::Formatter<'_>,
            word: &str,
            field: Option<Field<T>>,
            show: impl Fn(T) -> String,
        ) -> fmt::Result {
            match field.map(|field| {
                let (value, mask) = field.parts();
                Field::new(value, mask)
            }) {
                None => Ok(()),
                Some(Field::Exact(value)) => write!(f, " {word} {}", show(value)),
                Some(Field::Masked { value, mask }) => {
                    write!(f, " {word} {} m {}", show(value), show(mask.inverse()))
                }
            }
        }
        let hex = |n: u16| format!("{n:#x}");
        let tos = if matches!(self.flow_type, FlowType::Ip6 | FlowType::Tcp6 | FlowType::Udp6) {
            "tclass"
        } else {
            "tos"
        };
        write!(f, "flow-type {}", self.flow_type)?;
        put(f, "src", self.src_mac, |v| v.to_string())?;
        put(f, "dst", self.dst_mac, |v| v.to_string())?;
        put(f, "proto", self.ethertype, hex)?;
        put(f, "vlan", self.vlan, hex)?;
        put(f, "src-ip", self.src_ip, |v| v.to_string())?;
        put(f, "dst-ip", self.dst_ip, |v| v.to_string())?;
        put(f, tos, self.tos, |v| format!("{v:#x}"))?;
        if let Some(protocol) = self.l4_proto {
            write!(f, " l4proto {protocol}")?;
        }
        put(f, "src-port", self.src_port, |v| v.to_string())?;
        put(f, "dst-port", self.dst_port, |v| v.to_string())?;
        write!(f, " action {}", self.action)?;
        match self.loc {
            Some(loc) => write!(f, " loc {loc}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(s: &str) -> Result<FlowRule, String> {
        parse_flow(&s.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn every_word_means_its_field_and_comes_back() {
        for s in [
            "flow-type ether src 02:00:00:00:00:01 dst 02:00:00:00:00:02 m 00:00:00:00:00:ff proto 0x88b5 vlan 0x5 m 0xf000 action -1",
            "flow-type tcp4 src-ip 10.0.0.1 dst-ip 10.0.1.0 m 0.0.0.255 tos 0x10 src-port 1 dst-port 80 m 3 action 2 loc 7",
            "flow-type ip6 src-ip 2001:db8::1 dst-ip 2001:db8:: m ::ffff tclass 0x8 m 0x3 l4proto 58 action 0",
        ] {
            let rule = parse(s).unwrap();
            assert_eq!(rule.to_string(), s);
            let json = serde_json::to_value(&rule).unwrap();
            assert_eq!(serde_json::from_value::<FlowRule>(json).unwrap(), rule);
        }
    }

    #[test]
    fn a_mask_s_one_bits_are_not_compared_as_in_ethtool() {
        let rule = parse("flow-type tcp4 dst-ip 10.0.0.0 m 0.0.0.255 dst-port 80 m 0x000f action 1").unwrap();
        let mask: IpAddr = "255.255.255.0".parse().unwrap();
        assert_eq!(rule.dst_ip, Some(Field::Masked { value: "10.0.0.0".parse().unwrap(), mask }));
        assert_eq!(rule.dst_port, Some(Field::Masked { value: 80, mask: 0xfff0 }));
        let all = parse("flow-type tcp4 dst-port 80 m 0 action 1").unwrap();
        assert_eq!(all.dst_port, Some(Field::Exact(80)));
    }

    #[test]
    fn prefix_lengths_are_masks() {
        let mask = |s: &str| parse(s).unwrap().src_ip.unwrap().parts().1.to_string();
        assert_eq!(mask("flow-type ip4 src-ip 10.0.0.0/8 action 0"), "255.0.0.0");
        assert_eq!(mask("flow-type ip4 src-ip 10.0.0.0/0 action 0"), "0.0.0.0");
        assert_eq!(mask("flow-type ip4 src-ip 10.0.0.0/32 action 0"), "255.255.255.255");
        assert_eq!(mask("flow-type ip6 src-ip fe80::/10 action 0"), "ffc0::");
        assert_eq!(mask("flow-type ip6 src-ip fe80::/0 action 0"), "::");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (s, wanted) in [
            ("", "begins with 'flow-type TYPE'"),
            ("dst-port 80 action 1", "begins with 'flow-type TYPE', not with 'dst-port'"),
            ("flow-type", "'flow-type' has no value"),
            ("flow-type sctp4 action 1", "'sctp4' is no flow-type; there are ether, ip4"),
            ("flow-type tcp4 dst-port 80", "has no action"),
            ("flow-type tcp4 dport 80 action 1", "A rule has no 'dport'; it has src, dst"),
            ("flow-type tcp4 dst-port 65536 action 1", "dst-port: '65536' is not possible; 0 to 65535"),
            ("flow-type tcp4 dst-port 80 m action", "dst-port: 'action' is not possible"),
            ("flow-type tcp4 dst-port 80 m", "'dst-port m' has no value"),
            ("flow-type tcp4 dst-port 80 dst-port 81 action 1", "'dst-port' is given twice"),
            ("flow-type tcp4 dst 02:: action 1", "dst: '02::' is no MAC address"),
            ("flow-type tcp4 src-ip 10.0.0 action 1", "src-ip: '10.0.0' is no IP address"),
            ("flow-type tcp4 src-ip 10.0.0.0/33 action 1", "'/33' is no prefix length, /0 to /32 are"),
            ("flow-type tcp4 src-ip 10.0.0.0/3 m 1.1.1.1 action 1", "a prefix length and a mask"),
            ("flow-type tcp4 action drop", "action: 'drop' is none; -1 drops"),
            ("flow-type tcp4 action 1 action 2", "'action' is given twice"),
            ("flow-type tcp4 action 1 loc x", "loc: 'x' is no location"),
        ] {
            let e = parse(s).unwrap_err();
            assert!(e.contains(wanted), "{s}: {e}");
        }
    }
}
