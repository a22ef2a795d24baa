//! What the user wants.

use std::path::PathBuf;

use guest_tests::guest::Driver;

use crate::busy_poll::plan::{RATES, Table};
use crate::modes::available;
use crate::plan::{Group, Mode, Moderation, Plan};
use crate::{busy_poll, flows};

pub(crate) const USAGE: &str = "Usage: flownic-experiment rfs|busy-poll [OPTION...] | --check rfs|busy-poll [OPTION...] | --prepare

rfs: boots a guest whose network card is flownic, sends netperf TCP_RR flows to it, and compares ways to bring packets to the
CPU that wants them: none (RSS only), soft (the kernel's RFS), learned (flows that flownic has learned) and accel (accelerated
RFS, with the reference driver); with servers pinned and not, and with small and large responses.

busy-poll: has programs of such a guest send messages and wait for answers, asleep or polling, and compares round-trip times.

The report has the published figures beside the measured ones, and the counters that explain them.

Of both:
  --rounds N      how often each case is measured, 1 to 50 (5)
  --seconds N     how long each measurement takes, 1 to 60 (rfs: 3, busy-poll: 2)
  --quick         one round, and less in it: checks the counters, says little about times
  --out FOLDER    where report.md, runs.csv and a plot go (target/experiments/NAME-DATE)
  --driver NAME   the guest's driver: flownic (flownic_net), or stock (virtio_net) (rfs: flownic; busy-poll: both)
  --check         say whether the options make sense, do nothing
  --prepare       make what guests need (images, their agent, QEMU), boot none
  -h, --help      this text

Of rfs:
  --flows N       netperf processes at a time, 4 to 400 (64); the published figures are of 200
  --modes LIST    of none, soft, learned and accel, with commas in between; all that the driver has
  --moderation LIST
                  microseconds for which the card holds signals, 0 to 10000, or adaptive; 60,20 as published

Of busy-poll:
  --tables LIST   of sockperf (the published table), ways (more ways to wait) and netperf (request/response, by moderation),
                  with commas in between (all)
  --budget US     how long who polls does it before it sleeps, 1 to 10000000 (1000)

Exit status: 0 if all relations between counters hold, 1 if not (the report says which), 2 for wrong usage. What rates and
times do is reported, and does not change the status. What has been measured before Ctrl-C is reported, too; the status is
130 then.";

/// An experiment to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    /// What to measure.
    pub(crate) plan: Plan,
    /// The guest's driver.
    pub(crate) driver: Driver,
    /// Where results go, if the user has said so.
    pub(crate) out: Option<PathBuf>,
}

/// What the user wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    Prepare,
    Nothing,
    Rfs(Order),
    BusyPoll(busy_poll::Order),
}

impl Task {
    /// From the command line, without the program's name.
    pub(crate) fn parse(arguments: &[String]) -> Result<Task, String> {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        if words.iter().any(|word| ["-h", "--help"].contains(word)) {
            return Ok(Task::Help);
        }
        match words.as_slice() {
            ["--prepare"] => Ok(Task::Prepare),
            ["--check", order @ ..] => experiment(order).map(|_| Task::Nothing),
            order => experiment(order),
        }
    }
}

fn experiment(words: &[&str]) -> Result<Task, String> {
    match words {
        ["rfs", options @ ..] => order(options).map(Task::Rfs),
        ["busy-poll", options @ ..] => busy_poll_order(options).map(Task::BusyPoll),
        [] => Err("Which experiment? There are rfs and busy-poll".to_owned()),
        [word, ..] => Err(format!("There is no experiment '{word}', only rfs and busy-poll")),
    }
}

fn busy_poll_order(options: &[&str]) -> Result<busy_poll::Order, String> {
    let (mut rounds, mut seconds, mut quick) = (None, None, false);
    let (mut drivers, mut tables, mut out, mut budget) = (None, None, None, 1000);
    let mut words = options.iter();
    while let Some(option) = words.next() {
        let mut value = || words.next().copied().ok_or_else(|| format!("{option} takes a value"));
        match *option {
            "--rounds" => rounds = Some(number(option, value()?, [1, 50])?),
            "--seconds" => seconds = Some(number(option, value()?, [1, 60])?),
            "--budget" => budget = number(option, value()?, [1, 10_000_000])?,
            "--quick" => quick = true,
            "--driver" => drivers = Some(vec![named_driver(value()?)?]),
            "--tables" => tables = Some(named_tables(value()?)?),
            "--out" => out = Some(PathBuf::from(value()?)),
            _ => return Err(format!("There is no option '{option}'")),
        }
    }
    let all = Table::ALL.map(|(table, _)| table).to_vec();
    let plan = busy_poll::plan::Plan {
        drivers: drivers.unwrap_or_else(|| vec![Driver::VirtioNet, Driver::FlownicNet]),
        tables: tables.unwrap_or(if quick { vec![Table::Sockperf] } else { all }),
        rates: RATES.into(),
        rounds: rounds.unwrap_or(if quick { 1 } else { 5 }),
        seconds: seconds.unwrap_or(2),
        budget,
    };
    Ok(busy_poll::Order { plan, out })
}

fn named_tables(list: &str) -> Result<Vec<Table>, String> {
    let named: Result<Vec<Table>, String> = list
        .split(',')
        .map(|name| {
            let found = Table::ALL.into_iter().find(|(_, known)| *known == name).map(|(table, _)| table);
            found.ok_or_else(|| format!("--tables takes sockperf, ways and netperf, not '{name}'"))
        })
        .collect();
    // In the order of the report, each once.
    let named = named?;
    Ok(Table::ALL.into_iter().map(|(table, _)| table).filter(|table| named.contains(table)).collect())
}

fn order(options: &[&str]) -> Result<Order, String> {
    let (mut flows, mut rounds, mut seconds, mut quick) = (None, None, None, false);
    let (mut driver, mut modes, mut out) = (DRIVERS[0].1, None, None);
    let mut moderations = Moderation::USUAL.to_vec();
    let mut words = options.iter();
    while let Some(option) = words.next() {
        let mut value = || words.next().copied().ok_or_else(|| format!("{option} takes a value"));
        match *option {
            "--flows" => flows = Some(number(option, value()?, [4, u32::from(flows::MOST)])?),
            "--rounds" => rounds = Some(number(option, value()?, [1, 50])?),
            "--seconds" => seconds = Some(number(option, value()?, [1, 60])?),
            "--quick" => quick = true,
            "--driver" => driver = named_driver(value()?)?,
            "--modes" => modes = Some(named_modes(value()?)?),
            "--moderation" => moderations = named_moderations(value()?)?,
            "--out" => out = Some(PathBuf::from(value()?)),
            _ => return Err(format!("There is no option '{option}'")),
        }
    }
    let possible = available(driver);
    let modes = modes.unwrap_or_else(|| possible.clone());
    if let Some(mode) = modes.iter().find(|mode| !possible.contains(mode)) {
        return Err(format!("The mode {mode} needs --driver flownic"));
    }
    let groups = if quick { vec![Group::PINNED] } else { Group::all(&moderations) };
    let plan = Plan {
        modes,
        groups,
        flows: flows.unwrap_or(if quick { 16 } else { 64 }) as u16,
        rounds: rounds.unwrap_or(if quick { 1 } else { 5 }),
        seconds: seconds.unwrap_or(if quick { 1 } else { 3 }),
    };
    Ok(Order { plan, driver, out })
}

fn number(option: &str, text: &str, [least, most]: [u32; 2]) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("{option} takes {least} to {most}, not '{text}'"))
}

/// The user's names of drivers; the usual one first.
const DRIVERS: [(&str, Driver); 2] = [("flownic", Driver::FlownicNet), ("stock", Driver::VirtioNet)];

fn named_driver(name: &str) -> Result<Driver, String> {
    let found = DRIVERS.iter().find(|(known, _)| *known == name).map(|(_, driver)| *driver);
    found.ok_or_else(|| format!("--driver takes flownic or stock, not '{name}'"))
}

fn named_moderations(list: &str) -> Result<Vec<Moderation>, String> {
    let mut moderations = Vec::new();
    for word in list.split(',') {
        let moderation = Moderation::parse(word)
            .ok_or_else(|| format!("--moderation takes 0 to 10000 and adaptive, not '{word}'"))?;
        if !moderations.contains(&moderation) {
            moderations.push(moderation);
        }
    }
    Ok(moderations)
}

fn named_modes(list: &str) -> Result<Vec<Mode>, String> {
    let named: Result<Vec<Mode>, String> = list
        .split(',')
        .map(|name| {
            let found = Mode::ALL.into_iter().find(|mode| mode.name() == name);
            found.ok_or_else(|| format!("--modes takes none, soft, learned and accel, not '{name}'"))
        })
        .collect();
    // In the order of tables, each once.
    named.map(|named| Mode::ALL.into_iter().filter(|mode| named.contains(mode)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Task, String> {
        Task::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn rfs(line: &str) -> Order {
        match parse(&format!("rfs {line}")) {
            Ok(Task::Rfs(order)) => order,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn options_are_taken() {
        let order = rfs("--flows 200 --rounds 7 --seconds 10 --driver flownic --modes accel,none --out x");
        let modes = vec![Mode::None, Mode::Accel];
        let plan = Plan { modes, groups: Group::all(&Moderation::USUAL), rounds: 7, flows: 200, seconds: 10 };
        assert_eq!(order, Order { plan, driver: Driver::FlownicNet, out: Some("x".into()) });
        let quick = rfs("--quick --rounds 2").plan;
        assert_eq!((quick.groups, quick.rounds, quick.seconds), (vec![Group::PINNED], 2, 1));
        let usual = rfs("").plan;
        assert!(usual.rounds >= 5);
        assert_eq!(usual.groups, Group::all(&Moderation::USUAL));
        let moderations = [Moderation::Adaptive, Moderation::Usecs(20)];
        assert_eq!(rfs("--moderation adaptive,20,adaptive").plan.groups, Group::all(&moderations));
        assert_eq!(usual.modes, Mode::ALL);
        assert_eq!(rfs("--driver stock").plan.modes, [Mode::None, Mode::Soft, Mode::Learned]);
        assert_eq!(parse("rfs --flows --help"), Ok(Task::Help));
        assert_eq!(parse("--prepare"), Ok(Task::Prepare));
        assert_eq!(parse("--check rfs --quick"), Ok(Task::Nothing));
        assert_eq!(parse("--check rfs --flows many"), parse("rfs --flows many"));
    }

    #[test]
    fn busy_polling_has_options_of_its_own() {
        let plan = |line: &str| match parse(&format!("busy-poll {line}")) {
            Ok(Task::BusyPoll(order)) => order.plan,
            other => panic!("{line}: {other:?}"),
        };
        let usual = plan("");
        assert_eq!((usual.drivers.len(), usual.tables.len(), usual.rounds), (2, 3, 5));
        let some = plan("--tables netperf,sockperf --driver stock --budget 50 --quick --rounds 3");
        assert_eq!(some.tables, [Table::Sockperf, Table::Netperf]);
        assert_eq!((some.drivers, some.budget, some.rounds), (vec![Driver::VirtioNet], 50, 3));
        assert_eq!(plan("--quick").tables, [Table::Sockperf]);
        assert_eq!(parse("--check busy-poll --quick"), Ok(Task::Nothing));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |line: &str| parse(line).unwrap_err();
        assert_eq!(error("rfs --flows 401"), "--flows takes 4 to 400, not '401'");
        assert_eq!(error("rfs --rounds"), "--rounds takes a value");
        assert_eq!(error("rfs --round 3"), "There is no option '--round'");
        assert_eq!(error("rfs --driver e1000"), "--driver takes flownic or stock, not 'e1000'");
        assert_eq!(error("rfs --modes soft,hard"), "--modes takes none, soft, learned and accel, not 'hard'");
        assert_eq!(error("rfs --driver stock --modes accel"), "The mode accel needs --driver flownic");
        assert_eq!(error("poll"), "There is no experiment 'poll', only rfs and busy-poll");
        assert_eq!(error(""), "Which experiment? There are rfs and busy-poll");
        assert_eq!(error("busy-poll --flows 3"), "There is no option '--flows'");
        assert_eq!(error("busy-poll --budget 0"), "--budget takes 1 to 10000000, not '0'");
        assert_eq!(
            error("busy-poll --tables ways,means"),
            "--tables takes sockperf, ways and netperf, not 'means'"
        );
    }
}
