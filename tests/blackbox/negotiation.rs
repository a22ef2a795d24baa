//! Features, protocol features and the order of messages.

use std::os::unix::net::{UnixListener, UnixStream};

use flownic::testkit::front::PROTOCOL_KNOWN;
use flownic::testkit::process::TempDir;
use flownic::testkit::proto::*;
use flownic::testkit::{Flownic, Guest, soon};
use flownic::virtio::*;

use crate::{FLOWNIC, expect_counter, nic, ping};

/// What every NIC offers unless told otherwise.
const OFFERED: u64 = F_VERSION_1
    | F_MRG_RXBUF
    | F_INDIRECT_DESC
    | F_EVENT_IDX
    | F_MQ
    | F_CSUM
    | F_GUEST_CSUM
    | F_HOST_TSO4
    | F_HOST_TSO6
    | F_GUEST_TSO4
    | F_GUEST_TSO6
    | F_MTU
    | F_STATUS
    | F_LOG_ALL
    | F_PROTOCOL_FEATURES;

#[test]
fn features_are_offered_and_each_can_be_switched_off_by_name() {
    let flownic = nic("queues=2,port=echo");
    let all = flownic.guest("n0").connect().unwrap().offered;
    assert_eq!(all & OFFERED, OFFERED, "missing: {:?}", feature_names(OFFERED & !all));
    for name in [
        "mrg_rxbuf",
        "indirect_desc",
        "event_idx",
        "csum",
        "guest_csum",
        "host_tso4",
        "guest_tso6",
        "host_uso",
    ] {
        let args = ["--nic", "n0,socket=@/n0,queues=2,port=echo", &format!("--features=-{name}")];
        let flownic = Flownic::serve(FLOWNIC, &args);
        let mut guest = flownic.guest("n0").queue_pairs(2).connect().unwrap();
        let gone = feature_by_name(name).unwrap();
        assert_eq!(guest.offered & gone, 0, "{name} is still offered");
        assert_eq!(guest.offered & F_VERSION_1, F_VERSION_1);
        ping(&mut guest, 1);
    }
}

#[test]
fn protocol_features_and_limits_are_those_of_the_nic() {
    let flownic = nic("queues=3,port=echo");
    let mut guest = flownic.guest("n0").queue_pairs(3).connect().unwrap();
    assert_eq!(guest.protocol, PROTOCOL_KNOWN);
    // QEMU takes the answer as a number of pairs, and refuses to start with more than it says.
    assert!(guest.queue_num >= 3, "GET_QUEUE_NUM says {}", guest.queue_num);
    assert!(guest.channel().get(GET_MAX_MEM_SLOTS).unwrap() >= 32);
    (0..3).for_each(|pair| drop(ping(&mut guest, pair)));
}

#[test]
fn an_unoffered_feature_bit_costs_the_connection_at_most_and_never_the_nic() {
    let flownic = nic("queues=1,port=echo");
    let mut bad = flownic.guest("n0").unconnected();
    bad.open().unwrap();
    bad.negotiate().unwrap();
    let refused = bad.channel().set_u64(SET_FEATURES, F_VERSION_1 | F_PROTOCOL_FEATURES | 1 << 50);
    assert!(refused.is_err());
    bad.disconnect();
    ping(&mut flownic.guest("n0").connect().unwrap(), 0);
    expect_counter(&flownic, "connections", 2, "one after the other");
}

#[test]
fn unknown_and_mangled_messages_cost_the_connection_at_most() {
    let flownic = nic("queues=1,port=echo");
    let table: &[(&str, &[u8])] = &[
        ("request 99", &message(99, 1, &[])),
        ("version 2", &message(GET_FEATURES, 2, &[])),
        (
            "a payload of 1 MiB announced",
            &[&99u32.to_ne_bytes()[..], &1u32.to_ne_bytes(), &(1u32 << 20).to_ne_bytes()].concat(),
        ),
        ("ring 200", &message(SET_VRING_NUM, 1, &pair(200, 256))),
        ("a ring of 0", &message(SET_VRING_NUM, 1, &pair(0, 0))),
        ("a ring of 300", &message(SET_VRING_NUM, 1, &pair(0, 300))),
        ("a short payload", &message(SET_FEATURES, 1, &[1, 2, 3])),
        ("half a header", &[1, 0, 0]),
        (
            "a memory table without descriptors",
            &message(SET_MEM_TABLE, 1, &[[1, 0, 0, 0].as_slice(), &[0; 36]].concat()),
        ),
    ];
    for (what, bytes) in table {
        let mut bad = flownic.guest("n0").unconnected();
        bad.open().unwrap();
        bad.channel().send_bytes(bytes, &[]).unwrap();
        // Whether it is refused or ignored: the NIC must be there for the next one.
        bad.disconnect();
        let mut good = flownic.guest("n0").connect().unwrap_or_else(|e| panic!("after {what}: {e}"));
        ping(&mut good, 0);
    }
}

fn message(code: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    [&code.to_ne_bytes()[..], &flags.to_ne_bytes(), &(payload.len() as u32).to_ne_bytes(), payload].concat()
}

#[test]
fn rings_work_without_any_protocol_feature() {
    let flownic = nic("queues=2,port=echo");
    let mut guest = flownic.guest("n0").protocol_features(0).connect().unwrap();
    assert_eq!((guest.protocol, guest.queue_num), (0, 0));
    ping(&mut guest, 0);
}

#[test]
fn set_features_without_protocol_features_enables_the_rings() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = flownic.guest("n0").features("-protocol_features").connect().unwrap();
    assert!(!guest.has(F_PROTOCOL_FEATURES));
    ping(&mut guest, 0);
}

#[test]
fn rings_are_not_served_before_they_are_enabled_and_a_kick_before_that_is_not_lost() {
    let flownic = nic("queues=1,port=echo");
    let mut guest = flownic.guest("n0").enabled(0).connect().unwrap();
    // Buffers and a kick are there before SET_VRING_ENABLE 1.
    guest.send(0, &flownic::testkit::frame::udp("192.0.2.1:1", "192.0.2.2:2", 40));
    guest.tx(0).kick();
    guest.channel().sync().unwrap();
    assert_eq!((guest.tx(0).used_idx(), guest.rx(0).used_idx()), (0, 0));
    guest.enable(0, true).unwrap();
    assert!(guest.recv(0, soon()).is_some(), "the frame that waited");
    ping(&mut guest, 0);
}

#[test]
fn a_second_front_end_waits_and_does_not_disturb_the_first() {
    let flownic = nic("queues=1,port=echo");
    let mut first = flownic.guest("n0").connect().unwrap();
    let mut second = flownic.guest("n0").unconnected();
    second.open().unwrap();
    ping(&mut first, 0);
    drop(first);
    second.negotiate().unwrap();
    second.connect().unwrap();
    ping(&mut second, 0);
}

#[test]
fn the_back_end_can_be_the_client() {
    let dir = TempDir::new();
    let socket = dir.path().join("qemu");
    let builder = Guest::builder(&socket).listen().unwrap();
    let spec = format!("n0,socket={},mode=client,queues=1,port=echo", socket.display());
    let flownic = Flownic::serve(FLOWNIC, &["--nic", &spec]);
    let mut guest = builder.connect().unwrap();
    ping(&mut guest, 0);
    guest.disconnect();
    guest.connect().unwrap();
    ping(&mut guest, 0);
    expect_counter(&flownic, "connections", 2, "one after the other");
}

#[test]
fn a_connected_socket_can_be_handed_over_and_its_end_is_the_process_s() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let args = ["--fd", "3", "--queues", "2", "--port", "echo"];
    let mut flownic = Flownic::serve_fd(FLOWNIC, &args, theirs);
    let mut guest = flownic.guest("none").queue_pairs(2).unconnected();
    guest.connect_on(ours).unwrap();
    (0..2).for_each(|pair| drop(ping(&mut guest, pair)));
    drop(guest);
    assert!(flownic.wait_end().success());
}

#[test]
fn a_listening_socket_can_be_handed_over_and_stays_where_it_is() {
    let dir = TempDir::new();
    let socket = dir.path().join("activated");
    let listener = UnixListener::bind(&socket).unwrap();
    let args = ["--nic", "n0,fd=3,queues=1,port=echo"];
    let mut flownic = Flownic::serve_fd(FLOWNIC, &args, listener.try_clone().unwrap());
    for _ in 0..3 {
        ping(&mut Guest::builder(&socket).connect().unwrap(), 0);
    }
    assert!(flownic.terminate().success());
    assert!(socket.exists(), "it belongs to whoever made it");
    // The next one takes it over, with a front end that is waiting already.
    let mut guest = Guest::builder(&socket).unconnected();
    guest.open().unwrap();
    let _flownic = Flownic::serve_fd(FLOWNIC, &args, listener);
    guest.negotiate().unwrap();
    guest.connect().unwrap();
    ping(&mut guest, 0);
}
