//! The set-up that all four ways share, and what is measured in each.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use guest_tests::nic::Interface;
use guest_tests::protocol::Done;
use guest_tests::wait_for;
use guest_tests::{Family, Flownic, Guest, Link, Machine, Namespace, Nic, Process, Workdir, build, traffic};
use serde_json::Value;

use crate::report::{Queue, Report};
use crate::{Interrupted, Stop};

/// Processors of the guest and queue pairs of its card.
pub(crate) const CPUS: u16 = 4;
/// Flows for each processor.
const FLOWS_PER_CPU: u16 = 2;
/// Port of the netserver on processor 0; the others follow.
const SERVER: u16 = 12865;
/// The client's port of the first flow.
const NEAR: u16 = 30000;
/// The server's port of the first flow; each way has a hundred of its own.
const FAR: u16 = 20000;
/// Decisions that are traced in each way.
const TRACED: u32 = 2000;
/// How long anything may take beyond the time it is meant to.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two looks at what runs.
const PAUSE: Duration = Duration::from_millis(50);

/// A way to steer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    /// What it is called.
    pub(crate) title: &'static str,
    /// Words of `flownic ctl` that set it up.
    pub(crate) commands: &'static [&'static str],
    /// The counter that speaks for it.
    pub(crate) reason: &'static str,
    /// Whether each flow gets a rule.
    rules: bool,
}

/// The four ways.
pub(crate) const WAYS: [Way; 4] = [
    Way {
        title: "No steering",
        commands: &["learn n0 off", "rss set n0 off"],
        reason: "by_default",
        rules: false,
    },
    Way { title: "RSS", commands: &["learn n0 off", "rss set n0 on"], reason: "by_rss", rules: false },
    Way {
        title: "Learned flows",
        commands: &["learn n0 on", "rss set n0 on"],
        reason: "by_learned",
        rules: false,
    },
    Way { title: "Filters", commands: &["learn n0 off", "rss set n0 on"], reason: "by_filter", rules: true },
];

/// One flow: a netperf that talks to the netserver on a processor.
#[derive(Debug, Clone, Copy)]
struct Flow {
    cpu: u16,
    near: u16,
    far: u16,
}

impl Flow {
    fn all(way: u16) -> impl Iterator<Item = Flow> {
        (0..CPUS * FLOWS_PER_CPU).map(move |number| Flow {
            cpu: number % CPUS,
            near: NEAR + 100 * way + number,
            far: FAR + 100 * way + number,
        })
    }

    /// The rule that puts it on its server's processor, in the words of `flownic ctl flows add`.
    fn rule(self) -> String {
        format!("flow-type tcp4 dst-port {} action {}", self.far, self.cpu)
    }
}

/// A guest with a server on each processor, and everything around it.
pub(crate) struct Bench<'m> {
    stop: Stop,
    host: &'m Machine,
    flownic: &'m Flownic<'m>,
    guest: &'m Guest,
    address: String,
    workdir: Workdir,
    _servers: Vec<Process<'m>>,
}

impl<'m> Bench<'m> {
    /// Starts flownic with a card of as many queues as the guest has processors.
    pub(crate) fn flownic(host: &'m Namespace, workdir: &Workdir) -> Flownic<'m> {
        Flownic::start(host, workdir, &[&format!("n0,queues={CPUS},port=tap:fn0")], &[])
    }

    /// Boots the guest.
    pub(crate) fn guest(workdir: &Workdir) -> Guest {
        let nic = Nic::flownic(Flownic::socket(workdir, "n0"), CPUS.into());
        Guest::builder("guest").vcpus(CPUS.into()).nic(nic).boot(workdir)
    }

    /// Connects host and guest, puts each interrupt and each server on its processor.
    pub(crate) fn new(
        stop: &Stop,
        host: &'m Namespace,
        flownic: &'m Flownic<'m>,
        guest: &'m Guest,
        workdir: &Workdir,
    ) -> Bench<'m> {
        let near = Interface::named(host, "fn0");
        let link = Link::up(0, near, guest.interface(0));
        let servers = (0..CPUS)
            .map(|cpu| {
                let port = SERVER + cpu;
                traffic::serve(guest, &format!("taskset -c {cpu} netserver -D -4 -p {port}"), "tcp", port)
            })
            .collect();
        let bench = Bench {
            stop: stop.clone(),
            host,
            flownic,
            guest,
            address: link.far(Family::V4),
            workdir: workdir.clone(),
            _servers: servers,
        };
        bench.interrupts("echo $queue >/proc/irq/$irq/smp_affinity_list");
        bench
    }

    /// Runs a shell command for each receive queue's interrupt; it finds them in `$queue` and `$irq`.
    fn interrupts(&self, command: &str) -> String {
        self.guest.run_ok(&format!(
            "device=$(basename $(readlink /sys/class/net/{}/device)); for queue in $(seq 0 {}); do \
             irq=$(awk -v name=$device-input.$queue '$NF == name {{ print $1 + 0 }}' /proc/interrupts); \
             {command} || exit 1; done",
            self.guest.interface(0).name(),
            CPUS - 1,
        ))
    }

    /// Each receive interrupt went to the processor with the queue's number.
    ///
    /// # Panics
    /// When one did not: then the tables say nothing about processors.
    pub(crate) fn check_interrupts(&self) {
        let seen = self.interrupts("cat /proc/irq/$irq/effective_affinity_list");
        let wanted: Vec<String> = (0..CPUS).map(|cpu| cpu.to_string()).collect();
        assert_eq!(
            seen.split_whitespace().collect::<Vec<_>>(),
            wanted,
            "processors of the queues' interrupts"
        );
    }

    fn ctl(&self, words: &str) -> Value {
        self.flownic.ctl(&words.split_whitespace().collect::<Vec<_>>())
    }

    /// Counters of the receive queues.
    fn queues(&self) -> Vec<Queue> {
        let stats = self.ctl("stats n0");
        let queues = stats.pointer("/0/rx").and_then(Value::as_array);
        queues.unwrap_or_else(|| panic!("No receive queues in {stats}")).iter().map(Queue::new).collect()
    }

    /// Sends all flows through for `seconds` with `way` to steer them.
    pub(crate) fn run(&self, way: Way, seconds: u32) -> Result<Report, Interrupted> {
        let number = WAYS.iter().position(|other| other.title == way.title).unwrap_or_default();
        let flows: Vec<Flow> = Flow::all(number as u16).collect();
        for words in way.commands {
            self.ctl(words);
        }
        for flow in flows.iter().filter(|_| way.rules) {
            self.ctl(&format!("flows add n0 {}", flow.rule()));
        }
        self.ctl("learn n0 clear");
        self.ctl("reset-stats n0");
        let clients: Vec<Process> = flows
            .iter()
            .map(|flow| {
                let Flow { cpu, near, far } = flow;
                let (address, port) = (&self.address, SERVER + cpu);
                self.host.spawn(&format!(
                    "netperf -4 -H {address} -p {port} -t TCP_RR -l {seconds} -P 0 -- -P {near},{far}"
                ))
            })
            .collect();
        let (traced, at_home) = self.trace(&flows)?;
        let limit = Duration::from_secs(seconds.into()) + PATIENCE;
        let mut transactions = 0.0;
        for client in clients {
            transactions += self.transactions(client, limit)?;
        }
        let queues = self.queues();
        self.ctl("flows clear n0");
        let rule = way.rules.then(|| flows[0].rule());
        Ok(Report {
            number: number + 1,
            way,
            rule,
            flows: flows.len(),
            queues,
            transactions,
            traced,
            at_home,
        })
    }

    /// Waits for a netperf and gives its transactions per second.
    fn transactions(&self, mut client: Process, limit: Duration) -> Result<f64, Interrupted> {
        let deadline = Instant::now() + limit;
        while client.ended().is_none() {
            self.stop.check()?;
            assert!(Instant::now() < deadline, "netperf still runs: {}", client.output());
            std::thread::sleep(PAUSE);
        }
        let output = client.output();
        assert!(output.status == Done::Exited(0), "netperf ended with {output}");
        // The last figure of the line with the most figures.
        let text = output.text();
        let figures = text.lines().next().and_then(|line| line.split_whitespace().last()?.parse().ok());
        Ok(figures.unwrap_or_else(|| panic!("No figure in {text}")))
    }

    /// Traces decisions while flows run: how many were about them, and how many of those chose the queue of the
    /// processor where the flow's server is.
    fn trace(&self, flows: &[Flow]) -> Result<(u64, u64), Interrupted> {
        // Past the set-up of connections.
        wait_for("the flows to run", PATIENCE, || {
            let packets: u64 = self.queues().iter().map(|queue| queue.packets).sum();
            if packets > 1000 || self.stop.wanted() { Ok(()) } else { Err(format!("{packets} packets")) }
        });
        let mut command = Command::new(build::flownic());
        command.arg("ctl").arg("--control").arg(self.workdir.join("control"));
        command.args(["--json", "trace", "n0", "--protocol", "tcp", "-n", &TRACED.to_string()]);
        let mut child =
            command.stdout(Stdio::piped()).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut pipe = child.stdout.take().expect("it was asked for");
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).map(|_| text)
        });
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().expect("a child of ours").is_none() {
            if self.stop.wanted() || Instant::now() > deadline {
                let _ = child.kill();
            }
            std::thread::sleep(PAUSE);
        }
        self.stop.check()?;
        let text = reader.join().expect("the reader does not panic").expect("a pipe can be read");
        let decisions = text.lines().filter_map(|line| {
            let value: Value = serde_json::from_str(line).ok()?;
            let record = value.get("trace")?;
            let port = record.get("dst_port")?.as_u64()?;
            let flow = flows.iter().find(|flow| u64::from(flow.far) == port)?;
            Some(record.get("queue")?.as_u64() == Some(flow.cpu.into()))
        });
        Ok(decisions.fold((0, 0), |(all, good), hit| (all + 1, good + u64::from(hit))))
    }
}
