//! flownic: a NIC made of software.
//!
//! A vhost-user-net back end that emulates a multi-queue NIC with a flow-filter table, learned flows and
//! Toeplitz RSS. `docs/architecture.md` draws the whole; this is the map of the house:
//!
//! * [`virtio`]: the specification as types;
//! * [`packet`], [`steer`], [`offload`]: pure code, no descriptor, clock or thread: what a frame is, where it goes, and
//!   what a receiver must have done for it;
//! * [`vhost`]: the transport: connections, memory, and the rings ([`vhost::ring`]);
//! * [`port`]: what the wire is connected to;
//! * [`nic`]: one NIC's state, which outlives connections;
//! * [`command`]: the commands with which a guest programs its NIC;
//! * [`guest`]: the other end of those commands, for programs in a guest;
//! * [`dataplane`]: workers, which bring frames from ports to guests and back;
//! * [`stats`], [`trace`]: what can be seen of it;
//! * [`config`], [`daemon`]: from flags to a running process;
//! * [`control`]: what can be asked of it while it runs;
//! * [`listener`]: a socket path that never vanishes.
#![warn(missing_docs)]

pub mod command;
pub mod config;
pub mod control;
pub mod daemon;
pub mod dataplane;
pub mod guest;
mod hint;
pub mod latency;
pub mod listener;
pub mod nic;
pub mod offload;
pub mod packet;
pub mod port;
pub mod stats;
pub mod steer;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod trace;
pub mod vhost;
pub mod virtio;
