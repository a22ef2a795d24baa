//! The ways, and what is measured in each.

use std::time::Duration;

use guest_tests::Process;
use guest_tests::guest::Driver;
use guest_tests::rig::{self, CPUS, PATIENCE, Rfs, Rig};
use guest_tests::stop::Interrupted;

use crate::report::Report;

/// Flows for each processor.
const FLOWS_PER_CPU: u16 = 2;
/// The client's port of the first flow.
const NEAR: u16 = 30000;
/// The server's port of the first flow; each way has a hundred of its own.
const FAR: u16 = 20000;
/// Decisions that are traced in each way.
const TRACED: u32 = 2000;
/// Packets after which connections are set up, and learned or filtered.
const SETTLED: u64 = 500;

/// A way to steer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    /// What it is called.
    pub(crate) title: &'static str,
    /// Words of `flownic ctl` that set it up.
    pub(crate) commands: &'static [&'static str],
    /// The counters that speak for it.
    pub(crate) reasons: &'static [&'static str],
    /// Whether each flow gets a rule.
    rules: bool,
    /// Whether the guest's kernel steers, with the driver that lets it.
    pub(crate) accelerated: bool,
}

impl Way {
    const fn new(
        title: &'static str,
        commands: &'static [&'static str],
        reasons: &'static [&'static str],
    ) -> Way {
        Way { title, commands, reasons, rules: false, accelerated: false }
    }

    /// Driver of the guest's card.
    pub(crate) fn driver(self) -> Driver {
        if self.accelerated { Driver::FlownicNet } else { Driver::VirtioNet }
    }

    /// What is typed in the guest to set it up.
    pub(crate) fn guest_commands(self, card: &str) -> Vec<String> {
        if self.accelerated { Rfs::Accelerated.commands(card, self.driver()) } else { Vec::new() }
    }
}

/// The five ways; the guest gets another driver before the last.
pub(crate) const WAYS: [Way; 5] = [
    Way::new("No steering", &["learn n0 off", "rss set n0 off"], &["by_default"]),
    Way::new("RSS", &["learn n0 off", "rss set n0 on"], &["by_rss"]),
    Way::new("Learned flows", &["learn n0 on", "rss set n0 on"], &["by_learned"]),
    Way {
        rules: true,
        ..Way::new("Filters of the host", &["learn n0 off", "rss set n0 on"], &["by_filter"])
    },
    Way {
        accelerated: true,
        // The kernel asks for no filter where RSS is right already.
        ..Way::new("Accelerated RFS", &["learn n0 off", "rss set n0 on"], &["by_filter", "by_rss"])
    },
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

/// Sends all flows through for `seconds` with `way` to steer them.
pub(crate) fn run(rig: &Rig, way: Way, seconds: u32) -> Result<Report, Interrupted> {
    let number = WAYS.iter().position(|other| other.title == way.title).unwrap_or_default();
    let flows: Vec<Flow> = Flow::all(number as u16).collect();
    for words in way.commands {
        rig.ctl(words);
    }
    if way.accelerated {
        rig.set_rfs(Rfs::Accelerated);
    }
    for flow in flows.iter().filter(|_| way.rules) {
        rig.ctl(&format!("flows add n0 {}", flow.rule()));
    }
    rig.ctl("learn n0 clear");
    rig.ctl("reset-stats n0");
    let clients: Vec<Process> = flows
        .iter()
        .map(|flow| {
            let Flow { cpu, near, far } = flow;
            let (address, port) = (&rig.address, Rig::server(Some(*cpu)));
            rig.host.spawn(&format!(
                "netperf -4 -H {address} -p {port} -t TCP_RR -l {seconds} -P 0 -- -P {near},{far}"
            ))
        })
        .collect();
    let (traced, at_home) = trace(rig, &flows, seconds)?;
    let limit = Duration::from_secs(seconds.into()) + PATIENCE;
    let mut transactions = 0.0;
    for client in clients {
        transactions += rig::figure(&rig.finish(client, limit)?);
    }
    let queues = rig.queues();
    rig.ctl("flows clear n0");
    let rule = way.rules.then(|| flows[0].rule());
    let guest_commands = way.guest_commands(rig.nic.name());
    Ok(Report {
        number: number + 1,
        way,
        guest_commands,
        rule,
        flows: flows.len(),
        queues,
        transactions,
        traced,
        at_home,
    })
}

/// Traces decisions while flows run: how many were about them, and how many of those chose the queue of the
/// processor where the flow's server is.
fn trace(rig: &Rig, flows: &[Flow], seconds: u32) -> Result<(u64, u64), Interrupted> {
    // Past the set-up of connections.
    rig.stop.wait_for("the flows to run", PATIENCE, || match rig.packets() {
        packets if packets > SETTLED => Ok(()),
        packets => Err(format!("{packets} packets")),
    })?;
    let decisions = rig.trace(TRACED, Duration::from_secs(seconds.into()))?;
    let hits = decisions.iter().filter_map(|(port, queue)| {
        let flow = flows.iter().find(|flow| flow.far == *port)?;
        Some(*queue == flow.cpu)
    });
    Ok(hits.fold((0, 0), |(all, good), hit| (all + 1, good + u64::from(hit))))
}
