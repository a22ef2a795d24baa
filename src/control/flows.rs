//! Filter rules as they are in requests and replies.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::steer::{FlowType, Masked, NtupleSpec};
use crate::virtio::MacAddr;

/// Something that is written as text, like a MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<T>(pub T);

impl<T: fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Text).map_err(D::Error::custom)
    }
}

/// A field of a rule: a value that is compared whole, or with a mask (1 = compared).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "neither a value that the field can have, nor {value, mask} of those")]
pub enum Field<T> {
    /// All bits.
    Exact(T),
    /// Some bits.
    Masked {
        /// The value.
        value: T,
        /// The bits that are compared.
        mask: T,
    },
}

/// What a mask can be of.
pub trait Whole: Copy + PartialEq {
    /// The mask that compares all bits of this value.
    fn whole(self) -> Self;
}

macro_rules! whole {
    ($($t:ty: $of:pat => $mask:expr;)*) => {$(
        impl Whole for $t {
            fn whole(self) -> Self {
                let $of = self;
                $mask
            }
        }
    )*};
}

whole! {
    u8: _ => u8::MAX;
    u16: _ => u16::MAX;
    MacAddr: _ => MacAddr([0xff; 6]);
    IpAddr: ip => match ip {
        IpAddr::V4(_) => Ipv4Addr::BROADCAST.into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(u128::MAX).into(),
    };
    Text<MacAddr>: Text(mac) => Text(mac.whole());
}

impl<T: Whole> Field<T> {
    /// The field of these two; the shorter form if that says the same.
    pub(super) fn new(value: T, mask: T) -> Self {
        if mask == value.whole() { Field::Exact(value) } else { Field::Masked { value, mask } }
    }

    /// Value and mask.
    pub fn parts(self) -> (T, T) {
        match self {
            Field::Exact(value) => (value, value.whole()),
            Field::Masked { value, mask } => (value, mask),
        }
    }

    fn masked(self) -> Masked<T> {
        let (value, mask) = self.parts();
        Masked { value, mask }
    }
}

/// An ntuple rule. What is not given matches anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowRule {
    /// `ether`, `ip4`, `ip6`, `tcp4`, `udp4`, `tcp6` or `udp6`; it decides what else may be given.
    #[serde(with = "flow_type")]
    pub flow_type: FlowType,
    /// Source MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_mac: Option<Field<Text<MacAddr>>>,
    /// Destination MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_mac: Option<Field<Text<MacAddr>>>,
    /// EtherType, only with `ether`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<Field<u16>>,
    /// TCI of the outermost VLAN tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<Field<u16>>,
    /// Source IP address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_ip: Option<Field<IpAddr>>,
    /// Destination IP address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_ip: Option<Field<IpAddr>>,
    /// Type of service or traffic class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tos: Option<Field<u8>>,
    /// IP protocol, only with `ip4` and `ip6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l4_proto: Option<u8>,
    /// Source port, only with TCP and UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_port: Option<Field<u16>>,
    /// Destination port, only with TCP and UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<Field<u16>>,
    /// Receive queue, or -1 to drop.
    pub action: i64,
    /// Location; the lowest that matches decides. The highest free one if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loc: Option<u32>,
}

mod flow_type {
    use super::*;

    pub(super) fn serialize<S: Serializer>(t: &FlowType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(t.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FlowType, D::Error> {
        let name = String::deserialize(deserializer)?;
        FlowType::by_name(&name).ok_or_else(|| D::Error::custom(unknown_flow_type(&name)))
    }
}

pub(super) fn unknown_flow_type(name: &str) -> String {
    let all = FlowType::ALL.map(FlowType::name).join(", ");
    format!("'{name}' is no flow-type; there are {all}")
}

impl FlowRule {
    /// A rule that matches every packet of a type.
    pub fn new(flow_type: FlowType, action: i64) -> Self {
        FlowRule::from(&NtupleSpec::new(flow_type, action))
    }
}

impl From<FlowRule> for NtupleSpec {
    fn from(r: FlowRule) -> Self {
        let mac = |f: Field<Text<MacAddr>>| {
            let (value, mask) = f.parts();
            Masked { value: value.0, mask: mask.0 }
        };
        NtupleSpec {
            flow_type: r.flow_type,
            src_mac: r.src_mac.map(mac),
            dst_mac: r.dst_mac.map(mac),
            ethertype: r.ethertype.map(Field::masked),
            vlan: r.vlan.map(Field::masked),
            src_ip: r.src_ip.map(Field::masked),
            dst_ip: r.dst_ip.map(Field::masked),
            tos: r.tos.map(Field::masked),
            l4_proto: r.l4_proto,
            src_port: r.src_port.map(Field::masked),
            dst_port: r.dst_port.map(Field::masked),
            action: r.action,
            loc: r.loc,
        }
    }
}

impl From<&NtupleSpec> for FlowRule {
    fn from(s: &NtupleSpec) -> Self {
        fn field<T: Whole>(f: Masked<T>) -> Field<T> {
            Field::new(f.value, f.mask)
        }
        let mac = |f: Masked<MacAddr>| Field::new(Text(f.value), Text(f.mask));
        FlowRule {
            flow_type: s.flow_type,
            src_mac: s.src_mac.map(mac),
            dst_mac: s.dst_mac.map(mac),
            ethertype: s.ethertype.map(field),
            vlan: s.vlan.map(field),
            src_ip: s.src_ip.map(field),
            dst_ip: s.dst_ip.map(field),
            tos: s.tos.map(field),
            l4_proto: s.l4_proto,
            src_port: s.src_port.map(field),
            dst_port: s.dst_port.map(field),
            action: s.action,
            loc: s.loc,
        }
    }
}
