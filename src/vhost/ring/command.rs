//! A command to the NIC itself, found among the frames of a transmit ring (`docs/guest-abi.md`, "The channel").

use super::MAX_FRAME;
use super::batch::FrameBatch;
use super::chain::{self, BadChain};
use super::desc::{DESC_F_WRITE, Desc};
use super::layout::Layout;
use crate::virtio::channel::{COMMAND_MAX, COMMAND_OFFSET, ChannelHeader, Road, channel_header};

/// Bytes of a command's frame that anybody looks at.
const KEPT: usize = COMMAND_OFFSET + COMMAND_MAX;

/// A command as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command<'a> {
    /// How it came.
    pub road: Road,
    /// Its frame, Ethernet header first; a longer one is cut off behind the longest command.
    pub frame: &'a [u8],
    /// Bytes that the chain has for the reply; 0 on the user road, where the reply is a frame.
    pub room: u64,
}

/// Room for one command: a burst ends with it.
#[derive(Default)]
pub(super) struct Pending {
    road: Option<Road>,
    /// The first `len` bytes count. Allocated with the first command.
    frame: Vec<u8>,
    len: usize,
    /// Device-writable buffers, by guest address; they are checked again when they are written to.
    room: Vec<(u64, u32)>,
    room_bytes: u64,
    written: u32,
}

impl Pending {
    pub(super) fn get(&self) -> Option<Command<'_>> {
        let road = self.road?;
        Some(Command { road, frame: &self.frame[..self.len], room: self.room_bytes })
    }

    fn clear(&mut self) {
        self.road = None;
        self.frame.resize(KEPT, 0);
        self.room.clear();
        (self.len, self.room_bytes, self.written) = (0, 0, 0);
    }

    /// Forgets the command; returns how many bytes were written to its chain.
    pub(super) fn finish(&mut self) -> u32 {
        self.road = None;
        std::mem::take(&mut self.written)
    }

    /// Reads a chain with device-writable buffers, which is a command or nothing.
    #[cold]
    pub(super) fn gather(&mut self, ring: &impl Layout, first: Desc) -> Result<(), BadChain> {
        self.clear();
        let header_len = ring.setup().header_len;
        // Bytes of the readable part, the virtio-net header included.
        let mut got = 0;
        let mut writes = false;
        chain::walk(ring, first, |desc| {
            if desc.flags & DESC_F_WRITE != 0 {
                // 2.7.4.2: readable ones come first. Nothing but a command has any after them.
                if !writes && self.header().is_none() {
                    return Err(BadChain::WrongDirection);
                }
                writes = true;
                self.room.push((desc.addr, desc.len));
                self.room_bytes += u64::from(desc.len);
                return chain::pieces(ring, desc.addr, desc.len, |_, _, _| Ok(()));
            }
            if writes {
                return Err(BadChain::WrongDirection);
            }
            chain::pieces(ring, desc.addr, desc.len, |p, n, _| {
                let n = n as usize;
                let skipped = n.min(header_len.saturating_sub(got));
                let copied = (n - skipped).min(KEPT - self.len);
                // SAFETY: pieces() yields n mapped bytes; clear() made room for KEPT.
                unsafe {
                    let to = self.frame.as_mut_ptr().add(self.len);
                    std::ptr::copy_nonoverlapping(p.add(skipped), to, copied);
                }
                self.len += copied;
                got += n;
                if got > header_len + MAX_FRAME { Err(BadChain::FrameTooLong) } else { Ok(()) }
            })
        })?;
        // The guest may have changed the chain since it was found to have a writable part.
        if !writes || self.room_bytes < ChannelHeader::SIZE as u64 {
            return Err(BadChain::NoFrame);
        }
        self.road = Some(Road::Kernel);
        Ok(())
    }

    fn header(&self) -> Option<ChannelHeader> {
        channel_header(&self.frame[..self.len], self.len)
    }

    /// Takes the last frame out of the batch if it is a command.
    #[cold]
    pub(super) fn take_frame(&mut self, batch: &mut FrameBatch<'_>) -> bool {
        let Some(last) = batch.len().checked_sub(1) else { return false };
        let f = batch.frame(last);
        if channel_header(f.head(), f.len()).is_none() {
            return false;
        }
        self.clear();
        self.len = f.len().min(KEPT);
        let (head, mut rest) = self.frame[..self.len].split_at_mut(f.head().len());
        head.copy_from_slice(f.head());
        for segment in batch.tail(last) {
            let (now, later) = rest.split_at_mut(segment.len().min(rest.len()));
            segment.copy_to(now);
            rest = later;
        }
        batch.drop_last();
        self.road = Some(Road::User);
        true
    }

    /// Writes the reply into the chain's buffers, as far as it fits.
    pub(super) fn reply(&mut self, ring: &impl Layout, reply: &[u8]) {
        let mut rest = reply;
        for &(gpa, len) in &self.room {
            let now = rest.len().min(len as usize) as u32;
            let written = chain::pieces(ring, gpa, now, |p, n, gpa| {
                let (bytes, later) = rest.split_at(n as usize);
                // SAFETY: pieces() yields n mapped bytes, and the reply is memory of our own.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), p, bytes.len()) };
                if ring.setup().logging {
                    ring.memory().mark_dirty(gpa, n.into());
                }
                rest = later;
                Ok(())
            });
            if rest.is_empty() || written.is_err() {
                break;
            }
        }
        self.written = (reply.len() - rest.len()) as u32;
    }
}
