//! A guest whose programs busy-poll their card: messages that go to the host and come back, and the counters that say what
//! brought the answers in, a poll or an interrupt.

mod trips;

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::guest::Driver;
use crate::nic::Interface;
use crate::{Family, Flownic, Guest, Kernel, Link, Machine, Namespace, Nic, Process, Workdir};
use crate::{build, procfs, traffic, wait_for};

pub use trips::RoundTrips;

/// Processors of the guest and queue pairs of its card.
pub const CPUS: u16 = 2;
/// Driver of the card after the boot.
const FIRST: Driver = Driver::FlownicNet;
/// The processor that clients run on; the other one is left to the rest of the guest.
const CLIENT: u16 = 1;
/// Before whatever else wants that processor: who is to make way stops to poll, and a packet that comes in just then is counted
/// neither as polled nor as an interrupt.
const URGENT: &str = "nice -n -20";
/// Bytes of a message: sockperf's smallest.
pub const SIZE: u32 = 14;
/// Port of sockperf's server at the host.
const SOCKPERF: u16 = 11111;
/// Port of ours, over TCP and UDP.
pub const PINGPONG: u16 = 11110;
/// How long a program may take beyond the time it is meant to.
const PATIENCE: Duration = Duration::from_secs(120);
/// Packets that come in before it counts how: those of the connection, and first messages.
const SETTLING: u64 = 10;
/// Packets that shares can be made of.
const FEWEST: u64 = 20;
/// How long the packets go to and fro that are counted, of a client's time.
const WINDOW: f64 = 0.6;
/// Longest that a client runs that is ended when it is not needed any more, in seconds.
const LONGEST: u32 = 600;
/// Where our program is, in guests and at the host.
const PROGRAM: &str = "/tmp/flownic-pingpong";

/// Counters of the guest and of its card. Those of the card are sums over its queues.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that came in by busy polling, `BusyPollRxPackets` of the guest's `/proc/net/netstat`.
    pub polled: u64,
    /// Packets that the guest has received, as it has counted them.
    pub received: u64,
    /// Interrupts of receive queues, as the guest has counted them.
    pub rx_interrupts: u64,
    /// Interrupts of transmit queues, as the guest has counted them.
    pub tx_interrupts: u64,
    /// Packets that flownic has given to the guest.
    pub rx_packets: u64,
    /// Signals that flownic has sent for receive queues.
    pub rx_signals: u64,
    /// Signals for receive queues that the guest did not want.
    pub rx_suppressed: u64,
    /// Signals that flownic has sent for transmit queues.
    pub tx_signals: u64,
    /// Signals for transmit queues that the guest did not want.
    pub tx_suppressed: u64,
    /// Times that the guest has kicked its transmit queues.
    pub kicks: u64,
}

impl Counters {
    /// What came after `before`.
    pub fn since(self, before: Counters) -> Counters {
        Counters {
            polled: self.polled - before.polled,
            received: self.received - before.received,
            rx_interrupts: self.rx_interrupts - before.rx_interrupts,
            tx_interrupts: self.tx_interrupts - before.tx_interrupts,
            rx_packets: self.rx_packets - before.rx_packets,
            rx_signals: self.rx_signals - before.rx_signals,
            rx_suppressed: self.rx_suppressed - before.rx_suppressed,
            tx_signals: self.tx_signals - before.tx_signals,
            tx_suppressed: self.tx_suppressed - before.tx_suppressed,
            kicks: self.kicks - before.kicks,
        }
    }
}

/// The guest, and what answers it.
pub struct Polling<'m> {
    /// The host's side, where servers run.
    pub host: &'m Machine,
    /// What serves the card `n0`.
    pub flownic: &'m Flownic<'m>,
    /// The guest, where clients run.
    pub guest: &'m Guest,
    /// The guest's card.
    pub nic: Interface<'m>,
    /// Its name on the virtio bus.
    device: String,
    /// The host's address.
    pub address: String,
    driver: Driver,
    _servers: Vec<Process<'m>>,
}

impl<'m> Polling<'m> {
    /// Starts flownic with a card of as many queues as the guest has processors.
    pub fn flownic(host: &'m Namespace, workdir: &Workdir) -> Flownic<'m> {
        Flownic::start(host, workdir, &[&format!("n0,queues={CPUS},port=tap:fn0")], &[])
    }

    /// Boots the guest. It has both drivers; the reference driver is the card's first.
    pub fn guest(workdir: &Workdir, kernel: Kernel) -> Guest {
        let nic = Nic::flownic(Flownic::socket(workdir, "n0"), CPUS.into());
        Guest::builder("guest").kernel(kernel).vcpus(CPUS.into()).driver(FIRST).nic(nic).boot(workdir)
    }

    /// Connects host and guest, starts servers at the host, and puts each interrupt on its processor.
    pub fn new(host: &'m Machine, flownic: &'m Flownic<'m>, guest: &'m Guest) -> Polling<'m> {
        let program = fs::read(build::pingpong()).expect("it has just been built");
        for machine in [host, guest] {
            machine.write(PROGRAM, 0o755, &program);
        }
        let ours = |protocol: &str| {
            let command = format!("{PROGRAM} serve --{protocol} --port {PINGPONG}");
            traffic::serve(host, &command, protocol, PINGPONG)
        };
        let servers = vec![
            traffic::serve(host, &format!("sockperf server --tcp -p {SOCKPERF}"), "tcp", SOCKPERF),
            ours("tcp"),
            ours("udp"),
            traffic::netserver(host),
        ];
        let (nic, address) = connect(flownic, guest);
        let polling = Polling {
            host,
            flownic,
            guest,
            device: nic.device(),
            nic,
            address,
            driver: FIRST,
            _servers: servers,
        };
        polling.pair_queues();
        polling
    }

    /// Driver of the guest's card.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Gives the card to a driver, if it has another one.
    pub fn bind(&mut self, driver: Driver) {
        if driver != self.driver {
            self.guest.bind(0, driver);
            (self.nic, self.address) = connect(self.flownic, self.guest);
            self.device = self.nic.device();
            self.driver = driver;
            self.pair_queues();
        }
    }

    /// Puts each queue's interrupts on its processor, and has who gets its answers by a queue send on the same one: then whoever
    /// polls for an answer takes back what was sent. By its hash a flow may come in by any queue.
    fn pair_queues(&self) {
        let (device, name) = (&self.device, self.nic.name());
        self.guest.run_ok(&format!(
            "for queue in $(seq 0 {}); do for direction in input output; do \
             irq=$(awk -v name={device}-$direction.$queue '$NF == name {{ print $1 + 0 }}' /proc/interrupts); \
             echo $queue >/proc/irq/$irq/smp_affinity_list || exit 1; done; \
             printf %x $((1 << queue)) >/sys/class/net/{name}/queues/tx-$queue/xps_rxqs || exit 1; done",
            CPUS - 1,
        ));
    }

    /// Has every socket of the guest busy-poll for so many microseconds before it sleeps, or not at all. A socket takes it
    /// over when it is made.
    pub fn set_busy_poll(&self, usecs: u32) {
        self.guest.run_ok(&format!(
            "echo {usecs} >/proc/sys/net/core/busy_read && echo {usecs} >/proc/sys/net/core/busy_poll"
        ));
    }

    /// Sets what queues do between packets, in the words of `flownic-pingpong napi`; gives what it prints, or says.
    ///
    /// # Errors
    /// When the kernel cannot do that.
    pub fn set_napi(&self, settings: &str) -> Result<String, String> {
        let output = self.guest.run(&format!("{PROGRAM} napi {} {settings}", self.nic.name()));
        if output.success() {
            Ok(output.text())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        let text = self.guest.run_ok("cat /proc/net/netstat /proc/net/dev /proc/interrupts");
        let (device, name) = (&self.device, self.nic.name());
        let interrupts = |direction: &str| -> u64 {
            procfs::interrupts(&text, &format!("{device}-{direction}.")).iter().sum()
        };
        let stats = self.flownic.ctl(&["stats", "n0"]);
        let card = |direction: &str, name: &str| sum(&stats, direction, name);
        Counters {
            polled: procfs::table(&text, "TcpExt:", "BusyPollRxPackets")
                .unwrap_or_else(|| panic!("No BusyPollRxPackets in {text}")),
            received: procfs::received(&text, name).unwrap_or_else(|| panic!("No {name} in {text}")),
            rx_interrupts: interrupts("input"),
            tx_interrupts: interrupts("output"),
            rx_packets: card("rx", "packets"),
            rx_signals: card("rx", "signals"),
            rx_suppressed: card("rx", "signals_suppressed"),
            tx_signals: card("tx", "signals"),
            tx_suppressed: card("tx", "signals_suppressed"),
            kicks: card("tx", "kicks"),
        }
    }

    /// A counter of the card, over all queues of a direction.
    fn card(&self, direction: &str, name: &str) -> u64 {
        sum(&self.flownic.ctl(&["stats", "n0"]), direction, name)
    }

    /// sockperf's ping-pong over TCP, with at most so many messages a second; nothing if too few got through to say
    /// anything.
    pub fn sockperf(&self, mps: u32, seconds: u32) -> Option<(RoundTrips, Counters)> {
        let (text, counters) = self.client(&self.sockperf_command(mps, seconds), seconds)?;
        Some((trips::sockperf(&text)?, counters))
    }

    fn sockperf_command(&self, mps: u32, seconds: u32) -> String {
        let address = &self.address;
        format!(
            "sockperf ping-pong --tcp -i {address} -p {SOCKPERF} -m {SIZE} --mps {mps} -t {seconds} --full-rtt"
        )
    }

    /// Our ping-pong; `options` are those of `flownic-pingpong ping`. As [`Polling::sockperf`], there may be nothing to say.
    pub fn ping(&self, options: &str, seconds: u32) -> Option<(RoundTrips, Counters)> {
        let command = format!(
            "{PROGRAM} ping {} --port {PINGPONG} --size {SIZE} --seconds {seconds} {options}",
            self.address
        );
        let (text, counters) = self.client(&command, seconds)?;
        Some((trips::pingpong(&text)?, counters))
    }

    /// netperf's `TCP_RR` or `UDP_RR` with a byte each way. It tells a mean; percentiles are no numbers (NaN). As
    /// [`Polling::sockperf`], there may be nothing to say.
    pub fn netperf(&self, test: &str, seconds: u32) -> Option<(RoundTrips, Counters)> {
        let command = format!("netperf -4 -H {} -t {test} -l {seconds} -P 0 -- -r 1,1", self.address);
        let (text, counters) = self.client(&command, seconds)?;
        Some((trips::netperf(&text)?, counters))
    }

    /// What counters count while so many packets come in, of sockperf's ping-pong with at most `mps` messages a second.
    pub fn count(&self, mps: u32, packets: u64) -> Counters {
        let mut client = self.spawn(&self.sockperf_command(mps, LONGEST));
        let before = self.counters();
        let wanted = before.rx_packets + packets;
        if !self.wait_for_packets(&mut client, wanted) {
            panic!("The client ended before {packets} packets had come in: {}", client.output());
        }
        let counters = self.counters().since(before);
        client.kill(libc::SIGINT);
        client.wait(PATIENCE);
        counters
    }

    /// Runs a client to its end. Gives what it has printed, and what counters have counted while messages went to and fro;
    /// nothing if it was at its end before there was anything to count.
    fn client(&self, command: &str, seconds: u32) -> Option<(String, Counters)> {
        let mut client = self.spawn(command);
        let before = self.counters();
        let end = Instant::now() + Duration::from_secs(seconds.into()).mul_f64(WINDOW);
        wait_for("the time to pass", 2 * PATIENCE, || {
            if Instant::now() >= end || client.ended().is_some() { Ok(()) } else { Err("not yet".to_owned()) }
        });
        let counters = self.counters().since(before);
        let output = client.wait(PATIENCE + Duration::from_secs(seconds.into()));
        assert!(output.success(), "`{command}` ended with {output}");
        (counters.received >= FEWEST).then(|| (output.text(), counters))
    }

    /// Starts a client, and waits until it is at it, or at its end.
    fn spawn(&self, command: &str) -> Process<'m> {
        let settled = self.card("rx", "packets") + SETTLING;
        let mut client = self.guest.spawn(&format!("exec {URGENT} taskset -c {CLIENT} {command}"));
        self.wait_for_packets(&mut client, settled);
        client
    }

    /// Waits until the card has given so many packets to the guest, as long as the client runs; whether it has.
    fn wait_for_packets(&self, client: &mut Process, wanted: u64) -> bool {
        wait_for("answers to come in", PATIENCE, || {
            let ended = client.ended().is_some();
            let packets = self.card("rx", "packets");
            if packets >= wanted || ended {
                Ok(packets >= wanted)
            } else {
                Err(format!("{packets} of {wanted}"))
            }
        })
    }
}

/// A counter's sum over the queues of the first card in `stats`.
fn sum(stats: &Value, direction: &str, name: &str) -> u64 {
    let queues = stats.pointer(&format!("/0/{direction}")).and_then(Value::as_array);
    let values = queues.into_iter().flatten().map(|queue| queue.get(name).and_then(Value::as_u64));
    let sum: Option<u64> = values.sum();
    sum.unwrap_or_else(|| panic!("No counter {name} in {stats}"))
}

/// Connects the tap and the guest's card; gives the card and the host's address.
fn connect<'m>(flownic: &Flownic<'m>, guest: &'m Guest) -> (Interface<'m>, String) {
    let link = Link::up(0, Interface::named(flownic.machine(), "fn0"), guest.interface(0));
    (guest.interface(0), link.near(Family::V4))
}
