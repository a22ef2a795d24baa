//! A guest that busy-polls: its answers come in by polling, without interrupts, at whatever rate.

use guest_tests::guest::Driver;
use guest_tests::polling::{Counters, Polling, RoundTrips};
use guest_tests::{Kernel, Namespace, Workdir};

/// How long sockets poll, in microseconds: longer than any answer takes, on a busy machine too.
const BUDGET: u32 = 1_000_000;
/// Microseconds that the device holds a signal for a guest that polls with `virtio_net`. After each look in vain that driver asks
/// for an interrupt and takes it back; a signal that is held for longer than that is not sent.
const HELD: &str = "100";
/// Messages a second.
const RATES: [u32; 3] = [10_000, 1000, 100];

fn of_messages(part: u64, trips: RoundTrips) -> f64 {
    part as f64 / trips.messages as f64
}

#[track_caller]
fn polled(what: &str, trips: RoundTrips, counters: Counters) {
    println!("{what}: {trips:?} {counters:?}");
    assert!(trips.messages > 20, "{what}: {trips:?}");
    let polled = of_messages(counters.polled, trips);
    assert!(polled > 0.95, "{what}: {polled:.3} packets polled for each of {trips:?}: {counters:?}");
    let interrupts = of_messages(counters.rx_interrupts, trips);
    assert!(interrupts < 0.01, "{what}: {interrupts:.3} interrupts for each of {trips:?}: {counters:?}");
}

/// What counters say about `rate` messages a second.
fn sockperf(polling: &Polling, rate: u32) -> (RoundTrips, Counters) {
    let before = polling.counters();
    let trips = polling.sockperf(rate, 1);
    (trips, polling.counters().since(before))
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
            polling.set_busy_poll(0);
            flownic.ctl(&["coalesce", "set", "n0", "rx-usecs", "0"]);
            let what = format!("{}, {rate} messages/s", driver.name());
            let (trips, counters) = sockperf(&polling, rate);
            println!("{what}, asleep: {trips:?} {counters:?}");
            assert_eq!(counters.polled, 0, "{what}: nobody polls");
            // One at a time, so each answer has one of its own.
            let interrupts = of_messages(counters.rx_interrupts, trips);
            assert!(
                interrupts > 0.8,
                "{what}: {interrupts:.3} interrupts for each of {trips:?}: {counters:?}"
            );
            polling.set_busy_poll(BUDGET);
            flownic.ctl(&["coalesce", "set", "n0", "rx-usecs", held]);
            let (trips, counters) = sockperf(&polling, rate);
            polled(&format!("{what}, polling"), trips, counters);
        }
    }
}

#[test]
fn answers_come_in_by_polling_on_the_stable_kernel() {
    answers_come_in_by_polling(Kernel::Stable);
}
