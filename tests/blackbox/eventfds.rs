//! Kick and call descriptors that change while rings run, as QEMU changes them when a guest masks its interrupts.

use std::os::fd::AsRawFd;
use std::time::Instant;

use flownic::testkit::proto::*;
use flownic::testkit::{frame, soon};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::{nic, ping};

#[test]
fn another_call_descriptor_takes_over_without_losing_a_signal() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = flownic.guest("n0").connect().unwrap();
    for i in 0..100 {
        // A frame may arrive before or after the change: a signal for it must reach one of the two.
        guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
        let call = EventFd::new(EFD_NONBLOCK).unwrap();
        guest.channel().set(SET_VRING_CALL, &0u64.to_ne_bytes(), &[call.as_raw_fd()]).unwrap();
        let old = std::mem::replace(&mut guest.rx(0).call_fd, call);
        if old.read().is_err() {
            assert!(guest.rx(0).wait_call(soon()), "round {i}: no signal on either descriptor");
        }
        assert!(guest.recv(0, soon()).is_some(), "round {i}");
        ping(&mut guest, 0);
    }
}

#[test]
fn a_guest_without_a_call_descriptor_is_served_all_the_same() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = flownic.guest("n0").connect().unwrap();
    ping(&mut guest, 0);
    for index in [0, 1] {
        guest.channel().set_u64(SET_VRING_CALL, index | NO_FD).unwrap();
        guest.rings[index as usize].want_signals(false);
    }
    (0..100).for_each(|_| drop(ping(&mut guest, 0)));
}

#[test]
fn another_kick_descriptor_takes_over_without_losing_a_kick() {
    let flownic = nic("queues=1,port=echo");
    for features in ["", "-event_idx"] {
        let mut guest = flownic.guest("n0").features(features).connect().unwrap();
        for i in 0..100 {
            guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 100));
            let kick = EventFd::new(EFD_NONBLOCK).unwrap();
            guest.channel().set(SET_VRING_KICK, &1u64.to_ne_bytes(), &[kick.as_raw_fd()]).unwrap();
            guest.tx(0).kick_fd = kick;
            assert!(guest.recv(0, soon()).is_some(), "'{features}', round {i}");
            ping(&mut guest, 0);
        }
    }
}

#[test]
fn a_broken_ring_is_reported_on_its_error_descriptor() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = flownic.guest("n0").connect().unwrap();
    ping(&mut guest, 0);
    assert!(guest.error_fd.read().is_err(), "nothing is wrong yet");
    guest.tx(0).set_avail_idx(0x7000);
    guest.tx(0).kick();
    let until = soon();
    while guest.error_fd.read().is_err() {
        assert!(Instant::now() < until, "no word on the error descriptor");
        std::thread::yield_now();
    }
}
