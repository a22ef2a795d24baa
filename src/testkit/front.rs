//! The front end: what QEMU says to a back end, in QEMU's order.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::builder::Builder;
use super::dial::{accept, dial};
use super::memory::{DirtyLog, Ram, Region};
use super::proto::*;
use super::ring::Ring;
use super::soon;
use crate::virtio::*;

/// The protocol features that this front end knows how to use.
pub const PROTOCOL_KNOWN: u64 = PROTOCOL_MQ
    | PROTOCOL_LOG_SHMFD
    | PROTOCOL_REPLY_ACK
    | PROTOCOL_RESET_DEVICE
    | PROTOCOL_CONFIGURE_MEM_SLOTS;

/// A guest with a vhost-user NIC.
pub struct Guest {
    /// Its memory.
    pub ram: Arc<Ram>,
    /// All rings: receive 2n, transmit 2n + 1.
    pub rings: Vec<Ring>,
    /// What the back end offered.
    pub offered: u64,
    /// What was acknowledged, without LOG_ALL.
    pub features: u64,
    /// The protocol features in use.
    pub protocol: u64,
    /// The answer to GET_QUEUE_NUM, 0 without MQ.
    pub queue_num: u64,
    /// Signalled by the back end when a ring is broken.
    pub error_fd: EventFd,
    pub(super) enabled: Vec<bool>,
    pub(super) fences: u64,
    /// The pair that the last frame was taken from.
    pub(super) last_pair: usize,
    /// Queue pairs when the connection was made.
    pub(super) connection_pairs: usize,
    pub(super) channel: Option<Channel>,
    pub(super) log: Option<DirtyLog>,
    /// Regions that this connection knows from ADD_MEM_REG.
    pub(super) told: Vec<u64>,
    pub(super) want: Builder,
}

impl Guest {
    /// Number of queue pairs.
    pub fn pairs(&self) -> usize {
        self.want.pairs
    }

    /// The receive ring of a pair.
    pub fn rx(&mut self, pair: usize) -> &mut Ring {
        &mut self.rings[2 * pair]
    }

    /// The transmit ring of a pair.
    pub fn tx(&mut self, pair: usize) -> &mut Ring {
        &mut self.rings[2 * pair + 1]
    }

    /// Whether a feature bit was acknowledged.
    pub fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Bytes of the network header: 12, or 10 for a legacy driver without MRG_RXBUF (5.1.6.1).
    pub fn header_len(&self) -> usize {
        if self.has(F_VERSION_1 | F_MRG_RXBUF) { NetHeader::SIZE } else { NetHeader::SIZE - 2 }
    }

    /// Bytes in each receive buffer and the number of descriptors it is cut into.
    pub fn rx_shape(&self) -> (u32, usize) {
        let default = if self.has(F_MRG_RXBUF) { 2048 } else { 65562 };
        (self.want.rx_len.unwrap_or(default), self.want.rx_descs)
    }

    /// The connection, for messages that have no method here.
    ///
    /// # Panics
    /// When the guest is not connected.
    pub fn channel(&mut self) -> &mut Channel {
        self.channel.as_mut().expect("a connected guest")
    }

    /// Whether there is a connection at our end; the back end may have closed its own.
    pub fn is_connected(&self) -> bool {
        self.channel.is_some()
    }

    /// Closes the socket without a word, like a QEMU that was killed. Memory and rings stay.
    pub fn disconnect(&mut self) {
        self.channel = None;
        self.told.clear();
    }

    /// Connects and negotiates. A guest that had rings goes on where its used rings say, as QEMU does after the
    /// back end vanished; a new one makes rings and fills them.
    pub fn connect(&mut self) -> Result<(), ProtoError> {
        self.open()?;
        self.bring_up()
    }

    fn bring_up(&mut self) -> Result<(), ProtoError> {
        self.negotiate()?;
        let fresh = self.rings.is_empty();
        if fresh {
            self.make_rings();
        }
        let bases: Vec<u16> = self.rings.iter().map(Ring::base).collect();
        self.start(&bases)?;
        let enabled = self.want.enabled;
        for pair in 0..self.pairs() {
            self.enable(pair, pair < enabled)?;
        }
        if fresh && self.want.fill {
            self.fill_all_rx();
        }
        Ok(())
    }

    /// Negotiates and starts like [`Guest::connect`], on a socket that is connected already.
    pub fn connect_on(&mut self, sock: UnixStream) -> Result<(), ProtoError> {
        self.disconnect();
        let channel =
            Channel::new(sock).map_err(|source| ProtoError::Socket { request: "connect", source })?;
        self.channel = Some(channel);
        self.bring_up()
    }

    /// Opens the socket and says nothing yet.
    pub fn open(&mut self) -> Result<(), ProtoError> {
        self.disconnect();
        let sock = match &self.want.listener {
            Some(listener) => accept(listener, soon()),
            None => dial(&self.want.socket, soon()),
        };
        let channel = sock.and_then(Channel::new);
        self.channel = Some(channel.map_err(|source| ProtoError::Socket { request: "connect", source })?);
        Ok(())
    }

    /// From GET_FEATURES to SET_OWNER: everything before the guest's driver is there.
    pub fn negotiate(&mut self) -> Result<(), ProtoError> {
        let want = self.want.clone();
        let channel = self.channel();
        let offered = channel.get(GET_FEATURES)?;
        let (mut protocol, mut queue_num) = (0, 0);
        let features = want.takes(offered);
        if features & F_PROTOCOL_FEATURES != 0 {
            protocol = channel.get(GET_PROTOCOL_FEATURES)? & want.protocol;
            channel.set_u64(SET_PROTOCOL_FEATURES, protocol)?;
            channel.acknowledge = protocol & PROTOCOL_REPLY_ACK != 0;
            if protocol & PROTOCOL_MQ != 0 {
                queue_num = channel.get(GET_QUEUE_NUM)?;
            }
            if protocol & PROTOCOL_CONFIGURE_MEM_SLOTS != 0 {
                channel.get(GET_MAX_MEM_SLOTS)?;
            }
        }
        channel.set(SET_OWNER, &[], &[])?;
        channel.sync()?;
        // QEMU gives every ring a call and an error descriptor before any driver is there.
        let early = EventFd::new(EFD_NONBLOCK).expect("an eventfd");
        for index in 0..2 * want.pairs as u64 {
            for (code, fd) in [(SET_VRING_CALL, &early), (SET_VRING_ERR, &self.error_fd)] {
                self.channel.as_ref().expect("used above").set(
                    code,
                    &index.to_ne_bytes(),
                    &[fd.as_raw_fd()],
                )?;
            }
        }
        self.connection_pairs = want.pairs;
        (self.offered, self.features, self.protocol, self.queue_num) =
            (offered, features, protocol, queue_num);
        Ok(())
    }

    fn make_rings(&mut self) {
        for index in 0..2 * self.pairs() {
            let size = if index % 2 == 0 { self.want.rx_size } else { self.want.tx_size };
            let mut ring = Ring::new(self.ram.clone(), index, size, self.features);
            ring.reset(self.want.base);
            self.rings.push(ring);
        }
    }

    /// From SET_FEATURES to the last SET_VRING_CALL: the guest's driver is ready. Rings start at `bases`; with
    /// PROTOCOL_FEATURES they are not enabled yet.
    pub fn start(&mut self, bases: &[u16]) -> Result<(), ProtoError> {
        self.send_features()?;
        self.send_memory()?;
        for (index, &base) in bases.iter().enumerate() {
            self.start_vring(index, base)?;
        }
        self.channel().sync()
    }

    /// NUM, BASE, ADDR, KICK and CALL of one vring.
    pub fn start_vring(&mut self, index: usize, base: u16) -> Result<(), ProtoError> {
        let i = index as u32;
        let size = self.rings[index].size.into();
        self.channel().set_vring(SET_VRING_NUM, i, size)?;
        // Of a packed ring where the next available and where the next used descriptor is: the same here.
        let used = if self.has(F_RING_PACKED) { u32::from(base) << 16 } else { 0 };
        self.channel().set_vring(SET_VRING_BASE, i, u32::from(base) | used)?;
        self.send_vring_addr(index)?;
        let ring = &self.rings[index];
        let (kick, call) = (ring.kick_fd.as_raw_fd(), ring.call_fd.as_raw_fd());
        self.channel().set(SET_VRING_KICK, &(index as u64).to_ne_bytes(), &[kick])?;
        self.channel().set(SET_VRING_CALL, &(index as u64).to_ne_bytes(), &[call])
    }

    fn send_vring_addr(&mut self, index: usize) -> Result<(), ProtoError> {
        let ring = &self.rings[index];
        let flags = if self.log.is_some() { VRING_F_LOG } else { 0 };
        let mut payload = pair(index as u32, flags).to_vec();
        for gpa in [ring.desc, ring.used, ring.avail] {
            payload.extend(self.ram.user_address(gpa).expect("rings lie in guest memory").to_ne_bytes());
        }
        payload.extend(ring.used.to_ne_bytes());
        self.channel().set(SET_VRING_ADDR, &payload, &[])
    }

    /// Sends SET_FEATURES again, with LOG_ALL while a dirty log is on.
    pub fn send_features(&mut self) -> Result<(), ProtoError> {
        let features = self.features | if self.log.is_some() { F_LOG_ALL } else { 0 };
        self.channel().set_u64(SET_FEATURES, features)
    }

    /// Tells the back end about all regions, like QEMU: with CONFIGURE_MEM_SLOTS an ADD_MEM_REG for each that this
    /// connection has not heard of, else one SET_MEM_TABLE.
    pub fn send_memory(&mut self) -> Result<(), ProtoError> {
        let regions = self.ram.regions();
        if self.protocol & PROTOCOL_CONFIGURE_MEM_SLOTS == 0 {
            return self.send_memory_table(&regions);
        }
        for region in &regions {
            if !self.told.contains(&region.gpa) {
                self.channel().set(ADD_MEM_REG, &region.to_single_bytes(), &[region.fd()])?;
                self.told.push(region.gpa);
            }
        }
        Ok(())
    }

    /// SET_MEM_TABLE, whatever was negotiated.
    pub fn send_memory_table(&mut self, regions: &[Region]) -> Result<(), ProtoError> {
        let mut payload = pair(regions.len() as u32, 0).to_vec();
        payload.extend(regions.iter().flat_map(Region::to_bytes));
        let fds: Vec<_> = regions.iter().map(Region::fd).collect();
        self.channel().set(SET_MEM_TABLE, &payload, &fds)
    }

    /// Plugs a region in while traffic may flow: ADD_MEM_REG where negotiated, else a new SET_MEM_TABLE.
    pub fn add_memory_region(&mut self, gpa: u64, size: u64) -> Result<(), ProtoError> {
        self.ram.plug(gpa, size);
        self.send_memory()
    }

    /// Takes a region away again; nothing of it may be in use.
    pub fn remove_memory_region(&mut self, gpa: u64) -> Result<(), ProtoError> {
        let region = self.ram.unplug(gpa);
        if self.protocol & PROTOCOL_CONFIGURE_MEM_SLOTS == 0 {
            return self.send_memory();
        }
        self.told.retain(|&told| told != gpa);
        self.channel().set(REM_MEM_REG, &region.to_single_bytes(), &[])
    }

    /// Enables or disables both rings of a pair. Without PROTOCOL_FEATURES rings are always enabled.
    pub fn enable(&mut self, pair: usize, on: bool) -> Result<(), ProtoError> {
        if self.has(F_PROTOCOL_FEATURES) {
            for index in [2 * pair, 2 * pair + 1] {
                self.channel().set_vring(SET_VRING_ENABLE, index as u32, on.into())?;
            }
            self.channel().sync()?;
        }
        self.enabled[pair] = on || !self.has(F_PROTOCOL_FEATURES);
        Ok(())
    }

    /// Stops every ring and returns where each stood.
    pub fn stop(&mut self) -> Result<Vec<u16>, ProtoError> {
        (0..self.rings.len()).map(|index| self.stop_vring(index)).collect()
    }

    /// GET_VRING_BASE: stops one ring and returns where it stood.
    pub fn stop_vring(&mut self, index: usize) -> Result<u16, ProtoError> {
        let reply = self.channel().ask(GET_VRING_BASE, &pair(index as u32, 0), &[])?;
        let words =
            reply.chunks(4).map(|b| b.try_into().map(u32::from_ne_bytes)).collect::<Result<Vec<_>, _>>();
        match words.as_deref() {
            Ok(&[i, num])
                if i as usize == index
                    && num >> 16 == if self.has(F_RING_PACKED) { num & 0xffff } else { 0 } =>
            {
                Ok(num as u16)
            }
            _ => Err(ProtoError::Garbled { request: "GET_VRING_BASE", what: format!("{reply:?}") }),
        }
    }

    /// Starts and enables the rings again after [`Guest::stop`].
    pub fn restart(&mut self, bases: &[u16]) -> Result<(), ProtoError> {
        self.start(bases)?;
        for pair in 0..self.pairs() {
            self.enable(pair, self.enabled[pair])?;
        }
        Ok(())
    }

    /// A reboot as the back end sees it: rings stopped, forgotten, and set up anew by another driver.
    pub fn reboot(&mut self) -> Result<(), ProtoError> {
        self.stop()?;
        self.renew_rings();
        let bases: Vec<u16> = self.rings.iter().map(Ring::first_base).collect();
        self.restart(&bases)?;
        self.fill_all_rx();
        Ok(())
    }

    /// Another driver takes over, with other features, ring sizes or numbers of queues, as from firmware to kernel: the
    /// old one's rings are stopped, new ones are elsewhere in memory.
    ///
    /// # Panics
    /// When `change` asks for more queue pairs than before the connection was made.
    pub fn change_driver(&mut self, change: impl FnOnce(Builder) -> Builder) -> Result<(), ProtoError> {
        self.stop()?;
        self.want = change(self.want.clone());
        let most = self.connection_pairs;
        assert!(self.pairs() <= most, "the connection was made with {most} queue pairs");
        self.features = self.want.takes(self.offered);
        for mut ring in std::mem::take(&mut self.rings) {
            let lost = ring.reset(0);
            ring.release();
            self.free_segs(&lost);
        }
        self.make_rings();
        self.enabled = (0..self.pairs()).map(|pair| pair < self.want.enabled).collect();
        let bases: Vec<u16> = self.rings.iter().map(Ring::base).collect();
        self.restart(&bases)?;
        if self.want.fill {
            self.fill_all_rx();
        }
        Ok(())
    }

    /// RESET_DEVICE; the rings are disabled afterwards and must be set up anew.
    pub fn reset_device(&mut self) -> Result<(), ProtoError> {
        self.channel().set(RESET_DEVICE, &[], &[])?;
        self.enabled.fill(false);
        self.channel().sync()
    }

    /// Empties the rings as a new driver finds them, buffers freed, indexes at 0.
    pub fn renew_rings(&mut self) {
        for index in 0..self.rings.len() {
            let lost = self.rings[index].reset(0);
            self.free_segs(&lost);
        }
    }

    /// Turns the dirty log on as QEMU does at the start of a migration: base, features, then the rings' addresses
    /// with their log flag.
    pub fn start_log(&mut self) -> Result<(), ProtoError> {
        let log = DirtyLog::new(&self.ram.regions());
        let mut payload = log.size().to_ne_bytes().to_vec();
        payload.extend(0u64.to_ne_bytes());
        self.channel().ask(SET_LOG_BASE, &payload, &[log.fd()])?;
        self.log = Some(log);
        self.send_features()?;
        (0..self.rings.len()).try_for_each(|index| self.send_vring_addr(index))?;
        self.channel().sync()
    }

    /// Turns the dirty log off and returns it.
    pub fn stop_log(&mut self) -> Result<DirtyLog, ProtoError> {
        let log = self.log.take().expect("start_log came before");
        self.send_features()?;
        (0..self.rings.len()).try_for_each(|index| self.send_vring_addr(index))?;
        self.channel().sync()?;
        Ok(log)
    }

    /// The dirty log while it is on.
    pub fn log(&self) -> &DirtyLog {
        self.log.as_ref().expect("start_log came before")
    }

    /// Whether descriptor chains may be indirect.
    pub fn indirect(&self) -> bool {
        self.has(F_INDIRECT_DESC)
    }
}
