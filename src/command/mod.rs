//! Commands with which a guest programs its NIC: admin commands and control commands of virtio 1.4, by whatever road they
//! come. `docs/guest-abi.md` has the list.

pub mod channel;

use crate::nic::Nic;

/// What a command is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An admin command (2.13).
    Admin,
    /// A control command (5.1.6.5).
    Control,
}

/// Carries out `command` (its device-readable part) and writes the answer (its device-writable part) into `answer`, as far as
/// it fits. Returns how long the answer is, which may be more.
///
/// A worker calls this with the transmit queue in hand on which the command came. It takes the steering lock, and no slot.
pub fn execute(_nic: &Nic, kind: Kind, _command: &[u8], answer: &mut [u8]) -> usize {
    let refusal: &[u8] = match kind {
        // EINVAL, invalid opcode
        Kind::Admin => &[22, 0, 2, 0, 0, 0, 0, 0],
        // ERR
        Kind::Control => &[1],
    };
    let fits = refusal.len().min(answer.len());
    answer[..fits].copy_from_slice(&refusal[..fits]);
    refusal.len()
}
