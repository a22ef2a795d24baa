//! What a process uses after many guests have come and gone.

use flownic::testkit::{Flownic, Guest};

use crate::{FLOWNIC, nic, ping, signals::assert_sleeps};

const MIB: u64 = 1 << 20;

fn assert_no_leak(flownic: &Flownic, rounds: usize, mut round: impl FnMut()) {
    // The first rounds fill caches and arenas.
    (0..rounds / 5).for_each(|_| round());
    let before = flownic.usage();
    (0..rounds).for_each(|_| round());
    let until = flownic::testkit::soon();
    // The last connection's threads may still be on their way out.
    let after = loop {
        let now = flownic.usage();
        if (now.descriptors <= before.descriptors && now.threads <= before.threads)
            || std::time::Instant::now() > until
        {
            break now;
        }
        std::thread::yield_now();
    };
    assert!(
        after.descriptors <= before.descriptors,
        "descriptors: {} -> {}",
        before.descriptors,
        after.descriptors
    );
    assert!(after.threads <= before.threads, "threads: {} -> {}", before.threads, after.threads);
    let grown = after.resident.saturating_sub(before.resident);
    assert!(grown < 4 * MIB, "resident memory grew by {grown} bytes in {rounds} rounds");
}

#[test]
fn a_hundred_guests_leave_nothing_behind() {
    let flownic = nic("queues=2,port=echo");
    let connect = || flownic.guest("n0").queue_pairs(2).connect().unwrap();
    drop(connect());
    assert_no_leak(&flownic, 100, || {
        let mut guest = connect();
        ping(&mut guest, 1);
    });
    assert_sleeps(&flownic);
}

#[test]
fn guests_that_break_off_at_any_point_leave_nothing_behind() {
    let flownic = nic("queues=2,port=echo");
    let steps: &[fn(&mut Guest)] = &[
        |_| {},
        |g| drop(g.channel().get(flownic::testkit::proto::GET_FEATURES)),
        |g| g.negotiate().unwrap(),
        |g| {
            g.negotiate().unwrap();
            g.send_features().unwrap();
            g.send_memory().unwrap();
        },
        |g| {
            g.connect().unwrap();
            g.start_log().unwrap();
            g.add_memory_region(0x40_0000_0000, 1 << 20).unwrap();
        },
        |g| {
            g.connect().unwrap();
            g.stop_vring(1).unwrap();
        },
        |g| g.channel().send_bytes(&[1, 2, 3], &[]).unwrap(),
    ];
    let mut n = 0;
    assert_no_leak(&flownic, 70, || {
        let mut guest = flownic.guest("n0").queue_pairs(2).unconnected();
        guest.open().unwrap();
        steps[n % steps.len()](&mut guest);
        n += 1;
    });
    ping(&mut flownic.guest("n0").connect().unwrap(), 0);
    assert_sleeps(&flownic);
}

#[test]
fn stops_restarts_and_hot_plugs_leave_nothing_behind() {
    let flownic = Flownic::serve(FLOWNIC, &["--nic", "n0,socket=@/n0,queues=2,port=echo"]);
    let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
    assert_no_leak(&flownic, 100, || {
        ping(&mut guest, 0);
        let bases = guest.stop().unwrap();
        guest.restart(&bases).unwrap();
        guest.add_memory_region(0x40_0000_0000, 1 << 20).unwrap();
        guest.remove_memory_region(0x40_0000_0000).unwrap();
    });
}

#[test]
fn an_idle_nic_of_eight_pairs_takes_a_few_megabytes() {
    // Nothing is allocated for rules before there are any. Of what is resident here most is the program itself, which was not
    // made to be small.
    for filters in [8192, 65536] {
        let flownic = nic(&format!("queues=8,port=null,filters={filters}"));
        crate::stats(&flownic, "n0");
        let resident = flownic.usage().resident;
        assert!(resident < 24 * MIB, "{resident} bytes are resident with room for {filters} rules");
    }
}
