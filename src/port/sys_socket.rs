//! System calls on sockets that the standard library does not have.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Descriptors in one vhost-user message, at most (`VHOST_MEMORY_BASELINE_NREGIONS` is 8; QEMU sends up to 32).
const MAX_FDS: usize = 64;

/// Takes over an inherited descriptor if it is a UNIX stream socket; tells whether it listens.
///
/// # Errors
/// `EBADF` or `ENOTSOCK` as the kernel says, `InvalidInput` for another kind of socket.
pub fn adopt_unix_socket(fd: RawFd) -> io::Result<(OwnedFd, bool)> {
    let option = |name| {
        let mut value: libc::c_int = 0;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: value and len are ours and of the size that the option has.
        let r = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &mut len) };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
    };
    if option(libc::SO_DOMAIN)? != libc::AF_UNIX || option(libc::SO_TYPE)? != libc::SOCK_STREAM {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "another kind of socket"));
    }
    let listening = option(libc::SO_ACCEPTCONN)? != 0;
    // SAFETY: it is an open socket that was given to this process on its command line; nobody else here uses it.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an open descriptor. Children of ours must not keep the connection alive.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    Ok((owned, listening))
}

/// Waits until one of the descriptors is readable or hung up, or the time is over; tells which are.
///
/// # Errors
/// As `poll(2)`; `EINTR` is retried.
pub fn poll_readable<const N: usize>(fds: &[RawFd; N], time: Option<Duration>) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let timeout = time.map_or(-1, |t| i32::try_from(t.as_millis().max(1)).unwrap_or(i32::MAX));
    loop {
        // SAFETY: an array of N initialised entries.
        let r = unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, timeout) };
        if r >= 0 {
            return Ok(polled.map(|p| p.revents != 0));
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

/// Takes what is waiting in `from`, with its descriptors; 0 bytes at the end.
///
/// # Errors
/// As `recvmsg(2)`.
pub fn receive(from: &UnixStream, room: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut fds = [0; MAX_FDS];
    let mut vec = [libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }];
    // SAFETY: the one iovec is a buffer of ours that nobody else uses during the call.
    let (bytes, count) = unsafe { from.recv_with_fds(&mut vec, &mut fds) }?;
    // SAFETY: the kernel has just made these descriptors for us.
    let owned = fds[..count].iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }).collect();
    Ok((bytes, owned))
}

/// Sends all of it, with these descriptors.
///
/// # Errors
/// As `sendmsg(2)`.
pub fn send(to: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut sent = 0;
    while sent < bytes.len() {
        let fds: &[RawFd] = if sent == 0 { &raw } else { &[] };
        sent += to.send_with_fds(&[&bytes[sent..]], fds)?;
    }
    Ok(())
}
