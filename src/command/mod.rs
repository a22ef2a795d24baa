//! Commands with which a guest programs its NIC: admin commands and control commands of virtio 1.4, by whatever road they
//! come. `docs/guest-abi.md` has the list, `docs/guest-commands.md` what was decided where the specification is not clear.
//!
//! [`GuestState`] is what commands have set up, as far as it is not steering; `forget` undoes all of it. Whatever a guest
//! does, it is bounded: by the limits of the flow filter, the number of queues, and the length of a command.
//!
//! Locks: the guest's state, then steering. Nobody takes them the other way round, and a command takes no slot: the
//! worker that carries it out has a transmit queue in hand.

mod admin;
pub mod channel;
mod clock;
mod control;
mod listing;
pub mod moderation;
mod objects;
mod receive;
mod rss;
mod selectors;
mod statistics;
#[cfg(test)]
mod tests;
mod vendor;

use std::sync::atomic::Ordering;

pub use clock::FilterClock;

use crate::nic::Nic;
use crate::virtio::flow::{Classifier, RuleObject};
use moderation::Moderation;

/// What a command is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An admin command (2.13).
    Admin,
    /// A control command (5.1.6.5).
    Control,
}

/// What a guest has set up, beside steering.
pub struct GuestState {
    /// Admin commands.
    admin: admin::AdminState,
    /// When its interrupts are sent.
    pub moderation: Moderation,
    /// Control commands so far.
    commands: u64,
    /// Control commands that were carried out.
    carried_out: u64,
}

impl GuestState {
    /// Nothing set up, for a NIC with that many queue pairs.
    pub fn new(queue_pairs: u16) -> Self {
        GuestState {
            admin: admin::AdminState::default(),
            moderation: Moderation::new(queue_pairs),
            commands: 0,
            carried_out: 0,
        }
    }

    /// Flow-filter objects (groups, classifiers, rules) that there are.
    pub fn objects(&self) -> usize {
        self.admin.objects.len()
    }

    /// A rule of the guest, and its classifier, as they were given.
    pub fn rule(&self, id: u32) -> Option<(&RuleObject, &Classifier)> {
        self.admin.objects.rule(id)
    }
}

/// Carries out `command` (its device-readable part) and writes the answer (its device-writable part) into `answer`, as far as
/// it fits. Returns how long the answer is, which may be more.
///
/// A worker calls this with the transmit queue in hand on which the command came. It takes the lock of the guest's state and
/// the steering lock, so the caller must hold neither, and no slot.
pub fn execute(nic: &Nic, kind: Kind, command: &[u8], answer: &mut [u8]) -> usize {
    let whole = {
        let mut guest = nic.guest_state();
        match kind {
            Kind::Admin => admin::execute(nic, &mut guest.admin, command).to_bytes(),
            Kind::Control => control::execute(nic, &mut guest, command),
        }
    };
    let fits = whole.len().min(answer.len());
    answer[..fits].copy_from_slice(&whole[..fits]);
    whole.len()
}

/// Forgets all that the guest has set up with commands; what the host has set stays.
pub(crate) fn forget(nic: &Nic, guest: &mut GuestState) {
    guest.admin = admin::AdminState::default();
    guest.moderation.forget_guest();
    nic.enforce_moderation(&guest.moderation);
    nic.hash_in_header.store(false, Ordering::Relaxed);
    nic.steering.write().forget_guest();
}
