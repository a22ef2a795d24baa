//! What the `vhost-user-backend` crate tells a vring: passed on to its own, captured, and acted upon.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use vhost_user_backend::{VringMutex, VringState, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::Error as VirtQueueError;

use super::{COLLECTING, Cell, GuestMemory, NetVring, Notifier};

impl<'a> VringStateGuard<'a, GuestMemory> for NetVring {
    type G = MutexGuard<'a, VringState<GuestMemory>>;
}

impl<'a> VringStateMutGuard<'a, GuestMemory> for NetVring {
    type G = MutexGuard<'a, VringState<GuestMemory>>;
}

impl VringT<GuestMemory> for NetVring {
    fn new(mem: GuestMemory, max_queue_size: u16) -> Result<Self, VirtQueueError> {
        let connection = COLLECTING.with_borrow(Clone::clone).expect("made inside of collect_vrings()");
        let mut vrings = connection.vrings.lock().unwrap();
        let vring = NetVring {
            inner: VringMutex::new(mem, max_queue_size)?,
            cell: Arc::new(Cell {
                connection: Arc::clone(&connection),
                index: vrings.len(),
                captured: Mutex::default(),
            }),
        };
        vrings.push(vring.clone());
        Ok(vring)
    }

    fn get_ref(&self) -> MutexGuard<'_, VringState<GuestMemory>> {
        self.inner.get_ref()
    }

    fn get_mut(&self) -> MutexGuard<'_, VringState<GuestMemory>> {
        self.inner.get_mut()
    }

    fn set_enabled(&self, enabled: bool) {
        self.inner.set_enabled(enabled);
        let mut c = self.captured();
        if c.enabled && !enabled {
            self.nic().restart_moderation(self.cell.index);
        }
        c.enabled = enabled;
        self.sync(&mut c);
    }

    fn set_queue_info(&self, desc: u64, avail: u64, used: u64) -> Result<(), VirtQueueError> {
        self.inner.set_queue_info(desc, avail, used)?;
        let mut c = self.captured();
        (c.setup.desc, c.setup.avail, c.setup.used) = (desc, avail, used);
        c.addressed = true;
        // QEMU sets the addresses of a running ring again when it starts a migration: same values, and it goes on.
        self.sync(&mut c);
        Ok(())
    }

    /// Where the ring stands: asked by `GET_VRING_BASE`, after the stop.
    fn queue_next_avail(&self) -> u16 {
        self.captured().setup.base
    }

    fn set_queue_next_avail(&self, base: u16) {
        self.inner.set_queue_next_avail(base);
        self.captured().setup.base = base;
    }

    fn set_queue_next_used(&self, idx: u16) {
        self.inner.set_queue_next_used(idx);
    }

    fn queue_used_idx(&self) -> Result<u16, VirtQueueError> {
        self.inner.queue_used_idx()
    }

    fn set_queue_size(&self, num: u16) {
        self.inner.set_queue_size(num);
        self.captured().setup.size = num;
    }

    fn set_queue_event_idx(&self, enabled: bool) {
        self.inner.set_queue_event_idx(enabled);
    }

    fn set_queue_ready(&self, ready: bool) {
        self.inner.set_queue_ready(ready);
        let mut c = self.captured();
        c.ready = ready;
        self.sync(&mut c);
    }

    fn set_kick(&self, file: Option<File>) {
        let kick = self.adopt(file.as_ref());
        self.inner.set_kick(file);
        self.replace(|c| c.kick = kick);
    }

    fn set_call(&self, file: Option<File>) {
        let mut c = self.captured();
        c.call = self.adopt(file.as_ref());
        self.inner.set_call(file);
        if c.running {
            let call = c.call.as_ref().and_then(|f| f.try_clone().ok()).map(Notifier);
            self.replace_call(call);
        }
    }

    fn set_err(&self, file: Option<File>) {
        let err = self.adopt(file.as_ref());
        self.inner.set_err(file);
        self.replace(|c| c.err = err);
    }

    // What follows serves the crate's own workers, and there are none.

    fn read_kick(&self) -> io::Result<bool> {
        self.inner.read_kick()
    }

    fn add_used(&self, desc_index: u16, len: u32) -> Result<(), VirtQueueError> {
        self.inner.add_used(desc_index, len)
    }

    fn signal_used_queue(&self) -> io::Result<()> {
        self.inner.signal_used_queue()
    }

    fn enable_notification(&self) -> Result<bool, VirtQueueError> {
        self.inner.enable_notification()
    }

    fn disable_notification(&self) -> Result<(), VirtQueueError> {
        self.inner.disable_notification()
    }

    fn needs_notification(&self) -> Result<bool, VirtQueueError> {
        self.inner.needs_notification()
    }
}
