//! Cards whose rings are packed, or whose buffers are used in order, under either driver.

use std::fs;

use guest_tests::nic::Interface;
use guest_tests::{Driver, Family, Flownic, Guest, Kernel, Link, Namespace, Nic, Workdir, build};

const PAIRS: u32 = 4;
/// Where `flownic-guest` is in the guest.
const PROGRAM: &str = "/usr/bin/flownic-guest";

/// Features that make rings what they are, by number.
const IN_ORDER: usize = 35;
const RING_PACKED: usize = 34;

/// Whether the guest's driver has taken a feature; the first character is bit 0.
fn has(card: &Interface<'_>, feature: usize) -> bool {
    let features = card.machine().read(&format!("/sys/class/net/{}/device/features", card.name()));
    features.as_bytes()[feature] == b'1'
}

fn carries_traffic_and_is_programmed(kernel: Kernel, driver: Driver, features: &[usize]) {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let flownic = Flownic::start(&host, &workdir, &[&format!("n0,queues={PAIRS},port=tap:fn0")], &[]);
    // Small rings, so that they go round often.
    let mut nic = Nic::flownic(Flownic::socket(&workdir, "n0"), PAIRS).rings(256, 256);
    if features.contains(&RING_PACKED) {
        nic = nic.packed();
    }
    if features.contains(&IN_ORDER) {
        nic = nic.property("in_order=on");
    }
    // With both drivers in its image.
    let guest = Guest::builder("guest").kernel(kernel).vcpus(PAIRS).driver(Driver::FlownicNet).nic(nic);
    let guest = guest.boot(&workdir);
    if driver == Driver::VirtioNet {
        guest.bind(0, driver);
    }
    for round in 0..2 {
        let link = Link::up(0, Interface::named(&host, "fn0"), guest.interface(0));
        let card = link.far_interface();
        for feature in [RING_PACKED, IN_ORDER] {
            assert_eq!(has(card, feature), features.contains(&feature), "round {round}: feature {feature}");
        }
        link.ping(1500);
        link.transfer(3_000_000);
        link.netperf(Family::V4, &["TCP_STREAM"]);

        // The guest's rule, by a command in its transmit ring, and the host's.
        let (name, queue) = (card.name(), round + 1);
        match driver {
            Driver::VirtioNet => {
                let program = fs::read(build::guest_program()).expect("it has just been built");
                guest.write(PROGRAM, 0o755, &program);
                guest.run_ok(&format!("{PROGRAM} {name} flows add flow-type tcp4 action {queue} loc 9"));
            }
            Driver::FlownicNet => {
                guest.run_ok(&format!("ethtool -N {name} flow-type tcp4 action {queue} loc 9"));
            }
        }
        flownic.ctl(&["flows", "add", "n0", "flow-type", "udp4", "action", "0", "loc", "1"]);
        let by_filter = |queue: u32| flownic.counter("n0", &format!("/rx/{queue}/by_filter"));
        let before: Vec<u64> = (0..PAIRS).map(by_filter).collect();
        link.netperf(Family::V4, &["TCP_RR", "UDP_RR"]);
        for q in 0..PAIRS {
            let hit = by_filter(q) > before[q as usize];
            assert_eq!(hit, q == 0 || q == queue, "round {round}: TCP on {queue}, UDP on 0; queue {q}");
        }
        flownic.ctl(&["flows", "del", "n0", "1"]);

        drop(link);
        if round == 0 {
            // Rings are made anew, by another driver and by this one again.
            guest.bind(0, if driver == Driver::VirtioNet { Driver::FlownicNet } else { Driver::VirtioNet });
            guest.bind(0, driver);
        }
    }
    for (direction, faults) in
        [("rx", "ring_faults"), ("rx", "bad_buffers"), ("tx", "ring_faults"), ("tx", "drop_malformed")]
    {
        let of = |q| flownic.counter("n0", &format!("/{direction}/{q}/{faults}"));
        assert_eq!((0..PAIRS).map(of).sum::<u64>(), 0, "{direction} {faults}");
    }
}

#[test]
fn packed_rings_under_the_stock_driver_on_the_stable_kernel() {
    carries_traffic_and_is_programmed(Kernel::Stable, Driver::VirtioNet, &[RING_PACKED]);
}

#[test]
fn packed_rings_under_the_stock_driver_on_the_backports_kernel() {
    carries_traffic_and_is_programmed(Kernel::Backports, Driver::VirtioNet, &[RING_PACKED]);
}

#[test]
fn packed_rings_under_the_reference_driver_on_the_backports_kernel() {
    carries_traffic_and_is_programmed(Kernel::Backports, Driver::FlownicNet, &[RING_PACKED]);
}

#[test]
fn split_rings_in_order_under_the_stock_driver() {
    carries_traffic_and_is_programmed(Kernel::Backports, Driver::VirtioNet, &[IN_ORDER]);
}

#[test]
fn packed_rings_in_order_under_the_reference_driver() {
    carries_traffic_and_is_programmed(Kernel::Backports, Driver::FlownicNet, &[RING_PACKED, IN_ORDER]);
}
