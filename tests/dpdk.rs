//! A second driver, which others have written: DPDK's virtio-user port, in `dpdk-testpmd`. No VM, no root.
#![cfg(feature = "testkit")]

use std::net::Ipv4Addr;
use std::time::Instant;

use flownic::testkit::testpmd::{Options, Testpmd, number};
use flownic::testkit::{Flownic, soon};
use serde_json::{Value, json};

const FLOWNIC: &str = env!("CARGO_BIN_EXE_flownic");
const QUEUES: usize = 4;
/// Frames that each queue must have moved before a test looks closer.
const SOME: u64 = 1000;

fn serve(rest: &str) -> Flownic {
    let nic = format!("n0,socket=@/n0,queues={QUEUES},{rest}");
    Flownic::serve(FLOWNIC, &["--nic", &nic, "--poll", "adaptive"])
}

fn driver(flownic: &Flownic) -> Options {
    Options::driver(&flownic.path("n0"), QUEUES)
}

fn stats(flownic: &Flownic) -> Value {
    flownic.ask(json!({ "command": "stats", "nic": "n0" }))[0].clone()
}

/// A counter of each queue of a direction, `("rx", "packets")`.
fn each(flownic: &Flownic, direction: &str, name: &str) -> Vec<u64> {
    let stats = stats(flownic);
    let of = |q: usize| {
        stats[direction][q][name]
            .as_u64()
            .unwrap_or_else(|| panic!("no {name} of {direction} {q} in {stats}"))
    };
    (0..QUEUES).map(of).collect()
}

fn minus(a: &[u64], b: &[u64]) -> Vec<u64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// Looks until it is so.
fn wait_until(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let until: Instant = soon();
    while let Err(seen) = look() {
        assert!(Instant::now() < until, "{what}: {seen}");
    }
}

/// Waits until all queues of a direction have moved [`SOME`] frames since `before`.
fn wait_for_some(flownic: &Flownic, direction: &str, before: &[u64]) {
    wait_until(&format!("{SOME} frames on each {direction} queue"), || {
        let moved = minus(&each(flownic, direction, "packets"), before);
        if moved.iter().all(|&n| n >= SOME) { Ok(()) } else { Err(format!("{moved:?}")) }
    });
}

/// Waits until both sides have counted the same on every queue, from `before` on; what that is.
fn wait_agreed(flownic: &Flownic, testpmd: &mut Testpmd, direction: &str, before: &[u64]) -> Vec<u64> {
    let mut agreed = Vec::new();
    wait_until(&format!("testpmd and flownic agree on {direction}"), || {
        agreed = testpmd.packets(direction, QUEUES);
        let ours = minus(&each(flownic, direction, "packets"), before);
        if agreed == ours { Ok(()) } else { Err(format!("testpmd {agreed:?}, flownic {ours:?}")) }
    });
    agreed
}

/// No frame and no buffer was found to be wrong, on either side.
fn check_nothing_wrong(flownic: &Flownic, testpmd: &mut Testpmd) {
    let wrong = [
        ("tx", "drop_malformed"),
        ("tx", "drop_port"),
        ("tx", "ring_faults"),
        ("rx", "drop_buffer_too_small"),
        ("rx", "drop_bad_offload"),
        ("rx", "bad_buffers"),
        ("rx", "ring_faults"),
    ];
    for (direction, name) in wrong {
        assert_eq!(each(flownic, direction, name), [0; QUEUES], "{direction} {name}");
    }
    for name in ["RX-errors", "RX-nombuf", "TX-errors"] {
        assert_eq!(testpmd.port(name), 0, "{name}");
    }
}

/// Takes what is left in the receive rings after `stop`: `start` does that before it forwards.
fn take_the_rest(testpmd: &mut Testpmd) {
    testpmd.forward("rxonly", "");
    testpmd.command("stop");
}

#[test]
fn every_frame_of_four_queues_is_counted_on_both_sides_whatever_the_ring_variant() {
    let flownic = serve("port=echo");
    let split =
        ["", "mrg_rxbuf=0", "in_order=0", "mrg_rxbuf=0,in_order=0", "mrg_rxbuf=0,in_order=0,vectorized=1"];
    // A packed ring's vectorized path wants IN_ORDER.
    let packed = [
        "packed_vq=1",
        "packed_vq=1,mrg_rxbuf=0",
        "packed_vq=1,in_order=0",
        "packed_vq=1,mrg_rxbuf=0,in_order=0",
        "packed_vq=1,mrg_rxbuf=0,vectorized=1",
    ];
    let variants: Vec<&str> = split.into_iter().chain(packed).collect();
    for (round, variant) in variants.iter().enumerate() {
        let (rx, tx) = (each(&flownic, "rx", "packets"), each(&flownic, "tx", "packets"));
        let mut testpmd = driver(&flownic).device(variant).args(&["--txonly-multi-flow"]).start();
        let shown = flownic.ctl(&["show"]).to_string();
        assert_eq!(shown.contains("\"mrg_rxbuf\""), !variant.contains("mrg_rxbuf=0"), "{variant}");
        assert_eq!(shown.contains("\"ring_packed\""), variant.contains("packed_vq=1"), "{variant}");
        // Its frames come back with other MAC addresses, are sent again, and so on.
        testpmd.forward("macswap", "tx_first 2");
        wait_for_some(&flownic, "tx", &tx);
        wait_for_some(&flownic, "rx", &rx);
        let said = testpmd.command("stop");
        let total = wait_agreed(&flownic, &mut testpmd, "tx", &tx).iter().sum::<u64>();
        assert_eq!(testpmd.port("TX-packets"), total, "{variant}");
        assert!(number(&said, "TX-packets").is_some_and(|n| n > 0), "{said}");
        take_the_rest(&mut testpmd);
        let received = wait_agreed(&flownic, &mut testpmd, "rx", &rx);
        assert_eq!(testpmd.port("RX-packets"), received.iter().sum::<u64>(), "{variant}");
        check_nothing_wrong(&flownic, &mut testpmd);
        // It comes back after both kinds of end.
        if round % 2 == 0 { testpmd.quit() } else { testpmd.kill() }
    }
    assert_eq!(stats(&flownic)["device"]["connections"], variants.len());
}

#[test]
fn frames_of_several_segments_pass_whole() {
    const FRAME: u64 = 9000;
    for variant in ["", "packed_vq=1", "packed_vq=1,in_order=0"] {
        let flownic = serve("port=echo,mtu=9000");
        let args = ["--txonly-multi-flow", "--tx-offloads=0x8000", "--max-pkt-len=9018", "--enable-scatter"];
        let mut testpmd = driver(&flownic).device(variant).args(&args).start();
        testpmd.command("set txpkts 2000,2000,2000,2000,1000");
        testpmd.forward("macswap", "tx_first 1");
        wait_for_some(&flownic, "rx", &[0; QUEUES]);
        testpmd.command("stop");
        let sent = wait_agreed(&flownic, &mut testpmd, "tx", &[0; QUEUES]);
        take_the_rest(&mut testpmd);
        let received = wait_agreed(&flownic, &mut testpmd, "rx", &[0; QUEUES]);
        for (direction, frames) in [("tx", &sent), ("rx", &received)] {
            let bytes: Vec<_> = frames.iter().map(|n| n * FRAME).collect();
            assert_eq!(each(&flownic, direction, "bytes"), bytes, "{direction}");
            let name = format!("{}-bytes", direction.to_uppercase());
            assert_eq!(testpmd.port(&name), bytes.iter().sum::<u64>(), "{name}");
        }
        check_nothing_wrong(&flownic, &mut testpmd);
        testpmd.quit();
    }
}

/// Flows of the generator: source ports from 10000.
const FLOWS: u16 = 32;

/// The queue of a generated flow by the RSS table as it is at first: queues in turn.
fn rss_queue(flow: u16) -> usize {
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];
    let (from, to) = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 19, 0, 1));
    let mut input = [from.octets(), to.octets()].concat();
    input.extend((10_000 + flow).to_be_bytes());
    input.extend(9u16.to_be_bytes());
    let bit = |bytes: &[u8], n: usize| bytes[n / 8] >> (7 - n % 8) & 1;
    let window = |n: usize| (n..n + 32).fold(0u32, |w, n| w << 1 | u32::from(bit(&KEY, n)));
    let set = (0..input.len() * 8).filter(|&n| bit(&input, n) == 1);
    set.fold(0, |hash, n| hash ^ window(n)) as usize % 128 % QUEUES
}

/// A generator that is let through for a moment, and the driver that receives.
struct Source {
    flownic: Flownic,
    testpmd: Testpmd,
    seen: Vec<u64>,
}

impl Source {
    fn new() -> Source {
        let flownic = serve(&format!("port=gen:flows={FLOWS};size=60;rate=200000"));
        flownic.ctl(&["link", "down"]);
        let mut testpmd = driver(&flownic).start();
        testpmd.forward("rxonly", "");
        Source { flownic, testpmd, seen: vec![0; QUEUES] }
    }

    /// Lets some frames through; how many each queue of the driver has received of them.
    fn burst(&mut self) -> Vec<u64> {
        self.flownic.ctl(&["link", "up"]);
        let seen: u64 = self.seen.iter().sum();
        wait_until("frames arrive", || {
            let new = each(&self.flownic, "rx", "packets").iter().sum::<u64>() - seen;
            if new >= SOME { Ok(()) } else { Err(format!("{new} frames")) }
        });
        self.flownic.ctl(&["link", "down"]);
        // A batch may still have been on its way. The worker is through with that once it drops the next.
        let dropped = || stats(&self.flownic)["device"]["drop_link_down"].as_u64().expect("a counter");
        let before = dropped();
        wait_until("the link is down", || {
            if dropped() > before { Ok(()) } else { Err("nothing is dropped".to_owned()) }
        });
        let now = wait_agreed(&self.flownic, &mut self.testpmd, "rx", &[0; QUEUES]);
        let new = minus(&now, &self.seen);
        self.seen = now;
        new
    }

    /// All frames arrive on one queue.
    fn expect_only(&mut self, queue: usize, what: &str) {
        let got = self.burst();
        let others = got.iter().enumerate().filter(|&(q, _)| q != queue).map(|(_, n)| n).sum::<u64>();
        assert!(
            got[queue] >= SOME && others == 0,
            "{what} belongs on queue {queue}, and frames came to {got:?}"
        );
    }
}

#[test]
fn flows_arrive_where_table_and_rules_say_and_nowhere_else() {
    let mut source = Source::new();
    let queues: Vec<usize> = (0..FLOWS).map(rss_queue).collect();
    assert!((0..QUEUES).all(|q| queues.contains(&q)), "flows for every queue: {queues:?}");
    let all = source.burst();
    assert!(all.iter().all(|&n| n > 0), "RSS uses every queue: {all:?}");
    assert_eq!(each(&source.flownic, "rx", "by_rss"), all);

    // Each flow by itself: rules drop the others.
    let port = |flow: u16| 10_000 + flow;
    let drop = |source: &Source, flow: u16| {
        let rule = json!({ "flow_type": "udp4", "src_port": port(flow), "action": -1, "loc": flow });
        source.flownic.ask(json!({ "command": "flows_add", "nic": "n0", "rule": rule }));
    };
    (0..FLOWS).for_each(|flow| drop(&source, flow));
    for queue in 0..QUEUES {
        let flow = queues.iter().rposition(|&q| q == queue).expect("every queue has one") as u16;
        let (other, loc) = ((queue + 1) % QUEUES, flow.to_string());
        source.flownic.ctl(&["flows", "del", "n0", &loc]);
        source.expect_only(queue, &format!("flow {flow} by RSS"));
        let rule = format!("flow-type udp4 src-port {} action {other} loc {loc}", port(flow));
        source.flownic.ctl(&[&["flows", "add", "n0"], &rule.split(' ').collect::<Vec<_>>()[..]].concat());
        source.expect_only(other, &format!("flow {flow} by its rule"));
        drop(&source, flow);
    }
    check_nothing_wrong(&source.flownic, &mut source.testpmd);
    source.testpmd.quit();
}
