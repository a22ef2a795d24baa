//! The real `flownic` binary, driven over its sockets by the guest driver of `flownic::testkit`. No VM, no root.
//!
//! Run with `cargo nextest run --features testkit` (or `cargo test --features testkit`).
#![cfg(feature = "testkit")]

mod control;
mod control_live;
mod datapath;
mod eventfds;
mod garbage;
mod guest_program;
mod hostile;
mod inband;
mod inband_state;
mod isolation;
mod knobs;
mod leaks;
mod lifecycle;
mod link;
mod memory;
mod moderation;
mod negotiation;
mod packed;
mod properties;
mod signals;
mod steering;
mod uplink;
mod workers;

use std::time::{Duration, Instant};

use flownic::testkit::{Flownic, Guest, Received, frame, soon};
use serde_json::{Value, json};

/// Both ring formats, with both ways to ask for kicks and signals, as features of a guest.
const NOTIFICATIONS: [&str; 4] = ["", "-event_idx", "+ring_packed", "+ring_packed,-event_idx"];
/// Both ring formats.
const FORMATS: [&str; 2] = ["", "+ring_packed"];

/// The binary under test.
const FLOWNIC: &str = env!("CARGO_BIN_EXE_flownic");

/// One NIC `n0` on `@/n0`.
fn nic(rest: &str) -> Flownic {
    Flownic::nic(FLOWNIC, rest)
}

/// All counters of a NIC: objects `device`, and lists `rx` and `tx` by queue.
fn stats(flownic: &Flownic, nic: &str) -> Value {
    flownic.ask(json!({ "command": "stats", "nic": nic }))[0].clone()
}

/// A counter: of a queue, `("rx", 2, "packets")`, or of the NIC itself, `"drop_no_queue"`.
trait Counter: Copy + std::fmt::Debug {
    fn of(self, stats: &Value) -> &Value;
}

impl Counter for (&str, usize, &str) {
    fn of(self, stats: &Value) -> &Value {
        &stats[self.0][self.1][self.2]
    }
}

impl Counter for &str {
    fn of(self, stats: &Value) -> &Value {
        &stats["device"][self]
    }
}

/// A counter of `n0` at this moment.
fn counter(flownic: &Flownic, which: impl Counter) -> u64 {
    let all = stats(flownic, "n0");
    which.of(&all).as_u64().unwrap_or_else(|| panic!("no counter {which:?} in {all}"))
}

/// Checks a counter of `n0`. Counters are folded after the frames of a burst are visible, so it may take a moment.
fn expect_counter(flownic: &Flownic, which: impl Counter, value: u64, what: &str) {
    let until = Instant::now() + Duration::from_secs(5);
    while counter(flownic, which) != value {
        let late = Instant::now() > until;
        assert!(
            !late,
            "{what}: {which:?} is {}, not {value}: {}",
            counter(flownic, which),
            stats(flownic, "n0")
        );
    }
}

/// Sends a datagram and waits until it is back.
fn ping(guest: &mut Guest, pair: usize) -> Received {
    let sent = frame::udp("192.0.2.1:4000", "192.0.2.2:4001", 64);
    guest.send(pair, &sent);
    let got =
        guest.recv_any(soon()).unwrap_or_else(|| panic!("nothing came back from transmit queue {pair}"));
    assert_eq!(got.frame[12..], sent[12..], "what came back behind the MAC addresses");
    got
}
