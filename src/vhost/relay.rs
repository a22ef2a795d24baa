//! Stands between a front end and the `vhost-user-backend` crate: passes their messages on, with descriptors, and keeps
//! back what the crate would take amiss. It carries the few control messages, never frames.
//!
//! * The crate can only accept or connect. For a connection that is there already (`--fd`, or one that was accepted here), a private
//!   socket is made for it to accept on.
//! * The crate ends a connection on `SET_VRING_ENABLE` before `SET_FEATURES` has acknowledged
//!   `VHOST_USER_F_PROTOCOL_FEATURES`. The protocol demands no such order, and QEMU's virtio-net enables its rings when the device is
//!   made or reset, long before a driver negotiates anything. So that request is *kept*, the last one of each ring, and
//!   delivered after the features.
//! * Memory regions may be added several times, see [`regions`].
//! * The crate knows half of a packed ring's base: where the next available descriptor is. QEMU takes the other half, where the next
//!   used one goes, from the answer to `GET_VRING_BASE`, and gives both to whoever goes on. Here they are the same: nothing is
//!   held between calls. For that reason the second half of `SET_VRING_BASE` is not missed either, and DPDK leaves it 0.

mod regions;

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::port::sys_socket::{poll_readable, receive, send};
use crate::virtio::{F_PROTOCOL_FEATURES, F_RING_PACKED};
use regions::Regions;

/// Bytes of a message's header: request, flags, size of what follows.
const HEADER: usize = 12;
/// More than any message has; the crate refuses it, too.
const MAX_PAYLOAD: usize = 4096;
/// More descriptors than any message has: one for each memory region.
const MAX_FDS: usize = 64;
/// How long a front end may leave answers lying: then it is gone, as far as we are concerned.
const PATIENCE: Duration = Duration::from_secs(10);
/// More rings than any NIC has.
const MAX_RINGS: u32 = 256;

const SET_FEATURES: u32 = 2;
const RESET_OWNER: u32 = 4;
const SET_MEM_TABLE: u32 = 5;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_ENABLE: u32 = 18;
const RESET_DEVICE: u32 = 34;
const ADD_MEM_REG: u32 = 37;
const REM_MEM_REG: u32 = 38;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Starts the relay for `outer`; the listener has its connection waiting.
pub(super) fn start(outer: UnixStream) -> io::Result<UnixListener> {
    start_with(outer, PATIENCE)
}

fn start_with(outer: UnixStream, patience: Duration) -> io::Result<UnixListener> {
    let (listener, inner) = private_pair()?;
    outer.set_write_timeout(Some(patience))?;
    thread::Builder::new().name("vhost-relay".into()).spawn(move || {
        // Whatever ended it ends both connections.
        let _ = run(&outer, &inner);
        let _ = outer.shutdown(Shutdown::Both);
        let _ = inner.shutdown(Shutdown::Both);
    })?;
    Ok(listener)
}

fn run(outer: &UnixStream, inner: &UnixStream) -> io::Result<()> {
    let [mut message, mut answer] = [Message::default(), Message::default()];
    let mut held = Held::default();
    loop {
        let [from_front_end, from_crate] = poll_readable(&[outer.as_raw_fd(), inner.as_raw_fd()], None)?;
        if from_crate {
            if !answer.read_more(inner)? {
                return Ok(());
            }
            if answer.is_complete() {
                held.answer(std::mem::take(&mut answer), outer)?;
            }
        }
        // In pieces, as they come: a front end that stops in the middle keeps nobody from ending the connection.
        if from_front_end {
            if !message.read_more(outer)? {
                return Ok(());
            }
            if message.is_complete() {
                held.pass(std::mem::take(&mut message), outer, inner)?;
            }
        }
    }
}

/// A message, or the part of it that has come.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Message {
    fn word(&self, i: usize) -> u32 {
        let at = |i: usize| self.bytes.get(i).copied().unwrap_or_default();
        u32::from_ne_bytes([at(4 * i), at(4 * i + 1), at(4 * i + 2), at(4 * i + 3)])
    }

    /// Bytes of the whole message, as far as that is known. One that is too long is passed on without its rest: the
    /// crate says what is wrong with it.
    fn len(&self) -> usize {
        match self.word(2) as usize {
            size @ ..=MAX_PAYLOAD if self.bytes.len() >= HEADER => HEADER + size,
            _ => HEADER,
        }
    }

    fn is_complete(&self) -> bool {
        self.bytes.len() == self.len()
    }

    /// Takes what has come; false at the end.
    fn read_more(&mut self, from: &UnixStream) -> io::Result<bool> {
        let mut room = [0; MAX_PAYLOAD];
        let wanted = (self.len() - self.bytes.len()).min(room.len());
        let (n, mut fds) = receive(from, &mut room[..wanted])?;
        self.bytes.extend_from_slice(&room[..n]);
        self.fds.append(&mut fds);
        // Every piece of a message can bring some, and all NICs share what this process may have open.
        if self.fds.len() > MAX_FDS {
            return Err(io::Error::other("a message with too many descriptors"));
        }
        Ok(n > 0)
    }
}

/// Requests that the crate does not get yet.
#[derive(Default)]
struct Held {
    /// `VHOST_USER_F_PROTOCOL_FEATURES` is in force.
    acknowledged: bool,
    /// `VIRTIO_F_RING_PACKED` is.
    packed: bool,
    /// What was last asked of each ring.
    enables: BTreeMap<u32, u32>,
    regions: Regions,
}

impl Held {
    /// Passes a message on, or keeps it.
    fn pass(&mut self, message: Message, outer: &UnixStream, inner: &UnixStream) -> io::Result<()> {
        match message.word(0) {
            SET_VRING_ENABLE if !self.acknowledged && self.keep(&message) => return succeed(&message, outer),
            ADD_MEM_REG if !self.regions.added(&message) => return succeed(&message, outer),
            REM_MEM_REG if !self.regions.removed(&message) => return succeed(&message, outer),
            RESET_OWNER | RESET_DEVICE => {
                self.acknowledged = false;
                self.enables.clear();
            }
            SET_MEM_TABLE => self.regions = Regions::default(),
            _ => {}
        }
        send(inner, &message.bytes, &message.fds)?;
        if message.word(0) == SET_FEATURES {
            let features = u64::from(message.word(3)) | u64::from(message.word(4)) << 32;
            self.acknowledged = features & F_PROTOCOL_FEATURES != 0;
            self.packed = features & F_RING_PACKED != 0;
            // Without the bit, all rings are enabled, and that is that.
            for (ring, enable) in std::mem::take(&mut self.enables).into_iter().filter(|_| self.acknowledged)
            {
                send(inner, &words(&[SET_VRING_ENABLE, VERSION, 8, ring, enable]), &[])?;
            }
        }
        Ok(())
    }

    /// Passes an answer of the crate on.
    fn answer(&self, mut answer: Message, outer: &UnixStream) -> io::Result<()> {
        if self.packed && answer.word(0) == GET_VRING_BASE && answer.bytes.len() == HEADER + 8 {
            let base = answer.word(4) & 0xffff;
            answer.bytes[HEADER + 4..].copy_from_slice(&(base | base << 16).to_ne_bytes());
        }
        send(outer, &answer.bytes, &answer.fds)
    }

    /// Keeps the request, if it is one that could be right.
    fn keep(&mut self, message: &Message) -> bool {
        let (ring, enable) = (message.word(3), message.word(4));
        let plausible = message.bytes.len() == HEADER + 8 && ring < MAX_RINGS && enable <= 1;
        if plausible {
            self.enables.insert(ring, enable);
        }
        plausible
    }
}

/// Answers a request that the crate does not get, if an answer is wanted: it succeeded.
fn succeed(message: &Message, outer: &UnixStream) -> io::Result<()> {
    if message.word(1) & NEED_REPLY != 0 {
        let bytes = 8;
        send(outer, &words(&[message.word(0), VERSION | REPLY, bytes, 0, 0]), &[])?;
    }
    Ok(())
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

/// A listener with one connection in its backlog, that nobody else could have made.
fn private_pair() -> io::Result<(UnixListener, UnixStream)> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let folder = loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("flownic-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => break folder,
            // Left by one that was killed, or of one with the same pid in another namespace.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    };
    let path = folder.join("s");
    let pair = UnixListener::bind(&path).and_then(|listener| Ok((listener, UnixStream::connect(&path)?)));
    let _ = fs::remove_file(&path);
    let _ = fs::remove_dir(&folder);
    pair
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    /// A front end and what the crate would have, with a relay in between.
    fn connected() -> (UnixStream, UnixStream) {
        let (front, outer) = UnixStream::pair().unwrap();
        let (crate_end, _) = start(outer).unwrap().accept().unwrap();
        (front, crate_end)
    }

    fn message(request: u32, flags: u32, payload: &[u32]) -> Vec<u8> {
        [words(&[request, VERSION | flags, 4 * payload.len() as u32]), words(payload)].concat()
    }

    #[track_caller]
    fn expect(stream: &mut UnixStream, wanted: &[u8]) {
        let mut got = vec![0; wanted.len()];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, wanted);
    }

    #[test]
    fn early_enables_are_kept_answered_and_delivered_after_the_features() {
        let (mut front, mut end) = connected();
        for (ring, enable) in [(1, 1), (0, 1), (1, 0)] {
            front.write_all(&message(SET_VRING_ENABLE, NEED_REPLY, &[ring, enable])).unwrap();
            expect(&mut front, &message(SET_VRING_ENABLE, REPLY, &[0, 0]));
        }
        let features = message(SET_FEATURES, NEED_REPLY, &[F_PROTOCOL_FEATURES as u32, 1]);
        front.write_all(&features).unwrap();
        expect(&mut end, &features);
        expect(&mut end, &message(SET_VRING_ENABLE, 0, &[0, 1]));
        expect(&mut end, &message(SET_VRING_ENABLE, 0, &[1, 0]));
        // From here on they pass, until the device is reset.
        let late = message(SET_VRING_ENABLE, NEED_REPLY, &[1, 1]);
        front.write_all(&late).unwrap();
        expect(&mut end, &late);
        front.write_all(&[message(RESET_DEVICE, 0, &[]), late, features.clone()].concat()).unwrap();
        expect(&mut end, &message(RESET_DEVICE, 0, &[]));
        expect(&mut end, &features);
        expect(&mut end, &message(SET_VRING_ENABLE, 0, &[1, 1]));
    }

    #[test]
    fn a_packed_rings_base_is_answered_in_both_halves() {
        let (mut front, mut end) = connected();
        let base = |num| message(GET_VRING_BASE, REPLY, &[3, num]);
        for (high, answered) in [(0, 0x8123), (1 << 2, 0x8123_8123), (1 << 3, 0x8123)] {
            let features = message(SET_FEATURES, 0, &[0, high]);
            front.write_all(&features).unwrap();
            expect(&mut end, &features);
            end.write_all(&base(0x8123)).unwrap();
            expect(&mut front, &base(answered));
        }
    }

    #[test]
    fn a_region_is_passed_on_when_it_is_added_first_and_removed_last() {
        let (mut front, mut end) = connected();
        let region = |request, gpa| message(request, NEED_REPLY, &[0, 0, gpa, 0, 4096, 0, 7, 0, 0, 0]);
        let done = |request| message(request, REPLY, &[0, 0]);
        front.write_all(&region(ADD_MEM_REG, 1)).unwrap();
        expect(&mut end, &region(ADD_MEM_REG, 1));
        front.write_all(&region(ADD_MEM_REG, 1)).unwrap();
        expect(&mut front, &done(ADD_MEM_REG));
        front.write_all(&region(ADD_MEM_REG, 2)).unwrap();
        expect(&mut end, &region(ADD_MEM_REG, 2));
        front.write_all(&region(REM_MEM_REG, 1)).unwrap();
        expect(&mut front, &done(REM_MEM_REG));
        front.write_all(&region(REM_MEM_REG, 1)).unwrap();
        expect(&mut end, &region(REM_MEM_REG, 1));
        // Removed once too often: the crate's to refuse. Added again: a new one.
        front.write_all(&[region(REM_MEM_REG, 1), region(ADD_MEM_REG, 1)].concat()).unwrap();
        expect(&mut end, &region(REM_MEM_REG, 1));
        expect(&mut end, &region(ADD_MEM_REG, 1));
    }

    #[test]
    fn a_front_end_that_never_reads_its_answers_loses_its_connection() {
        let (_front, outer) = UnixStream::pair().unwrap();
        let (mut end, _) = start_with(outer, Duration::from_millis(1)).unwrap().accept().unwrap();
        while end.write_all(&message(1, REPLY, &[0, 0])).is_ok() {}
    }

    #[test]
    fn a_message_has_so_many_descriptors_and_no_more() {
        let (front, mut end) = connected();
        let wanted = message(5, 0, &[0; 100]);
        let fds: Vec<OwnedFd> = (0..32).map(|_| UnixStream::pair().unwrap().0.into()).collect();
        send(&front, &wanted[..20], &fds).unwrap();
        send(&front, &wanted[20..30], &fds).unwrap();
        send(&front, &wanted[30..], &[]).unwrap();
        let (n, got) = receive(&end, &mut [0; 1000]).unwrap();
        assert_eq!((n, got.len()), (wanted.len(), 64));
        send(&front, &wanted[..20], &fds).unwrap();
        send(&front, &wanted[20..30], &fds).unwrap();
        send(&front, &wanted[30..31], &fds[..1]).unwrap();
        assert_eq!(end.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn folders_of_others_are_left_alone() {
        let folder = |n| std::env::temp_dir().join(format!("flownic-{}-{n}", std::process::id()));
        let taken: Vec<_> = (0..50).map(folder).filter(|path| fs::create_dir(path).is_ok()).collect();
        let pair = private_pair();
        taken.iter().for_each(|path| fs::remove_dir(path).unwrap());
        assert!(pair.unwrap().0.accept().is_ok());
    }

    #[test]
    fn without_protocol_features_nothing_is_delivered_later() {
        let (mut front, mut end) = connected();
        front.write_all(&message(SET_VRING_ENABLE, 0, &[0, 0])).unwrap();
        let (features, next) = (message(SET_FEATURES, 0, &[0, 1]), message(3, 0, &[]));
        front.write_all(&[features.clone(), next.clone()].concat()).unwrap();
        expect(&mut end, &features);
        expect(&mut end, &next);
    }

    #[test]
    fn everything_else_passes_whole_with_its_descriptors_and_both_ways() {
        let (mut front, mut end) = connected();
        let kick = message(12, 0, &[0, 0]);
        let (a, _b) = UnixStream::pair().unwrap();
        // In two pieces, the descriptor with the first.
        send(&front, &kick[..5], &[OwnedFd::from(a)]).unwrap();
        front.write_all(&kick[5..]).unwrap();
        let mut room = [0; 100];
        let (n, fds) = receive(&end, &mut room).unwrap();
        assert_eq!((&room[..n], fds.len()), (&kick[..], 1));
        // Enables that can't be right are the crate's to refuse.
        for wrong in [message(SET_VRING_ENABLE, 0, &[0, 2]), message(SET_VRING_ENABLE, 0, &[999, 1])] {
            front.write_all(&wrong).unwrap();
            expect(&mut end, &wrong);
        }
        let answer = message(12, REPLY, &[7, 0x8005]);
        end.write_all(&answer[..13]).unwrap();
        end.write_all(&answer[13..]).unwrap();
        expect(&mut front, &answer);
        // A message that is too long gets as far as its header.
        let long = words(&[7, VERSION, 1 << 20]);
        front.write_all(&long).unwrap();
        expect(&mut end, &long);
        drop(end);
        assert_eq!(front.read(&mut room).unwrap(), 0);
    }
}
