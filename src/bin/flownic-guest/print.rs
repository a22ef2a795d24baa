//! What only a guest sees, for people.

use std::fmt::Write;

use flownic::control::print as shared;
use flownic::control::replies::FlowList;
use flownic::control::table::Table;
use flownic::guest::flows::GuestFlows;
use flownic::guest::settings::{CoalesceStatus, Info};

fn or_none(words: &[String]) -> String {
    if words.is_empty() { "none".into() } else { words.join(", ") }
}

pub(crate) fn info(i: &Info) -> String {
    let mut text = format!("{}: flownic {}, {} queue pairs\n", i.nic, i.version, i.queues);
    let _ = match &i.flow_filter {
        Some(f) => writeln!(
            text,
            "  flow filter: {} rules, {} classifiers, {} groups; compares {}",
            f.rules,
            f.classifiers,
            f.groups,
            or_none(&f.selectors)
        ),
        None => writeln!(text, "  flow filter: none"),
    };
    let _ = writeln!(
        text,
        "  RSS: table of {} entries at most, key of {} bytes, {} contexts",
        i.rss_max_table, i.rss_max_key, i.rss_contexts
    );
    let _ = writeln!(text, "  has: {}", or_none(&i.capabilities));
    let _ = writeln!(text, "  serves commands of: {}", or_none(&i.features));
    if i.profile != 0 {
        let _ = writeln!(text, "  profile: {}", i.profile);
    }
    text
}

pub(crate) fn flows(flows: GuestFlows) -> String {
    let GuestFlows { nic, capacity, rules, others } = flows;
    let mut text = shared::flows(FlowList { nic, capacity, rules, guest: Vec::new() });
    if others > 0 {
        let _ = writeln!(text, "  and {others} that others have added");
    }
    text
}

pub(crate) fn coalesce(c: &CoalesceStatus) -> String {
    let mut table = Table::new(["queue", "rx-usecs", "rx-frames", "tx-usecs", "tx-frames"]);
    for (queue, q) in c.queues.iter().enumerate() {
        let cells = q.map(|q| [q.rx_usecs, q.rx_frames, q.tx_usecs, q.tx_frames].map(|n| n.to_string()));
        let cells = cells.unwrap_or_else(|| ["-"; 4].map(str::to_string));
        table.row([queue.to_string()].into_iter().chain(cells));
    }
    format!("{}\n{}", c.nic, table.render(2))
}
