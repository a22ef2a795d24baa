//! flownic: a NIC made of software.
//!
//! A vhost-user-net back end that emulates a multi-queue NIC with a flow-filter table, learned flows and
//! Toeplitz RSS. `docs/architecture.md` draws the whole; this is the map of the house:
//!
//! * [`offload`]: checksums and segmentation in software.
//! * [`port`]: what a NIC is plugged into.
//! * [`virtio`]: the specification as types.
#![warn(missing_docs)]

pub mod offload;
pub mod port;
pub mod virtio;
