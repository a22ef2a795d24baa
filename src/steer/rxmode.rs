//! Receive mode: which destination addresses and VLANs the NIC takes at all (5.1.6.5.1 to 5.1.6.5.3).
//!
//! Until someone sets a mode, everything is taken: behind the stock front end the guest's wishes never reach the device. The VLAN
//! filter is apart from the mode, also from promiscuous: who sets one wants it.

use super::DropReason;
use crate::packet::Headers;
use crate::virtio::MacAddr;

/// The switches of class `VIRTIO_NET_CTRL_RX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxMode {
    /// Takes every destination; the other switches mean nothing then.
    pub promiscuous: bool,
    /// Takes every multicast destination.
    pub all_multicast: bool,
    /// Takes every unicast destination.
    pub all_unicast: bool,
    /// Takes no multicast destination, except broadcast.
    pub no_multicast: bool,
    /// Takes no unicast destination.
    pub no_unicast: bool,
    /// Takes no broadcast.
    pub no_broadcast: bool,
}

impl RxMode {
    /// Takes everything.
    pub const PROMISCUOUS: RxMode = RxMode { promiscuous: true, ..RxMode::FILTERED };
    /// Takes broadcast and the addresses of the table only.
    pub const FILTERED: RxMode = RxMode {
        promiscuous: false,
        all_multicast: false,
        all_unicast: false,
        no_multicast: false,
        no_unicast: false,
        no_broadcast: false,
    };
}

impl Default for RxMode {
    fn default() -> Self {
        Self::PROMISCUOUS
    }
}

/// A set of VLAN ids.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanFilter([u64; 64]);

impl VlanFilter {
    /// No VLAN.
    pub fn new() -> Self {
        Self([0; 64])
    }

    /// Adds a VLAN id (its low 12 bits).
    pub fn add(&mut self, vid: u16) {
        self.0[usize::from(vid >> 6 & 63)] |= 1 << (vid & 63);
    }

    /// Removes a VLAN id (its low 12 bits).
    pub fn remove(&mut self, vid: u16) {
        self.0[usize::from(vid >> 6 & 63)] &= !(1 << (vid & 63));
    }

    /// Whether the VLAN of a TCI is in the set.
    pub fn contains(&self, tci: u16) -> bool {
        self.0[usize::from(tci >> 6 & 63)] >> (tci & 63) & 1 == 1
    }
}

impl Default for VlanFilter {
    fn default() -> Self {
        Self::new()
    }
}

/// The receive filter of one NIC.
#[derive(Clone, Default)]
pub struct RxFilter {
    mode: RxMode,
    mac: MacAddr,
    /// Sorted.
    addresses: Vec<MacAddr>,
    vlans: Option<Box<VlanFilter>>,
}

impl RxFilter {
    /// Sets the switches.
    pub fn set_mode(&mut self, mode: RxMode) {
        self.mode = mode;
    }

    /// The switches.
    pub fn mode(&self) -> RxMode {
        self.mode
    }

    /// Sets the NIC's own address, which is always in the table.
    pub fn set_mac(&mut self, mac: MacAddr) {
        self.mac = mac;
    }

    /// The NIC's own address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Replaces the table of further unicast and multicast addresses.
    pub fn set_addresses(&mut self, mut addresses: Vec<MacAddr>) {
        addresses.sort_unstable();
        self.addresses = addresses;
    }

    /// Sets the VLANs that are taken beside untagged frames; `None` = all.
    pub fn set_vlans(&mut self, vlans: Option<VlanFilter>) {
        self.vlans = vlans.map(Box::new);
    }

    /// The VLANs that are taken, to change; `None` = all.
    pub fn vlans_mut(&mut self) -> Option<&mut VlanFilter> {
        self.vlans.as_deref_mut()
    }

    /// Why the frame is not for this NIC, or `None` if it is.
    #[inline]
    pub(super) fn refuses(&self, h: &Headers) -> Option<DropReason> {
        if !self.mode.promiscuous && !self.takes(h) {
            return Some(DropReason::MacFilter);
        }
        match (&self.vlans, h.vlan()) {
            (Some(vlans), Some(tci)) if !vlans.contains(tci) => Some(DropReason::VlanFilter),
            _ => None,
        }
    }

    fn takes(&self, h: &Headers) -> bool {
        let mode = self.mode;
        let listed = || self.addresses.binary_search(&h.dst()).is_ok();
        if !h.ethernet() {
            false
        } else if h.dst() == MacAddr([0xff; 6]) {
            !mode.no_broadcast
        } else if h.dst().is_group() {
            !mode.no_multicast && (mode.all_multicast || listed())
        } else {
            !mode.no_unicast && (mode.all_unicast || h.dst() == self.mac || listed())
        }
    }
}
