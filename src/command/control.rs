//! Control commands: from class and command to whoever carries it out.

use super::{GuestState, receive, rss, statistics, vendor};
use crate::nic::Nic;
use crate::virtio::ctrl::{Ack, Class};
use crate::virtio::wire::Writer;

/// The result of a command, or `None` if it can't be carried out: control commands do not say why.
pub(super) type Outcome = Option<Vec<u8>>;

/// Carries a command out; its answer.
pub(super) fn execute(nic: &Nic, guest: &mut GuestState, command: &[u8]) -> Vec<u8> {
    guest.commands = guest.commands.wrapping_add(1);
    // A command counts itself (5.1.6.5.9), and statistics are right only if it succeeds.
    guest.carried_out = guest.carried_out.wrapping_add(1);
    match carry_out(nic, guest, command) {
        Some(result) => Writer::new().u8(Ack::Ok.code()).bytes(&result).finish(),
        None => {
            guest.carried_out = guest.carried_out.wrapping_sub(1);
            vec![Ack::Error.code()]
        }
    }
}

fn carry_out(nic: &Nic, guest: &mut GuestState, command: &[u8]) -> Outcome {
    let (&[class, command], data) = command.split_first_chunk::<2>()?;
    match Class::from_code(class)? {
        Class::Rx => receive::mode(nic, command, data),
        Class::Mac => receive::addresses(nic, command, data),
        Class::Vlan => receive::vlans(nic, command, data),
        Class::Mq => rss::multiqueue(nic, command, data),
        Class::Coalesce => guest.moderation.execute(nic, command, data),
        Class::Stats => statistics::execute(nic, guest, command, data),
        Class::RssContext => rss::contexts(nic, command, data),
        Class::Flownic => vendor::execute(nic, guest, command, data),
    }
}

/// Done, with nothing to say.
pub(super) const DONE: Outcome = Some(Vec::new());
