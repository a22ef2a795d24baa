//! Which receive queue a frame arrives on, as the guest sees it: the right one, and silence on the others.

use std::process::Stdio;

use guest_tests::frame::Packet;
use guest_tests::wire::{COUNT, LIMIT, QUEUES, Wire, arp, with_wire};
use guest_tests::{traffic, wait_for};
use serde_json::{Value, json};

fn udp(destination_port: u16) -> Packet {
    Packet::udp("192.0.2.1:1000", "192.0.2.2:0").ports(1000, destination_port)
}

/// A port for which RSS picks another queue than `queue`.
fn port_not_on(queue: usize, first: u16) -> u16 {
    (first..).find(|port| udp(*port).rss_queue(QUEUES) != queue).expect("one of many hashes differs")
}

#[test]
fn rss_follows_the_published_vectors() {
    with_wire("", |wire| {
        // Source, destination and hash over addresses and ports, as published for the standard key.
        let vectors = [
            ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178u32),
            ("199.92.111.2:14230", "65.69.140.83:4739", 0xc626_b0ea),
            ("24.19.198.95:12898", "12.22.207.184:38024", 0x5c2b_394a),
            ("38.27.205.30:48228", "209.142.163.6:2217", 0xafc7_327f),
            ("153.39.163.191:44251", "202.188.127.2:1303", 0x10e8_28a2),
            ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x4020_7d3d),
            ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0xdde5_1bbf),
            ("[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", "[fe80::200:f8ff:fe21:67cf]:38024", 0x02d1_feef),
        ];
        for (source, destination, hash) in vectors {
            let queue = hash as usize % 128 % QUEUES;
            wire.expect(source, &Packet::tcp(source, destination).build(), queue);
            wire.expect(source, &Packet::udp(source, destination).build(), queue);
        }

        // The flow counts, whatever is around it.
        for port in 2000..2004 {
            let packet = udp(port);
            let six = Packet::udp("[2001:db8::1]:1000", "[2001:db8::2]:0").ports(1000, port);
            wire.expect_rss("a VLAN tag", &packet.clone().vlan(5));
            wire.expect_rss("two tags", &packet.clone().vlan(5).service_vlan(7));
            wire.expect_rss("IPv4 options", &packet.clone().options());
            wire.expect_rss("an IPv6 extension header", &six.clone().options());
            wire.expect_rss("a tagged IPv6 packet", &six.vlan(9));
        }
        // Fragments have no ports, the first no more than the others: a datagram stays on one queue.
        for host_part in 1..4 {
            let source = format!("192.0.2.{host_part}:1000");
            let packet = Packet::udp(&source, "192.0.2.99:2000").payload(64);
            let six =
                Packet::udp(&format!("[2001:db8::{host_part}]:1000"), "[2001:db8::99]:2000").payload(64);
            for (offset, more) in [(0, true), (9, true), (17, false)] {
                wire.expect_rss("a fragment", &packet.clone().fragment(offset, more));
                wire.expect_rss("a fragment of IPv6", &six.clone().fragment(offset, more));
            }
        }
        wire.expect("ARP", &arp(), 0);
    });
}

#[test]
fn rules_beat_rss_in_the_order_of_their_locations() {
    with_wire("", |wire| {
        let flownic = wire.flownic;
        // Each field that a rule may name, on a queue that RSS would not pick.
        for queue in 0..QUEUES {
            let port = port_not_on(queue, 3000);
            let packet = udp(port);
            wire.expect_rss("before the rule", &packet);
            wire.rule(&format!("flow-type udp4 dst-port {port} action {queue} loc 10"));
            wire.expect("a destination port", &packet.build(), queue);
            wire.expect_rss(
                "the same port of TCP",
                &Packet::tcp("192.0.2.1:1000", "192.0.2.2:0").ports(1000, port),
            );
            wire.expect_rss("another port", &udp(port + 1));
            wire.delete(10);
            wire.expect_rss("after the rule", &packet);
        }
        let cases = [
            ("flow-type udp4 src-ip 192.0.2.1 dst-ip 192.0.2.2 src-port 1000 dst-port 4000", udp(4000)),
            ("flow-type udp4 dst-ip 192.0.2.0 m 0.0.0.255", udp(4000)),
            ("flow-type ip4 l4proto 17", udp(4000)),
            ("flow-type tcp4 src-port 1000", Packet::tcp("192.0.2.1:1000", "192.0.2.2:4000")),
            (
                "flow-type udp6 dst-ip 2001:db8::2 dst-port 4000",
                Packet::udp("[2001:db8::1]:1000", "[2001:db8::2]:4000"),
            ),
            ("flow-type tcp6 src-port 1000", Packet::tcp("[2001:db8::1]:1000", "[2001:db8::2]:4000")),
            ("flow-type ether dst 02:f1:00:00:00:02", udp(4000)),
            ("flow-type udp4 dst-port 4000 vlan 0x0005 m 0xf000", udp(4000).vlan(5)),
        ];
        for (words, packet) in cases {
            let queue = (packet.rss_queue(QUEUES) + 1) % QUEUES;
            wire.rule(&format!("{words} action {queue} loc 3"));
            wire.expect(words, &packet.build(), queue);
            wire.delete(3);
        }
        // A rule on a VLAN leaves others alone.
        wire.rule("flow-type ether vlan 0x0005 m 0xf000 action 3 loc 3");
        wire.expect("the VLAN", &udp(4000).vlan(5).build(), 3);
        wire.expect_rss("another VLAN", &udp(4000).vlan(6));
        wire.expect_rss("no VLAN", &udp(4000));
        wire.delete(3);

        // The lowest location wins, whenever it came.
        wire.rule("flow-type udp4 dst-port 5000 action 1 loc 20");
        wire.rule("flow-type udp4 src-port 1000 action 2 loc 10");
        wire.expect("the lower location", &udp(5000).build(), 2);
        wire.rule("flow-type ip4 action 3 loc 5");
        wire.expect("the lowest location", &udp(5000).build(), 3);
        wire.delete(5);
        wire.delete(10);
        wire.expect("the last one left", &udp(5000).build(), 1);
        wire.rule("flow-type udp4 dst-port 5000 action 0 loc 20");
        wire.expect("a rule in place of another", &udp(5000).build(), 0);

        // Dropped frames are counted; others of the flow's kind pass.
        wire.rule("flow-type udp4 dst-port 5000 action -1 loc 1");
        let dropped = || flownic.counter("n0", "/device/drop_by_rule");
        let before = dropped();
        wire.expect_nothing("a dropped port", &udp(5000).build());
        wait_for("the drops to be counted", LIMIT, || {
            let now = dropped() - before;
            if now == u64::from(COUNT) { Ok(()) } else { Err(now.to_string()) }
        });
        wire.expect_rss("another port than the dropped", &udp(5001));
    });
}

#[test]
fn a_full_table_refuses_and_leaves_flows_to_rss() {
    with_wire(",filters=8", |wire| {
        let flownic = wire.flownic;
        for port in 6000..6008 {
            wire.rule(&format!("flow-type udp4 dst-port {port} action 2"));
        }
        let refusal =
            flownic.try_ctl(&["flows", "add", "n0", "flow-type", "udp4", "dst-port", "6008", "action", "2"]);
        let refusal = refusal.expect_err("a ninth rule");
        assert!(
            refusal.contains("full") || refusal.contains("space") || refusal.contains("taken"),
            "{refusal}"
        );
        for port in 6000..6008 {
            wire.expect("a rule that fitted", &udp(port).build(), 2);
        }
        let port =
            (6008..).find(|port| udp(*port).rss_queue(QUEUES) != 2).expect("one of many hashes differs");
        wire.expect_rss("a rule that did not fit", &udp(port));
    });
}

#[test]
fn answers_arrive_where_the_guest_sends_from() {
    with_wire("", |wire| {
        let (flownic, guest) = (wire.flownic, wire.guest);
        for queue in 0..QUEUES {
            let port = port_not_on(queue, 7000 + 100 * queue as u16);
            let (packet, answered) = (udp(port), Packet::udp("192.0.2.2:0", "192.0.2.1:0").ports(port, 1000));
            wire.expect_rss("a flow that the guest has not sent yet", &packet);
            guest.interface(0).send_on(queue as u32, &answered.build(), 1);
            wait_for("the flow to be learned", LIMIT, || {
                let sent = flownic.counter("n0", &format!("/tx/{queue}/packets"));
                if sent > 0 { Ok(()) } else { Err("nothing sent yet".to_owned()) }
            });
            wire.expect("a learned flow", &packet.build(), queue);
            wire.expect_rss("another flow", &udp(port).ports(1001, port));
        }
        // It follows its application to another processor.
        let port = port_not_on(3, 7900);
        let (packet, answered) =
            (udp(port), Packet::udp("192.0.2.2:0", "192.0.2.1:0").ports(port, 1000).build());
        for queue in [1, 3] {
            let before = flownic.counter("n0", &format!("/tx/{queue}/packets"));
            guest.interface(0).send_on(queue as u32, &answered, 1);
            wait_for("the flow to move", LIMIT, || {
                let sent = flownic.counter("n0", &format!("/tx/{queue}/packets"));
                if sent > before { Ok(()) } else { Err(sent.to_string()) }
            });
            wire.expect("a flow that moves", &packet.build(), queue);
        }
        // A rule goes before what was learned.
        wire.rule(&format!("flow-type udp4 dst-port {port} action 0 loc 1"));
        wire.expect("a rule over a learned flow", &packet.build(), 0);
        wire.delete(1);
        wire.expect("a learned flow again", &packet.build(), 3);
        flownic.ctl(&["learn", "n0", "off"]);
        wire.expect_rss("a learned flow with learning off", &packet);
    });
}

/// `flownic ctl trace`, with these further arguments, until it ends; `traffic` is repeated until then, since it takes a
/// moment to begin. Gives its records, and how often there was traffic.
fn trace(wire: &Wire, arguments: &[&str], mut traffic: impl FnMut()) -> (Vec<Value>, u64) {
    let mut command = wire.flownic.ctl_command(&["trace", "n0"]);
    let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().expect("flownic runs");
    let mut times = 0;
    wait_for("the trace to end", LIMIT, || {
        traffic();
        times += 1;
        child.try_wait().expect("a child of ours").ok_or_else(|| format!("running after {times} times"))
    });
    let output = child.wait_with_output().expect("its output");
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let bodies = lines.map(|line| serde_json::from_slice(line).expect("JSON"));
    let records = bodies.filter_map(|body: Value| body.get("trace").cloned()).collect();
    assert!(output.status.success(), "the trace ended with {}", output.status);
    (records, times)
}

#[test]
fn the_table_can_be_changed_and_a_trace_tells_why() {
    with_wire("", |wire| {
        let (flownic, guest) = (wire.flownic, wire.guest);
        let ports = (9100..9500).step_by(50);
        let moved = |port: u16| udp(port).rss_queue(QUEUES) != udp(port).rss_queue(2);
        assert!(ports.clone().any(moved), "cases that can tell the tables apart");
        flownic.ctl(&["rss", "set", "n0", "equal", "2"]);
        for port in ports.clone() {
            wire.expect("RSS over two queues", &udp(port).build(), udp(port).rss_queue(2));
        }
        flownic.ctl(&["rss", "set", "n0", "weight", "0", "0", "0", "1"]);
        for port in ports.clone() {
            wire.expect("RSS with all weight on the last queue", &udp(port).build(), 3);
        }
        flownic.ctl(&["rss", "set", "n0", "off"]);
        let port = port_not_on(0, 9100);
        wire.expect("RSS switched off", &udp(port).build(), 0);
        flownic.ctl(&["rss", "set", "n0", "on", "default"]);
        for port in ports {
            wire.expect_rss("RSS over all queues again", &udp(port));
        }

        // One frame after the other, and what is said of it.
        let told = |wire: &mut Wire, port: u16, queue: Option<usize>, reason: &str| {
            let frame = udp(port).build();
            let tap = wire.tap.clone();
            let (records, times) =
                trace(wire, &["--limit", "1", "--port", &port.to_string()], || tap.send(&frame, 1));
            let record = &records[0];
            assert_eq!(record["queue"].as_u64(), queue.map(|queue| queue as u64), "{record}");
            assert_eq!(record["reason"], reason, "{record}");
            assert_eq!(
                (&record["dst_port"], &record["src_ip"]),
                (&json!(port), &json!("192.0.2.1")),
                "{record}"
            );
            if let Some(queue) = queue {
                wire.received[queue] += times;
                wire.settle(reason);
            }
        };
        told(wire, 9600, Some(udp(9600).rss_queue(QUEUES)), "rss");
        wire.rule("flow-type udp4 dst-port 9601 action 2 loc 7");
        told(wire, 9601, Some(2), "filter");
        wire.rule("flow-type udp4 dst-port 9602 action -1 loc 8");
        told(wire, 9602, None, "rule");
        let queue = (udp(9603).rss_queue(QUEUES) + 1) % QUEUES;
        let answer = Packet::udp("192.0.2.2:0", "192.0.2.1:0").ports(9603, 1000).build();
        guest.interface(0).send_on(queue as u32, &answer, 1);
        wait_for("the flow to be learned", LIMIT, || {
            match flownic.counter("n0", &format!("/tx/{queue}/packets")) {
                0 => Err("nothing sent yet".to_owned()),
                _ => Ok(()),
            }
        });
        told(wire, 9603, Some(queue), "learned");

        // A flow of the kernel's: all of it that was learned arrives where the trace says.
        wire.tap.up(&["10.77.0.1/24"]);
        guest.interface(0).up(&["10.77.0.2/24"]);
        let server = traffic::netserver(guest);
        let run = || {
            traffic::netperf(flownic.machine(), "10.77.0.2", "TCP_RR", -200, "-P ,9301");
        };
        let (records, _) = trace(wire, &["--limit", "100", "--port", "9301", "--reason", "learned"], run);
        assert!(records.iter().all(|record| record["reason"] == "learned"), "{records:?}");
        let queues: Vec<u64> = records.iter().filter_map(|record| record["queue"].as_u64()).collect();
        assert_eq!(queues.len(), 100);
        assert!(queues.iter().all(|queue| *queue < QUEUES as u64), "{queues:?}");
        // One that a rule puts on a queue: as many frames in the guest as on the wire, and hardly any elsewhere.
        wire.rule("flow-type tcp4 dst-port 9301 action 1 loc 9");
        let received = guest.interface(0).received_during(run);
        assert!(received[1] >= 200, "{received:?}");
        assert!(received[0] + received[2] + received[3] < 100, "{received:?}");
        server.stop();
    });
}

#[test]
fn queues_that_the_guest_gives_up_are_no_targets() {
    with_wire("", |wire| {
        let guest = wire.guest;
        wire.rule("flow-type udp4 dst-port 8000 action 3 loc 0");
        wire.rule("flow-type udp4 dst-port 8001 action 1 loc 1");
        wire.expect("a rule", &udp(8000).build(), 3);
        for pairs in [2, 1, 3] {
            guest.interface(0).queues(pairs as u32);
            wire.received = guest.interface(0).receive_packets();
            assert_eq!(wire.received.len(), pairs);
            wire.expect("a rule that points past the end", &udp(8000).build(), udp(8000).rss_queue(pairs));
            let queue = if pairs > 1 { 1 } else { udp(8001).rss_queue(1) };
            wire.expect("a rule", &udp(8001).build(), queue);
            for port in 8100..8108 {
                wire.expect("RSS over fewer queues", &udp(port).build(), udp(port).rss_queue(pairs));
            }
        }
        guest.interface(0).queues(QUEUES as u32);
        wire.received = guest.interface(0).receive_packets();
        wire.expect("a rule whose queue is back", &udp(8000).build(), 3);
        for port in 8100..8108 {
            wire.expect_rss("RSS over all queues again", &udp(port));
        }
    });
}

#[test]
fn malformed_frames_have_no_ports_and_do_no_harm() {
    with_wire("", |wire| {
        let flownic = wire.flownic;
        // Rules on the port of the whole packet, and on what may be taken for a port where it is cut off.
        for (location, port) in [9000, 9000 & 0xff00, 0].into_iter().enumerate() {
            wire.rule(&format!("flow-type udp4 dst-port {port} action 3 loc {location}"));
        }
        let whole = udp(9000).payload(64).build();
        wire.expect("a whole packet", &whole, 3);
        let received = |wire: &Wire| wire.nic.receive_packets();
        let mut header_too_short = whole.clone();
        header_too_short[14] = 0x44;
        let mut no_version = whole.clone();
        no_version[14] = 0x05;
        let cases: [(&str, Vec<u8>); 6] = [
            ("cut off in the IPv4 header", whole[..30].to_vec()),
            ("cut off in the UDP header", whole[..37].to_vec()),
            ("cut off behind the Ethernet header", whole[..14].to_vec()),
            ("a header shorter than a header", header_too_short),
            ("no IP version", no_version),
            ("IPv6 in name only", [&whole[..12], &[0x86, 0xdd], &whole[14..]].concat()),
        ];
        for (what, frame) in cases {
            let before = received(wire);
            wire.tap.send(&frame, COUNT);
            // They arrive on a queue of RSS's choice, or are dropped; never by their ports, for they have none.
            let (arrived, marker) = (before[3], udp(9000).build());
            wire.tap.send(&marker, COUNT);
            wait_for(&format!("what follows `{what}`"), LIMIT, || {
                let now = received(wire)[3] - arrived;
                if now >= u64::from(COUNT) { Ok(()) } else { Err(now.to_string()) }
            });
            assert_eq!(received(wire)[3] - arrived, u64::from(COUNT), "{what}: on the rule's queue");
        }
        flownic.ctl(&["show"]);
    });
}
