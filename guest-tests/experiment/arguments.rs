//! What the user wants.

use std::path::PathBuf;

use guest_tests::guest::Driver;

use crate::flows;
use crate::modes::available;
use crate::plan::{Group, Mode, Plan};

pub(crate) const USAGE: &str = "Usage: flownic-experiment rfs [OPTION...] | --check rfs [OPTION...] | --prepare

Boots a guest whose network card is flownic, sends netperf TCP_RR flows to it, and compares ways to bring packets to the CPU
that wants them: none (RSS only), soft (the kernel's RFS), learned (flows that flownic has learned) and accel (accelerated
RFS, with the reference driver); with servers pinned and not, and with small and large responses. The report has the
published figures beside the measured ones, and the counters that explain them.

  --flows N       netperf processes at a time, 4 to 400 (64); the published figures are of 200
  --rounds N      how often each case is measured, 1 to 50 (5)
  --seconds N     how long each measurement takes, 1 to 60 (3)
  --quick         one round, 16 flows, one second, 1/1 pinned only: checks the counters, says little about rates
  --driver NAME   the guest's driver: flownic (flownic_net), or stock (virtio_net, without accel) (flownic)
  --modes LIST    of none, soft, learned and accel, with commas in between; all that the driver has
  --out FOLDER    where report.md, runs.csv and rates.svg go (target/experiments/rfs-DATE)
  --check         say whether the options make sense, do nothing
  --prepare       make what guests need (images, their agent, QEMU), boot none
  -h, --help      this text

Exit status: 0 if all relations between counters hold, 1 if not (the report says which), 2 for wrong usage. What rates do is
reported, and does not change the status. What has been measured before Ctrl-C is reported, too; the status is 130 then.";

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
            ["rfs", options @ ..] => order(options).map(Task::Rfs),
            ["--check", "rfs", options @ ..] => order(options).map(|_| Task::Nothing),
            [] => Err("Which experiment? There is rfs".to_owned()),
            [word, ..] => Err(format!("There is no experiment '{word}', only rfs")),
        }
    }
}

fn order(options: &[&str]) -> Result<Order, String> {
    let (mut flows, mut rounds, mut seconds, mut quick) = (None, None, None, false);
    let (mut driver, mut modes, mut out) = (DRIVERS[0].1, None, None);
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
            "--out" => out = Some(PathBuf::from(value()?)),
            _ => return Err(format!("There is no option '{option}'")),
        }
    }
    let possible = available(driver);
    let modes = modes.unwrap_or_else(|| possible.clone());
    if let Some(mode) = modes.iter().find(|mode| !possible.contains(mode)) {
        return Err(format!("The mode {mode} needs --driver flownic"));
    }
    let groups = if quick { vec![Group::PINNED] } else { Group::all() };
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
        let plan = Plan { modes, groups: Group::all(), rounds: 7, flows: 200, seconds: 10 };
        assert_eq!(order, Order { plan, driver: Driver::FlownicNet, out: Some("x".into()) });
        let quick = rfs("--quick --rounds 2").plan;
        assert_eq!((quick.groups, quick.rounds, quick.seconds), (vec![Group::PINNED], 2, 1));
        let usual = rfs("").plan;
        assert!(usual.rounds >= 5 && usual.groups.len() == 4);
        assert_eq!(usual.modes, Mode::ALL);
        assert_eq!(rfs("--driver stock").plan.modes, [Mode::None, Mode::Soft, Mode::Learned]);
        assert_eq!(parse("rfs --flows --help"), Ok(Task::Help));
        assert_eq!(parse("--prepare"), Ok(Task::Prepare));
        assert_eq!(parse("--check rfs --quick"), Ok(Task::Nothing));
        assert_eq!(parse("--check rfs --flows many"), parse("rfs --flows many"));
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
        assert_eq!(error("poll"), "There is no experiment 'poll', only rfs");
        assert_eq!(error(""), "Which experiment? There is rfs");
    }
}
