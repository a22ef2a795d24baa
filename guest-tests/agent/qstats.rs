//! Counters per queue over netlink (family `netdev`, since Linux 6.10), where `ethtool -S` has them no longer.

use std::io;

use guest_tests::netlink::{Family, attribute, find};

use crate::sys;

const GET_QUEUE_STATS: u8 = 12;
const INTERFACE: u16 = 1;
const QUEUE_TYPE: u16 = 2;
const QUEUE_ID: u16 = 3;
const SCOPE: u16 = 4;
const RX_PACKETS: u16 = 8;
const SCOPE_QUEUE: u32 = 1;
const QUEUE_TYPE_RX: u64 = 0;

/// Prints `QUEUE PACKETS` for each receive queue of `interface`.
pub(crate) fn run(interface: &str) -> Result<(), String> {
    let queues = receive_packets(interface).map_err(|error| format!("No queue statistics: {error}"))?;
    queues.iter().for_each(|(queue, packets)| println!("{queue} {packets}"));
    Ok(())
}

fn receive_packets(interface: &str) -> io::Result<Vec<(u64, u64)>> {
    let index = sys::interface_index(interface)?;
    let wanted =
        [attribute(INTERFACE, &index.to_ne_bytes()), attribute(SCOPE, &SCOPE_QUEUE.to_ne_bytes())].concat();
    let answers = Family::open("netdev")?.dump(GET_QUEUE_STATS, &wanted)?;
    let receive = answers.iter().filter(|answer| find(answer, QUEUE_TYPE) == Some(QUEUE_TYPE_RX));
    Ok(receive.filter_map(|answer| Some((find(answer, QUEUE_ID)?, find(answer, RX_PACKETS)?))).collect())
}
