//! What was measured, for people.

use std::fmt;

use guest_tests::rig::{Queue, REASONS};

use crate::bench::Way;

/// Before the first table.
pub(crate) const HEAD: &str = "\
A guest with 4 CPUs and a card with 4 queue pairs; the interrupt of queue i goes to CPU i.
8 netperf TCP_RR flows come in over a tap. Their server processes are pinned, two flows to a CPU.";

/// Least share of what must be (nearly) all: connections are set up before anything is learned, and netperf has
/// control connections.
const NEARLY_ALL: f64 = 0.9;

/// One way to steer, measured.
#[derive(Debug)]
pub(crate) struct Report {
    /// From 1.
    pub(crate) number: usize,
    /// The way.
    pub(crate) way: Way,
    /// What was typed in the guest.
    pub(crate) guest_commands: Vec<String>,
    /// One of the rules, if there were any.
    pub(crate) rule: Option<String>,
    /// Number of flows, and of rules if there were any.
    pub(crate) flows: usize,
    /// By queue.
    pub(crate) queues: Vec<Queue>,
    /// Per second, of all flows.
    pub(crate) transactions: f64,
    /// Packets of the flows whose way was traced.
    pub(crate) traced: u64,
    /// Those of them that arrived on the processor of their server.
    pub(crate) at_home: u64,
}

impl Report {
    fn all(&self) -> Queue {
        Queue::sum(&self.queues)
    }

    /// Share of packets that the way's own reasons decided about.
    fn by_own_reasons(&self) -> f64 {
        let all = self.all();
        share(self.way.reasons.iter().map(|reason| all.by(reason)).sum(), all.packets)
    }

    /// Share of packets that arrived where their server runs.
    fn home(&self) -> f64 {
        share(self.at_home, self.traced)
    }

    /// Queues with more than a few packets.
    fn used(&self) -> usize {
        let all = self.all().packets;
        self.queues.iter().filter(|queue| share(queue.packets, all) > 0.01).count()
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "{}. {}", self.number, self.way.title)?;
        for words in self.way.commands {
            writeln!(f, "   $ flownic ctl {words}")?;
        }
        if let Some(rule) = &self.rule {
            writeln!(f, "   $ flownic ctl flows add n0 {rule}    (and {} more)", self.flows - 1)?;
        }
        for command in &self.guest_commands {
            writeln!(f, "   guest# {command}")?;
        }
        let heads = ["queue", "CPU", "packets", "signals"].into_iter().chain(REASONS.map(|(_, name)| name));
        write_row(f, heads)?;
        let row = |f: &mut fmt::Formatter, name: &str, cpu: &str, queue: &Queue| {
            let numbers = [queue.packets, queue.signals].into_iter().chain(queue.reasons);
            let cells = [name.to_owned(), cpu.to_owned()].into_iter();
            write_row(f, cells.chain(numbers.map(|number| number.to_string())))
        };
        for (number, queue) in self.queues.iter().enumerate() {
            row(f, &number.to_string(), &number.to_string(), queue)?;
        }
        row(f, "all", "", &self.all())?;
        write!(
            f,
            "   {:.0} transactions/s; {:.0} % of {} traced packets arrived on the CPU of their server",
            self.transactions,
            100.0 * self.home(),
            self.traced
        )
    }
}

/// Columns flush right.
fn write_row(f: &mut fmt::Formatter, cells: impl Iterator<Item = impl AsRef<str>>) -> fmt::Result {
    write!(f, "  ")?;
    for cell in cells {
        write!(f, " {:>8}", cell.as_ref())?;
    }
    writeln!(f)
}

/// What the reader has just seen.
///
/// # Errors
/// When it was not what it should have been.
pub(crate) fn sentence(reports: &[Report]) -> Result<String, String> {
    for report in reports {
        let (title, own) = (report.way.title, report.by_own_reasons());
        if own < NEARLY_ALL {
            return Err(format!("{title}: only {:.0} % of packets were steered that way", 100.0 * own));
        }
    }
    let [none, rss, learned, filters, accelerated] = reports else {
        return Err(format!("{} ways measured instead of 5", reports.len()));
    };
    if none.used() != 1 || rss.used() < 2 {
        return Err(format!("{} queues in use without steering and {} with RSS", none.used(), rss.used()));
    }
    for report in [learned, filters, accelerated] {
        if report.home() < NEARLY_ALL {
            return Err(format!("{} did not bring packets to the CPU of their server", report.way.title));
        }
    }
    Ok(format!(
        "What you just saw: the same {} flows came in on one queue without steering, were spread over {} queues by RSS,\n\
         which cannot know where their servers run ({:.0} % met their CPU), and with learned flows, filters of the host or filters\n\
         that the guest's kernel asked for, each came in on the queue of its server's CPU ({:.0} %, {:.0} % and {:.0} %); the reason\n\
         was counted for every packet.",
        rss.flows,
        rss.used(),
        100.0 * rss.home(),
        100.0 * learned.home(),
        100.0 * filters.home(),
        100.0 * accelerated.home()
    ))
}
