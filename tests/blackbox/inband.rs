//! Commands of a guest to its NIC: the channel of `docs/guest-abi.md`, by both roads.

use flownic::testkit::{Command, Flownic, Guest, Layout, Reply, Seg, frame, soon};
use flownic::virtio::{F_RING_PACKED, NetHeader};
use serde_json::json;

use crate::{FLOWNIC, FORMATS, expect_counter, nic, ping, stats};

/// A control command of a class that nobody knows: its answer is ERR.
fn unknown_control() -> Command {
    Command::control(&[0xee, 0x77])
}

/// An admin command of an opcode that nobody knows: its answer is EINVAL, 8 bytes.
fn unknown_admin() -> Command {
    Command::admin(&[&[0x77, 0x77][..], &[0; 22]].concat())
}

/// A command's reply by each road, padding cut off.
fn by_both_roads(guest: &mut Guest, command: &Command) -> [Reply; 2] {
    let kernel = guest.command(0, command, 2000);
    let (_, mut user) = guest.command_frame(0, command).expect("a reply frame");
    user.answer.truncate(user.length.into());
    [kernel, user]
}

fn reply(kind: u8, status: u8, answer: &[u8]) -> Reply {
    let length = answer.len() as u16;
    Reply { version: 1, kind, status, sequence: 0x1234_5678, length, answer: answer.to_vec() }
}

#[test]
fn both_roads_give_the_same_replies_with_every_status() {
    for features in FORMATS {
        let flownic = nic("queues=2,port=loopback");
        let mut guest = flownic.guest("n0").queue_pairs(2).features(features).connect().unwrap();
        let control = unknown_control();
        for (command, expected) in [
            (control.clone(), reply(0x82, 0, &[1])),
            (Command::control(&[]), reply(0x82, 0, &[1])),
            (Command { version: 0, ..control.clone() }, reply(0x82, 1, &[])),
            (Command { version: 2, kind: 9, ..control.clone() }, reply(0x89, 1, &[])),
            (Command { kind: 0, ..control.clone() }, reply(0x80, 2, &[])),
            (Command { kind: 3, ..control.clone() }, reply(0x83, 2, &[])),
            (Command { length: 1000, ..control.clone() }, reply(0x82, 3, &[])),
            (Command { length: u16::MAX, ..control.clone() }, reply(0x82, 3, &[])),
            (Command::control(&[0xee; 16384]), reply(0x82, 0, &[1])),
            (Command::control(&[0xee; 16385]), reply(0x82, 3, &[])),
            (Command::control(&[0xee; 60000]), reply(0x82, 3, &[])),
            // Bytes behind the command do not matter.
            (Command { length: 2, bytes: vec![0xee; 30000], ..control.clone() }, reply(0x82, 0, &[1])),
        ] {
            assert_eq!(
                by_both_roads(&mut guest, &command),
                [expected.clone(), expected],
                "{}",
                command.length
            );
        }
        let [kernel, user] = by_both_roads(&mut guest, &unknown_admin());
        assert_eq!((kernel.kind, kernel.status, &kernel.answer[..2]), (0x81, 0, &22u16.to_le_bytes()[..]));
        assert_eq!((kernel.length, kernel.answer.len()), (8, 8));
        assert_eq!(kernel, user);
        expect_counter(&flownic, ("tx", 0, "in_band_commands"), 26, "12 and one by both roads");
        expect_counter(&flownic, ("tx", 0, "in_band_refused"), 8, "version and kind");
        expect_counter(&flownic, ("tx", 0, "in_band_malformed"), 8, "length");
        expect_counter(&flownic, ("rx", 0, "in_band_replies"), 13, "by the user road");
        for zero in ["packets", "bytes", "drop_malformed", "in_band_replies_lost"] {
            expect_counter(&flownic, ("tx", 0, zero), 0, "nothing of it is a frame");
        }
        expect_counter(&flownic, ("rx", 0, "packets"), 0, "no reply came from a wire");
    }
}

#[test]
fn any_queue_takes_commands_and_each_reply_has_the_sequence_of_its_command() {
    let flownic = nic("queues=3,port=null");
    let mut guest = flownic.guest("n0").queue_pairs(3).connect().unwrap();
    for (pair, sequence) in [(0, 0), (1, 1), (2, u32::MAX), (2, 0xdead_beef)] {
        let command = Command { sequence, src: [2, 0, 0, 7, 7, 7], ..unknown_control() };
        assert_eq!(guest.command(pair, &command, 64).sequence, sequence);
        // Whatever queue it was sent on.
        let (queue, reply) = guest.command_frame(pair, &command).unwrap();
        assert_eq!((queue, reply.sequence), (0, sequence));
    }
    expect_counter(&flownic, ("rx", 0, "in_band_replies"), 4, "all on queue 0");
}

#[test]
fn the_host_says_which_roads_there_are() {
    for (flag, in_nic, kernel, user) in [
        ("all", None, 0, 0),
        ("kernel", None, 0, 4),
        ("user", None, 4, 0),
        ("off", Some("all"), 0, 0),
        ("all", Some("user"), 4, 0),
        ("user", Some("kernel"), 0, 4),
    ] {
        let own = in_nic.map_or(String::new(), |roads| format!(",in-band={roads}"));
        let nic = format!("n0,socket=@/n0,port=loopback{own}");
        let flownic = Flownic::serve(FLOWNIC, &["--nic", &nic, "--in-band", flag]);
        let mut guest = flownic.guest("n0").connect().unwrap();
        let [k, u] = by_both_roads(&mut guest, &unknown_control());
        assert_eq!((k.status, u.status), (kernel, user), "--in-band={flag} {own}");
        assert_eq!((k.length, u.length), (u16::from(kernel == 0), u16::from(user == 0)));
        let roads = in_nic.unwrap_or(flag);
        assert_eq!(flownic.ask(json!({ "command": "show" }))[0]["in_band"], roads);
        let shown = flownic.ctl_output(&["show"]);
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains(&format!("commands of the guest: {roads}")), "{shown}");
        expect_counter(&flownic, ("tx", 0, "in_band_refused"), u64::from(kernel + user) / 4, roads);
        expect_counter(&flownic, "port_tx_packets", 0, "a refused command is not sent either");
    }
}

#[test]
fn switched_off_the_frame_is_sent_and_the_chain_is_malformed() {
    let flownic = nic("port=loopback,in-band=off");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let command = unknown_control();
    guest.send(0, &command.frame());
    assert!(guest.recv(0, soon()).unwrap().frame == command.frame());
    let (used, _) = guest.transact(0, &command.frame(), &Layout::joined(), &[64], soon()).unwrap();
    assert_eq!(used, 0);
    expect_counter(&flownic, ("tx", 0, "drop_malformed"), 1, "a chain with a writable part");
    expect_counter(&flownic, ("tx", 0, "in_band_commands"), 0, "there are none");
    expect_counter(&flownic, "port_tx_packets", 1, "the frame");
}

#[test]
fn a_word_that_says_not_which_roads_is_refused_by_name() {
    for (args, wanted) in [
        (&["--nic", "n0,socket=@/n0", "--in-band", "on"][..], "off, user, kernel and all"),
        (&["--nic", "n0,socket=@/n0,in-band=no"][..], "in-band takes off, user, kernel or all"),
    ] {
        let output = std::process::Command::new(FLOWNIC).arg("serve").args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(wanted), "{text}");
    }
}

#[test]
fn a_chain_of_any_shape_is_a_command() {
    let flownic = nic("port=null");
    for features in ["", "-version_1,-mrg_rxbuf,-event_idx", "+in_order", "+ring_packed"] {
        let mut guest = flownic.guest("n0").features(features).connect().unwrap();
        let (header, command) = (guest.header_len(), unknown_admin());
        let frame = command.frame();
        let all: Vec<usize> = (1..header + frame.len()).collect();
        for cuts in
            [&[][..], &[header], &[1, 5], &[header + 14], &[header + 17, header + 29, header + 31], &all]
        {
            for rooms in [&[24][..], &[2000], &[1; 24], &[0, 16, 0, 8], &[16, 8], &[3, 21]] {
                for layout in [Layout::cut_at(cuts), Layout::cut_at(cuts).indirect().skewed(3)] {
                    let (used, bytes) = guest.transact(0, &frame, &layout, rooms, soon()).unwrap();
                    let reply = Reply::parse(&bytes);
                    assert_eq!((used, reply.status, reply.length), (24, 0, 8), "{layout:?} {rooms:?}");
                    assert_eq!(reply.answer[..2], 22u16.to_le_bytes());
                }
            }
        }
    }
    expect_counter(&flownic, ("tx", 0, "drop_malformed"), 0, "all were commands");
}

#[test]
fn a_reply_that_does_not_fit_is_cut_off_and_says_how_long_its_answer_is() {
    let flownic = nic("port=null");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let frame = unknown_admin().frame();
    let (_, whole) = guest.transact(0, &frame, &Layout::joined(), &[64], soon()).unwrap();
    assert_eq!(whole.len(), 24);
    for room in 16..24u32 {
        let (used, bytes) = guest.transact(0, &frame, &Layout::joined(), &[room], soon()).unwrap();
        assert_eq!((used, &bytes[..]), (room, &whole[..room as usize]));
        assert_eq!(Reply::parse(&bytes).length, 8);
    }
    for rooms in [&[15][..], &[1; 15], &[0], &[8, 0, 7]] {
        let (used, _) = guest.transact(0, &frame, &Layout::joined(), rooms, soon()).unwrap();
        assert_eq!(used, 0, "{rooms:?}: no header fits");
    }
    expect_counter(&flownic, ("tx", 0, "drop_malformed"), 4, "room for less than a header");
    expect_counter(&flownic, ("tx", 0, "in_band_commands"), 9, "the others");
}

#[test]
fn a_chain_that_is_no_command_is_malformed_and_nothing_is_written_to_it() {
    let flownic = nic("port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let command = unknown_control();
    let mut malformed = 0;
    let mut check = |guest: &mut Guest, segs: &[Seg], what: &str| {
        malformed += 1;
        assert_eq!(guest.exchange(0, segs, false, soon()), Some(0), "{what}");
        expect_counter(&flownic, ("tx", 0, "drop_malformed"), malformed, what);
    };
    let mut cut = command.frame();
    cut.truncate(29);
    let wrong = [
        ("a datagram", frame::udp("10.0.0.1:7", "10.0.0.2:9", 64)),
        ("another magic", Command { magic: *b"flvn", ..command.clone() }.frame()),
        ("a header that is cut", cut),
    ];
    let room = Seg { addr: guest.ram.alloc(64), len: 64, writable: true };
    guest.ram.write(room.addr, &[0xee; 64]);
    for (what, frame) in wrong {
        let bytes = [&[0; 12][..], &frame].concat();
        let mut segs = guest.place(&bytes, &Layout::header_apart());
        segs.push(room);
        check(&mut guest, &segs, what);
    }
    let bytes = [&[0; 12][..], &command.frame()].concat();
    let segs = guest.place(&bytes, &Layout::cut_at(&[12, 42]));
    let nowhere = Seg { addr: crate::hostile::NOWHERE, ..room };
    check(&mut guest, &[room, segs[0], segs[1], segs[2]], "writable first");
    check(&mut guest, &[segs[0], segs[1], room, segs[2]], "writable in between");
    check(&mut guest, &[segs[0], segs[1], segs[2], room, nowhere], "unmapped at the end");
    check(&mut guest, &[segs[0], segs[1], segs[2], Seg { len: u32::MAX, ..room }], "4 GiB");
    check(&mut guest, &[room], "writable alone");
    assert_eq!(guest.ram.read(room.addr, 64), [0xee; 64]);
    assert_eq!(guest.exchange(0, &[segs[0], segs[1], segs[2], room], false, soon()), Some(17));
    ping(&mut guest, 0);
}

#[test]
fn nothing_of_it_reaches_a_wire_or_a_capture() {
    let nics = ["n0,socket=@/n0,queues=2,port=link:n1,capture=@/frames", "n1,socket=@/n1,port=link:n0"];
    let mut flownic = Flownic::serve(FLOWNIC, &["--nic", nics[0], "--nic", nics[1]]);
    let mut a = flownic.guest("n0").queue_pairs(2).connect().unwrap();
    let mut b = flownic.guest("n1").connect().unwrap();
    let commands = [
        unknown_control(),
        unknown_admin(),
        Command { kind: 7, ..unknown_admin() },
        Command::control(&[0; 20000]),
    ];
    for command in &commands {
        by_both_roads(&mut a, command);
    }
    // One among ordinary frames, in a burst.
    let sent = frame::udp("10.0.0.1:7", "10.0.0.2:9", 64);
    for bytes in [&sent, &commands[0].frame(), &sent] {
        a.queue_tx(1, NetHeader::default(), bytes, &Layout::joined());
    }
    a.flush_tx(1);
    let got = a.fence_to(1, &mut b);
    assert!(got.len() == 2 && got.iter().all(|f| f.frame == sent), "{got:?}");
    let reply = a.try_recv_any().expect("the reply").frame;
    assert_eq!((&reply[12..18], reply.len()), (&[0x88, 0xb5, b'f', b'l', b'w', b'n'][..], 60));
    assert_eq!(a.try_recv_any(), None);
    assert_eq!(b.try_recv_any(), None);
    expect_counter(&flownic, "port_tx_packets", 4, "two and two fences");
    expect_counter(&flownic, ("tx", 1, "packets"), 4, "two and two fences");
    assert!(flownic.terminate().success());
    let capture = std::fs::read(flownic.path("frames")).unwrap();
    let has = |bytes: &[u8]| capture.windows(bytes.len()).any(|w| w == bytes);
    assert!(has(&sent[..40]), "the capture has frames");
    assert!(!has(b"flwn"), "and no command");
}

#[test]
fn frames_of_the_type_that_are_no_commands_pass() {
    let flownic = nic("port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let command = unknown_control();
    let mut short = command.frame();
    short.truncate(29);
    let mut tagged = command.frame();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let magic = Command { magic: *b"FLWN", ..command.clone() }.frame();
    let only_type = [&command.frame()[..14], &[0; 46]].concat();
    for sent in [short, tagged, magic, only_type] {
        guest.send(0, &sent);
        assert!(guest.recv(0, soon()).unwrap().frame == sent);
    }
    expect_counter(&flownic, ("tx", 0, "packets"), 4, "ordinary frames");
    expect_counter(&flownic, ("tx", 0, "in_band_commands"), 0, "no commands");
}

#[test]
fn a_reply_that_went_astray_is_not_answered() {
    let flownic = nic("port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    for kind in [0x81, 0x82, 0xff] {
        guest.send(0, &Command { kind, ..unknown_control() }.frame());
    }
    assert!(guest.fence(0).is_empty(), "neither sent nor answered");
    expect_counter(&flownic, ("tx", 0, "in_band_malformed"), 3, "three replies");
    // In a chain it gets its reply, which goes nowhere else.
    assert_eq!(guest.command(0, &Command { kind: 0x82, ..unknown_control() }, 16).status, 2);
}

#[test]
fn replies_go_to_the_first_queue_that_is_enabled() {
    let flownic = nic("queues=3,port=null");
    let mut guest = flownic.guest("n0").queue_pairs(3).connect().unwrap();
    assert_eq!(guest.command_frame(1, &unknown_control()).unwrap().0, 0);
    guest.enable(0, false).unwrap();
    assert_eq!(guest.command_frame(1, &unknown_control()).unwrap().0, 1);
    guest.enable(0, true).unwrap();
    assert_eq!(guest.command_frame(0, &unknown_control()).unwrap().0, 0);
}

#[test]
fn neither_link_nor_rules_have_a_say() {
    let flownic = nic("port=loopback");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let mac = "02:00:00:00:00:02";
    flownic.ctl(&["flows", "add", "n0", "flow-type", "ether", "dst", mac, "action", "-1"]);
    flownic.ctl(&["link", "n0", "down"]);
    let [kernel, user] = by_both_roads(&mut guest, &unknown_control());
    assert_eq!((kernel.status, user.status), (0, 0));
    assert_eq!(stats(&flownic, "n0")["device"]["drop_link_down"], 0);
}

#[test]
fn without_a_receive_buffer_for_it_a_reply_is_lost_and_counted() {
    for (builder, fits) in [(("", 40), true), (("-mrg_rxbuf", 71), false), (("-mrg_rxbuf", 72), true)] {
        let flownic = nic("port=null");
        let (features, len) = builder;
        let mut guest = flownic.guest("n0").features(features).rx_buffer(len).connect().unwrap();
        if fits {
            let (_, reply) = guest.command_frame(0, &unknown_control()).unwrap();
            assert_eq!((reply.status, reply.length), (0, 1), "{features} {len}");
            continue;
        }
        guest.send(0, &unknown_control().frame());
        expect_counter(&flownic, ("tx", 0, "in_band_replies_lost"), 1, "too small");
        assert!(guest.drain_tx(0, soon()), "the command came back");
        assert_eq!(guest.try_recv(0), None);
    }
    let flownic = nic("port=null");
    let mut guest = flownic.guest("n0").no_rx_buffers().connect().unwrap();
    guest.send(0, &unknown_control().frame());
    expect_counter(&flownic, ("tx", 0, "in_band_replies_lost"), 1, "no buffer");
    expect_counter(&flownic, ("tx", 0, "in_band_commands"), 1, "and it was carried out");
    guest.enable(0, false).unwrap();
    guest.enable(0, true).unwrap();
    guest.fill_rx(0);
    assert!(guest.command_frame(0, &unknown_control()).is_some());
}

#[test]
fn a_receive_ring_that_is_broken_when_the_reply_comes_stops_alone() {
    let flownic = nic("port=null");
    let mut guest = flownic.guest("n0").connect().unwrap();
    let idx = guest.rx(0).avail_idx();
    guest.rx(0).set_avail_idx(idx.wrapping_add(1000));
    guest.send(0, &unknown_control().frame());
    expect_counter(&flownic, ("rx", 0, "ring_faults"), 1, "the index jumped");
    expect_counter(&flownic, ("tx", 0, "in_band_replies_lost"), 1, "nowhere to go");
    assert_eq!(guest.command(0, &unknown_control(), 64).status, 0, "transmit queue goes on");
    guest.send(0, &unknown_control().frame());
    expect_counter(&flownic, ("tx", 0, "in_band_replies_lost"), 2, "no queue runs");
    expect_counter(&flownic, ("rx", 0, "ring_faults"), 1, "once");
}

#[test]
fn a_ring_that_breaks_behind_a_command_has_carried_it_out() {
    let flownic = nic("port=null");
    let mut guest = flownic.guest("n0").ring_size(16).connect().unwrap();
    assert_eq!(guest.command(0, &unknown_control(), 64).status, 0);
    let tx = guest.tx(0);
    tx.set_avail_idx(tx.avail_idx().wrapping_add(17));
    tx.kick();
    expect_counter(&flownic, ("tx", 0, "ring_faults"), 1, "the index jumped");
    guest.reboot().unwrap();
    assert_eq!(guest.command(0, &unknown_control(), 64).status, 0, "a new driver");
}

#[test]
fn pages_that_a_reply_is_written_to_are_logged() {
    let flownic = nic("port=null");
    for features in FORMATS {
        let mut guest = flownic.guest("n0").features(features).connect().unwrap();
        let bytes = [&[0; 12][..], &unknown_admin().frame()].concat();
        let mut segs = guest.place(&bytes, &Layout::joined());
        // The second byte of the reply is on another page.
        let at = guest.ram.alloc(3 * 4096).next_multiple_of(4096) + 4095;
        segs.push(Seg { addr: at, len: 24, writable: true });
        guest.start_log().unwrap();
        assert_eq!(guest.exchange(0, &segs, false, soon()), Some(24));
        let used = if guest.has(F_RING_PACKED) { guest.tx(0).desc } else { guest.tx(0).used };
        for (gpa, len) in [(at, 24), (used, 4)] {
            assert!(guest.log().unmarked(gpa, len).is_empty(), "{gpa:#x}");
        }
        assert!(!guest.log().pages().contains(&(at / 4096 + 2)), "no page behind it");
        guest.stop_log().unwrap();
    }
}

#[test]
fn a_flood_of_commands_does_not_starve_the_neighbour() {
    let nics = ["a,socket=@/a,port=null", "b,socket=@/b,port=loopback"];
    let flownic = Flownic::serve(FLOWNIC, &["--nic", nics[0], "--nic", nics[1]]);
    let mut flood = flownic.guest("a").ring_size(1024).connect().unwrap();
    let mut other = flownic.guest("b").connect().unwrap();
    let frame = [&[0; 12][..], &Command::control(&[0xee; 16384]).frame()].concat();
    let mut segs = flood.place(&frame, &Layout::joined());
    segs.push(Seg { addr: flood.ram.alloc(64), len: 64, writable: true });
    let done = |f: &Flownic| stats(f, "a")["tx"][0]["in_band_commands"].as_u64().unwrap();
    for _ in 0..50 {
        while flood.tx(0).take_used().is_some() {}
        while flood.tx(0).add(&segs, false).is_some() {}
        flood.flush_tx(0);
        ping(&mut other, 0);
    }
    assert!(done(&flownic) > 0, "the flood is served, too");
}
