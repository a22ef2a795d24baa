//! Any bytes as a frame: the parser never panics, never contradicts itself, invents no port, and the classifier
//! has an answer.
//!
//! Input: two bytes say how much longer than the snapshot the frame is, one where to cut the snapshot, the rest is the snapshot.
#![no_main]

use std::net::IpAddr;
use std::sync::LazyLock;

use flownic::packet::{L3, parse};
use flownic::steer::{
    FlowType, LearnConfig, LearnTable, Masked, NtupleSpec, SteerConfig, Steering, Tick, Verdict,
};
use libfuzzer_sys::fuzz_target;

const ENABLED: u128 = 0b0110;

static NIC: LazyLock<(Steering, LearnTable)> = LazyLock::new(|| {
    let mut nic = Steering::new(&SteerConfig { queue_pairs: 4, ..SteerConfig::default() });
    nic.set_enabled(ENABLED);
    let rules = nic.filters_mut();
    for flow_type in FlowType::ALL {
        for queue in 0..4 {
            let mut spec = NtupleSpec::new(flow_type, queue);
            spec.vlan = Some(Masked { value: queue as u16, mask: 3 });
            if !matches!(flow_type, FlowType::Ether | FlowType::Ip4 | FlowType::Ip6) {
                spec.dst_port = Some(Masked { value: queue as u16, mask: 7 });
            }
            rules.add_ntuple(spec).unwrap();
        }
    }
    (nic, LearnTable::new(LearnConfig::default()))
});

fuzz_target!(|input: &[u8]| {
    let [a, b, cut, head @ ..] = input else { return };
    let frame_len = head.len() + usize::from(u16::from_be_bytes([*a, *b]));
    let h = parse(head, frame_len);

    if let Some((src, dst)) = h.ports() {
        let at = usize::from(h.l4_offset.expect("ports have a place"));
        assert_eq!(head[at..at + 2], src.to_be_bytes());
        assert_eq!(head[at + 2..at + 4], dst.to_be_bytes());
        assert!(!h.fragment && h.l3() != L3::None && matches!(h.protocol(), 6 | 17));
    }
    match (h.l3(), h.src_ip(), h.dst_ip()) {
        (L3::None, None, None) => assert!(h.ports().is_none() && h.flow().is_none()),
        (L3::V4, Some(IpAddr::V4(src)), Some(IpAddr::V4(dst))) => {
            let at = usize::from(h.l3_offset);
            assert_eq!(head[at + 12..at + 20], [src.octets(), dst.octets()].concat());
        }
        (L3::V6, Some(IpAddr::V6(src)), Some(IpAddr::V6(dst))) => {
            let at = usize::from(h.l3_offset);
            assert_eq!(head[at + 8..at + 40], [src.octets(), dst.octets()].concat());
        }
        mixed => panic!("{mixed:?}"),
    }

    // A shorter snapshot of the same frame says less, not otherwise.
    let shorter = parse(&head[..head.len().min((*cut).into())], frame_len);
    assert!(shorter.ports().is_none() || shorter.flow() == h.flow());
    assert!(shorter.l3() == L3::None || (shorter.src_ip(), shorter.dst_ip()) == (h.src_ip(), h.dst_ip()));
    assert!(shorter.vlan().is_none() || shorter.vlan() == h.vlan());
    assert!(shorter.malformed.is_none() || shorter.malformed == h.malformed);

    let (nic, learned) = &*NIC;
    if let Some(flow) = h.flow() {
        assert_eq!(flow.reversed().reversed(), flow);
        learned.learn(&flow, (*cut).into(), Tick::ZERO);
    }
    match nic.classify(&h, learned, Tick::ZERO) {
        Verdict::Queue { queue, .. } => assert_eq!(ENABLED >> queue & 1, 1),
        Verdict::Drop { .. } => panic!("no rule drops and there are queues"),
    }
});
