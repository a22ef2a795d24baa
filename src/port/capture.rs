//! `--capture`: frames recorded in a pcapng file, each with its NIC, its queue and its direction.
//!
//! Frames are recorded where both the wire and the queue are known: received ones after steering, sent ones before the
//! port. So a capture shows what steering did.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use log::warn;

use super::pcapng::{Direction, InterfaceId, MAX_SNAPLEN, PcapngWriter, interface_name};
use crate::vhost::ring::FrameBatch;

/// One NIC's part in a capture file.
pub struct Capture {
    file: Arc<CaptureFile>,
    /// Interface number in the file, by queue.
    interfaces: Vec<InterfaceId>,
}

/// A capture file, perhaps of several NICs.
pub struct CaptureFile {
    writer: Mutex<Option<PcapngWriter<File>>>,
}

impl CaptureFile {
    /// Creates the file, or replaces it.
    ///
    /// # Errors
    /// As the file system says.
    pub fn create(path: &Path) -> io::Result<Arc<Self>> {
        let writer = PcapngWriter::new(File::create(path)?, MAX_SNAPLEN)?;
        Ok(Arc::new(CaptureFile { writer: Mutex::new(Some(writer)) }))
    }

    /// Writes out what is in memory.
    pub fn flush(&self) {
        self.with(|w| w.flush());
    }

    /// Runs `f` on the writer; the first error ends the capture, with a word, and never the traffic.
    fn with<T>(&self, f: impl FnOnce(&mut PcapngWriter<File>) -> io::Result<T>) -> Option<T> {
        let mut writer = self.writer.lock().unwrap();
        match f(writer.as_mut()?) {
            Ok(t) => Some(t),
            Err(e) => {
                warn!("The capture ends here: {e}");
                *writer = None;
                None
            }
        }
    }
}

impl Capture {
    /// Adds a NIC's queues to the file.
    pub fn new(file: Arc<CaptureFile>, nic: &str, queue_pairs: u16) -> Self {
        let interface = |q| file.with(|w| w.add_interface(&interface_name(nic, usize::from(q))));
        // A file that can't be written to any more has no interfaces, and records nothing.
        let interfaces = (0..queue_pairs).map_while(interface).collect();
        Capture { file, interfaces }
    }

    /// Records a frame that was received on `queue`.
    pub fn received(&self, queue: usize, batch: &FrameBatch<'_>, i: usize, room: &mut [u8]) {
        self.record(queue, Direction::Rx, batch, i, room);
    }

    /// Records a frame that was sent on `queue`.
    pub fn sent(&self, queue: usize, batch: &FrameBatch<'_>, i: usize, room: &mut [u8]) {
        self.record(queue, Direction::Tx, batch, i, room);
    }

    fn record(&self, queue: usize, direction: Direction, batch: &FrameBatch<'_>, i: usize, room: &mut [u8]) {
        let Some(interface) = self.interfaces.get(queue) else { return };
        let frame = &mut room[..batch.frame(i).len()];
        batch.copy_frame(i, frame);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.file.with(|w| w.packet(*interface, direction, now, &[frame]));
    }

    /// The file it goes to.
    pub fn file(&self) -> &Arc<CaptureFile> {
        &self.file
    }
}
