//! The channel over a packet socket.

use std::io;
use std::time::{Duration, Instant};

use super::{Channel, Frames, GuestError};
use crate::port::sys_packet::PacketSocket;
use crate::virtio::MacAddr;
use crate::virtio::channel::ETHERTYPE_CHANNEL;

/// A socket on an interface, whose errors name it.
pub struct Interface {
    name: String,
    socket: PacketSocket,
}

/// A channel to the device behind a network interface.
///
/// # Errors
/// Says what is missing: the interface, the right to send raw frames.
pub fn open(interface: &str, timeout: Duration) -> Result<Channel<Interface>, GuestError> {
    let socket = PacketSocket::open(interface, ETHERTYPE_CHANNEL).map_err(|e| explain(interface, e))?;
    // Two runs at the same time must not take each other's answers.
    let sequence = std::process::id().wrapping_mul(0x9e37_79b1);
    Ok(Channel::new(Interface { name: interface.into(), socket }, timeout, sequence))
}

/// What to do about an error.
fn explain(name: &str, e: io::Error) -> io::Error {
    let text = match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "Raw frames need CAP_NET_RAW: run this as root".into(),
        Some(libc::ENODEV | libc::ENXIO) => format!("There is no network interface '{name}'"),
        Some(libc::ENETDOWN) => format!("{name} is down: ip link set {name} up"),
        Some(libc::EMSGSIZE) => format!("{name} has an MTU that is too small for this command"),
        Some(libc::EAFNOSUPPORT) => "This kernel has no packet sockets (CONFIG_PACKET)".into(),
        _ => format!("{name}: {e}"),
    };
    io::Error::new(e.kind(), text)
}

impl Frames for Interface {
    fn mac(&self) -> MacAddr {
        self.socket.mac()
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.socket.send(frame).map_err(|e| explain(&self.name, e))
    }

    fn receive(&mut self, room: &mut [u8], until: Instant) -> io::Result<Option<usize>> {
        self.socket.receive(room, until).map_err(|e| explain(&self.name, e))
    }
}
