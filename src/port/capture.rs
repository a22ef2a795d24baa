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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::testing::{Bed, frame};
    use crate::dataplane::tx::transmit;
    use crate::port::PortQueue;
    use crate::vhost::ring::BatchStore;
    use std::fs;

    /// Blocks of a file: type and body.
    fn blocks(path: &Path) -> Vec<(u32, Vec<u8>)> {
        let bytes = fs::read(path).unwrap();
        let mut rest = &bytes[..];
        let mut blocks = Vec::new();
        while !rest.is_empty() {
            let word = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
            let (kind, len) = (word(0), word(4) as usize);
            assert_eq!(word(len - 4) as usize, len);
            blocks.push((kind, rest[8..len - 4].to_vec()));
            rest = &rest[len..];
        }
        blocks
    }

    fn send(bed: &mut Bed, i: usize, frame: &[u8]) {
        bed.tx[i].guest.send(frame);
        assert_ne!(transmit(&bed.nic, i, &mut PortQueue::Null, &mut BatchStore::default(), &mut bed.cx), 0);
    }

    #[test]
    fn both_directions_are_recorded_whole_with_their_queue() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.pcapng");
        let file = CaptureFile::create(&path).unwrap();
        let capture = Capture::new(Arc::clone(&file), "n0", 2);
        assert!(Arc::ptr_eq(capture.file(), &file));
        let mut bed = Bed::with(2, 0, Some(capture));
        bed.post(4);
        let mut long = frame(1);
        long.resize(1514, 7);
        send(&mut bed, 1, &long);
        bed.receive_plain(&frame(2));
        file.flush();
        let blocks = blocks(&path);
        let (interfaces, packets) = (&blocks[1..3], &blocks[3..]);
        assert!(interfaces.iter().all(|(kind, _)| *kind == 1));
        let on = if bed.received(0).is_empty() { 1u8 } else { 0 };
        // Interface, length, the frame, and the direction in the flags: 1 = in, 2 = out.
        for ((kind, body), (interface, frame, direction)) in
            packets.iter().zip([(1, &long, 2), (on, &frame(2), 1)])
        {
            assert_eq!((*kind, body[0]), (6, interface));
            assert_eq!(body[12..16], (frame.len() as u32).to_ne_bytes());
            assert_eq!(&body[20..20 + frame.len()], frame);
            let options = &body[20 + frame.len().next_multiple_of(4)..];
            assert_eq!(options[..5], [2, 0, 4, 0, direction]);
        }
        assert_eq!(packets.len(), 2);
    }

    #[test]
    fn an_error_ends_the_capture_and_not_the_traffic() {
        let file = CaptureFile::create("/dev/full".as_ref()).unwrap();
        let capture = Capture::new(Arc::clone(&file), "n0", 1);
        let mut bed = Bed::with(1, 0, Some(capture));
        file.flush();
        assert!(file.writer.lock().unwrap().is_none());
        bed.post(1);
        send(&mut bed, 0, &frame(0));
        bed.receive_plain(&frame(1));
        assert_eq!((bed.received(0), bed.nic.tx_counters[0].packets.get()), (vec![frame(1)], 1));
        // A NIC that comes later has no interface there.
        assert!(Capture::new(file, "n1", 4).interfaces.is_empty());
    }
}
