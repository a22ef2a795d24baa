//! What comes and goes: QEMU, flownic, the guest's kernel and its driver. Traffic resumes, nothing leaks, and what was
//! lost is counted.

use std::process::Command;
use std::time::Duration;

use guest_tests::frame::Packet;
use guest_tests::nic::Interface;
use guest_tests::protocol::Done;
use guest_tests::traffic::wait_for_answer;
use guest_tests::{
    Family, Flownic, Guest, Link, Machine, Namespace, Nic, Process, Workdir, traffic, wait_for,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Time over which an idle process is watched.
const WINDOW: &str = "3";

fn start<'m>(host: &'m Machine, workdir: &Workdir) -> Flownic<'m> {
    Flownic::start(host, workdir, &["n0,queues=2,port=tap:fn0"], &[])
}

fn boot(workdir: &Workdir) -> Guest {
    Guest::builder("guest").nic(Nic::flownic(Flownic::socket(workdir, "n0"), 2)).boot(workdir)
}

fn connect<'m>(host: &'m Machine, guest: &'m Guest) -> Link<'m> {
    Link::up(0, Interface::named(host, "fn0"), guest.interface(0))
}

/// What a process holds.
struct Resources {
    /// Open files by kind, one a line.
    files: String,
    /// Threads.
    threads: u64,
    /// Resident memory, in KiB.
    resident: u64,
}

impl Resources {
    /// Those of flownic, without what the clients of its control socket take: it may still be closing their
    /// connections when they have gone.
    #[track_caller]
    fn of(machine: &Machine, pid: u32) -> Resources {
        wait_for("the control clients to be gone", LIMIT, || {
            let threads = machine.run_ok(&format!("cat /proc/{pid}/task/*/comm"));
            if threads.contains("control-") { Err(threads) } else { Ok(()) }
        });
        let number = |command: String| machine.run_ok(&command).parse().expect("a number");
        // `12 -> socket:[345]`: only the kind of a socket or a pipe stays the same.
        let kinds = "sed -n 's/.* -> //p' | sed 's/:\\[[0-9]*\\]$//' | sort | uniq -c";
        Resources {
            files: machine.run_ok(&format!("ls -l /proc/{pid}/fd | {kinds}")),
            threads: number(format!("ls /proc/{pid}/task | wc -l")),
            resident: number(format!("awk '/^VmRSS/ {{ print $2 }}' /proc/{pid}/status")),
        }
    }

    /// Sees that nothing has leaked since.
    #[track_caller]
    fn expect_no_leak(&self, machine: &Machine, pid: u32) {
        let now = Resources::of(machine, pid);
        assert_eq!(self.files, now.files, "open files");
        assert_eq!(self.threads, now.threads, "threads");
        let (before, now) = (self.resident, now.resident);
        assert!(now < before + 8192, "resident memory grew from {before} to {now} KiB");
    }
}

/// Frames that flownic took off the wire, and what became of them: delivered, and dropped for any reason.
fn accounts(flownic: &Flownic) -> [u64; 3] {
    let taken = flownic.counter("n0", "/device/port_rx_packets");
    let sum = |place: &str, counts: fn(&str) -> bool| -> u64 {
        let stats = flownic.counters("n0", place);
        stats.iter().filter(|(name, _)| counts(name)).map(|(_, value)| value).sum()
    };
    let is_drop = |name: &str| name.starts_with("drop_");
    let (mut delivered, mut dropped) = (0, sum("/device", is_drop));
    for queue in 0..2 {
        delivered += sum(&format!("/rx/{queue}"), |name| name == "packets");
        dropped += sum(&format!("/rx/{queue}"), is_drop);
    }
    [taken, delivered, dropped]
}

/// A flood of small frames from the host, until stopped.
fn flood(host: &Machine) -> Process<'_> {
    host.write("/tmp/flood.frame", 0o600, &Packet::udp("192.0.2.1:1000", "192.0.2.2:2000").build());
    host.spawn("while /proc/1/exe send fn0 1000 </tmp/flood.frame; do :; done")
}

/// Waits until everything that came off the wire was delivered or counted as lost.
#[track_caller]
fn expect_nothing_unaccounted(flownic: &Flownic) {
    wait_for("every frame to be accounted for", LIMIT, || {
        let [taken, delivered, dropped] = accounts(flownic);
        if taken == delivered + dropped { Ok(()) } else { Err(format!("{taken} != {delivered} + {dropped}")) }
    });
}

#[test]
fn traffic_resumes_when_qemu_is_killed_and_started_again() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let mut flownic = start(&host, &workdir);
    let pid = flownic.pid();
    let mut guest = boot(&workdir);
    connect(&host, &guest).transfer(300_000);
    let rule = ["flows", "add", "n0", "flow-type", "udp4", "dst-port", "9", "action", "1", "loc", "4"];
    flownic.ctl(&rule);
    let before = Resources::of(&host, pid);
    for _ in 0..3 {
        let flood = flood(&host);
        guest.kill();
        wait_for("frames to find no queue", LIMIT, || match flownic.counter("n0", "/device/drop_no_queue") {
            0 => Err("none dropped".to_owned()),
            _ => Ok(()),
        });
        guest = guest.boot_again();
        connect(&host, &guest).transfer(300_000);
        flood.stop();
    }
    expect_nothing_unaccounted(&flownic);
    // The table is as it was: its only location that is taken can be freed once.
    flownic.ctl(&["flows", "del", "n0", "4"]);
    assert!(flownic.try_ctl(&["flows", "del", "n0", "4"]).is_err());
    before.expect_no_leak(&host, pid);
}

#[test]
fn traffic_resumes_when_flownic_is_killed_and_started_again() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let mut flownic = start(&host, &workdir);
    let guest = boot(&workdir);
    connect(&host, &guest).transfer(300_000);
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let ended = flownic.end(signal);
        let expected = if signal == libc::SIGKILL { Done::Signaled(signal) } else { Done::Exited(0) };
        assert_eq!(ended, expected);
        flownic = flownic.start_again();
        // The tap went with the process: its address must be set anew.
        Interface::named(&host, "fn0").up(&["10.77.0.1/24", "2001:db8::1/64"]);
        wait_for_answer(&host, "10.77.0.2");
        connect(&host, &guest).transfer(300_000);
    }
}

#[test]
fn traffic_resumes_when_the_guest_reboots() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let mut flownic = start(&host, &workdir);
    let pid = flownic.pid();
    let mut guest = boot(&workdir);
    connect(&host, &guest).transfer(300_000);
    let before = Resources::of(&host, pid);
    let flood = flood(&host);
    guest.reboot();
    connect(&host, &guest).transfer(300_000);
    guest.reset();
    connect(&host, &guest).transfer(300_000);
    flood.stop();
    expect_nothing_unaccounted(&flownic);
    before.expect_no_leak(&host, pid);
}

#[test]
fn the_driver_comes_and_goes_under_flood() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let mut flownic = start(&host, &workdir);
    let pid = flownic.pid();
    let guest = boot(&workdir);
    connect(&host, &guest).transfer(300_000);
    let before = Resources::of(&host, pid);
    let flood = flood(&host);
    for _ in 0..5 {
        // Not by modprobe, which would remove what the agent's own port needs, too.
        guest.run_ok("rmmod virtio_net");
        guest.run_ok("modprobe virtio_net");
        guest.interface(0).up(&[]);
    }
    flood.stop();
    connect(&host, &guest).transfer(300_000);
    expect_nothing_unaccounted(&flownic);
    before.expect_no_leak(&host, pid);
}

/// Context switches and clock ticks of all threads of a process, over the window.
fn activity(machine: &Machine, pid: u32) -> [u64; 2] {
    let count = || {
        let switches =
            format!("cat /proc/{pid}/task/*/status | awk '/ctxt_switches/ {{ n += $2 }} END {{ print n }}'");
        let ticks = format!("awk '{{ print $14 + $15 }}' /proc/{pid}/stat");
        [switches, ticks].map(|command| machine.run_ok(&command).parse::<u64>().expect("a number"))
    };
    let before = count();
    machine.run_ok(&format!("sleep {WINDOW}"));
    let after = count();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn an_idle_flownic_sleeps() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    host.run_ok("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6");
    let mut flownic = start(&host, &workdir);
    let pid = flownic.pid();
    let guest = boot(&workdir);
    guest.run_ok("for all in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 >$all; done");
    let (tap, nic) = (Interface::named(&host, "fn0"), guest.interface(0));
    nic.up(&["10.77.0.2/24"]);
    tap.up(&["10.77.0.1/24"]);
    traffic::ping(&host, "10.77.0.2", 5, 56);
    // Neighbours ask for each other once more some seconds after they have talked.
    host.run_ok("ip neigh replace 10.77.0.2 lladdr $(ip -o neigh show 10.77.0.2 | awk '{ print $5 }') dev fn0 nud permanent");
    guest.run_ok(&format!(
        "ip neigh replace 10.77.0.1 lladdr {} dev {} nud permanent",
        tap.mac(),
        nic.name()
    ));
    assert_eq!(activity(&host, pid), [0, 0], "context switches and ticks with an idle guest");
}

#[test]
fn a_flownic_that_polls_carries_traffic() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let start = |poll| Flownic::start(&host, &workdir, &["n0,port=tap:fn0"], &["--poll", poll]);
    // The guest boots without it: polling without end takes a processor away.
    let mut flownic = start("off");
    let guest = boot_single(&workdir);
    guest.interface(0).up(&["10.77.0.2/24"]);
    for poll in ["always", "adaptive"] {
        assert_eq!(flownic.end(libc::SIGTERM), Done::Exited(0));
        flownic = start(poll);
        Interface::named(&host, "fn0").up(&["10.77.0.1/24"]);
        wait_for_answer(&host, "10.77.0.2");
        let link = connect(&host, &guest);
        link.ping(1500);
        link.netperf(Family::V4, &["TCP_RR", "TCP_STREAM", "UDP_STREAM"]);
        link.transfer(1_000_000);
        link.near_interface().down();
        let pid = flownic.pid();
        if poll == "always" {
            let [_, ticks] = activity(&host, pid);
            assert!(ticks > 0, "it polls when there is nothing to do, too");
        } else {
            wait_for("polling to cease with the traffic", LIMIT, || match activity(&host, pid) {
                [0, 0] => Ok(()),
                busy => Err(format!("{busy:?}")),
            });
        }
    }
}

#[test]
fn frames_for_a_guest_without_buffers_cost_no_more_than_themselves() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let mut flownic = Flownic::start(&host, &workdir, &["n0,queues=1,port=tap:fn0"], &[]);
    let pid = flownic.pid();
    let guest = boot_single(&workdir);
    guest.interface(0).up(&[]);
    let tap = Interface::named(&host, "fn0");
    tap.up(&[]);
    // A QEMU that is stopped by a signal posts no buffers, and cannot even stop its rings: they run dry.
    let qemu = guest.qemu_pid();
    signal(qemu, "STOP");
    let frame = Packet::udp("192.0.2.1:1000", "192.0.2.2:2000").build();
    let dropped = || flownic.counter("n0", "/rx/0/drop_no_buffer");
    wait_for("the ring to run dry", LIMIT, || {
        tap.send(&frame, 256);
        if dropped() > 0 { Ok(()) } else { Err("buffers are left".to_owned()) }
    });
    // Then each frame is dropped and counted, and nothing goes on in between.
    let before = dropped();
    tap.send(&frame, 500);
    wait_for("the drops to be counted", LIMIT, || {
        let now = dropped() - before;
        if now >= 500 { Ok(()) } else { Err(now.to_string()) }
    });
    host.run_ok("echo 1 >/proc/sys/net/ipv6/conf/fn0/disable_ipv6");
    assert_eq!(activity(&host, pid), [0, 0], "context switches and ticks with a dry ring");
    signal(qemu, "CONT");
    host.run_ok("echo 0 >/proc/sys/net/ipv6/conf/fn0/disable_ipv6");
    Link::up(0, tap, guest.interface(0)).ping(1500);
}

/// Sends a signal to a process of the host.
fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -{name} {pid}");
}

fn boot_single(workdir: &Workdir) -> Guest {
    Guest::builder("guest").nic(Nic::flownic(Flownic::socket(workdir, "n0"), 1)).boot(workdir)
}

#[test]
fn a_link_that_goes_down_is_seen_by_both_ends() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let flownic = start(&host, &workdir);
    let guest = boot(&workdir);
    let link = connect(&host, &guest);
    flownic.ctl(&["link", "n0", "down"]);
    let far = link.far(Family::V4);
    assert!(!host.run(&format!("ping -c 1 -W 1 {far}")).success());
    flownic.ctl(&["link", "n0", "up"]);
    wait_for_answer(&host, &far);
    link.transfer(300_000);
}
