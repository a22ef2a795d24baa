//! System calls that the standard library does not offer, each behind a safe function.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An option of a socket (`SOL_SOCKET`) that is a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketOption(libc::c_int);

pub(crate) const BUSY_POLL: SocketOption = SocketOption(46);
pub(crate) const INCOMING_NAPI_ID: SocketOption = SocketOption(56);
pub(crate) const PREFER_BUSY_POLL: SocketOption = SocketOption(69);
pub(crate) const BUSY_POLL_BUDGET: SocketOption = SocketOption(70);

pub(crate) fn set_option(socket: impl AsFd, option: SocketOption, value: i32) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is an integer of the given length that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option.0,
            (&raw const value).cast(),
            length,
        )
    };
    check(result).map(drop)
}

pub(crate) fn option(socket: impl AsFd, option: SocketOption) -> io::Result<i32> {
    let mut value = 0i32;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is an integer of the given length, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option.0,
            (&raw mut value).cast(),
            &mut length,
        )
    };
    check(result).map(|_| value)
}

/// How an epoll instance busy-polls; `struct epoll_params` of `linux/eventpoll.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct EpollParams {
    pub(crate) usecs: u32,
    pub(crate) budget: u16,
    pub(crate) prefer: u8,
    pub(crate) pad: u8,
}

/// `EPIOCSPARAMS`: the number 1 of the kind 0x8a, which takes a structure.
const SET_EPOLL_PARAMS: libc::Ioctl =
    (1 << 30 | size_of::<EpollParams>() << 16 | 0x8a << 8 | 1) as libc::Ioctl;

/// An epoll instance.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: takes an integer only.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` is a fresh descriptor that nobody else owns.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn set_params(&self, params: EpollParams) -> io::Result<()> {
        // SAFETY: the call reads a structure of the size that its number says.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), SET_EPOLL_PARAMS, &raw const params) }).map(drop)
    }

    /// Watches for something to read; `number` is what [`Epoll::wait`] gives then.
    pub(crate) fn add(&self, watched: impl AsFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        let watched = watched.as_fd().as_raw_fd();
        // SAFETY: `event` outlives the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, watched, &mut event) })
            .map(drop)
    }

    /// Waits for one of the watched, at most so long; none when the time is up.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> io::Result<Option<u64>> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let timeout = limit.map_or(-1, |limit| limit.as_millis() as libc::c_int);
        loop {
            // SAFETY: `event` has room for the one event that is asked for.
            match check(unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, timeout) }) {
                Ok(count) => return Ok((count > 0).then_some(event.u64)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// CPU time that this process has used, in user and kernel mode.
pub(crate) fn cpu_time() -> io::Result<Duration> {
    // SAFETY: rusage is plain old data for which zero is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` outlives the call.
    check(unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) })?;
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}
