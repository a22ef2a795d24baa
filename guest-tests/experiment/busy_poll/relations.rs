//! What must hold between ways to wait, whatever the figures are.

use guest_tests::guest::Driver;

use super::measure::Run;
use super::plan::{Case, Load, Moderation, Plan, Table, Way};
use crate::relations::{Kind, Relation};
use crate::statistics::Spread;

/// Least share of messages whose answers come in by polling where the guest polls.
const NEARLY_ALL: f64 = 0.95;
/// Most receive interrupts for a message with signals that are held for as long as is polled, or interrupts that are suspended.
const ALMOST_NONE: f64 = 0.01;
/// The same where a thread of the kernel polls, or `virtio_net` has its interrupts suspended: it asks for one for a moment after each
/// look in vain.
const FEW: f64 = 0.05;
/// The same with signals that are not held: a driver asks for an interrupt until the polling has begun, and an emulated guest is slow
/// to begin. And where a timer looks at the queue instead of an interrupt, at this many messages a second and more.
const SELDOM: f64 = 0.1;
const DEFERRED: u32 = 1000;
/// Least interrupts for a message of a guest that sleeps: one message at a time has one of its own. The reference driver looks
/// at both queues of a pair, whichever has called.
const ONE_EACH: f64 = 0.8;
/// Most transmit interrupts for a message beside those without held signals.
const FEWER: f64 = 0.5;
/// How much the moderation of received packets may matter to a guest that polls.
const ALIKE: f64 = 0.15;

/// Runs of one case.
pub(crate) fn of_case(runs: &[Run], case: Case) -> impl Iterator<Item = &Run> + Clone {
    runs.iter().filter(move |run| run.case == case)
}

/// Median and spread of a figure over the runs of one case.
pub(crate) fn spread(runs: &[Run], case: Case, figure: impl Fn(&Run) -> f64) -> Option<Spread> {
    Spread::of(of_case(runs, case).map(figure))
}

fn median(runs: &[Run], case: Case, figure: impl Fn(&Run) -> f64) -> Option<f64> {
    spread(runs, case, figure).map(|all| all.median)
}

/// All relations between what was measured, those of counters first.
pub(crate) fn judge(plan: &Plan, runs: &[Run]) -> Vec<Relation> {
    let mut relations = Vec::new();
    for driver in &plan.drivers {
        for table in &plan.tables {
            for (load, ways) in table.loads(&plan.rates) {
                let cases = ways.iter().map(|way| Case { driver: *driver, load, way: *way });
                relations.extend(cases.flat_map(|case| counters(runs, case, plan.budget)));
            }
        }
    }
    for driver in &plan.drivers {
        for table in &plan.tables {
            for (load, ways) in table.loads(&plan.rates) {
                let off = Case { driver: *driver, load, way: Way::Off };
                let ways = ways.iter().filter(|way| way.polls());
                relations.extend(ways.filter_map(|way| faster(runs, Case { way: *way, ..off }, off)));
            }
        }
        relations.extend(rates_matter(plan, runs, *driver));
        relations.extend(moderation_hardly_matters(plan, runs, *driver));
    }
    relations
}

fn counters(runs: &[Run], case: Case, budget: u32) -> Vec<Relation> {
    let mut relations = Vec::new();
    let figures = |figure: fn(&Run) -> f64| median(runs, case, figure);
    let (Some(polled), Some(interrupts), Some(p99)) =
        (figures(Run::polled), figures(Run::rx_interrupts), figures(|run| run.trips.p99))
    else {
        return relations;
    };
    let mut relation = |what: &str, holds: bool, seen: String, why: &str| {
        let seen = if holds || why.is_empty() { seen } else { format!("{seen}; {why}") };
        relations.push(Relation { kind: Kind::Counter, what: format!("{case}: {what}"), holds, seen });
    };
    let late = if p99 > f64::from(budget) {
        format!(
            "1 % of the answers took {p99:.0} us or more, and who has polled for {budget} us in vain sleeps until an interrupt: \
             the machine has too much else to do, or --budget is too small"
        )
    } else {
        "an answer that is there before the guest begins to poll comes with an interrupt: the other end was faster than the emulated \
         guest, or the machine has taken the guest's processor away in between"
            .to_owned()
    };
    let each = |count: f64| format!("{count:.3} a message");
    match case.way {
        Way::Off | Way::Epoll => {
            relation("nothing is polled", polled == 0.0, each(polled), "");
            // Netperf's next request goes out at once, and two signals may become one interrupt.
            let what = "answers come with an interrupt each";
            if !matches!(case.load, Load::Netperf(..)) {
                let either = figures(|run| run.rx_interrupts() + run.tx_interrupts()).unwrap_or_default();
                relation(what, either >= ONE_EACH, each(either), "");
            }
        }
        Way::Busy | Way::BusyHeld | Way::EpollBusy | Way::Suspend => {
            relation("nearly all answers are polled", polled >= NEARLY_ALL, each(polled), &late);
            let most = match case.way {
                Way::Suspend if case.driver == Driver::VirtioNet => FEW,
                Way::Suspend | Way::BusyHeld => ALMOST_NONE,
                _ => SELDOM,
            };
            let what = format!("less than {most} receive interrupts for a message");
            relation(&what, interrupts < most, each(interrupts), &late);
        }
        Way::Threaded => {
            let what = format!("less than {FEW} receive interrupts for a message");
            relation(&what, interrupts < FEW, each(interrupts), "");
        }
        // What a timer brings in counts as neither. It runs out between messages that are further apart.
        Way::Prefer | Way::Defer => {
            if matches!(case.load, Load::Pingpong(mps) if mps >= DEFERRED) {
                let what = format!("less than {SELDOM} receive interrupts for a message");
                relation(&what, interrupts < SELDOM, each(interrupts), "");
            }
        }
    }
    if case.way == Way::BusyHeld {
        let busy = median(runs, Case { way: Way::Busy, ..case }, Run::tx_interrupts);
        if let (Some(held), Some(busy)) = (figures(Run::tx_interrupts), busy) {
            let what = "fewer transmit interrupts than with signals that are not held";
            let seen = format!("{}, {} not held", each(held), each(busy));
            let why = "the guest has not taken completions back before they were due";
            relation(what, held <= FEWER * busy || held < ALMOST_NONE, seen, why);
        }
    }
    relations
}

/// Answers come sooner, in medians.
fn faster(runs: &[Run], polling: Case, off: Case) -> Option<Relation> {
    let figure = |run: &Run| if run.trips.p50.is_nan() { run.trips.mean } else { run.trips.p50 };
    let (on, off_rtt) = (median(runs, polling, figure)?, median(runs, off, figure)?);
    let ratios = of_case(runs, polling).filter_map(|run| {
        let other = of_case(runs, off).find(|other| other.round == run.round)?;
        Some(100.0 * (figure(run) / figure(other) - 1.0))
    });
    let Spread { low, median, high } = Spread::of(ratios)?;
    let seen =
        format!("{on:.0} and {off_rtt:.0} us; within a round {median:+.0} % ({low:+.0} to {high:+.0})");
    let what = format!("{polling}: answers come sooner than with {}", off.way);
    Some(Relation { kind: Kind::Rate, what, holds: on < off_rtt, seen })
}

/// As published, answers take longer at lower rates, with polling and without.
fn rates_matter(plan: &Plan, runs: &[Run], driver: Driver) -> Vec<Relation> {
    let mut rates = plan.rates.clone();
    rates.sort_unstable();
    let of_way = |way: Way| {
        let figures: Option<Vec<f64>> = rates
            .iter()
            .rev()
            .map(|mps| {
                let case = Case { driver, load: Load::Sockperf(*mps), way };
                median(runs, case, |run| run.trips.p50)
            })
            .collect();
        let figures = figures.filter(|figures| figures.len() > 1)?;
        let seen: Vec<String> = figures.iter().map(|figure| format!("{figure:.0}")).collect();
        let what = format!("{}, sockperf, {way}: answers take longer at lower rates", driver.name());
        let holds = figures.is_sorted();
        Some(Relation { kind: Kind::Rate, what, holds, seen: format!("{} us", seen.join(", ")) })
    };
    Way::PAIR.into_iter().filter_map(of_way).collect()
}

/// As published, a guest that polls is as fast with moderation as without.
fn moderation_hardly_matters(plan: &Plan, runs: &[Run], driver: Driver) -> Vec<Relation> {
    if !plan.tables.contains(&Table::Netperf) {
        return Vec::new();
    }
    let of_test = |test: &'static str| {
        let rate = |usecs, way| {
            let load = Load::Netperf(test, Moderation::Usecs(usecs));
            median(runs, Case { driver, load, way }, Run::rate)
        };
        let (at_once, moderated) = (rate(0, Way::Busy)?, rate(100, Way::Busy)?);
        let (slept, slept_moderated) = (rate(0, Way::Off)?, rate(100, Way::Off)?);
        let change = |moderated: f64, at_once: f64| moderated / at_once - 1.0;
        let (on, off) = (change(moderated, at_once), change(slept_moderated, slept));
        let what = format!(
            "{}, {test}: rx-usecs 100 costs a guest that polls hardly anything, and less than one that sleeps",
            driver.name()
        );
        let seen = format!("{:+.0} % polling, {:+.0} % asleep", 100.0 * on, 100.0 * off);
        Some(Relation { kind: Kind::Rate, what, holds: on > -ALIKE && on > off, seen })
    };
    ["TCP_RR", "UDP_RR"].into_iter().filter_map(of_test).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::busy_poll::measure::tests::run;
    use crate::busy_poll::plan::tests::plan;
    use crate::relations::counters_hold;

    fn rtt(case: Case) -> f64 {
        let slower = match case.load {
            Load::Sockperf(mps) | Load::Pingpong(mps) => 10.0 * (5.0 - f64::from(mps).log10()),
            Load::Netperf(_, Moderation::Usecs(usecs)) if case.way == Way::Off => usecs.into(),
            Load::Netperf(..) => 0.0,
        };
        slower + if case.way.polls() { 100.0 } else { 150.0 }
    }

    fn good() -> Vec<Run> {
        let rounds = 1..=3;
        rounds
            .flat_map(|round| plan().round(round).into_iter().map(move |case| run(round, case, rtt(case))))
            .collect()
    }

    /// Relations that do not hold after `change` of all runs of a load and a way.
    fn broken(load: Load, way: Way, change: impl Fn(&mut Run)) -> Vec<Relation> {
        let mut runs = good();
        runs.iter_mut().filter(|run| run.case.load == load && run.case.way == way).for_each(change);
        judge(&plan(), &runs).into_iter().filter(|relation| !relation.holds).collect()
    }

    #[test]
    fn all_holds_as_it_should() {
        let relations = judge(&plan(), &good());
        let lost: Vec<&Relation> = relations.iter().filter(|relation| !relation.holds).collect();
        assert!(lost.is_empty(), "{lost:#?}");
        assert!(counters_hold(&relations));
        assert!(relations.iter().filter(|relation| relation.kind == Kind::Rate).count() > 20);
    }

    #[test]
    fn each_relation_can_fail() {
        let lost = broken(Load::Sockperf(100), Way::Busy, |run| {
            run.counters.polled = 900;
            run.counters.rx_interrupts = 100;
            run.trips.p99 = 1234.0;
        });
        assert_eq!(lost.len(), 4, "{lost:?}");
        assert_eq!(lost[0].what, "virtio_net, sockperf 100/s, busy: nearly all answers are polled");
        assert!(lost[0].seen.starts_with("0.900 a message; 1 % of the answers took 1234 us or more"));
        let lost = broken(Load::Sockperf(1000), Way::Off, |run| {
            run.counters.rx_interrupts = 50;
            run.counters.tx_interrupts = 50;
        });
        assert_eq!(lost[0].what, "virtio_net, sockperf 1000/s, off: answers come with an interrupt each");
        let lost = broken(Load::Pingpong(1000), Way::Epoll, |run| run.counters.polled = 1);
        assert_eq!(lost[0].what, "virtio_net, ping-pong 1000/s, epoll: nothing is polled");
        let lost = broken(Load::Pingpong(100), Way::Threaded, |run| run.counters.rx_interrupts = 60);
        assert_eq!(
            lost[0].what,
            "virtio_net, ping-pong 100/s, threaded: less than 0.05 receive interrupts for a message"
        );
        // How many interrupts are too many depends on the way, and on the driver where they are suspended.
        let drivers = |way, interrupts| {
            let lost = broken(Load::Pingpong(1000), way, |run| run.counters.rx_interrupts = interrupts);
            lost.iter()
                .map(|relation| relation.what.split(',').next().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(drivers(Way::Suspend, 20), ["flownic_net"]);
        assert_eq!(drivers(Way::Suspend, 60), ["virtio_net", "flownic_net"]);
        assert_eq!(drivers(Way::EpollBusy, 60), [""; 0]);
        assert_eq!(drivers(Way::EpollBusy, 120), ["virtio_net", "flownic_net"]);
        let lost = broken(Load::Sockperf(100), Way::BusyHeld, |run| run.counters.tx_interrupts = 600);
        assert_eq!((lost.len(), &*lost[0].seen), (2, lost[1].seen.as_str()), "{lost:?}");
    }

    #[test]
    fn slow_is_said_but_is_no_matter_of_counters() {
        let slow = Load::Netperf("TCP_RR", Moderation::Usecs(100));
        let lost = broken(slow, Way::Busy, |run| run.trips.mean = 260.0);
        assert!(lost.iter().all(|relation| relation.kind == Kind::Rate), "{lost:?}");
        assert!(lost.iter().any(|relation| relation.what.contains("TCP_RR: rx-usecs 100 costs")), "{lost:?}");
        let lost = broken(Load::Sockperf(10_000), Way::Off, |run| run.trips.p50 = 900.0);
        assert!(lost.iter().any(|relation| relation.what.ends_with("answers take longer at lower rates")));
    }
}
