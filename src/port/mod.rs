//! Ports: what a NIC's wire is connected to.
//!
//! Each queue pair of a NIC has its own end of the port, used by the pair's worker alone. Which kind it is is decided
//! once per batch (a `match`, no `dyn`).

mod addresses;
pub mod capture;
mod generator;
pub mod link;
pub mod pcapng;
mod reflect;
pub mod sys;
pub mod sys_packet;
pub mod sys_socket;
pub mod tap;
mod tap_port;
pub mod template;

use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::dataplane::{Context, rx};
use crate::nic::Nic;
use crate::vhost::ring::{BatchStore, FrameBatch};

pub use generator::Generator;
pub use link::LinkPort;
pub use reflect::Reflector;
pub use tap_port::TapPort;

/// One queue pair's end of a port.
pub trait Port {
    /// Frames that have come in, at most a batch of them. They are valid until the next call.
    fn receive<'a>(&'a mut self, store: &'a mut BatchStore) -> FrameBatch<'a>;

    /// Brings the frames that have come in to where they belong: to `nic`, whose end this is, unless the port knows better.
    /// Returns how many there were.
    #[inline]
    fn deliver(&mut self, nic: &Nic, store: &mut BatchStore, cx: &mut Context) -> usize {
        let mut batch = self.receive(store);
        let frames = rx::all(&batch);
        rx::receive(nic, &mut batch, frames, cx);
        batch.len()
    }

    /// Sends the frames; returns how many of them it did not take. `from` is the NIC that sends.
    fn send(&mut self, from: &Nic, batch: &mut FrameBatch<'_>, cx: &mut Context) -> u64;

    /// Readable when there may be something to receive.
    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// When there will be something to receive, for a port without a descriptor; `None` if there never will.
    fn due(&self) -> Option<Instant> {
        None
    }
}

/// A port of any kind.
pub enum PortQueue {
    /// A TAP device of the kernel.
    Tap(TapPort),
    /// Another NIC, or a switch with several, and perhaps a TAP device.
    Link(LinkPort),
    /// `loopback` and `echo`: back to the sender.
    Reflect(Reflector),
    /// `null`: nowhere.
    Null,
    /// `gen`: a source of traffic.
    Generator(Generator),
}

impl Port for PortQueue {
    #[inline]
    fn receive<'a>(&'a mut self, store: &'a mut BatchStore) -> FrameBatch<'a> {
        match self {
            PortQueue::Tap(p) => p.receive(store),
            PortQueue::Generator(p) => p.receive(store),
            PortQueue::Link(p) => p.receive(store),
            PortQueue::Reflect(_) | PortQueue::Null => FrameBatch::new(store),
        }
    }

    #[inline]
    fn deliver(&mut self, nic: &Nic, store: &mut BatchStore, cx: &mut Context) -> usize {
        match self {
            PortQueue::Tap(p) => p.deliver(nic, store, cx),
            PortQueue::Generator(p) => p.deliver(nic, store, cx),
            PortQueue::Link(p) => p.deliver(nic, store, cx),
            PortQueue::Reflect(_) | PortQueue::Null => 0,
        }
    }

    #[inline]
    fn send(&mut self, from: &Nic, batch: &mut FrameBatch<'_>, cx: &mut Context) -> u64 {
        match self {
            PortQueue::Tap(p) => p.send(from, batch, cx),
            PortQueue::Link(p) => p.send(from, batch, cx),
            PortQueue::Reflect(p) => p.send(from, batch, cx),
            PortQueue::Null => 0,
            PortQueue::Generator(p) => p.send(from, batch, cx),
        }
    }

    fn readable_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            PortQueue::Tap(p) => p.readable_fd(),
            PortQueue::Link(p) => p.readable_fd(),
            _ => None,
        }
    }

    fn due(&self) -> Option<Instant> {
        match self {
            PortQueue::Generator(p) => p.due(),
            _ => None,
        }
    }
}
