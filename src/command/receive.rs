//! Receive mode, addresses and VLANs (5.1.6.5.1 to 5.1.6.5.3).
//!
//! The device starts promiscuous and knows neither its address nor a VLAN filter, since behind the stock front end nobody
//! tells it. A driver that switches promiscuity off sets its address first. The VLAN filter begins with the first VLAN
//! that is added.

use super::control::{DONE, Outcome};
use crate::nic::Nic;
use crate::steer::VlanFilter;
use crate::virtio::MacAddr;
use crate::virtio::ctrl::{MacTable, mac, rx, vlan};

/// VLAN ids are below it.
const VLANS: u16 = 4096;

pub(super) fn mode(nic: &Nic, command: u8, data: &[u8]) -> Outcome {
    let on = match data.first()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let mut steering = nic.steering.write();
    let mut mode = steering.rx_filter().mode();
    let switch = match command {
        rx::PROMISC => &mut mode.promiscuous,
        rx::ALLMULTI => &mut mode.all_multicast,
        rx::ALLUNI => &mut mode.all_unicast,
        rx::NOMULTI => &mut mode.no_multicast,
        rx::NOUNI => &mut mode.no_unicast,
        rx::NOBCAST => &mut mode.no_broadcast,
        _ => return None,
    };
    *switch = on;
    steering.rx_filter_mut().set_mode(mode);
    DONE
}

pub(super) fn addresses(nic: &Nic, command: u8, data: &[u8]) -> Outcome {
    match command {
        mac::TABLE_SET => {
            let MacTable { mut unicast, multicast } = MacTable::from_bytes(data)?;
            unicast.extend(multicast);
            let mut steering = nic.steering.write();
            steering.rx_filter_mut().set_addresses(unicast);
        }
        mac::ADDR_SET => {
            let address = MacAddr(*data.first_chunk()?);
            if address.is_group() {
                return None;
            }
            let mut steering = nic.steering.write();
            steering.rx_filter_mut().set_mac(address);
        }
        _ => return None,
    }
    DONE
}

pub(super) fn vlans(nic: &Nic, command: u8, data: &[u8]) -> Outcome {
    let id = u16::from_le_bytes(*data.first_chunk()?);
    if id >= VLANS || ![vlan::ADD, vlan::DEL].contains(&command) {
        return None;
    }
    let mut steering = nic.steering.write();
    let filter = steering.rx_filter_mut();
    match (filter.vlans_mut(), command) {
        (Some(vlans), vlan::ADD) => vlans.add(id),
        (Some(vlans), _) => vlans.remove(id),
        (None, vlan::ADD) => {
            let mut vlans = VlanFilter::new();
            vlans.add(id);
            filter.set_vlans(Some(vlans));
        }
        // Without a filter every VLAN is received, and no command narrows that down to all but one.
        (None, _) => {}
    }
    DONE
}
