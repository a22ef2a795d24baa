//! Moves bytes between processes, files and the host.

use std::fs;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender};

use guest_tests::protocol::{Kind, MAX_PAYLOAD, Put};

use crate::serve::Host;
use crate::sys;

/// Sends what comes out of `stream` until it ends, or until the process has ended (`exited` is closed) and nothing is
/// left. Daemons that the process left behind may hold the stream for ever: from then on it is read and thrown away.
/// `drained` is dropped when nothing more will be sent.
pub(crate) fn output(
    host: &Host,
    id: u32,
    kind: Kind,
    mut stream: impl Read + AsFd,
    exited: PipeReader,
    drained: Sender<()>,
) {
    let mut buffer = vec![0; MAX_PAYLOAD];
    loop {
        let Ok([readable, over]) = sys::poll_readable([stream.as_fd(), exited.as_fd()], -1) else { return };
        if !readable && over {
            break;
        }
        if readable {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(length) => host.send(kind, id, buffer[..length].to_vec()),
            }
        }
    }
    drop(drained);
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
}

/// Feeds `stream` with what the host sends, until an empty piece ends it.
pub(crate) fn input(mut stream: impl Write, pieces: &Receiver<Vec<u8>>) -> io::Result<()> {
    while let Ok(piece) = pieces.recv() {
        if piece.is_empty() {
            return Ok(());
        }
        stream.write_all(&piece)?;
    }
    Err(io::Error::new(io::ErrorKind::BrokenPipe, "Transfer was cut off"))
}

/// Writes a file from what the host sends.
pub(crate) fn file(put: &Put, pieces: &Receiver<Vec<u8>>) -> io::Result<()> {
    if let Some(parent) = Path::new(&put.path).parent() {
        fs::create_dir_all(parent)?;
    }
    let file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(put.mode).open(&put.path)?;
    input(&file, pieces)
}
