//! Guests and front ends that try to take others down with them.

use std::os::fd::AsRawFd;

use flownic::testkit::proto::*;
use flownic::testkit::ring::{DESC_NEXT, DESC_WRITE};
use flownic::testkit::{Flownic, frame, soon};
use flownic::virtio::*;
use vmm_sys_util::eventfd::EventFd;

use crate::hostile::desc;
use crate::{FLOWNIC, nic, ping, stats};

/// Two NICs that share a worker.
fn neighbours() -> Flownic {
    Flownic::serve(FLOWNIC, &["--nic", "a,socket=@/a,port=loopback", "--nic", "b,socket=@/b,port=loopback"])
}

#[test]
fn a_receive_buffer_may_overlap_the_frame_that_goes_into_it() {
    let mut flownic = nic("queues=2,port=loopback");
    let mut guest = flownic.guest("n0").queue_pairs(2).ring_size(16).no_rx_buffers().connect().unwrap();
    let bytes = [&NetHeader::default().to_bytes()[..], &frame::udp("10.0.0.1:7", "10.0.0.2:9", 900)].concat();
    let len = bytes.len() as u32;
    let at = guest.ram.alloc(8192);
    // One piece, and a chain of two.
    for (shift, first) in [(1, len + 100), (8, len + 100), (0, len), (3, 300)] {
        guest.ram.write(at, &bytes);
        for pair in 0..2 {
            let rx = guest.rx(pair);
            let chained = if first < len { DESC_NEXT } else { 0 };
            rx.write_desc(0, desc(at + shift, first, DESC_WRITE | chained, 1));
            rx.write_desc(1, desc(at + shift + u64::from(first), len, DESC_WRITE, 0));
            rx.offer_raw(0);
        }
        guest.tx(0).write_desc(0, desc(at, len, 0, 0));
        guest.tx(0).offer_raw(0);
        assert!(guest.tx(0).wait_used(soon()), "{shift}, {first}: {}", flownic.log());
        guest.tx(0).take_used_raw();
    }
    assert!(flownic.is_alive());
}

#[test]
fn a_guest_of_dust_and_large_frames_does_not_starve_its_neighbour() {
    let flownic = neighbours();
    let without = "-guest_csum,-guest_tso4,-guest_tso6";
    let mut hostile = flownic.guest("a").ring_size(1024).features(without).no_rx_buffers().connect().unwrap();
    let mut other = flownic.guest("b").connect().unwrap();
    // Receive buffers of a thousand bytes, each in a descriptor of its own; all chains are the same one.
    let at = hostile.ram.alloc(4096);
    let rx = hostile.rx(0);
    (0..1000)
        .for_each(|i| rx.write_desc(i, desc(at, 1, DESC_WRITE | if i < 999 { DESC_NEXT } else { 0 }, i + 1)));
    // Frames that fall into two thousand pieces each.
    let builder = frame::frame().ip([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).tcp(7, 9);
    let bytes = builder.payload(&frame::pattern(60_000)).partial_checksum().build();
    let header = NetHeader {
        flags: HDR_F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 30,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };
    let frame = hostile.ram.alloc(1 << 16);
    hostile.ram.write(frame, &[&header.to_bytes()[..], &bytes].concat());
    hostile.tx(0).write_desc(0, desc(frame, 12 + bytes.len() as u32, 0, 0));
    for _ in 0..3 {
        // As much as there is room for, in both rings.
        for index in 0..2 {
            let ring = &mut hostile.rings[index];
            while ring.next_avail().wrapping_sub(ring.used_idx()) < ring.size {
                ring.offer_raw(0);
            }
        }
        ping(&mut other, 0);
    }
    assert_ne!(counter_of(&flownic, "a", "segmented"), 0);
}

fn counter_of(flownic: &Flownic, nic: &str, name: &str) -> u64 {
    stats(flownic, nic)["rx"][0][name].as_u64().unwrap()
}

#[test]
fn a_full_call_descriptor_that_blocks_stops_nobody() {
    let flownic = neighbours();
    let mut hostile = flownic.guest("a").connect().unwrap();
    let mut other = flownic.guest("b").connect().unwrap();
    let call = EventFd::new(0).unwrap();
    call.write(u64::MAX - 1).unwrap();
    for index in [0u64, 1] {
        hostile.channel().set(SET_VRING_CALL, &index.to_ne_bytes(), &[call.as_raw_fd()]).unwrap();
    }
    hostile.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
    ping(&mut other, 0);
    assert!(hostile.recv(0, soon()).is_some());
}

#[test]
fn descriptors_for_a_message_that_never_ends_do_not_pile_up() {
    let flownic = neighbours();
    let mut hostile = flownic.guest("a").unconnected();
    hostile.open().unwrap();
    hostile.channel().sync().unwrap();
    let before = flownic.usage().descriptors;
    let header = [SET_MEM_TABLE, 1, 4096].map(u32::to_ne_bytes).concat();
    hostile.channel().send_bytes(&header, &[]).unwrap();
    let fds = [hostile.error_fd.as_raw_fd(); 32];
    for _ in 0..100 {
        if hostile.channel().send_bytes(&[0], &fds).is_err() {
            break;
        }
    }
    assert!(hostile.channel().closed_by(soon()), "{} descriptors", flownic.usage().descriptors - before);
    ping(&mut flownic.guest("b").connect().unwrap(), 0);
}
