//! A guest that busy-polls: its answers come in by polling, without interrupts, at whatever rate.

use guest_tests::guest::Driver;
use guest_tests::polling::{Counters, Polling};
use guest_tests::{Kernel, Namespace, Workdir};

/// How long sockets poll, in microseconds: longer than any answer takes, on a busy machine too.
const BUDGET: u32 = 1_000_000;
/// Microseconds that the device holds signals for a guest that polls: longer than a busy machine takes an emulated processor
/// away between sending and polling. A packet that has been polled by then is signalled no more.
const HELD: u32 = 500_000;
/// How long messages go to and fro where not packets are counted.
const SECONDS: u32 = 4;
/// Messages a second, and packets that are counted: so many that it does not matter which counter the guest reads first.
const RATES: [(u32, u64); 3] = [(10_000, 6000), (1000, 2500), (100, 500)];

/// How many there are for each packet that came in.
fn each(count: u64, counters: Counters) -> f64 {
    count as f64 / counters.received as f64
}

#[test]
fn answers_come_in_by_polling() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let flownic = Polling::flownic(&host, &workdir);
    let guest = Polling::guest(&workdir, Kernel::Stable);
    let mut polling = Polling::new(&host, &flownic, &guest);
    let refused = polling.set_napi("threaded busy-poll").expect_err("the kernel is too old");
    assert!(refused.contains("no netlink family netdev; it came with Linux 6.3"), "{refused}");
    for driver in [Driver::VirtioNet, Driver::FlownicNet] {
        polling.bind(driver);
        for (rate, packets) in RATES {
            let what = format!("{}, {rate} messages/s", driver.name());
            let measure = |usecs: u32, held: u32| {
                polling.set_busy_poll(usecs);
                let held = held.to_string();
                flownic.ctl(&["coalesce", "set", "n0", "rx-usecs", &held, "tx-usecs", &held]);
                let counters = polling.count(rate, packets);
                println!("{what}, busy_read {usecs}: {counters:?}");
                counters
            };
            let asleep = measure(0, 0);
            assert_eq!(asleep.polled, 0, "{what}: nobody polls");
            // One at a time, so each answer has one of its own. The reference driver looks at both of a pair's queues, whichever
            // has called.
            let interrupts = each(asleep.rx_interrupts + asleep.tx_interrupts, asleep);
            assert!(interrupts > 0.8, "{what}: {interrupts:.3} interrupts a message: {asleep:?}");

            let awake = measure(BUDGET, HELD);
            let polled = each(awake.polled, awake);
            assert!(polled > 0.95, "{what}: {polled:.3} packets polled a message: {awake:?}");
            let interrupts = each(awake.rx_interrupts, awake);
            assert!(interrupts < 0.01, "{what}: {interrupts:.4} interrupts a message: {awake:?}");
        }
    }
}

#[test]
fn interrupts_stay_away_as_a_program_or_the_kernel_wants() {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let flownic = Polling::flownic(&host, &workdir);
    let guest = Polling::guest(&workdir, Kernel::Backports);
    let mut polling = Polling::new(&host, &flownic, &guest);
    let held = HELD.to_string();
    // Settings of queues, options of the program, and whether it is the program that polls.
    let epoll = format!("--epoll --busy-poll {BUDGET}");
    let deferred = "defer-hard-irqs 10 gro-flush-timeout 200000";
    let ways = [
        (String::new(), epoll.clone(), true),
        (format!("{deferred} irq-suspend-timeout 1000000000"), format!("{epoll} --prefer --budget 64"), true),
        ("defer-hard-irqs 0 gro-flush-timeout 0 threaded busy-poll".to_owned(), String::new(), false),
    ];
    for driver in [Driver::VirtioNet, Driver::FlownicNet] {
        polling.bind(driver);
        // A driver sets what it wants when it starts.
        flownic.ctl(&["coalesce", "set", "n0", "rx-usecs", &held, "tx-usecs", &held]);
        for (settings, options, polls) in &ways {
            let what = format!("{}, {settings} {options}", driver.name());
            let state = polling.set_napi(settings).unwrap_or_else(|refused| panic!("{what}: {refused}"));
            let (_, counters) = polling.ping(&format!("--mps 1000 {options}"), SECONDS).expect("answers");
            println!("{what}: {counters:?}\n{state}");
            let polled = each(counters.polled, counters);
            assert!(if *polls { polled > 0.95 } else { polled == 0.0 }, "{what}: {polled:.3}, {counters:?}");
            let interrupts = each(counters.rx_interrupts, counters);
            assert!(interrupts < 0.01, "{what}: {interrupts:.4} interrupts a message: {counters:?}");
        }
        polling.set_napi("irq-suspend-timeout 0 threaded off").expect("it was on");
    }
}
