//! A guest that busy-polls: its answers come in by polling, without interrupts, at whatever rate.

use guest_tests::guest::Driver;
use guest_tests::polling::{Counters, Polling};
use guest_tests::{Kernel, Namespace, Workdir};

/// How long sockets poll, in microseconds: longer than any answer takes, on a busy machine too.
const BUDGET: u32 = 1_000_000;
/// Microseconds that the device holds a signal for a guest that polls with `virtio_net`. After each look in vain that driver
/// asks for an interrupt and takes it back; a signal that is held for longer than that is not sent.
const HELD: &str = "100";
/// How long messages go to and fro: some hundred at the lowest rate.
const SECONDS: u32 = 4;
/// Messages a second.
const RATES: [u32; 3] = [10_000, 1000, 100];

/// How many there are for each packet that came in.
fn each(count: u64, counters: Counters) -> f64 {
    count as f64 / counters.received as f64
}

fn answers_come_in_by_polling(kernel: Kernel) {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let flownic = Polling::flownic(&host, &workdir);
    let guest = Polling::guest(&workdir, kernel);
    let mut polling = Polling::new(&host, &flownic, &guest);
    for driver in [Driver::VirtioNet, Driver::FlownicNet] {
        polling.bind(driver);
        let held = if driver == Driver::VirtioNet { HELD } else { "0" };
        for rate in RATES {
            let what = format!("{}, {rate} messages/s", driver.name());
            let measure = |usecs: u32, held: &str| {
                polling.set_busy_poll(usecs);
                flownic.ctl(&["coalesce", "set", "n0", "rx-usecs", held]);
                let (trips, counters) = polling.sockperf(rate, SECONDS);
                println!("{what}, busy_read {usecs}: {trips:?} {counters:?}");
                assert!(counters.received > 20, "{what}: too few packets for shares: {counters:?}");
                counters
            };
            let asleep = measure(0, "0");
            assert_eq!(asleep.polled, 0, "{what}: nobody polls");
            // One at a time, so each answer has one of its own.
            let interrupts = each(asleep.rx_interrupts, asleep);
            assert!(interrupts > 0.8, "{what}: {interrupts:.3} interrupts a message: {asleep:?}");

            let awake = measure(BUDGET, held);
            let polled = each(awake.polled, awake);
            assert!(polled > 0.95, "{what}: {polled:.3} packets polled a message: {awake:?}");
            let interrupts = each(awake.rx_interrupts, awake);
            assert!(interrupts < 0.01, "{what}: {interrupts:.4} interrupts a message: {awake:?}");
        }
    }
}

#[test]
fn answers_come_in_by_polling_on_the_stable_kernel() {
    answers_come_in_by_polling(Kernel::Stable);
}
