//! The machine that all of it runs on, for the report.

use std::fs;
use std::process::Command;

/// Now, such as `2026-02-25 14:05:10`, in UTC.
pub(crate) fn date() -> String {
    let output = Command::new("date").args(["-u", "+%F %T"]).output();
    output.map_or_else(
        |error| panic!("Could not run date: {error}"),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// Average number of processes that want a CPU, over the last minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// Processors, memory and kernels, in a sentence.
pub(crate) fn describe(guest: &str) -> String {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "On {cpus} CPUs ({}), {:.0} GiB, Linux {}; the guest's CPUs are emulated (QEMU, TCG), its kernel is Linux {guest}.",
        model(&info).unwrap_or("of unknown make"),
        kibibytes(&memory).unwrap_or(f64::NAN) / 1024.0 / 1024.0,
        kernel.trim(),
    )
}

/// How busy it was, in a sentence.
pub(crate) fn describe_load(before: f64, after: f64) -> String {
    format!(
        "The load average was {before:.1} before the experiment, with nothing of it running, and {after:.1} at its end."
    )
}

fn model(info: &str) -> Option<&str> {
    info.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()))
}

fn kibibytes(memory: &str) -> Option<f64> {
    memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let info = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Abacus 3000 @ 1 Hz\nstepping\t: 7\n";
        assert_eq!(model(info), Some("Abacus 3000 @ 1 Hz"));
        assert_eq!(kibibytes("MemTotal:       24576 kB\nMemFree: 1 kB\n"), Some(24576.0));
        assert!(date().len() == "2026-02-25 14:05:10".len() && load() >= 0.0);
    }
}
