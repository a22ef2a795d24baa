//! Several workers, several NICs, and guests that do everything at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flownic::testkit::{Flownic, Guest, Layout, frame, soon};
use flownic::virtio::*;
use serde_json::json;

use crate::{FLOWNIC, expect_counter, ping, stats};

/// Arguments for two workers. They share the machine's CPUs with the test, whatever those are.
fn two_workers(poll: &str, nics: &[&str]) -> Flownic {
    let cpus = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let allowed = cpus.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).expect("a list of CPUs");
    let first = allowed.trim().split([',', '-']).next().expect("at least one CPU").to_string();
    let list = match allowed.trim().split([',', '-']).nth(1) {
        Some(second) => format!("{first},{second}"),
        None => format!("{first},{first}"),
    };
    let mut args = vec!["--cpus", &list, "--poll", poll];
    nics.iter().for_each(|n| args.extend(["--nic", n]));
    Flownic::serve(FLOWNIC, &args)
}

#[test]
fn two_workers_fill_the_same_receive_rings() {
    for poll in ["off", "adaptive", "always"] {
        let flownic = two_workers(poll, &["n0,socket=@/n0,queues=4,port=loopback"]);
        let mut guest = flownic.guest("n0").queue_pairs(4).ring_size(1024).connect().unwrap();
        let mut sent: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for burst in 0..10 {
            for i in 0..200 {
                let frame = frame::udp(&format!("10.{burst}.0.{i}:7"), "10.0.0.2:9", 20 + i);
                guest.queue_tx(i % 4, NetHeader::default(), &frame, &Layout::joined());
                *sent.entry(frame).or_default() += 1;
            }
            for pair in 0..4 {
                guest.flush_tx(pair);
            }
            for _ in 0..200 {
                let got =
                    guest.recv_any(soon()).unwrap_or_else(|| panic!("--poll {poll}: frames are missing"));
                assert_eq!(
                    sent.remove(&got.frame),
                    Some(1),
                    "--poll {poll}: a frame that was not sent, or twice"
                );
            }
        }
        assert!(sent.is_empty());
        (0..4).for_each(|pair| assert!(guest.drain_tx(pair, soon())));
    }
}

#[test]
fn no_kick_and_no_signal_is_lost_between_workers() {
    for poll in ["off", "adaptive"] {
        let flownic = two_workers(poll, &["n0,socket=@/n0,queues=4,port=echo"]);
        for features in ["", "-event_idx"] {
            let mut guest = flownic.guest("n0").queue_pairs(4).features(features).connect().unwrap();
            (0..2000).for_each(|i| drop(ping(&mut guest, i % 4)));
        }
    }
}

#[test]
fn any_worker_brings_frames_to_any_nic() {
    // However queues come to be shared out: each with a worker of its own, and more on one side.
    for (pairs, poll) in [([1, 1, 1], "off"), ([1, 2, 1], "adaptive"), ([3, 1, 2], "off")] {
        let nics = [0, 1, 2]
            .map(|i| format!("n{i},socket=@/n{i},queues={},port=link:n{}", pairs[i], usize::from(i == 0)));
        let flownic = two_workers(poll, &nics.each_ref().map(String::as_str));
        let mut guests = [0, 1, 2].map(|i| {
            let rule = json!({ "flow_type": "udp4", "dst_port": 9, "action": 0 });
            flownic.ask(json!({ "command": "flows_add", "nic": format!("n{i}"), "rule": rule }));
            flownic.guest(&format!("n{i}")).queue_pairs(pairs[i]).connect().unwrap()
        });
        for from in 0..3 {
            for pair in 0..pairs[from] {
                let sent = frame::udp(&format!("10.0.0.{from}:{}", 1000 + pair), "10.0.0.9:9", 60);
                guests[from].send(pair, &sent);
                for to in (0..3).filter(|to| *to != from) {
                    let got =
                        guests[to].recv_any(soon()).unwrap_or_else(|| panic!("{pairs:?}: {from} to {to}"));
                    assert_eq!((got.frame, got.pair), (sent.clone(), 0));
                }
            }
        }
        for (i, own) in pairs.iter().enumerate() {
            let hits = stats(&flownic, &format!("n{i}"))["rx"][0]["by_filter"].as_u64().unwrap();
            assert_eq!(hits as usize, pairs.iter().sum::<usize>() - own, "{pairs:?}: n{i}");
        }
    }
}

/// Runs a guest's traffic in a thread until told to stop; returns how many frames came back.
fn flood(mut guest: Guest, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<(Guest, usize)> {
    std::thread::spawn(move || {
        let mut back = 0;
        while !stop.load(Ordering::Relaxed) {
            for i in 0..32 {
                let frame = frame::udp(&format!("10.0.0.1:{}", 1000 + i), "10.0.0.2:9", 200);
                guest.queue_tx(i % guest.pairs(), NetHeader::default(), &frame, &Layout::header_apart());
            }
            for pair in 0..guest.pairs() {
                guest.flush_tx(pair);
                assert!(guest.drain_tx(pair, soon()), "transmit queue {pair} hangs");
            }
            while guest.try_recv_any().is_some() {
                back += 1;
            }
        }
        (guest, back)
    })
}

#[test]
fn one_guest_does_everything_while_the_other_floods_it() {
    let nics = ["n0,socket=@/n0,queues=2,port=link:n1", "n1,socket=@/n1,queues=2,port=link:n0"];
    let mut flownic = two_workers("off", &nics);
    let stop = Arc::new(AtomicBool::new(false));
    let flooder = flood(flownic.guest("n0").queue_pairs(2).connect().unwrap(), stop.clone());
    let mut guest = flownic.guest("n1").queue_pairs(2).connect().unwrap();
    for round in 0..20 {
        (0..50).for_each(|_| assert!(guest.recv_any(soon()).is_some(), "round {round}: start"));
        (0..2).for_each(|pair| guest.enable(pair, false).unwrap());
        (0..2).for_each(|pair| guest.enable(pair, true).unwrap());
        (0..50).for_each(|_| assert!(guest.recv_any(soon()).is_some(), "round {round}: enable"));
        let bases = guest.stop().unwrap();
        guest.restart(&bases).unwrap();
        (0..50).for_each(|_| assert!(guest.recv_any(soon()).is_some(), "round {round}: restart"));
        guest.start_log().unwrap();
        (0..50).for_each(|_| assert!(guest.recv_any(soon()).is_some(), "round {round}: log"));
        guest.stop_log().unwrap();
        guest.add_memory_region(0x40_0000_0000, 1 << 20).unwrap();
        guest.remove_memory_region(0x40_0000_0000).unwrap();
        guest.reboot().unwrap();
        (0..50).for_each(|_| assert!(guest.recv_any(soon()).is_some(), "round {round}: reboot"));
        guest.disconnect();
        guest.connect().unwrap();
        (0..50).for_each(|_| assert!(guest.recv_any(soon()).is_some(), "round {round}: reconnect"));
    }
    stop.store(true, Ordering::Relaxed);
    let (_, back) = flooder.join().unwrap();
    assert_eq!(back, 0, "n1 sent nothing");
    let all = stats(&flownic, "n1");
    (0..2).for_each(|q| assert_eq!(all["rx"][q]["ring_faults"], 0, "{all}"));
    assert!(flownic.is_alive());
}

#[test]
fn nics_of_one_process_do_not_feel_each_other() {
    let nics = ["n0,socket=@/n0,queues=1,port=echo", "n1,socket=@/n1,queues=2,port=echo"];
    let mut flownic = two_workers("off", &nics);
    let stop = Arc::new(AtomicBool::new(false));
    let flooder = flood(flownic.guest("n1").queue_pairs(2).connect().unwrap(), stop.clone());
    let mut guest = flownic.guest("n0").connect().unwrap();
    for i in 0..30 {
        (0..10).for_each(|_| drop(ping(&mut guest, 0)));
        match i % 3 {
            0 => {}
            1 => drop(guest.stop().unwrap()),
            _ => {
                guest.tx(0).set_avail_idx(0x5555);
                guest.tx(0).kick();
                guest.channel().sync().unwrap();
            }
        }
        guest.disconnect();
        guest = flownic.guest("n0").connect().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let (_, back) = flooder.join().unwrap();
    assert!(back > 0);
    assert!(flownic.is_alive());
    expect_counter(&flownic, "connections", 31, "each of them");
    assert_eq!(stats(&flownic, "n1")["device"]["connections"], 1);
}
