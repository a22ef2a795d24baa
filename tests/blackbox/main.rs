//! The real `flownic` binary, driven over its sockets by the guest driver of `flownic::testkit`. No VM, no root.
//!
//! Run with `cargo nextest run --features testkit` (or `cargo test --features testkit`).
#![cfg(feature = "testkit")]

mod control;
mod datapath;
mod hostile;
mod leaks;
mod lifecycle;
mod link;
mod memory;
mod negotiation;
mod signals;
mod steering;

use flownic::testkit::{Flownic, Guest, Received, frame, soon};
use serde_json::Value;

/// The binary under test.
const FLOWNIC: &str = env!("CARGO_BIN_EXE_flownic");

/// One NIC `n0` on `@/n0`.
fn nic(rest: &str) -> Flownic {
    Flownic::nic(FLOWNIC, rest)
}

/// All counters of a NIC: objects `device`, and lists `rx` and `tx` by queue.
fn stats(flownic: &Flownic, nic: &str) -> Value {
    let all = flownic.ctl(&["stats"]);
    let list =
        all.as_array().or_else(|| all.get("nics")?.as_array()).cloned().unwrap_or_else(|| vec![all.clone()]);
    let found = list.into_iter().find(|s| s["nic"] == nic);
    found.unwrap_or_else(|| panic!("no NIC {nic} in {all}"))
}

/// One counter of a receive or transmit queue, `("rx", 2, "packets")`.
fn counter(flownic: &Flownic, (side, queue, name): (&str, usize, &str)) -> u64 {
    let all = stats(flownic, "n0");
    all[side][queue][name].as_u64().unwrap_or_else(|| panic!("no counter {side}[{queue}].{name} in {all}"))
}

/// One counter of the NIC itself.
fn device_counter(flownic: &Flownic, name: &str) -> u64 {
    let all = stats(flownic, "n0");
    all["device"][name].as_u64().unwrap_or_else(|| panic!("no counter {name} in {all}"))
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
