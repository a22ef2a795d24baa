//! ethtool's ntuple rules on top of the filter table, as `flownic ctl flows` speaks them.
//!
//! A rule lives at a *location* below the table's capacity, and the lowest location that matches wins. Adding a rule
//! where one is replaces it, in one step for the workers; if the new one is refused, the old one stays. Without a location a
//! rule gets the highest free one, as ethtool(8) does: it yields to every rule whose place was chosen.
//!
//! Free locations: all locations above `cursor` are taken. So the search for a free one starts there, goes down,
//! and costs O(1) over any run of additions.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::filter::{FilterError, FilterTable, NTUPLE_GROUP};
use super::key::Match;
use super::tuple::{Action, Rank, RuleSlot};
use crate::packet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::virtio::MacAddr;

/// ethtool's `flow-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowType {
    /// `ether`: any frame.
    Ether,
    /// `ip4`: any IPv4 packet.
    Ip4,
    /// `ip6`: any IPv6 packet.
    Ip6,
    /// `tcp4`: TCP over IPv4.
    Tcp4,
    /// `udp4`: UDP over IPv4.
    Udp4,
    /// `tcp6`: TCP over IPv6.
    Tcp6,
    /// `udp6`: UDP over IPv6.
    Udp6,
}

impl FlowType {
    /// Every flow type.
    pub const ALL: [FlowType; 7] = [
        FlowType::Ether,
        FlowType::Ip4,
        FlowType::Ip6,
        FlowType::Tcp4,
        FlowType::Udp4,
        FlowType::Tcp6,
        FlowType::Udp6,
    ];

    /// ethtool's word for it.
    pub fn name(self) -> &'static str {
        match self {
            FlowType::Ether => "ether",
            FlowType::Ip4 => "ip4",
            FlowType::Ip6 => "ip6",
            FlowType::Tcp4 => "tcp4",
            FlowType::Udp4 => "udp4",
            FlowType::Tcp6 => "tcp6",
            FlowType::Udp6 => "udp6",
        }
    }

    /// The type of a word.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.name() == name)
    }
}

impl fmt::Display for FlowType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A value, and which of its bits are compared (1 = compared; ethtool's command line writes its `m` masks the other way).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Masked<T> {
    /// The value; bits outside the mask mean nothing.
    pub value: T,
    /// The mask.
    pub mask: T,
}

/// An ntuple rule. Fields that are `None` match anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NtupleSpec {
    /// What kind of packet; it decides which fields may be given.
    pub flow_type: FlowType,
    /// `src`: source MAC address.
    pub src_mac: Option<Masked<MacAddr>>,
    /// `dst` or `dst-mac`: destination MAC address.
    pub dst_mac: Option<Masked<MacAddr>>,
    /// `proto`: EtherType after all tags; only with `ether`.
    pub ethertype: Option<Masked<u16>>,
    /// `vlan`: TCI of the outermost tag.
    pub vlan: Option<Masked<u16>>,
    /// `src-ip`, of the family of the flow type.
    pub src_ip: Option<Masked<IpAddr>>,
    /// `dst-ip`, of the family of the flow type.
    pub dst_ip: Option<Masked<IpAddr>>,
    /// `tos` or `tclass`; only with IP.
    pub tos: Option<Masked<u8>>,
    /// `l4proto`: IP protocol; only with `ip4` and `ip6`.
    pub l4_proto: Option<u8>,
    /// `src-port`; only with TCP and UDP.
    pub src_port: Option<Masked<u16>>,
    /// `dst-port`; only with TCP and UDP.
    pub dst_port: Option<Masked<u16>>,
    /// -1 drops, anything else is the receive queue.
    pub action: i64,
    /// Location; `None` = the highest free one.
    pub loc: Option<u32>,
}

impl NtupleSpec {
    /// A rule that matches every packet of a type.
    pub fn new(flow_type: FlowType, action: i64) -> Self {
        Self {
            flow_type,
            src_mac: None,
            dst_mac: None,
            ethertype: None,
            vlan: None,
            src_ip: None,
            dst_ip: None,
            tos: None,
            l4_proto: None,
            src_port: None,
            dst_port: None,
            action,
            loc: None,
        }
    }

    /// What the rule compares, or which field does not go with the flow type.
    pub fn fields(&self) -> Result<Match, FilterError> {
        use FlowType::{Ether, Ip4, Ip6, Tcp4, Tcp6, Udp4, Udp6};
        let t = self.flow_type;
        let refuse = |field: &str, allowed: &str| {
            Err(FilterError::Invalid(format!("{field} does not go with flow-type {t}, only with {allowed}")))
        };
        if self.ethertype.is_some() && t != Ether {
            return refuse("proto", "ether");
        }
        if (self.src_ip.is_some() || self.dst_ip.is_some() || self.tos.is_some()) && t == Ether {
            return refuse("src-ip, dst-ip or tos", "ip4, ip6, tcp4, udp4, tcp6 and udp6");
        }
        if self.l4_proto.is_some() && !matches!(t, Ip4 | Ip6) {
            return refuse("l4proto", "ip4 and ip6");
        }
        if (self.src_port.is_some() || self.dst_port.is_some()) && matches!(t, Ether | Ip4 | Ip6) {
            return refuse("src-port or dst-port", "tcp4, udp4, tcp6 and udp6");
        }
        let mut m = match t {
            Ether => Match::new(),
            Ip4 => Match::new().ethertype(ETHERTYPE_IPV4, 0xffff).ipv4(),
            Tcp4 => Match::new().ethertype(ETHERTYPE_IPV4, 0xffff).ipv4().tcp(),
            Udp4 => Match::new().ethertype(ETHERTYPE_IPV4, 0xffff).ipv4().udp(),
            Ip6 => Match::new().ethertype(ETHERTYPE_IPV6, 0xffff).ipv6(),
            Tcp6 => Match::new().ethertype(ETHERTYPE_IPV6, 0xffff).ipv6().tcp(),
            Udp6 => Match::new().ethertype(ETHERTYPE_IPV6, 0xffff).ipv6().udp(),
        };
        if let Some(f) = self.src_mac {
            m = m.eth_src(f.value, f.mask);
        }
        if let Some(f) = self.dst_mac {
            m = m.eth_dst(f.value, f.mask);
        }
        if let Some(f) = self.ethertype {
            m = m.ethertype(f.value, f.mask);
        }
        if let Some(f) = self.vlan {
            m = m.vlan(f.value, f.mask);
        }
        m = match (self.src_ip.map(|f| (f.value, f.mask)), t) {
            (None, _) => m,
            (Some((IpAddr::V4(v), IpAddr::V4(mask))), Ip4 | Tcp4 | Udp4) => m.ipv4_src(v, mask),
            (Some((IpAddr::V6(v), IpAddr::V6(mask))), Ip6 | Tcp6 | Udp6) => m.ipv6_src(v, mask),
            _ => return Err(other_family("src-ip", t)),
        };
        m = match (self.dst_ip.map(|f| (f.value, f.mask)), t) {
            (None, _) => m,
            (Some((IpAddr::V4(v), IpAddr::V4(mask))), Ip4 | Tcp4 | Udp4) => m.ipv4_dst(v, mask),
            (Some((IpAddr::V6(v), IpAddr::V6(mask))), Ip6 | Tcp6 | Udp6) => m.ipv6_dst(v, mask),
            _ => return Err(other_family("dst-ip", t)),
        };
        if let Some(f) = self.tos {
            m = m.tos(f.value, f.mask);
        }
        if let Some(protocol) = self.l4_proto {
            m = m.protocol(protocol, 0xff);
        }
        if let Some(f) = self.src_port {
            m = m.src_port(f.value, f.mask);
        }
        if let Some(f) = self.dst_port {
            m = m.dst_port(f.value, f.mask);
        }
        Ok(m)
    }

    fn parsed_action(&self) -> Result<Action, FilterError> {
        match self.action {
            -1 => Ok(Action::Drop),
            queue => match u16::try_from(queue) {
                Ok(queue) => Ok(Action::Queue(queue)),
                Err(_) => {
                    Err(FilterError::Invalid(format!("There is no action {queue}: -1 drops, else a queue")))
                }
            },
        }
    }
}

fn other_family(field: &str, t: FlowType) -> FilterError {
    FilterError::Invalid(format!("{field} and its mask must be of the IP version of flow-type {t}"))
}

/// The ntuple rules by location. See the module's documentation.
#[derive(Clone)]
pub(super) struct NtupleTable {
    rules: BTreeMap<u32, (RuleSlot, NtupleSpec)>,
    /// Every location from here on is taken.
    cursor: u32,
}

impl NtupleTable {
    pub(super) fn new(capacity: u32) -> Self {
        Self { rules: BTreeMap::new(), cursor: capacity }
    }

    fn highest_free(&mut self) -> Option<u32> {
        while self.rules.contains_key(&self.cursor.checked_sub(1)?) {
            self.cursor -= 1;
        }
        Some(self.cursor - 1)
    }
}

impl FilterTable {
    /// Adds an ntuple rule; its location and slot. A rule that was at the same location is gone afterwards, and stays if
    /// this one is refused.
    pub fn add_ntuple(&mut self, spec: NtupleSpec) -> Result<(u32, RuleSlot), FilterError> {
        let fields = spec.fields()?;
        let action = spec.parsed_action()?;
        self.check_action(action)?;
        let loc = match spec.loc {
            Some(loc) if loc < self.capacity() => loc,
            Some(loc) => {
                let last = self.capacity().saturating_sub(1);
                return Err(FilterError::Invalid(format!(
                    "There is no location {loc}: locations go from 0 to {last}"
                )));
            }
            None => self.ntuple.highest_free().ok_or(FilterError::NoSpace("every location is taken"))?,
        };
        let old = self.ntuple.rules.get(&loc).cloned();
        if let Some((slot, _)) = old {
            self.space.remove(slot);
        }
        match self.insert_ntuple(loc, &fields, action) {
            Ok(slot) => {
                self.ntuple.rules.insert(loc, (slot, NtupleSpec { loc: Some(loc), ..spec }));
                Ok((loc, slot))
            }
            Err(error) => {
                if let Some((_, old)) = old {
                    // What the old rule needs has just been set free, so this cannot fail.
                    let slot = self.insert_ntuple(loc, &old.fields()?, old.parsed_action()?)?;
                    self.ntuple.rules.insert(loc, (slot, old));
                }
                Err(error)
            }
        }
    }

    /// Deletes the ntuple rule at a location and returns it.
    pub fn remove_ntuple(&mut self, loc: u32) -> Result<NtupleSpec, FilterError> {
        let (slot, spec) = self
            .ntuple
            .rules
            .remove(&loc)
            .ok_or(FilterError::NotFound { what: "rule at location", id: loc })?;
        self.space.remove(slot);
        self.ntuple.cursor = self.ntuple.cursor.max(loc + 1);
        Ok(spec)
    }

    /// Deletes all ntuple rules.
    pub fn clear_ntuples(&mut self) {
        for (slot, _) in std::mem::take(&mut self.ntuple.rules).into_values() {
            self.space.remove(slot);
        }
        self.ntuple.cursor = self.capacity();
    }

    /// All ntuple rules in order of location, that is of precedence, with their slots; `loc` is always set.
    pub fn ntuples(&self) -> impl Iterator<Item = (u32, RuleSlot, &NtupleSpec)> {
        self.ntuple.rules.iter().map(|(&loc, (slot, spec))| (loc, *slot, spec))
    }

    fn insert_ntuple(&mut self, loc: u32, fields: &Match, action: Action) -> Result<RuleSlot, FilterError> {
        let rank = Rank::new(NTUPLE_GROUP, 0, loc);
        Ok(self.space.insert(NTUPLE_GROUP, &fields.mask().0, fields.key(), rank, action)?)
    }
}

#[cfg(test)]
#[path = "ntuple_tests.rs"]
mod tests;
