//! Makes a connected socket look like one that is about to be accepted.
//!
//! A program that follows the back-end conventions may be given `--fd N`, a socket that is connected already. The
//! `vhost-user-backend` crate can only accept or connect. So a private socket is made for it to accept on, and a thread
//! passes messages with their descriptors between the two. It carries the few control messages, never frames.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use crate::port::sys_socket::{forward, poll_readable};

/// Starts the relay for `outer`; the listener has its connection waiting.
pub(super) fn start(outer: UnixStream) -> io::Result<UnixListener> {
    let (listener, inner) = private_pair()?;
    thread::Builder::new().name("vhost-relay".into()).spawn(move || {
        while let Ok(ready) = poll_readable(&[outer.as_raw_fd(), inner.as_raw_fd()], None) {
            let passed = if ready[0] { forward(&outer, &inner) } else { forward(&inner, &outer) };
            if !passed.is_ok_and(|bytes| bytes > 0) {
                break;
            }
        }
        let _ = outer.shutdown(Shutdown::Both);
        let _ = inner.shutdown(Shutdown::Both);
    })?;
    Ok(listener)
}

/// A listener with one connection in its backlog, that nobody else could have made.
fn private_pair() -> io::Result<(UnixListener, UnixStream)> {
    let folder = std::env::temp_dir().join(format!("flownic-fd-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&folder)?;
    let path = folder.join("s");
    let pair = UnixListener::bind(&path).and_then(|listener| Ok((listener, UnixStream::connect(&path)?)));
    let _ = fs::remove_file(&path);
    let _ = fs::remove_dir(&folder);
    pair
}
