//! vhost-user messages, as the specification draws them: 12 bytes of header, a payload, descriptors beside it.

use std::io::{self, Read};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use thiserror::Error;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::{PATIENCE, wait};

macro_rules! requests {
    ($($konst:ident = $code:literal;)*) => {
        $(#[doc = concat!("Request ", $code, " of the front end.")] pub const $konst: u32 = $code;)*
        /// The specification's name of a request, for messages.
        pub fn request_name(code: u32) -> &'static str {
            match code { $($code => stringify!($konst),)* _ => "an unknown request" }
        }
    };
}

requests! {
    GET_FEATURES = 1;
    SET_FEATURES = 2;
    SET_OWNER = 3;
    RESET_OWNER = 4;
    SET_MEM_TABLE = 5;
    SET_LOG_BASE = 6;
    SET_LOG_FD = 7;
    SET_VRING_NUM = 8;
    SET_VRING_ADDR = 9;
    SET_VRING_BASE = 10;
    GET_VRING_BASE = 11;
    SET_VRING_KICK = 12;
    SET_VRING_CALL = 13;
    SET_VRING_ERR = 14;
    GET_PROTOCOL_FEATURES = 15;
    SET_PROTOCOL_FEATURES = 16;
    GET_QUEUE_NUM = 17;
    SET_VRING_ENABLE = 18;
    SEND_RARP = 19;
    NET_SET_MTU = 20;
    GET_CONFIG = 24;
    RESET_DEVICE = 34;
    GET_MAX_MEM_SLOTS = 36;
    ADD_MEM_REG = 37;
    REM_MEM_REG = 38;
}

/// Protocol feature: several queues.
pub const PROTOCOL_MQ: u64 = 1 << 0;
/// Protocol feature: the dirty log comes as a descriptor.
pub const PROTOCOL_LOG_SHMFD: u64 = 1 << 1;
/// Protocol feature: any request can ask for an acknowledgement.
pub const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
/// Protocol feature: RESET_DEVICE.
pub const PROTOCOL_RESET_DEVICE: u64 = 1 << 13;
/// Protocol feature: regions come and go one by one.
pub const PROTOCOL_CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

/// Payload bit of the vring descriptor messages: no descriptor comes with it.
pub const NO_FD: u64 = 1 << 8;
/// Flag of SET_VRING_ADDR: mark the used ring's pages in the dirty log.
pub const VRING_F_LOG: u32 = 1;

const VERSION: u32 = 1;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// Why a request failed.
#[derive(Debug, Error)]
pub enum ProtoError {
    /// The socket failed, was closed by the back end or kept silent for too long.
    #[error("{request}: {source}")]
    Socket {
        /// The request's name.
        request: &'static str,
        /// What the socket said.
        source: io::Error,
    },
    /// The back end acknowledged with something else than 0.
    #[error("{request} was refused with {value}")]
    Refused {
        /// The request's name.
        request: &'static str,
        /// The value of the acknowledgement.
        value: u64,
    },
    /// The reply belongs to another request or has another shape.
    #[error("{request}: the reply is {what}")]
    Garbled {
        /// The request's name.
        request: &'static str,
        /// What is odd about it.
        what: String,
    },
}

/// A message that the back end sent.
#[derive(Debug)]
pub struct Reply {
    /// The request it answers.
    pub code: u32,
    /// Version and flags.
    pub flags: u32,
    /// What follows the header.
    pub payload: Vec<u8>,
}

/// One connection to a back end.
#[derive(Debug)]
pub struct Channel {
    sock: UnixStream,
    /// Whether setters ask for an acknowledgement (needs REPLY_ACK).
    pub acknowledge: bool,
}

impl Channel {
    /// Takes over a connected socket; replies must come within [`PATIENCE`].
    pub fn new(sock: UnixStream) -> io::Result<Self> {
        sock.set_read_timeout(Some(PATIENCE))?;
        sock.set_write_timeout(Some(PATIENCE))?;
        Ok(Channel { sock, acknowledge: false })
    }

    /// Sends any message, well-formed or not: `flags` are or-ed to the version.
    pub fn send(&self, code: u32, flags: u32, payload: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let mut message = Vec::with_capacity(12 + payload.len());
        message.extend(code.to_ne_bytes());
        message.extend((VERSION | flags).to_ne_bytes());
        message.extend((payload.len() as u32).to_ne_bytes());
        message.extend(payload);
        self.send_bytes(&message, fds)
    }

    /// Sends bytes without a header of ours.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let sent =
            self.sock.send_with_fds(&[bytes], fds).map_err(|e| io::Error::from_raw_os_error(e.errno()))?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives one message; descriptors that come with it are dropped.
    pub fn receive(&self) -> io::Result<Reply> {
        let mut head = [0; 12];
        self.read_exact(&mut head)?;
        let field = |i: usize| u32::from_ne_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let size = field(8) as usize;
        if size > 4096 {
            return Err(io::Error::other(format!("a payload of {size} bytes")));
        }
        let mut payload = vec![0; size];
        self.read_exact(&mut payload)?;
        Ok(Reply { code: field(0), flags: field(4), payload })
    }

    fn read_exact(&self, buf: &mut [u8]) -> io::Result<()> {
        (&self.sock).read_exact(buf).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "no reply in time"),
            _ => e,
        })
    }

    /// Asks for a reply of any shape.
    pub fn ask(&self, code: u32, payload: &[u8], fds: &[RawFd]) -> Result<Vec<u8>, ProtoError> {
        let request = request_name(code);
        let socket = |source| ProtoError::Socket { request, source };
        self.send(code, 0, payload, fds).map_err(socket)?;
        self.expect_reply(code)
    }

    fn expect_reply(&self, code: u32) -> Result<Vec<u8>, ProtoError> {
        let request = request_name(code);
        let reply = self.receive().map_err(|source| ProtoError::Socket { request, source })?;
        if reply.code != code || reply.flags & FLAG_REPLY == 0 {
            let what = format!("to {} with flags {:#x}", request_name(reply.code), reply.flags);
            return Err(ProtoError::Garbled { request, what });
        }
        Ok(reply.payload)
    }

    /// Asks for a 64-bit value.
    pub fn get(&self, code: u32) -> Result<u64, ProtoError> {
        let payload = self.ask(code, &[], &[])?;
        value(code, &payload)
    }

    /// Sends a request that has no reply of its own, and waits for the acknowledgement where that is on.
    pub fn set(&self, code: u32, payload: &[u8], fds: &[RawFd]) -> Result<(), ProtoError> {
        let request = request_name(code);
        let flags = if self.acknowledge { FLAG_NEED_REPLY } else { 0 };
        self.send(code, flags, payload, fds).map_err(|source| ProtoError::Socket { request, source })?;
        if !self.acknowledge {
            return Ok(());
        }
        match value(code, &self.expect_reply(code)?)? {
            0 => Ok(()),
            value => Err(ProtoError::Refused { request, value }),
        }
    }

    /// `set` with a 64-bit value.
    pub fn set_u64(&self, code: u32, value: u64) -> Result<(), ProtoError> {
        self.set(code, &value.to_ne_bytes(), &[])
    }

    /// `set` with a vring's index and one number.
    pub fn set_vring(&self, code: u32, index: u32, number: u32) -> Result<(), ProtoError> {
        self.set(code, &pair(index, number), &[])
    }

    /// Returns once the back end has worked off everything sent before.
    pub fn sync(&self) -> Result<(), ProtoError> {
        self.get(GET_FEATURES).map(drop)
    }

    /// Waits until the back end closes the connection; what it still sends is thrown away.
    pub fn closed_by(&self, until: Instant) -> bool {
        let mut sink = [0; 512];
        loop {
            if !wait::readable(&[&self.sock], until) {
                return false;
            }
            match (&self.sock).read(&mut sink) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return true,
                Err(_) => return false,
            }
        }
    }
}

/// Two 32-bit numbers, the payload of the vring state messages.
pub fn pair(a: u32, b: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&a.to_ne_bytes());
    bytes[4..].copy_from_slice(&b.to_ne_bytes());
    bytes
}

fn value(code: u32, payload: &[u8]) -> Result<u64, ProtoError> {
    let bytes = payload.try_into().map_err(|_| ProtoError::Garbled {
        request: request_name(code),
        what: format!("{} bytes long, 8 expected", payload.len()),
    })?;
    Ok(u64::from_ne_bytes(bytes))
}
