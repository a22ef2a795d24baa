//! A guest made of code: vhost-user front end, split-ring driver and process handle for black-box tests.
//!
//! Nothing here shares code with the back end under test. The protocol ([`proto`]) is written from the
//! vhost-user specification and the driver ([`ring`]) from virtio 1.4 section 2.7, both in the order and with
//! the barriers that QEMU and Linux use, so that a mistake on one side can't hide behind the same mistake on
//! the other. No VM, no root:
//!
//! * [`memory`]: guest memory in shared files, several regions, invented user addresses.
//! * [`proto`]: vhost-user messages over the socket, raw or acknowledged.
//! * [`ring`]: one virtqueue, cooked (chains, kicks, signals) and raw (any byte anywhere).
//! * [`front`]: [`Guest`], the negotiation and its builder.
//! * [`traffic`]: frames in and out of a [`Guest`].
//! * [`in_band`]: commands of the guest to its NIC, and replies.
//! * [`frame`]: builders and a verifier of Ethernet frames.
//! * [`testpmd`]: DPDK's test program as another driver.
//! * [`process`]: the `flownic` binary as a child and what it uses; [`control`]: a client of its control socket.
//!
//! Calls that wait take a deadline or use [`PATIENCE`]; they block on descriptors, never sleep. What a test can
//! do nothing about (no memory left, a device that answers with a head it was never given) panics with a
//! sentence that names the queue.

mod builder;
pub mod control;
mod dial;
pub mod frame;
pub mod front;
pub mod in_band;
pub mod memory;
pub mod process;
pub mod proto;
pub mod ring;
pub mod testpmd;
pub mod traffic;
mod verify;
mod wait;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

pub use builder::Builder;
pub use control::Control;
pub use front::Guest;
pub use in_band::{Command, Reply};
pub use process::Flownic;
pub use ring::{Desc, Ring, Seg};
pub use testpmd::Testpmd;
pub use traffic::{Layout, Received};

use std::time::{Duration, Instant};

/// How long a test waits for something that must happen, on a machine that may be busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The moment [`PATIENCE`] ends, counted from now.
pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}
