//! Experiments, in short: their counters say what they must, and their results are there.

use std::process::{Command, Output};

use guest_tests::{Workdir, build};

fn experiment(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flownic-experiment"));
    command.args(arguments).env("FLOWNIC_BIN", build::flownic());
    command.output().unwrap_or_else(|error| panic!("Could not run {command:?}: {error}"))
}

/// One round of what `driver` can do. The exit status says whether the relations between counters hold.
fn counters_explain_accelerated_rfs(driver: &str, modes: &[&str]) {
    let workdir = Workdir::new();
    let folder = workdir.join("results");
    let out = folder.to_str().expect("the work folder's path is text");
    let output = experiment(&["rfs", "--quick", "--driver", driver, "--out", out]);
    let said = String::from_utf8_lossy(&output.stdout);
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}:\n{said}\n{progress}", output.status);
    let counters = said.split("In medians of rates").next().unwrap_or_default();
    assert!(!counters.contains("**NO**"), "{counters}");
    for mode in modes {
        assert!(
            counters.contains(&format!("| 1/1 pinned: {mode}: segments come in order | yes |")),
            "{counters}"
        );
    }
    let read = |name: &str| {
        let path = folder.join(name);
        assert!(said.contains(&path.display().to_string()), "{name} is not named in {said}");
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    assert_eq!(read("runs.csv").lines().count(), 1 + modes.len());
    assert!(read("report.md").contains("**1/1 pinned**"));
    assert!(read("rates.svg").ends_with("</svg>\n"));
}

#[test]
fn counters_explain_the_rfs_experiment_with_the_stock_driver() {
    counters_explain_accelerated_rfs("stock", &["none", "soft", "learned"]);
}

#[test]
fn counters_explain_the_rfs_experiment_with_the_reference_driver() {
    counters_explain_accelerated_rfs("flownic", &["none", "soft", "learned", "accel"]);
}

/// One round of the published table, with both drivers. Whether every answer is polled depends on what else the machine
/// does; `busy_poll.rs` asserts it where it does not.
#[test]
fn the_busy_poll_experiment_judges_what_it_has_measured() {
    let workdir = Workdir::new();
    let folder = workdir.join("results");
    let out = folder.to_str().expect("the work folder's path is text");
    let output = experiment(&["busy-poll", "--quick", "--budget", "1000000", "--out", out]);
    let said = String::from_utf8_lossy(&output.stdout);
    let progress = String::from_utf8_lossy(&output.stderr);
    let counters = said.split("In medians of rates").next().unwrap_or_default();
    let expected = if counters.contains("**NO**") { 1 } else { 0 };
    assert_eq!(output.status.code(), Some(expected), "{said}\n{progress}");
    for driver in ["virtio_net", "flownic_net"] {
        for rate in [10_000, 1000, 100] {
            let asleep = format!("| {driver}, sockperf {rate}/s, off: nothing is polled | yes |");
            assert!(counters.contains(&asleep), "{asleep} in {counters}\n{progress}");
            let polling = format!("| {driver}, sockperf {rate}/s, busy: nearly all answers are polled |");
            assert!(counters.contains(&polling), "{polling} in {counters}\n{progress}");
        }
    }
    let read =
        |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(read("runs.csv").lines().count(), 1 + 2 * 3 * 3);
    assert!(read("report.md").contains("**flownic_net, sockperf 100/s**"));
    assert!(read("rtt.svg").ends_with("</svg>\n"));
}

#[test]
fn wrong_usage_is_told_before_anything_boots() {
    let output = experiment(&["rfs", "--flows", "100000"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("error: --flows takes 4 to 400, not '100000'"), "{said}");
}
