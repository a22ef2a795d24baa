//! Connections to and from a back end.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::wait;

/// Connects to a socket that may not exist yet, or whose owner is just dying. The only pause of the kit: nothing
/// can be waited for while nobody listens.
pub(super) fn dial(path: &Path, until: Instant) -> io::Result<UnixStream> {
    let mut pause = Duration::from_millis(1);
    loop {
        match UnixStream::connect(path) {
            Ok(sock) => return Ok(sock),
            Err(e) if Instant::now() >= until => return Err(e),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Err(e) => return Err(e),
        }
    }
}

/// Takes the connection of a back end that is the client.
pub(super) fn accept(listener: &UnixListener, until: Instant) -> io::Result<UnixStream> {
    if !wait::readable(&[listener], until) {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the back end did not connect"));
    }
    let (sock, _) = listener.accept()?;
    sock.set_nonblocking(false)?;
    Ok(sock)
}
