//! What hardware differs in, as the guest's commands meet it, and faults.

use std::time::{Duration, Instant};

use flownic::testkit::{Command, Flownic, Guest, frame};
use flownic::virtio::admin;
use flownic::virtio::flow::{Classifier, ObjectType, RuleObject};
use serde_json::{Value, json};

use crate::guest_program::{add, device, driver, queue_of, udp};
use crate::nic;

/// A NIC on which only rules and RSS decide.
fn card(rest: &str) -> Flownic {
    nic(&format!("queues=4,port=loopback,learn=off,{rest}"))
}

fn knobs(flownic: &Flownic) -> Value {
    flownic.ask(json!({ "command": "knobs_get", "nic": "n0" }))
}

fn set(flownic: &Flownic, change: Value) {
    flownic.ask(json!({ "command": "knobs_set", "nic": "n0", "change": change }));
}

fn inject(flownic: &Flownic, fault: Value, on: bool) {
    flownic.ask(json!({ "command": "inject", "nic": "n0", "fault": fault, "on": on }));
}

/// Where RSS sends this frame, and another queue.
fn queues(guest: &mut Guest, frame: &[u8]) -> (usize, usize) {
    let rss = queue_of(guest, frame).unwrap();
    (rss, (rss + 1) % 4)
}

/// A rule of all five for the frames of [`udp`].
fn five(port: u16, to: usize) -> String {
    format!("flow-type udp4 src-ip 192.0.2.1 dst-ip 192.0.2.2 src-port 1000 dst-port {port} action {to}")
}

#[test]
fn a_rule_is_in_force_after_the_delay_and_an_object_at_once() {
    let flownic = card("filter-delay=1h".replace("1h", "3600s").as_str());
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let a = udp(5000);
    let (rss, to) = queues(&mut guest, &a);
    let loc = add(&mut guest, &five(5000, to)).unwrap();
    assert_eq!(knobs(&flownic)["on_the_way"], 1);
    assert_eq!(queue_of(&mut guest, &a), Some(rss), "not yet");
    assert_eq!(device(&mut guest).flows("eth0").unwrap().rules.len(), 1, "it is there");
    device(&mut guest).delete_flow(loc).unwrap();
    assert_eq!(knobs(&flownic)["on_the_way"], 0);

    // From here on it takes 30 ms.
    let delay = Duration::from_millis(30);
    set(&flownic, json!({ "delay": "30ms" }));
    let asked = Instant::now();
    add(&mut guest, &five(5000, to)).unwrap();
    while queue_of(&mut guest, &a) == Some(rss) {
        assert!(asked.elapsed() < Duration::from_secs(20), "it never comes in force");
    }
    assert!(asked.elapsed() >= delay, "{:?}", asked.elapsed());
    assert_eq!((queue_of(&mut guest, &a), &knobs(&flownic)["on_the_way"]), (Some(to), &json!(0)));
}

#[test]
fn more_rules_than_can_be_on_their_way_are_to_try_again() {
    let flownic = card("filter-delay=3600s,filter-inflight=2");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    add(&mut guest, &five(1, 1)).unwrap();
    add(&mut guest, &five(2, 1)).unwrap();
    let e = add(&mut guest, &five(3, 1)).unwrap_err();
    assert_eq!(e, "Rule: the device is busy with other rules, try again (EAGAIN)");
    // The status itself.
    let group = device(&mut guest).flows("eth0").unwrap().rules.len();
    assert_eq!((group, &knobs(&flownic)["in_flight"]), (2, &json!(2)));
    let again = create_again(&mut guest);
    assert_eq!(again, Err((admin::Status::Again.code(), admin::Qualifier::TryAgain.code())));
    set(&flownic, json!({ "in_flight": "any" }));
    add(&mut guest, &five(3, 1)).unwrap();
    assert_eq!(knobs(&flownic)["on_the_way"], 3);
}

/// Creates the rule at location 8191 once more, at location 5.
fn create_again(guest: &mut Guest) -> Result<Vec<u8>, (u16, u16)> {
    let rule = driver(guest, &admin::object_query(ObjectType::Rule.id(8191))).unwrap();
    driver(guest, &admin::object_create(ObjectType::Rule.id(5), &rule))
}

/// Sends the rule at location 8191 to another queue, as a driver does.
fn modify(guest: &mut Guest, queue: usize) {
    let rule = driver(guest, &admin::object_query(ObjectType::Rule.id(8191))).unwrap();
    let rule = RuleObject { vq_index: 2 * queue as u16, ..RuleObject::from_bytes(&rule) };
    driver(guest, &admin::object_modify(ObjectType::Rule.id(8191), &rule.to_bytes())).unwrap();
}

#[test]
fn changing_a_rule_is_what_the_card_makes_of_it() {
    for (replace, meanwhile, afterwards) in [("atomic", 1, 2), ("delete-add", 0, 2), ("none", 1, 1)] {
        let flownic = card(&format!("filter-replace={replace}"));
        let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
        let a = udp(5000);
        let (rss, _) = queues(&mut guest, &a);
        let at = |n: usize| Some((rss + n) % 4);
        assert_eq!(add(&mut guest, &five(5000, (rss + 1) % 4)), Ok(8191));
        assert_eq!(queue_of(&mut guest, &a), at(1));
        set(&flownic, json!({ "delay": "3600s" }));
        modify(&mut guest, (rss + 2) % 4);
        assert_eq!(queue_of(&mut guest, &a), at(meanwhile), "{replace}: on its way");
        set(&flownic, json!({ "delay": "0" }));
        modify(&mut guest, (rss + 2) % 4);
        assert_eq!(queue_of(&mut guest, &a), at(afterwards), "{replace}: in force");
    }
}

#[test]
fn a_card_compares_what_its_key_says_and_offers_no_more() {
    let port = "flow-type udp4 dst-port 5000 action 1";
    let six = "flow-type tcp6 src-ip 2001:db8::1 dst-ip 2001:db8::2 src-port 1 dst-port 2 action 1";
    let mac = "flow-type udp4 dst 02:00:00:00:00:01 dst-port 5000 action 1";
    let net = "flow-type udp4 dst-ip 192.0.2.0/24 action 1";
    for (key, expected) in [
        ("any", [true, true, true, true, true]),
        ("5-tuple", [true, false, true, false, false]),
        ("4-tuple", [true, true, true, false, false]),
        ("ipv4", [true, false, false, false, false]),
    ] {
        let flownic = card(&format!("filter-key={key}"));
        let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
        let taken = [five(5000, 1).as_str(), port, six, mac, net].map(|rule| add(&mut guest, rule));
        assert_eq!(taken.each_ref().map(Result::is_ok), expected, "{key}: {taken:?}");
        let offered =
            driver(&mut guest, &admin::device_cap_get(flownic::virtio::flow::CAP_SELECTORS)).unwrap();
        let offered = Classifier::from_bytes(&offered).selectors;
        let partial = offered.iter().all(|s| s.flags & 1 == 1);
        assert_eq!(partial, key == "any", "{key}: masks in part");
        assert_eq!(offered.iter().any(|s| s.kind == 3), key != "ipv4", "{key}: IPv6");
        // What was refused left nothing behind: what was taken is all that there is.
        let count = expected.iter().filter(|t| **t).count();
        assert_eq!(device(&mut guest).flows("eth0").unwrap().rules.len(), count);
    }
}

#[test]
fn each_profile_is_in_force_and_what_is_said_goes_before_it() {
    // Name, rules that fit, nanoseconds, in flight, replace, key, learned flows.
    for (name, filters, delay, in_flight, replace, key, learn) in [
        ("sfc", 8192, 1_000_000, json!(8), "atomic", "5-tuple", false),
        ("mlx5", 262_140, 1_000_000, json!(null), "atomic", "5-tuple", false),
        ("ice", 8192, 10_000_000, json!(null), "atomic", "4-tuple", false),
        ("i40e-atr", 8192, 10_000, json!(null), "atomic", "4-tuple", true),
        ("bnxt", 4096, 1_000_000, json!(null), "none", "5-tuple", false),
    ] {
        let flownic = nic(&format!("queues=4,port=loopback,profile={name}"));
        let shown = flownic.ask(json!({ "command": "show" }))[0].clone();
        let wanted = json!({
            "nic": "n0", "profile": name, "filters": filters, "delay_ns": delay, "in_flight": in_flight,
            "replace": replace, "key": key, "on_the_way": 0, "faults": [],
        });
        assert_eq!((&shown["knobs"], &knobs(&flownic)), (&wanted, &wanted));
        assert_eq!(
            (&shown["steering"]["learn"], &shown["steering"]["rules_capacity"]),
            (&json!(learn), &json!(filters))
        );
        // Rules of the host are not the card's: in force at once, whatever they compare.
        flownic.ctl(&["flows", "add", "n0", "flow-type", "udp4", "dst-port", "5000", "action", "3"]);
        let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
        assert_eq!(queue_of(&mut guest, &udp(5000)), Some(3));
        // A rule of the guest that this card takes.
        let a = udp(6000);
        let (rss, to) = queues(&mut guest, &a);
        let asked = Instant::now();
        add(&mut guest, &five(6000, to)).unwrap();
        while queue_of(&mut guest, &a) == Some(rss) {
            assert!(asked.elapsed() < Duration::from_secs(20), "{name}: it never comes in force");
        }
        assert!(asked.elapsed() >= Duration::from_nanos(delay));
    }
    let flownic =
        nic("queues=2,port=null,profile=sfc,filters=10,filter-inflight=any,filter-key=any,learn=on");
    let shown = flownic.ask(json!({ "command": "show" }))[0].clone();
    let k = &shown["knobs"];
    assert_eq!((&k["filters"], &k["in_flight"], &k["key"]), (&json!(10), &json!(null), &json!("any")));
    assert_eq!((&k["delay_ns"], &shown["steering"]["learn"]), (&json!(1_000_000), &json!(true)));
}

#[test]
fn faults_come_and_go() {
    let flownic = card("filters=100");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let a = udp(5000);
    let (rss, to) = queues(&mut guest, &a);
    inject(&flownic, json!("table-full"), true);
    let e = add(&mut guest, &five(5000, to)).unwrap_err();
    assert_eq!(e, "Rule: the device has no room for it (ENOSPC)");
    inject(&flownic, json!("busy"), true);
    assert_eq!(knobs(&flownic)["faults"], json!(["table-full", "busy"]));
    inject(&flownic, json!("table-full"), false);
    let e = add(&mut guest, &five(5000, to)).unwrap_err();
    assert_eq!(e, "Rule: the device is busy with other rules, try again (EAGAIN)");
    inject(&flownic, json!(null), false);
    inject(&flownic, json!("lost"), true);
    add(&mut guest, &five(5000, to)).unwrap();
    assert_eq!(queue_of(&mut guest, &a), Some(rss));
    inject(&flownic, json!("lost"), false);
    add(&mut guest, &five(5000, to)).unwrap();
    assert_eq!(queue_of(&mut guest, &a), Some(to));
    let (code, message) =
        flownic.refused(json!({ "command": "inject", "nic": "n0", "fault": "fire", "on": true }));
    assert_eq!(
        (code.as_str(), message.as_str()),
        ("EINVAL", "'fire' is no fault; there are table-full, busy, lost, ctrl-hang, reset")
    );
}

#[test]
fn a_hanging_command_is_answered_when_the_fault_is_gone_and_other_queues_go_on() {
    let flownic = card("filters=100");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let (rss, _) = queues(&mut guest, &udp(7));
    inject(&flownic, json!("ctrl-hang"), true);
    let command = Command::control(&[0xee, 0]);
    guest.send(0, &frame::udp("192.0.2.1:1000", "192.0.2.2:7", 40));
    guest.send(0, &command.frame());
    // What was before it has gone its way; what comes after it waits, and other queues don't.
    assert_eq!(guest.recv_any(flownic::testkit::soon()).unwrap().pair, rss);
    guest.send(0, &udp(8));
    assert_eq!(guest.fence(1), []);
    inject(&flownic, json!("ctrl-hang"), false);
    let mut seen: Vec<_> = (0..2).map(|_| guest.recv_any(flownic::testkit::soon()).unwrap().frame).collect();
    seen.sort_by_key(|f| f[12] == 0x88);
    assert_eq!(seen[0], udp(8));
    assert_eq!((&seen[1][12..18], seen[1][19]), (&b"\x88\xb5flwn"[..], 0x82), "the reply");
    assert_eq!(guest.fence(0), []);
}

#[test]
fn what_no_knob_can_be_is_refused_and_changes_nothing() {
    let flownic = card("profile=bnxt");
    let before = knobs(&flownic);
    for (change, wanted) in [
        (json!({ "delay": "5" }), "'5' is no delay; 0 to 3600 s are, with a unit: 20us, 5ms, 1s"),
        (json!({ "delay": "1ms", "in_flight": "0" }), "'0' is not possible; 1 to 1048576, or any, is"),
        (
            json!({ "delay": "1ms", "replace": "x" }),
            "'x' is no way to replace; there are atomic, delete-add, none",
        ),
        (
            json!({ "profile": "sfc", "key": "x" }),
            "'x' is no filter key; there are any, 5-tuple, 4-tuple, ipv4",
        ),
        (json!({ "profile": "x" }), "'x' is no profile; there are sfc, mlx5, ice, i40e-atr, bnxt"),
    ] {
        let (code, message) =
            flownic.refused(json!({ "command": "knobs_set", "nic": "n0", "change": change }));
        assert_eq!((code.as_str(), message.as_str()), ("EINVAL", wanted));
    }
    assert_eq!(knobs(&flownic), before);
    flownic.ctl(&["knobs", "n0", "profile", "sfc", "delay", "20us"]);
    let text = String::from_utf8(flownic.ctl_output(&["knobs"]).stdout).unwrap();
    let line =
        "  rules of the guest: profile sfc, delay 20us, 0 of 8 in flight, replace atomic, key 5-tuple\n";
    assert_eq!(text, format!("n0: 4096 rules fit\n{line}"));
    flownic.ctl(&["inject", "n0", "ctrl-hang"]);
    let text = String::from_utf8(flownic.ctl_output(&["show"]).stdout).unwrap();
    assert!(text.contains(line) && text.contains("  injected faults: ctrl-hang\n"), "{text}");
}

#[test]
fn a_reset_ends_the_connection_and_what_the_guest_has_set_up() {
    let flownic = card("filters=100");
    let rules = || {
        let list = flownic.ask(json!({ "command": "flows_list", "nic": "n0" }));
        let count = |of: &str| list[of].as_array().unwrap().len();
        (count("rules"), count("guest"))
    };
    let reset = |on| flownic.refused(json!({ "command": "inject", "nic": "n0", "fault": "reset", "on": on }));
    assert_eq!(reset(true).1, "No front end is connected to n0");
    let rule = json!({ "flow_type": "tcp4", "dst_port": 80, "action": 1 });
    flownic.ask(json!({ "command": "flows_add", "nic": "n0", "rule": rule }));

    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    add(&mut guest, &five(5000, 1)).unwrap();
    assert_eq!(rules(), (1, 1));
    assert_eq!(reset(false).1, "A reset can't be taken back");
    inject(&flownic, json!("reset"), true);
    let patience = flownic::testkit::soon();
    while rules() != (1, 0) {
        assert!(Instant::now() < patience, "{:?} rules are left", rules());
    }
    assert!(guest.stop().is_err(), "the connection is gone");
    // The driver goes on where it was, as QEMU has it, and the device knows nothing of it.
    guest.disconnect();
    guest.connect().unwrap();
    assert_eq!(knobs(&flownic)["faults"], json!([]));
    assert_eq!(rules(), (1, 0));
}
