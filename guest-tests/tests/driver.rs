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

/// XDP programs on a card.
struct Programs<'l> {
    nic: &'l Interface<'l>,
}

impl Programs<'_> {
    /// Attaches a program of the agent's; with `frags` one that takes frames in several buffers.
    fn attach(&self, program: &str, frags: &str) -> Result<(), String> {
        let (name, file) = (self.nic.name(), format!("/sys/fs/bpf/{program}{frags}"));
        let command = format!(
            "[ -e {file} ] || /proc/1/exe xdp {program} {file} {frags}; \
             ip -force link set {name} xdpdrv pinned {file}"
        );
        let output = self.nic.machine().run(&command);
        if output.success() { Ok(()) } else { Err(output.to_string()) }
    }

    #[track_caller]
    fn detach(&self) {
        self.nic.machine().run_ok(&format!("ip link set {} xdpdrv off", self.nic.name()));
    }
}

/// What programs have dropped and seen. Counters are read one after the other, and frames that nobody asked for (neighbours,
/// routers) may come between the two: they are read until nothing has changed from one time to the next.
fn dropped_and_seen(nic: &Interface<'_>) -> (u64, u64) {
    let read = || (total(nic, "rx", "xdp_drops"), total(nic, "rx", "xdp_packets"));
    let mut last = read();
    wait_for("frames to stop coming", LIMIT, || {
        let before = std::mem::replace(&mut last, read());
        if before == last { Ok(()) } else { Err(format!("{before:?}, then {last:?}")) }
    });
    last
}

fn runs_programs(kernel: Kernel) {
    const FRAMES: u32 = 40;
    with_guest(kernel, |_, guest, link| {
        let (tap, nic) = (link.near_interface(), link.far_interface());
        let programs = Programs { nic };

        programs.attach("pass", "").expect("a program that passes");
        link.ping(1500);
        link.transfer(500_000);
        assert!(total(nic, "rx", "xdp_packets") > 0, "the program has seen packets");
        let features = guest.run_ok(&format!("ethtool -k {}", nic.name()));
        assert!(features.contains("rx-gro-hw: off"), "frames are as on the wire: {features}");

        // One program for another, and all frames through each of them.
        for program in ["head", "tail"] {
            programs.attach(program, "").expect(program);
            link.ping(1500);
            assert_eq!(total(nic, "rx", "xdp_drops"), 0, "{program}");
        }

        programs.attach("drop", "").expect("a program that drops");
        let (dropped, packets) = dropped_and_seen(nic);
        let lost = tap.machine().run(&format!("ping -i 0.05 -W 1 -c 5 {}", link.far(Family::V4)));
        assert!(!lost.success(), "{lost}");
        let after = dropped_and_seen(nic);
        let now = (after.0 - dropped, after.1 - packets);
        assert!(now.0 >= 5 && now.0 == now.1, "dropped and seen: {now:?}");

        programs.attach("tx", "").expect("a program that sends back");
        let echoed = || tap.machine().read("/sys/class/net/fn0/statistics/rx_packets");
        let (sent, before) = (total(nic, "rx", "xdp_tx"), echoed().trim().parse::<u64>().expect("a number"));
        tap.send(&guest_tests::wire::arp(), FRAMES);
        wait_for("frames to come back", LIMIT, || {
            let now: u64 = echoed().trim().parse().expect("a number");
            let sent = total(nic, "rx", "xdp_tx") - sent;
            if now >= before + u64::from(FRAMES) && sent >= u64::from(FRAMES) {
                Ok(())
            } else {
                Err(format!("{now}, {sent}"))
            }
        });
        programs.detach();

        link.mtu(9000);
        let error = programs.attach("pass", "").expect_err("frames do not fit into one buffer");
        assert!(error.contains("MTU is too large"), "{error}");
        programs.attach("pass", "frags").expect("a program that takes fragments");
        link.ping(9000);
        link.transfer(500_000);
        guest.run_ok(&format!("ethtool -L {} combined 2", nic.name()));
        link.ping(9000);
        programs.detach();
        link.mtu(1500);

        programs.attach("pass", "").expect("a program that passes");
        assert!(!guest.run(&format!("ip link set {} mtu 9000", nic.name())).success(), "MTU above a buffer");
        programs.detach();
        link.netperf(Family::V4, &["TCP_STREAM"]);
        let features = guest.run_ok(&format!("ethtool -k {}", nic.name()));
        assert!(features.contains("rx-gro-hw: on"), "offloads are back: {features}");
    });
}

#[test]
fn xdp_programs_decide_on_the_stable_kernel() {
    runs_programs(Kernel::Stable);
}

#[test]
fn xdp_programs_decide_on_the_backports_kernel() {
    runs_programs(Kernel::Backports);
}

/// The number and the affinity of an interrupt, by its name in /proc/interrupts: `input.0`.
fn affinity(guest: &Machine, interrupt: &str) -> (String, String) {
    let number = guest.run_ok(&format!("sed -n 's/^ *\\([0-9]*\\):.*-{interrupt}$/\\1/p' /proc/interrupts"));
    let mask = guest.read(&format!("/proc/irq/{number}/smp_affinity"));
    (number, mask.trim().to_owned())
}

fn affinity_lasts(kernel: Kernel) {
    with_guest(kernel, |_, guest, link| {
        let nic = link.far_interface().name();
        for (pair, mask) in [(0, "4"), (1, "1"), (PAIRS - 1, "2")] {
            let (number, before) = affinity(guest, &format!("input.{pair}"));
            assert_ne!(before, mask, "each queue begins with a processor of its own");
            guest.run_ok(&format!("echo {mask} >/proc/irq/{number}/smp_affinity"));
            wait_for("the transmit interrupt to follow", LIMIT, || {
                let (_, now) = affinity(guest, &format!("output.{pair}"));
                if now == mask { Ok(()) } else { Err(now) }
            });
        }
        // The last two restart the device, with new interrupts.
        for change in [
            format!("ethtool -L {nic} combined 1; ethtool -L {nic} combined {PAIRS}"),
            format!("ip link set {nic} down; ip link set {nic} up"),
            format!("ethtool -K {nic} rx-gro-hw off; ethtool -K {nic} rx-gro-hw on"),
            format!(
                "/proc/1/exe xdp pass /sys/fs/bpf/a; ip link set {nic} xdpdrv pinned /sys/fs/bpf/a; ip link set {nic} xdpdrv off"
            ),
        ] {
            guest.run_ok(&change);
            for (pair, mask) in [(0, "4"), (1, "1"), (PAIRS - 1, "2")] {
                for direction in ["input", "output"] {
                    let (_, now) = affinity(guest, &format!("{direction}.{pair}"));
                    assert_eq!(now, mask, "{direction}.{pair} after `{change}`");
                }
            }
        }
        // The interface was down, which takes its IPv6 addresses away.
        guest_tests::traffic::ping(guest, &link.near(Family::V4), 2, 56);
    });
}

#[test]
fn affinity_outlives_changes_on_the_stable_kernel() {
    affinity_lasts(Kernel::Stable);
}

#[test]
fn affinity_outlives_changes_on_the_backports_kernel() {
    affinity_lasts(Kernel::Backports);
}
