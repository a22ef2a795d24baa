//! Ordinary traffic through flownic: over a tap and from guest to guest, with every number of queues and every feature.

use guest_tests::nic::Interface;
use guest_tests::{Family, Flownic, Guest, Kernel, Link, Namespace, Nic, Qemu, Workdir};

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

/// Properties of the card that switch features off, by name.
const OFF: [(&str, &[&str]); 9] = [
    ("mrg_rxbuf", &["mrg_rxbuf=off"]),
    ("indirect", &["indirect_desc=off"]),
    ("event_idx", &["event_idx=off"]),
    ("csum", &["csum=off", "host_tso4=off", "host_tso6=off", "host_ecn=off", "host_ufo=off"]),
    ("tso", &["host_tso4=off", "host_tso6=off", "host_ecn=off"]),
    ("guest_csum", &["guest_csum=off", "guest_tso4=off", "guest_tso6=off", "guest_ecn=off", "guest_ufo=off"]),
    ("guest_tso", &["guest_tso4=off", "guest_tso6=off", "guest_ecn=off", "mrg_rxbuf=off"]),
    ("status", &["status=off"]),
    ("mq", &["mq=off"]),
];

/// A card without the features named by `off`.
fn without(workdir: &Workdir, nic: &str, off: &[&str]) -> Nic {
    let properties =
        OFF.iter().filter(|(name, _)| off.contains(name)).flat_map(|(_, properties)| *properties);
    let nic = Nic::flownic(Flownic::socket(workdir, nic), if off.contains(&"mq") { 1 } else { 2 });
    properties.fold(nic, |nic, property| nic.property(property))
}

#[test]
fn taps_carry_traffic_without_each_feature_and_without_all() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let names: Vec<&str> = OFF.iter().map(|(name, _)| *name).collect();
    let mut cases: Vec<(&str, Vec<&str>)> = names.iter().map(|name| (*name, vec![*name])).collect();
    cases.push(("all", names));
    let nics: Vec<String> =
        cases.iter().map(|(name, _)| format!("{name},queues=2,port=tap:t_{name}")).collect();
    let _flownic = Flownic::start(&host, &workdir, &nics.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let guest = Guest::builder("guest");
    let guest = cases.iter().fold(guest, |guest, (name, off)| guest.nic(without(&workdir, name, off)));
    let guest = guest.boot(&workdir);
    for (index, (name, _)) in cases.iter().enumerate() {
        println!("without {name}");
        probe(&Link::up(index as u8, Interface::named(&host, &format!("t_{name}")), guest.interface(index)));
    }
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
