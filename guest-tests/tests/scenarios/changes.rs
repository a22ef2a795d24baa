//! Everything about the card is changed while filters come and go. Traffic goes on after each change, and driver and device
//! agree about filters.

use guest_tests::protocol::Done;
use guest_tests::wire::{QUEUES, quiet_host, silence};
use guest_tests::{Driver, Flownic, Guest, Kernel, Nic, Process, Workdir, traffic, wait_for};

use super::{FLOW_ENTRIES, GUEST, LIMIT, Rfs, with_rfs};

/// Packets after which traffic counts as going on.
const ENOUGH: u64 = 50;

/// Requests and responses to servers on all processors, and flows that come and go.
struct Load<'m> {
    clients: Vec<Process<'m>>,
}

impl<'m> Load<'m> {
    #[track_caller]
    fn start(rfs: &Rfs<'m>) -> Load<'m> {
        let mut clients = Vec::new();
        for cpu in 0..QUEUES {
            let netperf = format!("exec netperf -H {GUEST} -t TCP_RR -l 3600 -T ,{cpu}");
            clients.push(rfs.host().spawn(&netperf));
        }
        // Each connection of these is a new flow.
        let short = format!("exec netperf -H {GUEST} -t TCP_CRR -l 3600 -T ,3");
        clients.push(rfs.host().spawn(&short));
        let load = Load { clients };
        load.goes_on(rfs, "the start");
        load
    }

    /// Packets come in, from now on, and driver and device agree.
    #[track_caller]
    fn goes_on(&self, rfs: &Rfs, after: &str) {
        let packets = || -> u64 {
            let path = format!("/sys/class/net/{}/statistics/rx_packets", rfs.nic.name());
            rfs.guest.read(&path).parse().expect("a number")
        };
        let before = packets();
        wait_for(&format!("traffic after {after}"), LIMIT, || match packets() {
            now if now >= before + ENOUGH => Ok(()),
            now => Err(format!("{now} packets after {before}")),
        });
        rfs.ask(0, 4, 4);
        // Filters come and go all the time, and driver and device can't be asked at the same time.
        self.signal(libc::SIGSTOP);
        rfs.consistent(&format!("after {after}"));
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        self.clients.iter().for_each(|client| client.kill(signal));
    }

    fn stop(self) {
        self.clients.into_iter().for_each(|client| _ = client.stop());
    }
}

/// No filter points to a queue that is not in use.
#[track_caller]
fn expect_targets_below(rfs: &Rfs, pairs: u64) {
    let queues = rfs.device_filters();
    assert!(queues.iter().all(|queue| *queue < pairs), "{pairs} queues, filters for {queues:?}");
}

fn under_load(kernel: Kernel) {
    with_rfs(kernel, "", |rfs| {
        let _netserver = traffic::netserver(rfs.guest);
        let server = rfs.serve(0, 4, "3");
        let load = Load::start(rfs);
        let name = rfs.nic.name();
        let change = |command: &str| {
            rfs.guest.run_ok(&command.replace("NIC", name));
            load.goes_on(rfs, command);
        };

        for fault in ["table-full", "busy"] {
            rfs.inject(fault, "on");
            load.goes_on(rfs, fault);
            rfs.inject(fault, "off");
            load.goes_on(rfs, &format!("{fault} is over"));
        }
        rfs.knob("delay", "5ms");
        rfs.knob("inflight", "2");
        load.goes_on(rfs, "filters that take their time");
        rfs.knob("delay", "0");
        rfs.knob("inflight", "any");

        // Report 9. A table that a user has set does not follow the number of queues.
        if kernel == Kernel::Backports {
            rfs.ethtool.ok("-X", "default");
        }
        for pairs in [2, 4, 1, 3, 4] {
            change(&format!("ethtool -L NIC combined {pairs}"));
            expect_targets_below(rfs, pairs);
            rfs.flow_entries(FLOW_ENTRIES);
        }
        for entries in [64, 1024, 512] {
            change(&format!("ethtool -G NIC rx {entries} tx {entries}"));
        }
        // Reports 7 and 10.
        for _ in 0..3 {
            rfs.guest.run_ok(&format!("ip link set {name} down"));
            assert_eq!(rfs.device_filters(), [0u64; 0], "filters while the interface is down");
            change("ip link set NIC up");
            rfs.guest.run_ok(&format!("ethtool -K {name} ntuple off"));
            assert_eq!(rfs.device_filters(), [0u64; 0], "filters while ntuple is off");
            load.goes_on(rfs, "ntuple off");
            change("ethtool -K NIC ntuple on");
        }
        // Reports 10 and 11: these restart the device, with new interrupts and a new map of CPUs.
        for large in ["off", "on", "off", "on"] {
            change(&format!("ethtool -K NIC rx-gro-hw {large}"));
        }
        // Report 10: the device is reset, and the driver finds out by itself.
        for resets in 1..=2 {
            rfs.inject("reset", "on");
            wait_for("the driver to notice the reset", LIMIT, || {
                let said = rfs.guest.run_ok("dmesg | grep -c 'the device was reset' || true");
                if said == resets.to_string() { Ok(()) } else { Err(said) }
            });
            load.goes_on(rfs, "a reset of the device");
        }
        // Report 12.
        let stop = "/tmp/stop";
        let affinity = rfs.guest.spawn(&format!(
            "until [ -e {stop} ]; do for i in 0 1; do for mask in 1 2 4 8; do echo $mask >/proc/irq/{}/smp_affinity; done; done; done",
            rfs.interrupt("$i"),
        ));
        for pairs in [2, 4, 3, 4] {
            change(&format!("ethtool -L NIC combined {pairs}"));
        }
        change("ethtool -K NIC rx-gro-hw off");
        rfs.guest.run_ok(&format!("touch {stop}"));
        assert_eq!(affinity.wait(LIMIT).status, Done::Exited(0));
        load.stop();
        server.stop();

        // Queues and processors belong to each other again, and flows follow.
        let rfs = Rfs::new(kernel, rfs.flownic, rfs.guest);
        let server = rfs.serve(10, 4, "3");
        rfs.wait_on(3, 10, 4);
        server.stop();
        rfs.consistent("after all changes");
        unload_under_load(kernel, &rfs);
    });
}

/// Report 10: the driver goes, and nothing of it is left at the device; it comes, and begins with nothing.
fn unload_under_load(kernel: Kernel, rfs: &Rfs) {
    let server = rfs.serve(0, 4, "3");
    let load = Load::start(rfs);
    rfs.guest.bind(0, Driver::VirtioNet);
    assert_eq!(rfs.device_filters(), [0u64; 0], "filters of a driver that has gone");
    load.stop();
    server.stop();
    rfs.guest.run_ok("rmmod flownic_net");
    rfs.guest.bind(0, Driver::FlownicNet);
    let rfs = Rfs::new(kernel, rfs.flownic, rfs.guest);
    rfs.consistent("of a driver that is new");
    let server = rfs.serve(20, 4, "2");
    rfs.wait_on(2, 20, 4);
    server.stop();
}

#[test]
fn filters_survive_changes_under_load() {
    under_load(Kernel::Backports);
}

#[test]
fn filters_survive_changes_under_load_with_the_older_kernel() {
    under_load(Kernel::Stable);
}

/// Report 10, from outside: flownic itself ends and is started anew, with nothing of what the guest had set up.
#[test]
fn what_the_guest_has_set_up_is_back_after_flownic_was_killed() {
    let workdir = Workdir::new();
    let host = quiet_host();
    let settings = format!("n0,queues={QUEUES},port=tap:fn0,learn=off");
    let mut flownic = Flownic::start(&host, &workdir, &[&settings], &[]);
    let guest = Guest::builder("guest").kernel(Kernel::Backports).vcpus(QUEUES as u32);
    let nic = Nic::flownic(Flownic::socket(&workdir, "n0"), QUEUES as u32);
    let guest = guest.driver(Driver::FlownicNet).nic(nic).boot(&workdir);
    silence(&guest);
    let rfs = Rfs::new(Kernel::Backports, &flownic, &guest);
    rfs.ethtool.rule("flow-type udp4 dst-port 5000 action 2");
    let before = flownic.ctl(&["flows", "list", "n0"])["guest"].clone();
    assert_eq!(flownic.end(libc::SIGKILL), Done::Signaled(libc::SIGKILL));
    flownic = flownic.start_again();
    wait_for("the guest's rule to be back", LIMIT, || {
        let now = flownic.ctl(&["flows", "list", "n0"])["guest"].clone();
        if now == before { Ok(()) } else { Err(format!("{now}, not {before}")) }
    });
    let rfs = Rfs::new(Kernel::Backports, &flownic, &guest);
    let server = rfs.serve(0, 4, "3");
    rfs.wait_on(3, 0, 4);
    rfs.consistent("after flownic was killed");
    server.stop();
}
