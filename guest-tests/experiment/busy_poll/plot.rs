//! Round-trip times as a picture: measured above, published below.

use guest_tests::guest::Driver;

use super::measure::Run;
use super::plan::{Case, Load, Plan, Table, Way};
use super::published;
use super::relations::{of_case, spread};
use crate::bars::{Bar, Cluster, Panel, SIDES};
use crate::svg::{Anchor, Picture};

const WIDTH: f64 = 980.0;
/// Where panels begin.
const TOP: f64 = 110.0;
/// From one panel to the next.
const STEP: f64 = 310.0;

/// Colours that stay apart for the colour-blind and in grey.
fn colour(way: Way) -> &'static str {
    match way {
        Way::Off => "#9a9a9a",
        Way::Busy => "#0072b2",
        Way::BusyHeld => "#7cc4ee",
        Way::Epoll => "#d0d0d0",
        Way::EpollBusy => "#009e73",
        Way::Prefer => "#e69f00",
        Way::Defer => "#cc79a7",
        Way::Suspend => "#d55e00",
        Way::Threaded => "#f0e442",
    }
}

/// A panel's title, its labels and its bars.
type Drawing = (String, Vec<String>, Vec<Cluster>);

/// Draws it.
pub(crate) fn plot(plan: &Plan, runs: &[Run]) -> String {
    let mut drawings = Vec::new();
    for table in [Table::Sockperf, Table::Ways].into_iter().filter(|table| plan.tables.contains(table)) {
        for driver in &plan.drivers {
            drawings.push(measured(plan, runs, table, *driver));
        }
    }
    drawings.push(reported());
    let mut picture = Picture::new(WIDTH, TOP + STEP * drawings.len() as f64);
    picture.text(SIDES[0], 28.0, 18, Anchor::Start, "Busy polling: round-trip times by how the guest waits");
    legend(&mut picture);
    for (number, (title, labels, clusters)) in drawings.iter().enumerate() {
        let top = TOP + STEP * number as f64;
        Panel { top, title, unit: "RTT, us", below: "messages/s", labels }.draw(&mut picture, clusters);
    }
    picture.finish()
}

fn measured(plan: &Plan, runs: &[Run], table: Table, driver: Driver) -> Drawing {
    let program = if table == Table::Sockperf { "sockperf" } else { "flownic-pingpong" };
    let title = format!(
        "Measured: {}, {program}, emulated guest. Bars: median RTT, median of all rounds ({}); lines: lowest to highest.",
        driver.name(),
        plan.rounds
    );
    let bar = |load: Load, way: Way| {
        let case = Case { driver, load, way };
        let spread = spread(runs, case, |run| run.trips.p50)?;
        let dots = of_case(runs, case).map(|run| run.trips.p50).collect();
        Some(Bar { colour: colour(way), height: spread.median, spread: Some(spread), dots })
    };
    let loads = table.loads(&plan.rates);
    let clusters =
        loads.iter().map(|(load, ways)| ways.iter().map(|way| bar(*load, *way)).collect()).collect();
    (title, plan.rates.iter().map(u32::to_string).collect(), clusters)
}

fn reported() -> Drawing {
    let title = "Published: two machines with hardware NICs. Bars: mean RTT; no spread of runs was given.";
    let rates = super::plan::RATES;
    let bar = |mps: u32, way: Way| {
        let height = published::find(mps, way.polls())?;
        Some(Bar { colour: colour(way), height, spread: None, dots: Vec::new() })
    };
    let clusters = rates.iter().map(|mps| Way::PAIR.map(|way| bar(*mps, way)).into()).collect();
    (title.to_owned(), rates.iter().map(u32::to_string).collect(), clusters)
}

fn legend(picture: &mut Picture) {
    let mut x = SIDES[0];
    for way in Way::ALL.into_iter().chain([Way::BusyHeld]) {
        picture.rectangle(x, 44.0, 14.0, 14.0, colour(way));
        picture.text(x + 20.0, 56.0, 13, Anchor::Start, way.name());
        x += 42.0 + 7.0 * way.name().len() as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::busy_poll::measure::tests::run;
    use crate::busy_poll::plan::tests::plan;

    #[test]
    fn all_that_was_measured_is_drawn() {
        let runs: Vec<Run> = plan().round(1).into_iter().map(|case| run(1, case, 100.0)).collect();
        let picture = plot(&plan(), &runs);
        // The background, the legend, for each driver nine bars and 24, and six that were published.
        assert_eq!(picture.matches("<rect").count(), 1 + 9 + 2 * (9 + 24) + 6);
        assert!(picture.contains("Measured: flownic_net, sockperf, emulated guest"), "{picture}");
    }
}
