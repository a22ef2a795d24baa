//! Whatever shape chains and buffers have, frames arrive as they were sent.

use std::cell::RefCell;

use flownic::testkit::{Guest, Layout, Seg, frame, soon};
use flownic::virtio::*;
use proptest::prelude::*;

use crate::{FORMATS, nic};

/// Pieces of a receive buffer, in bytes; none is allowed to hold nothing.
fn buffers() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(prop_oneof![0..20u32, 0..3000u32], 1..5), 1..12)
        .prop_map(|b| b.into_iter().filter(|pieces| pieces.iter().sum::<u32>() >= 12).collect::<Vec<_>>())
        .prop_filter("room for some frame", |b| !b.is_empty())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_layout_of_any_frame(
        len in prop_oneof![0usize..100, 0usize..4000, 0usize..65000],
        mut cuts in prop::collection::vec(prop_oneof![0usize..40, 0usize..65000], 0..14),
        indirect: bool,
        packed: bool,
        skew in 0u64..64,
    ) {
        thread_local! {
            static GUESTS: RefCell<Vec<(flownic::testkit::Flownic, Guest)>> = const { RefCell::new(Vec::new()) };
        }
        GUESTS.with_borrow_mut(|guests| {
            if guests.is_empty() {
                *guests = Vec::from_iter(FORMATS.map(|features| {
                    let flownic = nic("queues=1,port=loopback");
                    let guest = flownic.guest("n0").features(features).connect().unwrap();
                    (flownic, guest)
                }));
            }
            let guest = &mut guests[usize::from(packed)].1;
            cuts.sort_unstable();
            let sent = frame::frame().payload(&frame::pattern(len)).build();
            let layout = Layout { cuts: cuts.clone(), indirect, skew };
            guest.send_with(0, NetHeader::default(), &sent, &layout);
            let got = guest.recv(0, soon());
            prop_assert!(got.is_some_and(|g| g.frame == sent));
            Ok(())
        })?;
    }

    #[test]
    fn any_receive_buffers(sizes in buffers(), mergeable: bool, packed: bool, len in 0usize..20000) {
        thread_local! {
            static NIC: flownic::testkit::Flownic = nic("queues=1,port=loopback");
        }
        NIC.with(|flownic| {
            let features = if mergeable { "" } else { "-mrg_rxbuf" };
            let builder = flownic.guest("n0").features(features).features(FORMATS[usize::from(packed)]);
            let mut guest = builder.ring_size(64).no_rx_buffers().connect().unwrap();
            for pieces in &sizes {
                let seg = |&len: &u32| Seg { addr: guest.ram.alloc(len.into()), len, writable: true };
                let segs: Vec<Seg> = pieces.iter().map(seg).collect();
                prop_assert!(guest.rx(0).add(&segs, false).is_some());
            }
            guest.rx(0).kick_if_needed();
            let sent = frame::frame().payload(&frame::pattern(len)).build();
            let room = |pieces: &Vec<u32>| pieces.iter().sum::<u32>() as usize;
            // 5.1.6.4: with MRG_RXBUF a frame takes as many buffers as it needs, else it must fit the first.
            let fits = if mergeable { sizes.iter().map(room).sum() } else { room(&sizes[0]) } >= sent.len() + 12;
            guest.send(0, &sent);
            prop_assert!(guest.drain_tx(0, soon()));
            prop_assert_eq!(guest.rx(0).has_used(), fits);
            if fits {
                let got = guest.try_recv(0);
                prop_assert!(got.is_some_and(|g| g.frame == sent));
            }
            Ok(())
        })?;
    }
}
