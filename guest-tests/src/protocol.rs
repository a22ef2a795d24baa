//! Frames between the harness and the agent that runs in a guest or a network namespace.
//!
//! The stream is a virtio-serial port or a UNIX socket. A guest that reboots may leave half a frame on either side, so
//! every frame starts with a magic number that a reader hunts for, and carries the agent's *epoch*, chosen anew at each
//! start: frames of another epoch are dropped. The agent opens its stream with [`PREAMBLE`] zero bytes, which fill
//! whatever frame the host was still waiting for.
//!
//! Header, little endian: magic `u32`, kind `u8`, three zero bytes, epoch `u32`, id `u32`, payload length `u32`.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// First four bytes of every frame.
pub const MAGIC: u32 = 0xf10a_611c;
/// Length of the header in bytes.
pub const HEADER: usize = 20;
/// Longest payload in bytes.
pub const MAX_PAYLOAD: usize = 32 * 1024;
/// Zero bytes that the agent sends first: more than one whole frame.
pub const PREAMBLE: usize = HEADER + MAX_PAYLOAD + 1;
/// Name of the virtio-serial port.
pub const PORT_NAME: &str = "flownic.agent";
/// Where the module of the reference driver lies in a guest that has it.
pub const MODULE_PATH: &str = "/usr/lib/modules/flownic_net.ko";

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Host to agent: start a process; payload is an [`Exec`].
    Exec = 1,
    /// Host to agent: input of the process or file `id`; an empty payload ends it.
    Input = 2,
    /// Host to agent: signal the process group of `id`; payload is the signal as `u32`.
    Kill = 3,
    /// Host to agent: write a file from the following [`Kind::Input`] frames; payload is a [`Put`].
    Put = 4,
    /// Host to agent: reboot or power off; payload is a [`Power`].
    Power = 5,
    /// Agent to host: the agent has started; payload is a [`Ready`].
    Ready = 16,
    /// Agent to host: the process `id` runs; payload is its pid as `u32`.
    Started = 17,
    /// Agent to host: bytes of standard output.
    Stdout = 18,
    /// Agent to host: bytes of standard error.
    Stderr = 19,
    /// Agent to host: nothing more comes for `id`; payload is a [`Done`].
    Done = 20,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        use Kind::*;
        [Exec, Input, Kill, Put, Power, Ready, Started, Stdout, Stderr, Done]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Starts a process in a process group of its own.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Exec {
    /// Program and arguments; the program is looked up in `PATH`.
    pub argv: Vec<String>,
    /// Additional environment.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Directory that becomes the root of the process, if not the agent's own.
    #[serde(default)]
    pub root: Option<String>,
}

/// Writes a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Put {
    /// Absolute path; directories above it are made.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
}

/// Ends the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Power {
    /// Restart the kernel through the firmware.
    Reboot,
    /// Switch off; QEMU exits.
    Off,
}

/// First message of an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ready {
    /// Kernel release.
    pub kernel: String,
    /// What went wrong on the way up, such as a module that did not load.
    pub problems: Vec<String>,
}

/// How a process or a file transfer ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// The process called exit with this status; a written file ends with 0.
    Exited(i32),
    /// The process was ended by this signal.
    Signaled(i32),
    /// The process could not be started or the file not be written, and why.
    Failed(String),
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What the payload is.
    pub kind: Kind,
    /// The agent start this belongs to.
    pub epoch: u32,
    /// The process or transfer; chosen by the host.
    pub id: u32,
    /// At most [`MAX_PAYLOAD`] bytes.
    pub payload: Vec<u8>,
}

impl Frame {
    /// A frame whose payload is `message` in JSON.
    pub fn json(kind: Kind, epoch: u32, id: u32, message: &impl Serialize) -> Frame {
        let payload = serde_json::to_vec(message).expect("messages have only string keys");
        Frame { kind, epoch, id, payload }
    }

    /// Writes the frame with one call, so that frames of several threads do not mix under a lock.
    ///
    /// # Errors
    /// `InvalidInput` when the payload exceeds [`MAX_PAYLOAD`], else what the stream says.
    pub fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        if self.payload.len() > MAX_PAYLOAD {
            let message = format!("Payload of {} bytes, at most {MAX_PAYLOAD} allowed", self.payload.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut bytes = Vec::with_capacity(HEADER + self.payload.len());
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend([self.kind as u8, 0, 0, 0]);
        bytes.extend(self.epoch.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend((self.payload.len() as u32).to_le_bytes());
        bytes.extend(&self.payload);
        stream.write_all(&bytes)
    }

    /// Reads the next frame, skipping whatever is none.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end of the stream, else what the stream says.
    pub fn read(stream: &mut impl Read) -> io::Result<Frame> {
        let mut header = [0; HEADER];
        let mut have = 0;
        loop {
            stream.read_exact(&mut header[have..])?;
            let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
            let kind = Kind::from_byte(header[4]);
            let length = word(16) as usize;
            if let (MAGIC, Some(kind), true) = (word(0), kind, length <= MAX_PAYLOAD) {
                let mut payload = vec![0; length];
                stream.read_exact(&mut payload)?;
                return Ok(Frame { kind, epoch: word(8), id: word(12), payload });
            }
            // Not a frame: go on at the next place where one may begin.
            let first = MAGIC.to_le_bytes()[0];
            let next = header[1..].iter().position(|byte| *byte == first).map_or(HEADER, |at| at + 1);
            header.copy_within(next.., 0);
            have = HEADER - next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: Kind, id: u32, payload: &[u8]) -> Frame {
        Frame { kind, epoch: 7, id, payload: payload.to_vec() }
    }

    #[test]
    fn frames_survive_the_stream() {
        let sent =
            [frame(Kind::Stdout, 1, b"hello"), frame(Kind::Done, 2, b""), frame(Kind::Exec, 3, &[0xff; 999])];
        let mut bytes = Vec::new();
        sent.iter().for_each(|frame| frame.write(&mut bytes).unwrap());
        let mut stream = bytes.as_slice();
        for expected in sent {
            assert_eq!(Frame::read(&mut stream).unwrap(), expected);
        }
        assert_eq!(Frame::read(&mut stream).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_reader_finds_the_next_frame_after_the_rest_of_a_lost_one() {
        let mut lost = Vec::new();
        frame(Kind::Stdout, 1, &[0x1c; 64]).write(&mut lost).unwrap();
        for cut in 1..lost.len() {
            let mut bytes = lost[cut..].to_vec();
            frame(Kind::Done, 2, b"x").write(&mut bytes).unwrap();
            assert_eq!(Frame::read(&mut bytes.as_slice()).unwrap().id, 2, "cut at {cut}");
        }
    }

    #[test]
    fn the_preamble_completes_any_frame_that_was_cut_off() {
        let mut whole = Vec::new();
        frame(Kind::Stdout, 1, &[1; MAX_PAYLOAD]).write(&mut whole).unwrap();
        for keep in [1, HEADER - 1, HEADER, HEADER + 1, whole.len() - 1] {
            let mut bytes = whole[..keep].to_vec();
            bytes.extend(vec![0; PREAMBLE]);
            frame(Kind::Ready, 0, b"{}").write(&mut bytes).unwrap();
            let mut stream = bytes.as_slice();
            let found =
                (0..2).map(|_| Frame::read(&mut stream).unwrap()).find(|frame| frame.kind == Kind::Ready);
            assert!(found.is_some(), "kept {keep}");
        }
    }

    #[test]
    fn an_oversized_payload_is_refused() {
        let error = frame(Kind::Stdout, 1, &vec![0; MAX_PAYLOAD + 1]).write(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
