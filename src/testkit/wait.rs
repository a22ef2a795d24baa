//! Waiting for descriptors with a deadline.

use std::os::fd::AsRawFd;
use std::time::Instant;
use vmm_sys_util::poll::PollContext;

/// Blocks until one of `fds` is readable or hung up; `false` when the deadline passed first.
pub(super) fn readable(fds: &[&dyn AsRawFd], until: Instant) -> bool {
    let poll = PollContext::<u32>::new().expect("an epoll descriptor");
    for (token, fd) in fds.iter().enumerate() {
        poll.add(*fd, token as u32).expect("a descriptor that can be polled");
    }
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let events = poll.wait_timeout(left).expect("epoll_wait on valid descriptors");
        if events.iter().next().is_some() {
            return true;
        }
        if left.is_zero() {
            return false;
        }
    }
}
