//! The figures of this bench as a table and as a picture: medians, and the lowest and the highest sample.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use svg::{Anchor, Picture};

use super::{FEW, MANY, RULES};

#[path = "../../guest-tests/experiment/svg.rs"]
#[allow(dead_code, unused_imports)]
mod svg;

/// What is drawn: title, name of the bench, packets of an iteration, colour.
const SERIES: [(&str, &str, usize, &str); 6] = [
    ("32 flows, a rule matches", "match,flows=32", FEW, "#0072b2"),
    ("32 flows, none does", "none,flows=32", FEW, "#009e73"),
    ("32 flows, a rule matches, not cached", "match,flows=32,not cached", FEW, "#7cc4ee"),
    ("32 flows, none does, not cached", "none,flows=32,not cached", FEW, "#9a9a9a"),
    ("65536 flows, a rule matches", "match,flows=65536", MANY, "#d55e00"),
    ("65536 flows, none does", "none,flows=65536", MANY, "#e69f00"),
];

/// Median, lowest and highest, in nanoseconds a packet.
type Spread = [f64; 3];

/// Prints the table and draws docs/rules.svg.
pub(crate) fn write() {
    let rows = SERIES.map(|(_, name, packets, _)| RULES.map(|rules| spread(name, rules, packets)));
    println!(
        "\n| rules |{}\n|---:|{}",
        RULES.map(|r| format!(" {r} |")).concat(),
        "---:|".repeat(RULES.len())
    );
    for ((title, ..), row) in SERIES.iter().zip(&rows) {
        let cell =
            |s: &Option<Spread>| s.map_or(" - |".into(), |[m, l, h]| format!(" {m:.0} ({l:.0}-{h:.0}) |"));
        println!("| {title} |{}", row.iter().map(cell).collect::<String>());
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/rules.svg");
    fs::write(path, draw(&rows)).expect("docs can be written");
}

/// What criterion has kept of a bench's last run.
fn spread(name: &str, rules: u32, packets: usize) -> Option<Spread> {
    let file = home().join(format!("rules/{name}/{rules}/new/sample.json"));
    let sample: Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    let numbers = |key: &str| sample[key].as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>();
    let mut each: Vec<f64> =
        numbers("times")?.iter().zip(numbers("iters")?).map(|(time, n)| time / n / packets as f64).collect();
    each.sort_by(f64::total_cmp);
    Some([*each.get(each.len() / 2)?, *each.first()?, *each.last()?])
}

fn home() -> PathBuf {
    let target = || {
        std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"), PathBuf::from)
            .join("criterion")
    };
    std::env::var_os("CRITERION_HOME").map_or_else(target, PathBuf::from)
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
/// Where the axes are.
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 370.0;
const TOP: f64 = 60.0;
/// From one number of rules to the next.
const STEP: f64 = 150.0;
/// What the top of the scale is a multiple of.
const SCALE: f64 = 50.0;

fn draw(rows: &[[Option<Spread>; RULES.len()]]) -> String {
    let highest = rows.iter().flatten().flatten().map(|[median, ..]| *median).fold(1.0, f64::max);
    let scale = (highest / SCALE).ceil() * SCALE;
    let x = |i: usize| LEFT + 50.0 + STEP * i as f64;
    let y = |ns: f64| BOTTOM - (BOTTOM - TOP) * ns.min(scale) / scale;
    let mut picture = Picture::new(WIDTH, HEIGHT);
    picture.text(
        LEFT,
        28.0,
        16,
        Anchor::Start,
        "Parsing a packet and deciding about it, over the number of rules",
    );
    for tick in 0..=5 {
        let ns = scale * f64::from(tick) / 5.0;
        picture.line(LEFT, y(ns), x(RULES.len() - 1) + 50.0, y(ns), "#dddddd");
        picture.text(LEFT - 8.0, y(ns) + 4.0, 12, Anchor::End, &format!("{ns:.0}"));
    }
    picture.upright_text(18.0, (TOP + BOTTOM) / 2.0, 13, "ns a packet");
    for (i, rules) in RULES.iter().enumerate() {
        picture.text(x(i), BOTTOM + 20.0, 12, Anchor::Middle, &format!("{rules} rules"));
    }
    for (number, ((title, _, _, colour), row)) in SERIES.iter().zip(rows).enumerate() {
        let points: Vec<(f64, Spread)> =
            row.iter().enumerate().filter_map(|(i, s)| s.map(|s| (x(i) + 3.0 * number as f64, s))).collect();
        for pair in points.windows(2) {
            picture.line(pair[0].0, y(pair[0].1[0]), pair[1].0, y(pair[1].1[0]), colour);
        }
        for &(x, [median, low, high]) in &points {
            picture.line(x, y(low), x, y(high), colour);
            picture.circle(x, y(median), 4.0, colour);
        }
        let line = TOP + 22.0 * number as f64;
        picture.circle(WIDTH - 240.0, line - 4.0, 5.0, colour);
        picture.text(WIDTH - 229.0, line, 12, Anchor::Start, title);
    }
    picture.finish()
}
