//! Ports: what a NIC's wire is connected to.
//!
//! Each queue pair of a NIC has its own end of the port, used by the pair's worker alone. Which kind it is is decided
//! once per batch (a `match`, no `dyn`).

pub mod capture;
mod generator;
pub mod link;
pub mod pcapng;
mod reflect;
pub mod sys;
pub mod sys_socket;
pub mod tap;
mod tap_port;
pub mod template;

use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::dataplane::Context;
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
    /// Another NIC, or a switch with several.
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
            PortQueue::Link(_) | PortQueue::Reflect(_) | PortQueue::Null => FrameBatch::new(store),
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
