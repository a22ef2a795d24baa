//! Setting up a mode, and what flownic and the driver say about its filters.

use guest_tests::guest::Driver;
use guest_tests::rig::{Rfs, Rig};

use crate::plan::{Mode, Moderation};
use crate::snapshot::Snapshot;

/// Modes that can be measured with a driver.
pub(crate) fn available(driver: Driver) -> Vec<Mode> {
    let accelerated = driver == Driver::FlownicNet;
    Mode::ALL.into_iter().filter(|mode| *mode != Mode::Accel || accelerated).collect()
}

/// Sets everything that belongs to a mode, whatever was set before. Filters and learned flows are gone.
pub(crate) fn set(rig: &Rig, mode: Mode) {
    rig.set_rfs(match mode {
        Mode::None | Mode::Learned => Rfs::Off,
        Mode::Soft => Rfs::Soft,
        Mode::Accel => Rfs::Accelerated,
    });
    // A driver that has set up RSS has switched learned flows off with that.
    rig.ctl("rss set n0 on mode automatic");
    rig.ctl(if mode == Mode::Learned { "learn n0 on" } else { "learn n0 off" });
    rig.ctl("learn n0 clear");
}

/// Lets the card hold signals of receive queues for so long.
pub(crate) fn moderate(rig: &Rig, moderation: Moderation) {
    let words = match moderation {
        Moderation::Off => "adaptive-rx off rx-usecs 0 rx-frames 0".to_owned(),
        Moderation::Usecs(usecs) => format!("adaptive-rx off rx-usecs {usecs} rx-frames 0"),
        Moderation::Adaptive => "adaptive-rx on".to_owned(),
    };
    rig.ctl(&format!("coalesce set n0 {words}"));
}

/// Filters, or learned flows, so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Filters {
    /// Put into the device.
    pub(crate) inserted: u64,
    /// Given another queue.
    pub(crate) moved: u64,
    /// Taken out again.
    pub(crate) expired: u64,
}

impl Filters {
    /// Those of a mode: of the driver for accelerated RFS, whose counters are in `snapshot`, of the device for learned
    /// flows, none for the others.
    pub(crate) fn now(rig: &Rig, mode: Mode, snapshot: &Snapshot) -> Filters {
        match mode {
            Mode::None | Mode::Soft => Filters::default(),
            Mode::Learned => {
                let shown = rig.ctl("learn n0");
                let get = |name: &str| {
                    shown[name].as_u64().unwrap_or_else(|| panic!("No number {name} in {shown}"))
                };
                Filters { inserted: get("learned"), moved: get("moved"), expired: get("expired") }
            }
            Mode::Accel => Filters::of_driver(snapshot),
        }
    }

    fn of_driver(snapshot: &Snapshot) -> Filters {
        let get = |name: &str| {
            let value = snapshot.driver.get(name).copied();
            value.unwrap_or_else(|| panic!("No counter {name} among {:?}", snapshot.driver))
        };
        Filters { inserted: get("arfs_inserted"), moved: get("arfs_moved"), expired: get("arfs_expired") }
    }

    /// What came after `before`.
    pub(crate) fn since(self, before: Filters) -> Filters {
        Filters {
            inserted: self.inserted.saturating_sub(before.inserted),
            moved: self.moved.saturating_sub(before.moved),
            expired: self.expired.saturating_sub(before.expired),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accelerated_rfs_needs_the_driver_that_has_it() {
        assert_eq!(available(Driver::VirtioNet), [Mode::None, Mode::Soft, Mode::Learned]);
        assert_eq!(available(Driver::FlownicNet), Mode::ALL);
    }

    #[test]
    fn the_drivers_counters_are_compared() {
        let snapshot = |inserted, moved, expired| Snapshot {
            driver: [("arfs_inserted", inserted), ("arfs_moved", moved), ("arfs_expired", expired)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            ..Snapshot::default()
        };
        let (before, after) =
            (Filters::of_driver(&snapshot(5, 1, 2)), Filters::of_driver(&snapshot(69, 4, 2)));
        assert_eq!(after.since(before), Filters { inserted: 64, moved: 3, expired: 0 });
    }
}
