use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::packet::frames::{Frame, tcp4, udp6};
use crate::packet::{PROTO_TCP, PROTO_UDP};
use crate::steer::{FlowType, Masked, NtupleSpec};

fn port(n: u16) -> Match {
    Match::new().ipv4().tcp().dst_port(n, 0xffff)
}

fn rule(priority: u8, fields: Match, queue: u16) -> Rule {
    Rule { group: 0, classifier: 0, priority, fields, action: Action::Queue(queue) }
}

/// A table with group 0 and classifier 0 for [`port`].
fn table(capacity: u32) -> FilterTable {
    let mut table = FilterTable::new(capacity, 8);
    table.create_group(0, 10).unwrap();
    table.create_classifier(0, port(0).mask()).unwrap();
    table
}

fn queue_of(table: &FilterTable, frame: &Frame) -> Option<Action> {
    table.lookup(&frame.headers()).map(|(_, action)| action)
}

#[test]
fn the_highest_group_then_priority_then_the_lowest_id_wins() {
    let mut table = table(64);
    let to = |n| Some(Action::Queue(n));
    table.create_rule(5, rule(1, port(80), 1)).unwrap();
    assert_eq!(queue_of(&table, &tcp4()), to(1));
    table.create_rule(3, rule(1, port(80), 2)).unwrap();
    table.create_rule(4, rule(1, port(80), 7)).unwrap();
    assert_eq!(queue_of(&table, &tcp4()), to(2));
    table.create_rule(9, rule(2, port(80), 3)).unwrap();
    assert_eq!(queue_of(&table, &tcp4()), to(3));
    // Another classifier of the same group.
    let any_tcp = Match::new().ipv4().tcp();
    table.create_classifier(1, any_tcp.mask()).unwrap();
    table.create_rule(2, Rule { classifier: 1, ..rule(2, any_tcp, 4) }).unwrap();
    assert_eq!(queue_of(&table, &tcp4()), to(4));
    // A lower and a higher group.
    table.create_group(1, 9).unwrap();
    table.create_rule(0, Rule { group: 1, classifier: 1, ..rule(255, any_tcp, 5) }).unwrap();
    assert_eq!(queue_of(&table, &tcp4()), to(4));
    table.create_group(2, 11).unwrap();
    table.create_rule(60, Rule { group: 2, classifier: 1, ..rule(0, any_tcp, 6) }).unwrap();
    assert_eq!(queue_of(&table, &tcp4()), to(6));
    for (id, next) in [(60, 4), (2, 3), (9, 2), (3, 7), (4, 1), (5, 5)] {
        table.destroy_rule(id).unwrap();
        assert_eq!(queue_of(&table, &tcp4()), to(next), "after {id}");
    }
    assert_eq!(queue_of(&table, &udp6()), None);
}

#[test]
fn objects_in_use_cannot_be_destroyed_and_ids_are_checked() {
    let mut table = table(8);
    assert_eq!(table.create_group(0, 1), Err(FilterError::Exists { what: "group", id: 0 }));
    assert_eq!(table.create_group(1, 10), Err(FilterError::Exists { what: "group priority", id: 10 }));
    assert_eq!(
        table.create_classifier(0, port(0).mask()),
        Err(FilterError::Exists { what: "classifier", id: 0 })
    );
    assert!(matches!(table.create_group(GROUPS_LIMIT, 1), Err(FilterError::Invalid(_))));
    let mask = port(0).mask();
    assert!(matches!(table.create_classifier(CLASSIFIERS_LIMIT, mask), Err(FilterError::Invalid(_))));
    assert!(matches!(table.create_rule(8, rule(0, port(1), 0)), Err(FilterError::Invalid(_))));
    assert!(matches!(table.create_rule(0, rule(0, port(1), 8)), Err(FilterError::Invalid(_))));
    assert!(matches!(table.create_rule(0, rule(0, Match::new().tcp(), 0)), Err(FilterError::Invalid(_))));
    let missing = Rule { group: 1, ..rule(0, port(1), 0) };
    assert_eq!(table.create_rule(0, missing), Err(FilterError::NotFound { what: "group", id: 1 }));
    let missing = Rule { classifier: 1, ..rule(0, port(1), 0) };
    assert_eq!(table.create_rule(0, missing), Err(FilterError::NotFound { what: "classifier", id: 1 }));
    assert_eq!(table.len(), 0);

    table.create_rule(7, rule(0, port(1), 0)).unwrap();
    assert_eq!(table.create_rule(7, rule(0, port(2), 0)), Err(FilterError::Exists { what: "rule", id: 7 }));
    assert_eq!(table.destroy_group(0), Err(FilterError::Busy { what: "group", id: 0, rules: 1 }));
    assert_eq!(table.destroy_classifier(0), Err(FilterError::Busy { what: "classifier", id: 0, rules: 1 }));
    table.destroy_rule(7).unwrap();
    assert_eq!(table.destroy_rule(7), Err(FilterError::NotFound { what: "rule", id: 7 }));
    table.destroy_group(0).unwrap();
    table.destroy_classifier(0).unwrap();
    assert_eq!(table.destroy_group(0), Err(FilterError::NotFound { what: "group", id: 0 }));
    assert_eq!(table.destroy_classifier(0), Err(FilterError::NotFound { what: "classifier", id: 0 }));
}

#[test]
fn what_no_rule_refers_to_can_be_modified_and_of_a_rule_its_action() {
    let mut table = table(8);
    table.create_group(1, 20).unwrap();
    assert_eq!(
        table.modify_group(1, 10),
        Err(FilterError::Exists { what: "group priority", id: 10 }),
        "it is group 0's"
    );
    assert_eq!(table.modify_group(2, 9), Err(FilterError::NotFound { what: "group", id: 2 }));
    table.modify_group(1, 20).unwrap();
    table.modify_group(1, 5).unwrap();
    assert_eq!(table.group(1), Some(5));
    let any_tcp = Match::new().ipv4().tcp();
    table.modify_classifier(0, any_tcp.mask()).unwrap();
    let slot = table.create_rule(3, rule(0, any_tcp, 1)).unwrap();
    assert_eq!(table.modify_group(0, 11), Err(FilterError::Busy { what: "group", id: 0, rules: 1 }));
    let mask = port(0).mask();
    assert_eq!(
        table.modify_classifier(0, mask),
        Err(FilterError::Busy { what: "classifier", id: 0, rules: 1 })
    );
    assert_eq!(table.modify_classifier(1, mask), Err(FilterError::NotFound { what: "classifier", id: 1 }));

    for action in [Action::Queue(7), Action::Drop, Action::Context { id: 4, offset: 7 }] {
        table.modify_rule(3, action).unwrap();
        assert_eq!(table.lookup(&tcp4().headers()), Some((slot, action)));
        assert_eq!(table.rule(3).unwrap().1.action, action);
    }
    assert_eq!((table.rules_of_context(4), table.rules_of_context(0), table.rules_in_group(0)), (1, 0, 1));
    for action in [Action::Queue(8), Action::Context { id: 4, offset: 8 }] {
        assert!(matches!(table.modify_rule(3, action), Err(FilterError::Invalid(_))));
    }
    assert_eq!(table.modify_rule(4, Action::Drop), Err(FilterError::NotFound { what: "rule", id: 4 }));
    assert_eq!(table.rules_of_context(4), 1, "what is refused changes nothing");
}

#[test]
fn a_full_table_refuses_and_both_kinds_share_it() {
    let mut table = table(4);
    for id in 0..3 {
        table.create_rule(id, rule(0, port(id as u16), 0)).unwrap();
    }
    table.add_ntuple(NtupleSpec::new(FlowType::Ip6, 1)).unwrap();
    assert!(matches!(table.create_rule(3, rule(0, port(3), 0)), Err(FilterError::NoSpace(_))));
    assert!(matches!(table.add_ntuple(NtupleSpec::new(FlowType::Ip4, 1)), Err(FilterError::NoSpace(_))));
    table.reset_objects();
    assert_eq!((table.len(), table.tuples(), table.ntuples().count()), (1, 1, 1));
    assert_eq!(table.group(0), None);
    table.clear_ntuples();
    assert!(table.is_empty());
    assert!(FilterTable::new(0, 1).add_ntuple(NtupleSpec::new(FlowType::Ip4, 0)).is_err());
}

/// Few values, so that packets and rules meet.
fn packets() -> impl Strategy<Value = Frame> {
    (
        any::<bool>(),
        prop::sample::select(vec![PROTO_TCP, PROTO_UDP, 1]),
        (0..4u8, 0..4u8),
        (0..4u16, 0..4u16),
        prop::option::of(0..3u16),
        any::<bool>(),
    )
        .prop_map(|(v6, protocol, (a, b), ports, vlan, fragment)| {
            let ip = |n: u8| if v6 { format!("fd00::{n}") } else { format!("10.0.0.{n}") };
            let mut frame = Frame::new(&ip(a), &ip(b), protocol, ports);
            frame.tags = vlan.map(|v| (crate::packet::ETHERTYPE_VLAN, v)).into_iter().collect();
            frame.fragment = if fragment { 0x2000 } else { 0 };
            frame
        })
}

fn matches() -> impl Strategy<Value = Match> {
    let field = prop::option::of((0..4u8, prop::sample::select(vec![1u8, 2, 3, 0xff])));
    (
        any::<bool>(),
        prop::option::of(any::<bool>()),
        [field.clone(), field.clone(), field.clone(), field.clone(), field],
    )
        .prop_map(|(v6, tcp, [src, dst, sport, dport, vlan])| {
            let mut m = if v6 { Match::new().ipv6() } else { Match::new().ipv4() };
            let v4 = |n: u8| Ipv4Addr::from_bits(n.into());
            let long = |n: u8| std::net::Ipv6Addr::from_bits(n.into());
            m = match tcp {
                Some(true) => m.tcp(),
                Some(false) => m.udp(),
                None => m,
            };
            if let Some((v, mask)) = src {
                m = if v6 { m.ipv6_src(long(v), long(mask)) } else { m.ipv4_src(v4(v), v4(mask)) };
            }
            if let Some((v, mask)) = dst {
                m = if v6 { m.ipv6_dst(long(v), long(mask)) } else { m.ipv4_dst(v4(v), v4(mask)) };
            }
            if let Some((v, mask)) = sport {
                m = m.src_port(v.into(), mask.into());
            }
            if let Some((v, mask)) = dport {
                m = m.dst_port(v.into(), mask.into());
            }
            if let Some((v, mask)) = vlan {
                m = m.vlan(v.into(), mask.into());
            }
            m
        })
}

#[derive(Debug, Clone)]
enum Step {
    Create { id: u32, group: u32, priority: u8, fields: Match, queue: u16 },
    Destroy { id: u32 },
    Ntuple { loc: Option<u32>, port: u16, mask: u16, action: i64 },
    RemoveNtuple { loc: u32 },
    Look(Frame),
}

const CAPACITY: u32 = 24;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few classifiers, so that tuples hold several rules.
    prop::collection::vec(matches(), 1..6).prop_flat_map(|kinds| {
        let fields = prop::sample::select(kinds);
        let create = (0..CAPACITY, 0..3u32, 0..3u8, fields, 0..8u16).prop_map(
            |(id, group, priority, fields, queue)| Step::Create { id, group, priority, fields, queue },
        );
        let ntuple =
            (prop::option::of(0..CAPACITY), 0..4u16, prop::sample::select(vec![0xffff, 1]), -1..8i64)
                .prop_map(|(loc, port, mask, action)| Step::Ntuple { loc, port, mask, action });
        prop::collection::vec(
            prop_oneof![
                4 => create,
                2 => (0..CAPACITY).prop_map(|id| Step::Destroy { id }),
                1 => ntuple,
                1 => (0..CAPACITY).prop_map(|loc| Step::RemoveNtuple { loc }),
                4 => packets().prop_map(Step::Look),
            ],
            1..120,
        )
    })
}

/// A rule of the model: precedence (the greatest wins), fields, action.
type Row = ((u32, u8, std::cmp::Reverse<u32>), Match, Action);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_table_agrees_with_a_list_that_is_searched_from_end_to_end(steps in steps()) {
        let mut table = FilterTable::new(CAPACITY, 8);
        let mut objects: BTreeMap<u32, Row> = BTreeMap::new();
        let mut ntuples: BTreeMap<u32, Row> = BTreeMap::new();
        let mut masks: Vec<Mask> = Vec::new();
        for group in 0..3 {
            table.create_group(group, 5 * group as u16).unwrap();
        }
        for step in steps {
            let full = objects.len() + ntuples.len() == CAPACITY as usize;
            match step {
                Step::Create { id, group, priority, fields, queue } => {
                    let classifier = masks.iter().position(|m| *m == fields.mask()).unwrap_or_else(|| {
                        masks.push(fields.mask());
                        table.create_classifier(masks.len() as u32 - 1, fields.mask()).unwrap();
                        masks.len() - 1
                    }) as u32;
                    let action = Action::Queue(queue);
                    let made = table.create_rule(id, Rule { group, classifier, priority, fields, action });
                    prop_assert_eq!(made.is_ok(), !full && !objects.contains_key(&id));
                    if made.is_ok() {
                        objects.insert(id, ((group * 5, priority, std::cmp::Reverse(id)), fields, action));
                    }
                }
                Step::Destroy { id } => {
                    prop_assert_eq!(table.destroy_rule(id).is_ok(), objects.remove(&id).is_some());
                }
                Step::Ntuple { loc, port, mask, action } => {
                    let mut spec = NtupleSpec::new(FlowType::Tcp4, action);
                    spec.dst_port = Some(Masked { value: port, mask });
                    spec.loc = loc;
                    let fields = spec.fields().unwrap();
                    let action = u16::try_from(action).map_or(Action::Drop, Action::Queue);
                    let free = (0..CAPACITY).rev().find(|l| !ntuples.contains_key(l));
                    match table.add_ntuple(spec) {
                        Ok((at, _)) => {
                            prop_assert_eq!(Some(at), loc.or(free));
                            prop_assert!(!full || ntuples.contains_key(&at));
                            ntuples.insert(at, ((1 << 16, 0, std::cmp::Reverse(at)), fields, action));
                        }
                        Err(_) => prop_assert!(full && loc.is_none_or(|l| !ntuples.contains_key(&l))),
                    }
                }
                Step::RemoveNtuple { loc } => {
                    prop_assert_eq!(table.remove_ntuple(loc).is_ok(), ntuples.remove(&loc).is_some());
                }
                Step::Look(frame) => {
                    let h = frame.headers();
                    let rows = objects.values().chain(ntuples.values());
                    let best = rows.filter(|(_, fields, _)| fields.matches(&h)).max_by_key(|(rank, ..)| *rank);
                    prop_assert_eq!(table.lookup(&h).map(|(_, a)| a), best.map(|&(.., action)| action));
                    let started = table.start(&h);
                    prop_assert!(table.go_on(&started) || table.lookup(&h).is_none() || table.tuples() > 4);
                    prop_assert_eq!(table.finish(&h, &started), table.lookup(&h));
                }
            }
            prop_assert_eq!(table.len() as usize, objects.len() + ntuples.len());
            let known = |(id, _, r): (u32, RuleSlot, Rule)| objects.get(&id).is_some_and(|o| (o.1, o.2) == (r.fields, r.action));
            prop_assert!(table.rules().all(known) && table.rules().count() == objects.len());
            let mut slots: Vec<_> =
                table.rules().map(|r| r.1).chain(table.ntuples().map(|r| r.1)).collect();
            slots.sort_unstable();
            slots.dedup();
            prop_assert!(slots.len() == table.len() as usize && slots.iter().all(|s| s.0 < CAPACITY));
        }
    }
}
