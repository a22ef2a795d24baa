//! What `flownic-guest` does, over the frames of a guest: each [`device`] is a new run of the program, which remembers nothing.

use std::io;
use std::time::{Duration, Instant};

use flownic::control::parse_flow;
use flownic::control::rss_words::parse_rss;
use flownic::guest::settings::{CoalesceChange, PairCoalesce};
use flownic::guest::{Channel, Device, Frames, GuestError};
use flownic::testkit::{Command, Flownic, Guest, frame};
use flownic::virtio::MacAddr;
use flownic::virtio::admin;
use flownic::virtio::flow::{
    CAP_ACTIONS, CAP_RESOURCES, CAP_SELECTORS, Classifier, FlowAction, Group, ObjectType, RuleObject,
    Selector, SelectorType,
};

use crate::{nic, stats};

/// The guest's transmit queue 0 and all its receive queues, as a packet socket sees them.
pub(crate) struct Wire<'g>(&'g mut Guest);

impl Frames for Wire<'_> {
    fn mac(&self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, 9])
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.0.send(0, frame);
        Ok(())
    }

    fn receive(&mut self, room: &mut [u8], until: Instant) -> io::Result<Option<usize>> {
        let Some(got) = self.0.recv_any(until) else { return Ok(None) };
        room[..got.frame.len()].copy_from_slice(&got.frame);
        Ok(Some(got.frame.len()))
    }
}

fn try_device(guest: &mut Guest, timeout: Duration) -> Result<Device<Wire<'_>>, GuestError> {
    Device::find(Channel::new(Wire(guest), timeout, 77))
}

/// A run of the program.
pub(crate) fn device(guest: &mut Guest) -> Device<Wire<'_>> {
    try_device(guest, Duration::from_secs(10)).unwrap()
}

fn words(s: &str) -> Vec<String> {
    s.split_whitespace().map(str::to_string).collect()
}

/// Adds a rule; its location.
pub(crate) fn add(guest: &mut Guest, rule: &str) -> Result<u32, String> {
    let rule = parse_flow(&words(rule)).unwrap();
    device(guest).add_flow(rule).map(|added| added.loc).map_err(|e| e.to_string())
}

/// Rules in ethtool's words, with their hits, and how many there are of others.
fn list(guest: &mut Guest) -> (Vec<(String, u64)>, u32) {
    let flows = device(guest).flows("eth0").unwrap();
    (flows.rules.into_iter().map(|r| (r.rule.to_string(), r.hits)).collect(), flows.others)
}

fn four_queues() -> Flownic {
    nic("queues=4,port=loopback,learn=off")
}

pub(crate) fn udp(port: u16) -> Vec<u8> {
    frame::udp("192.0.2.1:1000", &format!("192.0.2.2:{port}"), 40)
}

/// Sends a frame over a loopback NIC; where it comes back.
pub(crate) fn queue_of(guest: &mut Guest, frame: &[u8]) -> Option<usize> {
    guest.send(0, frame);
    match &guest.fence(0)[..] {
        [got] => {
            assert_eq!(got.frame, frame);
            Some(got.pair)
        }
        [] => None,
        more => panic!("{} frames came back", more.len()),
    }
}

/// A queue that RSS does not pick for this frame.
fn another_queue(guest: &mut Guest, frame: &[u8]) -> usize {
    (queue_of(guest, frame).unwrap() + 1) % 4
}

#[test]
fn a_rule_is_added_listed_hit_and_deleted_run_by_run() {
    let flownic = four_queues();
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    assert_eq!(list(&mut guest), (vec![], 0), "nobody has said yet that objects will be used");
    device(&mut guest).clear_flows().unwrap();
    assert_eq!(device(&mut guest).others().unwrap(), 0);
    let (a, b) = (udp(5000), udp(5001));
    let (rss_a, rss_b) = (queue_of(&mut guest, &a).unwrap(), queue_of(&mut guest, &b).unwrap());
    let to = another_queue(&mut guest, &a);
    let loc = add(&mut guest, &format!("flow-type udp4 dst-port 5000 action {to}")).unwrap();
    assert_eq!(loc, 8191, "the highest free location");
    for _ in 0..3 {
        assert_eq!(queue_of(&mut guest, &a), Some(to));
        assert_eq!(queue_of(&mut guest, &b), Some(rss_b), "and no other frame");
    }
    let text = format!("flow-type udp4 dst-port 5000 action {to} loc 8191");
    assert_eq!(list(&mut guest), (vec![(text, 3)], 0));
    device(&mut guest).delete_flow(loc).unwrap();
    assert_eq!(queue_of(&mut guest, &a), Some(rss_a));
    assert_eq!(list(&mut guest), (vec![], 0));
    let e = device(&mut guest).delete_flow(loc).unwrap_err().to_string();
    assert_eq!(e, "There is no rule at location 8191");
    // Nothing is left behind: neither group nor classifier.
    assert_eq!(flownic.ask(serde_json::json!({ "command": "show" }))[0]["steering"]["rules"], 0);
}

#[test]
fn every_kind_of_rule_steers_and_drops() {
    let flownic = four_queues();
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let six = frame::tcp("[2001:db8::1]:9", "[2001:db8::2]:80", 40);
    let four = frame::tcp("192.0.2.1:9", "192.0.2.2:80", 40);
    for (rule, hit, missed) in [
        ("flow-type tcp4 dst-port 80", &four, &six),
        ("flow-type tcp4 src-ip 192.0.2.0/24 dst-ip 192.0.2.2 src-port 9 dst-port 80", &four, &udp(80)),
        ("flow-type ip4 l4proto 6", &four, &udp(80)),
        ("flow-type ip4", &four, &six),
        ("flow-type tcp6 dst-port 80", &six, &four),
        ("flow-type ip6 dst-ip 2001:db8::/64", &six, &four),
        ("flow-type udp4 dst-port 4096 m 0x00ff", &udp(4100), &udp(4400)),
        ("flow-type ether proto 0x86dd", &six, &four),
    ] {
        let rss = queue_of(&mut guest, missed);
        let to = another_queue(&mut guest, hit);
        let loc = add(&mut guest, &format!("{rule} action {to}")).unwrap();
        assert_eq!(queue_of(&mut guest, hit), Some(to), "{rule}");
        assert_eq!(queue_of(&mut guest, missed), rss, "{rule}");
        let drop = add(&mut guest, &format!("{rule} action -1 loc 5")).unwrap();
        assert_eq!(queue_of(&mut guest, hit), None, "{rule}: the lower location decides");
        device(&mut guest).delete_flow(drop).unwrap();
        assert_eq!(queue_of(&mut guest, hit), Some(to), "{rule}");
        device(&mut guest).delete_flow(loc).unwrap();
    }
}

#[test]
fn a_taken_location_is_replaced_in_either_way_and_kept_if_that_fails() {
    let flownic = nic("queues=4,port=loopback,learn=off,filters=2");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let a = udp(5000);
    let rss = queue_of(&mut guest, &a).unwrap();
    let (x, y) = ((rss + 1) % 4, (rss + 2) % 4);
    let rule = |port: u16, queue| format!("flow-type udp4 dst-port {port} action {queue} loc 1");
    add(&mut guest, &rule(5000, x)).unwrap();
    assert_eq!(queue_of(&mut guest, &a), Some(x));
    add(&mut guest, &rule(5000, y)).unwrap();
    assert_eq!(queue_of(&mut guest, &a), Some(y), "changed");
    // Changing a rule keeps its hits.
    assert_eq!(list(&mut guest).0[0].1, 2);
    add(&mut guest, &rule(5001, x)).unwrap();
    assert_eq!(queue_of(&mut guest, &a), Some(rss), "another rule is there now");
    add(&mut guest, "flow-type ip4 action 3 loc 0").unwrap();
    let e = add(&mut guest, "flow-type ip4 action 3").unwrap_err();
    assert_eq!(e, "Every location is taken");
    add(&mut guest, "flow-type tcp4 src-port 7 action 3 loc 1").unwrap();
    let e = add(&mut guest, "flow-type tcp4 action 4 loc 1").unwrap_err();
    assert_eq!(e, "There is no receive queue 4: queues go from 0 to 3, and -1 drops");
    let e = add(&mut guest, "flow-type tcp4 action 1 loc 2").unwrap_err();
    assert_eq!(e, "There is no location 2: locations go from 0 to 1");
    let e = add(&mut guest, "flow-type ether vlan 5 action 1").unwrap_err();
    assert!(e.starts_with("vlan can't be compared"), "{e}");
    let rules: Vec<_> = list(&mut guest).0.into_iter().map(|r| r.0).collect();
    assert_eq!(rules, ["flow-type ip4 action 3 loc 0", "flow-type tcp4 src-port 7 action 3 loc 1"]);
    device(&mut guest).clear_flows().unwrap();
    assert_eq!(list(&mut guest), (vec![], 0));
}

/// A driver's command on the kernel road; its result.
pub(crate) fn driver(guest: &mut Guest, command: &[u8]) -> Result<Vec<u8>, (u16, u16)> {
    let reply = guest.command(0, &Command::admin(command), 4096);
    admin::Answer::from_bytes(&reply.answer).into_result()
}

/// What a driver has made: group 0, classifier 0, and a rule of these for UDP to `port`.
fn driver_rule(guest: &mut Guest, id: u32, port: u16) {
    let all = admin::BitList::from_bytes(&driver(guest, &admin::list_query()).unwrap());
    driver(guest, &admin::list_use(&all)).unwrap();
    for cap in [CAP_RESOURCES, CAP_SELECTORS, CAP_ACTIONS] {
        let data = driver(guest, &admin::device_cap_get(cap)).unwrap();
        driver(guest, &admin::driver_cap_set(cap, &data)).unwrap();
    }
    let mut selectors: Vec<_> =
        [SelectorType::Ethernet, SelectorType::Ipv4, SelectorType::Udp].map(Selector::new).into();
    selectors[0].mask[12..14].fill(0xff);
    selectors[1].mask[9] = 0xff;
    selectors[2].mask[2..4].fill(0xff);
    let mut keys = vec![0; 14 + 20 + 8];
    keys[12..14].copy_from_slice(&[8, 0]);
    keys[14 + 9] = 17;
    keys[34 + 2..34 + 4].copy_from_slice(&port.to_be_bytes());
    let rule = RuleObject {
        group_id: 0,
        classifier_id: 0,
        priority: 0,
        action: FlowAction::Direct.code(),
        vq_index: 6,
        queue_offset: 0,
        keys,
    };
    let create = |object, data: &[u8]| admin::object_create(object, data);
    driver(guest, &create(ObjectType::Group.id(0), &Group { priority: 1 }.to_bytes())).unwrap();
    driver(guest, &create(ObjectType::Classifier.id(0), &Classifier { selectors }.to_bytes())).unwrap();
    driver(guest, &create(ObjectType::Rule.id(id), &rule.to_bytes())).unwrap();
}

#[test]
fn objects_of_others_are_left_alone() {
    let flownic = four_queues();
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let a = udp(5000);
    driver_rule(&mut guest, 8191, 5000);
    assert_eq!(queue_of(&mut guest, &a), Some(3), "the driver's rule");
    assert_eq!(list(&mut guest), (vec![], 1));
    let rule = "flow-type udp4 dst-port 5000 action 1";
    let e = add(&mut guest, &format!("{rule} loc 8191")).unwrap_err();
    assert_eq!(e, "Location 8191 has a rule that is not this program's (of group 0); it is left alone");
    // The same fields as the driver's, and yet not its classifier.
    assert_eq!(add(&mut guest, rule), Ok(8190));
    assert_eq!(queue_of(&mut guest, &a), Some(1), "the program's group goes first");
    assert_eq!(list(&mut guest).1, 1);
    assert_eq!(device(&mut guest).others().unwrap(), 1);
    let e = device(&mut guest).delete_flow(8191).unwrap_err().to_string();
    assert!(e.contains("not this program's"), "{e}");
    device(&mut guest).clear_flows().unwrap();
    assert_eq!(queue_of(&mut guest, &a), Some(3), "the driver's again");
    // All of it is still there, and nothing else.
    let query = |guest: &mut Guest, object| driver(guest, &admin::object_query(object));
    for (kind, own) in [(ObjectType::Group, 15), (ObjectType::Classifier, 63), (ObjectType::Rule, 8190)] {
        let theirs = if kind == ObjectType::Rule { 8191 } else { 0 };
        assert!(query(&mut guest, kind.id(theirs)).is_ok());
        assert_eq!(query(&mut guest, kind.id(own)).unwrap_err().0, admin::Status::NoSuch.code(), "{kind:?}");
    }
    device(&mut guest).reset().unwrap();
    assert_eq!(list(&mut guest), (vec![], 0));
}

#[test]
fn the_information_is_the_device_s() {
    let flownic = nic("queues=4,port=loopback,filters=100,profile=sfc");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let info = device(&mut guest).info("eth7").unwrap();
    assert_eq!((info.nic.as_str(), info.queues, info.profile), ("eth7", 4, 1));
    assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    let filter = info.flow_filter.unwrap();
    assert_eq!((filter.rules, filter.classifiers), (100, 64));
    assert_eq!(filter.selectors, ["ether", "ip4", "ip6", "tcp", "udp"]);
}

#[test]
fn rss_is_read_and_changed_in_part() {
    let flownic = nic("queues=4,port=loopback,rss-table=8");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let get = |guest: &mut Guest| device(guest).rss_status("eth0").unwrap();
    let before = get(&mut guest);
    assert_eq!((before.table.clone(), before.on), (vec![0, 1, 2, 3, 0, 1, 2, 3], true));
    let set = |guest: &mut Guest, s: &str| {
        let change = parse_rss(&words(s)).unwrap();
        device(guest).change_rss(change).map_err(|e| e.to_string())
    };
    set(&mut guest, "entries 3,3,3,3,3,3,3,3").unwrap();
    let after = get(&mut guest);
    assert_eq!((after.table.clone(), after.key.clone()), (vec![3; 8], before.key.clone()));
    assert_eq!(serde_json::to_value(after.mode).unwrap(), "rss");
    for port in 1..20 {
        assert_eq!(queue_of(&mut guest, &udp(port)), Some(3));
    }
    set(&mut guest, "equal 2 types udpv4").unwrap();
    let after = get(&mut guest);
    assert_eq!((after.table, after.hash_types), (vec![0, 1, 0, 1, 0, 1, 0, 1], vec!["udpv4".to_string()]));
    set(&mut guest, "weight 1 0 0 1").unwrap();
    assert_eq!(get(&mut guest).table, [0, 0, 0, 0, 3, 3, 3, 3]);
    let key = before.key.replace("6d:5a", "6d:5b");
    set(&mut guest, &format!("key {key} default")).unwrap();
    assert_eq!((get(&mut guest).key, get(&mut guest).table), (key, before.table));
    for (change, wanted) in [
        ("off", "on, off and mode are the host's: flownic ctl rss set"),
        ("mode automatic", "on, off and mode are the host's: flownic ctl rss set"),
        ("equal 5", "The table can't spread over 5 queues: 1 to 4 are possible"),
        ("entries 0,1,2", "The table can't have 3 entries: a power of two up to"),
        ("entries 0,4", "There is no receive queue 4: queues go from 0 to 3"),
        ("unclassified 4", "There is no receive queue 4"),
        ("key 00", "The key is not possible"),
        ("types icmp", "'icmp' is no hash type"),
    ] {
        let e = set(&mut guest, change).unwrap_err();
        assert!(e.starts_with(wanted), "{change}: {e}");
    }
}

#[test]
fn moderation_is_set_for_all_queues_or_one() {
    let flownic = four_queues();
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let get = |guest: &mut Guest| device(guest).coalesce_status("eth0").unwrap().queues;
    let set = |guest: &mut Guest, s: &str| {
        let change = CoalesceChange::parse(&words(s)).unwrap();
        device(guest).change_coalesce(change).map_err(|e| e.to_string())
    };
    let zero = PairCoalesce { rx_usecs: 0, rx_frames: 0, tx_usecs: 0, tx_frames: 0 };
    assert_eq!(get(&mut guest), [Some(zero); 4]);
    set(&mut guest, "rx-usecs 20 rx-frames 64").unwrap();
    let rx = PairCoalesce { rx_usecs: 20, rx_frames: 64, ..zero };
    assert_eq!(get(&mut guest), [Some(rx); 4]);
    set(&mut guest, "queue 2 rx-usecs 50 tx-frames 8").unwrap();
    let two = PairCoalesce { rx_usecs: 50, tx_frames: 8, ..rx };
    assert_eq!(get(&mut guest), [rx, rx, two, rx].map(Some), "what is not given stays");
    assert_eq!(
        set(&mut guest, "queue 4 rx-usecs 1"),
        Err("There is no queue 4: queues go from 0 to 3".into())
    );
    let parse = |s: &str| CoalesceChange::parse(&words(s)).unwrap_err();
    assert!(parse("").starts_with("Nothing is changed"));
    assert!(parse("rx 5").starts_with("Moderation has no 'rx'"));
    assert!(parse("rx-usecs").starts_with("'rx-usecs' has no value"));
    assert!(parse("rx-usecs -1").starts_with("rx-usecs: '-1' is not possible"));
    assert!(parse("rx-usecs 1 rx-usecs 2").ends_with("is given twice"));
}

#[test]
fn statistics_are_the_device_s() {
    let flownic = four_queues();
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let to = queue_of(&mut guest, &udp(9)).unwrap();
    let seen = device(&mut guest).statistics("eth0").unwrap();
    assert_eq!((seen.rx.len(), seen.tx.len()), (4, 4));
    // The fence takes frames, too.
    let host = stats(&flownic, "n0");
    assert_eq!(seen.rx[to].get("packets"), host["rx"][to]["packets"].as_u64().unwrap());
    assert_eq!(seen.tx[0].get("packets"), host["tx"][0]["packets"].as_u64().unwrap());
    assert!(seen.device.get("command_num") > 0);
}

#[test]
fn who_is_not_heard_is_told_why() {
    let refused = |in_band: &str, timeout: u64| {
        let flownic = nic(&format!("queues=2,port=null,in-band={in_band}"));
        let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
        match try_device(&mut guest, Duration::from_millis(timeout)) {
            Ok(_) => panic!("{in_band}: it is heard"),
            Err(e) => e.to_string(),
        }
    };
    assert!(
        refused("kernel", 10_000)
            .starts_with("The host does not take commands from programs (--in-band=kernel)")
    );
    assert!(refused("off", 300).starts_with("There was no answer"));
}
