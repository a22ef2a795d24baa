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
use std::sync::atomic::{AtomicU32, Ordering};
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
    // NICs start at the same time, each in its own thread.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("flownic-fd-{}-{number}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&folder)?;
    let path = folder.join("s");
    let pair = UnixListener::bind(&path).and_then(|listener| Ok((listener, UnixStream::connect(&path)?)));
    let _ = fs::remove_file(&path);
    let _ = fs::remove_dir(&folder);
    pair
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use vmm_sys_util::eventfd::EventFd;
    use vmm_sys_util::sock_ctrl_msg::ScmSocket;

    /// The front end's end and the one that the crate accepts.
    fn relayed() -> (UnixStream, UnixStream) {
        let (front, outer) = UnixStream::pair().unwrap();
        let listener = start(outer).unwrap();
        (front, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_pass_both_ways() {
        let (front, back) = relayed();
        let long: Vec<u8> = (0..20_000u32).map(|i| (i / 3) as u8).collect();
        for (mut from, mut to) in [(&front, &back), (&back, &front)] {
            let mut got = vec![0; long.len()];
            from.write_all(&long).unwrap();
            to.read_exact(&mut got).unwrap();
            assert_eq!(got, long);
        }
    }

    #[test]
    fn descriptors_pass_with_their_message() {
        let (front, back) = relayed();
        let event = EventFd::new(0).unwrap();
        front.send_with_fd(&b"kick"[..], event.as_raw_fd()).unwrap();
        let mut bytes = [0; 16];
        let (n, fd) = back.recv_with_fd(&mut bytes).unwrap();
        assert_eq!(&bytes[..n], b"kick");
        fd.unwrap().write_all(&5u64.to_ne_bytes()).unwrap();
        assert_eq!(event.read().unwrap(), 5);
    }

    #[test]
    fn the_end_of_one_side_is_the_end_of_the_other() {
        let (front, mut back) = relayed();
        drop(front);
        assert_eq!(back.read(&mut [0; 8]).unwrap(), 0);
        let (mut front, back) = relayed();
        drop(back);
        assert_eq!(front.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn nics_may_start_at_the_same_time_and_nothing_is_left_in_the_file_system() {
        let streams: Vec<_> = thread::scope(|s| {
            let threads: Vec<_> = (0..8).map(|_| s.spawn(relayed)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for (i, (mut front, mut back)) in streams.into_iter().enumerate() {
            let mut byte = [0];
            front.write_all(&[i as u8]).unwrap();
            back.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [i as u8], "each has its own connection");
        }
    }
}
