//! Changes while frames fly, and clients that behave badly.

use flownic::testkit::{Guest, frame};
use serde_json::json;

use crate::{nic, ping};

/// Sends a burst of many flows and counts what comes back.
fn burst(guest: &mut Guest, tx: usize) {
    for i in 0..100 {
        guest.send(tx, &frame::udp(&format!("10.0.{tx}.1:{}", 1000 + i), "10.0.0.2:53", 60));
    }
}

#[test]
fn no_change_loses_a_frame() {
    let flownic = nic("queues=4,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(4).ring_size(1024).connect().unwrap();
    let mut control = flownic.control();
    let rule = |port: u16, queue: u16| json!({ "flow_type": "udp4", "dst_port": port, "action": queue, "loc": port });
    let changes = [
        json!({ "command": "flows_add", "rule": rule(53, 1) }),
        json!({ "command": "flows_add", "rule": rule(54, 2) }),
        json!({ "command": "flows_add", "rule": rule(53, 3) }),
        json!({ "command": "flows_del", "loc": 54 }),
        json!({ "command": "rss_set", "change": { "table": { "equal": 2 } } }),
        json!({ "command": "learn_set", "on": false }),
        json!({ "command": "flows_clear" }),
        json!({ "command": "rss_set", "change": { "table": "default" } }),
        json!({ "command": "rss_set", "change": { "mode": "rss" } }),
        json!({ "command": "rss_set", "change": { "mode": "automatic" } }),
        json!({ "command": "learn_set", "on": true }),
        json!({ "command": "learn_clear" }),
        json!({ "command": "reset_stats" }),
        json!({ "command": "stats" }),
        json!({ "command": "show" }),
    ];
    for round in 0..5 {
        for change in &changes {
            burst(&mut guest, round % 4);
            control.call(change).unwrap_or_else(|e| panic!("{change}: {e}"));
            burst(&mut guest, round % 4);
            assert_eq!(guest.fence(round % 4).len(), 200, "frames around {change}");
        }
    }
}

#[test]
fn a_trace_that_nobody_reads_holds_nothing_up_and_is_bounded() {
    let flownic = nic("queues=1,port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let mut trace = flownic.control();
    trace.send("{\"version\":1,\"id\":1,\"request\":{\"command\":\"trace\"}}\n").unwrap();
    assert!(trace.line().unwrap().get("error").is_none());
    for _ in 0..100 {
        burst(&mut guest, 0);
        guest.fence(0);
    }
    let before = flownic.usage().resident;
    for _ in 0..300 {
        burst(&mut guest, 0);
        assert_eq!(guest.fence(0).len(), 100);
    }
    let grown = flownic.usage().resident.saturating_sub(before);
    assert!(grown < 8 << 20, "grown by {grown} bytes");
    // A second watcher is told so; once the first has gone, it may.
    assert_eq!(flownic.refused(json!({ "command": "trace" })).0, "EBUSY");
    drop(trace);
    let until = flownic::testkit::soon();
    loop {
        let mut next = flownic.control();
        next.send("{\"version\":1,\"id\":1,\"request\":{\"command\":\"trace\"}}\n").unwrap();
        if next.line().unwrap().get("error").is_none() {
            break;
        }
        assert!(std::time::Instant::now() < until, "the trace of a client that is gone goes on");
    }
}

#[test]
fn too_many_clients_are_told_so_and_make_room_again() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let show = json!({ "command": "show" });
    let mut clients: Vec<_> = (0..100).map(|_| flownic.control()).collect();
    ping(&mut guest, 0);
    clients[0].call(&show).unwrap();
    let refused = clients.last_mut().unwrap().line();
    assert!(refused.is_none_or(|l| l["error"]["code"] == "EAGAIN"));
    drop(clients);
    let until = flownic::testkit::soon();
    loop {
        let mut control = flownic.control();
        let sent = control.send(&format!("{}\n", json!({ "version": 1, "id": 1, "request": show })));
        if sent.is_ok() && control.line().is_some_and(|l| l.get("ok").is_some()) {
            break;
        }
        assert!(std::time::Instant::now() < until, "nobody is let in any more");
    }
}
