//! Programs that people run, and may end with Ctrl-C: whatever happens, everything is cleaned up.

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::build;
use crate::image::{self, Kernel, Qemu};
use crate::workdir::Workdir;

/// Exit status after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;
/// Time between two looks at what runs.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether the user wants it to end.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

/// The user has had enough.
#[derive(Debug)]
pub struct Interrupted;

impl Stop {
    /// Listens to the usual signals; a second one ends the process at once.
    fn on_signals() -> std::io::Result<Stop> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_conditional_shutdown(
                signal,
                INTERRUPTED.into(),
                Arc::clone(&stop.0),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// Whether it has been asked for.
    pub fn wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Goes on unless the user wants it to end.
    ///
    /// # Errors
    /// When the user does.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.wanted() { Err(Interrupted) } else { Ok(()) }
    }

    /// Lets `time` pass.
    ///
    /// # Errors
    /// When the user wants it to end.
    pub fn pass(&self, time: Duration) -> Result<(), Interrupted> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(PAUSE));
        }
    }

    /// Looks with `look` until it finds something.
    ///
    /// # Errors
    /// When the user wants it to end.
    ///
    /// # Panics
    /// When it takes longer than `limit`, with `what` and what was seen last.
    #[track_caller]
    pub fn wait_for<T>(
        &self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut() -> Result<T, String>,
    ) -> Result<T, Interrupted> {
        let deadline = Instant::now() + limit;
        loop {
            self.check()?;
            match look() {
                Ok(found) => return Ok(found),
                Err(seen) => {
                    assert!(Instant::now() < deadline, "Waited {limit:?} for {what}; last seen: {seen}");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
}

/// Says on standard error what goes on.
pub fn progress(text: &str) {
    eprintln!("==> {text}");
}

/// Makes everything that guests need and that takes a while the first time.
///
/// # Panics
/// When that fails.
pub fn prepare() {
    for kernel in [Kernel::Stable, Kernel::Backports] {
        for with_module in [false, true] {
            image::initrd(kernel, None, with_module);
        }
    }
    image::tools();
    build::guest_program();
    for qemu in [Qemu::Host, Qemu::Backports] {
        qemu.program();
    }
}

/// Runs `work` with a folder of its own and hands on what it makes; ends guests and namespaces when it fails or the
/// user wants that. `what` is what failed then.
///
/// # Errors
/// The exit status of a program whose work was not done.
pub fn run<T>(
    what: &str,
    work: impl FnOnce(&Stop, &Workdir) -> Result<T, Interrupted>,
) -> Result<T, ExitCode> {
    let stop = Stop::on_signals().expect("signals can be listened to");
    // A terminal's Ctrl-C reaches QEMU, too: nothing that happens from then on is worth a message.
    let (quiet, usual) = (stop.clone(), panic::take_hook());
    panic::set_hook(Box::new(move |info| {
        if !quiet.wanted() {
            usual(info);
        }
    }));
    let workdir = Workdir::new();
    let path = workdir.path().to_owned();
    // Unwinding ends the guest, the namespace and everything in it.
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| work(&stop, &workdir)));
    if stop.wanted() {
        drop(workdir);
        let _ = std::fs::remove_dir_all(path);
        progress("Interrupted; everything is cleaned up");
        return Err(ExitCode::from(INTERRUPTED));
    }
    match outcome {
        Ok(Ok(made)) => Ok(made),
        _ => {
            eprintln!("error: {what} failed, see above; logs are in {}", path.display());
            std::mem::forget(workdir);
            Err(ExitCode::FAILURE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_had_enough_waits_no_more() {
        let stop = Stop::default();
        assert!(stop.pass(Duration::from_millis(1)).is_ok());
        assert!(matches!(stop.wait_for("a thing", Duration::ZERO, || Ok(7)), Ok(7)));
        stop.0.store(true, Ordering::Relaxed);
        assert!(stop.pass(Duration::from_secs(3600)).is_err());
        let never = stop.wait_for("a miracle", Duration::from_secs(3600), || Err::<(), _>(String::new()));
        assert!(never.is_err());
    }
}
