//! NICs that share a TAP device: the host and the guests as stations of one switch, with a real device.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use flownic::testkit::frame::{self, mac};
use flownic::testkit::{Flownic, Guest, Received, soon};
use flownic::virtio::*;

use crate::link::PLAIN;
use crate::signals::assert_sleeps;
use crate::{FLOWNIC, expect_counter};

/// The host's station number; guest number `i` is station `i`. A station's address is 10.0.0.(10 + number), its MAC
/// address mac(10 + number).
const HOST: usize = 9;
/// Nobody's.
const NOBODY: usize = 8;
/// Everybody's.
const ALL: usize = 7;

/// Runs the body of the test `name` in a network namespace of its own, by starting this program again.
fn in_netns(name: &str, body: impl FnOnce()) {
    if std::env::var_os("FLOWNIC_TEST_NETNS").is_some() {
        return body();
    }
    let path = format!("uplink::{name}");
    let out = Command::new("unshare")
        .arg("-rn")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &path, "--nocapture", "--test-threads=1"])
        .env("FLOWNIC_TEST_NETNS", "1")
        .output()
        .expect("these tests need unshare(1) of util-linux");
    let text = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat();
    assert!(
        out.status.success() && text.contains("1 passed"),
        "{path} failed; it needs /dev/net/tun, ip(8), and the right to make user and network namespaces:\n{text}"
    );
}

fn ip(args: &str) -> String {
    let out = Command::new("ip").args(args.split(' ')).output().expect("these tests need ip(8) of iproute2");
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The kernel's count of frames that fn0 has received, that is, which flownic has written.
fn written() -> u64 {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap();
    let line = text.lines().find_map(|l| l.trim().strip_prefix("fn0:")).expect("fn0");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number of packets")
}

fn address(station: usize) -> Ipv4Addr {
    if station == ALL { Ipv4Addr::new(10, 0, 0, 255) } else { Ipv4Addr::new(10, 0, 0, 10 + station as u8) }
}

fn station_mac(station: usize) -> MacAddr {
    if station == ALL { MacAddr([0xff; 6]) } else { mac(10 + station as u8) }
}

struct Wire {
    flownic: Flownic,
    host: UdpSocket,
    guests: Vec<Guest>,
    rounds: u32,
}

impl Wire {
    /// flownic with these NICs, the first of which has the TAP device, and a guest on each. The second one's takes no
    /// offload.
    fn new(nics: &[&str]) -> Self {
        // No frames that nobody asked for.
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        let args: Vec<&str> = nics.iter().flat_map(|n| ["--nic", *n]).collect();
        let flownic = Flownic::serve(FLOWNIC, &args);
        ip(&format!("link set dev fn0 address 02:00:00:00:00:{:02x}", 10 + HOST));
        assert_eq!(station_mac(HOST).0, [2, 0, 0, 0, 0, 10 + HOST as u8]);
        ip(&format!("addr add {}/24 brd + dev fn0", address(HOST)));
        for station in [0, 1, 2, NOBODY] {
            ip(&format!("neigh add {} lladdr 02:00:00:00:00:{:02x} dev fn0", address(station), 10 + station));
        }
        let host = UdpSocket::bind("0.0.0.0:7777").unwrap();
        host.set_broadcast(true).unwrap();
        host.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let guests = (0..nics.len())
            .map(|i| {
                let builder = flownic.guest(&format!("n{i}")).queue_pairs([4, 2, 1][i]);
                builder.features(if i == 1 { PLAIN } else { "" }).connect().unwrap()
            })
            .collect();
        Wire { flownic, host, guests, rounds: 0 }
    }

    /// Sends a datagram; returns its payload once flownic has done what it does with it (if a guest sends).
    fn send(&mut self, from: usize, to: usize, what: &str) -> Vec<u8> {
        self.rounds += 1;
        let payload = format!("{what} {} from {from} to {to}", self.rounds).into_bytes();
        if from == HOST {
            self.host.send_to(&payload, (address(to), 7777)).unwrap();
            if to == ALL {
                // The kernel's own copy of it, which no device has seen.
                self.expect(HOST, &payload);
            }
            return payload;
        }
        let frame = frame::frame()
            .from(station_mac(from))
            .to(station_mac(to))
            .ip(address(from).into(), address(to).into())
            .udp(7777, 7777)
            .payload(&payload)
            .build();
        let guest = &mut self.guests[from];
        let pair = self.rounds as usize % guest.pairs();
        guest.send(pair, &frame);
        assert!(guest.drain_tx(pair, soon()));
        payload
    }

    /// The next thing that a station gets has to be this.
    fn expect(&mut self, station: usize, payload: &[u8]) {
        let what = || format!("'{}' at {station}", String::from_utf8_lossy(payload));
        if station == HOST {
            let mut buf = [0; 2000];
            let (n, _) = self.host.recv_from(&mut buf).unwrap_or_else(|e| panic!("{}: {e}", what()));
            assert_eq!(buf[..n], *payload, "{}", what());
            return;
        }
        let Received { frame, header, .. } =
            self.guests[station].recv_any(soon()).unwrap_or_else(|| panic!("no {}", what()));
        assert!(frame.ends_with(payload), "{}, not {}", what(), String::from_utf8_lossy(&frame[42..]));
        if header.flags & HDR_F_NEEDS_CSUM == 0 {
            frame::verify(&frame).unwrap_or_else(|e| panic!("{}: {e}", what()));
        }
    }

    /// A datagram gets to these stations, and nowhere else: a broadcast is the next thing that the others get.
    fn gets_to(&mut self, from: usize, to: usize, stations: &[usize]) {
        let before = written();
        let payload = self.send(from, to, "datagram");
        stations.iter().for_each(|&s| {
            // What is for somebody else does not get through the host's IP; the kernel's count tells.
            if s != HOST || [HOST, ALL].contains(&to) {
                self.expect(s, &payload);
            }
        });
        if from != HOST {
            assert_eq!(
                written() - before,
                u64::from(stations.contains(&HOST)),
                "{from} to {to}: to the host"
            );
        }
        let mark = self.send(from, ALL, "mark");
        let all: Vec<usize> = (0..self.guests.len()).chain([HOST]).filter(|&s| s != from).collect();
        all.iter().for_each(|&s| self.expect(s, &mark));
        for (i, guest) in self.guests.iter_mut().enumerate() {
            assert!(guest.try_recv_any().is_none(), "{from} to {to}: one more at {i}");
        }
        if from == HOST {
            assert_eq!(written(), before, "what the host sends does not come back");
        }
    }
}

fn everybody_reaches_everybody(nics: &[&str]) {
    let mut wire = Wire::new(nics);
    let guests = wire.guests.len();
    let all: Vec<usize> = (0..guests).chain([HOST]).collect();
    let but = |from: usize| all.iter().copied().filter(|&s| s != from).collect::<Vec<_>>();
    // Who is where is not known yet: n0's frame is flooded, the host's answer is not.
    wire.gets_to(0, HOST, &but(0));
    wire.gets_to(HOST, 0, &[0]);
    wire.gets_to(HOST, 1, &but(HOST));
    // Now all have been heard.
    (0..guests).for_each(|from| wire.gets_to(from, ALL, &but(from)));
    for _ in 0..10 {
        for &from in &all {
            but(from).iter().for_each(|&to| wire.gets_to(from, to, &[to]));
        }
    }
    for &from in &all {
        wire.gets_to(from, ALL, &but(from));
        wire.gets_to(from, NOBODY, &but(from));
    }
}

#[test]
fn the_host_and_two_nics_reach_each_other() {
    in_netns("the_host_and_two_nics_reach_each_other", || {
        everybody_reaches_everybody(&[
            "n0,socket=@/n0,queues=4,port=tap:fn0",
            "n1,socket=@/n1,queues=2,port=link:n0",
        ]);
    });
}

#[test]
fn the_host_and_three_nics_reach_each_other() {
    in_netns("the_host_and_three_nics_reach_each_other", || {
        everybody_reaches_everybody(&[
            "n0,socket=@/n0,queues=4,port=tap:fn0",
            "n1,socket=@/n1,queues=2,port=link:n0",
            "n2,socket=@/n2,port=link:n1",
        ]);
    });
}

#[test]
fn a_nic_that_is_down_or_gone_leaves_the_others_connected() {
    in_netns("a_nic_that_is_down_or_gone_leaves_the_others_connected", || {
        let mut wire =
            Wire::new(&["n0,socket=@/n0,queues=4,port=tap:fn0", "n1,socket=@/n1,queues=2,port=link:n0"]);
        wire.gets_to(1, HOST, &[0, HOST]);
        wire.flownic.ctl(&["link", "n0", "down"]);
        assert!(ip("-o link show dev fn0").contains("LOWER_UP"), "the device has other users");
        let both_ways = |wire: &mut Wire| {
            for (from, to) in [(HOST, 1), (1, HOST), (HOST, ALL), (1, ALL)] {
                let payload = wire.send(from, to, "datagram");
                wire.expect(if from == HOST { 1 } else { HOST }, &payload);
            }
        };
        both_ways(&mut wire);
        let before = written();
        wire.send(0, ALL, "lost");
        assert_eq!(written(), before, "nothing comes from a NIC that is down");
        both_ways(&mut wire);
        assert!(wire.guests[0].try_recv_any().is_none(), "and nothing gets there");
        wire.flownic.ctl(&["link", "n0", "up"]);
        wire.gets_to(0, HOST, &[HOST]);
        // The workers of n0 read the device with or without a guest.
        wire.guests[0].disconnect();
        both_ways(&mut wire);
    });
}

#[test]
fn a_device_that_is_deleted_under_it_leaves_flownic_asleep_and_serving() {
    in_netns("a_device_that_is_deleted_under_it_leaves_flownic_asleep_and_serving", || {
        let flownic = Flownic::serve(FLOWNIC, &["--nic", "n0,socket=@/n0,port=tap:fn0"]);
        let mut guest = flownic.guest("n0").connect().unwrap();
        ip("link del dev fn0");
        // It can't be sent to any more, which is counted; the guest gets its buffers back.
        guest.send(0, &frame::udp("10.0.0.1:7", "10.0.0.2:9", 50));
        assert!(guest.drain_tx(0, soon()));
        expect_counter(&flownic, ("tx", 0, "drop_port"), 1, "the frame");
        assert_sleeps(&flownic);
    });
}
