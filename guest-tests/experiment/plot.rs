//! The rates as a picture: measured above, published below.

use crate::measure::Run;
use crate::plan::{Group, Mode, Plan};
use crate::published;
use crate::relations::{of_case, spread};
use crate::statistics::Spread;
use crate::svg::{Anchor, Picture};

const WIDTH: f64 = 980.0;
const HEIGHT: f64 = 700.0;
/// Left and right edge of both panels.
const SIDES: [f64; 2] = [80.0, 960.0];
/// Where the panels begin, and how high they are.
const TOPS: [f64; 2] = [110.0, 420.0];
const PANEL: f64 = 200.0;
/// Most room for a bar.
const WIDEST: f64 = 70.0;
/// Interrupt moderation of the published figures that are drawn.
const MODERATION: u32 = published::MODERATIONS[0];

/// A bar: how high, its spread if that is known, and single figures.
struct Bar {
    mode: Mode,
    height: f64,
    spread: Option<Spread>,
    dots: Vec<f64>,
}

/// Bars of a group, in the order of the modes; a mode without figures leaves its place empty.
type Cluster = Vec<Option<Bar>>;

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
    let mut picture = Picture::new(WIDTH, HEIGHT);
    picture.text(
        SIDES[0],
        28.0,
        18,
        Anchor::Start,
        "Accelerated RFS: netperf TCP_RR, by how packets are steered",
    );
    legend(&mut picture, plan);
    let measured: Vec<Cluster> = plan
        .groups
        .iter()
        .map(|group| plan.modes.iter().map(|mode| measured(runs, *group, *mode)).collect())
        .collect();
    let title = format!(
        "Measured: {} flows, emulated guest with 4 CPUs. Bars: median of all rounds ({}); lines: lowest to highest; dots: each round.",
        plan.flows, plan.rounds
    );
    panel(&mut picture, TOPS[0], &title, "transactions/s, all flows", &plan.groups, &measured);
    let reported: Vec<Cluster> = plan
        .groups
        .iter()
        .map(|group| plan.modes.iter().map(|mode| reported(*group, *mode)).collect())
        .collect();
    let title = format!(
        "Published: 200 flows, hosts with 16 cores, moderation {MODERATION} us adaptive. Bars: mean of a flow; no spread of runs was given."
    );
    panel(&mut picture, TOPS[1], &title, "transactions/s, one flow", &plan.groups, &reported);
    picture.finish()
}

fn measured(runs: &[Run], group: Group, mode: Mode) -> Option<Bar> {
    let spread = spread(runs, group, mode, Run::total)?;
    let dots = of_case(runs, group, mode).map(Run::total).collect();
    Some(Bar { mode, height: spread.median, spread: Some(spread), dots })
}

fn reported(group: Group, mode: Mode) -> Option<Bar> {
    let found = published::find(group, mode, MODERATION)?;
    Some(Bar { mode, height: f64::from(found.rate), spread: None, dots: Vec::new() })
}

fn legend(picture: &mut Picture, plan: &Plan) {
    let mut x = SIDES[0];
    for mode in &plan.modes {
        picture.rectangle(x, 44.0, 14.0, 14.0, colour(*mode));
        picture.text(x + 20.0, 56.0, 13, Anchor::Start, mode.title());
        x += 46.0 + 6.9 * mode.title().len() as f64;
    }
}

/// Axes, and a cluster of bars for each group.
fn panel(picture: &mut Picture, top: f64, title: &str, unit: &str, groups: &[Group], clusters: &[Cluster]) {
    let [left, right] = SIDES;
    let bottom = top + PANEL;
    let tops =
        clusters.iter().flatten().flatten().map(|bar| bar.spread.map_or(bar.height, |spread| spread.high));
    let scale = Scale::up_to(tops.fold(0.0, f64::max));
    let y = |value: f64| bottom - PANEL * value / scale.top;
    picture.text(left, top - 16.0, 13, Anchor::Start, title);
    picture.upright_text(22.0, (top + bottom) / 2.0, 13, unit);
    for tick in scale.ticks() {
        picture.line(left, y(tick), right, y(tick), "#dddddd");
        picture.text(left - 8.0, y(tick) + 4.0, 12, Anchor::End, &format!("{tick}"));
    }
    let cluster_width = (right - left) / clusters.len().max(1) as f64;
    for (number, (group, bars)) in groups.iter().zip(clusters).enumerate() {
        let start = left + cluster_width * number as f64;
        let middle = start + cluster_width / 2.0;
        picture.text(middle, bottom + 36.0, 13, Anchor::Middle, &format!("{group}"));
        let step = (cluster_width * 0.84 / bars.len().max(1) as f64).min(WIDEST);
        let first = middle - step * bars.len() as f64 / 2.0;
        for (place, bar) in bars.iter().enumerate() {
            let x = first + step * place as f64;
            if let Some(bar) = bar {
                draw(picture, bar, [x + step * 0.08, step * 0.84], y, bottom);
            }
        }
    }
    picture.line(left, bottom, right, bottom, "#333333");
    picture.line(left, top, left, bottom, "#333333");
    picture.text(
        (left + right) / 2.0,
        bottom + 56.0,
        12,
        Anchor::Middle,
        "request/response in bytes, and where servers run",
    );
}

fn draw(picture: &mut Picture, bar: &Bar, [x, width]: [f64; 2], y: impl Fn(f64) -> f64, bottom: f64) {
    let middle = x + width / 2.0;
    picture.rectangle(x, y(bar.height), width, bottom - y(bar.height), colour(bar.mode));
    if let Some(Spread { low, high, .. }) = bar.spread {
        picture.line(middle, y(low), middle, y(high), "#222222");
        for end in [low, high] {
            picture.line(middle - 5.0, y(end), middle + 5.0, y(end), "#222222");
        }
    }
    for dot in &bar.dots {
        picture.circle(middle, y(*dot), 2.5, "#222222");
    }
    picture.text(middle, bottom + 16.0, 12, Anchor::Middle, &format!("{:.0}", bar.height));
}

/// An axis from zero.
struct Scale {
    top: f64,
    step: f64,
}

impl Scale {
    /// One with three to seven round steps that reaches `most`.
    fn up_to(most: f64) -> Scale {
        let most = if most > 0.0 { most } else { 1.0 };
        let power = 10f64.powf((most / 5.0).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = steps.into_iter().find(|step| most / step <= 6.0).unwrap_or(steps[3]);
        Scale { top: (most / step).ceil() * step, step }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let step = self.step;
        (0..=(self.top / step).round() as u32).map(move |number| f64::from(number) * step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::tests::run;

    #[test]
    fn axes_have_round_steps() {
        let ticks = |most: f64| Scale::up_to(most).ticks().collect::<Vec<f64>>();
        assert_eq!(ticks(3848.0), [0.0, 1000.0, 2000.0, 3000.0, 4000.0]);
        assert_eq!(ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.0).last(), Some(&1.0));
        for most in [1.0, 7.3, 99.0, 101.0, 6543.0, 25001.0] {
            let scale = Scale::up_to(most);
            let steps = scale.ticks().count() - 1;
            assert!(scale.top >= most && (3..=7).contains(&steps), "{most}: {steps} steps to {}", scale.top);
        }
    }

    #[test]
    fn all_that_was_measured_is_drawn() {
        let plan = Plan { modes: Mode::ALL.to_vec(), groups: Group::all(), rounds: 2, flows: 64, seconds: 4 };
        let cases = plan
            .batches()
            .into_iter()
            .flat_map(|batch| batch.modes.into_iter().map(move |mode| (batch.round, batch.group, mode)));
        let runs: Vec<Run> =
            cases.map(|(round, group, mode)| run(round, group, mode, 10.0 + f64::from(round))).collect();
        let picture = plot(&plan, &runs);
        // The background, the legend, four bars a group, and three published ones.
        assert_eq!(picture.matches("<rect").count(), 1 + 4 + 16 + 12);
        assert_eq!(picture.matches("<circle").count(), 32);
        for text in
            ["transactions/s, all flows", "100/10000 pinned", ">736<", ">3848<", "median of all rounds (2)"]
        {
            assert!(picture.contains(text), "{text} in {picture}");
        }
    }

    #[test]
    fn nothing_measured_is_an_empty_panel() {
        let plan = Plan { modes: vec![Mode::None], groups: Group::all(), rounds: 1, flows: 1, seconds: 1 };
        assert!(plot(&plan, &[]).ends_with("</svg>\n"));
    }
}
