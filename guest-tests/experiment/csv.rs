//! Every measurement, for other programs.

use crate::measure::Run;

/// A column: its name, and its value for a run.
pub(crate) type Column<R> = (&'static str, fn(&R) -> String);

pub(crate) const COLUMNS: [Column<Run>; 34] = [
    ("round", |run| run.round.to_string()),
    ("order", |run| run.order.to_string()),
    ("request_bytes", |run| run.group.sizes.request.to_string()),
    ("response_bytes", |run| run.group.sizes.response.to_string()),
    ("placement", |run| run.group.placement.to_string()),
    ("moderation", |run| run.group.moderation.to_string()),
    ("mode", |run| run.mode.to_string()),
    ("flows", |run| run.flows.to_string()),
    ("seconds", |run| format!("{:.2}", run.seconds)),
    ("transactions", |run| format!("{:.0}", run.transactions)),
    ("transactions_per_s", |run| format!("{:.1}", run.total())),
    ("rate_of_flow_mean_hz", |run| format!("{:.3}", run.rate)),
    ("rate_of_flow_deviation_hz", |run| format!("{:.3}", run.deviation)),
    ("latency_us", |run| format!("{:.0}", run.latency())),
    ("guest_cpu_s", |run| format!("{:.2}", run.usage.guest)),
    ("guest_cpu_us_per_transaction", |run| format!("{:.1}", run.cost())),
    ("clients_and_flownic_cpu_s", |run| format!("{:.2}", run.usage.namespace)),
    ("other_cpu_s", |run| format!("{:.2}", run.usage.others())),
    ("packets", |run| run.queue.packets.to_string()),
    ("interrupts", |run| run.queue.signals.to_string()),
    ("by_filter", |run| run.queue.by("by_filter").to_string()),
    ("by_learned", |run| run.queue.by("by_learned").to_string()),
    ("by_rss", |run| run.queue.by("by_rss").to_string()),
    ("by_default", |run| run.queue.by("by_default").to_string()),
    ("processed", |run| run.processed.to_string()),
    ("received_rps", |run| run.received_rps.to_string()),
    ("traced", |run| run.traced.to_string()),
    ("traced_on_consumers_cpu", |run| run.at_home.to_string()),
    ("filters_inserted", |run| run.filters.inserted.to_string()),
    ("filters_moved", |run| run.filters.moved.to_string()),
    ("filters_expired", |run| run.filters.expired.to_string()),
    ("processed_since_mode_set", |run| run.processed_in_all.to_string()),
    ("out_of_order_segments", |run| run.out_of_order.to_string()),
    ("retransmitted_segments", |run| run.retransmitted.to_string()),
];

/// A line of names and one for each run.
pub(crate) fn table<R, const N: usize>(columns: &[Column<R>; N], runs: &[R]) -> String {
    let names = columns.map(|(name, _)| name.to_owned()).join(",");
    let rows = runs.iter().map(|run| columns.map(|(_, value)| value(run)).join(","));
    [names].into_iter().chain(rows).map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::tests::run;
    use crate::plan::{Group, Mode, Moderation, Placement, SIZES};

    #[test]
    fn each_run_is_a_line() {
        let moderation = Moderation::Usecs(60);
        let group = Group { sizes: SIZES[1], placement: Placement::Unpinned, moderation };
        let text = table(&COLUMNS, &[run(1, group, Mode::Soft, 25.0), run(2, group, Mode::Accel, 26.0)]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.len() == COLUMNS.len()), "{text}");
        let value = |line: usize, name: &str| {
            lines[line][lines[0].iter().position(|column| *column == name).unwrap()]
        };
        assert_eq!((value(1, "mode"), value(2, "mode")), ("soft", "accel"));
        assert_eq!((value(1, "response_bytes"), value(1, "placement")), ("10000", "unpinned"));
        assert_eq!(value(1, "moderation"), "60");
        assert_eq!((value(1, "transactions_per_s"), value(1, "latency_us")), ("1600.0", "40000"));
        assert_eq!((value(1, "received_rps"), value(2, "filters_inserted")), ("5000", "48"));
    }
}
