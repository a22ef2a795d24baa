//! The other side: how a program in a guest programs the NIC, over the in-band channel (`docs/guest-abi.md`).
//!
//! [`Channel`] carries commands, [`Device`] knows what they are, [`flows`] keeps filter rules as ethtool has them. The program
//! is `flownic-guest`. Nothing is remembered between runs: what there is, is in the device.

mod channel;
mod device;
pub mod flows;
mod groups;
mod layout;
pub mod settings;
mod socket;
#[cfg(test)]
mod tests;

pub use channel::{Channel, Frames, GuestError};
pub use device::Device;
pub use groups::{OWN_GROUP_PRIORITY, Place};
pub use socket::open;
