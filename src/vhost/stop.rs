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
