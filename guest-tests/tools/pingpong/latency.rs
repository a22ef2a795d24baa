//! Round-trip times, and what is told about them.

use std::time::Duration;

use serde_json::{Value, json};

/// Round-trip times of a run.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time.as_nanos() as u64);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Mean, percentiles and largest in microseconds; null of no measurements.
    pub(crate) fn report(mut self) -> Value {
        self.0.sort_unstable();
        if self.0.is_empty() {
            return Value::Null;
        }
        let mean = self.0.iter().sum::<u64>() as f64 / self.0.len() as f64;
        let at = |permille: usize| micros(percentile(&self.0, permille) as f64);
        json!({
            "mean": micros(mean), "min": at(0), "p50": at(500), "p90": at(900), "p99": at(990), "p99.9": at(999),
            "max": at(1000),
        })
    }
}

/// With one digit behind the point.
fn micros(nanoseconds: f64) -> f64 {
    (nanoseconds / 100.0).round() / 10.0
}

/// The smallest of the sorted figures that is not exceeded by so many of 1000.
fn percentile(sorted: &[u64], permille: usize) -> u64 {
    let rank = (sorted.len() * permille).div_ceil(1000);
    sorted[rank.saturating_sub(1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let figures: Vec<u64> = (1..=1000).collect();
        let at = |permille| percentile(&figures, permille);
        assert_eq!((at(0), at(500), at(990), at(999), at(1000)), (1, 500, 990, 999, 1000));
        assert_eq!((percentile(&[7], 500), percentile(&[7, 9], 990)), (7, 9));
    }

    #[test]
    fn reports_are_in_microseconds() {
        let mut latencies = Latencies::default();
        for nanoseconds in [3000, 1000, 2040] {
            latencies.add(Duration::from_nanos(nanoseconds));
        }
        let report = latencies.report();
        assert_eq!(
            (&report["mean"], &report["p50"], &report["max"]),
            (&json!(2.0), &json!(2.0), &json!(3.0))
        );
        assert_eq!(Latencies::default().report(), Value::Null);
    }
}
