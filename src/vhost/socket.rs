//! Where front ends come from: a socket that listens here, one that listens at the front end, or a descriptor that was
//! handed over.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use log::warn;
use thiserror::Error;
use vhost::vhost_user::Listener;

use super::relay;
use super::stop::Stop;
use crate::port::sys_socket;

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
    /// Another process serves it.
    #[error("Socket {0} is already served by a running process")]
    InUse(PathBuf),
    /// There is something else of that name.
    #[error("{0} exists and is not a socket; it is left alone")]
    NotASocket(PathBuf),
    /// Too long for `sun_path`, no such folder, no permission...
    #[error("Socket {path} can't be created: {source}")]
    Bind {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
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
    /// The path is removed at the end, if it still is this inode.
    Listening {
        listener: UnixListener,
        path: Option<(PathBuf, u64)>,
    },
    Connecting(PathBuf),
    Connected(Option<UnixStream>),
}

/// A front end that is (nearly) there.
pub(super) enum Peer {
    /// Waits to be accepted.
    Accept(Listener),
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
            Endpoint::Listen(path) => {
                let listener = bind(path)?;
                let inode = fs::symlink_metadata(path).map_or(0, |m| m.ino());
                Kind::Listening { listener, path: Some((path.clone(), inode)) }
            }
            Endpoint::Connect(path) => Kind::Connecting(path.clone()),
            Endpoint::Fd(fd) => {
                let bad = |source| EndpointError::BadFd { fd: *fd, source };
                let (owned, listening) = sys_socket::adopt_unix_socket(*fd).map_err(bad)?;
                if listening {
                    Kind::Listening { listener: owned.into(), path: None }
                } else {
                    Kind::Connected(Some(owned.into()))
                }
            }
        };
        Ok(Socket { kind })
    }

    /// Waits for the next front end; `None` when told to stop.
    pub(super) fn next_peer(&mut self, stop: &Stop) -> Option<Peer> {
        match &mut self.kind {
            Kind::Listening { listener, .. } => loop {
                if stop.wait_readable(listener.as_raw_fd()) {
                    return None;
                }
                if let Ok(listener) = listener.try_clone() {
                    return Some(Peer::Accept(listener.into()));
                }
            },
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

impl Drop for Socket {
    fn drop(&mut self) {
        if let Kind::Listening { path: Some((path, inode)), .. } = &self.kind {
            // Another process may have taken the path over in the meantime; then it is no longer ours.
            if fs::symlink_metadata(path).is_ok_and(|m| m.ino() == *inode) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn bind(path: &Path) -> Result<UnixListener, EndpointError> {
    let fail = |source| EndpointError::Bind { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(m) if !m.file_type().is_socket() => return Err(EndpointError::NotASocket(path.to_owned())),
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(EndpointError::InUse(path.to_owned())),
        _ => {}
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let _ = fs::remove_file(&temporary);
    // A path that is only too long by the suffix is bound directly.
    let (listener, bound) = match UnixListener::bind(&temporary) {
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            let _ = fs::remove_file(path);
            return UnixListener::bind(path).map_err(fail);
        }
        other => (other.map_err(fail)?, temporary),
    };
    fs::rename(&bound, path).map_err(|e| {
        let _ = fs::remove_file(&bound);
        fail(e)
    })?;
    Ok(listener)
}
