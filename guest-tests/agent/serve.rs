//! The conversation with the host.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use guest_tests::protocol::{Frame, Kind, PREAMBLE, Power, Put, Ready};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::process::Table;
use crate::sys;

/// The sending half of the stream; clones share it.
#[derive(Clone)]
pub(crate) struct Host {
    stream: Arc<Mutex<File>>,
    epoch: u32,
}

impl Host {
    fn new(stream: File) -> Host {
        // Differs from the previous start's, which is all that is asked of it.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = (now.as_millis() as u32) ^ now.subsec_nanos() ^ 1;
        Host { stream: Arc::new(Mutex::new(stream)), epoch }
    }

    /// Sends a frame. A host that has gone away is noticed by the reader; until it is back nothing can be told to it.
    pub(crate) fn send(&self, kind: Kind, id: u32, payload: Vec<u8>) {
        let frame = Frame { kind, epoch: self.epoch, id, payload };
        let mut stream = self.stream.lock().expect("no thread panics while it holds the stream");
        if let Err(error) = frame.write(&mut *stream) {
            eprintln!("flownic-agent: could not send to the host: {error}");
        }
    }

    /// Sends a message in JSON.
    pub(crate) fn send_json(&self, kind: Kind, id: u32, message: &impl Serialize) {
        self.send(kind, id, Frame::json(kind, self.epoch, id, message).payload);
    }
}

/// Serves until the stream ends for good: `wait_for_host` is asked at each end of file whether to go on.
pub(crate) fn serve(
    stream: File,
    problems: Vec<String>,
    mut wait_for_host: impl FnMut() -> bool,
) -> io::Result<()> {
    let mut reader = stream.try_clone()?;
    (&stream).write_all(&[0; PREAMBLE])?;
    let host = Host::new(stream);
    let table = Table::new(host.clone());
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    host.send_json(Kind::Ready, 0, &Ready { kernel: release.trim().to_owned(), problems });
    loop {
        let frame = match Frame::read(&mut reader) {
            Ok(frame) if frame.epoch == host.epoch => frame,
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => match wait_for_host() {
                true => continue,
                false => return Ok(()),
            },
            Err(error) => return Err(error),
        };
        handle(&table, &host, frame);
    }
}

fn handle(table: &Arc<Table>, host: &Host, frame: Frame) {
    let id = frame.id;
    match frame.kind {
        Kind::Exec => with(&frame, |exec| table.exec(id, &exec)),
        Kind::Input => table.input(id, frame.payload),
        Kind::Kill => match <[u8; 4]>::try_from(frame.payload.as_slice()) {
            Ok(signal) => table.kill(id, i32::from_le_bytes(signal)),
            Err(_) => eprintln!("flownic-agent: a signal of {} bytes", frame.payload.len()),
        },
        Kind::Put => with(&frame, |put: Put| table.put(id, put)),
        Kind::Power => with(&frame, |power: Power| {
            if let Err(error) = sys::power(power) {
                let done = guest_tests::protocol::Done::Failed(format!("{power:?} failed: {error}"));
                host.send_json(Kind::Done, id, &done);
            }
        }),
        Kind::Ready | Kind::Started | Kind::Stdout | Kind::Stderr | Kind::Done => {
            eprintln!("flownic-agent: {:?} is not for the agent", frame.kind);
        }
    }
}

fn with<T: DeserializeOwned>(frame: &Frame, use_it: impl FnOnce(T)) {
    match serde_json::from_slice(&frame.payload) {
        Ok(message) => use_it(message),
        Err(error) => eprintln!("flownic-agent: bad {:?} message: {error}", frame.kind),
    }
}
