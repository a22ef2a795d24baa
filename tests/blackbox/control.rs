//! The control socket and `flownic ctl`: what is asked, what changes, and what is refused in which words.

use flownic::testkit::{Flownic, Guest, frame, soon};
use serde_json::{Value, json};

use crate::{FLOWNIC, counter, expect_counter, nic, ping};

/// Where each frame that is sent through queue 0 comes back.
fn queues(guest: &mut Guest, frames: &[Vec<u8>]) -> Vec<Option<usize>> {
    frames.iter().for_each(|f| guest.send(0, f));
    let got = guest.fence(0);
    frames.iter().map(|f| got.iter().find(|g| g.frame == *f).map(|g| g.pair)).collect()
}

fn udp(n: usize) -> Vec<u8> {
    frame::udp("10.0.0.1:1000", "10.0.0.2:53", 40 + n)
}

fn add(rule: Value) -> Value {
    json!({ "command": "flows_add", "rule": rule })
}

#[test]
fn rules_steer_and_drop_from_the_next_frame_on_and_count() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let by_hash = queues(&mut guest, &[udp(0)])[0];
    let other = frame::udp("10.0.0.1:1000", "10.0.0.2:54", 40);
    for queue in [3, 1, 2, 0] {
        let rule = json!({ "flow_type": "udp4", "dst_port": 53, "action": queue, "loc": 7 });
        assert_eq!(flownic.ask(add(rule))["loc"], 7);
        let before = queues(&mut guest, std::slice::from_ref(&other));
        assert_eq!(queues(&mut guest, &[udp(1), udp(2)]), [Some(queue), Some(queue)]);
        assert_eq!(queues(&mut guest, std::slice::from_ref(&other)), before, "another flow stays");
        let list = flownic.ask(json!({ "command": "flows_list" }));
        assert_eq!((&list["rules"][0]["hits"], list["rules"].as_array().unwrap().len()), (&json!(2), 1));
        expect_counter(&flownic, ("rx", queue, "by_filter"), 2, "the rule's frames");
    }
    flownic.ask(add(json!({ "flow_type": "udp4", "dst_port": 53, "action": -1, "loc": 3 })));
    assert_eq!(queues(&mut guest, &[udp(1), udp(2)]), [None, None], "the lower location goes first");
    expect_counter(&flownic, "drop_by_rule", 2, "dropped");
    flownic.ask(json!({ "command": "flows_del", "loc": 3 }));
    assert_eq!(queues(&mut guest, &[udp(1)]), [Some(0)]);
    flownic.ask(json!({ "command": "flows_clear" }));
    assert_eq!(queues(&mut guest, &[udp(0)])[0], by_hash);
}

#[test]
fn a_rule_beats_a_learned_flow_and_a_disabled_queue_is_no_target() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    guest.send(2, &frame::udp("10.0.0.2:53", "10.0.0.1:1000", 40));
    guest.fence(2);
    assert_eq!(queues(&mut guest, &[udp(0)]), [Some(2)], "learned");
    flownic.ask(add(json!({ "flow_type": "udp4", "dst_ip": "10.0.0.2", "action": 3 })));
    assert_eq!(queues(&mut guest, &[udp(0)]), [Some(3)], "by the rule");
    guest.enable(3, false).unwrap();
    assert_eq!(queues(&mut guest, &[udp(0)]), [Some(2)], "its queue is gone: learned again");
    guest.enable(2, false).unwrap();
    assert!(queues(&mut guest, &[udp(0)])[0].unwrap() < 2, "that as well: RSS over what is left");
    (2..4).for_each(|pair| guest.enable(pair, true).unwrap());
    assert_eq!(queues(&mut guest, &[udp(0)]), [Some(3)]);
}

#[test]
fn rules_of_every_kind() {
    let flownic = nic("queues=8,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(8).connect().unwrap();
    let v6 = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
    let base = || frame::frame().ip([10, 1, 1, 1].into(), [10, 2, 2, 2].into());
    let rules = [
        (
            json!({ "flow_type": "ether", "ethertype": 0x0806 }),
            frame::arp([1, 1, 1, 1].into(), [2, 2, 2, 2].into()),
        ),
        (
            json!({ "flow_type": "ether", "dst_mac": "02:00:00:00:00:77" }),
            frame::frame().to(frame::mac(0x77)).payload(&[1; 50]).build(),
        ),
        (
            json!({ "flow_type": "tcp4", "src_ip": "10.1.1.1", "dst_port": 80 }),
            base().tcp(5, 80).payload(&[2; 9]).build(),
        ),
        (
            json!({ "flow_type": "udp4", "dst_port": { "value": 0x1200, "mask": 0xff00 } }),
            base().udp(5, 0x12ab).payload(&[3; 9]).build(),
        ),
        (json!({ "flow_type": "ip4", "l4_proto": 47 }), base().protocol(47).payload(&[4; 30]).build()),
        (
            json!({ "flow_type": "tcp6", "dst_ip": "fd00::2" }),
            frame::frame().ip(v6.0, v6.1).tcp(1, 2).build(),
        ),
        (
            json!({ "flow_type": "udp6", "src_port": 99 }),
            frame::frame().ip(v6.0, v6.1).extension(0, &[0; 6]).udp(99, 2).payload(&[5; 9]).build(),
        ),
        (
            json!({ "flow_type": "udp4", "vlan": { "value": 5, "mask": 0xfff } }),
            base().vlan(0x6005).udp(8, 9).payload(&[6; 9]).build(),
        ),
    ];
    for (queue, (rule, frame)) in rules.iter().enumerate() {
        let mut rule = rule.clone();
        rule["action"] = queue.into();
        flownic.ask(add(rule.clone()));
        assert_eq!(queues(&mut guest, std::slice::from_ref(frame)), [Some(queue)], "{rule}");
    }
    for (queue, (rule, frame)) in rules.iter().enumerate() {
        assert_eq!(queues(&mut guest, std::slice::from_ref(frame)), [Some(queue)], "{rule} among the others");
    }
}

#[test]
fn a_full_table_says_so_and_stays_as_it_is() {
    let flownic = nic("queues=2,port=loopback,filters=3");
    let rule = |port: u16| add(json!({ "flow_type": "udp4", "dst_port": port, "action": 1 }));
    (1..4).for_each(|port| drop(flownic.ask(rule(port))));
    assert_eq!(flownic.refused(rule(4)).0, "ENOSPC");
    let list = flownic.ask(json!({ "command": "flows_list" }));
    assert_eq!((&list["capacity"], list["rules"].as_array().unwrap().len()), (&json!(3), 3));
    let loc = list["rules"][0]["rule"]["loc"].clone();
    flownic.ask(json!({ "command": "flows_del", "loc": loc }));
    flownic.ask(rule(4));
}

#[test]
fn bad_requests_are_refused_in_words_and_cost_nothing() {
    let flownic = nic("queues=2,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
    for (request, code, word) in [
        (json!({ "command": "dance" }), "EINVAL", "dance"),
        (json!({ "command": "show", "nic": "n9" }), "ENOENT", "n0"),
        (json!({ "command": "stats", "colour": 1 }), "EINVAL", "colour"),
        (json!({ "command": "flows_del", "loc": 1 }), "ENOENT", "1"),
        (add(json!({ "flow_type": "udp4", "action": 2 })), "EINVAL", "2"),
        (add(json!({ "flow_type": "udp5", "action": 1 })), "EINVAL", "udp4"),
        (add(json!({ "flow_type": "udp4", "dst_ip": "fd00::1", "action": 1 })), "EINVAL", ""),
        (json!({ "command": "rss_set", "change": { "key": "01:02" } }), "EINVAL", ""),
        (json!({ "command": "rss_set", "change": { "hash_types": ["magic"] } }), "EINVAL", "magic"),
    ] {
        let (got, message) = flownic.refused(request.clone());
        assert_eq!(got, code, "{request}: {message}");
        assert!(message.contains(word) && message.len() > 5, "{request}: {message}");
    }
    ping(&mut guest, 0);
}

#[test]
fn lines_that_are_no_calls_are_answered_or_end_their_connection_and_nothing_else() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let mut watcher = flownic.control();
    for line in [
        "\n",
        "nonsense\n",
        "{}\n",
        "[]\n",
        "{\"version\":2,\"request\":{\"command\":\"show\"}}\n",
        "\u{0}\n",
    ] {
        let mut control = flownic.control();
        control.send(line).unwrap();
        if let Some(answer) = control.line() {
            assert_eq!(answer["error"]["code"], "EPROTO", "{line:?}: {answer}");
        }
    }
    let mut control = flownic.control();
    // The server may close before all of it is written.
    let _ = control.send(&"x".repeat(4 << 20));
    let _ = control.send("\n");
    while let Some(answer) = control.line() {
        assert_eq!(answer["error"]["code"], "EMSGSIZE", "{answer}");
    }
    drop(flownic.control());
    watcher.call(&json!({ "command": "show" })).unwrap();
    ping(&mut guest, 0);
}

#[test]
fn rss_is_set_and_in_force_at_once() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let flows: Vec<_> =
        (0..64).map(|i| frame::udp(&format!("10.0.0.1:{}", 100 + i), "10.0.0.2:9", 50)).collect();
    let set = |change: Value| flownic.ask(json!({ "command": "rss_set", "change": change }));
    set(json!({ "table": { "equal": 2 } }));
    assert!(queues(&mut guest, &flows).iter().all(|q| q.unwrap() < 2));
    set(json!({ "table": { "weight": [0, 0, 0, 1] } }));
    assert!(queues(&mut guest, &flows).iter().all(|q| *q == Some(3)));
    set(json!({ "table": "default" }));
    assert!((0..4).all(|q| queues(&mut guest, &flows).contains(&Some(q))));
    let before = queues(&mut guest, &flows);
    let key = (1..=40).map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":");
    set(json!({ "key": key }));
    assert_ne!(queues(&mut guest, &flows), before, "another key");
    assert_eq!(flownic.ask(json!({ "command": "rss_get" }))["key"], key);
    set(json!({ "on": false }));
    assert!(queues(&mut guest, &flows).iter().all(|q| *q == Some(0)), "without RSS: queue 0");
}

#[test]
fn learning_can_be_switched_off_and_forgotten() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let by_hash = queues(&mut guest, &[udp(0)])[0].unwrap();
    let queue = (by_hash + 1) % 4;
    let teach = |guest: &mut Guest| {
        guest.send(queue, &frame::udp("10.0.0.2:53", "10.0.0.1:1000", 40));
        guest.fence(queue);
    };
    teach(&mut guest);
    assert_eq!(queues(&mut guest, &[udp(0)]), [Some(queue)]);
    flownic.ask(json!({ "command": "learn_clear" }));
    assert_eq!(queues(&mut guest, &[udp(0)]), [Some(by_hash)], "forgotten");
    flownic.ask(json!({ "command": "learn_set", "on": false }));
    teach(&mut guest);
    assert_eq!(queues(&mut guest, &[udp(0)]), [Some(by_hash)], "not learned");
    flownic.ask(json!({ "command": "learn_set", "on": true }));
    teach(&mut guest);
    assert_eq!(queues(&mut guest, &[udp(0)]), [Some(queue)]);
}

#[test]
fn the_link_goes_down_and_up() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    ping(&mut guest, 0);
    flownic.ask(json!({ "command": "link", "up": false }));
    (0..5).for_each(|n| guest.send(0, &udp(n)));
    assert!(guest.drain_tx(0, soon()), "frames are taken and lost");
    expect_counter(&flownic, ("tx", 0, "drop_link_down"), 5, "the link is down");
    assert!(!guest.rx(0).has_used());
    flownic.ask(json!({ "command": "link", "up": true }));
    ping(&mut guest, 0);
}

#[test]
fn counters_go_back_to_zero_under_traffic() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    (0..10).for_each(|_| drop(ping(&mut guest, 0)));
    assert!(guest.drain_tx(0, soon()));
    expect_counter(&flownic, ("tx", 0, "packets"), 10, "ten");
    flownic.ask(json!({ "command": "reset_stats" }));
    assert_eq!(counter(&flownic, ("tx", 0, "packets")), 0);
    ping(&mut guest, 0);
    expect_counter(&flownic, ("tx", 0, "packets"), 1, "one more");
}

#[test]
fn a_trace_says_queue_and_reason_of_each_frame() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    flownic.ask(add(json!({ "flow_type": "udp4", "dst_port": 53, "action": 3 })));
    flownic.ask(add(json!({ "flow_type": "udp4", "dst_port": 54, "action": -1 })));
    let mut trace = flownic.control();
    let filter = json!({ "ip": "10.0.0.2" });
    let call =
        json!({ "version": 1, "id": 1, "request": { "command": "trace", "filter": filter, "limit": 3 } });
    trace.send(&format!("{call}\n")).unwrap();
    let begun = trace.line().unwrap();
    assert!(begun.get("error").is_none(), "{begun}");
    guest.send(0, &frame::udp("10.9.9.9:1", "10.8.8.8:1", 50));
    guest.send(0, &udp(0));
    guest.send(0, &frame::udp("10.0.0.1:1000", "10.0.0.2:54", 50));
    guest.send(0, &frame::udp("10.0.0.1:1000", "10.0.0.2:55", 50));
    let records: Vec<Value> = std::iter::from_fn(|| trace.line())
        .filter_map(|l| l.get("trace").cloned())
        .take(3)
        .map(|r| json!([r["queue"], r["reason"], r["dst_port"]]))
        .collect();
    assert_eq!(records[0], json!([3, "filter", 53]));
    assert_eq!((&records[1][0], &records[1][2]), (&Value::Null, &json!(54)));
    assert_eq!((&records[2][1], &records[2][2]), (&json!("rss"), &json!(55)));
}

#[test]
fn tables_survive_the_guest() {
    let flownic = nic("queues=4,port=loopback");
    flownic.ask(add(json!({ "flow_type": "udp4", "dst_port": 53, "action": 2 })));
    for _ in 0..3 {
        let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
        assert_eq!(queues(&mut guest, &[udp(0)]), [Some(2)]);
    }
    expect_counter(&flownic, ("rx", 2, "by_filter"), 3, "one for each guest");
}

#[test]
fn show_says_what_is_there() {
    let flownic = nic("queues=2,port=echo");
    let before = flownic.ask(json!({ "command": "show" }));
    let one = |shown: &Value, field: &str| shown[0][field].clone();
    assert_eq!(
        (one(&before, "nic"), one(&before, "connected"), one(&before, "queues")),
        ("n0".into(), false.into(), 2.into())
    );
    let mut guest =
        flownic.guest("n0").queue_pairs(2).ring_size(64).features("-event_idx").connect().unwrap();
    ping(&mut guest, 0);
    let during = flownic.ask(json!({ "command": "show" }));
    assert_eq!(one(&during, "connected"), true);
    assert_eq!(during[0]["pairs"][1]["rx_size"], 64);
    let features: Vec<_> =
        during[0]["features"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    assert!(features.contains(&"mrg_rxbuf") && !features.contains(&"event_idx"), "{features:?}");
}

#[test]
fn ctl_is_the_same_in_words() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).connect().unwrap();
    let add = ["flows", "add", "flow-type", "udp4", "dst-port", "53", "action", "1", "loc", "9"];
    assert_eq!(flownic.ctl(&add)["loc"], 9);
    assert_eq!(queues(&mut guest, &[udp(0)]), [Some(1)]);
    assert_eq!(flownic.ctl(&["flows", "list"])["rules"][0]["rule"]["dst_port"], 53);
    for command in [&["show"][..], &["stats"], &["flows", "list"], &["rss", "get"], &["features"], &["learn"]]
    {
        assert!(!flownic.ctl(command).is_null(), "{command:?}");
        let words = flownic.ctl_output(command);
        assert!(words.status.success() && words.stdout.len() > 10, "{command:?}: {words:?}");
    }
    flownic.ctl(&["flows", "del", "9"]);
    assert!(flownic.try_ctl(&["flows", "del", "9"]).unwrap_err().contains('9'));
    flownic.ctl(&["link", "down"]);
    flownic.ctl(&["link", "up"]);
    flownic.ctl(&["reset-stats"]);
    ping(&mut guest, 0);
}

#[test]
fn serve_refuses_nonsense_before_it_starts_anything() {
    for (args, word) in [
        (&["--nic", "n0"][..], "socket"),
        (&["--nic", "n0,socket=/tmp/x,queues=999"], "127"),
        (&["--nic", "n0,socket=/tmp/x,port=moon"], "loopback"),
        (&["--nic", "n0,socket=/tmp/x,port=link:n5"], "n5"),
        (&["--nic", "n0,socket=/tmp/x,features=-turbo"], "turbo"),
        (&["--nic", "n0,socket=/nowhere/at/all"], "/nowhere"),
        (&["--poll", "sometimes"], "adaptive"),
        (&[], "--nic"),
    ] {
        let output = std::process::Command::new(FLOWNIC).arg("serve").args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{args:?}");
        assert!(text.contains(word) && !text.contains("panicked"), "{args:?}: {text}");
    }
}

#[test]
fn two_processes_do_not_take_each_others_socket() {
    let flownic = nic("queues=1,port=echo");
    let spec = format!("n0,socket={},port=echo", flownic.path("n0").display());
    let output = std::process::Command::new(FLOWNIC).args(["serve", "--nic", &spec]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("already"), "{output:?}");
    ping(&mut flownic.guest("n0").connect().unwrap(), 0);
}

#[test]
fn one_nic_by_the_conventions_for_back_ends() {
    let flownic = Flownic::serve(FLOWNIC, &["--socket-path", "@/vhost", "--port", "echo", "--queues", "2"]);
    let mut guest = flownic.guest("vhost").queue_pairs(2).connect().unwrap();
    ping(&mut guest, 1);
    let output = std::process::Command::new(FLOWNIC).arg("--print-capabilities").output().unwrap();
    let capabilities: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(capabilities["type"], "net");
}

#[test]
fn a_capture_has_every_frame_with_its_queue() {
    let flownic =
        Flownic::serve(FLOWNIC, &["--nic", "n0,socket=@/n0,queues=2,port=echo,capture=@/frames.pcapng"]);
    let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
    let sent: Vec<_> = (0..20).map(|i| frame::udp("10.0.0.1:7", "10.0.0.2:9", 100 + i)).collect();
    for (i, sent) in sent.iter().enumerate() {
        guest.send(i % 2, sent);
        assert!(guest.recv_any(soon()).is_some());
    }
    let path = flownic.path("frames.pcapng");
    let mut flownic = flownic;
    assert!(flownic.terminate().success());
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a section header block");
    for sent in &sent {
        // Once as the guest sent it, once with the addresses swapped; from the EtherType on they are the same.
        let count = bytes.windows(sent.len() - 12).filter(|w| *w == &sent[12..]).count();
        assert_eq!(count, 2, "a frame of {} bytes", sent.len());
    }
}
