//! A guest with the stock driver that programs its card from user space, with `flownic-guest`.

use std::fs;
use std::time::Duration;

use guest_tests::frame::Packet;
use guest_tests::nic::Interface;
use guest_tests::{Flownic, Guest, Kernel, Machine, Namespace, Nic, Workdir, build, wait_for};
use serde_json::{Value, json};

const QUEUES: usize = 4;
/// Frames sent for each case.
const COUNT: u32 = 40;
const LIMIT: Duration = Duration::from_secs(20);
/// Where the program is in the guest.
const PROGRAM: &str = "/usr/bin/flownic-guest";

/// Interfaces that come up from now on speak no IPv6, and so nothing by themselves.
fn silence(machine: &Machine) {
    machine.run_ok("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6");
    machine.run_ok("for all in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 >$all; done");
}

fn host() -> Namespace {
    let host = Namespace::new("host");
    silence(&host);
    host
}

fn boot(workdir: &Workdir) -> Guest {
    let guest = Guest::builder("guest").kernel(Kernel::Stable).vcpus(QUEUES as u32);
    let guest = guest.nic(Nic::flownic(Flownic::socket(workdir, "n0"), QUEUES as u32)).boot(workdir);
    silence(&guest);
    let program = fs::read(build::guest_program()).expect("it has just been built");
    guest.write(PROGRAM, 0o755, &program);
    guest
}

/// The program in a guest, on the guest's card.
struct Program<'m> {
    machine: &'m Machine,
    interface: String,
}

impl Program<'_> {
    /// What it prints; the error is what it says is wrong.
    fn run(&self, words: &str) -> Result<String, String> {
        let output = self.machine.run(&format!("{PROGRAM} {} {words}", self.interface));
        if output.success() {
            Ok(output.text())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().into())
        }
    }

    #[track_caller]
    fn ok(&self, words: &str) -> String {
        self.run(words).unwrap_or_else(|e| panic!("{words}: {e}"))
    }

    #[track_caller]
    fn json(&self, words: &str) -> Value {
        let text = self.ok(&format!("{words} --json"));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{words}: {e} in {text}"))
    }
}

/// A wire from the tap `fn0` to the guest, and what each queue of the guest must have received by now from it.
struct Wire<'m> {
    tap: Interface<'m>,
    flownic: &'m Flownic<'m>,
    received: [u64; QUEUES],
}

impl Wire<'_> {
    /// Frames from the wire, by queue, as the card counts them: replies to commands are not among them.
    fn counted(&self) -> [u64; QUEUES] {
        std::array::from_fn(|q| self.flownic.counter("n0", &format!("/rx/{q}/packets")))
    }

    /// Sends frames that must all arrive on `queue`, and no other frame anywhere.
    #[track_caller]
    fn expect(&mut self, what: &str, packet: &Packet, queue: usize) {
        self.tap.send(&packet.build(), COUNT);
        self.received[queue] += u64::from(COUNT);
        let total: u64 = self.received.iter().sum();
        let seen = wait_for(&format!("{what} to arrive"), LIMIT, || {
            let seen = self.counted();
            if seen.iter().sum::<u64>() >= total { Ok(seen) } else { Err(format!("{seen:?}")) }
        });
        assert_eq!(seen, self.received, "{what}: packets by queue");
    }
}

fn udp(port: u16) -> Packet {
    Packet::udp("192.0.2.1:1000", "192.0.2.2:0").ports(1000, port)
}

#[test]
fn a_program_adds_rules_that_the_card_obeys() {
    let workdir = Workdir::new();
    let host = host();
    let flownic = Flownic::start(&host, &workdir, &["n0,queues=4,port=tap:fn0"], &[]);
    let guest = boot(&workdir);
    let nic = guest.interface(0);
    nic.up(&[]);
    let tap = Interface::named(&host, "fn0");
    tap.up(&[]);
    let program = Program { machine: &guest, interface: nic.name().into() };
    let mut wire = Wire { tap, flownic: &flownic, received: [0; QUEUES] };

    let info = program.json("info");
    assert_eq!((&info["queues"], &info["flow_filter"]["rules"]), (&json!(4), &json!(8192)));
    let (a, b) = (udp(5000), udp(5001));
    let (rss_a, rss_b) = (a.rss_queue(QUEUES), b.rss_queue(QUEUES));
    let to = (rss_a + 1) % QUEUES;
    wire.expect("without a rule", &a, rss_a);
    assert_eq!(
        program.ok(&format!("flows add flow-type udp4 dst-port 5000 action {to}")),
        "Added rule with ID 8191"
    );
    // As the guest's driver counts: the right queue, and the others get nothing.
    let before = nic.receive_packets();
    wire.expect("with a rule", &a, to);
    let after = wait_for("the driver to have counted", LIMIT, || {
        let after = nic.receive_packets();
        let more = after.iter().zip(&before).map(|(a, b)| a - b).sum::<u64>();
        if more >= u64::from(COUNT) { Ok(after) } else { Err(format!("{after:?}")) }
    });
    let more: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    let expected: Vec<u64> = (0..QUEUES).map(|q| if q == to { COUNT.into() } else { 0 }).collect();
    assert_eq!(more, expected, "packets by queue, as the driver counts");
    wire.expect("another port", &b, rss_b);

    let listed = program.json("flows list");
    let rule = json!({ "flow_type": "udp4", "dst_port": 5000, "action": to, "loc": 8191 });
    let nic_name = program.interface.clone();
    let wanted =
        json!({ "nic": nic_name, "capacity": 8192, "rules": [{ "rule": rule, "hits": COUNT }], "others": 0 });
    assert_eq!(listed, wanted);
    let text = program.ok("flows list");
    assert!(
        text.starts_with(&format!("{nic_name}: 1 of 8192 rules"))
            && text.contains("flow-type udp4 dst-port 5000"),
        "{text}"
    );

    program.ok("flows del 8191");
    wire.expect("after the rule", &a, rss_a);
    program.ok("rss set entries 2,2,2,2,2,2,2,2");
    wire.expect("with all of the table on queue 2", &a, 2);
    assert_eq!(program.json("rss get")["table"], json!(vec![2; 8]));
    program.ok("coalesce set rx-usecs 20 rx-frames 64");
    assert_eq!(program.json("coalesce get")["queues"][3]["rx_usecs"], 20);
    let stats = program.json("stats");
    assert_eq!(stats[0]["rx"].as_array().map(Vec::len), Some(QUEUES));
    program.ok("reset");
    wire.expect("after a reset", &b, rss_b);

    // What is wrong is said, and why.
    for (words, wanted) in [
        (
            "flows add flow-type udp4 dst-port 5000 action 4",
            "There is no receive queue 4: queues go from 0 to 3",
        ),
        ("flows add flow-type udp4 action", "'action' has no value"),
        ("flows del 7", "There is no rule at location 7"),
        ("rss set off", "on, off and mode are the host's"),
    ] {
        let e = program.run(words).unwrap_err();
        assert!(e.contains(wanted), "{words}: {e}");
    }
    let nobody = Program { machine: &guest, interface: "nope0".into() };
    assert!(nobody.run("info").unwrap_err().ends_with("There is no network interface 'nope0'"));
    guest.run_ok("ip link set lo up");
    let lo = Program { machine: &guest, interface: "lo".into() };
    let e = lo.run("--timeout 0.3 info").unwrap_err();
    assert!(e.contains("There was no answer. Either this is no flownic NIC"), "{e}");
    // Who may not send raw frames is told what is missing.
    let output = guest.run(&format!("chroot --userspec=65534:65534 / {PROGRAM} {nic_name} info"));
    let e = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.success() && e.contains("Raw frames need CAP_NET_RAW: run this as root"), "{output}");
    nic.down();
    let e = program.run("info").unwrap_err();
    assert!(e.contains(&format!("is down: ip link set {nic_name} up")), "{e}");
}

#[test]
fn what_the_host_does_not_allow_is_refused_clearly() {
    let workdir = Workdir::new();
    let host = host();
    let mut flownic = Flownic::start(&host, &workdir, &["n0,queues=4,port=tap:fn0"], &["--in-band=kernel"]);
    let guest = boot(&workdir);
    let nic = guest.interface(0);
    nic.up(&[]);
    let program = Program { machine: &guest, interface: nic.name().into() };
    for words in ["info", "flows list", "flows add flow-type udp4 action 1", "rss get"] {
        let e = program.run(words).unwrap_err();
        let wanted = "The host does not take commands from programs (--in-band=kernel)";
        assert!(e.contains(wanted), "{words}: {e}");
    }
    // The guest stays, and flownic comes back with other settings.
    flownic.end(15);
    drop(flownic);
    let flownic = Flownic::start(&host, &workdir, &["n0,queues=4,port=tap:fn0"], &["--in-band=off"]);
    wait_for("the guest to be back", LIMIT, || {
        let shown = flownic.try_ctl(&["show"])?;
        if shown[0]["connected"] == true { Ok(()) } else { Err(shown.to_string()) }
    });
    let e = program.run("--timeout 0.5 info").unwrap_err();
    assert!(e.contains("There was no answer") && e.contains("--in-band=off"), "{e}");
}
