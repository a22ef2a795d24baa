//! Where front ends come from: a socket that listens here, one that listens at the front end, or a descriptor that was
//! handed over.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use log::warn;
use thiserror::Error;
use vhost::vhost_user;

use super::relay;
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

/// A front end that is (nearly) there.
pub(super) enum Peer {
    /// Waits to be accepted.
    Accept(vhost_user::Listener),
    /// Is to be connected to.
    Connect(String),
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

    /// Waits for the next front end; `None` when told to stop.
    pub(super) fn next_peer(&mut self, stop: &Stop) -> Option<Peer> {
        match &mut self.kind {
            Kind::Listening(listener) => wait(listener, stop),
            Kind::Inherited(listener) => wait(listener, stop),
            Kind::Connecting(path) => {
                (!stop.is_requested()).then(|| Peer::Connect(path.to_string_lossy().into_owned()))
            }
            Kind::Connected(stream) => {
                // The crate accepts or connects; it does not take a connection that is there already.
                let listener =
                    relay::start(stream.take()?).inspect_err(|e| warn!("The connection is lost: {e}"));
                Some(Peer::Accept(listener.ok()?.into()))
            }
        }
    }

    /// Whether another front end may follow.
    pub(super) fn serves_again(&self) -> bool {
        !matches!(self.kind, Kind::Connected(_))
    }
}

/// Waits for somebody to accept; `None` when told to stop.
fn wait(listener: &UnixListener, stop: &Stop) -> Option<Peer> {
    loop {
        if stop.wait_readable(listener.as_raw_fd()) {
            return None;
        }
        match listener.try_clone() {
            Ok(listener) => return Some(Peer::Accept(listener.into())),
            // Out of descriptors: that may pass.
            Err(_) if stop.wait(PAUSE) => return None,
            Err(_) => {}
        }
    }
}
