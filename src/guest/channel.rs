//! Commands as frames, and the replies to them.

use std::io;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::command::Kind;
use crate::virtio::MacAddr;
use crate::virtio::admin::{Answer, Qualifier, Status};
use crate::virtio::channel::{
    CHANNEL_MAGIC, CHANNEL_VERSION, COMMAND_OFFSET, ChannelHeader, ETHERTYPE_CHANNEL, KIND_ADMIN,
    KIND_CONTROL, KIND_REPLY, channel_header,
};
use crate::virtio::ctrl;

/// Longest frame that is received: what fits into a reply, and more, should there be.
const FRAME_MAX: usize = 65536;
/// A question may be asked again if the answer got lost; this often.
const ATTEMPTS: u32 = 3;

/// Why the device did not do it.
#[derive(Debug, Error)]
pub enum GuestError {
    /// Nobody answered.
    #[error(
        "There was no answer. Either this is no flownic NIC, or the host does not take commands (--in-band=off)"
    )]
    NoAnswer,
    /// The host does not want it.
    #[error(
        "The host does not take commands from programs (--in-band=kernel): only the guest's driver may give them"
    )]
    NotAllowed,
    /// The other end is of another time.
    #[error("The device speaks version {0} of the channel, this program speaks version {CHANNEL_VERSION}")]
    Version(u8),
    /// The channel found the command wrong.
    #[error("The device finds the command malformed (channel status {0})")]
    Channel(u8),
    /// An administration command failed.
    #[error("{what}: {}", describe(*.status, *.qualifier))]
    Refused {
        /// What was to be done.
        what: String,
        /// [`Status`].
        status: u16,
        /// [`Qualifier`].
        qualifier: u16,
    },
    /// A control command failed; it does not say why.
    #[error("{0}: the device refuses")]
    Error(String),
    /// An answer that can't be.
    #[error("{0}: the answer makes no sense")]
    Nonsense(String),
    /// What can't be asked of this device, or of any.
    #[error("{0}")]
    Impossible(String),
    /// The socket did not work.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Status and qualifier in words.
fn describe(status: u16, qualifier: u16) -> String {
    let status = match Status::from_code(status) {
        Some(Status::NoSuch) => "there is no such object (ENXIO)".into(),
        Some(Status::Again) => "the device is busy with other rules, try again (EAGAIN)".into(),
        Some(Status::NoMemory) => "the device has not enough resources (ENOMEM)".into(),
        Some(Status::Busy) => "other objects depend on it (EBUSY)".into(),
        Some(Status::Exists) => "it exists already (EEXIST)".into(),
        Some(Status::Invalid) => "the device finds it not possible (EINVAL)".into(),
        Some(Status::NoSpace) => "the device has no room for it (ENOSPC)".into(),
        Some(Status::Ok) | None => format!("status {status}"),
    };
    match Qualifier::from_code(qualifier) {
        Some(Qualifier::Opcode) => format!("{status}; the command is not known or not in use"),
        Some(Qualifier::Field) => format!("{status}; it is about a field"),
        _ => status,
    }
}

/// Where frames go and come from.
pub trait Frames {
    /// The address of this end.
    fn mac(&self) -> MacAddr;

    /// Sends a frame.
    ///
    /// # Errors
    /// When that is not possible.
    fn send(&mut self, frame: &[u8]) -> io::Result<()>;

    /// Receives a frame into `room`, if one comes in time; its length.
    ///
    /// # Errors
    /// When that is not possible.
    fn receive(&mut self, room: &mut [u8], until: Instant) -> io::Result<Option<usize>>;
}

/// A way to the device.
pub struct Channel<F> {
    frames: F,
    sequence: u32,
    timeout: Duration,
    room: Vec<u8>,
}

/// Whether a command may be given twice without harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Yes,
    No,
}

impl<F: Frames> Channel<F> {
    /// A channel on which an answer is waited for so long. `sequence` is any number that another program on the same interface
    /// will not have.
    pub fn new(frames: F, timeout: Duration, sequence: u32) -> Self {
        Channel { frames, sequence, timeout, room: vec![0; FRAME_MAX] }
    }

    #[cfg(test)]
    pub(super) fn frames(&self) -> &F {
        &self.frames
    }

    /// Gives an administration command; its result. `what` it is to do is for the error's text.
    pub(super) fn admin(
        &mut self,
        what: impl Into<String>,
        command: &[u8],
        repeat: Repeat,
    ) -> Result<Vec<u8>, GuestError> {
        let answer = self.ask(Kind::Admin, command, repeat)?;
        if answer.len() < Answer::HEADER {
            return Err(GuestError::Nonsense(what.into()));
        }
        let result = Answer::from_bytes(&answer).into_result();
        result.map_err(|(status, qualifier)| GuestError::Refused { what: what.into(), status, qualifier })
    }

    /// Gives a control command; its result.
    pub(super) fn control(
        &mut self,
        what: impl Into<String>,
        command: &[u8],
        repeat: Repeat,
    ) -> Result<Vec<u8>, GuestError> {
        let answer = self.ask(Kind::Control, command, repeat)?;
        match (ctrl::result(&answer), answer.is_empty()) {
            (Some(result), _) => Ok(result.to_vec()),
            (None, true) => Err(GuestError::Nonsense(what.into())),
            (None, false) => Err(GuestError::Error(what.into())),
        }
    }

    /// Gives a command and waits for the answer.
    fn ask(&mut self, kind: Kind, command: &[u8], repeat: Repeat) -> Result<Vec<u8>, GuestError> {
        let attempts = if repeat == Repeat::Yes { ATTEMPTS } else { 1 };
        let each = self.timeout / attempts;
        for _ in 0..attempts {
            self.sequence = self.sequence.wrapping_add(1);
            let frame = self.frame(kind, command)?;
            self.frames.send(&frame)?;
            if let Some(answer) = self.answer(kind, Instant::now() + each)? {
                return Ok(answer);
            }
        }
        Err(GuestError::NoAnswer)
    }

    fn frame(&self, kind: Kind, command: &[u8]) -> Result<Vec<u8>, GuestError> {
        let mac = self.frames.mac();
        let length = u16::try_from(command.len()).map_err(|_| {
            GuestError::Impossible(format!("A command of {} bytes is too long", command.len()))
        })?;
        let header = ChannelHeader {
            magic: CHANNEL_MAGIC,
            version: CHANNEL_VERSION,
            kind: code(kind),
            sequence: self.sequence,
            length,
            ..ChannelHeader::default()
        };
        let mut frame = [&mac.0[..], &mac.0, &ETHERTYPE_CHANNEL.to_be_bytes(), &header.to_bytes()].concat();
        frame.extend_from_slice(command);
        // Drivers pad short frames, not all programs' frames pass through one.
        frame.resize(frame.len().max(60), 0);
        Ok(frame)
    }

    /// The answer to the last command, if it comes in time. Other frames of the same EtherType are none of ours.
    fn answer(&mut self, kind: Kind, until: Instant) -> Result<Option<Vec<u8>>, GuestError> {
        while let Some(len) = self.frames.receive(&mut self.room, until)? {
            let frame = &self.room[..len.min(self.room.len())];
            let Some(header) = channel_header(frame, frame.len()) else { continue };
            if header.sequence != self.sequence || header.kind != code(kind) | KIND_REPLY {
                continue;
            }
            return match header.status {
                0 => {
                    let rest = &frame[COMMAND_OFFSET..];
                    Ok(Some(rest[..rest.len().min(header.length.into())].to_vec()))
                }
                1 => Err(GuestError::Version(header.version)),
                4 => Err(GuestError::NotAllowed),
                status => Err(GuestError::Channel(status)),
            };
        }
        Ok(None)
    }
}

fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Admin => KIND_ADMIN,
        Kind::Control => KIND_CONTROL,
    }
}
