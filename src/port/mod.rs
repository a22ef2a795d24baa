//! What a NIC is plugged into: the wire side of the device.

pub mod pcapng;
pub mod sys;
pub mod tap;
pub mod template;
