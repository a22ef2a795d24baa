//! A guest's network card, as arguments for QEMU.

use std::path::{Path, PathBuf};

/// What a card is plugged into.
#[derive(Debug, Clone)]
pub enum Backend {
    /// QEMU's own user-mode network; needs nothing else and steers nothing.
    User,
    /// Datagrams between two QEMUs, without flownic: from the first socket to the second.
    Datagrams(PathBuf, PathBuf),
    /// flownic, which listens at this socket.
    VhostUser(PathBuf),
}

/// A virtio network card.
#[derive(Debug, Clone)]
pub struct Nic {
    backend: Backend,
    queues: u32,
    rings: (u32, u32),
    mac: Option<String>,
    properties: Vec<String>,
}

impl Nic {
    /// A card with one queue pair, rings of 1024 entries, and a MAC address from its place.
    pub fn new(backend: Backend) -> Nic {
        Nic { backend, queues: 1, rings: (1024, 1024), mac: None, properties: Vec::new() }
    }

    /// A card served by flownic.
    pub fn flownic(socket: impl AsRef<Path>, queues: u32) -> Nic {
        Nic::new(Backend::VhostUser(socket.as_ref().to_owned())).queues(queues)
    }

    /// Number of queue pairs.
    pub fn queues(self, queues: u32) -> Nic {
        Nic { queues, ..self }
    }

    /// Entries of the receive and the transmit rings.
    pub fn rings(self, receive: u32, transmit: u32) -> Nic {
        Nic { rings: (receive, transmit), ..self }
    }

    /// Hardware address.
    pub fn mac(self, mac: &str) -> Nic {
        Nic { mac: Some(mac.to_owned()), ..self }
    }

    /// A further property of the device, such as `mrg_rxbuf=off`.
    pub fn property(mut self, property: &str) -> Nic {
        self.properties.push(property.to_owned());
        self
    }

    pub(super) fn address(&self) -> Option<&str> {
        self.mac.as_deref()
    }

    /// Arguments for card `index` with hardware address `mac`, for QEMU's major version `version`.
    pub(super) fn arguments(&self, index: usize, mac: &str, version: u32) -> Vec<String> {
        let mut device = format!("virtio-net-pci,id=nic{index},netdev=net{index},mac={mac}");
        let (mut arguments, netdev) = match &self.backend {
            Backend::User => (Vec::new(), format!("user,id=net{index}")),
            Backend::Datagrams(from, to) => (
                Vec::new(),
                format!(
                    "dgram,id=net{index},local.type=unix,local.path={},remote.type=unix,remote.path={}",
                    from.display(),
                    to.display()
                ),
            ),
            Backend::VhostUser(socket) => {
                let (receive, transmit) = self.rings;
                device += &format!(",rx_queue_size={receive},tx_queue_size={transmit}");
                // flownic may be restarted under a running guest.
                let again = if version >= 10 { "reconnect-ms=200" } else { "reconnect=1" };
                let chardev = format!("socket,id=char{index},path={},{again}", socket.display());
                let netdev = format!("vhost-user,id=net{index},chardev=char{index},queues={}", self.queues);
                (vec!["-chardev".to_owned(), chardev], netdev)
            }
        };
        if self.queues > 1 {
            device += ",mq=on";
        }
        device += &match (&self.backend, version) {
            // Emulated, it crashes when vhost-user has started and the guest unmasks a vector: one shared interrupt.
            (Backend::VhostUser(_), ..8) => ",vectors=0".to_owned(),
            _ => format!(",vectors={}", 2 * self.queues + 2),
        };
        for property in &self.properties {
            device += ",";
            device += property;
        }
        arguments.extend(["-netdev".to_owned(), netdev, "-device".to_owned(), device]);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flownic_card_reconnects_in_the_words_of_its_qemu() {
        let nic = Nic::flownic("/run/n0", 4).property("mrg_rxbuf=off");
        let old = nic.arguments(1, "52:54:00:00:00:01", 7).join(" ");
        assert!(old.contains("-chardev socket,id=char1,path=/run/n0,reconnect=1 "), "{old}");
        assert!(old.contains("-netdev vhost-user,id=net1,chardev=char1,queues=4 "), "{old}");
        assert!(old.ends_with("tx_queue_size=1024,mq=on,vectors=0,mrg_rxbuf=off"), "{old}");
        let new = nic.arguments(1, "52:54:00:00:00:01", 10).join(" ");
        assert!(new.contains("reconnect-ms=200"), "{new}");
        assert!(new.ends_with("mq=on,vectors=10,mrg_rxbuf=off"), "{new}");
    }
}
