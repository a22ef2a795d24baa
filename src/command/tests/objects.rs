//! Groups, classifiers and rules.

use super::*;
use crate::packet::frames::udp6;
use crate::packet::{ETHERTYPE_VLAN, PROTO_TCP};
use crate::steer::DropReason;
use crate::virtio::flow::{Actions, Limits};
use crate::virtio::wire::Writer;

#[test]
fn a_rule_steers_its_packets_and_no_others() {
    let d = Driver::ready().with_ports();
    let before = d.queue(&tcp_to(81));
    d.create(rule(7), &to_queue(80, 3).to_bytes()).unwrap();
    assert_eq!(d.queue(&tcp_to(80)), Some((3, Reason::Filter)));
    assert_eq!(d.queue(&tcp_to(81)), before);
    // The EtherType is the one after all tags.
    let tagged = Frame { tags: vec![(ETHERTYPE_VLAN, 5)], ..tcp_to(80) };
    assert_eq!(d.queue(&tagged), Some((3, Reason::Filter)));
    d.destroy(rule(7)).unwrap();
    assert_ne!(d.queue(&tcp_to(80)).unwrap().1, Reason::Filter);
}

#[test]
fn a_virtqueue_index_is_twice_the_receive_queue_s_number() {
    let d = Driver::ready().with_ports();
    for (vq_index, queue) in [(0, 0), (2, 1), (6, 3)] {
        d.create(rule(0), &RuleObject { vq_index, ..to_queue(80, 0) }.to_bytes()).unwrap();
        assert_eq!(d.queue(&tcp_to(80)), Some((queue, Reason::Filter)));
        d.destroy(rule(0)).unwrap();
    }
    for vq_index in [1, 7, 8, 0xffff] {
        let refused = d.create(rule(0), &RuleObject { vq_index, ..to_queue(80, 0) }.to_bytes());
        assert_eq!(refused, Err(FIELD), "{vq_index} transmits, or is none");
    }
}

#[test]
fn a_rule_that_drops_needs_no_queue() {
    let d = Driver::ready().with_ports();
    let action = FlowAction::Drop.code();
    d.create(rule(0), &RuleObject { action, vq_index: 0xffff, ..to_queue(80, 0) }.to_bytes()).unwrap();
    assert!(matches!(d.verdict(&tcp_to(80)), Verdict::Drop { reason: DropReason::Rule, .. }));
    assert!(d.queue(&tcp_to(81)).is_some());
}

#[test]
fn ids_are_chosen_by_the_driver_and_belong_to_one_object() {
    let d = Driver::ready().with_ports();
    for (object, data) in
        [(group(0), Group { priority: 9 }.to_bytes()), (classifier(0), dst_port().to_bytes())]
    {
        assert_eq!(d.create(object, &data), Err(EXISTS));
    }
    d.create(rule(8191), &to_queue(80, 1).to_bytes()).unwrap();
    assert_eq!(d.create(rule(8191), &to_queue(81, 1).to_bytes()), Err(EXISTS));
    assert_eq!(d.create(rule(8192), &to_queue(81, 1).to_bytes()), Err(FIELD));
    assert_eq!(d.create(rule(u32::MAX), &to_queue(81, 1).to_bytes()), Err(FIELD));
    d.destroy(rule(8191)).unwrap();
    d.create(rule(8191), &to_queue(81, 1).to_bytes()).unwrap();
}

#[test]
fn what_is_not_there_cannot_be_modified_queried_or_destroyed() {
    let d = Driver::ready();
    for object in [group(0), classifier(0), rule(0), rule(u32::MAX)] {
        assert_eq!(d.modify(object, &to_queue(80, 1).to_bytes()), Err(NO_SUCH));
        assert_eq!(d.query(object), Err(NO_SUCH));
        assert_eq!(d.destroy(object), Err(NO_SUCH));
    }
}

#[test]
fn other_kinds_of_objects_do_not_exist() {
    let d = Driver::ready();
    for kind in [0, 0x1ff, 0x203, 0x204, 0xffff] {
        let object = ObjectId { kind, id: 0 };
        assert_eq!(d.create(object, &[]), Err(FIELD));
        assert_eq!(d.modify(object, &[]), Err(FIELD));
        assert_eq!(d.query(object), Err(FIELD));
        assert_eq!(d.destroy(object), Err(FIELD));
    }
}

#[test]
fn a_group_s_priority_is_its_own() {
    let d = Driver::ready();
    d.create(group(0), &Group { priority: 5 }.to_bytes()).unwrap();
    assert_eq!(d.create(group(1), &Group { priority: 5 }.to_bytes()), Err(FIELD), "5.1.6.6: EINVAL");
    d.create(group(1), &Group { priority: 6 }.to_bytes()).unwrap();
    assert_eq!(d.modify(group(1), &Group { priority: 5 }.to_bytes()), Err(FIELD));
    assert_eq!(d.query(group(1)).unwrap()[0], 6);
}

#[test]
fn groups_then_priorities_then_the_lowest_id_decide() {
    let d = Driver::ready().with_ports();
    d.create(group(1), &Group { priority: 0 }.to_bytes()).unwrap();
    let make = |id, group_id, priority, queue| {
        d.create(rule(id), &RuleObject { group_id, priority, ..to_queue(80, queue) }.to_bytes()).unwrap();
        d.queue(&tcp_to(80)).unwrap().0
    };
    assert_eq!(make(0, 1, 255, 1), 1);
    assert_eq!(make(9, 0, 4, 2), 2, "of a higher group");
    assert_eq!(make(8, 0, 4, 3), 3, "the lowest id");
    assert_eq!(make(10, 0, 5, 0), 0, "the highest priority");
}

#[test]
fn what_rules_depend_on_is_neither_destroyed_nor_modified() {
    let d = Driver::ready().with_ports();
    d.create(rule(0), &to_queue(80, 1).to_bytes()).unwrap();
    assert_eq!((d.destroy(group(0)), d.destroy(classifier(0))), (Err(BUSY), Err(BUSY)));
    assert_eq!(d.modify(group(0), &Group { priority: 7 }.to_bytes()), Err(BUSY));
    assert_eq!(d.modify(classifier(0), &dst_port().to_bytes()), Err(BUSY));
    d.destroy(rule(0)).unwrap();
    d.modify(group(0), &Group { priority: 7 }.to_bytes()).unwrap();
    assert_eq!(d.query(group(0)).unwrap()[0], 7);
    d.destroy(group(0)).unwrap();
    d.destroy(classifier(0)).unwrap();
}

#[test]
fn a_query_answers_with_what_was_last_set() {
    let d = Driver::ready().with_ports();
    let same = |answer: Vec<u8>, given: &[u8]| {
        answer[..given.len()] == *given && answer[given.len()..].iter().all(|b| *b == 0)
    };
    // Values under a mask of zeros come back, too.
    let mut given = RuleObject { priority: 3, ..to_queue(80, 1) };
    given.keys[0] = 0xaa;
    d.create(rule(5), &given.to_bytes()).unwrap();
    assert!(same(d.query(rule(5)).unwrap(), &given.to_bytes()));
    let changed = RuleObject { vq_index: 4, ..given };
    d.modify(rule(5), &changed.to_bytes()).unwrap();
    assert!(same(d.query(rule(5)).unwrap(), &changed.to_bytes()));
    assert!(same(d.query(classifier(0)).unwrap(), &dst_port().to_bytes()));
    assert!(same(d.query(group(0)).unwrap(), &[1, 0]));
}

#[test]
fn of_a_rule_the_action_and_the_queue_can_be_modified_and_nothing_else() {
    let d = Driver::ready().with_ports();
    d.create(group(1), &Group { priority: 9 }.to_bytes()).unwrap();
    d.create(classifier(1), &dst_port().to_bytes()).unwrap();
    let given = to_queue(80, 1);
    d.create(rule(0), &given.to_bytes()).unwrap();
    for queue in [3, 0, 2] {
        d.modify(rule(0), &to_queue(80, queue).to_bytes()).unwrap();
        assert_eq!(d.queue(&tcp_to(80)), Some((queue, Reason::Filter)));
    }
    d.modify(rule(0), &RuleObject { action: 1, ..given.clone() }.to_bytes()).unwrap();
    assert_eq!(d.queue(&tcp_to(80)), None);
    for other in [
        RuleObject { group_id: 1, ..given.clone() },
        RuleObject { classifier_id: 1, ..given.clone() },
        RuleObject { priority: 1, ..given.clone() },
        RuleObject { action: 3, ..given.clone() },
        RuleObject { vq_index: 8, ..given.clone() },
        RuleObject { action: 0x80, vq_index: 1, ..given.clone() },
        to_queue(81, 1),
    ] {
        assert_eq!(d.modify(rule(0), &other.to_bytes()), Err(FIELD), "{other:?}");
        assert_eq!(d.queue(&tcp_to(80)), None, "a refused MODIFY changes nothing");
    }
}

#[test]
fn a_modified_rule_keeps_its_hits_and_a_new_one_has_none() {
    let d = Driver::ready().with_ports();
    d.create(rule(0), &to_queue(80, 1).to_bytes()).unwrap();
    let hits = || {
        let hits = d.control(Class::Flownic, crate::virtio::vendor::RULE_HITS, &0u32.to_le_bytes())?;
        Some(u64::from_le_bytes(hits.try_into().unwrap()))
    };
    let (slot, _) = d.nic().steering.read().filters().rule(0).unwrap();
    (0..5).for_each(|_| crate::nic::RuleHits::count(d.nic().rule_hits.of(0), slot));
    d.modify(rule(0), &to_queue(80, 2).to_bytes()).unwrap();
    assert_eq!(hits(), Some(5));
    d.destroy(rule(0)).unwrap();
    assert_eq!(hits(), None);
    d.create(rule(0), &to_queue(80, 1).to_bytes()).unwrap();
    assert_eq!(hits(), Some(0));
}

#[test]
fn a_rule_that_refers_to_nothing_or_whose_keys_do_not_fit_is_refused() {
    let d = Driver::ready().with_ports();
    let given = to_queue(80, 1);
    let [mut short, mut long, mut no_ip, mut no_tcp] = std::array::from_fn(|_| given.clone());
    short.keys.pop();
    long.keys.push(0);
    no_ip.keys[13] = 6; // ARP
    no_tcp.keys[14 + 9] = 17;
    for wrong in [
        RuleObject { group_id: 1, ..given.clone() },
        RuleObject { classifier_id: 1, ..given.clone() },
        RuleObject { action: 0, ..given.clone() },
        RuleObject { action: 4, ..given.clone() },
        RuleObject { keys: vec![], ..given.clone() },
        short,
        long,
        no_ip,
        no_tcp,
    ] {
        assert_eq!(d.create(rule(0), &wrong.to_bytes()), Err(FIELD), "{wrong:?}");
    }
    assert!(d.nic().steering.read().filters().is_empty());
    // `key_length` counts, not how much there is: what is missing is zero.
    let bytes = to_queue(0, 1).to_bytes();
    d.create(rule(0), &bytes[..bytes.len() - 20]).unwrap();
    assert_eq!(d.queue(&tcp_to(0)), Some((1, Reason::Filter)));
}

#[test]
fn reserved_fields_and_flags_are_ignored() {
    let d = Driver::ready().with_ports();
    let mut w = Writer::new();
    w.le16(0x202).le16(0xffff).le32(0).le64(u64::MAX);
    let mut data = to_queue(80, 1).to_bytes();
    data[11] = 0xff;
    data[14..16].fill(0xff);
    d.admin(&admin::command(Opcode::ObjectCreate, w.bytes(&data).0.as_slice())).unwrap();
    assert_eq!(d.queue(&tcp_to(80)), Some((1, Reason::Filter)));
    assert_eq!(d.query(rule(0)).unwrap()[..70], to_queue(80, 1).to_bytes());
    // "with flags set to VIRTIO_NET_FF_MASK_F_PARTIAL_MASK" is said of a classifier's creation.
    let mut w = Writer::new();
    w.le16(0x201).le16(0).le32(1).le64(1).bytes(&dst_port().to_bytes());
    d.admin(&admin::command(Opcode::ObjectCreate, &w.0)).unwrap();
}

#[test]
fn a_group_has_as_many_rules_as_agreed_whatever_their_ids() {
    // The specification also wants ids below `rules_per_group_limit`; then a second group would have no ids left.
    let d = Driver::ready();
    let device = Limits::from_bytes(&d.admin(&admin::device_cap_get(CAP_RESOURCES)).unwrap());
    let limits = Limits { rules: 100, rules_per_group: 2, ..device };
    d.admin(&admin::driver_cap_set(CAP_RESOURCES, &limits.to_bytes())).unwrap();
    let d = d.with_ports();
    d.create(group(1), &Group { priority: 2 }.to_bytes()).unwrap();
    for (id, group_id, expected) in [
        (0, 0, Ok(())),
        (99, 0, Ok(())),
        (1, 0, Err(FULL)),
        (1, 1, Ok(())),
        (50, 1, Ok(())),
        (2, 1, Err(FULL)),
    ] {
        let made = d.create(rule(id), &RuleObject { group_id, ..to_queue(id as u16, 1) }.to_bytes());
        assert_eq!(made, expected, "rule {id} of group {group_id}");
    }
    // What can't be is wrong whether or not there is room for it.
    assert_eq!(d.create(rule(3), &to_queue(3, 4).to_bytes()), Err(FIELD));
    d.destroy(rule(99)).unwrap();
    d.create(rule(1), &to_queue(1, 1).to_bytes()).unwrap_err();
    d.create(rule(2), &to_queue(2, 1).to_bytes()).unwrap();
}

#[test]
fn a_full_table_is_no_space_and_a_rule_that_goes_makes_room() {
    let d = Driver::ready().with_ports();
    // The host's rules take room, too.
    let ntuple = crate::steer::NtupleSpec::new(crate::steer::FlowType::Ip6, 1);
    d.nic().steering.write().filters_mut().add_ntuple(ntuple).unwrap();
    for id in 0..8191 {
        d.create(rule(id), &to_queue(id as u16, 1).to_bytes()).unwrap();
    }
    assert_eq!(d.create(rule(8191), &to_queue(9000, 1).to_bytes()), Err(FULL));
    assert_ne!(d.queue(&tcp_to(9000)).unwrap().1, Reason::Filter, "the flow stays on RSS");
    d.destroy(rule(17)).unwrap();
    d.create(rule(8191), &to_queue(9000, 2).to_bytes()).unwrap();
    assert_eq!(d.queue(&tcp_to(9000)), Some((2, Reason::Filter)));
    d.nic().forget_guest();
    let steering = d.nic().steering.read();
    assert_eq!((steering.filters().len(), steering.filters().ntuples().count()), (1, 1));
}

#[test]
fn the_host_s_rules_go_before_all_groups_of_the_guest() {
    let d = Driver::ready();
    d.create(group(0), &Group { priority: u16::MAX }.to_bytes()).unwrap();
    d.create(classifier(0), &dst_port().to_bytes()).unwrap();
    d.create(rule(0), &RuleObject { priority: 255, ..to_queue(80, 1) }.to_bytes()).unwrap();
    let ntuple = crate::steer::NtupleSpec::new(crate::steer::FlowType::Tcp4, 2);
    d.nic().steering.write().filters_mut().add_ntuple(ntuple).unwrap();
    assert_eq!(d.queue(&tcp_to(80)), Some((2, Reason::Filter)));
}

#[test]
fn a_rule_may_send_packets_through_an_rss_context_that_stays_while_it_does() {
    use crate::virtio::ctrl::{RssContextParams, rss_context};
    let d = Driver::ready().with_ports();
    let through =
        |id, queue_offset| RuleObject { action: 0x80, vq_index: id, queue_offset, ..to_queue(80, 0) };
    assert_eq!(d.create(rule(0), &through(1, 0).to_bytes()), Err(FIELD), "there is none yet");
    let add = RssContextParams { id: 1, rss: table(&[1]) }.to_bytes();
    d.control(Class::RssContext, rss_context::ADD, &add).unwrap();
    assert_eq!(d.create(rule(0), &through(1, 4).to_bytes()), Err(FIELD));
    d.create(rule(0), &through(1, 2).to_bytes()).unwrap();
    assert_eq!(d.query(rule(0)).unwrap()[..70], through(1, 2).to_bytes());
    assert_eq!(d.queue(&tcp_to(80)), Some((3, Reason::Filter)));
    let delete = || d.control(Class::RssContext, rss_context::DEL, &[1, 0]);
    assert_eq!(delete(), None);
    d.modify(rule(0), &through(1, 1).to_bytes()).unwrap();
    assert_eq!(d.queue(&tcp_to(80)), Some((2, Reason::Filter)));
    d.modify(rule(0), &to_queue(80, 0).to_bytes()).unwrap();
    assert!(delete().is_some());
    assert_eq!(d.modify(rule(0), &through(1, 0).to_bytes()), Err(FIELD));
}

#[test]
fn a_rule_for_a_queue_that_is_not_enabled_is_passed_over() {
    let d = Driver::ready().with_ports();
    d.create(rule(0), &to_queue(80, 3).to_bytes()).unwrap();
    d.nic().steering.write().set_enabled(0b0111);
    assert_ne!(d.queue(&tcp_to(80)).unwrap().1, Reason::Filter);
    d.nic().steering.write().set_enabled(0b1111);
    assert_eq!(d.queue(&tcp_to(80)), Some((3, Reason::Filter)));
}

#[test]
fn a_classifier_is_held_to_the_selectors_that_were_agreed_upon() {
    let d = Driver::ready();
    // Ports in whole, and no addresses.
    let mut agreed = dst_port();
    agreed.selectors[2].mask[..2].fill(0xff);
    d.admin(&admin::driver_cap_set(CAP_SELECTORS, &agreed.to_bytes())).unwrap();
    d.create(classifier(0), &dst_port().to_bytes()).unwrap();
    let mut part = dst_port();
    part.selectors[2].mask[3] = 0xf0;
    assert_eq!(d.create(classifier(1), &part.to_bytes()), Err(FIELD));
    let mut address = dst_port();
    address.selectors[1].mask[12] = 0xff;
    assert_eq!(d.create(classifier(1), &address.to_bytes()), Err(FIELD));
    assert_eq!(d.modify(classifier(0), &address.to_bytes()), Err(FIELD));
    assert_eq!(d.create(classifier(1), &[]), Err(FIELD));
    assert_eq!(d.create(classifier(1), &[0xff; 300]), Err(FIELD));
}

#[test]
fn every_field_that_the_device_offers_is_compared() {
    let offered =
        Classifier::from_bytes(&Driver::ready().admin(&admin::device_cap_get(CAP_SELECTORS)).unwrap());
    for (frame, kinds) in [(tcp_to(80), [0, 1, 3]), (udp6(), [0, 2, 4])] {
        let bytes = frame.bytes();
        let mut classifier_bytes =
            Classifier { selectors: kinds.map(|k| offered.selectors[k].clone()).into() };
        let length = classifier_bytes.key_length();
        let keys = bytes[..length].to_vec();
        let compared: Vec<u8> = classifier_bytes.selectors.iter().flat_map(|s| s.mask.clone()).collect();
        let made = |keys: &[u8], classifier_bytes: &Classifier| {
            let d = Driver::ready();
            d.create(group(0), &[0, 0]).unwrap();
            d.create(classifier(0), &classifier_bytes.to_bytes()).unwrap();
            d.create(rule(0), &RuleObject { keys: keys.to_vec(), ..to_queue(0, 2) }.to_bytes())?;
            Ok::<_, (u16, u16)>(d.queue(&frame).unwrap().1 == Reason::Filter)
        };
        assert_eq!(made(&keys, &classifier_bytes), Ok(true));
        for (at, mask) in compared.iter().enumerate().filter(|(_, m)| **m != 0) {
            let mut other = keys.clone();
            other[at] ^= mask & mask.wrapping_neg();
            // Where the next header is named, another value is none; everywhere else it is another packet's.
            assert_ne!(made(&other, &classifier_bytes), Ok(true), "byte {at}");
        }
        // A field that is not compared may have any value.
        classifier_bytes.selectors[1].mask[if kinds[1] == 1 { 15 } else { 23 }] = 0;
        let mut other = keys.clone();
        other[14 + if kinds[1] == 1 { 15 } else { 23 }] ^= 0xff;
        assert_eq!(made(&other, &classifier_bytes), Ok(true));
    }
    assert_eq!(PROTO_TCP, 6);
}

#[test]
fn actions_are_those_that_were_agreed_upon() {
    let d = Driver::ready();
    d.admin(&admin::driver_cap_set(CAP_ACTIONS, &Actions(vec![1]).to_bytes())).unwrap();
    let d = d.with_ports();
    assert_eq!(d.create(rule(0), &to_queue(80, 1).to_bytes()), Err(FIELD));
    d.create(rule(0), &RuleObject { action: 1, ..to_queue(80, 1) }.to_bytes()).unwrap();
    assert_eq!(d.modify(rule(0), &to_queue(80, 1).to_bytes()), Err(FIELD));
}
