//! What documents say is what the code does.

use flownic::config::Settings;
use flownic::control::protocol::{Answer, Body, parse_call};
use flownic::stats::{NicCounters, RxCounters, TxCounters};
use serde_json::Value;

const COUNTERS_HEAD: &str = "# Counters

`flownic ctl stats [NIC]` shows them, `--watch [SECONDS]` as rates, `--all` with those that are zero; `--json` and the
[control protocol](control-protocol.md) give all of them by name. They count from the start of the process, or from
`reset-stats`, whatever guests and front ends come and go.

Every frame that comes from the wire is counted in `port_rx_packets` and then once more: in `packets` of a receive queue
(and there under what decided, `by_...`), or under the reason why it was dropped, `drop_...`. Every chain that a guest makes available on a transmit queue is counted once there: as a
frame in `packets`, as a command in `in_band_commands`, or as neither in `drop_malformed`.

With `latency=on` of a NIC, `stats` also has `latency`, for each receive queue two histograms in steps of powers of two: how many frames were
`published` and how many signals were sent (`signalled`, from the first frame that a signal stands for, held ones too) in less than
`below_ns` nanoseconds, and not less than half of it; none is longer than all others. Time begins with the worker's turn in which it
found the frame, and is looked at once or twice a burst.

This page is made from the tables in `src/stats.rs`; after a change there run
`FLOWNIC_WRITE_DOCS=1 cargo test --test docs`.
";

/// The counters' page.
fn counters() -> String {
    let mut text = String::from(COUNTERS_HEAD);
    let tables = [
        ("Of a NIC", "device", NicCounters::NAMES, NicCounters::HELP),
        ("Of each receive queue", "rx", RxCounters::NAMES, RxCounters::HELP),
        ("Of each transmit queue", "tx", TxCounters::NAMES, TxCounters::HELP),
    ];
    for (title, field, names, help) in tables {
        text += &format!("\n## {title} (`{field}`)\n\n| counter | meaning |\n|---|---|\n");
        for (name, help) in names.iter().zip(help) {
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            text += &format!("| `{name}` | {help} |\n");
        }
    }
    text
}

fn path(name: &str) -> String {
    format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn counters_md_explains_every_counter() {
    if std::env::var_os("FLOWNIC_WRITE_DOCS").is_some() {
        std::fs::write(path("docs/counters.md"), counters()).unwrap();
    }
    assert!(
        read("docs/counters.md") == counters(),
        "docs/counters.md is out of date; run FLOWNIC_WRITE_DOCS=1 cargo test --test docs"
    );
}

#[test]
fn every_line_in_control_protocol_md_is_right() {
    let text = read("docs/control-protocol.md");
    let mut commands = Vec::new();
    for line in text.lines().filter(|l| l.starts_with("{\"version\"")) {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        if let Some(command) = value["request"]["command"].as_str() {
            commands.push(command.to_string());
            parse_call(line.as_bytes()).1.unwrap_or_else(|e| panic!("{line}: {e}"));
        } else {
            let answer: Answer<Value> = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            if let Body::Trace(_) | Body::Error(_) = answer.body {
                assert_eq!(serde_json::to_value(&answer).unwrap(), value, "nothing is missing or too much");
            }
        }
    }
    // The parser's own list of commands, from its complaint about one that is none.
    let complaint = parse_call(b"{\"version\":1,\"request\":{\"command\":\"none\"}}").1.unwrap_err().message;
    let known: Vec<_> = complaint.split('`').skip(3).step_by(2).collect();
    assert!(known.len() > 10, "{complaint}");
    for command in known {
        assert!(commands.iter().any(|c| c == command), "no example of {command}");
    }
}

#[test]
fn the_example_of_a_settings_file_is_right() {
    let settings = Settings::from_file(path("contrib/flownic.toml").as_ref()).unwrap();
    let config = settings.build().unwrap();
    assert_eq!(config.nics.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["n0", "n1", "n2"]);
}
