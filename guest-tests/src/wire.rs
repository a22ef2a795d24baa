//! A wire from a tap to a guest's card, on which every frame is accounted for.

use std::time::Duration;

use crate::frame::Packet;
use crate::nic::Interface;
use crate::{Flownic, Guest, Kernel, Machine, Namespace, Nic, Workdir, wait_for};

/// Queue pairs of the card, and processors of the guest: then each transmit queue belongs to one processor.
pub const QUEUES: usize = 4;
/// Frames sent for each case.
pub const COUNT: u32 = 40;
/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A host that sends nothing by itself.
pub fn quiet_host() -> Namespace {
    let host = Namespace::new("host");
    silence(&host);
    host
}

/// Interfaces that come up from now on speak no IPv6.
pub fn silence(machine: &Machine) {
    machine.run_ok("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6");
    machine.run_ok("for all in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 1 >$all; done");
}

/// Starts a host with flownic, boots a guest with the card `n0` of [`QUEUES`] queue pairs on the tap `fn0`, with these
/// further `settings` of it (`,filters=8`), and runs `body` with the wire between them.
///
/// # Panics
/// When anything does not start.
pub fn with_wire(settings: &str, body: impl FnOnce(&mut Wire<'_>)) {
    let workdir = Workdir::new();
    let host = quiet_host();
    let nic = format!("n0,queues={QUEUES},port=tap:fn0{settings}");
    let flownic = Flownic::start(&host, &workdir, &[&nic], &[]);
    let guest = Guest::builder("guest").kernel(Kernel::Stable).vcpus(QUEUES as u32);
    let guest = guest.nic(Nic::flownic(Flownic::socket(&workdir, "n0"), QUEUES as u32)).boot(&workdir);
    silence(&guest);
    body(&mut Wire::new(&flownic, &guest));
}

/// A wire from the tap `fn0` to the guest, and how many frames each queue of the guest must have received by now.
pub struct Wire<'m> {
    /// The program.
    pub flownic: &'m Flownic<'m>,
    /// The guest.
    pub guest: &'m Guest,
    /// The host's end.
    pub tap: Interface<'m>,
    /// The guest's end.
    pub nic: Interface<'m>,
    /// Frames by queue.
    pub received: Vec<u64>,
}

impl<'m> Wire<'m> {
    /// The wire between a tap and a guest's first card, which are both switched on.
    ///
    /// # Panics
    /// When the card has not [`QUEUES`] queues in use.
    pub fn new(flownic: &'m Flownic<'m>, guest: &'m Guest) -> Wire<'m> {
        let (tap, nic) = (Interface::named(flownic.machine(), "fn0"), guest.interface(0));
        nic.up(&[]);
        tap.up(&[]);
        let received = nic.receive_packets();
        assert_eq!(received.len(), QUEUES, "queues in use after boot");
        Wire { flownic, guest, tap, nic, received }
    }

    /// Sends frames that must all arrive on `queue` and nowhere else. Stragglers from before are found as well, since
    /// the counts go on from case to case.
    ///
    /// # Panics
    /// When they do not, in 20 seconds.
    #[track_caller]
    pub fn expect(&mut self, what: &str, frame: &[u8], queue: usize) {
        self.tap.send(frame, COUNT);
        self.received[queue] += u64::from(COUNT);
        self.settle(what);
    }

    /// Waits until what must have arrived has, and sees that nothing else did.
    ///
    /// # Panics
    /// As [`Wire::expect`].
    #[track_caller]
    pub fn settle(&self, what: &str) {
        let total: u64 = self.received.iter().sum();
        let seen = wait_for(&format!("{what} to arrive"), LIMIT, || {
            let seen = self.nic.receive_packets();
            if seen.iter().sum::<u64>() >= total { Ok(seen) } else { Err(format!("{seen:?}")) }
        });
        assert_eq!(seen, self.received, "{what}: packets by queue");
    }

    /// As [`Wire::expect`], for the queue that RSS picks over all queues.
    #[track_caller]
    pub fn expect_rss(&mut self, what: &str, packet: &Packet) {
        self.expect(what, &packet.build(), packet.rss_queue(QUEUES));
    }

    /// Sends frames that must not arrive, and then some that must, on queue 0.
    #[track_caller]
    pub fn expect_nothing(&mut self, what: &str, frame: &[u8]) {
        self.tap.send(frame, COUNT);
        self.expect(what, &arp(), 0);
    }

    /// Adds a rule, in ethtool's words.
    #[track_caller]
    pub fn rule(&self, words: &str) {
        self.flows("add", words);
    }

    /// Deletes the rule at a location.
    #[track_caller]
    pub fn delete(&self, location: u32) {
        self.flows("del", &location.to_string());
    }

    #[track_caller]
    fn flows(&self, what: &str, words: &str) {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.flownic.ctl(&[&["flows", what, "n0"][..], &words].concat());
    }
}

/// A frame that has no hash: RSS leaves it on queue 0.
pub fn arp() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([0x02, 0xf1, 0, 0, 0, 1, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.resize(60, 0);
    frame
}
