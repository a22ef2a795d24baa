//! The kernel is the other end in these tests: every one runs in a network namespace of its own.

use super::*;
use crate::offload::{Sum, checksum, segment};
use crate::virtio::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, HDR_F_NEEDS_CSUM};
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

/// Runs the body of the test `name` in a new network namespace, by starting this program again under
/// `unshare -rn` (and `more`, for a deeper one). A machine that does not permit it fails the test.
fn in_netns(name: &str, more: &[&str], body: impl FnOnce()) {
    if std::env::var_os("FLOWNIC_TEST_NETNS").is_some() {
        return body();
    }
    let path = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
    let out = Command::new("unshare")
        .arg("-rn")
        .args(more)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &path, "--nocapture", "--test-threads=1"])
        .env("FLOWNIC_TEST_NETNS", "1")
        .output()
        .expect("these tests need unshare(1) of util-linux");
    let text = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat();
    assert!(
        out.status.success() && text.contains("1 passed"),
        "{path} failed; it needs {TUN_DEVICE}, ip(8), and the right to make user and network namespaces:\n{text}"
    );
}

fn ip(args: &str) -> String {
    let out = Command::new("ip").args(args.split(' ')).output().expect("these tests need ip(8) of iproute2");
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn open(name: &str, queues: usize) -> Result<Vec<TapQueue>, TapError> {
    Tap::open(&TapConfig { queues, ..TapConfig::new(name) })
}

fn wait_readable(fd: RawFd) {
    let ep = epoll::create(true).unwrap();
    let event = epoll::Event::new(epoll::Events::EPOLLIN, 0);
    epoll::ctl(ep, epoll::ControlOptions::EPOLL_CTL_ADD, fd, event).unwrap();
    let n = epoll::wait(ep, 10_000, &mut [event]).unwrap();
    epoll::close(ep).unwrap();
    assert_eq!(n, 1, "no frame within ten seconds");
}

/// The next frame from the kernel for which `wanted` holds; what IPv6 says unasked is passed over.
fn read_frame(queue: &TapQueue, wanted: impl Fn(&[u8]) -> bool) -> (NetHeader, Vec<u8>) {
    let mut buf = vec![0; 70_000];
    loop {
        match queue.read(&mut buf).unwrap() {
            None => wait_readable(queue.as_raw_fd()),
            Some(n) if wanted(&buf[12..n]) => {
                return (NetHeader::from_bytes(buf[..12].try_into().unwrap()), buf[12..n].to_vec());
            }
            Some(_) => {}
        }
    }
}

fn is_ip(frame: &[u8], proto: u8) -> bool {
    matches!((&frame[12..14], frame[23], frame[20]), ([8, 0], p, _) | ([0x86, 0xdd], _, p) if p == proto)
}

const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];

/// Gives a device the MAC address 02:00:00:00:00:`n`, the addresses 10.0.`n`.1 and fd00:`n`::1, and a neighbour
/// .2 with our MAC address. Returns the device's MAC address.
fn configure(name: &str, n: u8) -> [u8; 6] {
    ip(&format!("link set dev {name} address 02:00:00:00:00:{n:02x}"));
    ip(&format!("addr add 10.0.{n}.1/24 dev {name}"));
    ip(&format!("addr add fd00:{n}::1/64 dev {name} nodad"));
    ip(&format!("neigh add 10.0.{n}.2 lladdr 02:00:00:00:00:99 dev {name}"));
    ip(&format!("neigh add fd00:{n}::2 lladdr 02:00:00:00:00:99 dev {name}"));
    [2, 0, 0, 0, 0, n]
}

/// A flow from .2 of network 1, port `sport`, to host `to.1` of network `to.0`, port 7777.
#[derive(Clone, Copy)]
struct Flow {
    ipv6: bool,
    tcp: bool,
    mac: [u8; 6],
    to: (u8, u8),
    sport: u16,
}

/// A frame with a partial checksum, to be cut into segments of `gso_size` bytes; 0 leaves it whole.
fn frame(flow: Flow, payload: &[u8], gso_size: u16) -> (NetHeader, Vec<u8>) {
    let Flow { ipv6, tcp, mac, to, sport } = flow;
    let mut f = [mac, OUR_MAC].concat();
    let l4_len = if tcp { 20 } else { 8 } + payload.len();
    let proto = if tcp { 6 } else { 17 };
    let address = |net: u8, host: u8| match ipv6 {
        true => [&[0xfd, 0, 0, net][..], &[0; 11], &[host]].concat(),
        false => vec![10, 0, net, host],
    };
    let addresses = [address(1, 2), address(to.0, to.1)].concat();
    if ipv6 {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        f.extend((l4_len as u16).to_be_bytes());
        f.extend([proto, 64]);
    } else {
        f.extend([0x08, 0x00, 0x45, 0]);
        f.extend((20 + l4_len as u16).to_be_bytes());
        f.extend([0x12, 0x34, 0x40, 0, 64, proto, 0, 0]);
    }
    f.extend(&addresses);
    if !ipv6 {
        let sum = Sum::new().add_bytes(&f[14..]).checksum().to_be_bytes();
        f[24..26].copy_from_slice(&sum);
    }
    let l4 = f.len() as u16;
    let pseudo = Sum::new().add_bytes(&addresses).add_word(proto.into()).add_long(l4_len as u32).folded();
    f.extend(sport.to_be_bytes());
    f.extend(7777u16.to_be_bytes());
    if tcp {
        // CWR, ACK, PSH and FIN.
        f.extend([0xff, 0xff, 0xff, 0x00, 0, 0, 0, 1, 0x50, 0x99, 0x20, 0]);
        f.extend(pseudo.to_be_bytes());
        f.extend([0, 0]);
    } else {
        f.extend((l4_len as u16).to_be_bytes());
        f.extend(pseudo.to_be_bytes());
    }
    let gso_type = match (gso_size, tcp, ipv6) {
        (0, ..) => 0,
        (_, false, _) => GSO_UDP_L4,
        (_, true, false) => GSO_TCPV4,
        (_, true, true) => GSO_TCPV6,
    };
    let hdr = NetHeader {
        flags: HDR_F_NEEDS_CSUM,
        gso_type,
        gso_size,
        hdr_len: f.len() as u16,
        csum_start: l4,
        csum_offset: if tcp { 16 } else { 6 },
        num_buffers: 0,
    };
    f.extend(payload);
    (hdr, f)
}

fn write_frame(queue: &TapQueue, hdr: NetHeader, frame: &[u8]) {
    let bytes = hdr.to_bytes();
    let pieces = [IoSlice::new(&bytes), IoSlice::new(frame)];
    assert_eq!(queue.write_vectored(&pieces).unwrap(), Some(12 + frame.len()));
}

/// Whether the kernel takes USO, as Linux 6.2 and all later ones must.
fn takes_uso(queue: &TapQueue) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    let Accepts { uso4, uso6, .. } = queue.accepts();
    assert!(uso4 == uso6 && (uso4 || version < (6, 2)), "Linux {release} does not take USO");
    uso4
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn a_created_device_is_up_has_its_mtu_and_vanishes() {
    in_netns("a_created_device_is_up_has_its_mtu_and_vanishes", &[], || {
        let socket = sys::interface_socket().unwrap();
        let config = TapConfig { queues: 4, mtu: Some(9000), ..TapConfig::new("fn%d") };
        let queues = Tap::open(&config).unwrap();
        assert_eq!(queues.len(), 4);
        assert!(queues.iter().all(|q| q.name() == "fn0"));
        assert_eq!(sys::interface_mtu(socket.as_fd(), "fn0").unwrap(), 9000);
        assert!(sys::interface_is_up(socket.as_fd(), "fn0").unwrap());
        let Accepts { csum, tso4, tso6, ecn, .. } = queues[3].accepts();
        assert!(csum && tso4 && tso6 && ecn);
        let mut buf = [0; 2000];
        while queues[1].read(&mut buf).unwrap().is_some() {}
        let has_carrier = || ip("-o link show dev fn0").contains("LOWER_UP");
        assert!(has_carrier());
        queues[0].set_carrier(false).unwrap();
        assert!(!has_carrier());
        queues[2].set_carrier(true).unwrap();
        assert!(has_carrier());
        sys::set_interface_up(socket.as_fd(), "fn0", false).unwrap();
        assert_eq!(queues[0].write(&[0; 72]).unwrap_err().raw_os_error(), Some(libc::EIO));
        drop(queues);
        assert!(!sys::interface_exists(socket.as_fd(), "fn0").unwrap());
    });
}

#[test]
fn errors_say_what_to_do() {
    in_netns("errors_say_what_to_do", &[], || {
        let error = |config: TapConfig| Tap::open(&config).unwrap_err().to_string();
        let config = TapConfig::new;
        for name in ["", "a b", "a/b", "a:b", "..", "sixteen-letters-", "a\0b"] {
            assert!(error(config(name)).contains("cannot name an interface"), "{name}");
        }
        assert!(error(TapConfig { queues: 0, ..config("fn0") }).contains("1 to 256 queues, not 0"));
        assert!(error(TapConfig { queues: 257, ..config("fn0") }).contains("1 to 256 queues, not 257"));
        assert!(error(config("lo")).contains("is no TAP device"));
        ip("tuntap add dev tun0 mode tun");
        assert!(error(config("tun0")).contains("is no TAP device"));
        let attach = TapConfig { existing: Existing::Attach, ..config("fn0") };
        assert!(error(attach).contains("ip tuntap add dev fn0"));
        let mtu = TapConfig { mtu: Some(70_000), ..config("fn0") };
        assert!(error(mtu.clone()).contains("MTU of 'fn0' to 70000"));
        let socket = sys::interface_socket().unwrap();
        assert!(!sys::interface_exists(socket.as_fd(), "fn0").unwrap());
        let first = open("fn0", 1).unwrap();
        assert!(error(config("fn0")).contains("in use by another process"));
        assert!(
            error(TapConfig { queues: 2, ..config("fn0") })
                .contains("created for one queue and 2 are wanted")
        );
        assert!(error(TapConfig { existing: Existing::Create, ..config("fn0") }).contains("exists already"));
        drop(first);
    });
}

#[test]
fn a_device_that_another_holds_is_refused_whatever_its_queues() {
    in_netns("a_device_that_another_holds_is_refused_whatever_its_queues", &[], || {
        for queues in [1, 4] {
            let _held = open("fn0", queues).unwrap();
            for wanted in [1, 2, 4] {
                let error = open("fn0", wanted).unwrap_err().to_string();
                assert!(error.contains("'fn0'"), "{error}");
                assert!(queues == 1 && wanted > 1 || error.contains("in use by another process"), "{error}");
            }
        }
        // One that stays is anybody's.
        ip("tuntap add dev fn1 mode tap multi_queue vnet_hdr");
        let (_a, _b) = (open("fn1", 2).unwrap(), open("fn1", 2).unwrap());
    });
}

#[test]
fn without_the_capability_the_error_names_it() {
    // A second user namespace has no rights over the network namespace of the first.
    in_netns("without_the_capability_the_error_names_it", &["unshare", "-r"], || {
        let error = open("fn0", 1).unwrap_err();
        assert!(matches!(error, TapError::Permission(_)), "{error:?}");
        assert!(error.to_string().contains("CAP_NET_ADMIN"));
    });
}

#[test]
fn persistent_devices_are_attached_to_whatever_their_flags() {
    in_netns("persistent_devices_are_attached_to_whatever_their_flags", &[], || {
        let socket = sys::interface_socket().unwrap();
        ip("tuntap add dev one mode tap");
        ip("tuntap add dev many mode tap multi_queue");
        for _ in 0..2 {
            assert_eq!(open("one", 1).unwrap().len(), 1);
            assert!(matches!(open("one", 2).unwrap_err(), TapError::SingleQueue { queues: 2, .. }));
            assert_eq!(open("many", 1).unwrap().len(), 1);
            let attach = TapConfig {
                queues: 3,
                existing: Existing::Attach,
                mtu: Some(1400),
                ..TapConfig::new("many")
            };
            assert_eq!(Tap::open(&attach).unwrap().len(), 3);
            assert_eq!(sys::interface_mtu(socket.as_fd(), "many").unwrap(), 1400);
        }
        // Its link state is its owner's business.
        assert!(!sys::interface_is_up(socket.as_fd(), "many").unwrap());
    });
}

#[test]
fn partial_checksums_from_the_kernel_are_completed() {
    in_netns("partial_checksums_from_the_kernel_are_completed", &[], || {
        for (name, n, offload) in [("on", 1, true), ("off", 2, false)] {
            let queue = &Tap::open(&TapConfig { offload, ..TapConfig::new(name) }).unwrap()[0];
            configure(name, n);
            let socket = UdpSocket::bind((format!("10.0.{n}.1"), 7777)).unwrap();
            socket.send_to(b"partial", (format!("10.0.{n}.2"), 9999)).unwrap();
            let (mut hdr, mut f) = read_frame(queue, |f| is_ip(f, 17));
            assert_eq!(hdr.flags & HDR_F_NEEDS_CSUM != 0, offload);
            checksum(&mut f, &mut hdr).unwrap();
            let sum = Sum::new().add_bytes(&f[26..34]).add_word(17).add_word(8 + 7).add_bytes(&f[34..]);
            assert_eq!(sum.folded(), 0xffff);
            assert_eq!(&f[42..], b"partial");
        }
    });
}

#[test]
fn the_kernel_segments_what_it_gets_into_datagrams() {
    in_netns("the_kernel_segments_what_it_gets_into_datagrams", &[], || {
        let queues = open("fn0", 1).unwrap();
        let mac = configure("fn0", 1);
        let socket = UdpSocket::bind("10.0.1.1:7777").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let data = payload(1050);
        let (hdr, f) = frame(Flow { ipv6: false, tcp: false, mac, to: (1, 1), sport: 5000 }, &data, 100);
        let mut buf = [0; 2000];
        if takes_uso(&queues[0]) {
            write_frame(&queues[0], hdr, &f);
            for piece in data.chunks(100) {
                let n = socket.recv(&mut buf).unwrap();
                assert_eq!(&buf[..n], piece);
            }
        }
        // What segment() makes of it arrives just the same.
        let mut out = Vec::new();
        segment(&f, &hdr, &mut |h: &[u8], p: &[u8]| out.push([h, p].concat())).unwrap();
        out.iter().for_each(|f| write_frame(&queues[0], NetHeader::default(), f));
        for piece in data.chunks(100) {
            let n = socket.recv(&mut buf).unwrap();
            assert_eq!(&buf[..n], piece);
        }
    });
}

#[test]
fn segments_are_byte_for_byte_those_of_the_kernel() {
    in_netns("segments_are_byte_for_byte_those_of_the_kernel", &[], || {
        // The kernel forwards from a device with offloads to one without, so it has to segment.
        let from = open("from", 1).unwrap();
        let to = Tap::open(&TapConfig { offload: false, ..TapConfig::new("to") }).unwrap();
        let mac = configure("from", 1);
        configure("to", 2);
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        let uso = takes_uso(&from[0]);
        let flows = [(false, true), (true, true), (false, false), (true, false)];
        for (ipv6, tcp) in flows.into_iter().filter(|(_, tcp)| *tcp || uso) {
            let data = payload(if tcp { 20_001 } else { 9_001 });
            let (hdr, mut f) = frame(Flow { ipv6, tcp, mac, to: (2, 2), sport: 5000 }, &data, 1399);
            write_frame(&from[0], hdr, &f);
            // A router changes the MAC addresses and the hop count.
            f[..12].copy_from_slice(&[OUR_MAC, [2, 0, 0, 0, 0, 2]].concat());
            f[if ipv6 { 21 } else { 22 }] -= 1;
            let mut ours = Vec::new();
            segment(&f, &hdr, &mut |h: &[u8], p: &[u8]| ours.push([h, p].concat())).unwrap();
            for (i, segment) in ours.iter().enumerate() {
                let (theirs_hdr, theirs) = read_frame(&to[0], |f| is_ip(f, if tcp { 6 } else { 17 }));
                assert_eq!(theirs_hdr.gso_type, 0);
                assert_eq!(theirs, *segment, "segment {i}, ipv6 {ipv6}, tcp {tcp}");
            }
        }
    });
}

#[test]
fn replies_come_on_the_queue_that_sent_the_flow() {
    in_netns("replies_come_on_the_queue_that_sent_the_flow", &[], || {
        let queues = open("fn0", 4).unwrap();
        let mac = configure("fn0", 1);
        let socket = UdpSocket::bind("10.0.1.1:7777").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        for (i, queue) in queues.iter().enumerate() {
            let sport = 5000 + i as u16;
            let (hdr, f) = frame(Flow { ipv6: false, tcp: false, mac, to: (1, 1), sport }, b"question", 0);
            write_frame(queue, hdr, &f);
            let mut buf = [0; 100];
            let (n, peer) = socket.recv_from(&mut buf).unwrap();
            assert_eq!((&buf[..n], peer.port()), (&b"question"[..], sport));
            socket.send_to(b"answer", peer).unwrap();
            let (_, reply) = read_frame(queue, |f| is_ip(f, 17));
            assert_eq!(reply[36..38], sport.to_be_bytes());
            assert_eq!(&reply[42..], b"answer");
        }
        let mut buf = [0; 2000];
        for queue in &queues {
            while let Some(n) = queue.read(&mut buf).unwrap() {
                assert!(!is_ip(&buf[12..n], 17), "a reply came twice");
            }
        }
    });
}

#[test]
fn offloads_are_agreed_step_by_step() {
    in_netns("offloads_are_agreed_step_by_step", &[], || {
        let queue = &open("fn0", 1).unwrap()[0];
        let csum = Accepts { csum: true, ..Accepts::NONE };
        let agreed = |wanted| queue.set_offload(wanted).unwrap();
        assert_eq!(agreed(Accepts { csum: false, ..Accepts::ALL }), Accepts::NONE);
        assert_eq!(agreed(Accepts { ecn: true, ..csum }), csum);
        assert_eq!(agreed(Accepts { uso4: true, ..csum }), csum);
        let tso4 = Accepts { tso4: true, ecn: true, ..csum };
        assert_eq!(agreed(tso4), tso4);
    });
}
