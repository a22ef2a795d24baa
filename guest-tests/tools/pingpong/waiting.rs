//! Ways to wait for a packet.

use std::io;
use std::os::fd::AsFd;

use crate::sys::{self, Epoll, EpollParams, SocketOption};

/// Packets that epoll takes at once unless told otherwise: the kernel's own number.
const BUDGET: u16 = 8;

/// How a socket waits; without any of it, it sleeps in `recv`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// In `epoll_wait`.
    pub(crate) epoll: bool,
    /// Polls the queue for so many microseconds before it sleeps.
    pub(crate) usecs: Option<u32>,
    /// Busy polling goes before interrupts.
    pub(crate) prefer: bool,
    /// Packets that are taken at once.
    pub(crate) budget: Option<u16>,
}

impl Waiting {
    /// Sets up a socket that waits by itself; an epoll instance does it for those in it.
    pub(crate) fn prepare(self, socket: impl AsFd) -> Result<(), String> {
        if self.epoll {
            return Ok(());
        }
        let settings: [(&str, SocketOption, Option<i32>); 3] = [
            ("SO_BUSY_POLL", sys::BUSY_POLL, self.usecs.map(|usecs| usecs as i32)),
            ("SO_PREFER_BUSY_POLL", sys::PREFER_BUSY_POLL, self.prefer.then_some(1)),
            ("SO_BUSY_POLL_BUDGET", sys::BUSY_POLL_BUDGET, self.budget.map(i32::from)),
        ];
        for (name, option, value) in settings {
            if let Some(value) = value {
                sys::set_option(&socket, option, value).map_err(|error| refused(name, &error))?;
            }
        }
        Ok(())
    }

    /// An epoll instance that waits like that.
    pub(crate) fn instance(self) -> Result<Epoll, String> {
        let epoll = Epoll::new().map_err(|error| format!("No epoll instance: {error}"))?;
        if self.usecs.is_some() || self.prefer || self.budget.is_some() {
            let params = EpollParams {
                usecs: self.usecs.unwrap_or(0),
                budget: self.budget.unwrap_or(BUDGET),
                prefer: self.prefer.into(),
                pad: 0,
            };
            epoll.set_params(params).map_err(|error| refused("EPIOCSPARAMS", &error))?;
        }
        Ok(epoll)
    }
}

/// Why the kernel refuses a way to wait.
fn refused(what: &str, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOTTY) => format!("This kernel does not know {what}; it came with Linux 6.9"),
        Some(libc::ENOPROTOOPT) => format!("This kernel does not know {what}"),
        Some(libc::EPERM) => format!("{what} is for those who may administer the network: {error}"),
        _ => format!("Could not set {what}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_is_missing() {
        let refused = |number| refused("EPIOCSPARAMS", &io::Error::from_raw_os_error(number));
        assert_eq!(refused(libc::ENOTTY), "This kernel does not know EPIOCSPARAMS; it came with Linux 6.9");
        assert!(refused(libc::EPERM).starts_with("EPIOCSPARAMS is for those who may administer the network"));
    }
}
