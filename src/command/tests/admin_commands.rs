//! Which admin commands may be used, capabilities, and lengths.

use super::*;
use crate::virtio::admin::CommandHeader;
use crate::virtio::flow::{Actions, Limits};
use crate::virtio::wire::Writer;

fn raw(header: CommandHeader, data: &[u8]) -> Vec<u8> {
    let mut w = Writer::new();
    header.write(&mut w);
    w.bytes(data).finish()
}

#[test]
fn until_list_use_only_list_query_and_list_use_are_legal() {
    let d = Driver::new();
    for opcode in restricted() {
        assert_eq!(d.admin(&admin::command(opcode, &[0; 64])), Err(UNKNOWN), "{opcode:?}");
    }
    let supported = d.admin(&admin::list_query()).unwrap();
    assert_eq!(supported, 0x3f83u64.to_le_bytes());
    d.admin(&admin::list_use(&BitList::of([0, 1, 7]))).unwrap();
    assert!(d.admin(&admin::cap_id_list_query()).is_ok());
    assert_eq!(d.admin(&admin::device_cap_get(CAP_ACTIONS)), Err(UNKNOWN), "it is not in the list");
}

#[test]
fn the_device_takes_no_list_with_a_command_that_it_does_not_have() {
    let d = Driver::new();
    for unknown in [2, 6, 0xe, 63, 64, 0x7fff] {
        assert_eq!(d.admin(&admin::list_use(&BitList::of([0, 1, unknown]))), Err(FIELD), "{unknown}");
    }
    assert_eq!(d.admin(&admin::cap_id_list_query()), Err(UNKNOWN), "a refused list changes nothing");
    let mut longer = BitList::of([0, 1, 7]);
    longer.0.extend([0; 100]);
    d.admin(&admin::list_use(&longer)).unwrap();
    assert!(d.admin(&admin::cap_id_list_query()).is_ok());
}

#[test]
fn a_driver_may_give_up_list_query_and_list_use_until_the_reset() {
    let d = Driver::new();
    d.admin(&admin::list_use(&BitList::of([7]))).unwrap();
    assert_eq!(d.admin(&admin::list_query()), Err(UNKNOWN));
    assert_eq!(d.admin(&admin::list_use(&BitList::of([0, 1]))), Err(UNKNOWN));
    assert!(d.admin(&admin::cap_id_list_query()).is_ok());
    d.nic().forget_guest();
    assert!(d.admin(&admin::list_query()).is_ok());
    assert_eq!(d.admin(&admin::cap_id_list_query()), Err(UNKNOWN));
}

#[test]
fn the_group_type_is_judged_before_the_opcode_and_the_member_of_the_self_group_is_unused() {
    let d = Driver::new();
    let header = |opcode, group_type, member| CommandHeader { opcode, group_type, member };
    assert_eq!(d.admin(&raw(header(0xffff, 1, 0), &[])), Err((22, 4)));
    assert_eq!(d.admin(&raw(header(0, 2, 0), &[])), Err((22, 4)));
    assert_eq!(d.admin(&raw(header(0xffff, 0, 1), &[])), Err(UNKNOWN));
    assert_eq!(d.admin(&raw(header(2, 0, 0), &[])), Err(UNKNOWN), "a legacy command");
    assert!(d.admin(&raw(header(0, 0, 77), &[])).is_ok());
}

#[test]
fn what_is_missing_of_a_command_is_zero_and_what_is_too_much_is_ignored() {
    let d = Driver::new();
    // Nothing at all is LIST_QUERY for the device itself.
    assert_eq!(d.admin(&[]), d.admin(&admin::list_query()));
    assert_eq!(d.admin(&[0; 4000]), d.admin(&admin::list_query()));
    d.agree();
    assert_eq!(
        d.admin(&admin::device_cap_get(CAP_ACTIONS)[..26]),
        d.admin(&admin::device_cap_get(CAP_ACTIONS))
    );
    let mut create = admin::object_create(group(0), &[1, 0]);
    create.extend([0xff; 100]);
    d.admin(&create).unwrap();
    // A group whose priority is cut has priority 0.
    d.admin(&admin::object_create(group(1), &[])).unwrap();
    assert_eq!(d.query(group(1)).unwrap(), [0; 8]);
}

#[test]
fn an_answer_that_does_not_fit_is_cut_and_its_length_is_told() {
    let d = Driver::ready();
    let command = admin::device_cap_get(CAP_SELECTORS);
    let whole = d.answer(Kind::Admin, &command);
    for room in 0..=whole.len() + 3 {
        let mut answer = vec![0xee; room];
        assert_eq!(execute(d.nic(), Kind::Admin, &command, &mut answer), whole.len());
        let fits = room.min(whole.len());
        assert_eq!(answer[..fits], whole[..fits]);
        assert!(answer[fits..].iter().all(|b| *b == 0xee));
    }
}

#[test]
fn capabilities_are_listed_in_as_many_words_as_their_ids_need() {
    let d = Driver::ready();
    let list = d.admin(&admin::cap_id_list_query()).unwrap();
    assert_eq!(list.len(), 33 * 8);
    assert_eq!((list[..256].iter().max(), list[256]), (Some(&0), 0b111));
}

#[test]
fn the_device_says_what_it_can_do() {
    let d = Driver::ready();
    let get = |id| d.admin(&admin::device_cap_get(id)).unwrap();
    let limits = Limits {
        groups: 16,
        classifiers: 64,
        rules: 8192,
        rules_per_group: 8192,
        last_rule_priority: 255,
        selectors_per_classifier: 3,
    };
    assert_eq!(Limits::from_bytes(&get(CAP_RESOURCES)), limits);
    assert_eq!(Actions::from_bytes(&get(CAP_ACTIONS)), Actions(vec![1, 2, 0x80]));
    let selectors = Classifier::from_bytes(&get(CAP_SELECTORS)).selectors;
    assert_eq!(selectors.iter().map(|s| s.kind).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
}

#[test]
fn capabilities_that_are_not_listed_do_not_exist() {
    let d = Driver::ready();
    for id in [0, 0x7ff, 0x803, 0xffff] {
        assert_eq!(d.admin(&admin::device_cap_get(id)), Err(NO_SUCH));
        assert_eq!(d.admin(&admin::driver_cap_set(id, &[0; 32])), Err(NO_SUCH));
    }
}

#[test]
fn a_driver_can_use_no_more_than_the_device_has() {
    let d = Driver::ready();
    let device = Limits::from_bytes(&d.admin(&admin::device_cap_get(CAP_RESOURCES)).unwrap());
    for more in [
        Limits { groups: 17, ..device },
        Limits { classifiers: 65, ..device },
        Limits { rules: device.rules + 1, ..device },
        Limits { rules_per_group: u32::MAX, ..device },
        Limits { selectors_per_classifier: 4, ..device },
    ] {
        assert_eq!(d.admin(&admin::driver_cap_set(CAP_RESOURCES, &more.to_bytes())), Err(FIELD), "{more:?}");
    }
    for more in [vec![3], vec![1, 2, 3], vec![2, 1], vec![1, 1], vec![0]] {
        assert_eq!(d.admin(&admin::driver_cap_set(CAP_ACTIONS, &Actions(more).to_bytes())), Err(FIELD));
    }
    let mut esp = Classifier { selectors: vec![Selector { kind: 6, flags: 0, mask: vec![0xff; 8] }] };
    assert_eq!(d.admin(&admin::driver_cap_set(CAP_SELECTORS, &esp.to_bytes())), Err(FIELD));
    esp.selectors[0].kind = 5;
    assert_eq!(
        d.admin(&admin::driver_cap_set(CAP_SELECTORS, &esp.to_bytes())),
        Err(FIELD),
        "length and checksum"
    );
    // What is refused changes nothing: all is still agreed upon.
    assert!(d.create(group(15), &[0, 0]).is_ok());
}

#[test]
fn the_device_takes_less_than_it_has_and_holds_the_driver_to_it() {
    let d = Driver::ready();
    let set = |id, bytes: &[u8]| d.admin(&admin::driver_cap_set(id, bytes)).unwrap();
    let limits = Limits {
        groups: 2,
        classifiers: 1,
        rules: 3,
        rules_per_group: 2,
        last_rule_priority: 5,
        selectors_per_classifier: 3,
    };
    set(CAP_RESOURCES, &limits.to_bytes());
    set(CAP_ACTIONS, &Actions(vec![2]).to_bytes());
    let d = d.with_ports();
    d.create(group(1), &[9, 0]).unwrap();
    assert_eq!(d.create(group(2), &[8, 0]), Err(FIELD));
    assert_eq!(d.create(classifier(1), &dst_port().to_bytes()), Err(FIELD));
    assert_eq!(d.create(rule(3), &to_queue(1, 1).to_bytes()), Err(FIELD));
    d.create(rule(0), &RuleObject { priority: 5, ..to_queue(1, 1) }.to_bytes()).unwrap();
    assert_eq!(d.create(rule(1), &RuleObject { priority: 6, ..to_queue(2, 1) }.to_bytes()), Err(FIELD));
    assert_eq!(d.create(rule(1), &RuleObject { action: 1, ..to_queue(2, 1) }.to_bytes()), Err(FIELD));
}

#[test]
fn the_last_rule_priority_is_the_highest_that_can_be_assigned() {
    // 5.1.6.6 says so, and then that a device refuses it; with a device that has all 256, nothing would be left of the
    // former.
    let d = Driver::ready().with_ports();
    d.create(rule(0), &RuleObject { priority: 255, ..to_queue(1, 1) }.to_bytes()).unwrap();
}

#[test]
fn without_all_three_capabilities_objects_are_not_known() {
    let calls = [
        admin::object_create(group(0), &[0, 0]),
        admin::object_modify(group(0), &[0, 0]),
        admin::object_query(group(0)),
        admin::object_destroy(group(0)),
    ];
    for missing in [CAP_RESOURCES, CAP_SELECTORS, CAP_ACTIONS] {
        let d = Driver::ready();
        // To use nothing of a capability is to disable it.
        d.admin(&admin::driver_cap_set(missing, &[])).unwrap();
        for call in &calls {
            assert_eq!(d.admin(call), Err(UNKNOWN), "without {missing:#x}");
        }
        let all = d.admin(&admin::device_cap_get(missing)).unwrap();
        d.admin(&admin::driver_cap_set(missing, &all)).unwrap();
        assert!(d.admin(&calls[0]).is_ok());
    }
}

#[test]
fn capabilities_stay_as_they_are_while_there_are_objects() {
    let d = Driver::ready();
    let all = d.admin(&admin::device_cap_get(CAP_ACTIONS)).unwrap();
    for object in [group(0), classifier(0)] {
        d.create(object, &dst_port().to_bytes()).unwrap();
        for id in [CAP_RESOURCES, CAP_SELECTORS, CAP_ACTIONS] {
            assert_eq!(d.admin(&admin::driver_cap_set(id, &[])), Err(BUSY));
        }
        assert_eq!(d.admin(&admin::driver_cap_set(CAP_ACTIONS, &all)), Err(BUSY));
        d.destroy(object).unwrap();
    }
    d.admin(&admin::driver_cap_set(CAP_ACTIONS, &all)).unwrap();
}
