//! A guest whose queues and processors belong to each other, and flows that come in over a tap: what the demo and the
//! experiments measure.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::guest::Driver;
use crate::nic::Interface;
use crate::protocol::Done;
use crate::stop::{Interrupted, Stop, progress};
use crate::{Family, Flownic, Guest, Link, Machine, Namespace, Nic, Process, Workdir, traffic};

/// Processors of the guest and queue pairs of its card.
pub const CPUS: u16 = 4;
/// Port of the netserver on processor 0; the others follow, and then one that may run on any.
const SERVER: u16 = 12865;
/// Entries of the kernel's table of sockets (`rps_sock_flow_entries`) with RFS.
const SOCKET_ENTRIES: u32 = 32768;
/// Entries of each queue's table of flows (`rps_flow_cnt`) with RFS.
const FLOW_ENTRIES: u32 = 8192;
/// How long anything may take beyond the time it is meant to.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Counters of reasons, and what they are called here.
pub const REASONS: [(&str, &str); 4] =
    [("by_filter", "filter"), ("by_learned", "learned"), ("by_rss", "RSS"), ("by_default", "default")];

/// A receive queue's counters, or the sum of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queue {
    /// Frames that the guest got.
    pub packets: u64,
    /// Interrupts.
    pub signals: u64,
    /// Frames by what decided on the queue, as in [`REASONS`].
    pub reasons: [u64; REASONS.len()],
}

impl Queue {
    /// From an object of counters.
    ///
    /// # Panics
    /// When one is missing.
    fn new(counters: &Value) -> Queue {
        let get = |name: &str| {
            let value = counters.get(name).and_then(Value::as_u64);
            value.unwrap_or_else(|| panic!("No counter {name} in {counters}"))
        };
        let reasons = REASONS.map(|(name, _)| get(name));
        Queue { packets: get("packets"), signals: get("signals"), reasons }
    }

    /// Sum of several.
    pub fn sum(queues: &[Queue]) -> Queue {
        queues.iter().fold(Queue::default(), |sum, queue| sum.with(queue, |a, b| a + b))
    }

    /// What came after `before`.
    pub fn since(self, before: &Queue) -> Queue {
        self.with(before, |now, before| now.saturating_sub(before))
    }

    /// Frames that the counter `name`, of [`REASONS`], has decided about.
    pub fn by(&self, name: &str) -> u64 {
        REASONS
            .iter()
            .zip(self.reasons)
            .find(|((reason, _), _)| *reason == name)
            .map_or(0, |(_, count)| count)
    }

    fn with(self, other: &Queue, op: impl Fn(u64, u64) -> u64) -> Queue {
        let mut reasons = self.reasons;
        reasons.iter_mut().zip(other.reasons).for_each(|(value, more)| *value = op(*value, more));
        Queue { packets: op(self.packets, other.packets), signals: op(self.signals, other.signals), reasons }
    }
}

/// Receive flow steering: how the guest's kernel brings packets to the processor that wants them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rfs {
    /// Not at all.
    Off,
    /// It hands packets over to another processor.
    Soft,
    /// It tells the driver, which has the device steer them.
    Accelerated,
}

impl Rfs {
    /// Shell commands that switch it, for the card `name`. The driver has filters or not. `rps_cpus` stays empty: RFS
    /// finds its processor by itself, and RPS would spread what RFS leaves alone.
    pub fn commands(self, name: &str, driver: Driver) -> Vec<String> {
        let (sockets, flows) = if self == Rfs::Off { (0, 0) } else { (SOCKET_ENTRIES, FLOW_ENTRIES) };
        let ntuple = if self == Rfs::Accelerated { "on" } else { "off" };
        let filters = (driver == Driver::FlownicNet).then(|| format!("ethtool -K {name} ntuple {ntuple}"));
        let tables = [
            format!(
                "for i in 0 1 2 3; do echo {flows} >/sys/class/net/{name}/queues/rx-$i/rps_flow_cnt; done"
            ),
            format!("echo {sockets} >/proc/sys/net/core/rps_sock_flow_entries"),
        ];
        filters.into_iter().chain(tables).collect()
    }
}

/// A command of the guest before all others that want its processors: its servers keep those busy.
///
/// # Panics
/// When it has a single quote.
pub fn urgent(command: &str) -> String {
    assert!(!command.contains('\''), "The command is quoted: {command}");
    format!("chrt -f 50 sh -c '{command}'")
}

/// A guest with a server on each processor, and everything around it.
pub struct Rig<'m> {
    /// Whether the user wants it to end.
    pub stop: Stop,
    /// Where clients run.
    pub host: &'m Machine,
    /// What serves the card `n0`.
    pub flownic: &'m Flownic<'m>,
    /// Where servers run.
    pub guest: &'m Guest,
    /// The guest's card.
    pub nic: Interface<'m>,
    /// The guest's address.
    pub address: String,
    driver: Driver,
    _servers: Vec<Process<'m>>,
}

/// A decision about a frame: the server's port of its flow, and the queue.
pub type Decision = (u16, u16);

impl<'m> Rig<'m> {
    /// Starts flownic with a card of as many queues as the guest has processors.
    pub fn flownic(host: &'m Namespace, workdir: &Workdir) -> Flownic<'m> {
        progress("Starting flownic with a tap in a network namespace");
        Flownic::start(host, workdir, &[&format!("n0,queues={CPUS},port=tap:fn0")], &[])
    }

    /// Boots the guest, whose card has `driver`, with `memory` MiB.
    pub fn guest(workdir: &Workdir, driver: Driver, memory: u32) -> Guest {
        progress(&format!("Booting a guest with {CPUS} CPUs (after those of tests, if any are running)"));
        let begun = Instant::now();
        let nic = Nic::flownic(Flownic::socket(workdir, "n0"), CPUS.into());
        let builder = Guest::builder("guest").vcpus(CPUS.into()).memory(memory).driver(driver).nic(nic);
        let guest = builder.boot(workdir);
        progress(&format!("It is up after {:.1} s", begun.elapsed().as_secs_f64()));
        guest
    }

    /// Connects host and guest, puts each interrupt and each server on its processor.
    pub fn new(
        stop: &Stop,
        host: &'m Namespace,
        flownic: &'m Flownic<'m>,
        guest: &'m Guest,
        driver: Driver,
    ) -> Rig<'m> {
        let (nic, address) = connect(flownic, guest);
        let serve = |pin: String, port: u16| {
            traffic::serve(guest, &format!("{pin}netserver -D -4 -p {port}"), "tcp", port)
        };
        let pinned = (0..CPUS).map(|cpu| serve(format!("taskset -c {cpu} "), Self::server(Some(cpu))));
        let servers = pinned.chain([serve(String::new(), Self::server(None))]).collect();
        let rig = Rig { stop: stop.clone(), host, flownic, guest, nic, address, driver, _servers: servers };
        rig.pin_interrupts();
        rig
    }

    /// Gives the card to another driver. Servers go on; connections are lost.
    pub fn bind(&mut self, driver: Driver) {
        self.guest.bind(0, driver);
        (self.nic, self.address) = connect(self.flownic, self.guest);
        self.driver = driver;
        self.pin_interrupts();
    }

    fn pin_interrupts(&self) {
        self.interrupts("echo $queue >/proc/irq/$irq/smp_affinity_list");
    }

    /// Switches receive flow steering in the guest.
    pub fn set_rfs(&self, rfs: Rfs) {
        let commands = rfs.commands(self.nic.name(), self.driver).join("; ");
        self.guest.run_ok(&urgent(&format!("set -e; {commands}")));
    }

    /// Port of the server that is on a processor, or on none in particular.
    pub fn server(cpu: Option<u16>) -> u16 {
        SERVER + cpu.unwrap_or(CPUS)
    }

    /// Driver of the guest's card.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Runs a shell command for each receive queue's interrupt; it finds them in `$queue` and `$irq`.
    fn interrupts(&self, command: &str) -> String {
        self.guest.run_ok(&format!(
            "device=$(basename $(readlink /sys/class/net/{}/device)); for queue in $(seq 0 {}); do \
             irq=$(awk -v name=$device-input.$queue '$NF == name {{ print $1 + 0 }}' /proc/interrupts); \
             {command} || exit 1; done",
            self.nic.name(),
            CPUS - 1,
        ))
    }

    /// Each receive interrupt went to the processor with the queue's number.
    ///
    /// # Panics
    /// When one did not: then the tables say nothing about processors.
    pub fn check_interrupts(&self) {
        let seen = self.interrupts("cat /proc/irq/$irq/effective_affinity_list");
        let wanted: Vec<String> = (0..CPUS).map(|cpu| cpu.to_string()).collect();
        assert_eq!(
            seen.split_whitespace().collect::<Vec<_>>(),
            wanted,
            "processors of the queues' interrupts"
        );
    }

    /// A request to flownic, in the words of `flownic ctl`.
    pub fn ctl(&self, words: &str) -> Value {
        self.flownic.ctl(&words.split_whitespace().collect::<Vec<_>>())
    }

    /// Counters of the receive queues.
    pub fn queues(&self) -> Vec<Queue> {
        let stats = self.ctl("stats n0");
        let queues = stats.pointer("/0/rx").and_then(Value::as_array);
        queues.unwrap_or_else(|| panic!("No receive queues in {stats}")).iter().map(Queue::new).collect()
    }

    /// Packets that all receive queues have had.
    pub fn packets(&self) -> u64 {
        Queue::sum(&self.queues()).packets
    }

    /// Waits for a client that is to end by now, and gives what it has printed.
    ///
    /// # Errors
    /// When the user has had enough.
    ///
    /// # Panics
    /// When it fails or does not end within `limit`.
    pub fn finish(&self, mut client: Process, limit: Duration) -> Result<String, Interrupted> {
        let ended = self.stop.wait_for("netperf to end", limit, || {
            client.ended().ok_or_else(|| client.output().to_string())
        })?;
        let output = client.output();
        assert!(ended == Done::Exited(0), "netperf ended with {output}");
        Ok(output.text())
    }

    /// Traces decisions about TCP packets while flows run: `count` of them, or what came within `limit`.
    ///
    /// # Errors
    /// When the user has had enough.
    pub fn trace(&self, count: u32, limit: Duration) -> Result<Vec<Decision>, Interrupted> {
        let mut command =
            self.flownic.ctl_command(&["trace", "n0", "--protocol", "tcp", "-n", &count.to_string()]);
        let mut child =
            command.stdout(Stdio::piped()).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut pipe = child.stdout.take().expect("it was asked for");
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).map(|_| text)
        });
        let deadline = Instant::now() + limit;
        let outcome = self.stop.wait_for("a trace to end", limit + PATIENCE, || {
            if Instant::now() > deadline {
                // Fails only when it has ended.
                let _ = child.kill();
            }
            child.try_wait().expect("a child of ours").ok_or_else(|| "it runs".to_owned())
        });
        if outcome.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        outcome?;
        let text = reader.join().expect("the reader does not panic").expect("a pipe can be read");
        Ok(text.lines().filter_map(decision).collect())
    }
}

/// Connects the tap and the guest's card; gives the card and its address.
fn connect<'m>(flownic: &Flownic<'m>, guest: &'m Guest) -> (Interface<'m>, String) {
    let link = Link::up(0, Interface::named(flownic.machine(), "fn0"), guest.interface(0));
    (guest.interface(0), link.far(Family::V4))
}

/// Port and queue of a line of `flownic ctl --json trace`; of those that chose a queue.
fn decision(line: &str) -> Option<Decision> {
    let value: Value = serde_json::from_str(line).ok()?;
    let number = |field: &str| u16::try_from(value.pointer(field)?.as_u64()?).ok();
    Some((number("/trace/dst_port")?, number("/trace/queue")?))
}

/// The figure of a netperf request/response test, transactions per second: the last of the line with the most.
///
/// # Panics
/// When there is none.
pub fn figure(text: &str) -> f64 {
    let figures = text.lines().next().and_then(|line| line.split_whitespace().last()?.parse().ok());
    figures.unwrap_or_else(|| panic!("No figure in {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_added_and_compared() {
        let counters = serde_json::json!({
            "packets": 9, "signals": 5, "by_filter": 1, "by_learned": 2, "by_rss": 3, "by_default": 3
        });
        let queue = Queue::new(&counters);
        let twice = Queue::sum(&[queue, queue]);
        assert_eq!((twice.packets, twice.by("by_learned"), twice.by("by_luck")), (18, 4, 0));
        assert_eq!(twice.since(&queue), queue);
    }

    #[test]
    fn rfs_has_tables_and_filters_only_where_the_driver_has_them() {
        let soft = Rfs::Soft.commands("eth0", Driver::VirtioNet);
        assert!(soft.len() == 2 && soft[1].starts_with("echo 32768 >"), "{soft:?}");
        let off = Rfs::Off.commands("eth0", Driver::FlownicNet);
        assert!(off[0] == "ethtool -K eth0 ntuple off" && off[2].starts_with("echo 0 >"), "{off:?}");
        assert_eq!(Rfs::Accelerated.commands("eth0", Driver::FlownicNet)[0], "ethtool -K eth0 ntuple on");
    }

    #[test]
    fn decisions_and_figures_are_read() {
        assert_eq!(decision(r#"{"trace":{"dst_port":80,"queue":3}}"#), Some((80, 3)));
        assert_eq!(decision(r#"{"trace":{"dst_port":80,"queue":null}}"#), None);
        assert_eq!(decision(r#"{"lost":3}"#), None);
        let text = "16384  131072 1        1       3.91       46.82   \n16384  131072";
        assert!((figure(text) - 46.82).abs() < 1e-9);
    }
}
