//! Commands of a guest to its NIC, by both roads, written from `docs/guest-abi.md`.

use std::time::Instant;

use super::ring::Seg;
use super::{Guest, Layout, soon};
use crate::virtio::NetHeader;

/// EtherType of commands and replies.
pub const CHANNEL_TYPE: [u8; 2] = [0x88, 0xb5];
/// Bytes of the channel header.
pub const CHANNEL_HEADER: usize = 16;

/// A command, right or wrong in any field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Destination MAC address.
    pub dst: [u8; 6],
    /// Source MAC address, where a reply frame goes.
    pub src: [u8; 6],
    /// Magic number.
    pub magic: [u8; 4],
    /// Version of the channel.
    pub version: u8,
    /// 1 = admin, 2 = control.
    pub kind: u8,
    /// What the reply repeats.
    pub sequence: u32,
    /// What the header says of the length.
    pub length: u16,
    /// The device-readable part.
    pub bytes: Vec<u8>,
}

impl Command {
    /// A command of some kind.
    pub fn new(kind: u8, bytes: &[u8]) -> Self {
        Command {
            dst: [2, 0, 0, 0, 0, 1],
            src: [2, 0, 0, 0, 0, 2],
            magic: *b"flwn",
            version: 1,
            kind,
            sequence: 0x1234_5678,
            length: bytes.len() as u16,
            bytes: bytes.to_vec(),
        }
    }

    /// An admin command.
    pub fn admin(bytes: &[u8]) -> Self {
        Command::new(1, bytes)
    }

    /// A control command.
    pub fn control(bytes: &[u8]) -> Self {
        Command::new(2, bytes)
    }

    /// The frame, without padding.
    pub fn frame(&self) -> Vec<u8> {
        let mut frame = [&self.dst[..], &self.src, &CHANNEL_TYPE, &self.magic].concat();
        frame.extend([self.version, self.kind, 0, 0]);
        frame.extend(self.sequence.to_le_bytes());
        frame.extend(self.length.to_le_bytes());
        frame.extend([0, 0]);
        frame.extend(&self.bytes);
        frame
    }
}

/// A reply, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Version of the channel.
    pub version: u8,
    /// The command's kind and 0x80.
    pub kind: u8,
    /// Whether the channel took the command.
    pub status: u8,
    /// The command's.
    pub sequence: u32,
    /// How long the answer is, whatever of it is here.
    pub length: u16,
    /// The device-writable part, and padding behind it.
    pub answer: Vec<u8>,
}

impl Reply {
    /// Takes a reply apart.
    ///
    /// # Panics
    /// When it is none.
    pub fn parse(bytes: &[u8]) -> Self {
        let Some((h, answer)) = bytes.split_first_chunk::<CHANNEL_HEADER>() else {
            panic!("a reply of {} bytes: {bytes:x?}", bytes.len())
        };
        assert_eq!((&h[..4], h[7], &h[14..]), (&b"flwn"[..], 0, &[0, 0][..]), "{h:x?}");
        Reply {
            version: h[4],
            kind: h[5],
            status: h[6],
            sequence: u32::from_le_bytes([h[8], h[9], h[10], h[11]]),
            length: u16::from_le_bytes([h[12], h[13]]),
            answer: answer.to_vec(),
        }
    }
}

impl Guest {
    /// Sends a command in a chain that takes at most `room` bytes of reply, and waits for it.
    ///
    /// # Panics
    /// When the chain does not come back, or no reply with it.
    pub fn command(&mut self, pair: usize, command: &Command, room: u32) -> Reply {
        let (_, reply) = self
            .transact(pair, &command.frame(), &Layout::header_apart(), &[room], soon())
            .unwrap_or_else(|| panic!("transmit queue {pair}: a command does not come back"));
        Reply::parse(&reply)
    }

    /// Sends a command as a frame and waits for the reply, on whichever queue; `None` when something else came, or
    /// nothing in time.
    pub fn command_frame(&mut self, pair: usize, command: &Command) -> Option<(usize, Reply)> {
        self.send(pair, &command.frame());
        let got = self.recv_any(soon())?;
        let f = &got.frame;
        let ours = f[..6] == command.src && f[6..12] == command.dst && f[12..14] == CHANNEL_TYPE;
        ours.then(|| (got.pair, Reply::parse(&f[14..])))
    }

    /// Sends a frame with buffers of these sizes for the device to write to behind it, and returns the used length and
    /// what is in the buffers, as far as the device says that it wrote; `None` if the chain does not come back.
    ///
    /// # Panics
    /// When other chains are in the ring and do not come back, or this one does not fit.
    pub fn transact(
        &mut self,
        pair: usize,
        frame: &[u8],
        layout: &Layout,
        rooms: &[u32],
        until: Instant,
    ) -> Option<(u32, Vec<u8>)> {
        assert!(self.drain_tx(pair, until), "transmit queue {pair} does not drain");
        let bytes = [&NetHeader::default().to_bytes()[..self.header_len()], frame].concat();
        let mut segs = self.place(&bytes, layout);
        let read = segs.len();
        // A buffer of no bytes has an address, too.
        let room = |&len: &u32| Seg { addr: self.ram.alloc(len.max(1).into()), len, writable: true };
        segs.extend(rooms.iter().map(room));
        let used = self.exchange(pair, &segs, layout.indirect, until)?;
        let mut written: Vec<u8> =
            segs[read..].iter().flat_map(|s| self.ram.read(s.addr, s.len as usize)).collect();
        written.truncate(used as usize);
        for seg in &segs[read..] {
            self.ram.free(seg.addr, seg.len.max(1).into());
        }
        self.free_segs(&segs[..read]);
        Some((used, written))
    }

    /// Sends one chain through an empty ring and waits for it; the used length.
    ///
    /// # Panics
    /// When the ring has no room for it.
    pub fn exchange(&mut self, pair: usize, segs: &[Seg], indirect: bool, until: Instant) -> Option<u32> {
        self.tx(pair).add(segs, indirect).expect("an empty ring");
        self.flush_tx(pair);
        self.tx(pair).wait_used(until).then(|| self.tx(pair).take_used().expect("waited for").len)
    }
}
