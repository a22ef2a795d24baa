//! The device as the `vhost-user-backend` crate wants it described.

use std::io;
use std::sync::Arc;

use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost_user_backend::VhostUserBackend;
use vm_memory::GuestAddressSpace;
use vmm_sys_util::epoll::EventSet;

use super::dirty::DirtyLog;
use super::ring::Memory;
use super::vring::{Connection, GuestMemory, NetVring};

/// The largest split ring (2.7).
pub const MAX_RING_SIZE: usize = 32768;

/// One connection, seen by the crate.
#[derive(Clone)]
pub struct NetBackend {
    /// What the vrings share.
    pub connection: Arc<Connection>,
}

impl VhostUserBackend for NetBackend {
    type Bitmap = DirtyLog;
    type Vring = NetVring;

    fn num_queues(&self) -> usize {
        2 * usize::from(self.connection.nic.config.queue_pairs)
    }

    fn max_queue_size(&self) -> usize {
        MAX_RING_SIZE
    }

    fn features(&self) -> u64 {
        self.connection.nic.config.features
    }

    fn acked_features(&self, features: u64) {
        self.connection.set_features(features);
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
    }

    fn reset_device(&self) {
        self.connection.stop_all();
        self.connection.set_features(0);
        self.connection.nic.learned.clear();
        self.connection.nic.forget_guest();
    }

    fn set_event_idx(&self, _enabled: bool) {
        // Rings take it from the feature bits when they start.
    }

    fn update_memory(&self, mem: GuestMemory) -> io::Result<()> {
        let snapshot = Memory::new(mem.memory().into_inner());
        self.connection.set_memory(Arc::new(snapshot));
        Ok(())
    }

    /// No worker of the crate serves a ring: ours do.
    fn queues_per_thread(&self) -> Vec<u64> {
        Vec::new()
    }

    fn handle_event(
        &self,
        _event: u16,
        _set: EventSet,
        _vrings: &[NetVring],
        _thread: usize,
    ) -> io::Result<()> {
        unreachable!("the crate has no workers here")
    }
}
