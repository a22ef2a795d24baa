//! Ending threads that wait.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::port::sys_socket::poll_readable;

/// The wish to stop, for a thread that waits on descriptors.
pub struct Stop {
    event: EventFd,
    requested: AtomicBool,
    running: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Stop {
    /// No stop is requested yet.
    ///
    /// # Errors
    /// When there is no eventfd to be had.
    pub fn new() -> io::Result<Self> {
        Ok(Stop {
            event: EventFd::new(EFD_NONBLOCK)?,
            requested: AtomicBool::new(false),
            running: Mutex::new(None),
        })
    }

    /// Requests it; it can't be taken back.
    pub fn request(&self) {
        let running = self.running.lock().unwrap();
        self.requested.store(true, Ordering::SeqCst);
        let _ = self.event.write(1);
        if let Some(interrupt) = running.as_ref() {
            interrupt();
        }
    }

    /// Whether it was requested.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// Waits until the descriptor is readable (false) or a stop is requested (true).
    pub fn wait_readable(&self, fd: RawFd) -> bool {
        let _ = poll_readable(&[fd, self.event.as_raw_fd()], None);
        self.is_requested()
    }

    /// Waits; true if a stop is requested.
    pub fn wait(&self, time: Duration) -> bool {
        let _ = poll_readable(&[self.event.as_raw_fd()], Some(time));
        self.is_requested()
    }

    /// Runs `f`, which blocks until `interrupt` is called: at once if a stop was requested before.
    pub fn guard<T>(&self, interrupt: impl Fn() + Send + 'static, f: impl FnOnce() -> T) -> T {
        {
            let mut running = self.running.lock().unwrap();
            if self.is_requested() {
                interrupt();
            }
            *running = Some(Box::new(interrupt));
        }
        let result = f();
        *self.running.lock().unwrap() = None;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::{Arc, mpsc};
    use std::thread;

    #[test]
    fn a_request_ends_every_wait() {
        let stop = Arc::new(Stop::new().unwrap());
        let (quiet, _other_end) = UnixStream::pair().unwrap();
        let waits = [
            thread::spawn({
                let (stop, quiet) = (Arc::clone(&stop), quiet.try_clone().unwrap());
                move || stop.wait_readable(quiet.as_raw_fd())
            }),
            thread::spawn({
                let stop = Arc::clone(&stop);
                move || stop.wait(Duration::from_secs(3600))
            }),
        ];
        assert!(!stop.is_requested());
        stop.request();
        assert!(waits.into_iter().all(|w| w.join().unwrap()));
        // For good.
        assert!(stop.is_requested() && stop.wait(Duration::from_secs(3600)));
    }

    #[test]
    fn without_a_request_it_waits_for_the_descriptor_or_the_time() {
        let stop = Stop::new().unwrap();
        let (a, b) = UnixStream::pair().unwrap();
        drop(b);
        assert!(!stop.wait_readable(a.as_raw_fd()));
        assert!(!stop.wait(Duration::from_millis(1)));
    }

    #[test]
    fn a_request_interrupts_what_runs_under_guard_and_a_late_one_does_not() {
        let stop = Arc::new(Stop::new().unwrap());
        let (interrupt, interrupted) = mpsc::channel();
        let (running, runs) = mpsc::channel();
        let thread = thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                stop.guard(
                    move || interrupt.send(()).unwrap(),
                    || {
                        running.send(()).unwrap();
                        interrupted.recv().unwrap();
                        7
                    },
                )
            }
        });
        runs.recv().unwrap();
        stop.request();
        assert_eq!(thread.join().unwrap(), 7);
        // The guard is over: nobody is interrupted (the channel is gone, and sending would panic).
        stop.request();
    }

    #[test]
    fn what_starts_after_a_request_is_interrupted_at_once() {
        let stop = Stop::new().unwrap();
        stop.request();
        let (interrupt, interrupted) = mpsc::channel();
        stop.guard(move || interrupt.send(()).unwrap(), || interrupted.recv().unwrap());
    }
}
