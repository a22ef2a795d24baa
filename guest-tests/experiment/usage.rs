//! CPU time of the host: of the guest, and of what has nothing to do with the experiment.

use std::fs;

use guest_tests::{Guest, Machine};

/// Length of the kernel's clock tick in seconds, as user space sees it (`USER_HZ`).
const TICK: f64 = 0.01;

/// CPU time in seconds that has been used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Usage {
    /// By the guest: all threads of QEMU.
    pub(crate) guest: f64,
    /// By flownic and the clients.
    pub(crate) namespace: f64,
    /// By everything on the machine.
    pub(crate) all: f64,
}

impl Usage {
    /// So far, of the guest and of what runs in the namespace `host`.
    pub(crate) fn now(guest: &Guest, host: &Machine) -> Usage {
        let guest = fs::read_to_string(format!("/proc/{}/stat", guest.qemu_pid())).unwrap_or_default();
        let all = fs::read_to_string("/proc/stat").unwrap_or_default();
        // Processes may end while they are looked at.
        let namespace = host.run("cat /proc/[0-9]*/stat 2>/dev/null").text();
        Usage {
            guest: guest.lines().filter_map(of_process).sum(),
            namespace: namespace.lines().filter_map(of_process).sum(),
            all: of_machine(&all).unwrap_or(f64::NAN),
        }
    }

    /// What came after `before`.
    pub(crate) fn since(self, before: Usage) -> Usage {
        Usage {
            guest: self.guest - before.guest,
            namespace: self.namespace - before.namespace,
            all: self.all - before.all,
        }
    }

    /// By what has nothing to do with the experiment.
    pub(crate) fn others(self) -> f64 {
        (self.all - self.guest - self.namespace).max(0.0)
    }
}

/// Time of a line of `/proc/PID/stat`, in user and kernel mode.
fn of_process(line: &str) -> Option<f64> {
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some(TICK * (ticks(11)? + ticks(12)?))
}

/// Time that was not idle, over all CPUs, from `/proc/stat`; time that a hypervisor has taken is somebody's, too.
fn of_machine(text: &str) -> Option<f64> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    let ticks = ticks.filter(|ticks| ticks.len() >= 8)?;
    // user, nice, system, idle, iowait, irq, softirq, steal; what follows is part of the first two.
    let idle = ticks[3] + ticks[4];
    Some(TICK * (ticks[..8].iter().sum::<f64>() - idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let line = "77 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 50 7 7 20 0 1";
        assert_eq!(of_process(line), Some(2.0));
        assert_eq!(of_process("77 (short) S 1"), None);
        assert_eq!(of_machine("cpu  100 0 50 9000 100 10 20 20 5 5\ncpu0 1 2 3\n"), Some(2.0));
        assert_eq!(of_machine("intr 1"), None);
    }

    #[test]
    fn others_are_who_is_left() {
        let before = Usage { guest: 1.0, namespace: 1.0, all: 10.0 };
        let after = Usage { guest: 4.0, namespace: 2.0, all: 16.0 };
        assert_eq!(after.since(before).others(), 2.0);
        // Ticks are coarse.
        assert_eq!(Usage { guest: 1.0, namespace: 0.5, all: 1.4 }.others(), 0.0);
    }
}
