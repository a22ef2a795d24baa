//! A guest whose programs busy-poll their card: messages that go to the host and come back, and the counters that say what
//! brought the answers in, a poll or an interrupt.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::guest::Driver;
use crate::nic::Interface;
use crate::{Family, Flownic, Guest, Kernel, Link, Machine, Namespace, Nic, Process, Workdir};
use crate::{build, procfs, traffic, wait_for};

/// Processors of the guest and queue pairs of its card.
pub const CPUS: u16 = 2;
/// Driver of the card after the boot.
const FIRST: Driver = Driver::FlownicNet;
/// The processor that clients run on; the other one is left to the rest of the guest.
const CLIENT: u16 = 1;
/// Bytes of a message: sockperf's smallest.
pub const SIZE: u32 = 14;
/// Port of sockperf's server at the host.
const SOCKPERF: u16 = 11111;
/// Port of ours, over TCP and UDP.
pub const PINGPONG: u16 = 11110;
/// How long a program may take beyond the time it is meant to.
const PATIENCE: Duration = Duration::from_secs(120);
/// Starts what is at the host. A guest's kick wakes flownic; were that to take the place of the guest's processor, which is
/// about to poll, the answer would be there before, and come with an interrupt. Batch processes wait for a free one.
const PATIENT: &str = "chrt --batch";
/// Packets that come in before it counts how: those of the connection, and first messages.
const SETTLING: u64 = 10;
/// Part of a client's time that has passed when it counts again.
const WINDOW: f64 = 0.8;
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

/// What a program has measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoundTrips {
    /// Messages that went to and fro, those of a warm-up as well.
    pub messages: u64,
    /// Mean round-trip time in microseconds.
    pub mean: f64,
    /// Median of it.
    pub p50: f64,
    /// 99 % are not longer.
    pub p99: f64,
    /// 99.9 % are not longer.
    pub p999: f64,
    /// CPU time of the client for a message in microseconds, where it tells.
    pub cpu: Option<f64>,
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
        let mut flownic = Flownic::start(host, workdir, &[&format!("n0,queues={CPUS},port=tap:fn0")], &[]);
        host.run_ok(&format!("{PATIENT} --all-tasks --pid 0 {}", flownic.pid()));
        flownic
    }

    /// Boots the guest. It has both drivers; the reference driver is the card's first.
    pub fn guest(workdir: &Workdir, kernel: Kernel) -> Guest {
        let nic = Nic::flownic(Flownic::socket(workdir, "n0"), CPUS.into());
        Guest::builder("guest").kernel(kernel).vcpus(CPUS.into()).driver(FIRST).nic(nic).boot(workdir)
    }

    /// Connects host and guest, starts servers at the host, and puts each interrupt on its processor.
    pub fn new(host: &'m Machine, flownic: &'m Flownic<'m>, guest: &'m Guest) -> Polling<'m> {
        let serve = |command: String, protocol: &str, port: u16| {
            traffic::serve(host, &format!("{PATIENT} 0 {command}"), protocol, port)
        };
        let program = fs::read(build::pingpong()).expect("it has just been built");
        for machine in [host, guest] {
            machine.write(PROGRAM, 0o755, &program);
        }
        let ours = |protocol: &str| {
            serve(format!("{PROGRAM} serve --{protocol} --port {PINGPONG}"), protocol, PINGPONG)
        };
        let servers = vec![
            serve(format!("sockperf server --tcp -p {SOCKPERF}"), "tcp", SOCKPERF),
            ours("tcp"),
            ours("udp"),
            serve("netserver -D".to_owned(), "tcp", 12865),
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
        polling.pin_interrupts();
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
            self.pin_interrupts();
        }
    }

    fn pin_interrupts(&self) {
        let device = &self.device;
        self.guest.run_ok(&format!(
            "for queue in $(seq 0 {}); do for direction in input output; do \
             irq=$(awk -v name={device}-$direction.$queue '$NF == name {{ print $1 + 0 }}' /proc/interrupts); \
             echo $queue >/proc/irq/$irq/smp_affinity_list || exit 1; done; done",
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

    /// sockperf's ping-pong over TCP, with at most so many messages a second.
    pub fn sockperf(&self, mps: u32, seconds: u32) -> (RoundTrips, Counters) {
        let command = format!(
            "sockperf ping-pong --tcp -i {} -p {SOCKPERF} -m {SIZE} --mps {mps} -t {seconds} --full-rtt",
            self.address
        );
        let (text, counters) = self.client(&command, seconds);
        let trips = sockperf(&text).unwrap_or_else(|what| panic!("sockperf did not tell {what}: {text}"));
        (trips, counters)
    }

    /// Our ping-pong; `options` are those of `flownic-pingpong ping`.
    pub fn ping(&self, options: &str, seconds: u32) -> (RoundTrips, Counters) {
        let command = format!(
            "{PROGRAM} ping {} --port {PINGPONG} --size {SIZE} --seconds {seconds} {options}",
            self.address
        );
        let (text, counters) = self.client(&command, seconds);
        let trips = pingpong(&text).unwrap_or_else(|| panic!("flownic-pingpong did not tell all: {text}"));
        (trips, counters)
    }

    /// netperf's `TCP_RR` or `UDP_RR` with a byte each way. It tells a mean; percentiles are no numbers (NaN).
    pub fn netperf(&self, test: &str, seconds: u32) -> (RoundTrips, Counters) {
        let command = format!("netperf -4 -H {} -t {test} -l {seconds} -P 0 -- -r 1,1", self.address);
        let (text, counters) = self.client(&command, seconds);
        (netperf(&text).unwrap_or_else(|| panic!("No figure of {test} in {text}")), counters)
    }

    /// Runs a client to its end. Gives what it has printed, and what counters have counted while messages went to and fro:
    /// from after the first ones until some time before the last.
    fn client(&self, command: &str, seconds: u32) -> (String, Counters) {
        let settled = self.card("rx", "packets") + SETTLING;
        let begin = Instant::now();
        let mut client = self.guest.spawn(&format!("taskset -c {CLIENT} {command}"));
        wait_for(&format!("`{command}` to get answers"), PATIENCE, || {
            if client.ended().is_some() {
                panic!("`{command}` ended with {}", client.output());
            }
            let packets = self.card("rx", "packets");
            if packets >= settled { Ok(()) } else { Err(format!("{packets} of {settled} packets")) }
        });
        let before = self.counters();
        let most = Duration::from_secs(seconds.into()).mul_f64(WINDOW);
        wait_for("the time to pass", PATIENCE + most, || {
            if begin.elapsed() >= most { Ok(()) } else { Err("not yet".to_owned()) }
        });
        let counters = self.counters().since(before);
        let output = client.wait(PATIENCE + Duration::from_secs(seconds.into()));
        assert!(output.success(), "`{command}` ended with {output}");
        (output.text(), counters)
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

/// From sockperf's report; the error is what is missing.
fn sockperf(text: &str) -> Result<RoundTrips, &'static str> {
    let after = |start: &str, end: &str| -> Option<f64> {
        let rest = text.split_once(start)?.1.trim_start_matches([' ', '=']);
        rest.split(|byte: char| end.contains(byte)).next()?.trim().parse().ok()
    };
    Ok(RoundTrips {
        messages: after("; ReceivedMessages=", "\n").ok_or("how many messages there were")? as u64,
        mean: after("====> avg-rtt", " ").ok_or("the mean")?,
        p50: after("percentile 50.000", "\n").ok_or("the median")?,
        p99: after("percentile 99.000", "\n").ok_or("the 99th percentile")?,
        p999: after("percentile 99.900", "\n").ok_or("the 99.9th percentile")?,
        cpu: None,
    })
}

/// From netperf's line: time and transactions per second are its last numbers.
fn netperf(text: &str) -> Option<RoundTrips> {
    let numbers: Vec<f64> =
        text.lines().next()?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [.., elapsed, rate] = *numbers.as_slice() else { return None };
    let none = f64::NAN;
    let trips = RoundTrips {
        messages: (rate * elapsed) as u64,
        mean: 1e6 / rate,
        p50: none,
        p99: none,
        p999: none,
        cpu: None,
    };
    (rate > 0.0).then_some(trips)
}

/// From our program's line.
fn pingpong(text: &str) -> Option<RoundTrips> {
    let value: Value = serde_json::from_str(text).ok()?;
    let rtt = |name: &str| value.pointer(&format!("/rtt_us/{name}")).and_then(Value::as_f64);
    let measured = value["measured"].as_f64().filter(|measured| *measured > 0.0)?;
    Some(RoundTrips {
        messages: value["messages"].as_u64()?,
        mean: rtt("mean")?,
        p50: rtt("p50")?,
        p99: rtt("p99")?,
        p999: rtt("p99.9")?,
        cpu: Some(value["cpu_us"].as_f64()? / measured),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_sockperf_are_read() {
        let text = "sockperf: [Total Run] RunTime=1.000 sec; Warm up time=400 msec; SentMessages=1001; \
                    ReceivedMessages=1000\nsockperf: ========= Printing statistics for Server No: 0\n\
                    sockperf: [Valid Duration] RunTime=0.548 sec; SentMessages=549; ReceivedMessages=549\n\
                    sockperf: \x1b[2;35m====> avg-rtt=24.818 (std-dev=166.403)\x1b[0m\n\
                    sockperf: ---> percentile 99.900 =  644.816\nsockperf: ---> percentile 99.000 =   29.443\n\
                    sockperf: ---> percentile 50.000 =   16.244\n";
        let expected =
            RoundTrips { messages: 1000, mean: 24.818, p50: 16.244, p99: 29.443, p999: 644.816, cpu: None };
        assert_eq!(sockperf(text), Ok(expected));
        assert_eq!(sockperf(&text.replace("percentile 99.900", "")), Err("the 99.9th percentile"));
    }

    #[test]
    fn reports_of_netperf_are_read() {
        let trips = netperf("16384  131072 1        1       2.00    4000.00   \n16384  131072\n").unwrap();
        assert_eq!((trips.messages, trips.mean), (8000, 250.0));
        assert!(trips.p50.is_nan() && netperf("").is_none());
    }

    #[test]
    fn reports_of_our_own_program_are_read() {
        let text = r#"{"cpu_us":500,"lost":0,"measured":100,"messages":120,"napi_id":513,
            "rtt_us":{"max":9.0,"mean":3.5,"min":1.0,"p50":3.0,"p90":4.0,"p99":5.0,"p99.9":6.0}}"#;
        let expected = RoundTrips { messages: 120, mean: 3.5, p50: 3.0, p99: 5.0, p999: 6.0, cpu: Some(5.0) };
        assert_eq!(pingpong(text), Some(expected));
        assert_eq!(pingpong(&text.replace("100", "0")), None);
    }
}
