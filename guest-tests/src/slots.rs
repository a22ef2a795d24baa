//! A limit on guests that run at once, over all processes of a user, through locked files.
//!
//! Emulated guests starve each other on small machines. Whoever needs several takes them in one go: while one waits,
//! nobody else may take any, so that two tests never hold half of what they need each.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::wait_for;

/// How long to wait for others to finish.
const LIMIT: Duration = Duration::from_secs(1800);

/// Slots held; released on drop.
#[derive(Debug)]
pub struct Slots {
    held: Vec<File>,
}

/// Number of guests that may run at once: `FLOWNIC_GUESTS`, else half the processors, at least two.
pub fn limit() -> usize {
    let asked = std::env::var("FLOWNIC_GUESTS").ok().map(|text| {
        text.parse().unwrap_or_else(|_| panic!("FLOWNIC_GUESTS is {text:?}, not a number of guests"))
    });
    asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(2, |cpus| cpus.get() / 2)).max(2)
}

impl Slots {
    /// Takes `count` slots as soon as they are free.
    ///
    /// # Panics
    /// When `count` exceeds [`limit`], or they are not free within half an hour.
    pub fn take(count: usize) -> Slots {
        // Not the temporary folder of this process: all must agree.
        let user = std::env::var("USER").unwrap_or_else(|_| "user".to_owned());
        Slots::take_in(&PathBuf::from(format!("/tmp/flownic-guests.{user}")), count, limit(), LIMIT)
    }

    fn take_in(folder: &Path, count: usize, limit: usize, patience: Duration) -> Slots {
        assert!(count <= limit, "{count} guests at once, at most {limit} allowed (FLOWNIC_GUESTS)");
        let open = |name: &str| {
            let path = folder.join(name);
            let file = fs::create_dir_all(folder)
                .and_then(|()| File::options().create(true).write(true).truncate(false).open(&path));
            file.unwrap_or_else(|error| panic!("Could not open {}: {error}", path.display()))
        };
        let gate = open("gate");
        wait_for("other tests to get their guests", patience, || try_lock(&gate));
        let mut held = Vec::new();
        wait_for("other tests' guests to end", patience, || {
            for number in 0..limit {
                let slot = open(&format!("slot{number}"));
                if held.len() < count && try_lock(&slot).is_ok() {
                    held.push(slot);
                }
            }
            if held.len() == count { Ok(()) } else { Err(format!("{} of {count} free", held.len())) }
        });
        Slots { held }
    }

    /// Gives one slot away, for a guest to keep.
    pub fn split(&mut self) -> Option<Slots> {
        self.held.pop().map(|slot| Slots { held: vec![slot] })
    }
}

fn try_lock(file: &File) -> Result<(), String> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err("taken".to_owned()),
        Err(TryLockError::Error(error)) => panic!("Could not lock a file: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Workdir;

    #[test]
    fn slots_are_limited_and_come_back() {
        let dir = Workdir::new();
        let mut both = Slots::take_in(dir.path(), 2, 2, Duration::ZERO);
        let path = dir.path().to_owned();
        let refused = std::thread::spawn(move || Slots::take_in(&path, 1, 2, Duration::ZERO)).join();
        assert!(refused.is_err(), "a third slot");
        let one = both.split().unwrap();
        drop(both);
        Slots::take_in(dir.path(), 1, 2, Duration::ZERO);
        drop(one);
        assert_eq!(Slots::take_in(dir.path(), 2, 2, Duration::ZERO).held.len(), 2);
    }
}
