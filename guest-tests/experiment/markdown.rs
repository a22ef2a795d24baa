//! Tables in Markdown, and what all reports have in common.

use std::fmt::Write;

use crate::relations::{Kind, Relation};
use crate::statistics::Spread;

/// A row of a table.
pub(crate) fn row(text: &mut String, cells: impl IntoIterator<Item = String>) {
    let cells: Vec<String> = cells.into_iter().collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// A cell without a figure.
pub(crate) fn dash() -> String {
    "-".to_owned()
}

/// A median, with the lowest and the highest figure in brackets.
pub(crate) fn cell(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or_else(dash, |Spread { low, median, high }| {
        format!("{median:.digits$} ({low:.digits$}-{high:.digits$})")
    })
}

/// The relations, as a table for each kind.
pub(crate) fn verdicts(relations: &[Relation]) -> String {
    let mut text = String::new();
    let kinds = [
        (Kind::Counter, "In counters, which do not depend on the machine:"),
        (Kind::Rate, "In medians of rates, which do, and on what else it did meanwhile:"),
    ];
    for (kind, title) in kinds {
        let _ = writeln!(text, "{title}\n");
        row(&mut text, ["relation", "holds", "measured"].map(str::to_owned));
        row(&mut text, ["---", "---", "---"].map(str::to_owned));
        for relation in relations.iter().filter(|relation| relation.kind == kind) {
            let holds = if relation.holds { "yes" } else { "**NO**" };
            row(&mut text, [relation.what.clone(), holds.to_owned(), relation.seen.clone()]);
        }
        text.push('\n');
    }
    text
}
