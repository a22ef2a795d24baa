//! What must hold between modes, whatever the figures are.

use std::collections::BTreeSet;

use crate::measure::Run;
use crate::plan::{Group, Mode, Placement};
use crate::statistics::Spread;

/// Least share of what must be (nearly) all.
const NEARLY_ALL: f64 = 0.95;
/// Largest share of packets that come in on their consumer's CPU by chance: with four queues it is a quarter.
const BY_CHANCE: f64 = 0.5;
/// Hand-overs of a mode that steers, beside those of RFS in software.
const ALMOST_NONE: f64 = 0.1;
/// Largest share of segments out of order.
const DISORDER: f64 = 0.01;
/// Filters for each flow: one for all that RSS brings elsewhere, which are three quarters with four queues, and hardly
/// more, whatever the number of packets.
const PER_FLOW: [f64; 2] = [0.5, 1.5];

/// What shows that something holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Counters: true of every machine.
    Counter,
    /// Rates: a matter of the machine, and of what else it does.
    Rate,
}

/// A relation, and whether it holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Relation {
    /// What shows it.
    pub(crate) kind: Kind,
    /// What must hold.
    pub(crate) what: String,
    /// Whether it does.
    pub(crate) holds: bool,
    /// What was measured.
    pub(crate) seen: String,
}

/// Runs of one case.
pub(crate) fn of_case(runs: &[Run], group: Group, mode: Mode) -> impl Iterator<Item = &Run> + Clone {
    runs.iter().filter(move |run| run.group == group && run.mode == mode)
}

/// Median and spread of a figure over the runs of one case.
pub(crate) fn spread(runs: &[Run], group: Group, mode: Mode, figure: impl Fn(&Run) -> f64) -> Option<Spread> {
    Spread::of(of_case(runs, group, mode).map(figure))
}

/// All relations between what was measured, those of counters first. Counters are judged where the consumers' CPUs
/// are known for certain, with pinned servers.
pub(crate) fn judge(runs: &[Run]) -> Vec<Relation> {
    let groups = runs.iter().map(|run| run.group).filter(|group| group.placement == Placement::Pinned);
    let groups: BTreeSet<Group> = groups.collect();
    let mut relations: Vec<Relation> = groups.iter().flat_map(|group| counters(runs, *group)).collect();
    relations.extend(groups.iter().flat_map(|group| rates(runs, *group)));
    relations
}

fn counters(runs: &[Run], group: Group) -> Vec<Relation> {
    let mut relations = Vec::new();
    let median = |mode, figure: fn(&Run) -> f64| spread(runs, group, mode, figure).map(|all| all.median);
    let mut relation = |what: &str, holds: bool, seen: String| {
        relations.push(Relation { kind: Kind::Counter, what: format!("{group}: {what}"), holds, seen });
    };
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    for mode in Mode::ALL {
        let (Some(own), Some(home)) = (median(mode, Run::by_own_reasons), median(mode, Run::home)) else {
            continue;
        };
        let reason = match mode {
            Mode::None | Mode::Soft => "RSS decides about nearly every packet",
            Mode::Learned => "learned flows decide about nearly every packet",
            Mode::Accel => "filters decide, or RSS where no filter was needed",
        };
        relation(&format!("{mode}: {reason}"), own >= NEARLY_ALL, percent(own));
        if mode.steers() {
            let what = format!("{mode}: nearly all packets come in on their consumer's CPU");
            relation(&what, home >= NEARLY_ALL, percent(home));
        } else {
            let what = format!("{mode}: packets come in on their consumer's CPU by chance only");
            relation(&what, home <= BY_CHANCE, percent(home));
        }
    }
    let handed = Mode::ALL.map(|mode| median(mode, Run::handed_over));
    let [none, soft, ..] = handed;
    let each = |handed: f64| format!("{:.1} for 100 packets", 100.0 * handed);
    if let Some(none) = none {
        relation("none: no CPU hands packets to another", none == 0.0, each(none));
    }
    if let (Some(soft), Some(home)) = (soft, median(Mode::Soft, Run::home)) {
        let what = "soft: CPUs hand most packets to others";
        let seen =
            format!("{} were to be handed over; other CPUs woken: {}", percent(1.0 - home), each(soft));
        relation(what, soft > 0.0 && home <= BY_CHANCE, seen);
        for (mode, handed) in Mode::ALL.into_iter().zip(handed).filter(|(mode, _)| mode.steers()) {
            let Some(handed) = handed else { continue };
            let what = format!("{mode}: CPUs hand almost no packets to others, beside soft");
            let seen = format!("{}, {} with soft", each(handed), each(soft));
            relation(&what, handed <= ALMOST_NONE * soft, seen);
        }
    }
    if let Some(inserted) = median(Mode::Accel, Run::filters_per_flow) {
        let [least, most] = PER_FLOW;
        let holds = (least..=most).contains(&inserted);
        let what = "accel: a filter for each flow that needs one, and hardly more";
        relation(what, holds, format!("{inserted:.2} for each flow"));
    }
    for mode in Mode::ALL {
        if let Some(disorder) = median(mode, Run::disorder) {
            let what = format!("{mode}: segments come in order");
            let seen = format!("{:.3} % out of order", 100.0 * disorder);
            relation(&what, disorder <= DISORDER, seen);
        }
    }
    relations
}

fn rates(runs: &[Run], group: Group) -> Vec<Relation> {
    let pairs = [
        (Mode::Soft, Mode::None),
        (Mode::Learned, Mode::None),
        (Mode::Accel, Mode::None),
        (Mode::Learned, Mode::Soft),
        (Mode::Accel, Mode::Soft),
    ];
    let compared = pairs
        .into_iter()
        .flat_map(|(more, less)| [faster(runs, group, more, less), cheaper(runs, group, more, less)]);
    compared.flatten().collect()
}

/// More transactions in the same time.
fn faster(runs: &[Run], group: Group, more: Mode, less: Mode) -> Option<Relation> {
    let [high, low] = medians(runs, group, [more, less], Run::total)?;
    let seen =
        format!("{high:.0} and {low:.0} transactions/s, {}", change(runs, group, [more, less], Run::total)?);
    let what = format!("{group}: {more} is faster than {less}");
    Some(Relation { kind: Kind::Rate, what, holds: high > low, seen })
}

/// Less CPU time for each.
fn cheaper(runs: &[Run], group: Group, cheap: Mode, dear: Mode) -> Option<Relation> {
    let [low, high] = medians(runs, group, [cheap, dear], Run::cost)?;
    let seen = format!("{low:.0} and {high:.0} us, {}", change(runs, group, [cheap, dear], Run::cost)?);
    let what =
        format!("{group}: a transaction takes less of the guest's CPU time with {cheap} than with {dear}");
    Some(Relation { kind: Kind::Rate, what, holds: low < high, seen })
}

fn medians(runs: &[Run], group: Group, modes: [Mode; 2], figure: fn(&Run) -> f64) -> Option<[f64; 2]> {
    let [one, other] = modes.map(|mode| spread(runs, group, mode, figure).map(|all| all.median));
    Some([one?, other?])
}

/// By how much a figure of the first mode differs from that of the second: in medians, and within rounds, where both had
/// the same flows at about the same time.
fn change(runs: &[Run], group: Group, modes: [Mode; 2], figure: fn(&Run) -> f64) -> Option<String> {
    let [one, other] = medians(runs, group, modes, figure)?;
    let ratios = of_case(runs, group, modes[0]).filter_map(|run| {
        let other = of_case(runs, group, modes[1]).find(|other| other.round == run.round)?;
        Some(100.0 * (figure(run) / figure(other) - 1.0))
    });
    let Spread { low, median, high } = Spread::of(ratios)?;
    let whole = 100.0 * (one / other - 1.0);
    Some(format!("{whole:+.1} %; within a round {median:+.1} % ({low:+.1} to {high:+.1})"))
}

/// Whether all relations of counters hold, and there are some.
pub(crate) fn counters_hold(relations: &[Relation]) -> bool {
    let mut counters = relations.iter().filter(|relation| relation.kind == Kind::Counter).peekable();
    counters.peek().is_some() && counters.all(|relation| relation.holds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::tests::run;

    fn good() -> Vec<Run> {
        let rates = [(Mode::None, 20.0), (Mode::Soft, 22.0), (Mode::Learned, 24.0), (Mode::Accel, 24.5)];
        let rounds = (1..=3).flat_map(|round| rates.map(|(mode, rate)| (round, mode, rate)));
        rounds.map(|(round, mode, rate)| run(round, Group::PINNED, mode, rate + f64::from(round))).collect()
    }

    /// Relations that do not hold after `change` of all runs of `mode`.
    fn broken(mode: Mode, change: impl Fn(&mut Run)) -> Vec<String> {
        let mut runs = good();
        runs.iter_mut().filter(|run| run.mode == mode).for_each(change);
        judge(&runs).into_iter().filter(|relation| !relation.holds).map(|relation| relation.what).collect()
    }

    #[test]
    fn all_holds_as_it_should() {
        let relations = judge(&good());
        assert!(relations.iter().all(|relation| relation.holds), "{relations:#?}");
        assert!(counters_hold(&relations));
        let rate =
            relations.iter().find(|relation| relation.what.contains("accel is faster than soft")).unwrap();
        assert!(rate.seen.starts_with("1696 and 1536 transactions/s, +10.4 %"), "{}", rate.seen);
    }

    #[test]
    fn each_relation_can_fail() {
        let handed = broken(Mode::Accel, |run| run.received_rps = 4000);
        assert_eq!(handed, ["1/1 pinned: accel: CPUs hand almost no packets to others, beside soft"]);
        let away = broken(Mode::Learned, |run| run.at_home = 800);
        assert_eq!(away, ["1/1 pinned: learned: nearly all packets come in on their consumer's CPU"]);
        let reasons = broken(Mode::None, |run| run.queue.reasons = [0, 6000, 4000, 0]);
        assert_eq!(reasons, ["1/1 pinned: none: RSS decides about nearly every packet"]);
        let woken = broken(Mode::None, |run| run.received_rps = 1);
        assert_eq!(woken, ["1/1 pinned: none: no CPU hands packets to another"]);
        let storm = broken(Mode::Accel, |run| run.filters.inserted = 5000);
        assert_eq!(storm, ["1/1 pinned: accel: a filter for each flow that needs one, and hardly more"]);
        let disorder = broken(Mode::Soft, |run| run.out_of_order = 500);
        assert_eq!(disorder, ["1/1 pinned: soft: segments come in order"]);
        let idle = broken(Mode::Soft, |run| run.received_rps = 0);
        assert_eq!(idle, ["1/1 pinned: soft: CPUs hand most packets to others"]);
    }

    #[test]
    fn slow_is_said_but_is_no_matter_of_counters() {
        let mut runs = good();
        runs.iter_mut().filter(|run| run.mode == Mode::Accel).for_each(|run| run.transactions /= 2.0);
        let relations = judge(&runs);
        let lost: Vec<&str> =
            relations.iter().filter(|relation| !relation.holds).map(|relation| &*relation.what).collect();
        let lost: Vec<&str> = lost.into_iter().filter(|what| what.contains("faster")).collect();
        assert_eq!(lost, ["1/1 pinned: accel is faster than none", "1/1 pinned: accel is faster than soft"]);
        assert!(counters_hold(&relations));
    }

    #[test]
    fn nothing_measured_is_nothing_shown() {
        assert!(!counters_hold(&judge(&[])));
        let unpinned = Group { placement: Placement::Unpinned, ..Group::PINNED };
        assert!(judge(&[run(1, unpinned, Mode::Soft, 1.0)]).is_empty());
    }
}
