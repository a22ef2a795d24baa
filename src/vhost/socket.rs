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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::IntoRawFd;
    use std::sync::Arc;
    use std::thread;

    /// What the accepted connection carries.
    fn accept(peer: Option<io::Result<UnixStream>>) -> Vec<u8> {
        let mut stream = peer.expect("somebody").expect("connected");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn stopped() -> Stop {
        let stop = Stop::new().unwrap();
        stop.request();
        stop
    }

    #[test]
    fn a_listening_socket_serves_one_front_end_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (mut socket, stop) =
            (Socket::open(&Endpoint::Listen(path.clone())).unwrap(), Stop::new().unwrap());
        for name in [b"first", b"other"] {
            UnixStream::connect(&path).unwrap().write_all(name).unwrap();
            assert_eq!(accept(socket.next_peer(&stop)), name);
            assert!(socket.serves_again() && path.exists());
        }
        assert!(socket.next_peer(&stopped()).is_none());
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn waiting_for_a_front_end_ends_when_told_to_stop() {
        let folder = tempfile::tempdir().unwrap();
        let mut socket = Socket::open(&Endpoint::Listen(folder.path().join("s"))).unwrap();
        let stop = Arc::new(Stop::new().unwrap());
        let thread = thread::spawn({
            let stop = Arc::clone(&stop);
            move || socket.next_peer(&stop).is_none()
        });
        stop.request();
        assert!(thread.join().unwrap());
    }

    #[test]
    fn a_path_in_use_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _first = Socket::open(&Endpoint::Listen(path.clone())).unwrap();
        let e = Socket::open(&Endpoint::Listen(path.clone())).unwrap_err();
        assert_eq!(
            e.to_string(),
            format!("Socket {} is already served by a running process", path.display())
        );
    }

    #[test]
    fn a_connecting_socket_tries_until_it_is_told_to_stop() {
        let mut socket = Socket::open(&Endpoint::Connect("/nowhere/s".into())).unwrap();
        for _ in 0..2 {
            assert!(socket.next_peer(&Stop::new().unwrap()).expect("not told to stop").is_err());
            assert!(socket.serves_again());
        }
        assert!(socket.next_peer(&stopped()).is_none());
    }

    #[test]
    fn an_inherited_listener_serves_again_and_an_inherited_connection_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let fd = UnixListener::bind(&path).unwrap().into_raw_fd();
        let (mut socket, stop) = (Socket::open(&Endpoint::Fd(fd)).unwrap(), Stop::new().unwrap());
        for _ in 0..2 {
            UnixStream::connect(&path).unwrap().write_all(b"front").unwrap();
            assert_eq!(accept(socket.next_peer(&stop)), b"front");
            assert!(socket.serves_again());
        }
        let (mut front, ours) = UnixStream::pair().unwrap();
        let mut socket = Socket::open(&Endpoint::Fd(ours.into_raw_fd())).unwrap();
        assert!(!socket.serves_again());
        front.write_all(b"front").unwrap();
        drop(front);
        assert_eq!(accept(socket.next_peer(&stop)), b"front");
        assert!(socket.next_peer(&stop).is_none(), "there is no other connection in it");
    }

    #[test]
    fn a_descriptor_that_is_no_unix_stream_socket_is_refused_and_named() {
        let file = tempfile::tempfile().unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let datagram = std::os::unix::net::UnixDatagram::unbound().unwrap();
        for fd in [file.as_raw_fd(), udp.as_raw_fd(), datagram.as_raw_fd(), 1_000_000] {
            let e = Socket::open(&Endpoint::Fd(fd)).unwrap_err().to_string();
            assert!(e.starts_with(&format!("Descriptor {fd} is no UNIX stream socket: ")), "{e}");
        }
    }
}
