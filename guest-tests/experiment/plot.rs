//! The rates as a picture: measured above, published below.

use crate::bars::{Bar, Cluster, Panel, SIDES};
use crate::measure::Run;
use crate::plan::{Group, Mode, Moderation, Plan};
use crate::published;
use crate::relations::{of_case, spread};
use crate::svg::{Anchor, Picture};

const WIDTH: f64 = 980.0;
/// What a moderation's two panels take, below the legend.
const HEIGHT: f64 = 620.0;
const LEGEND: f64 = 80.0;
/// Where the panels begin, from the top of theirs.
const TOPS: [f64; 2] = [30.0, 340.0];

/// Colours that stay apart for the colour-blind and in grey.
fn colour(mode: Mode) -> &'static str {
    match mode {
        Mode::None => "#9a9a9a",
        Mode::Soft => "#e69f00",
        Mode::Learned => "#7cc4ee",
        Mode::Accel => "#0072b2",
    }
}

/// Draws it.
pub(crate) fn plot(plan: &Plan, runs: &[Run]) -> String {
    let mut moderations: Vec<Moderation> = plan.groups.iter().map(|group| group.moderation).collect();
    moderations.sort_unstable();
    moderations.dedup();
    let mut picture = Picture::new(WIDTH, LEGEND + HEIGHT * moderations.len() as f64);
    picture.text(
        SIDES[0],
        28.0,
        18,
        Anchor::Start,
        "Accelerated RFS: netperf TCP_RR, by how packets are steered",
    );
    legend(&mut picture, plan);
    for (number, moderation) in moderations.into_iter().enumerate() {
        panels(&mut picture, LEGEND + HEIGHT * number as f64, plan, runs, moderation);
    }
    picture.finish()
}

/// What was measured with a moderation, and what was published.
fn panels(picture: &mut Picture, top: f64, plan: &Plan, runs: &[Run], moderation: Moderation) {
    let groups: Vec<Group> =
        plan.groups.iter().copied().filter(|group| group.moderation == moderation).collect();
    let clusters = |bar: &dyn Fn(Group, Mode) -> Option<Bar>| -> Vec<Cluster> {
        groups.iter().map(|group| plan.modes.iter().map(|mode| bar(*group, *mode)).collect()).collect()
    };
    let labels: Vec<String> = groups.iter().map(Group::to_string).collect();
    let below = "request/response in bytes, where servers run, and for how long signals are held";
    let title = format!(
        "Measured: {} flows, emulated guest with 4 CPUs. Bars: median of all rounds ({}); lines: lowest to highest; dots: each round.",
        plan.flows, plan.rounds
    );
    let unit = "transactions/s, all flows";
    let panel = Panel { top: top + TOPS[0], title: &title, unit, below, labels: &labels };
    panel.draw(picture, &clusters(&|group, mode| measured(runs, group, mode)));
    let Some(&usecs) = moderation.published().first() else { return };
    let title = format!(
        "Published: 200 flows, hosts with 16 cores, moderation {usecs} us adaptive. Bars: mean of a flow; no spread of runs was given."
    );
    let unit = "transactions/s, one flow";
    let panel = Panel { top: top + TOPS[1], title: &title, unit, below, labels: &labels };
    panel.draw(picture, &clusters(&|group, mode| reported(group, mode, usecs)));
}

fn measured(runs: &[Run], group: Group, mode: Mode) -> Option<Bar> {
    let spread = spread(runs, group, mode, Run::total)?;
    let dots = of_case(runs, group, mode).map(Run::total).collect();
    Some(Bar { colour: colour(mode), height: spread.median, spread: Some(spread), dots })
}

fn reported(group: Group, mode: Mode, usecs: u32) -> Option<Bar> {
    let found = published::find(group, mode, usecs)?;
    Some(Bar { colour: colour(mode), height: f64::from(found.rate), spread: None, dots: Vec::new() })
}

fn legend(picture: &mut Picture, plan: &Plan) {
    let mut x = SIDES[0];
    for mode in &plan.modes {
        picture.rectangle(x, 44.0, 14.0, 14.0, colour(*mode));
        picture.text(x + 20.0, 56.0, 13, Anchor::Start, mode.title());
        x += 46.0 + 6.9 * mode.title().len() as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::tests::run;

    #[test]
    fn all_that_was_measured_is_drawn() {
        let groups = Group::all(&Moderation::USUAL);
        let plan = Plan { modes: Mode::ALL.to_vec(), groups, rounds: 2, flows: 64, seconds: 4 };
        let cases = plan
            .batches()
            .into_iter()
            .flat_map(|batch| batch.modes.into_iter().map(move |mode| (batch.round, batch.group, mode)));
        let runs: Vec<Run> =
            cases.map(|(round, group, mode)| run(round, group, mode, 10.0 + f64::from(round))).collect();
        let picture = plot(&plan, &runs);
        // The background, the legend, four bars a group, and three published ones.
        assert_eq!(picture.matches("<rect").count(), 1 + 4 + 2 * (16 + 12));
        assert_eq!(picture.matches("<circle").count(), 64);
        for text in [
            "transactions/s, all flows",
            "100/10000 pinned, 20 us",
            ">736<",
            ">3848<",
            ">4125<",
            "median of all rounds (2)",
        ] {
            assert!(picture.contains(text), "{text} in {picture}");
        }
    }

    #[test]
    fn nothing_measured_is_an_empty_panel() {
        let plan = Plan {
            modes: vec![Mode::None],
            groups: Group::all(&[Moderation::Off]),
            rounds: 1,
            flows: 1,
            seconds: 1,
        };
        assert!(plot(&plan, &[]).ends_with("</svg>\n"));
    }
}
