//! flownic: a NIC made of software.
//!
//! A vhost-user-net back end that emulates a multi-queue NIC with a flow-filter table, learned flows and
//! Toeplitz RSS. `docs/architecture.md` draws the whole; this is the map of the house:
//!
//! * [`virtio`]: the specification as types.
//! * [`packet`]: a frame's headers, parsed once.
//! * [`steer`]: which receive queue a packet goes to, and why.
#![warn(missing_docs)]

pub mod packet;
pub mod steer;
pub mod virtio;
