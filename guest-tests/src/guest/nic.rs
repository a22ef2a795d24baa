//! A guest's network card, as arguments for QEMU.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build;

/// Entries of a ring, as `flownic qemu-args` asks for them.
const RING: u32 = 1024;

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

/// Which of the guest's drivers a card is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// The kernel's own.
    VirtioNet,
    /// The reference driver, `guest-tests/driver`.
    FlownicNet,
}

impl Driver {
    /// Its name, as the kernel and `ethtool -i` have it.
    pub fn name(self) -> &'static str {
        match self {
            Driver::VirtioNet => "virtio_net",
            Driver::FlownicNet => "flownic_net",
        }
    }
}

/// A virtio network card.
#[derive(Debug, Clone)]
pub struct Nic {
    backend: Backend,
    queues: u32,
    rings: (u32, u32),
    mtu: u32,
    mac: Option<String>,
    driver: Option<Driver>,
    packed: bool,
    properties: Vec<String>,
}

impl Nic {
    /// A card with one queue pair, rings of 1024 entries, and a MAC address from its place.
    pub fn new(backend: Backend) -> Nic {
        let (mac, driver, properties) = (None, None, Vec::new());
        Nic { backend, queues: 1, rings: (RING, RING), mtu: 1500, mac, driver, packed: false, properties }
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

    /// MTU that the guest is told, where it is not 1500; for flownic only.
    pub fn mtu(self, mtu: u32) -> Nic {
        Nic { mtu, ..self }
    }

    /// Packed rings; for flownic only.
    pub fn packed(self) -> Nic {
        Nic { packed: true, ..self }
    }

    /// Hardware address.
    pub fn mac(self, mac: &str) -> Nic {
        Nic { mac: Some(mac.to_owned()), ..self }
    }

    /// Driver of this card, where it is not that of the guest's others.
    pub fn driver(self, driver: Driver) -> Nic {
        Nic { driver: Some(driver), ..self }
    }

    /// A further property of the device, such as `mrg_rxbuf=off`.
    pub fn property(mut self, property: &str) -> Nic {
        self.properties.push(property.to_owned());
        self
    }

    pub(super) fn address(&self) -> Option<&str> {
        self.mac.as_deref()
    }

    pub(super) fn wanted_driver(&self) -> Option<Driver> {
        self.driver
    }

    /// Arguments for card `index` with hardware address `mac`, for `qemu`, whose major version is `version`.
    #[track_caller]
    pub(super) fn arguments(&self, index: usize, mac: &str, qemu: &Path, version: u32) -> Vec<String> {
        let mut arguments = match &self.backend {
            Backend::User => self.own(index, mac, &format!("user,id=net{index}")),
            Backend::Datagrams(from, to) => {
                let (from, to) = (from.display(), to.display());
                let ends = format!("local.type=unix,local.path={from},remote.type=unix,remote.path={to}");
                self.own(index, mac, &format!("dgram,id=net{index},{ends}"))
            }
            Backend::VhostUser(socket) => self.flownics(index, mac, socket, qemu),
        };
        let device = arguments.last_mut().expect("the device comes last");
        // Of a property that is there twice, QEMU takes the last.
        for change in self.changes(version) {
            device.push(',');
            device.push_str(&change);
        }
        arguments
    }

    /// Arguments for a network of QEMU's own.
    fn own(&self, index: usize, mac: &str, netdev: &str) -> Vec<String> {
        let device = format!("virtio-net-pci,netdev=net{index},mac={mac}");
        ["-netdev", netdev, "-device", &device].map(str::to_owned).to_vec()
    }

    /// What flownic tells its users to give QEMU.
    #[track_caller]
    fn flownics(&self, index: usize, mac: &str, socket: &Path, qemu: &Path) -> Vec<String> {
        let (socket, queues, mtu) = (socket.display(), self.queues, self.mtu);
        let mut command = Command::new(build::flownic());
        command.args(["qemu-args", "--json", "--no-memory", "--mac", mac, "--qemu"]).arg(qemu);
        command.args(["--nic", &format!("nic{index},socket={socket},queues={queues},mtu={mtu}")]);
        if self.packed {
            command.arg("--packed");
        }
        let output = command.output().unwrap_or_else(|error| panic!("Could not run {command:?}: {error}"));
        let answer = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?} ended with {}: {answer}", output.status);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{command:?} printed no list: {error}"))
    }

    /// Properties that differ from what the arguments have already.
    fn changes(&self, version: u32) -> Vec<String> {
        let mut changes = Vec::new();
        if matches!(self.backend, Backend::VhostUser(_)) {
            if self.rings != (RING, RING) {
                changes.push(format!("rx_queue_size={},tx_queue_size={}", self.rings.0, self.rings.1));
            }
            // Emulated, it crashes when vhost-user has started and the guest unmasks a vector: one shared interrupt.
            if version < 8 {
                changes.push("vectors=0".to_owned());
            }
        }
        changes.extend(self.properties.iter().cloned());
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_come_last_so_that_they_count() {
        let nic = Nic::flownic("/run/n0", 4).property("mrg_rxbuf=off");
        assert_eq!(nic.changes(10), ["mrg_rxbuf=off"]);
        assert_eq!(nic.changes(7), ["vectors=0", "mrg_rxbuf=off"]);
        assert_eq!(nic.rings(256, 512).changes(10)[0], "rx_queue_size=256,tx_queue_size=512");
        let own = Nic::new(Backend::User).property("mq=off");
        let arguments = own.arguments(1, "52:54:00:00:00:01", Path::new("qemu"), 10);
        assert_eq!(
            arguments.join(" "),
            "-netdev user,id=net1 -device virtio-net-pci,netdev=net1,mac=52:54:00:00:00:01,mq=off"
        );
    }
}
