//! Rings against a driver in ordinary memory. Names quote the rule: of virtio 1.4, or of this module's documentation.

mod command;
mod oracle;
mod packed;
mod packed_model;
mod rx;
mod split;
mod tx;
