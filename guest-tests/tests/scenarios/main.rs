//! What has gone wrong with accelerated RFS on other cards, in public reports, must not go wrong here. `docs/scenarios.md`
//! lists the reports and which test replays each.

mod changes;
mod flows;
mod follow;
mod limits;

use std::time::Duration;

use guest_tests::nic::Interface;
use guest_tests::wire::{QUEUES, quiet_host, silence};
use guest_tests::{Driver, Ethtool, Flownic, Guest, Kernel, Machine, Nic, Process, Workdir, wait_for};
use serde_json::Value;

const GUEST: &str = "192.0.2.2";
const HOST: &str = "192.0.2.1";
/// Flow number i goes from the host's port CLIENTS + i to the guest's port SERVERS + i.
const CLIENTS: u32 = 20000;
const SERVERS: u32 = 10000;
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Frames beside those of the flows: address resolution.
const NOISE: u64 = 4;
/// Entries of the stack's flow tables, so many that flows of a test hardly ever meet in one.
const FLOW_ENTRIES: u32 = 32768;
/// What must not be among a guest's kernel messages. That a processor was stuck is the fault of a busy host.
const TROUBLE: &str =
    "WARNING:|BUG:|Oops|hung task|refcount_t|flownic_net.*(Lost|error|could not|stays)|not sent";

/// Accelerated RFS on a guest: the interrupt of queue i goes to CPU i, packets that no filter is for come in on queue 0.
struct Rfs<'m> {
    flownic: &'m Flownic<'m>,
    guest: &'m Guest,
    nic: Interface<'m>,
    ethtool: Ethtool<'m>,
}

/// A guest with the reference driver on the card `n0`, which has these further `settings`, and a tap at its other end.
fn with_rfs(kernel: Kernel, settings: &str, body: impl FnOnce(&Rfs<'_>)) {
    let workdir = Workdir::new();
    let host = quiet_host();
    let nic = format!("n0,queues={QUEUES},port=tap:fn0,learn=off{settings}");
    let flownic = Flownic::start(&host, &workdir, &[&nic], &[]);
    let guest = Guest::builder("guest").kernel(kernel).vcpus(QUEUES as u32).driver(Driver::FlownicNet);
    let guest = guest.nic(Nic::flownic(Flownic::socket(&workdir, "n0"), QUEUES as u32)).boot(&workdir);
    silence(&guest);
    body(&Rfs::new(kernel, &flownic, &guest));
    let trouble = guest.run(&format!("dmesg | grep -E '{TROUBLE}' | grep -v 'soft lockup'"));
    assert_eq!(trouble.text(), "", "kernel messages");
}

impl<'m> Rfs<'m> {
    fn new(kernel: Kernel, flownic: &'m Flownic<'m>, guest: &'m Guest) -> Rfs<'m> {
        let (tap, nic) = (Interface::named(flownic.machine(), "fn0"), guest.interface(0));
        tap.up(&[&format!("{HOST}/24")]);
        nic.up(&[&format!("{GUEST}/24")]);
        // Nobody has to ask for an address: the answer would go out by any queue, behind a command that hangs.
        for (card, address, mac) in [(&tap, GUEST, nic.mac()), (&nic, HOST, tap.mac())] {
            let (machine, name) = (card.machine(), card.name());
            machine.run_ok(&format!("ip neigh replace {address} lladdr {mac} dev {name} nud permanent"));
        }
        let rfs = Rfs { flownic, guest, ethtool: Ethtool::new(&nic), nic };
        guest.run_ok(&format!(
            "for i in $(seq 0 {}); do echo $i >/proc/irq/{}/smp_affinity_list; done",
            QUEUES - 1,
            rfs.interrupt("$i"),
        ));
        guest.run_ok(&format!("echo {FLOW_ENTRIES} >/proc/sys/net/core/rps_sock_flow_entries"));
        rfs.flow_entries(FLOW_ENTRIES);
        let programmable = rfs.ethtool.ok("-k", "").contains("ntuple-filters: on");
        match kernel {
            Kernel::Backports if programmable => _ = rfs.ethtool.ok("-X", "equal 1"),
            // The older kernel refuses what a newer ethtool sends.
            _ => _ = flownic.ctl(&["rss", "set", "n0", "off"]),
        }
        rfs
    }

    fn host(&self) -> &'m Machine {
        self.flownic.machine()
    }

    /// Shell words that give the number of a receive queue's interrupt.
    fn interrupt(&self, queue: &str) -> String {
        let device = format!("$(basename $(readlink -f /sys/class/net/{}/device))", self.nic.name());
        format!("$(grep \" {device}-input.{queue}$\" /proc/interrupts | cut -d: -f1 | tr -d ' ')")
    }

    /// Makes the queues' flow tables anew, with nothing in them. Queues that come back have none.
    #[track_caller]
    fn flow_entries(&self, count: u32) {
        self.guest.run_ok(&format!(
            "for table in /sys/class/net/{}/queues/rx-*/rps_flow_cnt; do echo 0 >$table; echo {count} >$table; done",
            self.nic.name()
        ));
    }

    /// Makes the tables anew and waits until the filters of the old ones have gone. A filter that still steered a flow would keep
    /// the stack from asking for a new one; and once it is gone, other flows may have made the stack believe that all is well.
    #[track_caller]
    fn forget_flows(&self, count: u32) {
        self.flow_entries(count);
        wait_for("flows of the old tables to be forgotten", LIMIT, || match self.counter("flows") {
            0 => Ok(()),
            flows => Err(format!("{flows} flows")),
        });
    }

    /// Starts servers of flows `first` and following on `cpus`, as `flownic-agent serve-flows` has it.
    #[track_caller]
    fn serve(&self, first: u32, count: u32, cpus: &str) -> Process<'m> {
        let (port, peer) = (SERVERS + first, CLIENTS + first);
        let command = format!("exec /proc/1/exe serve-flows {GUEST}:{port} {HOST}:{peer} {count} {cpus}");
        let mut server = self.guest.spawn(&command);
        server.wait_for_text("serving", LIMIT);
        server
    }

    /// A command for the host that asks on flows `first` and following in turn.
    fn ask_command(first: u32, count: u32, rounds: u32) -> String {
        let (port, peer) = (CLIENTS + first, SERVERS + first);
        format!("exec /proc/1/exe ask-flows {HOST}:{port} {GUEST}:{peer} {count} {rounds}")
    }

    /// Asks, and gives how many requests had to be sent again.
    #[track_caller]
    fn ask(&self, first: u32, count: u32, rounds: u32) -> u64 {
        let output = self.host().spawn(&Rfs::ask_command(first, count, rounds)).wait(LIMIT);
        assert!(output.success(), "asking on {count} flows from {first}: {output}");
        output.text().parse().expect("a number")
    }

    /// Asks until all answers but noise come by `queue`.
    #[track_caller]
    fn wait_on(&self, queue: usize, first: u32, count: u32) {
        let what = format!("flows {first} to {} to be on queue {queue}", first + count - 1);
        wait_for(&what, LIMIT, || {
            let seen = self.nic.received_during(|| _ = self.ask(first, count, 8));
            if elsewhere(&seen, queue) <= NOISE { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }

    /// Asks 100 times on each flow and sees that all come by `queue`, and none by another.
    #[track_caller]
    fn expect_on(&self, queue: usize, first: u32, count: u32) {
        let seen = self.nic.received_during(|| _ = self.ask(first, count, 100));
        let what = format!("flows {first} to {} on queue {queue}: {seen:?}", first + count - 1);
        assert!(seen[queue] >= u64::from(100 * count) && elsewhere(&seen, queue) <= NOISE, "{what}");
    }

    /// The queues of the filters of accelerated RFS that the device has.
    #[track_caller]
    fn device_filters(&self) -> Vec<u64> {
        let flows = self.flownic.ctl(&["flows", "list", "n0"]);
        let rules = flows["guest"].as_array().unwrap_or_else(|| panic!("no rules in {flows}"));
        // The driver's group 0 has the rules of ethtool.
        let filters = rules.iter().filter(|rule| rule["group"] == 1);
        filters.filter_map(|rule| rule["rule"]["action"].as_u64()).collect()
    }

    /// Packets that have found the filter of a flow, if it has one.
    #[track_caller]
    fn hits(&self, flow: u32) -> Option<u64> {
        let flows = self.flownic.ctl(&["flows", "list", "n0"]);
        let rules = flows["guest"].as_array().unwrap_or_else(|| panic!("no rules in {flows}"));
        let rule = rules.iter().find(|rule| rule["rule"]["dst_port"] == SERVERS + flow);
        rule.and_then(|rule| rule["hits"].as_u64())
    }

    /// Waits until the device has as many filters as the driver believes, and gives how many those are.
    #[track_caller]
    fn consistent(&self, when: &str) -> u64 {
        wait_for(&format!("filters to be consistent {when}"), LIMIT, || {
            let before = self.counter("filters");
            let (device, after) = (self.device_filters().len() as u64, self.counter("filters"));
            let flows = self.counter("flows");
            if before == device && after == device && device <= flows {
                Ok(device)
            } else {
                Err(format!("device {device}, driver {before} and {after} of {flows} flows"))
            }
        })
    }

    /// A counter of the driver, without its prefix `arfs_`.
    #[track_caller]
    fn counter(&self, name: &str) -> u64 {
        self.ethtool.counter(&format!("arfs_{name}"))
    }

    #[track_caller]
    fn inject(&self, fault: &str, on: &str) -> Value {
        self.flownic.ctl(&["inject", "n0", fault, on])
    }

    #[track_caller]
    fn knob(&self, knob: &str, value: &str) -> Value {
        self.flownic.ctl(&["knobs", "n0", knob, value])
    }
}

/// Frames on other queues than that one.
fn elsewhere(seen: &[u64], queue: usize) -> u64 {
    seen.iter().sum::<u64>() - seen[queue]
}
