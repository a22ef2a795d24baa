//! Resets that nobody has asked for.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a NIC is reset under its guest: the front end's connection ends, and before the next one all that the guest has set up is
/// forgotten. A front end that reconnects takes the link down meanwhile, by which a driver can tell.
#[derive(Default)]
pub struct ResetSwitch {
    wanted: AtomicBool,
    connection: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl ResetSwitch {
    /// A front end is connected; `end` stops its rings and ends that.
    pub fn connected(&self, end: impl Fn() + Send + 'static) {
        *self.connection.lock().expect("nothing panics that is called with it") = Some(Box::new(end));
    }

    /// It is no longer. True if a reset was the reason.
    pub fn disconnected(&self) -> bool {
        *self.connection.lock().expect("nothing panics that is called with it") = None;
        self.wanted.swap(false, Ordering::Relaxed)
    }

    /// Resets. False if there is no front end, and so nothing to end. The caller must hold no lock of the NIC.
    pub fn reset(&self) -> bool {
        let connection = self.connection.lock().expect("nothing panics that is called with it");
        if let Some(end) = connection.as_ref() {
            self.wanted.store(true, Ordering::Relaxed);
            end();
        }
        connection.is_some()
    }
}
