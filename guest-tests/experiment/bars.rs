//! A picture's panels of bars.

use crate::statistics::Spread;
use crate::svg::{Anchor, Picture};

/// Left and right edge of all panels.
pub(crate) const SIDES: [f64; 2] = [80.0, 960.0];
/// How high panels are.
const PANEL: f64 = 200.0;
/// Most room for a bar.
const WIDEST: f64 = 70.0;

/// A bar: how high, its spread if that is known, and single figures.
pub(crate) struct Bar {
    pub(crate) colour: &'static str,
    pub(crate) height: f64,
    pub(crate) spread: Option<Spread>,
    pub(crate) dots: Vec<f64>,
}

/// Bars that stand together; one without figures leaves its place empty.
pub(crate) type Cluster = Vec<Option<Bar>>;

/// Clusters of bars over an axis.
pub(crate) struct Panel<'t> {
    /// Where it begins.
    pub(crate) top: f64,
    pub(crate) title: &'t str,
    /// What is drawn upwards.
    pub(crate) unit: &'t str,
    /// What the labels are.
    pub(crate) below: &'t str,
    /// Of the clusters.
    pub(crate) labels: &'t [String],
}

impl Panel<'_> {
    /// Axes, and a cluster of bars for each label.
    pub(crate) fn draw(&self, picture: &mut Picture, clusters: &[Cluster]) {
        let Panel { top, title, unit, below, labels } = *self;
        let [left, right] = SIDES;
        let bottom = top + PANEL;
        let tops = clusters
            .iter()
            .flatten()
            .flatten()
            .map(|bar| bar.spread.map_or(bar.height, |spread| spread.high));
        let scale = Scale::up_to(tops.fold(0.0, f64::max));
        let y = |value: f64| bottom - PANEL * value / scale.top;
        picture.text(left, top - 16.0, 13, Anchor::Start, title);
        picture.upright_text(22.0, (top + bottom) / 2.0, 13, unit);
        for tick in scale.ticks() {
            picture.line(left, y(tick), right, y(tick), "#dddddd");
            picture.text(left - 8.0, y(tick) + 4.0, 12, Anchor::End, &format!("{tick}"));
        }
        let cluster_width = (right - left) / clusters.len().max(1) as f64;
        for (number, (label, bars)) in labels.iter().zip(clusters).enumerate() {
            let start = left + cluster_width * number as f64;
            let middle = start + cluster_width / 2.0;
            picture.text(middle, bottom + 36.0, 13, Anchor::Middle, label);
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
        picture.text((left + right) / 2.0, bottom + 56.0, 12, Anchor::Middle, below);
    }
}

fn draw(picture: &mut Picture, bar: &Bar, [x, width]: [f64; 2], y: impl Fn(f64) -> f64, bottom: f64) {
    let middle = x + width / 2.0;
    picture.rectangle(x, y(bar.height), width, bottom - y(bar.height), bar.colour);
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
}
