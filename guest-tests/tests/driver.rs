//! The reference driver moves frames, and keeps moving them while everything about it is changed under way.

use std::time::Duration;

use guest_tests::nic::Interface;
use guest_tests::{Driver, Family, Flownic, Guest, Kernel, Link, Machine, Namespace, Nic, Workdir, wait_for};

/// Queue pairs of the card, and processors of the guest.
const PAIRS: u32 = 4;
/// How long traffic may take to go on after a change.
const LIMIT: Duration = Duration::from_secs(30);
/// Packets after which it counts as going on.
const ENOUGH: u64 = 50;
/// What must not be among a guest's kernel messages.
const TROUBLE: &str = "WARNING|BUG|Oops|Call Trace|hung task|stall|refcount|page_pool|timed out|not sent|\
                       was not answered|did not restart|refused";

/// A guest with the reference driver, and a tap at the other end of its card `n0`.
fn with_guest(kernel: Kernel, body: impl FnOnce(&Flownic<'_>, &Guest, &Link<'_>)) {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let flownic = Flownic::start(&host, &workdir, &[&format!("n0,queues={PAIRS},port=tap:fn0")], &[]);
    let nic = Nic::flownic(Flownic::socket(&workdir, "n0"), PAIRS);
    let guest = Guest::builder("guest").kernel(kernel).vcpus(PAIRS).driver(Driver::FlownicNet).nic(nic);
    let guest = guest.boot(&workdir);
    let link = Link::up(0, Interface::named(&host, "fn0"), guest.interface(0));
    body(&flownic, &guest, &link);
    silent(&guest);
}

/// Nothing of what would tell of a bug has been said.
#[track_caller]
fn silent(guest: &Machine) {
    let said = guest.run(&format!("dmesg | grep -E '{TROUBLE}'")).text();
    assert_eq!(said, "", "kernel messages");
}

/// A counter of `ethtool -S`, summed up over the queues: `tx*_gso_packets`.
fn total(nic: &Interface<'_>, direction: &str, counter: &str) -> u64 {
    let text = nic.machine().run_ok(&format!("ethtool -S {}", nic.name()));
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.trim().split_once(": ")?;
        let queue = name.strip_prefix(direction)?.strip_suffix(&format!("_{counter}"))?;
        queue.parse::<u32>().ok().and(value.parse::<u64>().ok())
    });
    values.sum()
}

fn carries_traffic(kernel: Kernel) {
    with_guest(kernel, |_, _, link| {
        link.ping(1500);
        link.netperf(Family::V4, &["TCP_RR", "UDP_RR", "TCP_STREAM", "UDP_STREAM"]);
        link.netperf(Family::V6, &["TCP_STREAM", "UDP_RR"]);
        link.transfer(3_000_000);
        link.mtu(9000);
        link.ping(9000);
        link.netperf(Family::V4, &["TCP_RR", "TCP_STREAM"]);
        link.transfer(3_000_000);
        link.mtu(1500);
        let nic = link.far_interface();
        for (direction, counter) in
            [("tx", "gso_packets"), ("tx", "needs_csum"), ("rx", "gso_packets"), ("rx", "csum_unnecessary")]
        {
            assert!(total(nic, direction, counter) > 0, "{direction} {counter}");
        }
        for counter in ["drops", "alloc_fail"] {
            assert_eq!(total(nic, "rx", counter), 0, "{counter}");
        }
        // Segments count as what is on the wire.
        let (large, wire) = (total(nic, "tx", "gso_packets"), total(nic, "tx", "gso_wire_packets"));
        assert!(wire >= 2 * large, "{large} large packets, {wire} segments");
        let offloads_off = "tso off gso off tx off sg off rx-gro-hw off rx off";
        nic.offloads(offloads_off);
        let before = total(nic, "tx", "needs_csum") + total(nic, "rx", "gso_packets");
        link.transfer(1_000_000);
        let after = total(nic, "tx", "needs_csum") + total(nic, "rx", "gso_packets");
        assert_eq!(after, before, "offloads in use after `{offloads_off}`");
    });
}

#[test]
fn the_driver_carries_traffic_on_the_stable_kernel() {
    carries_traffic(Kernel::Stable);
}

#[test]
fn the_driver_carries_traffic_on_the_backports_kernel() {
    carries_traffic(Kernel::Backports);
}

/// TCP both ways, and requests and responses, for as long as it lives.
struct Busy<'l> {
    nic: &'l Interface<'l>,
}

impl<'l> Busy<'l> {
    fn start(link: &'l Link<'l>) -> Busy<'l> {
        let (host, nic) = (link.near_interface().machine(), link.far_interface());
        drop(guest_tests::traffic::netserver(host));
        for test in ["TCP_STREAM", "TCP_MAERTS", "TCP_RR", "UDP_RR"] {
            let address = link.near(Family::V4);
            drop(nic.machine().spawn(&format!("netperf -H {address} -t {test} -l 3600")));
        }
        let busy = Busy { nic };
        busy.goes_on("the start");
        busy
    }

    fn packets(&self) -> [u64; 2] {
        let read = |name: &str| {
            let path = format!("/sys/class/net/{}/statistics/{name}", self.nic.name());
            self.nic.machine().read(&path).trim().parse().expect("a number")
        };
        [read("rx_packets"), read("tx_packets")]
    }

    /// Packets go both ways, from now on.
    #[track_caller]
    fn goes_on(&self, after: &str) {
        let [rx, tx] = self.packets();
        wait_for(&format!("traffic after {after}"), LIMIT, || match self.packets() {
            [now_rx, now_tx] if now_rx >= rx + ENOUGH && now_tx >= tx + ENOUGH => Ok(()),
            packets => Err(format!("{packets:?} after {:?}", [rx, tx])),
        });
    }

    /// Changes something, `COMMAND` with `NIC` for the interface, and sees that traffic goes on.
    #[track_caller]
    fn change(&self, command: &str) {
        self.nic.machine().run_ok(&command.replace("NIC", self.nic.name()));
        self.goes_on(command);
    }
}

fn changes_under_traffic(kernel: Kernel) {
    with_guest(kernel, |_, guest, link| {
        let busy = Busy::start(link);
        for pairs in [1, 4, 2, 3, 4] {
            busy.change(&format!("ethtool -L NIC combined {pairs}"));
        }
        let unsent = total(link.far_interface(), "tx", "timeouts");
        assert_eq!(unsent, 0, "transmit timeouts");
        for entries in [64, 1024, 100, 512] {
            busy.change(&format!("ethtool -G NIC rx {entries} tx {entries}"));
            let shown = guest.run_ok(&format!("ethtool -g {} | tail -n +7", link.far_interface().name()));
            assert!(shown.contains(&format!("\t{entries}\n")), "{shown}");
        }
        // An address leaves with the interface, an IPv4 one does not.
        for _ in 0..3 {
            busy.change("ip link set NIC down; ip link set NIC up");
        }
        for setting in ["rx-gro-hw off", "rx off", "rx on rx-gro-hw on", "tx off", "tx on"] {
            busy.change(&format!("ethtool -K NIC {setting}"));
        }
        for pairs in [2, 1, 3, 4] {
            let large = if pairs % 2 == 0 { "on" } else { "off" };
            busy.change(&format!(
                "ethtool -L NIC combined {pairs}; ethtool -K NIC rx-gro-hw {large}; ethtool -G NIC rx {}",
                128 * pairs
            ));
        }
        for mtu in [9000, 1500] {
            busy.change(&format!("ip link set NIC mtu {mtu}"));
        }
    });
}

#[test]
fn queues_rings_and_offloads_change_under_traffic_on_the_stable_kernel() {
    changes_under_traffic(Kernel::Stable);
}

#[test]
fn queues_rings_and_offloads_change_under_traffic_on_the_backports_kernel() {
    changes_under_traffic(Kernel::Backports);
}

fn comes_and_goes_under_traffic(kernel: Kernel) {
    with_guest(kernel, |_, guest, link| {
        Busy::start(link);
        let host = link.near_interface();
        for driver in [Driver::VirtioNet, Driver::FlownicNet, Driver::VirtioNet, Driver::FlownicNet] {
            guest.bind(0, driver);
            let link = Link::up(0, host.clone(), guest.interface(0));
            let name = guest.run_ok(&format!("ethtool -i {}", link.far_interface().name()));
            assert!(name.contains(driver.name()), "{name}");
            link.transfer(300_000);
        }
        let link = Link::up(0, host.clone(), guest.interface(0));
        Busy::start(&link);
        guest.run_ok("rmmod flownic_net");
        assert!(!guest.run("grep -q flownic_net /proc/modules").success(), "the module is still there");
    });
}

#[test]
fn the_driver_comes_and_goes_under_traffic_on_the_stable_kernel() {
    comes_and_goes_under_traffic(Kernel::Stable);
}

#[test]
fn the_driver_comes_and_goes_under_traffic_on_the_backports_kernel() {
    comes_and_goes_under_traffic(Kernel::Backports);
}
