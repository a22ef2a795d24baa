//! What a guest shall be like.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::front::{Guest, PROTOCOL_KNOWN};
use super::memory::Ram;
use super::proto::ProtoError;
use crate::virtio::*;

/// A region below the hole under 4 GiB and one above it, sizes in bytes.
const MEMORY: [(u64, u64); 2] = [(0, 64 << 20), (4 << 30, 64 << 20)];

/// What a guest shall be like; [`Builder::connect`] makes it.
#[derive(Debug, Clone)]
pub struct Builder {
    pub(super) socket: PathBuf,
    pub(super) listener: Option<Arc<UnixListener>>,
    pub(super) pairs: usize,
    pub(super) enabled: usize,
    pub(super) rx_size: u16,
    pub(super) tx_size: u16,
    pub(super) without: u64,
    pub(super) only: u64,
    pub(super) protocol: u64,
    pub(super) memory: Vec<(u64, u64)>,
    pub(super) base: u16,
    pub(super) rx_len: Option<u32>,
    pub(super) rx_descs: usize,
    pub(super) fill: bool,
}

impl Builder {
    /// Queue pairs to set up; all of them are enabled unless [`Builder::enabled`] says less.
    pub fn queue_pairs(mut self, pairs: usize) -> Self {
        (self.pairs, self.enabled) = (pairs, pairs);
        self
    }

    /// Enables the first `pairs` only, as Linux does before it asks for more.
    pub fn enabled(mut self, pairs: usize) -> Self {
        self.enabled = pairs;
        self
    }

    /// Descriptors in every ring; in split ones a power of two.
    pub fn ring_size(self, size: u16) -> Self {
        self.ring_sizes(size, size)
    }

    /// Descriptors in receive and in transmit rings.
    pub fn ring_sizes(mut self, rx: u16, tx: u16) -> Self {
        (self.rx_size, self.tx_size) = (rx, tx);
        self
    }

    /// Leaves features away, `-mrg_rxbuf,-event_idx`, adds one that is not taken by itself, `+in_order`, or takes only
    /// those named, `version_1,mq`.
    pub fn features(mut self, list: &str) -> Self {
        for name in list.split(',').filter(|n| !n.is_empty()) {
            let bit = |n| feature_by_name(n).unwrap_or_else(|| panic!("no feature is called '{n}'"));
            if let Some(name) = name.strip_prefix('-') {
                self.without |= bit(name);
            } else if let Some(name) = name.strip_prefix('+') {
                self.without &= !bit(name);
            } else {
                let before = if self.only == u64::MAX { F_PROTOCOL_FEATURES } else { self.only };
                self.only = before | bit(name);
            }
        }
        self
    }

    /// Takes these features, as far as they are offered.
    pub fn feature_mask(mut self, mask: u64) -> Self {
        (self.only, self.without) = (mask, 0);
        self
    }

    /// Takes these protocol features, as far as they are offered.
    pub fn protocol_features(mut self, mask: u64) -> Self {
        self.protocol = mask;
        self
    }

    /// Guest memory as pairs of guest-physical address and size, ascending, whole pages.
    pub fn memory(mut self, layout: &[(u64, u64)]) -> Self {
        self.memory = layout.to_vec();
        self
    }

    /// Starts every ring at this index instead of 0, so that the 16-bit wrap comes soon.
    pub fn first_index(mut self, base: u16) -> Self {
        self.base = base;
        self
    }

    /// Bytes in each receive buffer, header included; 2048 with MRG_RXBUF and 65562 without, if not said.
    pub fn rx_buffer(mut self, len: u32) -> Self {
        self.rx_len = Some(len);
        self
    }

    /// Cuts each receive buffer into this many descriptors.
    pub fn rx_descriptors(mut self, descs: usize) -> Self {
        self.rx_descs = descs;
        self
    }

    /// Posts no receive buffers until the test does.
    pub fn no_rx_buffers(mut self) -> Self {
        self.fill = false;
        self
    }

    /// Lets the back end be the client: the socket exists as soon as this returns.
    pub fn listen(mut self) -> io::Result<Self> {
        let listener = UnixListener::bind(&self.socket)?;
        listener.set_nonblocking(true)?;
        self.listener = Some(Arc::new(listener));
        Ok(self)
    }

    /// Connects (or accepts), negotiates, starts the rings and fills the receive rings.
    pub fn connect(self) -> Result<Guest, ProtoError> {
        let mut guest = self.unconnected();
        guest.connect()?;
        Ok(guest)
    }

    /// What the driver takes of what is offered.
    pub(super) fn takes(&self, offered: u64) -> u64 {
        offered & self.only & !self.without
    }

    /// The guest without a back end: memory and no rings yet.
    pub fn unconnected(self) -> Guest {
        let ram = Arc::new(Ram::new(&self.memory));
        Guest {
            ram,
            rings: Vec::new(),
            channel: None,
            offered: 0,
            features: 0,
            protocol: 0,
            queue_num: 0,
            connection_pairs: 0,
            enabled: vec![false; self.pairs],
            error_fd: EventFd::new(EFD_NONBLOCK).expect("an eventfd"),
            log: None,
            told: Vec::new(),
            want: self,
            fences: 0,
            last_pair: 0,
        }
    }
}

impl Guest {
    /// A guest with one pair of 256 descriptors that takes every feature it is offered.
    pub fn builder(socket: impl AsRef<Path>) -> Builder {
        Builder {
            socket: socket.as_ref().to_path_buf(),
            listener: None,
            pairs: 1,
            enabled: 1,
            rx_size: 256,
            tx_size: 256,
            // What the kit has no code for, and what stock drivers do not take.
            without: F_LOG_ALL | F_RING_PACKED | F_IN_ORDER,
            only: u64::MAX,
            protocol: PROTOCOL_KNOWN,
            memory: MEMORY.to_vec(),
            base: 0,
            rx_len: None,
            rx_descs: 1,
            fill: true,
        }
    }
}
