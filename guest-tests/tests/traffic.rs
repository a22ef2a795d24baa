//! Ordinary traffic through flownic: over a tap and from guest to guest, with every number of queues and every feature.

use std::time::Duration;

use guest_tests::nic::Interface;
use guest_tests::{Family, Flownic, Guest, Kernel, Link, Namespace, Nic, Qemu, Workdir, traffic, wait_for};
use serde_json::json;

/// All that netperf does here.
const TESTS: [&str; 4] = ["TCP_RR", "UDP_RR", "TCP_STREAM", "UDP_STREAM"];
/// Size of transfers that are compared.
const BYTES: u64 = 3_000_000;

/// Everything, at both packet sizes.
fn exercise(link: &Link) {
    link.ping(1500);
    link.netperf(Family::V4, &TESTS);
    link.netperf(Family::V6, &["TCP_STREAM", "UDP_RR"]);
    link.transfer(BYTES);
    link.mtu(9000);
    link.ping(9000);
    link.netperf(Family::V4, &["TCP_STREAM", "TCP_RR"]);
    link.transfer(BYTES);
    link.mtu(1500);
}

/// Enough to see that packets of all kinds come through whole.
fn probe(link: &Link) {
    link.ping(1500);
    link.netperf(Family::V4, &["TCP_RR", "TCP_STREAM"]);
    link.transfer(BYTES / 3);
}

fn taps_with_1_2_4_and_8_pairs(kernel: Kernel) {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let pairs = [1, 2, 4, 8];
    let nics = pairs.map(|pairs| format!("n{pairs},queues={pairs},port=tap:fn{pairs}"));
    let _flownic = Flownic::start(&host, &workdir, &nics.each_ref().map(String::as_str), &[]);
    let mut guest = Guest::builder("guest").kernel(kernel).vcpus(4);
    for pairs in pairs {
        guest = guest.nic(Nic::flownic(Flownic::socket(&workdir, &format!("n{pairs}")), pairs));
    }
    let guest = guest.boot(&workdir);
    for (index, pairs) in pairs.into_iter().enumerate() {
        let far = guest.interface(index);
        far.queues(pairs);
        let link = Link::up(index as u8, Interface::named(&host, &format!("fn{pairs}")), far);
        println!("{pairs} pairs");
        if pairs == 4 { exercise(&link) } else { probe(&link) }
    }
}

#[test]
fn taps_with_any_number_of_queues_carry_traffic_on_the_stable_kernel() {
    taps_with_1_2_4_and_8_pairs(Kernel::Stable);
}

#[test]
fn taps_with_any_number_of_queues_carry_traffic_on_the_backports_kernel() {
    taps_with_1_2_4_and_8_pairs(Kernel::Backports);
}

/// Traffic under one QEMU; the other tests use the newest one with either kernel.
fn qemu_carries_traffic(qemu: Qemu) {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let _flownic = Flownic::start(&host, &workdir, &["n0,queues=4,port=tap:fn0"], &[]);
    let guest = Guest::builder("guest").qemu(qemu).vcpus(4);
    let guest = guest.nic(Nic::flownic(Flownic::socket(&workdir, "n0"), 4)).boot(&workdir);
    probe(&Link::up(0, Interface::named(&host, "fn0"), guest.interface(0)));
}

#[test]
fn the_newest_qemu_carries_traffic() {
    qemu_carries_traffic(Qemu::Backports);
}

/// One that is emulated has a single shared interrupt: `guest::Nic` says why.
#[test]
fn the_host_distributions_qemu_carries_traffic() {
    qemu_carries_traffic(Qemu::Host);
}

#[test]
fn two_guests_on_a_link_carry_traffic() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let _flownic =
        Flownic::start(&host, &workdir, &["n0,queues=4,port=link:n1", "n1,queues=4,port=link:n0"], &[]);
    let builder = |name: &str, nic: &str, kernel| {
        let nic = Nic::flownic(Flownic::socket(&workdir, nic), 4);
        Guest::builder(name).kernel(kernel).vcpus(4).nic(nic)
    };
    let guests = [builder("a", "n0", Kernel::Stable), builder("b", "n1", Kernel::Backports)];
    let [a, b] = Guest::boot_all(&workdir, guests);
    exercise(&Link::up(0, a.interface(0), b.interface(0)));
}

#[test]
fn three_cards_share_a_switch_and_learn_their_mtu() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let flownic = Flownic::start(
        &host,
        &workdir,
        &[
            "n0,queues=2,mtu=9000,port=link:n1",
            "n1,queues=2,mtu=9000,port=link:n0",
            "n2,queues=2,mtu=9000,port=link:n0",
        ],
        &[],
    );
    let nic = |name: &str| Nic::flownic(Flownic::socket(&workdir, name), 2).mtu(9000);
    let a = Guest::builder("a").nic(nic("n0"));
    let b = Guest::builder("b").nic(nic("n1")).nic(nic("n2"));
    let [a, b] = Guest::boot_all(&workdir, [a, b]);
    let links = [0, 1].map(|card| Link::up(card as u8, a.interface(0), b.interface(card)));
    for link in &links {
        for interface in [link.near_interface(), link.far_interface()] {
            let mtu = interface.machine().read(&format!("/sys/class/net/{}/mtu", interface.name()));
            assert_eq!(mtu, "9000", "{}: MTU as flownic says", interface.machine().name());
        }
        link.ping(9000);
        link.netperf(Family::V4, &["TCP_STREAM", "UDP_RR"]);
        link.transfer(BYTES / 3);
    }
    // A card whose address is known gets its frames alone. Neighbours may ask for each other in between.
    let seen = ["n1", "n2"].map(|nic| flownic.counter(nic, "/device/port_rx_packets"));
    traffic::ping(&a, &links[0].far(Family::V4), 50, 56);
    let now = ["n1", "n2"].map(|nic| flownic.counter(nic, "/device/port_rx_packets"));
    assert!(now[0] - seen[0] >= 50, "{} frames for n1", now[0] - seen[0]);
    assert!(now[1] - seen[1] < 25, "{} frames for n2, which should see none of them", now[1] - seen[1]);
}

#[test]
fn memory_that_is_added_under_traffic_is_used() {
    const ADDED: u64 = 256 << 20;
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let flownic = Flownic::start(&host, &workdir, &["n0,queues=2,port=tap:fn0"], &[]);
    let guest = Guest::builder("guest").arguments(&["-m", "slots=2,maxmem=2G"]);
    let mut guest = guest.nic(Nic::flownic(Flownic::socket(&workdir, "n0"), 2)).boot(&workdir);
    let address = {
        let link = Link::up(0, Interface::named(&host, "fn0"), guest.interface(0));
        link.transfer(BYTES / 3);
        link.far(Family::V4)
    };
    let before = guest.read("/proc/meminfo");
    let mut under_way = host.spawn(&format!("ping -q -i 0.002 -c 2000 -W 5 -s 1400 {address}"));
    under_way.wait_for_text("PING", Duration::from_secs(20));
    let qmp = guest.qmp();
    qmp.execute(
        "object-add",
        json!({ "qom-type": "memory-backend-memfd", "id": "added", "size": ADDED, "share": true }),
    );
    qmp.execute("device_add", json!({ "driver": "pc-dimm", "id": "dimm", "memdev": "added" }));
    // For the kernel's own use: then new packets are put there first, since it lies above 4 GiB.
    wait_for("the added memory to be in use", Duration::from_secs(30), || {
        guest.run("for state in /sys/devices/system/memory/*/state; do grep -q offline $state && echo online_kernel >$state; done");
        let now = guest.read("/proc/meminfo");
        let total = |text: &str| -> u64 {
            text.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("MemTotal")
        };
        if total(&now) >= total(&before) + (ADDED >> 10) * 9 / 10 { Ok(()) } else { Err(now) }
    });
    let output = under_way.wait(Duration::from_secs(60));
    assert!(output.text().contains(" 0% packet loss"), "{output}");
    let link = Link::up(0, Interface::named(&host, "fn0"), guest.interface(0));
    link.netperf(Family::V4, &["TCP_STREAM", "UDP_STREAM"]);
    link.transfer(BYTES);
    let taken = guest.run_ok(
        "awk '$3 == \"zone\" { zone = $4 } zone == \"Normal\" && $1 == \"pages\" { free = $3 } \
         zone == \"Normal\" && $1 == \"managed\" { print $2 - free }' /proc/zoneinfo",
    );
    assert!(taken.parse().is_ok_and(|pages: u64| pages > 256), "pages taken of what was added: {taken:?}");
    assert!(!flownic.log().contains(" stopped, "), "{}", flownic.log());
}

/// A way to do without some features.
struct Off {
    name: &'static str,
    /// Properties of the card that make QEMU keep them from the guest.
    properties: &'static [&'static str],
    /// The same for flownic, which switches off what needs them by itself.
    features: &'static str,
    /// Some that must not be negotiated then.
    gone: &'static [&'static str],
}

const OFF: [Off; 9] = [
    Off { name: "mrg_rxbuf", properties: &["mrg_rxbuf=off"], features: "-mrg_rxbuf", gone: &["mrg_rxbuf"] },
    Off {
        name: "indirect",
        properties: &["indirect_desc=off"],
        features: "-indirect_desc",
        gone: &["indirect_desc"],
    },
    Off { name: "event_idx", properties: &["event_idx=off"], features: "-event_idx", gone: &["event_idx"] },
    Off {
        name: "csum",
        properties: &["csum=off", "host_tso4=off", "host_tso6=off", "host_ecn=off", "host_ufo=off"],
        features: "-csum",
        gone: &["csum", "host_tso4", "host_tso6"],
    },
    Off {
        name: "tso",
        properties: &["host_tso4=off", "host_tso6=off", "host_ecn=off"],
        features: "-host_tso4-host_tso6",
        gone: &["host_tso4", "host_tso6"],
    },
    Off {
        name: "guest_csum",
        properties: &["guest_csum=off", "guest_tso4=off", "guest_tso6=off", "guest_ecn=off", "guest_ufo=off"],
        features: "-guest_csum",
        gone: &["guest_csum", "guest_tso4", "guest_tso6"],
    },
    Off {
        name: "guest_tso",
        properties: &["guest_tso4=off", "guest_tso6=off", "guest_ecn=off", "mrg_rxbuf=off"],
        features: "-guest_tso4-guest_tso6-mrg_rxbuf",
        gone: &["guest_tso4", "guest_tso6", "mrg_rxbuf"],
    },
    Off { name: "status", properties: &["status=off"], features: "-status", gone: &["status"] },
    Off { name: "mq", properties: &["mq=off"], features: "-mq", gone: &["mq"] },
];

/// A card without the features named by `off`, through QEMU.
fn without(workdir: &Workdir, nic: &str, off: &[&str]) -> Nic {
    let chosen = OFF.iter().filter(|case| off.contains(&case.name));
    let nic = Nic::flownic(Flownic::socket(workdir, nic), if off.contains(&"mq") { 1 } else { 2 });
    chosen.flat_map(|case| case.properties).fold(nic, |nic, property| nic.property(property))
}

/// Each of [`OFF`] by itself, and all together.
fn cases() -> Vec<(&'static str, Vec<&'static str>)> {
    let names: Vec<&str> = OFF.iter().map(|case| case.name).collect();
    let mut cases: Vec<(&str, Vec<&str>)> = names.iter().map(|name| (*name, vec![*name])).collect();
    cases.push(("all", names));
    cases
}

/// Traffic over a tap for each of the cases, on cards of one guest.
fn carry_traffic_without(cases: &[(&str, Vec<&str>)], host: &Namespace, flownic: &Flownic, guest: &Guest) {
    for (index, (name, off)) in cases.iter().enumerate() {
        println!("without {name}");
        probe(&Link::up(index as u8, Interface::named(host, &format!("t_{name}")), guest.interface(index)));
        let negotiated = negotiated(flownic, name);
        assert!(!negotiated.is_empty(), "{name}: nothing negotiated");
        let gone = OFF.iter().filter(|case| off.contains(&case.name)).flat_map(|case| case.gone);
        for feature in gone {
            assert!(!negotiated.iter().any(|have| have == feature), "{name}: {feature} in {negotiated:?}");
        }
    }
}

/// Names of the features that a card's driver has taken.
fn negotiated(flownic: &Flownic, nic: &str) -> Vec<String> {
    let list = flownic.ctl(&["features", nic]);
    let features = list["features"].as_array().expect("a list of features");
    let on = features.iter().filter(|feature| feature["negotiated"] == true);
    on.map(|feature| feature["name"].as_str().expect("a feature's name").to_owned()).collect()
}

#[test]
fn taps_carry_traffic_without_each_feature_that_qemu_keeps_back() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let mut cases = cases();
    // A driver of before virtio 1, with its shorter header.
    cases.push(("legacy", vec!["mrg_rxbuf"]));
    let nics: Vec<String> =
        cases.iter().map(|(name, _)| format!("{name},queues=2,port=tap:t_{name}")).collect();
    let flownic = Flownic::start(&host, &workdir, &nics.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let guest = Guest::builder("guest");
    let guest = cases.iter().fold(guest, |guest, (name, off)| {
        let nic = without(&workdir, name, off);
        guest.nic(if *name == "legacy" { nic.property("disable-modern=on") } else { nic })
    });
    let guest = guest.boot(&workdir);
    carry_traffic_without(&cases, &host, &flownic, &guest);
    assert!(!negotiated(&flownic, "legacy").iter().any(|name| name == "version_1"));
}

#[test]
fn taps_carry_traffic_without_each_feature_that_flownic_does_not_offer() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let cases = cases();
    let nics: Vec<String> = cases
        .iter()
        .map(|(name, off)| {
            let features: String =
                OFF.iter().filter(|case| off.contains(&case.name)).map(|case| case.features).collect();
            format!("{name},queues=2,port=tap:t_{name},features={features}")
        })
        .collect();
    let flownic = Flownic::start(&host, &workdir, &nics.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let guest = cases.iter().fold(Guest::builder("guest"), |guest, (name, _)| {
        guest.nic(Nic::flownic(Flownic::socket(&workdir, name), 2))
    });
    let guest = guest.boot(&workdir);
    carry_traffic_without(&cases, &host, &flownic, &guest);
}

#[test]
fn a_guest_that_offloads_reaches_one_that_takes_no_offloads() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let flownic =
        Flownic::start(&host, &workdir, &["n0,queues=2,port=link:n1", "n1,queues=2,port=link:n0"], &[]);
    let a = Guest::builder("a").nic(without(&workdir, "n0", &[]));
    let b =
        Guest::builder("b").nic(without(&workdir, "n1", &["guest_csum", "guest_tso", "csum", "mrg_rxbuf"]));
    let [a, b] = Guest::boot_all(&workdir, [a, b]);
    let link = Link::up(0, a.interface(0), b.interface(0));
    probe(&link);
    let done = |counter: &str| -> u64 {
        (0..2).map(|queue| flownic.counter("n1", &format!("/rx/{queue}/{counter}"))).sum()
    };
    assert!(done("segmented") > 0, "nothing was cut up");
    assert!(done("checksummed") > 0, "no checksum was completed");
    // Checksums were made for the receiver, and nothing larger than it takes was sent to it.
    let wrong =
        b.run_ok("nstat -az TcpInCsumErrors UdpInCsumErrors | awk 'NR > 1 { sum += $2 } END { print sum }'");
    assert_eq!(wrong, "0");
}
