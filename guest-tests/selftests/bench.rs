//! A guest with two network cards on one wire, and one selftest run in it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use guest_tests::nic::Interface;
use guest_tests::protocol::Done;
use guest_tests::{Driver, Flownic, Guest, Kernel, Namespace, Nic, Workdir, image, wait_for};

use crate::tap::{self, Case};

/// Queue pairs that the tested card may have at most, where a test does not say: four RSS contexts want ten.
pub(crate) const PAIRS: u32 = 12;
/// Queue pairs that it starts with. Others want processors that have no queue.
const ACTIVE: u32 = 4;
const VCPUS: u32 = 6;
/// The largest packet that tests set.
const MTU: u32 = 9000;
/// How long a test may take before it is told to end, on emulated processors that others use, too.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// How long it may take to end then.
const GRACE: Duration = Duration::from_secs(60);

/// A test, as the kernel's tree has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Test {
    /// Its name, without `.py`.
    pub(crate) name: &'static str,
    /// Its folder among the selftests.
    pub(crate) folder: &'static str,
    /// Queue pairs that the tested card may have at most.
    pub(crate) pairs: u32,
    /// Its text, where it is not the kernel's.
    pub(crate) text: Option<&'static str>,
}

/// What a run left behind.
pub(crate) struct Run {
    pub(crate) cases: Vec<Case>,
    /// All that it printed, what the kernel said, and what flownic logged and counted.
    pub(crate) log: String,
    /// Warnings of the kernel.
    pub(crate) warnings: Vec<String>,
}

/// Boots a guest whose first card has `driver` and runs `test` in it: all cases, or the one named `case`. `watch` is shown
/// what it has printed so far, again and again; nothing comes of it once `stop` is set.
pub(crate) fn run(
    test: &Test,
    case: Option<&str>,
    driver: Driver,
    stop: &AtomicBool,
    mut watch: impl FnMut(&[u8]),
) -> Option<Run> {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let pairs = test.pairs;
    let nics =
        [format!("n0,queues={pairs},mtu={MTU},port=link:n1"), format!("n1,queues=4,mtu={MTU},port=link:n0")];
    let flownic = Flownic::start(&host, &workdir, &[&nics[0], &nics[1]], &[]);
    let tested = Nic::flownic(Flownic::socket(&workdir, "n0"), pairs).mtu(MTU).driver(driver);
    let remote = Nic::flownic(Flownic::socket(&workdir, "n1"), 4).mtu(MTU).driver(Driver::VirtioNet);
    // The remote end is to see packets as they were on the wire.
    let offloads =
        ["guest_csum", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo", "guest_uso4", "guest_uso6"];
    let remote = offloads.iter().fold(remote, |nic, offload| nic.property(&format!("{offload}=off")));
    let guest = Guest::builder("guest")
        .kernel(Kernel::Backports)
        .vcpus(VCPUS)
        .memory(2048)
        .over(image::selftests())
        .nic(tested)
        .nic(remote)
        .boot(&workdir);
    let here = guest.interface(0);
    set_up(&guest, &here, guest.interface(1).name());

    let path = format!("/selftests/{}/{}.py", test.folder, test.name);
    if let Some(text) = test.text {
        guest.write(&path, 0o755, text.as_bytes());
    }
    let only = case.map_or_else(String::new, |case| format!("-t '{case}'"));
    let name = here.name();
    let command = format!(
        "cd {} && NETIF={name} LOCAL_V4=192.0.2.1 REMOTE_V4=192.0.2.2 LOCAL_V6=2001:db8::1 REMOTE_V6=2001:db8::2 \
         REMOTE_TYPE=netns REMOTE_ARGS=remote exec timeout -k 30 {} {path} {only} 2>&1",
        Path::new(&path).parent().expect("a path with folders").display(),
        LIMIT.as_secs(),
    );
    let mut process = guest.spawn(&command);
    let done = wait_for(&format!("{} to end", test.name), LIMIT + GRACE, || {
        let done = process.ended();
        watch(&process.output().stdout);
        match done {
            _ if stop.load(Ordering::Relaxed) => Ok(None),
            Some(done) => Ok(Some(done)),
            None => Err("running".to_owned()),
        }
    })?;
    let output = process.output();
    let end = match &done {
        Done::Exited(124 | 137) => format!("it did not end within {} s", LIMIT.as_secs()),
        status => format!("{status:?}"),
    };
    let text = output.text();
    let cases = tap::parse(&text, &end);
    // Without an answer the guest has gone down, and the case that was running says so.
    let kernel = match done {
        Done::Failed(_) => String::new(),
        _ => guest.run("dmesg --level=emerg,alert,crit,err,warn").text(),
    };
    let bad = ["WARNING:", "BUG:", "Call Trace", "hung", "NETDEV WATCHDOG"];
    let warnings =
        kernel.lines().filter(|line| bad.iter().any(|word| line.contains(word))).map(str::to_owned).collect();
    let log = format!(
        "{text}\n\n{end}\n\n--- kernel\n{kernel}\n\n--- flownic\n{}\n{:#}\n",
        flownic.log(),
        flownic.ctl(&["stats"]),
    );
    Some(Run { cases, log, warnings })
}

/// Gives both cards addresses, and puts the other one into a network namespace.
fn set_up(guest: &Guest, here: &Interface, there: &str) {
    let name = here.name();
    guest.run_ok(&format!(
        "set -e
        ip netns add remote
        ip link set {there} netns remote
        for run in 'env' 'ip netns exec remote'; do
            $run sysctl -qw net.ipv6.conf.all.keep_addr_on_down=1 net.ipv6.conf.default.keep_addr_on_down=1
            $run ip link set lo up
        done
        in_remote='ip -netns remote'
        ip link set {name} mtu 1500
        $in_remote link set {there} mtu {MTU}
        ip address add 192.0.2.1/24 dev {name}
        ip address add 2001:db8::1/64 dev {name} nodad
        $in_remote address add 192.0.2.2/24 dev {there}
        $in_remote address add 2001:db8::2/64 dev {there} nodad
        ip link set {name} up
        $in_remote link set {there} up"
    ));
    here.queues(ACTIVE);
    // Off by default where a driver can; some cannot.
    guest.run(&format!("ethtool -K {name} rxhash on"));
    guest.run_ok("ping -c 1 -w 40 192.0.2.2 && ping -c 1 -w 40 2001:db8::2");
}
