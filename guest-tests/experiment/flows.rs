//! The workload: netperf TCP_RR flows that run until they are told to stop.

use std::collections::BTreeMap;
use std::ops::Range;

use guest_tests::Process;
use guest_tests::rig::{CPUS, Decision, PATIENCE, Rig, figure, urgent};
use guest_tests::stop::Interrupted;

use crate::plan::{Group, Placement};
use crate::snapshot::{flows, local_port};

/// Ports of flows: below those that the kernel gives away, above the netservers'.
const PORTS: Range<u16> = 13000..32768;
/// Longest that flows may run, in seconds; they are ended before.
const LONGEST: u32 = 3600;
/// Largest number of flows.
pub(crate) const MOST: u16 = 400;

/// Server ports of the flows of batch `number`: the same again only after all others, so that nothing is left of the
/// connections that had them.
pub(crate) fn ports(number: usize, flows: u16) -> Range<u16> {
    let blocks = (PORTS.end - PORTS.start) / flows;
    let start = PORTS.start + (number % usize::from(blocks)) as u16 * flows;
    start..start + flows
}

/// Flows under way.
pub(crate) struct Flows<'m> {
    rig: &'m Rig<'m>,
    group: Group,
    /// Ports of their servers, one each; the client has the same.
    pub(crate) ports: Range<u16>,
    clients: Process<'m>,
    /// Process of each flow's server, where that is not tied to a CPU.
    owners: BTreeMap<u16, u32>,
}

impl<'m> Flows<'m> {
    /// Starts them and waits until all are connected.
    pub(crate) fn start(rig: &'m Rig<'m>, group: Group, ports: Range<u16>) -> Result<Flows<'m>, Interrupted> {
        let clients = rig.host.spawn(&script(rig, group, &ports));
        let mut flows = Flows { rig, group, ports, clients, owners: BTreeMap::new() };
        let wanted = flows.ports.len();
        let count = format!("ss -tnH {} | wc -l", flows_at_host(&flows.ports));
        rig.stop.wait_for("all flows to be connected", PATIENCE, || {
            if flows.clients.ended().is_some() {
                panic!("The clients ended with {}", flows.clients.output());
            }
            let connected = rig.host.run_ok(&count);
            if connected == wanted.to_string() { Ok(()) } else { Err(format!("{connected} of {wanted}")) }
        })?;
        if group.placement == Placement::Unpinned {
            let text = rig.guest.run_ok(&urgent(&format!("ss -tnpH {}", self::flows(&flows.ports))));
            flows.owners = text.lines().filter_map(owner).collect();
        }
        Ok(flows)
    }

    /// CPU of each flow's server, by port: where it is pinned, or was last seen.
    fn cpus(&self) -> BTreeMap<u16, u16> {
        if self.group.placement == Placement::Pinned {
            return self.ports.clone().map(|port| (port, cpu_of(port, &self.ports))).collect();
        }
        let files: String = self.owners.values().map(|pid| format!(" /proc/{pid}/stat")).collect();
        let text = self.rig.guest.run_ok(&urgent(&format!("cat{files}")));
        let cpus: BTreeMap<u32, u16> = text.lines().filter_map(cpu_of_process).collect();
        self.owners.iter().filter_map(|(port, pid)| Some((*port, *cpus.get(pid)?))).collect()
    }

    /// Traces `count` packets: how many were about flows whose server's CPU is known, and how many of those came in on
    /// the queue of that CPU. A server that has moved meanwhile does not count.
    pub(crate) fn arrivals(&self, count: u32) -> Result<(u64, u64), Interrupted> {
        let before = self.cpus();
        let decisions = self.rig.trace(count, PATIENCE)?;
        Ok(arrivals(&decisions, &before, &self.cpus()))
    }

    /// Ends them; gives the sum of the clients' own figures, transactions per second over all of their time.
    pub(crate) fn end(self) -> Result<f64, Interrupted> {
        let wanted = self.ports.len();
        self.clients.kill(libc::SIGALRM);
        let text = self.rig.finish(self.clients, PATIENCE)?;
        let figures: Vec<f64> =
            text.lines().filter(|line| line.split_whitespace().count() > 2).map(figure).collect();
        assert_eq!(figures.len(), wanted, "clients with figures: {text}");
        Ok(figures.iter().sum())
    }
}

/// Starts a client for each port and waits for them. netperf's timer is a SIGALRM: one from outside ends a test as if
/// its time were over.
fn script(rig: &Rig, group: Group, ports: &Range<u16>) -> String {
    let clients = ports.clone().map(|port| {
        let server = match group.placement {
            Placement::Pinned => Rig::server(Some(cpu_of(port, ports))),
            Placement::Unpinned => Rig::server(None),
        };
        let sizes = format!("{},{}", group.sizes.request, group.sizes.response);
        let address = &rig.address;
        format!(
            "netperf -4 -H {address} -p {server} -t TCP_RR -l {LONGEST} -P 0 -- -P {port},{port} -r {sizes} &\n"
        )
    });
    // The signal interrupts a wait.
    format!("trap : ALRM\n{}wait\nwait", clients.collect::<String>())
}

/// The CPU of a pinned flow's server: in rotation.
fn cpu_of(port: u16, ports: &Range<u16>) -> u16 {
    (port - ports.start) % CPUS
}

/// As [`flows`], seen from the clients.
fn flows_at_host(ports: &Range<u16>) -> String {
    flows(ports).replace("sport", "dport").replace('"', "'")
}

/// Port and process of a line of `ss -tnp`.
fn owner(line: &str) -> Option<(u16, u32)> {
    let process = line.split("pid=").nth(1)?.split(',').next()?.parse().ok()?;
    Some((local_port(line)?, process))
}

/// Process and CPU of `/proc/PID/stat`; the program's name may have anything in it, but ends with the last bracket.
fn cpu_of_process(line: &str) -> Option<(u32, u16)> {
    let process = line.split_whitespace().next()?.parse().ok()?;
    let cpu = line.rsplit_once(')')?.1.split_whitespace().nth(36)?.parse().ok()?;
    Some((process, cpu))
}

/// Decisions about flows whose server was on the same CPU before and after, and those that chose its queue.
fn arrivals(decisions: &[Decision], before: &BTreeMap<u16, u16>, after: &BTreeMap<u16, u16>) -> (u64, u64) {
    let hits = decisions.iter().filter_map(|(port, queue)| {
        let cpu = before.get(port).filter(|cpu| after.get(port) == Some(cpu))?;
        Some(cpu == queue)
    });
    hits.fold((0, 0), |(all, good), hit| (all + 1, good + u64::from(hit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_back_as_late_as_possible() {
        assert_eq!(
            (ports(0, 200), ports(1, 200), ports(98, 200)),
            (13000..13200, 13200..13400, 13000..13200)
        );
        assert_eq!(ports(48, MOST).end, 32600);
        assert_eq!(ports(49, MOST), ports(0, MOST));
    }

    #[test]
    fn owners_and_their_cpus_are_read() {
        let line = "0 1 10.77.0.2:13140 10.77.0.1:13140 users:((\"netserver\",pid=256,fd=9))";
        assert_eq!(owner(line), Some((13140, 256)));
        let numbers: Vec<String> = (4..50).map(|field| field.to_string()).collect();
        assert_eq!(cpu_of_process(&format!("256 (a ) b) S {}", numbers.join(" "))), Some((256, 39)));
        assert_eq!(cpu_of_process("cat: /proc/1/stat: No such file or directory"), None);
    }

    #[test]
    fn who_moves_does_not_count() {
        let before = BTreeMap::from([(1, 0), (2, 1), (3, 2)]);
        let after = BTreeMap::from([(1, 0), (2, 3)]);
        let decisions = [(1, 0), (1, 0), (1, 3), (2, 1), (2, 3), (3, 2), (4, 0)];
        assert_eq!(arrivals(&decisions, &before, &after), (3, 2));
        assert_eq!(arrivals(&[], &before, &after), (0, 0));
    }
}
