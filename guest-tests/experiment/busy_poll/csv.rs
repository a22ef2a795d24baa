//! Every measurement, for other programs.

use super::measure::Run;
use crate::csv::Column;

pub(crate) const COLUMNS: [Column<Run>; 25] = [
    ("round", |run| run.round.to_string()),
    ("order", |run| run.order.to_string()),
    ("driver", |run| run.case.driver.name().to_owned()),
    ("load", |run| run.case.load.to_string().replace(',', "")),
    ("way", |run| run.case.way.to_string().replace(',', "")),
    ("messages", |run| run.trips.messages.to_string()),
    ("rtt_mean_us", |run| format!("{:.1}", run.trips.mean)),
    ("rtt_p50_us", |run| format!("{:.1}", run.trips.p50)),
    ("rtt_p99_us", |run| format!("{:.1}", run.trips.p99)),
    ("rtt_p999_us", |run| format!("{:.1}", run.trips.p999)),
    ("client_cpu_us_per_message", |run| run.trips.cpu.map_or_else(String::new, |cpu| format!("{cpu:.1}"))),
    ("received_packets", |run| run.counters.received.to_string()),
    ("busy_poll_rx_packets", |run| run.counters.polled.to_string()),
    ("rx_interrupts", |run| run.counters.rx_interrupts.to_string()),
    ("tx_interrupts", |run| run.counters.tx_interrupts.to_string()),
    ("device_rx_packets", |run| run.counters.rx_packets.to_string()),
    ("rx_signals", |run| run.counters.rx_signals.to_string()),
    ("rx_signals_suppressed", |run| run.counters.rx_suppressed.to_string()),
    ("tx_signals", |run| run.counters.tx_signals.to_string()),
    ("tx_signals_suppressed", |run| run.counters.tx_suppressed.to_string()),
    ("kicks", |run| run.counters.kicks.to_string()),
    ("guest_cpu_s", |run| format!("{:.2}", run.usage.guest)),
    ("servers_and_flownic_cpu_s", |run| format!("{:.2}", run.usage.namespace)),
    ("other_cpu_s", |run| format!("{:.2}", run.usage.others())),
    ("seconds", |run| format!("{:.2}", run.seconds)),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::busy_poll::measure::tests::run;
    use crate::busy_poll::plan::tests::plan;
    use crate::csv::table;

    #[test]
    fn each_run_is_a_line() {
        let runs: Vec<Run> = plan().round(1).into_iter().map(|case| run(1, case, 100.0)).collect();
        let text = table(&COLUMNS, &runs);
        assert_eq!(text.lines().count(), 1 + runs.len());
        assert!(text.lines().all(|line| line.split(',').count() == COLUMNS.len()), "{text}");
        assert!(text.contains("\n1,1,virtio_net,TCP_RR rx-usecs 100,busy,1000,100.0,"), "{text}");
    }
}
