//! The in-band channel's frames (`docs/guest-abi.md`, "The channel").

/// EtherType of frames that may be commands: IEEE 802 local experimental 1.
pub const ETHERTYPE_CHANNEL: u16 = 0x88b5;
/// `magic` of a channel header: `flwn`.
pub const CHANNEL_MAGIC: u32 = 0x6e77_6c66;
/// The version that is spoken here.
pub const CHANNEL_VERSION: u8 = 1;
/// An admin command (2.13).
pub const KIND_ADMIN: u8 = 1;
/// A control command (5.1.6.5).
pub const KIND_CONTROL: u8 = 2;
/// Or-ed into `kind` by whoever replies.
pub const KIND_REPLY: u8 = 0x80;
/// Bytes of a command, at most.
pub const COMMAND_MAX: usize = 16384;
/// Bytes of an answer that fit into a reply frame; a longer one is cut off.
pub const FRAME_ANSWER_MAX: usize = 1484;

/// Bytes before the channel header: both MAC addresses and the EtherType.
const ETHERNET: usize = 14;
/// Bytes before the command.
pub const COMMAND_OFFSET: usize = ETHERNET + ChannelHeader::SIZE;

/// How a command comes, and its reply goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Road {
    /// In a chain with device-writable buffers, which take the reply.
    Kernel,
    /// As a frame; so is the reply.
    User,
}

/// `status` of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ChannelStatus {
    /// The command was carried out, or refused by its own answer, which follows.
    Done = 0,
    /// The version is not known; that of the reply is.
    UnknownVersion = 1,
    /// The kind is not known.
    UnknownKind = 2,
    /// `length` says more than there is, or than [`COMMAND_MAX`].
    Malformed = 3,
    /// The host does not allow this road.
    NotAllowed = 4,
}

/// The header in front of commands and of answers, on the wire little-endian.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChannelHeader {
    /// [`CHANNEL_MAGIC`].
    pub magic: u32,
    /// [`CHANNEL_VERSION`].
    pub version: u8,
    /// [`KIND_ADMIN`] or [`KIND_CONTROL`], in replies with [`KIND_REPLY`].
    pub kind: u8,
    /// 0 in commands, a [`ChannelStatus`] in replies.
    pub status: u8,
    /// 0; not looked at.
    pub reserved: u8,
    /// Any; the reply has the same.
    pub sequence: u32,
    /// Bytes of the command or answer.
    pub length: u16,
    /// 0; not looked at.
    pub reserved2: u16,
}

const _: () = assert!(size_of::<ChannelHeader>() == ChannelHeader::SIZE && COMMAND_OFFSET == 30);

impl ChannelHeader {
    /// Bytes on the wire.
    pub const SIZE: usize = 16;

    /// Decodes the little-endian wire form.
    pub fn from_bytes(b: &[u8; Self::SIZE]) -> Self {
        let [m0, m1, m2, m3, version, kind, status, reserved, s0, s1, s2, s3, l0, l1, r0, r1] = *b;
        ChannelHeader {
            magic: u32::from_le_bytes([m0, m1, m2, m3]),
            version,
            kind,
            status,
            reserved,
            sequence: u32::from_le_bytes([s0, s1, s2, s3]),
            length: u16::from_le_bytes([l0, l1]),
            reserved2: u16::from_le_bytes([r0, r1]),
        }
    }

    /// Encodes to the little-endian wire form.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut b = [0; Self::SIZE];
        b[..4].copy_from_slice(&self.magic.to_le_bytes());
        b[4..8].copy_from_slice(&[self.version, self.kind, self.status, self.reserved]);
        b[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        b[12..14].copy_from_slice(&self.length.to_le_bytes());
        b[14..].copy_from_slice(&self.reserved2.to_le_bytes());
        b
    }
}

/// The channel header of a frame of `len` bytes that starts with `head`; `None` if it is an ordinary frame.
#[inline]
pub fn channel_header(head: &[u8], len: usize) -> Option<ChannelHeader> {
    if head.get(12..ETHERNET)? != ETHERTYPE_CHANNEL.to_be_bytes() {
        return None;
    }
    if len < COMMAND_OFFSET {
        return None;
    }
    let header = ChannelHeader::from_bytes(head[ETHERNET..].first_chunk()?);
    (header.magic == CHANNEL_MAGIC).then_some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> ChannelHeader {
        ChannelHeader {
            magic: CHANNEL_MAGIC,
            version: 1,
            kind: 2,
            status: 3,
            reserved: 4,
            sequence: 0x0807_0605,
            length: 0x0a09,
            reserved2: 0x0c0b,
        }
    }

    #[test]
    fn the_header_lies_as_the_abi_says() {
        let bytes = header().to_bytes();
        assert_eq!(bytes, *b"flwn\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c");
        assert_eq!(ChannelHeader::from_bytes(&bytes), header());
    }

    #[test]
    fn type_magic_and_a_whole_header_make_a_command() {
        let mut frame = [&[1; 12][..], &[0x88, 0xb5], &header().to_bytes(), &[0; 30]].concat();
        assert_eq!(channel_header(&frame, 60), Some(header()));
        assert_eq!(channel_header(&frame[..30], 30), Some(header()));
        assert_eq!(channel_header(&frame[..29], 29), None, "a header that is cut is none");
        assert_eq!(channel_header(&frame[..13], 13), None);
        for at in [12, 13, 14, 15, 16, 17] {
            frame[at] ^= 1;
            assert_eq!(channel_header(&frame, 60), None, "byte {at}");
            frame[at] ^= 1;
        }
    }
}
