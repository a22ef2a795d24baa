//! The in-band channel: what is around a command, and around its answer.

use super::{Kind, execute};
use crate::config::InBand;
use crate::nic::Nic;
use crate::virtio::channel::{
    CHANNEL_MAGIC, CHANNEL_VERSION, COMMAND_MAX, COMMAND_OFFSET, ChannelHeader, ChannelStatus, KIND_ADMIN,
    KIND_CONTROL, KIND_REPLY, Road, channel_header,
};

/// What became of a command, for the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out, or refused by its own answer.
    Done,
    /// The channel refused it: unknown version or kind, or a road that is not allowed.
    Refused,
    /// Its length can't be.
    Malformed,
    /// It is a reply itself. Answering it could go on for ever.
    Reply,
}

/// Carries out the command in `frame` (Ethernet header first) that came by `road`, and writes channel header and
/// answer into `reply`, as far as they fit. Returns what became of it and how many bytes were written.
///
/// # Panics
/// When `reply` has no room for a channel header.
pub fn answer(nic: &Nic, road: Road, frame: &[u8], reply: &mut [u8]) -> (Outcome, usize) {
    let header = channel_header(frame, frame.len()).unwrap_or_default();
    let (head, room) = reply.split_first_chunk_mut().expect("room for a channel header");
    let (status, length) = match check(nic.config.in_band, road, &header, frame) {
        Ok((kind, command)) => {
            // What the guest gets of it must not be what somebody else's frame left there.
            room.fill(0);
            (ChannelStatus::Done, execute(nic, kind, command, room))
        }
        Err(status) => (status, 0),
    };
    *head = ChannelHeader {
        magic: CHANNEL_MAGIC,
        version: CHANNEL_VERSION,
        kind: header.kind | KIND_REPLY,
        status: status as u8,
        sequence: header.sequence,
        length: length.try_into().unwrap_or(u16::MAX),
        ..ChannelHeader::default()
    }
    .to_bytes();
    let outcome = match status {
        _ if header.kind & KIND_REPLY != 0 => Outcome::Reply,
        ChannelStatus::Done => Outcome::Done,
        ChannelStatus::Malformed => Outcome::Malformed,
        ChannelStatus::UnknownVersion | ChannelStatus::UnknownKind | ChannelStatus::NotAllowed => {
            Outcome::Refused
        }
    };
    (outcome, ChannelHeader::SIZE + length.min(room.len()))
}

/// Kind and bytes of a command that may be carried out.
fn check<'f>(
    in_band: InBand,
    road: Road,
    header: &ChannelHeader,
    frame: &'f [u8],
) -> Result<(Kind, &'f [u8]), ChannelStatus> {
    if header.version != CHANNEL_VERSION {
        return Err(ChannelStatus::UnknownVersion);
    }
    if !in_band.allows(road) {
        return Err(ChannelStatus::NotAllowed);
    }
    let kind = match header.kind {
        KIND_ADMIN => Kind::Admin,
        KIND_CONTROL => Kind::Control,
        _ => return Err(ChannelStatus::UnknownKind),
    };
    let length = usize::from(header.length);
    let command = frame.get(COMMAND_OFFSET..COMMAND_OFFSET + length).filter(|_| length <= COMMAND_MAX);
    Ok((kind, command.ok_or(ChannelStatus::Malformed)?))
}
