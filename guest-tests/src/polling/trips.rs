//! What programs report about the round trips of their messages.

use serde_json::Value;

/// What a program has measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoundTrips {
    /// Messages that went to and fro, those of a warm-up as well.
    pub messages: u64,
    /// Mean round-trip time in microseconds.
    pub mean: f64,
    /// Median of it.
    pub p50: f64,
    /// 99 % are not longer.
    pub p99: f64,
    /// 99.9 % are not longer.
    pub p999: f64,
    /// CPU time of the client for a message in microseconds, where it tells.
    pub cpu: Option<f64>,
}

/// From sockperf's report, if it has figures.
pub(super) fn sockperf(text: &str) -> Option<RoundTrips> {
    let after = |start: &str, end: &str| -> Option<f64> {
        let rest = text.split_once(start)?.1.trim_start_matches([' ', '=']);
        rest.split(|byte: char| end.contains(byte)).next()?.trim().parse().ok()
    };
    Some(RoundTrips {
        messages: after("; ReceivedMessages=", "\n")? as u64,
        mean: after("====> avg-rtt", " ")?,
        p50: after("percentile 50.000", "\n")?,
        p99: after("percentile 99.000", "\n")?,
        p999: after("percentile 99.900", "\n")?,
        cpu: None,
    })
}

/// From netperf's line: time and transactions per second are its last numbers.
pub(super) fn netperf(text: &str) -> Option<RoundTrips> {
    let numbers: Vec<f64> =
        text.lines().next()?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [.., elapsed, rate] = *numbers.as_slice() else { return None };
    let none = f64::NAN;
    let trips = RoundTrips {
        messages: (rate * elapsed) as u64,
        mean: 1e6 / rate,
        p50: none,
        p99: none,
        p999: none,
        cpu: None,
    };
    (rate > 0.0).then_some(trips)
}

/// From our program's line.
pub(super) fn pingpong(text: &str) -> Option<RoundTrips> {
    let value: Value = serde_json::from_str(text).ok()?;
    let rtt = |name: &str| value.pointer(&format!("/rtt_us/{name}")).and_then(Value::as_f64);
    let measured = value["measured"].as_f64().filter(|measured| *measured > 0.0)?;
    Some(RoundTrips {
        messages: value["messages"].as_u64()?,
        mean: rtt("mean")?,
        p50: rtt("p50")?,
        p99: rtt("p99")?,
        p999: rtt("p99.9")?,
        cpu: Some(value["cpu_us"].as_f64()? / measured),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_sockperf_are_read() {
        let text = "sockperf: [Total Run] RunTime=1.000 sec; Warm up time=400 msec; SentMessages=1001; \
                    ReceivedMessages=1000\nsockperf: ========= Printing statistics for Server No: 0\n\
                    sockperf: [Valid Duration] RunTime=0.548 sec; SentMessages=549; ReceivedMessages=549\n\
                    sockperf: \x1b[2;35m====> avg-rtt=24.818 (std-dev=166.403)\x1b[0m\n\
                    sockperf: ---> percentile 99.900 =  644.816\nsockperf: ---> percentile 99.000 =   29.443\n\
                    sockperf: ---> percentile 50.000 =   16.244\n";
        let expected =
            RoundTrips { messages: 1000, mean: 24.818, p50: 16.244, p99: 29.443, p999: 644.816, cpu: None };
        assert_eq!(sockperf(text), Some(expected));
        assert_eq!(sockperf(&text.replace("percentile 99.900", "")), None);
    }

    #[test]
    fn reports_of_netperf_are_read() {
        let trips = netperf("16384  131072 1        1       2.00    4000.00   \n16384  131072\n").unwrap();
        assert_eq!((trips.messages, trips.mean), (8000, 250.0));
        assert!(trips.p50.is_nan() && netperf("").is_none());
    }

    #[test]
    fn reports_of_our_own_program_are_read() {
        let text = r#"{"cpu_us":500,"lost":0,"measured":100,"messages":120,"napi_id":513,
            "rtt_us":{"max":9.0,"mean":3.5,"min":1.0,"p50":3.0,"p90":4.0,"p99":5.0,"p99.9":6.0}}"#;
        let expected = RoundTrips { messages: 120, mean: 3.5, p50: 3.0, p99: 5.0, p999: 6.0, cpu: Some(5.0) };
        assert_eq!(pingpong(text), Some(expected));
        assert_eq!(pingpong(&text.replace("100", "0")), None);
    }
}
