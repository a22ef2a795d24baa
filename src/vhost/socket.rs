//! Where front ends come from: a socket that listens here, one that listens at the front end, or a descriptor that was
//! handed over.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use log::warn;
use thiserror::Error;

use super::stop::Stop;
use crate::listener::{ListenError, Listener};
use crate::port::sys_socket;

/// Between two attempts without descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How a NIC meets its front end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// flownic listens on this path (QEMU's chardev is the client).
    Listen(PathBuf),
    /// flownic connects to this path (`server=on` in QEMU's chardev).
    Connect(PathBuf),
    /// An inherited descriptor, listening or connected.
    Fd(RawFd),
}

/// Why a socket can't be used.
#[derive(Debug, Error)]
pub enum EndpointError {
    /// Nobody can listen there.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Not a UNIX stream socket.
    #[error("Descriptor {fd} is no UNIX stream socket: {source}")]
    BadFd {
        /// Which.
        fd: RawFd,
        /// Why.
        source: io::Error,
    },
}

/// An opened [`Endpoint`].
#[derive(Debug)]
pub struct Socket {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Listening(Listener),
    Inherited(UnixListener),
    Connecting(PathBuf),
    Connected(Option<UnixStream>),
}

impl Socket {
    /// Opens the endpoint. A listening path is replaced in one step if a dead process left it, so it never vanishes.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn open(endpoint: &Endpoint) -> Result<Self, EndpointError> {
        let kind = match endpoint {
            Endpoint::Listen(path) => Kind::Listening(Listener::bind(path, None)?),
            Endpoint::Connect(path) => Kind::Connecting(path.clone()),
            Endpoint::Fd(fd) => {
                let bad = |source| EndpointError::BadFd { fd: *fd, source };
                let (owned, listening) = sys_socket::adopt_unix_socket(*fd).map_err(bad)?;
                if listening { Kind::Inherited(owned.into()) } else { Kind::Connected(Some(owned.into())) }
            }
        };
        Ok(Socket { kind })
    }

    /// Waits for the next front end; `None` when told to stop, or if there can be no other. Fails if one that
    /// listens is not there.
    pub(super) fn next_peer(&mut self, stop: &Stop) -> Option<io::Result<UnixStream>> {
        match &mut self.kind {
            Kind::Listening(listener) => accept(listener, stop).map(Ok),
            Kind::Inherited(listener) => accept(listener, stop).map(Ok),
            Kind::Connecting(path) => (!stop.is_requested()).then(|| UnixStream::connect(path)),
            Kind::Connected(stream) => stream.take().map(Ok),
        }
    }

    /// Whether another front end may follow.
    pub(super) fn serves_again(&self) -> bool {
        !matches!(self.kind, Kind::Connected(_))
    }
}

/// Waits for somebody; `None` when told to stop.
fn accept(listener: &UnixListener, stop: &Stop) -> Option<UnixStream> {
    loop {
        if stop.wait_readable(listener.as_raw_fd()) {
            return None;
        }
        match listener.accept() {
            Ok((stream, _)) => return Some(stream),
            // Out of descriptors: that may pass.
            Err(e) => {
                warn!("A front end can't be accepted: {e}");
                if stop.wait(PAUSE) {
                    return None;
                }
            }
        }
    }
}
