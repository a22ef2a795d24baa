//! Cards that are full, busy, or do not do what they say.

use guest_tests::Kernel;

use super::{NOISE, Rfs, elsewhere, with_rfs};

/// Report 16: more filters at a time than the card takes.
fn busy(rfs: &Rfs) {
    rfs.knob("delay", "20ms");
    rfs.knob("inflight", "2");
    let server = rfs.serve(0, 8, "3");
    rfs.ask(0, 8, 4);
    // The stack does not ask again for a flow that was refused, so the driver keeps at it.
    rfs.wait_on(3, 0, 8);
    assert_eq!(rfs.consistent("with a busy device"), 8);
    let busy = rfs.counter("busy");
    println!("8 filters, 2 at a time: {busy} refused because others were on their way");
    assert!(busy > 0, "the device was never busy");
    assert_eq!(rfs.counter("inserted"), 8);
    server.stop();
    // Moving takes its time as well, and with a gap.
    rfs.knob("replace", "delete-add");
    let server = rfs.serve(0, 8, "1");
    rfs.wait_on(1, 0, 8);
    assert_eq!(rfs.counter("inserted"), 8, "they were moved");
    rfs.knob("replace", "atomic");
    rfs.knob("delay", "0");
    rfs.knob("inflight", "any");
    rfs.inject("busy", "on");
    let other = rfs.serve(20, 1, "2");
    rfs.ask(20, 1, 50);
    assert_eq!(rfs.consistent("with a device that is always busy"), 8);
    rfs.inject("busy", "off");
    rfs.wait_on(2, 20, 1);
    other.stop();
    server.stop();
}

/// Report 15: more flows than filters.
fn full(rfs: &Rfs) {
    // All 12 places that a table of 16 has for them, in tables where flows are forgotten after 640 packets.
    const FILTERS: u64 = 12;
    rfs.flow_entries(64);
    let server = rfs.serve(100, 32, "3");
    let said = rfs.guest.run_ok("dmesg | wc -l");
    let refused = rfs.counter("full");
    rfs.ask(100, 32, 20);
    assert!(rfs.counter("full") > refused, "flows were refused");
    // Flows that share an entry of the stack's table may be taken for ended. Who was refused does not ask again, so such places
    // stay free.
    let filters = rfs.consistent("with a full table");
    assert!((1..=FILTERS).contains(&filters), "{filters} filters of {FILTERS}");
    assert_eq!(rfs.guest.run_ok("dmesg | wc -l"), said, "refusals are not worth a message each");
    server.stop();
    // Others go on by RSS; what they are for CPU 3 makes its clock go on, and dead flows leave room.
    let server = rfs.serve(150, 1, "3");
    guest_tests::wait_for("dead flows to make room", super::LIMIT, || {
        rfs.ask(150, 1, 100);
        let left = rfs.counter("filters");
        if left <= FILTERS / 2 { Ok(()) } else { Err(format!("{left} filters")) }
    });
    server.stop();
    let server = rfs.serve(160, 1, "3");
    guest_tests::wait_for("a flow that comes later to have a filter", super::LIMIT, || {
        // Should it have been refused, the stack asks again with new tables only.
        rfs.flow_entries(64);
        rfs.ask(160, 1, 20);
        let seen = rfs.nic.received_during(|| _ = rfs.ask(160, 1, 8));
        if elsewhere(&seen, 3) <= NOISE { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    server.stop();

    rfs.inject("table-full", "on");
    let server = rfs.serve(170, 1, "2");
    rfs.ask(170, 1, 50);
    let seen = rfs.nic.received_during(|| _ = rfs.ask(170, 1, 100));
    assert!(elsewhere(&seen, 0) <= NOISE, "without a filter it comes by queue 0: {seen:?}");
    rfs.inject("table-full", "off");
    rfs.wait_on(2, 170, 1);
    server.stop();
    rfs.consistent("after a full table");
}

/// Report 21: the card says yes and changes nothing. What it says is all that a driver can know, so the flow stays where it
/// was; but it goes on, and nobody tries without end.
fn liars(rfs: &Rfs) {
    rfs.flow_entries(super::FLOW_ENTRIES);
    let server = rfs.serve(200, 1, "3");
    rfs.wait_on(3, 200, 1);
    server.stop();
    rfs.knob("replace", "none");
    let server = rfs.serve(200, 1, "1");
    rfs.ask(200, 1, 20);
    stays(rfs, 3, 200);
    rfs.knob("replace", "atomic");
    server.stop();
    let server = rfs.serve(200, 1, "2");
    rfs.wait_on(2, 200, 1);
    server.stop();

    rfs.inject("lost", "on");
    let server = rfs.serve(210, 1, "3");
    rfs.ask(210, 1, 20);
    stays(rfs, 0, 210);
    rfs.inject("lost", "off");
    server.stop();
}

/// The flow comes by that queue, without a command for it.
#[track_caller]
fn stays(rfs: &Rfs, queue: usize, flow: u32) {
    let changes = || rfs.counter("inserted") + rfs.counter("moved") + rfs.counter("expired");
    let before = changes();
    let seen = rfs.nic.received_during(|| _ = rfs.ask(flow, 1, 100));
    assert!(elsewhere(&seen, queue) <= NOISE, "{seen:?}");
    let commands = changes() - before;
    assert!(commands <= 2, "{commands} commands for a flow that stays");
}

#[test]
fn tables_that_are_full_or_busy_or_lie_do_no_harm() {
    with_rfs(Kernel::Backports, ",filters=16", |rfs| {
        busy(rfs);
        full(rfs);
        liars(rfs);
    });
}

/// Reports 22 and 29: a card that takes no filters does not say that it does.
#[test]
fn a_card_without_filters_does_not_offer_them() {
    with_rfs(Kernel::Backports, ",in-band=user", |rfs| {
        let features = rfs.ethtool.ok("-k", "");
        assert!(features.contains("ntuple-filters: off [fixed]"), "{features}");
        assert!(rfs.ethtool.run("-K", "ntuple on").is_err());
        assert!(rfs.ethtool.run("-N", "flow-type udp4 dst-port 1 action 1").is_err());
        let server = rfs.serve(0, 4, "3");
        rfs.ask(0, 4, 20);
        rfs.expect_on(0, 0, 4);
        server.stop();
    });
}
