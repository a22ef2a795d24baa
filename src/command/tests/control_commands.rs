//! Control commands.

use std::sync::atomic::Ordering;

use super::*;
use crate::packet::frames::{tcp4, udp6};
use crate::steer::{CONTEXTS_MAX, DropReason, Mode, RssConfig};
use crate::virtio::MacAddr;
use crate::virtio::ctrl::{
    Coalesce, HashParams, MacTable, QueueCoalesce, RssContextParams, coalesce, mac, mq, rss_context, rx, vlan,
};
use crate::virtio::statistics::{self, StatsReply, StatsRequest, StatsType};
use crate::virtio::vendor::{self, Adaptive, Identity, capability};

const DONE: Option<Vec<u8>> = Some(Vec::new());

fn refused(d: &Driver, frame: &Frame) -> Option<DropReason> {
    match d.verdict(frame) {
        Verdict::Drop { reason, .. } => Some(reason),
        Verdict::Queue { .. } => None,
    }
}

#[test]
fn classes_and_commands_that_there_are_not_are_errors() {
    let d = Driver::new();
    for command in [&[][..], &[0], &[3, 0], &[5, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[7, 0], &[0xff, 0]] {
        assert_eq!(d.answer(Kind::Control, command), [1], "{command:?}");
    }
    for class in Class::ALL {
        assert_eq!(d.control(*class, 99, &[0; 64]), None, "{class:?}");
    }
}

#[test]
fn the_receive_mode_is_switched_bit_by_bit() {
    let d = Driver::new();
    let own = tcp4().dst;
    let mode = || d.nic().steering.read().rx_filter().mode();
    assert!(mode().promiscuous, "at first everything is received");
    assert_eq!(d.control(Class::Mac, mac::ADDR_SET, &own.0), DONE);
    assert_eq!(d.control(Class::Rx, rx::PROMISC, &[0]), DONE);
    let other = Frame { dst: MacAddr([2, 9, 9, 9, 9, 9]), ..tcp4() };
    assert_eq!((refused(&d, &tcp4()), refused(&d, &other)), (None, Some(DropReason::MacFilter)));
    for (command, on) in [
        (rx::ALLUNI, false),
        (rx::ALLMULTI, false),
        (rx::NOMULTI, false),
        (rx::NOUNI, false),
        (rx::NOBCAST, false),
    ] {
        let before = mode();
        assert_eq!(d.control(Class::Rx, command, &[1]), DONE);
        assert_ne!(mode(), before);
        assert_eq!(d.control(Class::Rx, command, &[u8::from(on)]), DONE);
        assert_eq!(mode(), before);
    }
    for bad in [&[][..], &[2], &[0xff]] {
        assert_eq!(d.control(Class::Rx, rx::PROMISC, bad), None);
    }
    assert_eq!(d.control(Class::Rx, rx::ALLUNI, &[1, 7]), DONE, "what is too much is ignored");
    assert_eq!(refused(&d, &other), None);
}

#[test]
fn the_address_table_is_replaced_as_a_whole() {
    let d = Driver::new();
    let group = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    let unicast = MacAddr([2, 0, 0, 0, 0, 7]);
    d.control(Class::Rx, rx::PROMISC, &[0]).unwrap();
    let taken = |dst| refused(&d, &Frame { dst, ..tcp4() }).is_none();
    assert!(!taken(group) && !taken(unicast));
    let both = MacTable { unicast: vec![unicast], multicast: vec![group] };
    assert_eq!(d.control(Class::Mac, mac::TABLE_SET, &both.to_bytes()), DONE);
    assert!(taken(group) && taken(unicast));
    let one = MacTable { unicast: vec![], multicast: vec![group] };
    assert_eq!(d.control(Class::Mac, mac::TABLE_SET, &one.to_bytes()), DONE);
    assert!(taken(group) && !taken(unicast));
    assert_eq!(d.control(Class::Mac, mac::TABLE_SET, &both.to_bytes()[..19]), None);
    assert_eq!(d.control(Class::Mac, mac::TABLE_SET, &[0xff; 1000]), None);
    assert!(taken(group) && !taken(unicast), "what is refused changes nothing");
    // As many as fit into a command.
    let most = MacTable { unicast: vec![unicast; 2700], multicast: vec![] };
    assert_eq!(d.control(Class::Mac, mac::TABLE_SET, &most.to_bytes()), DONE);
}

#[test]
fn the_device_s_address_is_no_group_s() {
    let d = Driver::new();
    let address = || d.nic().steering.read().rx_filter().mac();
    assert_eq!(d.control(Class::Mac, mac::ADDR_SET, &[2, 0, 0, 0, 0, 1]), DONE);
    assert_eq!(d.control(Class::Mac, mac::ADDR_SET, &[1, 0, 0, 0, 0, 1]), None);
    assert_eq!(d.control(Class::Mac, mac::ADDR_SET, &[2, 0, 0, 0, 0]), None);
    assert_eq!(address(), MacAddr([2, 0, 0, 0, 0, 1]));
}

#[test]
fn the_vlan_filter_begins_with_the_first_vlan_that_is_added() {
    let d = Driver::new();
    let tagged = |id| Frame { tags: vec![(crate::packet::ETHERTYPE_VLAN, id)], ..tcp4() };
    let taken = |id: u16| refused(&d, &tagged(id)).is_none();
    assert_eq!(d.control(Class::Vlan, vlan::DEL, &5u16.to_le_bytes()), DONE);
    assert!(taken(5) && taken(6), "there is no filter yet");
    assert_eq!(d.control(Class::Vlan, vlan::ADD, &5u16.to_le_bytes()), DONE);
    assert_eq!(d.control(Class::Vlan, vlan::ADD, &4095u16.to_le_bytes()), DONE);
    assert!(taken(5) && taken(4095) && !taken(6) && refused(&d, &tcp4()).is_none());
    assert_eq!(d.control(Class::Vlan, vlan::DEL, &5u16.to_le_bytes()), DONE);
    assert_eq!(d.control(Class::Vlan, vlan::DEL, &4095u16.to_le_bytes()), DONE);
    assert!(!taken(5) && !taken(4095), "a filter without a VLAN takes none");
    for bad in [&[][..], &[5], &4096u16.to_le_bytes()] {
        assert_eq!(d.control(Class::Vlan, vlan::ADD, bad), None);
    }
}

#[test]
fn an_rss_configuration_makes_the_table_decide_alone() {
    let d = Driver::new();
    let flow = tcp4().headers().flow().unwrap().reversed();
    d.nic().learned.learn(&flow, 3, crate::steer::Tick::ZERO);
    d.nic().steering.write().set_rss_on(false);
    assert_eq!(d.queue(&tcp4()), Some((3, Reason::Learned)));
    assert_eq!(d.control(Class::Mq, mq::RSS_CONFIG, &table(&[1]).to_bytes()), DONE);
    assert_eq!(d.queue(&tcp4()), Some((1, Reason::Rss)));
    // A queue of the table that goes away is spread over the others, and comes back.
    assert_eq!(d.control(Class::Mq, mq::RSS_CONFIG, &table(&[3, 3]).to_bytes()), DONE);
    d.nic().steering.write().set_enabled(0b0011);
    let (queue, reason) = d.queue(&tcp4()).unwrap();
    assert!(queue < 2 && reason == Reason::Rss);
    d.nic().steering.write().set_enabled(0b1111);
    assert_eq!(d.queue(&tcp4()), Some((3, Reason::Rss)));
    d.nic().forget_guest();
    assert_eq!(d.queue(&tcp4()), Some((3, Reason::Learned)), "as the host had it");
}

#[test]
fn impossible_rss_configurations_are_errors_and_change_nothing() {
    let d = Driver::new();
    d.control(Class::Mq, mq::RSS_CONFIG, &table(&[2]).to_bytes()).unwrap();
    let good = table(&[0, 1]);
    for bad in [
        table(&[0, 1, 2]),
        table(&[4]),
        table(&[0x8000]),
        table(&vec![0; 8192]),
        RssParams { unclassified: 4, ..good.clone() },
        RssParams { hash_types: 0x40, ..good.clone() },
        RssParams { max_tx_vq: 5, ..good.clone() },
        RssParams { key: vec![1; 39], ..good.clone() },
        RssParams { key: vec![1; 53], ..good.clone() },
        RssParams { key: vec![], ..good.clone() },
    ] {
        assert_eq!(d.control(Class::Mq, mq::RSS_CONFIG, &bad.to_bytes()), None, "{bad:?}");
        let context = RssContextParams { id: 1, rss: bad };
        assert_eq!(d.control(Class::RssContext, rss_context::ADD, &context.to_bytes()), None);
    }
    let bytes = good.to_bytes();
    for cut in 0..bytes.len() {
        assert_eq!(d.control(Class::Mq, mq::RSS_CONFIG, &bytes[..cut]), None);
    }
    assert_eq!(d.queue(&tcp4()), Some((2, Reason::Rss)));
    // The largest that there is, and one that hashes nothing and so needs no key.
    let largest = RssParams { key: vec![1; 52], ..table(&vec![1; 4096]) };
    assert_eq!(d.control(Class::Mq, mq::RSS_CONFIG, &largest.to_bytes()), DONE);
    let none = RssParams { hash_types: 0, key: vec![], unclassified: 3, ..good };
    assert_eq!(d.control(Class::Mq, mq::RSS_CONFIG, &none.to_bytes()), DONE);
    assert_eq!(d.queue(&tcp4()), Some((3, Reason::Default)));
}

#[test]
fn the_number_of_queue_pairs_is_not_the_device_s_to_set() {
    let d = Driver::new();
    assert_eq!(d.control(Class::Mq, mq::VQ_PAIRS_SET, &[1, 0]), None);
}

#[test]
fn a_hash_configuration_changes_what_is_hashed_and_not_who_decides() {
    let d = Driver::new();
    let config = || d.nic().steering.read().rss().config().clone();
    d.nic().steering.write().set_rss(RssConfig { table: Some(vec![1]), ..RssConfig::default() }).unwrap();
    let wanted = HashParams { hash_types: 0x2, key: vec![9; 40] };
    assert_eq!(d.control(Class::Mq, mq::HASH_CONFIG, &wanted.to_bytes()), DONE);
    assert_eq!((config().hash_types, config().key.bytes()), (2, &[9; 40][..]));
    assert_eq!(config().table, Some(vec![1]));
    assert_eq!(d.nic().steering.read().mode(), Mode::Automatic);
    let mut reserved = wanted.to_bytes();
    reserved[4..12].fill(0xff);
    assert_eq!(d.control(Class::Mq, mq::HASH_CONFIG, &reserved), DONE);
    for bad in [
        HashParams { hash_types: 0x80, key: vec![9; 40] },
        HashParams { hash_types: 0x2, key: vec![] },
        HashParams { hash_types: 0x2, key: vec![9; 39] },
    ] {
        assert_eq!(d.control(Class::Mq, mq::HASH_CONFIG, &bad.to_bytes()), None);
    }
    assert_eq!(d.control(Class::Mq, mq::HASH_CONFIG, &wanted.to_bytes()[..52]), None);
    d.nic().forget_guest();
    assert_eq!((config().hash_types, config().table), (0x3f, Some(vec![1])));
}

#[test]
fn rss_contexts_are_made_changed_and_deleted_by_id() {
    let d = Driver::new();
    let call = |command, id, entry| {
        let data = RssContextParams { id, rss: table(&[entry]) }.to_bytes();
        d.control(Class::RssContext, command, &data).is_some()
    };
    assert_eq!(d.control(Class::RssContext, rss_context::CAP_GET, &[]), Some(vec![32, 0]));
    assert!(!call(rss_context::ADD, 0, 1) && !call(rss_context::ADD, CONTEXTS_MAX + 1, 1));
    assert!(!call(rss_context::MOD, 1, 1), "there is none yet");
    for id in 1..=CONTEXTS_MAX {
        assert!(call(rss_context::ADD, id, 1));
    }
    assert!(!call(rss_context::ADD, 1, 2) && call(rss_context::MOD, 1, 3) && !call(rss_context::MOD, 1, 4));
    let context = |id| d.nic().steering.read().context(id).map(|c| c.table.clone().unwrap());
    assert_eq!((context(1), context(2)), (Some(vec![3]), Some(vec![1])));
    let delete = |id: &[u8]| d.control(Class::RssContext, rss_context::DEL, id);
    assert_eq!((delete(&[1, 0]), delete(&[1, 0]), delete(&[2])), (DONE, None, None));
    assert!(call(rss_context::ADD, 1, 2));
    // They change nothing for packets that no rule sends through them.
    assert_eq!(d.nic().steering.read().mode(), Mode::Automatic);
    d.nic().forget_guest();
    assert_eq!(d.nic().steering.read().contexts().count(), 0);
}

/// {packets, usecs} of a virtqueue, or `None` for ERR.
fn moderation(d: &Driver, vq_index: u16) -> Option<(u32, u32)> {
    let mut data = vq_index.to_le_bytes().to_vec();
    data.extend([0xab, 0xcd]);
    let answer = d.control(Class::Coalesce, coalesce::VQ_GET, &data)?;
    assert_eq!((answer.len(), &answer[..4]), (QueueCoalesce::SIZE, &data[..4]));
    let Coalesce { max_packets, max_usecs } = QueueCoalesce::from_bytes(&answer).unwrap().coalesce;
    Some((max_packets, max_usecs))
}

fn set(d: &Driver, command: u8, packets: u32, usecs: u32) {
    let values = Coalesce { max_packets: packets, max_usecs: usecs };
    assert_eq!(d.control(Class::Coalesce, command, &values.to_bytes()), DONE);
}

fn set_queue(d: &Driver, vq_index: u16, packets: u32, usecs: u32) -> Option<Vec<u8>> {
    let coalesce = Coalesce { max_packets: packets, max_usecs: usecs };
    d.control(Class::Coalesce, coalesce::VQ_SET, &QueueCoalesce { vq_index, coalesce }.to_bytes())
}

#[test]
fn the_last_moderation_that_was_set_for_a_queue_holds_whichever_command_set_it() {
    // The specification's example, 5.1.6.5.10, with queue pairs 0 and 1.
    let d = Driver::new();
    assert_eq!([0, 1, 2, 3].map(|q| moderation(&d, q)), [Some((0, 0)); 4]);
    set(&d, coalesce::RX_SET, 1, 11);
    assert_eq!([0, 1, 2, 3].map(|q| moderation(&d, q).unwrap().0), [1, 0, 1, 0]);
    assert_eq!(set_queue(&d, 0, 2, 12), DONE);
    assert_eq!([0, 2].map(|q| moderation(&d, q)), [Some((2, 12)), Some((1, 11))]);
    assert_eq!(set_queue(&d, 1, 4, 14), DONE);
    assert_eq!([1, 3].map(|q| moderation(&d, q)), [Some((4, 14)), Some((0, 0))]);
    set(&d, coalesce::TX_SET, 5, 15);
    assert_eq!([0, 1, 2, 3].map(|q| moderation(&d, q).unwrap().0), [2, 5, 1, 5]);
}

#[test]
fn moderation_of_a_queue_that_is_not_enabled_is_an_error() {
    let d = Driver::new();
    d.nic().rx[1].change(Option::take);
    d.nic().tx[2].change(Option::take);
    // 8 is where a control queue would be.
    for vq_index in [2, 5, 8, 9, 0xffff] {
        assert_eq!((set_queue(&d, vq_index, 1, 1), moderation(&d, vq_index)), (None, None), "{vq_index}");
    }
    assert_eq!((set_queue(&d, 3, 1, 1), moderation(&d, 4)), (DONE, Some((0, 0))));
    for (command, length) in
        [(coalesce::RX_SET, 7), (coalesce::TX_SET, 7), (coalesce::VQ_SET, 11), (coalesce::VQ_GET, 3)]
    {
        assert_eq!(d.control(Class::Coalesce, command, &vec![0; length]), None);
        assert!(d.control(Class::Coalesce, command, &vec![0; length + 9]).is_some());
    }
}

#[test]
fn a_queue_that_starts_anew_has_the_moderation_of_its_direction() {
    let d = Driver::new();
    set_queue(&d, 0, 9, 9).unwrap();
    set_queue(&d, 1, 9, 9).unwrap();
    d.nic().restart_moderation(0);
    assert_eq!((moderation(&d, 0), moderation(&d, 1)), (Some((0, 0)), Some((9, 9))));
    set(&d, coalesce::TX_SET, 2, 3);
    set_queue(&d, 1, 9, 9).unwrap();
    d.nic().restart_moderation(1);
    d.nic().restart_moderation(1000);
    assert_eq!(moderation(&d, 1), Some((2, 3)));
}

#[test]
fn moderation_of_the_host_comes_back_when_the_guest_is_forgotten() {
    let d = Driver::new();
    let host = Coalesce { max_packets: 64, max_usecs: 20 };
    d.nic().guest_state().moderation.set_host(Some(host), None);
    assert_eq!((moderation(&d, 0), moderation(&d, 1)), (Some((64, 20)), Some((0, 0))));
    set(&d, coalesce::RX_SET, 1, 1);
    set(&d, coalesce::TX_SET, 1, 1);
    set_queue(&d, 4, 7, 7).unwrap();
    d.nic().forget_guest();
    assert_eq!([0, 1, 4].map(|q| moderation(&d, q)), [Some((64, 20)), Some((0, 0)), Some((64, 20))]);
}

#[test]
fn a_guest_lets_queues_find_their_own_time_until_it_sets_values_for_them() {
    let d = Driver::new();
    let set_adaptive = |vq_index: u16, on: bool| {
        d.control(Class::Flownic, vendor::ADAPTIVE_SET, &Adaptive { vq_index, on }.to_bytes())
    };
    let adaptive = |vq_index: u16| {
        let answer = d.control(Class::Flownic, vendor::ADAPTIVE_GET, &vq_index.to_le_bytes())?;
        let limits = d.nic().limits.get(vq_index.into());
        assert_eq!((answer.len(), &answer[1..4], answer[0] == 1), (8, &[0; 3][..], limits.adaptive));
        Some(limits.adaptive)
    };
    let all = || [0, 2, 4].map(|vq| adaptive(vq).unwrap());
    assert_eq!(all(), [false; 3]);
    assert_eq!(set_adaptive(2, true), DONE);
    assert_eq!(all(), [false, true, false]);
    assert_eq!(set_queue(&d, 2, 3, 4), DONE);
    assert_eq!((all(), moderation(&d, 2)), ([false; 3], Some((3, 4))));
    assert_eq!(set_adaptive(Adaptive::ALL, true), DONE);
    assert_eq!((all(), moderation(&d, 2)), ([true; 3], Some((3, 4))), "VQ_GET answers what was set");
    assert_eq!(set_adaptive(4, false), DONE);
    d.nic().restart_moderation(0);
    assert_eq!(all(), [true, true, false]);
    d.nic().restart_moderation(4);
    assert_eq!(all(), [true; 3], "a queue that is set up anew does as all of them");
    set(&d, coalesce::TX_SET, 1, 1);
    assert_eq!(all(), [true; 3]);
    set(&d, coalesce::RX_SET, 0, 7);
    assert_eq!((all(), moderation(&d, 2)), ([false; 3], Some((0, 7))));
    set_adaptive(Adaptive::ALL, true).unwrap();
    d.nic().forget_guest();
    assert_eq!(all(), [false; 3]);
    // Of queues that do not run, that send, and that there are not.
    d.nic().rx[1].change(Option::take);
    for vq_index in [1, 2, 8, 0xfffe] {
        assert_eq!((set_adaptive(vq_index, true), adaptive(vq_index)), (None, None), "{vq_index}");
    }
    for bad in [&[0, 0, 1][..], &[0, 0, 2, 0], &[0xff, 0xff, 0xff, 0]] {
        assert_eq!(d.control(Class::Flownic, vendor::ADAPTIVE_SET, bad), None);
    }
    assert_eq!(d.control(Class::Flownic, vendor::ADAPTIVE_GET, &[0]), None);
    assert_eq!([0, 4].map(|vq| adaptive(vq).unwrap()), [false; 2], "what is refused changes nothing");
}

#[test]
fn what_became_of_signals_is_told_queue_by_queue() {
    let d = Driver::new();
    let (rx, tx) = (&d.nic().rx_counters[1], &d.nic().tx_counters[1]);
    let counters = [
        (1, &rx.signals_suppressed),
        (2, &rx.signals_held),
        (3, &rx.signals_by_time),
        (4, &rx.signals_by_count),
        (5, &tx.signals_suppressed),
        (6, &tx.signals_held),
        (7, &tx.signals_by_time),
        (8, &tx.signals_by_count),
    ];
    counters.iter().for_each(|(n, counter)| counter.add(*n));
    let ask = |first: u16, count: u16| {
        let data = [first.to_le_bytes(), count.to_le_bytes()].concat();
        let answer = d.control(Class::Flownic, vendor::SIGNALS_GET, &data)?;
        Some(answer.chunks(8).map(|n| u64::from_le_bytes(n.try_into().unwrap())).collect::<Vec<_>>())
    };
    let all = 2 * d.nic().rx_counters.len() as u16;
    assert_eq!(ask(2, 2), Some((1..=8).collect()));
    assert_eq!(ask(3, 1), Some((5..=8).collect()));
    assert_eq!(ask(0, all).unwrap().len(), 4 * usize::from(all));
    assert_eq!(ask(0, all).unwrap()[8..12], [1, 2, 3, 4]);
    assert_eq!((ask(all, 0), ask(0, 0)), (Some(vec![]), Some(vec![])));
    for (first, count) in [(0, all + 1), (all, 1), (all - 1, 2), (0xffff, 0xffff), (0xffff, 1)] {
        assert_eq!(ask(first, count), None);
    }
    assert_eq!(d.control(Class::Flownic, vendor::SIGNALS_GET, &[0, 0, 1]), None);
}

fn stats(d: &Driver, requests: &[(u16, u64)]) -> Option<Vec<StatsReply>> {
    let data: Vec<u8> =
        requests.iter().flat_map(|&(vq_index, types)| StatsRequest { vq_index, types }.to_bytes()).collect();
    Some(StatsReply::all_from_bytes(&d.control(Class::Stats, statistics::GET, &data)?))
}

#[test]
fn statistics_are_those_of_the_queue_s_kind() {
    let d = Driver::new();
    let types =
        u64::from_le_bytes(d.control(Class::Stats, statistics::QUERY, &[]).unwrap().try_into().unwrap());
    assert_eq!(types, 1 << 32 | 1 << 16 | 1);
    let (rx, tx) = (&d.nic().rx_counters[1], &d.nic().tx_counters[1]);
    rx.packets.add(1);
    rx.bytes.add(2);
    rx.signals.add(3);
    rx.drop_no_buffer.add(4);
    rx.drop_bad_offload.add(5);
    tx.kicks.add(6);
    tx.packets.add(7);
    tx.bytes.add(8);
    tx.signals.add(9);
    tx.drop_malformed.add(10);
    tx.drop_port.add(11);
    let (rx_basic, tx_basic) = (StatsType::RxBasic.bit(), StatsType::TxBasic.bit());
    let control = StatsType::Control.bit();
    let replies = stats(&d, &[(2, rx_basic), (3, tx_basic), (0, rx_basic), (8, control), (2, 0)]).unwrap();
    let expected = [
        (0, 2, vec![0, 1, 2, 3, 9, 4]),
        (16, 3, vec![6, 7, 8, 9, 21, 10]),
        (0, 0, vec![0; 6]),
        // QUERY and this one.
        (32, 8, vec![2, 2]),
    ];
    let expected = expected.map(|(kind, vq_index, values)| StatsReply { kind, vq_index, values });
    assert_eq!(replies, expected);
    d.control(Class::Rx, 99, &[]);
    assert_eq!(stats(&d, &[(8, control)]).unwrap()[0].values, [4, 3]);
}

#[test]
fn one_wrong_entry_fails_all_statistics() {
    let d = Driver::new();
    let (rx_basic, tx_basic) = (StatsType::RxBasic.bit(), StatsType::TxBasic.bit());
    let good = (0, rx_basic);
    for bad in
        [(0, tx_basic), (1, rx_basic), (0, rx_basic | 2), (9, 0), (10, rx_basic), (8, rx_basic), (0xffff, 0)]
    {
        assert_eq!(stats(&d, &[good, bad]), None, "{bad:?}");
        assert_eq!(stats(&d, &[bad, good]), None, "{bad:?}");
    }
    assert_eq!(d.control(Class::Stats, statistics::GET, &[0; 15]), None);
    assert_eq!(stats(&d, &[]), Some(vec![]));
    assert_eq!(stats(&d, &[good; 1000]).unwrap().len(), 1000);
}

#[test]
fn the_device_says_what_it_is() {
    let d = Driver::new();
    let identity = Identity::from_bytes(&d.control(Class::Flownic, vendor::IDENTIFY, &[]).unwrap()).unwrap();
    assert_eq!((identity.abi, identity.queue_pairs, identity.max_rss_contexts), (1, 4, 32));
    assert_eq!((identity.rss_max_table, identity.rss_max_key, identity.hash_types), (4096, 52, 0x3f));
    assert_eq!(identity.capabilities, 0x7f);
    assert_eq!(identity.capabilities & capability::MODIFY_RULES, 8);
    assert_eq!(identity.version, env!("CARGO_PKG_VERSION"));
    let bits: Vec<_> = (0..64).filter(|b| identity.features >> b & 1 == 1).collect();
    assert_eq!(bits, [17, 18, 19, 20, 23, 50, 52, 53, 57, 60]);
}

#[test]
fn the_hash_in_the_header_is_asked_for_and_given_up() {
    let d = Driver::new();
    let on = || d.nic().hash_in_header.load(Ordering::Relaxed);
    assert!(!on());
    assert_eq!(d.control(Class::Flownic, vendor::HASH_SET, &[1, 0xff, 0, 0]), DONE);
    assert!(on());
    for bad in [&[][..], &[0, 0, 0], &[2, 0, 0, 0]] {
        assert_eq!(d.control(Class::Flownic, vendor::HASH_SET, bad), None);
    }
    assert!(on());
    assert_eq!(d.control(Class::Flownic, vendor::HASH_SET, &[0; 4]), DONE);
    assert!(!on());
}

#[test]
fn hits_are_those_of_a_rule_that_is_there() {
    let d = Driver::ready().with_ports();
    d.create(rule(3), &to_queue(80, 1).to_bytes()).unwrap();
    let hits = |id: u32| d.control(Class::Flownic, vendor::RULE_HITS, &id.to_le_bytes());
    assert_eq!(hits(3), Some(vec![0; 8]));
    assert_eq!((hits(2), d.control(Class::Flownic, vendor::RULE_HITS, &[3, 0, 0])), (None, None));
}

#[test]
fn a_reset_forgets_all_that_the_guest_has_set_up_and_nothing_of_the_host() {
    let d = Driver::ready().with_ports();
    let ntuple = crate::steer::NtupleSpec::new(crate::steer::FlowType::Udp6, 2);
    d.nic().steering.write().filters_mut().add_ntuple(ntuple).unwrap();
    let before = d.queue(&tcp_to(80));
    d.create(rule(0), &to_queue(80, 1).to_bytes()).unwrap();
    let context = RssContextParams { id: 1, rss: table(&[1]) };
    d.control(Class::RssContext, rss_context::ADD, &context.to_bytes()).unwrap();
    d.control(Class::Mq, mq::RSS_CONFIG, &table(&[1]).to_bytes()).unwrap();
    d.control(Class::Rx, rx::PROMISC, &[0]).unwrap();
    d.control(Class::Vlan, vlan::ADD, &[1, 0]).unwrap();
    d.control(Class::Flownic, vendor::HASH_SET, &[1, 0, 0, 0]).unwrap();
    set(&d, coalesce::RX_SET, 1, 1);
    assert_eq!(d.control(Class::Flownic, vendor::RESET, &[]), DONE);

    assert_eq!(d.queue(&tcp_to(80)), before);
    assert_eq!(d.queue(&udp6()), Some((2, Reason::Filter)));
    assert_eq!(d.nic().guest_state().objects(), 0);
    let steering = d.nic().steering.read();
    assert_eq!(
        (steering.contexts().count(), steering.filters().len(), steering.mode()),
        (0, 1, Mode::Automatic)
    );
    assert!(steering.rx_filter().mode().promiscuous && !steering.rss_is_guests());
    drop(steering);
    assert!(!d.nic().hash_in_header.load(Ordering::Relaxed));
    assert_eq!(moderation(&d, 0), Some((0, 0)));
    assert_eq!(d.admin(&admin::cap_id_list_query()), Err(UNKNOWN));
    // And it can all be set up again.
    d.agree();
    d.create(group(0), &[0, 0]).unwrap();
}
