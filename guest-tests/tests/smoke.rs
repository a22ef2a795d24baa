//! The harness itself, on QEMU's own network cards.

use std::time::Duration;

use guest_tests::guest::Backend;
use guest_tests::protocol::Done;
use guest_tests::{Guest, Namespace, Nic, Workdir, traffic, wait_for};

#[test]
fn a_guest_runs_commands_and_moves_files() {
    let workdir = Workdir::new();
    let mut guest = Guest::builder("solo").vcpus(2).nic(Nic::new(Backend::User)).boot(&workdir);

    assert_eq!(guest.run_ok("nproc"), "2");
    let output = guest.run("echo out; echo err >&2; exit 3");
    assert_eq!(output.status, Done::Exited(3));
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(guest.run("kill -SEGV $$").status, Done::Signaled(libc::SIGSEGV));
    assert!(matches!(guest.start(&exec("no-such-program")).wait(LIMIT).status, Done::Failed(_)));

    let content: Vec<u8> = (0..1_000_000u32).map(|number| (number * 7 / 3) as u8).collect();
    guest.write("/tmp/deep/file", 0o750, &content);
    assert_eq!(guest.run("cat /tmp/deep/file").stdout, content);
    assert_eq!(guest.run_ok("stat -c %a /tmp/deep/file"), "750");
    assert_eq!(guest.run_with_input("cat", &content).stdout, content);

    // A background process outlives many others, and ends when told to.
    let mut sleeper = guest.spawn("echo begun; sleep 1000");
    sleeper.wait_for_text("begun", LIMIT);
    let many: Vec<_> = (0..16).map(|number| guest.spawn(&format!("echo {number}"))).collect();
    for (number, process) in many.into_iter().enumerate() {
        assert_eq!(process.wait(LIMIT).text(), number.to_string());
    }
    assert_eq!(sleeper.ended(), None);
    assert_eq!(sleeper.stop().status, Done::Signaled(libc::SIGTERM));
    // A daemon that keeps the output open does not hold up the command that started it.
    assert_eq!(guest.run("echo parent; sleep 1000 &").text(), "parent");

    let before = guest.read("/proc/sys/kernel/random/boot_id");
    guest.reboot();
    let rebooted = guest.read("/proc/sys/kernel/random/boot_id");
    assert_ne!(before, rebooted);
    guest.reset();
    assert_ne!(rebooted, guest.read("/proc/sys/kernel/random/boot_id"));
    guest.power_off();
    let guest = guest.boot_again();
    assert_eq!(guest.run_ok("echo again"), "again");
}

#[test]
fn two_guests_talk_to_each_other() {
    let workdir = Workdir::new();
    let (here, there) = (workdir.join("a.net"), workdir.join("b.net"));
    let [a, b] = Guest::boot_all(
        &workdir,
        [
            Guest::builder("a").nic(Nic::new(Backend::Datagrams(here.clone(), there.clone()))),
            Guest::builder("b").nic(Nic::new(Backend::Datagrams(there, here))),
        ],
    );
    a.interface(0).up(&["192.0.2.1/24", "2001:db8::1/64"]);
    b.interface(0).up(&["192.0.2.2/24", "2001:db8::2/64"]);
    traffic::ping(&a, "192.0.2.2", 3, 1472);
    traffic::ping(&b, "2001:db8::1", 3, 1452);
    traffic::transfer(&a, &b, "192.0.2.2", 1_000_000);
    traffic::transfer(&b, &a, "2001:db8::1", 1_000_000);
    let _server = traffic::netserver(&b);
    for test in ["TCP_RR", "UDP_RR", "TCP_STREAM"] {
        traffic::netperf(&a, "192.0.2.2", test, 1, "");
    }
    let received = b.interface(0).received_during(|| traffic::ping(&a, "192.0.2.2", 10, 56));
    assert!(received.iter().sum::<u64>() >= 10, "{received:?}");
    assert!(b.interface(0).receive_interrupts().iter().sum::<u64>() > 0);
}

#[test]
fn a_namespace_is_a_machine_that_vanishes() {
    let namespace = Namespace::new("host");
    namespace.run_ok("ip tuntap add probe0 mode tap && ip address add 192.0.2.1/24 dev probe0");
    assert_eq!(
        namespace.run_ok("ls /sys/class/net").split_whitespace().collect::<Vec<_>>(),
        ["lo", "probe0"]
    );
    traffic::ping(&namespace, "127.0.0.1", 2, 56);
    let mut sleeper = namespace.spawn("exec sleep 1000.5");
    sleeper.pid();
    let running = || {
        let processes = std::fs::read_dir("/proc").expect("a host with /proc").flatten();
        processes
            .filter(|entry| {
                std::fs::read(entry.path().join("cmdline")).is_ok_and(|text| text.ends_with(b"1000.5\0"))
            })
            .count()
    };
    wait_for("the process to be seen from outside", LIMIT, || {
        if running() == 1 { Ok(()) } else { Err("none".into()) }
    });
    drop(sleeper);
    drop(namespace);
    assert_eq!(running(), 0);
}

const LIMIT: Duration = Duration::from_secs(60);

fn exec(program: &str) -> guest_tests::protocol::Exec {
    guest_tests::protocol::Exec { argv: vec![program.to_owned()], ..Default::default() }
}
