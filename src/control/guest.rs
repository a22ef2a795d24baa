//! What a guest has set up with commands, in the words of the protocol.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::flows::{Field, FlowRule, Text, Whole};
use super::replies::{
    CoalesceChange, CoalesceStatus, CoalesceValues, ContextStatus, GuestFlow, QueueCoalesce,
};
use super::status::{hash_type_names, key_text};
use crate::command::moderation::Moderation;
use crate::dataplane::notify::Limits;
use crate::nic::Nic;
use crate::steer::{Action, FlowType, Steering};
use crate::virtio::MacAddr;
use crate::virtio::ctrl::Coalesce;
use crate::virtio::flow::{Classifier, RuleObject, Selector, SelectorType};

/// The guest's rules, in the order of precedence.
pub(super) fn flows(nic: &Nic) -> Vec<GuestFlow> {
    let guest = nic.guest_state();
    let steering = nic.steering.read();
    let filters = steering.filters();
    let mut rules: Vec<_> = filters
        .rules()
        .filter_map(|(id, slot, rule)| {
            let (object, classifier) = guest.rule(id)?;
            let (mut words, tcp_flags) = describe(object, classifier)?;
            let mut context = None;
            words.action = match rule.action {
                Action::Drop => -1,
                Action::Queue(queue) => queue.into(),
                Action::Context { id, offset } => {
                    context = Some(id);
                    offset.into()
                }
            };
            Some(GuestFlow {
                id,
                group: rule.group,
                group_priority: filters.group(rule.group)?,
                classifier: rule.classifier,
                priority: rule.priority,
                rule: words,
                tcp_flags,
                context,
                hits: nic.rule_hits.get(slot),
            })
        })
        .collect();
    rules.sort_by_key(|r| (std::cmp::Reverse((r.group_priority, r.priority)), r.id));
    rules
}

/// Names the guest's rules by their ids: slot and id of each.
pub(super) fn rule_ids(steering: &Steering) -> impl Iterator<Item = (u32, u32)> {
    steering.filters().rules().map(|(id, slot, _)| (slot.0, id))
}

/// A value and its mask at these bytes; none if nothing of it is compared.
fn field<T: Whole>(key: &[u8], mask: &[u8], read: impl Fn(&[u8]) -> T) -> Option<Field<T>> {
    let value: Vec<u8> = key.iter().zip(mask).map(|(k, m)| k & m).collect();
    mask.iter().any(|m| *m != 0).then(|| Field::new(read(&value), read(mask)))
}

fn port(b: &[u8]) -> u16 {
    u16::from_be_bytes([b[0], b[1]])
}

fn mac(b: &[u8]) -> Text<MacAddr> {
    Text(MacAddr(std::array::from_fn(|i| b[i])))
}

fn v4(b: &[u8]) -> IpAddr {
    Ipv4Addr::from(std::array::from_fn::<u8, 4, _>(|i| b[i])).into()
}

fn v6(b: &[u8]) -> IpAddr {
    Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| b[i])).into()
}

/// A rule as ethtool would have it, and the TCP flags that ethtool has no word for; without its action.
fn describe(rule: &RuleObject, classifier: &Classifier) -> Option<(FlowRule, Option<Field<u8>>)> {
    let kinds: Vec<_> = classifier.selectors.iter().map(|s| SelectorType::from_code(s.kind)).collect();
    let flow_type = match kinds[..] {
        [Some(SelectorType::Ethernet)] => FlowType::Ether,
        [_, Some(SelectorType::Ipv4)] => FlowType::Ip4,
        [_, Some(SelectorType::Ipv6)] => FlowType::Ip6,
        [_, Some(SelectorType::Ipv4), Some(SelectorType::Tcp)] => FlowType::Tcp4,
        [_, Some(SelectorType::Ipv4), Some(SelectorType::Udp)] => FlowType::Udp4,
        [_, Some(SelectorType::Ipv6), Some(SelectorType::Tcp)] => FlowType::Tcp6,
        [_, Some(SelectorType::Ipv6), Some(SelectorType::Udp)] => FlowType::Udp6,
        _ => return None,
    };
    let mut words = FlowRule::new(flow_type, 0);
    let mut tcp_flags = None;
    let mut rest = &rule.keys[..];
    for Selector { kind, mask: m, .. } in &classifier.selectors {
        let (k, after) = rest.split_at_checked(m.len())?;
        rest = after;
        match SelectorType::from_code(*kind)? {
            SelectorType::Ethernet => {
                words.dst_mac = field(&k[..6], &m[..6], mac);
                words.src_mac = field(&k[6..12], &m[6..12], mac);
                if flow_type == FlowType::Ether {
                    words.ethertype = field(&k[12..14], &m[12..14], port);
                }
            }
            SelectorType::Ipv4 => {
                words.tos = field(&k[1..2], &m[1..2], |b| b[0]);
                words.src_ip = field(&k[12..16], &m[12..16], v4);
                words.dst_ip = field(&k[16..20], &m[16..20], v4);
                words.l4_proto = (flow_type == FlowType::Ip4 && m[9] == 0xff).then_some(k[9]);
            }
            SelectorType::Ipv6 => {
                words.tos = field(&k[..2], &m[..2], |b| b[0] << 4 | b[1] >> 4);
                words.src_ip = field(&k[8..24], &m[8..24], v6);
                words.dst_ip = field(&k[24..40], &m[24..40], v6);
                words.l4_proto = (flow_type == FlowType::Ip6 && m[6] == 0xff).then_some(k[6]);
            }
            SelectorType::Tcp | SelectorType::Udp => {
                words.src_port = field(&k[..2], &m[..2], port);
                words.dst_port = field(&k[2..4], &m[2..4], port);
                tcp_flags = k.get(13..14).and_then(|k| field(k, &m[13..14], |b| b[0]));
            }
        }
    }
    Some((words, tcp_flags))
}

/// The RSS contexts.
pub(super) fn contexts(steering: &Steering) -> Vec<ContextStatus> {
    let status = |(id, config): (u16, &crate::steer::RssConfig)| ContextStatus {
        id,
        key: key_text(config.key.bytes()),
        hash_types: hash_type_names(config.hash_types),
        table: config.table.clone().unwrap_or_default(),
        unclassified: config.unclassified,
        rules: steering.filters().rules_of_context(id),
    };
    steering.contexts().map(status).collect()
}

fn values(c: Coalesce, adaptive: bool) -> CoalesceValues {
    CoalesceValues { usecs: c.max_usecs, frames: c.max_packets, adaptive }
}

/// Moderation of a NIC.
pub(super) fn coalesce(nic: &Nic) -> CoalesceStatus {
    let guest = nic.guest_state();
    let moderation: &Moderation = &guest.moderation;
    let common = moderation.common();
    let queue = |i: usize| {
        let rx = match nic.limits.get(2 * i) {
            Limits { adaptive: true, usecs, .. } => CoalesceValues { usecs, frames: 0, adaptive: true },
            _ => values(moderation.of_queue(2 * i), false),
        };
        QueueCoalesce { rx, tx: values(moderation.of_queue(2 * i + 1), false) }
    };
    CoalesceStatus {
        nic: nic.config.name.clone(),
        rule: nic.config.coalesce.name().into(),
        rx: values(common.rx, moderation.all_adaptive()),
        tx: values(common.tx, false),
        queues: (0..usize::from(nic.config.queue_pairs)).map(queue).collect(),
    }
}

/// The host sets moderation of all queues; what is not given stays as it was for all.
pub(super) fn set_coalesce(nic: &Nic, change: CoalesceChange) {
    let mut guest = nic.guest_state();
    let common = guest.moderation.common();
    let changed = |was: Coalesce, usecs: Option<u32>, frames: Option<u32>| {
        (usecs.is_some() || frames.is_some()).then(|| Coalesce {
            max_packets: frames.unwrap_or(was.max_packets),
            max_usecs: usecs.unwrap_or(was.max_usecs),
        })
    };
    let rx = changed(common.rx, change.rx_usecs, change.rx_frames);
    let tx = changed(common.tx, change.tx_usecs, change.tx_frames);
    guest.moderation.set_host(rx, tx);
    if let Some(on) = change.adaptive_rx {
        guest.moderation.set_host_adaptive(on);
    }
    nic.enforce_moderation(&guest.moderation);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::replies::{Done, FlowList, RssStatus};
    use super::super::tests::Fixture;
    use super::*;
    use crate::command::{Kind, execute};
    use crate::virtio::admin::{self, BitList, Opcode};
    use crate::virtio::ctrl::{self, Class, RssContextParams, RssParams, coalesce, mq, rss_context};
    use crate::virtio::flow::{FlowAction, Group, ObjectType};

    /// A command that must succeed; its result.
    #[track_caller]
    fn run(nic: &Nic, kind: Kind, command: &[u8]) -> Vec<u8> {
        let mut answer = vec![0; 512];
        let length = execute(nic, kind, command, &mut answer);
        assert_eq!(answer[0], 0, "{answer:?}");
        answer[if kind == Kind::Admin { 8 } else { 1 }..length].to_vec()
    }

    fn agree(nic: &Nic) {
        let all = BitList::of(Opcode::ALL.iter().map(|o| o.code()));
        run(nic, Kind::Admin, &admin::list_use(&all));
        for id in 0x800..0x803 {
            let capability = run(nic, Kind::Admin, &admin::device_cap_get(id));
            run(nic, Kind::Admin, &admin::driver_cap_set(id, &capability));
        }
    }

    fn rss(table: &[u16]) -> RssParams {
        let key = crate::steer::DEFAULT_KEY.to_vec();
        RssParams { hash_types: 2, table: table.to_vec(), key, ..RssParams::default() }
    }

    #[test]
    fn rules_of_the_guest_are_listed_in_their_order_with_all_that_they_compare() {
        let f = Fixture::new(&["n0,queues=4"]);
        let nic = &f.daemon.nics()[0];
        agree(nic);
        let create = |object, data: &[u8]| run(nic, Kind::Admin, &admin::object_create(object, data));
        create(ObjectType::Group.id(0), &Group { priority: 1 }.to_bytes());
        create(ObjectType::Group.id(1), &Group { priority: 9 }.to_bytes());
        let context = RssContextParams { id: 3, rss: rss(&[0, 1]) };
        run(nic, Kind::Control, &ctrl::command(Class::RssContext, rss_context::ADD, &context.to_bytes()));

        let mut selectors =
            [SelectorType::Ethernet, SelectorType::Ipv4, SelectorType::Tcp].map(Selector::new);
        selectors[0].mask[12..].fill(0xff);
        selectors[1].mask[9] = 0xff;
        selectors[1].mask[12..15].fill(0xff);
        selectors[2].mask[2..4].fill(0xff);
        selectors[2].mask[13] = 0x12;
        create(ObjectType::Classifier.id(0), &Classifier { selectors: selectors.into() }.to_bytes());
        let ip6 = [SelectorType::Ethernet, SelectorType::Ipv6].map(Selector::new);
        let mut ip6 = Classifier { selectors: ip6.into() };
        ip6.selectors[0].mask[12..].fill(0xff);
        ip6.selectors[1].mask[6] = 0xff;
        ip6.selectors[1].mask[..2].copy_from_slice(&[0x0f, 0xf0]);
        ip6.selectors[1].mask[24..].fill(0xff);
        create(ObjectType::Classifier.id(1), &ip6.to_bytes());

        let mut tcp = vec![0; 54];
        tcp[12..14].copy_from_slice(&[8, 0]);
        tcp[14 + 9] = 6;
        tcp[14 + 12..14 + 16].copy_from_slice(&[10, 0, 1, 77]);
        tcp[34 + 2..34 + 4].copy_from_slice(&[0, 80]);
        tcp[34 + 13] = 2;
        let object = |group_id, classifier_id, action: FlowAction, keys: &[u8]| RuleObject {
            group_id,
            classifier_id,
            priority: 4,
            action: action.code(),
            vq_index: 3,
            queue_offset: 2,
            keys: keys.to_vec(),
        };
        create(ObjectType::Rule.id(5), &object(0, 0, FlowAction::RssContext, &tcp).to_bytes());
        create(ObjectType::Rule.id(2), &object(0, 0, FlowAction::Drop, &tcp).to_bytes());
        let mut icmp6 = vec![0; 54];
        icmp6[12..14].copy_from_slice(&[0x86, 0xdd]);
        icmp6[14..16].copy_from_slice(&[0x6b, 0x8f]);
        icmp6[14 + 6] = 58;
        icmp6[14 + 39] = 1;
        let to_queue = RuleObject { vq_index: 6, ..object(1, 1, FlowAction::Direct, &icmp6) };
        create(ObjectType::Rule.id(7), &to_queue.to_bytes());
        let (slot, _) = nic.steering.read().filters().rule(7).unwrap();
        (0..9).for_each(|_| crate::nic::RuleHits::count(nic.rule_hits.of(0), slot));

        let list: FlowList = f.get(json!({"command": "flows_list"}));
        let words: Vec<_> =
            list.guest.iter().map(|r| (r.id, r.rule.to_string(), r.context, r.hits)).collect();
        let tcp = "flow-type tcp4 src-ip 10.0.1.0 m 0.0.0.255 dst-port 80 action";
        let icmp6 = "flow-type ip6 dst-ip ::1 tclass 0xb8 l4proto 58 action 3";
        let expected = [
            (7, icmp6.to_string(), None, 9),
            (2, format!("{tcp} -1"), None, 0),
            (5, format!("{tcp} 2"), Some(3), 0),
        ];
        assert_eq!(words, expected);
        let last = &list.guest[2];
        assert_eq!((last.group, last.group_priority, last.classifier, last.priority), (0, 1, 0, 4));
        assert_eq!(last.tcp_flags, Some(Field::Masked { value: 2, mask: 0x12 }));
        assert!(list.rules.is_empty());
        let ids: Vec<_> = rule_ids(&nic.steering.read()).map(|(_, id)| id).collect();
        assert_eq!(ids, [2, 5, 7]);
        let status: RssStatus = f.get(json!({"command": "rss_get"}));
        assert_eq!((status.contexts.len(), status.contexts[0].rules), (1, 1));
        nic.forget_guest();
        assert!(f.get::<FlowList>(json!({"command": "flows_list"})).guest.is_empty());
    }

    #[test]
    fn rss_tells_who_has_set_it_and_which_contexts_there_are() {
        let f = Fixture::new(&["n0,queues=4"]);
        let nic = &f.daemon.nics()[0];
        let get = || f.get::<RssStatus>(json!({"command": "rss_get"}));
        assert!(!get().by_guest && get().contexts.is_empty());
        let host = get();
        run(nic, Kind::Control, &ctrl::command(Class::Mq, mq::RSS_CONFIG, &rss(&[3]).to_bytes()));
        let context = RssContextParams { id: 2, rss: rss(&[1, 2]) };
        run(nic, Kind::Control, &ctrl::command(Class::RssContext, rss_context::ADD, &context.to_bytes()));
        let status = get();
        assert_eq!((status.by_guest, status.table), (true, vec![3]));
        let c = &status.contexts[0];
        assert_eq!((c.id, &c.table[..], c.rules, c.unclassified), (2, &[1, 2][..], 0, 0));
        assert_eq!((&c.hash_types[..], c.key.starts_with("6d:5a:")), (&["tcpv4".to_string()][..], true));
        nic.forget_guest();
        assert_eq!(get(), host);
    }

    #[test]
    fn moderation_is_shown_and_set_for_all_queues() {
        let f = Fixture::new(&["n0,queues=2"]);
        let nic = &f.daemon.nics()[0];
        let set = |change: Value| f.get::<Done>(json!({"command": "coalesce_set", "change": change}));
        let get = || {
            let c: CoalesceStatus = f.get(json!({"command": "coalesce_get"}));
            assert!(c.queues.len() == 2 && c.queues.iter().all(|q| (q.rx, q.tx) == (c.rx, c.tx)));
            [c.rx.usecs, c.rx.frames, c.tx.usecs, c.tx.frames]
        };
        assert_eq!(get(), [0; 4]);
        set(json!({"rx_usecs": 20}));
        set(json!({"rx_frames": 64, "tx_usecs": 5}));
        assert_eq!(get(), [20, 64, 5, 0]);
        let guest = Coalesce { max_packets: 1, max_usecs: 2 };
        run(nic, Kind::Control, &ctrl::command(Class::Coalesce, coalesce::RX_SET, &guest.to_bytes()));
        assert_eq!(get(), [2, 1, 5, 0]);
        nic.forget_guest();
        assert_eq!(get(), [20, 64, 5, 0]);
        let limits = Limits { frames: 64, usecs: 20, adaptive: false };
        assert_eq!((nic.limits.get(0), nic.limits.get(3).usecs), (limits, 5), "in force");
    }

    #[test]
    fn adaptive_moderation_lasts_until_values_are_set_and_comes_back_when_the_guest_is_forgotten() {
        let f = Fixture::new(&["n0,queues=2,coalesce=strict"]);
        let nic = &f.daemon.nics()[0];
        let set = |change: Value| f.get::<Done>(json!({"command": "coalesce_set", "change": change}));
        let get = || {
            let c: CoalesceStatus = f.get(json!({"command": "coalesce_get"}));
            assert_eq!((c.rule.as_str(), c.tx.adaptive), ("strict", false));
            assert!(c.queues.iter().enumerate().all(|(i, q)| {
                (q.rx.adaptive, q.tx.adaptive) == (c.rx.adaptive, false)
                    && nic.limits.get(2 * i).adaptive == c.rx.adaptive
            }));
            (c.rx.adaptive, c.rx.usecs)
        };
        set(json!({"rx_usecs": 20, "adaptive_rx": true}));
        assert_eq!(get(), (true, 20));
        set(json!({"tx_usecs": 1}));
        assert_eq!(get(), (true, 20));
        let guest = Coalesce { max_packets: 1, max_usecs: 2 };
        run(nic, Kind::Control, &ctrl::command(Class::Coalesce, coalesce::RX_SET, &guest.to_bytes()));
        assert_eq!(get(), (false, 2));
        nic.forget_guest();
        assert_eq!(get(), (true, 20));
        set(json!({"adaptive_rx": false}));
        assert_eq!(get(), (false, 20));
        set(json!({"adaptive_rx": true}));
        set(json!({"rx_frames": 9}));
        assert_eq!(get(), (false, 20));
    }
}
