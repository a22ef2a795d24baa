//! flownic: a NIC made of software.
//!
//! A vhost-user-net back end that emulates a multi-queue NIC with a flow-filter table, learned flows and
//! Toeplitz RSS. `docs/architecture.md` draws the whole; this is the map of the house:
//!
//! * [`virtio`]: the specification as types.
#![warn(missing_docs)]

#[cfg(feature = "testkit")]
pub mod testkit;
pub mod virtio;
