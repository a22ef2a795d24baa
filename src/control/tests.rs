//! `apply()` on a daemon without front ends, and the protocol's types.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::protocol::{Code, ControlError, Request, parse_call};
use super::replies::*;
use super::{FlowRule, Reply, apply};
use crate::config::{DEVICE_FEATURES, Settings};
use crate::daemon::Daemon;
use crate::packet::parse;
use crate::steer::FlowType;
use crate::virtio::F_MQ;

pub(super) struct Fixture {
    pub(super) daemon: Arc<Daemon>,
    pub(super) folder: TempDir,
}

impl Fixture {
    /// NICs of these descriptions, without a front end.
    pub(super) fn new(nics: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |i: usize| folder.path().join(i.to_string());
        let nics =
            nics.iter().enumerate().map(|(i, n)| format!("{n},socket={}", at(i).display()).parse().unwrap());
        let config = Settings { nics: nics.collect(), ..Settings::default() }.build().unwrap();
        Fixture { daemon: Arc::new(Daemon::start(&config).unwrap()), folder }
    }

    /// The reply to a request, as a client would see it.
    fn ask<T: DeserializeOwned>(&self, request: Value) -> Result<T, ControlError> {
        let line = json!({"version": 1, "id": 1, "request": request}).to_string();
        let reply = apply(&self.daemon, parse_call(line.as_bytes()).1?)?;
        Ok(serde_json::from_value(serde_json::to_value(reply).unwrap()).unwrap())
    }

    #[track_caller]
    pub(super) fn get<T: DeserializeOwned>(&self, request: Value) -> T {
        self.ask(request).unwrap()
    }

    #[track_caller]
    fn refused(&self, request: Value) -> (Code, String) {
        let e = self.ask::<Value>(request).unwrap_err();
        (e.code, e.message)
    }
}

pub(super) fn rule(port: u16, loc: u32) -> Value {
    json!({"command": "flows_add", "rule": {"flow_type": "udp4", "dst_port": port, "action": 1, "loc": loc}})
}

#[test]
fn show_tells_what_is_configured_and_what_is() {
    let f = Fixture::new(&["n0,queues=2,mtu=9000,filters=16,learn-entries=64", "n1,port=echo"]);
    let all: Vec<NicStatus> = f.get(json!({"command": "show"}));
    assert_eq!(all.iter().map(|n| n.nic.as_str()).collect::<Vec<_>>(), ["n0", "n1"]);
    let n0 = &all[0];
    assert_eq!((n0.mode.as_str(), n0.port.as_str(), n0.mtu, n0.queues), ("server", "null", 9000, 2));
    assert_eq!(n0.socket.as_deref(), f.folder.path().join("0").to_str());
    assert_eq!((n0.connected, n0.link_up, n0.features.len()), (false, true, 0));
    assert_eq!(n0.pairs, vec![PairStatus { worker: 0, rx_size: None, tx_size: None }; 2]);
    let steering = SteeringStatus {
        mode: SteeringMode::Automatic,
        learn: true,
        learned: 0,
        learned_capacity: 64,
        rss: true,
        rules: 0,
        rules_capacity: 16,
    };
    assert_eq!(n0.steering, steering);
    let one: Vec<NicStatus> = f.get(json!({"command": "show", "nic": "n1"}));
    assert_eq!((one.len(), one[0].port.as_str()), (1, "echo"));
}

#[test]
fn a_nic_is_found_by_its_name_or_for_being_the_only_one() {
    let two = Fixture::new(&["n0", "n1"]);
    let (code, text) = two.refused(json!({"command": "link", "up": false}));
    assert_eq!((code, text.as_str()), (Code::Invalid, "There are several NICs, name one: n0, n1"));
    let (code, text) = two.refused(json!({"command": "show", "nic": "n2"}));
    assert_eq!((code, text.as_str()), (Code::NotFound, "There is no NIC 'n2'; there are: n0, n1"));
    two.get::<Done>(json!({"command": "link", "nic": "n1", "up": false}));
    let up: Vec<NicStatus> = two.get(json!({"command": "show"}));
    assert_eq!((up[0].link_up, up[1].link_up), (true, false));
    let one = Fixture::new(&["n0"]);
    one.get::<Done>(json!({"command": "link", "up": false}));
    assert!(!one.daemon.nics()[0].is_link_up());
}

#[test]
fn rules_are_added_listed_counted_and_deleted() {
    let f = Fixture::new(&["n0,queues=2,filters=3"]);
    let nic = &f.daemon.nics()[0];
    assert_eq!(f.get::<FlowAdded>(rule(80, 1)).loc, 1);
    let own =
        json!({"flow_type": "tcp4", "src_ip": {"value": "10.0.0.0", "mask": "255.0.0.0"}, "action": -1});
    assert_eq!(f.get::<FlowAdded>(json!({"command": "flows_add", "rule": own})).loc, 2, "the highest free");
    (0..5).for_each(|_| crate::nic::RuleHits::count(nic.rule_hits.of(0), crate::steer::RuleSlot(0)));
    let list: FlowList = f.get(json!({"command": "flows_list"}));
    assert_eq!((list.capacity, list.rules.len()), (3, 2));
    let hits: Vec<_> = list.rules.iter().map(|r| (r.rule.loc, r.rule.action, r.hits)).collect();
    assert!(hits.contains(&(Some(1), 1, 5)) || hits.contains(&(Some(2), -1, 5)), "{hits:?}");
    assert_eq!(serde_json::to_value(&list.rules[1].rule).unwrap()["src_ip"], own["src_ip"]);
    // The new rule of a slot starts with no hits.
    f.get::<Done>(json!({"command": "flows_clear"}));
    for loc in 1..3 {
        f.get::<FlowAdded>(rule(80 + loc, loc.into()));
    }
    let list: FlowList = f.get(json!({"command": "flows_list"}));
    assert_eq!(list.rules.iter().map(|r| r.hits).collect::<Vec<_>>(), [0, 0]);
    f.get::<Done>(json!({"command": "flows_del", "loc": 1}));
    assert_eq!(nic.steering.read().filters().len(), 1);
}

#[test]
fn rules_that_are_not_possible_are_refused_with_a_code() {
    let f = Fixture::new(&["n0,filters=1"]);
    let add = |rule: Value| f.refused(json!({"command": "flows_add", "rule": rule}));
    let (code, text) = add(json!({"flow_type": "tcp4", "action": 1}));
    assert!(code == Code::Invalid && text.contains("no receive queue 1"), "{text}");
    let (code, text) = add(json!({"flow_type": "ether", "dst_port": 1, "action": 0}));
    assert!(code == Code::Invalid && text.contains("does not go with flow-type ether"), "{text}");
    let (code, text) = add(json!({"flow_type": "sctp4", "action": 0}));
    assert!(code == Code::Invalid && text.contains("'sctp4' is no flow-type; there are ether"), "{text}");
    let (code, text) = add(json!({"flow_type": "tcp4", "dst_prt": 1, "action": 0}));
    assert!(code == Code::Invalid && text.contains("dst_prt") && text.contains("dst_port"), "{text}");
    let (code, text) = add(json!({"flow_type": "tcp4", "dst_port": 65536, "action": 0}));
    assert!(code == Code::Invalid && text.contains("neither a value"), "{text}");
    f.get::<FlowAdded>(json!({"command": "flows_add", "rule": {"flow_type": "tcp4", "action": 0}}));
    let (code, text) = add(json!({"flow_type": "udp4", "action": 0}));
    assert!(code == Code::NoSpace && text.contains("full"), "{text}");
    assert_eq!(f.refused(json!({"command": "flows_del", "loc": 7})).0, Code::NotFound);
}

#[test]
fn rss_changes_are_made_whole_or_not_at_all() {
    let f = Fixture::new(&["n0,queues=4,rss-table=8"]);
    let before: RssStatus = f.get(json!({"command": "rss_get"}));
    assert_eq!((before.on, before.mode, before.default_table), (true, SteeringMode::Automatic, true));
    assert!(before.key.starts_with("6d:5a:56:da:"));
    assert_eq!(before.hash_types, ["ipv4", "tcpv4", "udpv4", "ipv6", "tcpv6", "udpv6"]);
    assert_eq!((before.table, before.effective), (vec![0, 1, 2, 3, 0, 1, 2, 3], vec![]));
    let set = |change: Value| f.ask::<Done>(json!({"command": "rss_set", "change": change}));
    let table = || f.get::<RssStatus>(json!({"command": "rss_get"})).table;
    set(json!({"table": {"equal": 3}})).unwrap();
    assert_eq!(table(), [0, 1, 2, 0, 1, 2, 0, 1]);
    set(json!({"table": {"weight": [1, 0, 3]}})).unwrap();
    assert_eq!(table(), [0, 0, 2, 2, 2, 2, 2, 2]);
    set(json!({"table": {"entries": [3, 2]}})).unwrap();
    assert_eq!(table(), [3, 2]);
    set(json!({"table": "default"})).unwrap();
    assert_eq!(table().len(), 8);
    let key = vec!["01"; 40].join(":");
    set(json!({"on": false, "mode": "rss", "key": key, "hash_types": ["tcpv4"], "unclassified": 3})).unwrap();
    let after: RssStatus = f.get(json!({"command": "rss_get"}));
    assert_eq!((after.on, after.mode, &after.key), (false, SteeringMode::Rss, &key));
    assert_eq!((after.hash_types.as_slice(), after.unclassified), (&["tcpv4".to_string()][..], 3));
    for (change, wanted) in [
        (json!({"table": {"equal": 5}}), "can't spread over 5 queues: 1 to 4"),
        (json!({"table": {"equal": 0}}), "can't spread over 0 queues"),
        (json!({"table": {"weight": [0, 0]}}), "not all are zero"),
        (json!({"table": {"weight": [1, 1, 1, 1, 1]}}), "queues 0 to 3"),
        (json!({"table": {"entries": [4]}}), "names queue 4"),
        (json!({"table": {"entries": [0, 0, 0]}}), "table of 3 entries"),
        (json!({"key": "01"}), "1 bytes is not possible"),
        (json!({"hash_types": ["sctp"]}), "'sctp' is no hash type; there are ipv4"),
        (json!({"unclassified": 4}), "cannot go to queue 4"),
        (json!({"turn": true}), "unknown field `turn`"),
    ] {
        let mut change = change;
        change["on"] = true.into();
        let e = set(change.clone()).unwrap_err();
        assert!(e.code == Code::Invalid && e.message.contains(wanted), "{change}: {}", e.message);
    }
    assert_eq!(f.get::<RssStatus>(json!({"command": "rss_get"})), after, "nothing of a refused change stays");
}

#[test]
fn learned_flows_are_shown_switched_and_forgotten() {
    let f = Fixture::new(&["n0,queues=2,learn-idle=7"]);
    let nic = &f.daemon.nics()[0];
    let learn = |port: u16, queue: u16| {
        let mut frame = [0u8; 60];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&[0, 46]);
        frame[23] = 17;
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        nic.learned.learn(&parse(&frame, 60).flow().unwrap(), queue, f.daemon.now());
    };
    (0..5).for_each(|port| learn(port, port % 2));
    let status: LearnStatus = f.get(json!({"command": "learn_show"}));
    assert_eq!((status.on, status.idle_secs, status.learned), (true, 7, 5));
    assert_eq!(status.flows, [3, 2]);
    f.get::<Done>(json!({"command": "learn_clear", "queue": 0}));
    assert_eq!(f.get::<LearnStatus>(json!({"command": "learn_show"})).flows, [0, 2]);
    f.get::<Done>(json!({"command": "learn_clear"}));
    assert_eq!(f.get::<LearnStatus>(json!({"command": "learn_show"})).flows, [0, 0]);
    f.get::<Done>(json!({"command": "learn_set", "on": false}));
    assert!(!nic.steering.read().learn_on());
    let (code, text) = f.refused(json!({"command": "learn_clear", "queue": 2}));
    assert_eq!((code, text.as_str()), (Code::Invalid, "There is no receive queue 2: queues go from 0 to 1"));
}

#[test]
fn features_and_counters() {
    let f = Fixture::new(&["n0,features=-mq"]);
    let list: FeatureList = f.get(json!({"command": "features"}));
    assert_eq!(list.features.len() as u32, DEVICE_FEATURES.count_ones());
    let bits = list.features.iter().filter(|s| s.offered).fold(0, |bits, s| bits | 1u64 << s.bit);
    assert_eq!(bits, DEVICE_FEATURES & !F_MQ);
    assert!(list.features.iter().all(|s| !s.negotiated));
    let nic = &f.daemon.nics()[0];
    nic.rx_counters[0].by_rss.add(3);
    nic.counters.of(0).port_rx_packets.add(4);
    let stats: Vec<crate::stats::NicStats> = f.get(json!({"command": "stats", "nic": "n0"}));
    assert_eq!((stats[0].rx[0].get("by_rss"), stats[0].device.get("port_rx_packets")), (3, 4));
    f.get::<Done>(json!({"command": "reset_stats"}));
    assert_eq!((nic.rx_counters[0].by_rss.get(), nic.counters.values()[0]), (0, 0));
}

#[test]
fn a_call_is_refused_for_what_is_wrong_with_it() {
    for (line, id, code, wanted) in [
        ("", Value::Null, Code::Protocol, "is no call"),
        ("[]", Value::Null, Code::Protocol, "is no call"),
        ("{\"version\":1}", Value::Null, Code::Protocol, "missing field `request`"),
        (
            "{\"version\":2,\"id\":7,\"request\":{\"command\":\"show\"}}",
            7.into(),
            Code::Protocol,
            "Version 2",
        ),
        ("{\"version\":1,\"id\":\"a\",\"request\":{}}", "a".into(), Code::Invalid, "missing field `command`"),
        ("{\"version\":1,\"request\":{\"command\":\"fly\"}}", Value::Null, Code::Invalid, "`flows_list`"),
        (
            "{\"version\":1,\"request\":{\"command\":\"show\",\"nik\":\"a\"}}",
            Value::Null,
            Code::Invalid,
            "unknown field `nik`",
        ),
        (
            "{\"version\":1,\"request\":{\"command\":\"link\"}}",
            Value::Null,
            Code::Invalid,
            "missing field `up`",
        ),
        ("{\"version\":1,\"x\":1,\"request\":{}}", Value::Null, Code::Protocol, "unknown field `x`"),
    ] {
        let (got, result) = parse_call(line.as_bytes());
        let e = result.unwrap_err();
        assert!(got == id && e.code == code && e.message.contains(wanted), "{line}: {got} {e:?}");
    }
}

#[test]
fn what_a_client_writes_is_what_the_server_reads() {
    let nic = || Some("n0".to_string());
    let requests = [
        Request::Show { nic: None },
        Request::ResetStats { nic: nic() },
        Request::FlowsAdd { nic: None, rule: Box::new(FlowRule::new(FlowType::Tcp6, -1)) },
        Request::FlowsDel { nic: nic(), loc: 3 },
        Request::RssSet {
            nic: None,
            change: RssChange { table: Some(TableChange::Weight(vec![1, 2])), ..RssChange::default() },
        },
        Request::LearnClear { nic: nic(), queue: Some(3) },
        Request::Trace { nic: None, filter: Default::default(), limit: Some(5) },
        Request::Link { nic: None, up: true },
    ];
    for request in requests {
        let line = json!({"version": 1, "id": 0, "request": request}).to_string();
        assert_eq!(parse_call(line.as_bytes()).1, Ok(request), "{line}");
    }
}

#[test]
fn unknown_reasons_are_refused_by_name() {
    let f = Fixture::new(&["n0"]);
    let (code, text) = f.refused(json!({"command": "trace", "filter": {"reason": "luck"}}));
    assert!(
        code == Code::Invalid && text.contains("'luck' is no reason; these are: filter, learned"),
        "{text}"
    );
    let watch = |reason: &str| f.ask::<Done>(json!({"command": "trace", "filter": {"reason": reason}}));
    // Each ends as soon as it is dropped, so the next one finds the trace free.
    for reason in ["drop", "rss", "no_queue"] {
        watch(reason).unwrap();
    }
    assert!(!f.daemon.nics()[0].trace.is_on());
}

#[test]
fn a_reply_keeps_its_shape() {
    let f = Fixture::new(&["n0"]);
    let request = Request::FlowsAdd { nic: None, rule: Box::new(FlowRule::new(FlowType::Ip4, 0)) };
    let reply = apply(&f.daemon, request).unwrap();
    assert!(matches!(reply, Reply::FlowAdded(FlowAdded { loc: 8191 })));
    assert_eq!(serde_json::to_string(&reply).unwrap(), "{\"loc\":8191}");
}
