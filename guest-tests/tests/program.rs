//! The guest programs its card with the kernel's own means, through the reference driver: flow rules and RSS with
//! ethtool, and filters by accelerated RFS.

use std::time::Duration;

use guest_tests::frame::Packet;
use guest_tests::nic::Interface;
use guest_tests::wire::{LIMIT, QUEUES, Wire, arp, quiet_host, silence};
use guest_tests::{Driver, Ethtool, Flownic, Guest, Kernel, Nic, Workdir, traffic, wait_for};

const GUEST: &str = "192.0.2.2";
const HOST: &str = "192.0.2.1";

/// What must not be among a guest's kernel messages. That a processor was stuck is the fault of a busy host.
const TROUBLE: &str = "WARNING:|BUG:|Oops|hung task|refcount_t|flownic_net.*(Lost|error|could not)";

/// A host with flownic, and a guest with the reference driver and as many processors as the card `n0` on the tap `fn0` has
/// queue pairs. `settings` are further ones of the card.
fn with_driver(kernel: Kernel, settings: &str, body: impl FnOnce(&Flownic<'_>, &Guest)) {
    let workdir = Workdir::new();
    let host = quiet_host();
    let nic = format!("n0,queues={QUEUES},port=tap:fn0{settings}");
    let flownic = Flownic::start(&host, &workdir, &[&nic], &[]);
    let guest = Guest::builder("guest").kernel(kernel).vcpus(QUEUES as u32).driver(Driver::FlownicNet);
    let guest = guest.nic(Nic::flownic(Flownic::socket(&workdir, "n0"), QUEUES as u32)).boot(&workdir);
    silence(&guest);
    body(&flownic, &guest);
    let trouble = guest.run(&format!("dmesg | grep -E '{TROUBLE}' | grep -v 'soft lockup'"));
    assert_eq!(trouble.text(), "", "kernel messages");
}

/// What RSS does with packets that no rule is for is known then.
fn all_to_queue_0(kernel: Kernel, flownic: &Flownic<'_>, ethtool: &Ethtool<'_>) {
    match kernel {
        Kernel::Backports => _ = ethtool.ok("-X", "equal 1"),
        // This kernel refuses what a newer ethtool sends.
        Kernel::Stable => _ = flownic.ctl(&["rss", "set", "n0", "off"]),
    }
}

/// Sends through all the kinds of rules that ethtool knows and the card takes.
fn rules_steer(kernel: Kernel) {
    with_driver(kernel, "", |flownic, guest| {
        let mut wire = Wire::new(flownic, guest);
        let ethtool = Ethtool::new(&wire.nic);
        all_to_queue_0(kernel, flownic, &ethtool);
        let udp = Packet::udp("192.0.2.1:1000", "192.0.2.2:5000");
        let tcp = Packet::tcp("192.0.2.1:1000", "192.0.2.2:5000");
        let (udp6, tcp6) = (
            Packet::udp("[2001:db8::1]:1000", "[2001:db8::2]:5000"),
            Packet::tcp("[2001:db8::1]:1000", "[2001:db8::2]:5000"),
        );

        let location = ethtool.rule("flow-type udp4 dst-port 5000 action 3");
        wire.expect("UDP to port 5000", &udp.build(), 3);
        wire.expect("UDP to another port", &udp.clone().ports(1000, 5001).build(), 0);
        wire.expect("TCP to port 5000", &tcp.build(), 0);
        wire.expect("UDP to port 5000 over IPv6", &udp6.build(), 0);
        assert_eq!(
            ethtool.rule("flow-type udp4 dst-port 5000 action 2"),
            location,
            "an equal rule is replaced"
        );
        wire.expect("UDP to port 5000, moved", &udp.build(), 2);
        ethtool.delete(location);
        wire.expect("UDP to port 5000, deleted", &udp.build(), 0);
        assert_eq!(ethtool.rules(), 0);
        // Who had added the first of the two may delete it as well, and nobody else.
        ethtool.delete(location);
        ethtool.refused("-N", &format!("delete {location}"), "No such file");

        let cases = [
            ("flow-type tcp4 src-ip 192.0.2.1 dst-ip 192.0.2.2 src-port 1000 dst-port 5000", &tcp, &udp),
            ("flow-type tcp4 dst-ip 192.0.2.0 m 0.0.0.255", &tcp, &tcp6),
            ("flow-type udp4 src-port 992 m 0x1f", &udp, &tcp),
            ("flow-type udp6 src-ip 2001:db8::1 dst-port 5000", &udp6, &udp),
            ("flow-type tcp6 dst-ip 2001:db8::2", &tcp6, &tcp),
            ("flow-type ip4 src-ip 192.0.2.1 l4proto 17", &udp, &tcp),
            ("flow-type ip6 dst-ip 2001:db8::2 l4proto 6", &tcp6, &udp6),
            ("flow-type ether proto 0x86dd", &udp6, &udp),
        ];
        for (i, (words, hit, miss)) in cases.iter().enumerate() {
            let queue = 1 + i % 3;
            let location = ethtool.rule(&format!("{words} action {queue}"));
            wire.expect(words, &hit.build(), queue);
            wire.expect(&format!("not {words}"), &miss.build(), 0);
            ethtool.delete(location);
        }

        // Nothing of a dropped flow arrives, everything of its neighbour does.
        let location = ethtool.rule("flow-type udp4 dst-port 5000 action -1");
        wire.expect_nothing("a dropped flow", &udp.build());
        wire.expect("its neighbour", &udp.clone().ports(1000, 5001).build(), 0);
        ethtool.delete(location);
        wire.expect("no longer dropped", &udp.build(), 0);

        // The lower location wins, whichever was first.
        ethtool.ok("-N", "flow-type udp4 dst-port 5000 action 1 loc 9");
        ethtool.ok("-N", "flow-type udp4 src-port 1000 action 2 loc 3");
        wire.expect("two rules", &udp.build(), 2);
        ethtool.ok("-N", "flow-type udp4 src-port 1001 action 2 loc 3");
        wire.expect("the other one", &udp.build(), 1);
        assert_eq!(ethtool.rules(), 2);

        // Down and up again, and a new number of queues: rules stay.
        wire.nic.down();
        wire.nic.up(&[]);
        wire.expect("after down and up", &udp.build(), 1);
        ethtool.refused("-L", "combined 2", "");
        ethtool.delete(3);
        // Nor may a table be cut that a user has set whole.
        if kernel == Kernel::Backports {
            ethtool.refused("-L", "combined 2", "");
            ethtool.ok("-X", "default");
        }
        wire.nic.queues(2);
        assert_eq!(wire.nic.receive_packets().len(), 2);
        wire.nic.queues(QUEUES as u32);
        all_to_queue_0(kernel, flownic, &ethtool);
        wire.received = wire.nic.receive_packets();
        wire.expect("after fewer queues and more", &udp.build(), 1);

        ethtool.ok("-K", "ntuple off");
        assert_eq!(ethtool.rules(), 0);
        wire.expect("without rules", &udp.build(), 0);
        ethtool.refused("-N", "flow-type udp4 dst-port 5000 action 1", "not supported");
        ethtool.ok("-K", "ntuple on");
    });
}

#[test]
fn rules_of_ethtool_steer() {
    rules_steer(Kernel::Backports);
}

#[test]
fn rules_of_ethtool_steer_with_the_older_kernel() {
    rules_steer(Kernel::Stable);
}

#[test]
fn what_the_card_cannot_do_is_refused_and_changes_nothing() {
    with_driver(Kernel::Backports, ",filters=64", |flownic, guest| {
        let mut wire = Wire::new(flownic, guest);
        let ethtool = Ethtool::new(&wire.nic);
        ethtool.ok("-X", "equal 1");
        let invalid = [
            "flow-type udp4 dst-port 1 action 4",
            "flow-type udp4 dst-port 1 action 1 loc 100000",
            "flow-type udp4 dst-port 1 vf 1 queue 1",
            "flow-type udp4 dst-port 1 context 7",
        ];
        for words in invalid {
            ethtool.refused("-N", words, "Invalid argument");
        }
        let unsupported = [
            "flow-type sctp4 dst-port 1 action 1",
            "flow-type esp4 spi 1 action 1",
            "flow-type udp4 dst-port 1 vlan 5 action 1",
            "flow-type udp4 dst-port 1 action -2",
            "flow-type ip4 l4data 5 action 1",
        ];
        for words in unsupported {
            ethtool.refused("-N", words, "not supported");
        }
        ethtool.refused("-N", "delete 5", "No such file");
        assert_eq!(ethtool.rules(), 0);

        // All locations but one, and then one too many. The filters of accelerated RFS have their own.
        let text = ethtool.rule("flow-type udp4 dst-port 1 action 1");
        for port in 2..=text + 1 {
            ethtool.rule(&format!("flow-type udp4 dst-port {port} action 1"));
        }
        ethtool.refused("-N", "flow-type udp4 dst-port 5000 action 1", "No space left");
        assert_eq!(ethtool.rules(), text as usize + 1);
        let udp = Packet::udp("192.0.2.1:1000", "192.0.2.2:5000");
        wire.expect("a rule in a full table", &udp.clone().ports(1000, 3).build(), 1);
        wire.expect("one that had no room", &udp.build(), 0);
        ethtool.delete(0);
        assert_eq!(ethtool.rule("flow-type udp4 dst-port 5000 action 1"), 0, "what is free is taken");
        wire.expect("one that has room now", &udp.build(), 1);

        // A queue that a rule needs, or RSS, cannot go.
        ethtool.rule("flow-type udp4 dst-port 5000 action 3");
        ethtool.refused("-L", "combined 3", "");
        assert_eq!(wire.nic.receive_packets().len(), QUEUES);
        wire.expect("a rule that is in the way", &udp.build(), 3);
    });
}

#[test]
fn rules_go_through_contexts() {
    with_driver(Kernel::Backports, "", |flownic, guest| {
        let mut wire = Wire::new(flownic, guest);
        let ethtool = Ethtool::new(&wire.nic);
        ethtool.ok("-X", "equal 1");
        assert_eq!(ethtool.ok("-X", "context new start 2 equal 1"), "New RSS context is 1");
        let udp = Packet::udp("192.0.2.1:1000", "192.0.2.2:5000");
        let location = ethtool.rule("flow-type udp4 dst-port 5000 context 1");
        wire.expect("through the context", &udp.build(), 2);
        wire.expect("not through it", &udp.clone().ports(1000, 5001).build(), 0);
        ethtool.ok("-X", "context 1 equal 1");
        wire.expect("through a changed context", &udp.build(), 0);
        assert_eq!(ethtool.rule("flow-type udp4 dst-port 5000 context 1 action 3"), location);
        wire.expect("with an offset", &udp.build(), 3);
        ethtool.refused("-X", "context 1 start 1 equal 1", "Invalid argument");
        ethtool.refused("-X", "context 1 delete", "busy");
        wire.nic.down();
        wire.nic.up(&[]);
        wire.expect("after down and up", &udp.build(), 3);
        ethtool.delete(location);
        // Context 0 is the card's own RSS.
        ethtool.rule("flow-type udp4 dst-port 5000 context 0 action 1");
        wire.expect("through the main context", &udp.build(), 1);
        ethtool.ok("-X", "context 1 delete");
    });
}

#[test]
fn rss_is_what_ethtool_says() {
    with_driver(Kernel::Backports, "", |flownic, guest| {
        let mut wire = Wire::new(flownic, guest);
        let ethtool = Ethtool::new(&wire.nic);
        let key = "6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0:d0:ca:2b:cb:ae:7b:30:b4:77:cb:2d:a3:80:30:f2:0c:\
                   6a:42:b7:3b:be:ac:01:fa";
        ethtool.ok("-X", &format!("hkey {key} equal {QUEUES}"));
        for port in 2000..2008 {
            wire.expect_rss(
                "with the published key",
                &Packet::udp("192.0.2.1:1000", "192.0.2.2:0").ports(1000, port),
            );
        }
        wire.expect("ARP", &arp(), 0);
        // Without ports all of two hosts' packets go one way.
        ethtool.ok("-N", "rx-flow-hash udp4 sd");
        let before = wire.nic.receive_packets();
        for port in 2000..2008 {
            let packet = Packet::udp("192.0.2.1:1000", "192.0.2.2:0").ports(1000, port);
            wire.tap.send(&packet.build(), 4);
        }
        let seen = wait_for("packets without ports in their hash", LIMIT, || {
            let now = wire.nic.receive_packets();
            let seen: Vec<u64> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
            if seen.iter().sum::<u64>() >= 32 { Ok(seen) } else { Err(format!("{seen:?}")) }
        });
        assert_eq!(seen.iter().filter(|count| **count > 0).count(), 1, "{seen:?}");
        ethtool.refused("-N", "rx-flow-hash udp4 v", "Invalid argument");
        wire.received = wire.nic.receive_packets();
        for queue in 0..QUEUES {
            let weights: Vec<&str> = (0..QUEUES).map(|q| if q == queue { "1" } else { "0" }).collect();
            ethtool.ok("-X", &format!("weight {}", weights.join(" ")));
            wire.expect("one queue", &Packet::udp("192.0.2.1:1000", "192.0.2.2:9").build(), queue);
        }
        ethtool.refused("-L", "combined 2", "");
        ethtool.ok("-X", "default");
        wire.nic.queues(2);
    });
}

/// Accelerated RFS on a guest: the interrupt of queue i goes to CPU i, and the stack steers.
struct Rfs<'m> {
    ethtool: Ethtool<'m>,
    nic: Interface<'m>,
}

impl<'m> Rfs<'m> {
    fn new(kernel: Kernel, flownic: &'m Flownic<'m>, guest: &'m Guest) -> Rfs<'m> {
        let (tap, nic) = (Interface::named(flownic.machine(), "fn0"), guest.interface(0));
        tap.up(&[&format!("{HOST}/24")]);
        nic.up(&[&format!("{GUEST}/24")]);
        let name = nic.name().to_owned();
        guest.run_ok(&format!(
            "set -e
            device=$(basename $(readlink -f /sys/class/net/{name}/device))
            for i in $(seq 0 {last}); do
                irq=$(grep \" $device-input.$i$\" /proc/interrupts | cut -d: -f1 | tr -d ' ')
                echo $i >/proc/irq/$irq/smp_affinity_list
                echo 256 >/sys/class/net/{name}/queues/rx-$i/rps_flow_cnt
            done
            echo 1024 >/proc/sys/net/core/rps_sock_flow_entries",
            last = QUEUES - 1,
        ));
        let ethtool = Ethtool::new(&nic);
        all_to_queue_0(kernel, flownic, &ethtool);
        Rfs { ethtool, nic }
    }
}

/// A command that sends `lines` to the guest one by one, each when the one before has come back and after a `pause`, in seconds.
fn client(lines: u32, pause: &str) -> String {
    let wait = if pause == "0" { String::new() } else { format!("sleep {pause};") };
    format!(
        "exec bash -c 'until exec 3<>/dev/tcp/{GUEST}/7000; do sleep 0.2; done 2>/dev/null; for ((n = 0; n < {lines}; n++)); do \
         echo line >&3; read -r x <&3 || exit 1; {wait} done'"
    )
}

/// The share of packets on a queue, in percent.
fn share(queues: &[u64], queue: usize) -> f64 {
    100.0 * queues[queue] as f64 / queues.iter().sum::<u64>().max(1) as f64
}

fn rfs_follows(kernel: Kernel) {
    with_driver(kernel, "", |flownic, guest| {
        let rfs = Rfs::new(kernel, flownic, guest);
        let host = flownic.machine();
        let mut server = traffic::serve(guest, "exec socat TCP-LISTEN:7000,reuseaddr PIPE", "tcp", 7000);
        let pid = server.pid();
        let client = host.spawn(&client(1_000_000, "0"));
        for cpu in [2, 1, 3] {
            guest.run_ok(&format!("taskset -a -p -c {cpu} {pid}"));
            let moved = std::time::Instant::now();
            wait_for(&format!("the flow to be on queue {cpu}"), LIMIT, || {
                let seen = rfs.nic.received_during(|| {
                    guest.run_ok("sleep 0.02");
                });
                if share(&seen, cpu) > 99.0 && seen[cpu] > 2 { Ok(()) } else { Err(format!("{seen:?}")) }
            });
            println!("on queue {cpu} after {:?}", moved.elapsed());
            let seen = rfs.nic.received_during(|| {
                guest.run_ok("sleep 0.5");
            });
            assert!(share(&seen, cpu) > 99.0, "on CPU {cpu}: {seen:?}");
        }
        assert_eq!(rfs.ethtool.counter("arfs_inserted"), 1, "one flow, one filter");
        assert!(rfs.ethtool.counter("arfs_moved") >= 2);
        let out_of_order = guest.run_ok("nstat -asz TcpExtTCPOFOQueue | awk '/OFO/ { print $2 }'");
        assert_eq!(out_of_order, "0", "segments out of order");
        client.stop();
        server.stop();
    });
}

#[test]
fn accelerated_rfs_follows_a_server() {
    rfs_follows(Kernel::Backports);
}

#[test]
fn accelerated_rfs_follows_a_server_with_the_older_kernel() {
    rfs_follows(Kernel::Stable);
}

#[test]
fn filters_are_as_many_as_flows_and_go_with_them() {
    const FLOWS: u64 = 200;
    with_driver(Kernel::Backports, "", |flownic, guest| {
        let rfs = Rfs::new(Kernel::Backports, flownic, guest);
        let host = flownic.machine();
        let serve = "taskset -c 3 socat TCP-LISTEN:7000,reuseaddr,fork,backlog=256 PIPE";
        let server = traffic::serve(guest, serve, "tcp", 7000);
        let flows = format!("for i in $(seq {FLOWS}); do ({}) & done; wait", client(8, "0.5"));
        let clients = host.spawn(&flows);
        let output = clients.wait(Duration::from_secs(240));
        assert!(output.success(), "{output}");
        let inserted = rfs.ethtool.counter("arfs_inserted");
        println!("{inserted} filters inserted for {FLOWS} flows");
        assert!((FLOWS / 2..=2 * FLOWS).contains(&inserted), "{inserted} filters for {FLOWS} flows");
        // The stack's clock is the number of packets that a CPU has handled: another flow makes it go on.
        let more = host.spawn(&client(1_000_000, "0"));
        wait_for("filters to go", Duration::from_secs(120), || {
            let left = rfs.ethtool.counter("arfs_filters");
            if left <= 8 { Ok(()) } else { Err(format!("{left} are left")) }
        });
        more.stop();
        rfs.ethtool.ok("-K", "ntuple off");
        assert_eq!(rfs.ethtool.counter("arfs_filters"), 0);
        server.stop();
    });
}
