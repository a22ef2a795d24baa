//! Packet sockets (`packet(7)`): frames of one EtherType, from and to one network interface.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::sys_socket::poll_readable;
use crate::virtio::MacAddr;

/// A socket for frames of one EtherType on one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    mac: MacAddr,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl PacketSocket {
    /// Opens one.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW, `ENODEV` if there is no such interface, and as `packet(7)` says.
    pub fn open(interface: &str, ethertype: u16) -> io::Result<Self> {
        let no_device = || io::Error::from_raw_os_error(libc::ENODEV);
        // Protocol 0 receives nothing yet: nothing of another interface gets in before it is bound.
        // SAFETY: takes integers only.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: the descriptor has just been made and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let name = CString::new(interface).map_err(|_| no_device())?;
        // SAFETY: the name ends with a NUL and lives until the call returns.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(no_device());
        }
        // SAFETY: all zeros is a value of this plain structure.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = ethertype.to_be();
        address.sll_ifindex = index as libc::c_int;
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is ours and as long as is said.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })?;
        // SAFETY: both are ours, and the address has room for what is said.
        check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &mut length) })?;
        let [a, b, c, d, e, f, ..] = address.sll_addr;
        Ok(PacketSocket { fd, mac: MacAddr([a, b, c, d, e, f]) })
    }

    /// The interface's hardware address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Sends a frame, Ethernet header first.
    ///
    /// # Errors
    /// As `send(2)`: `ENETDOWN` if the interface is down, `EMSGSIZE` if the frame is too long for it.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the frame is as long as is said.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives a frame into `room`, if one comes in time; its length.
    ///
    /// # Errors
    /// As `recv(2)`.
    pub fn receive(&self, room: &mut [u8], until: Instant) -> io::Result<Option<usize>> {
        loop {
            // SAFETY: the room is as long as is said.
            let got = unsafe {
                libc::recv(self.fd.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT)
            };
            if got >= 0 {
                return Ok(Some(got as usize));
            }
            let e = io::Error::last_os_error();
            match e.kind() {
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::WouldBlock => {}
                _ => return Err(e),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left < Duration::from_millis(1) {
                return Ok(None);
            }
            poll_readable(&[self.fd.as_raw_fd()], Some(left))?;
        }
    }
}
