//! Device statistics (5.1.6.5.9), as far as there are numbers: the basic ones of both directions, and those of commands.

use super::GuestState;
use super::control::Outcome;
use crate::nic::Nic;
use crate::stats::{RxCounters, TxCounters};
use crate::virtio::statistics::{GET, QUERY, StatsReply, StatsRequest, StatsType};
use crate::virtio::wire::{Reader, Writer};

pub(super) fn execute(nic: &Nic, guest: &GuestState, command: u8, data: &[u8]) -> Outcome {
    match command {
        QUERY => {
            let types: u64 = StatsType::ALL.iter().map(|t| t.bit()).sum();
            Some(types.to_le_bytes().into())
        }
        GET => {
            let mut w = Writer::new();
            for request in StatsRequest::all_from_bytes(data)? {
                get(nic, guest, request, &mut w)?;
            }
            Some(w.finish())
        }
        _ => None,
    }
}

/// One entry; a type that there is not for this queue makes all of the command an error.
fn get(nic: &Nic, guest: &GuestState, request: StatsRequest, w: &mut Writer) -> Option<()> {
    let StatsRequest { vq_index, types } = request;
    let pairs = nic.rx_counters.len();
    let pair = usize::from(vq_index / 2);
    let (kind, values) = match (pair < pairs, vq_index % 2) {
        (true, 0) => (StatsType::RxBasic, receive(&nic.rx_counters[pair])),
        (true, _) => (StatsType::TxBasic, transmit(&nic.tx_counters[pair])),
        // The control queue comes after all others.
        (false, 0) if pair == pairs => (StatsType::Control, vec![guest.commands, guest.carried_out]),
        _ => return None,
    };
    if types & !kind.bit() != 0 {
        return None;
    }
    if types != 0 {
        StatsReply { kind: kind.code(), vq_index, values }.write(w);
    }
    Some(())
}

/// What became of the signals of some virtqueues, one after the other; none of it if one of them is not there.
pub(super) fn signals(nic: &Nic, data: &[u8]) -> Outcome {
    let mut r = Reader::new(data);
    let (first, count) = (usize::from(r.le16()), usize::from(r.le16()));
    if r.is_short() || first + count > 2 * nic.rx_counters.len() {
        return None;
    }
    let mut w = Writer::new();
    for vq in first..first + count {
        let (rx, tx) = (&nic.rx_counters[vq / 2], &nic.tx_counters[vq / 2]);
        let counters = if vq.is_multiple_of(2) {
            [&rx.signals_suppressed, &rx.signals_held, &rx.signals_by_time, &rx.signals_by_count]
        } else {
            [&tx.signals_suppressed, &tx.signals_held, &tx.signals_by_time, &tx.signals_by_count]
        };
        for counter in counters {
            w.bytes(&counter.get().to_le_bytes());
        }
    }
    Some(w.finish())
}

/// Notifications are none: the device does not wait for those of receive queues.
fn receive(c: &RxCounters) -> Vec<u64> {
    let drops = [&c.drop_no_buffer, &c.drop_buffer_too_small, &c.drop_queue_stopped, &c.drop_bad_offload];
    vec![
        0,
        c.packets.get(),
        c.bytes.get(),
        c.signals.get(),
        drops.iter().fold(0, |sum, c| sum.wrapping_add(c.get())),
        c.drop_no_buffer.get(),
    ]
}

fn transmit(c: &TxCounters) -> Vec<u64> {
    let drops = [&c.drop_malformed, &c.drop_link_down, &c.drop_port];
    vec![
        c.kicks.get(),
        c.packets.get(),
        c.bytes.get(),
        c.signals.get(),
        drops.iter().fold(0, |sum, c| sum.wrapping_add(c.get())),
        c.drop_malformed.get(),
    ]
}
