//! A back end to test the kit against, made of other people's crates: everything sent through a pair comes back
//! on its receive ring. Chains are read by `virtio-queue`, the protocol by `vhost-user-backend`; the used side is
//! written here, since several buffers of one frame must appear at once.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use vhost::vhost_user::Listener;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::bitmap::BitmapMmapRegion;
use vhost_user_backend::{VhostUserBackendMut, VhostUserDaemon, VringRwLock, VringT};
use virtio_queue::{QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

use super::process::TempDir;
use crate::virtio::*;

type Memory = GuestMemoryMmap<BitmapMmapRegion>;
type Vring = VringRwLock<GuestMemoryAtomic<Memory>>;

struct Echo {
    queues: usize,
    offers: u64,
    acked: u64,
    memory: GuestMemoryAtomic<Memory>,
    exit: (EventConsumer, EventNotifier),
}

impl Echo {
    fn serve(&self, rx: &Vring, tx: &Vring) {
        let guard = self.memory.memory();
        let memory: &Memory = &guard;
        loop {
            // A statement of its own, so that the ring's lock is free again below.
            let chain = tx.get_mut().get_queue_mut().pop_descriptor_chain(memory);
            let Some(chain) = chain else {
                // Who sent before this was said did not kick.
                if tx.enable_notification().expect("an avail_event that can be written") {
                    continue;
                }
                return;
            };
            let head = chain.head_index();
            let mut bytes = Vec::new();
            chain.reader(memory).expect("a readable chain").read_to_end(&mut bytes).expect("its bytes");
            self.publish(tx, memory, &[(head, 0)]);
            self.deliver(rx, memory, &mut bytes);
        }
    }

    fn deliver(&self, rx: &Vring, memory: &Memory, bytes: &mut [u8]) {
        let mut chains = Vec::new();
        let mut room = 0;
        while room < bytes.len() {
            let chain = rx.get_mut().get_queue_mut().pop_descriptor_chain(memory);
            let Some(chain) = chain else {
                (0..chains.len()).for_each(|_| rx.get_mut().get_queue_mut().go_to_previous_position());
                return;
            };
            let head = chain.head_index();
            let writer = chain.writer(memory).expect("a writable chain");
            room += writer.available_bytes();
            chains.push((head, writer));
        }
        bytes[10..12].copy_from_slice(&(chains.len() as u16).to_le_bytes());
        let mut rest = &*bytes;
        let mut used = Vec::new();
        for (head, mut writer) in chains {
            let len = writer.write(rest).expect("guest memory");
            rest = &rest[len..];
            used.push((head, len as u32));
        }
        self.publish(rx, memory, &used);
    }

    fn publish(&self, vring: &Vring, memory: &Memory, entries: &[(u16, u32)]) {
        let mut state = vring.get_mut();
        let queue = state.get_queue_mut();
        let (used, avail, size) = (queue.used_ring(), queue.avail_ring(), queue.size());
        let old = queue.next_used();
        for (i, &(head, len)) in entries.iter().enumerate() {
            let slot = old.wrapping_add(i as u16) % size;
            let entry = [u32::from(head).to_le_bytes(), len.to_le_bytes()].concat();
            memory.write_slice(&entry, GuestAddress(used + 4 + 8 * u64::from(slot))).expect("the used ring");
        }
        let new = old.wrapping_add(entries.len() as u16);
        memory.store(new.to_le(), GuestAddress(used + 2), Ordering::Release).expect("the used ring");
        queue.set_next_used(new);
        fence(Ordering::SeqCst);
        let load =
            |at: u64| u16::from_le(memory.load(GuestAddress(at), Ordering::Acquire).expect("the avail ring"));
        let signal = if self.acked & F_EVENT_IDX != 0 {
            let event = load(avail + 4 + 2 * u64::from(size));
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            load(avail) & 1 == 0
        };
        if signal {
            state.signal_used_queue().expect("a call descriptor");
        }
    }
}

impl VhostUserBackendMut for Echo {
    type Bitmap = BitmapMmapRegion;
    type Vring = Vring;

    fn num_queues(&self) -> usize {
        self.queues
    }
    fn max_queue_size(&self) -> usize {
        32768
    }
    fn features(&self) -> u64 {
        self.offers | F_PROTOCOL_FEATURES | F_LOG_ALL
    }
    fn acked_features(&mut self, features: u64) {
        self.acked = features;
    }
    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
    }
    fn set_event_idx(&mut self, _: bool) {}
    fn update_memory(&mut self, _: GuestMemoryAtomic<Memory>) -> std::io::Result<()> {
        Ok(())
    }
    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        Some((self.exit.0.try_clone().ok()?, self.exit.1.try_clone().ok()?))
    }
    fn handle_event(&mut self, event: u16, _: EventSet, vrings: &[Vring], _: usize) -> std::io::Result<()> {
        let pair = usize::from(event) / 2;
        let [rx, tx] = &vrings[2 * pair..2 * pair + 2] else { return Ok(()) };
        let ready = |v: &Vring| v.get_ref().is_enabled() && v.get_ref().get_queue().ready();
        if ready(rx) && ready(tx) {
            self.serve(rx, tx);
        }
        Ok(())
    }
}

/// The back end, serving one connection after the other from a thread of its own.
pub(super) struct Reference {
    dir: TempDir,
    thread: Option<JoinHandle<()>>,
}

impl Reference {
    /// Serves exactly `connections` connections with that many queue pairs.
    pub(super) fn start(pairs: usize, offers: u64, connections: usize) -> Self {
        let dir = TempDir::new();
        let mut listener = Listener::new(dir.path().join("echo"), true).expect("a socket");
        let thread = std::thread::spawn(move || {
            for _ in 0..connections {
                let memory = GuestMemoryAtomic::new(Memory::new());
                let exit = new_event_consumer_and_notifier(EventFlag::NONBLOCK).expect("an eventfd");
                let stop = exit.1.try_clone().expect("a second descriptor");
                let echo = Echo { queues: 2 * pairs, offers, acked: 0, memory: memory.clone(), exit };
                let mut daemon = VhostUserDaemon::new("reference".into(), Arc::new(Mutex::new(echo)), memory)
                    .expect("a daemon");
                daemon.start(&mut listener).expect("a connection");
                // The front end's going away is an error to the crate and the normal end to us.
                let _ = daemon.wait();
                stop.notify().expect("an eventfd with room");
            }
        });
        Reference { dir, thread: Some(thread) }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("echo")
    }

    /// Waits until all connections have come and gone; a panic over there becomes one here.
    pub(super) fn finish(mut self) {
        self.thread.take().expect("not finished yet").join().expect("the reference back end");
    }
}
