//! Network interfaces of a machine, and what arrived on which of their queues.

use std::time::Duration;

use crate::machine::Machine;
use crate::procfs;
use crate::wait_for;

/// How long an interface may take to change its state.
const LIMIT: Duration = Duration::from_secs(30);

/// A network interface.
#[derive(Clone)]
pub struct Interface<'m> {
    machine: &'m Machine,
    name: String,
}

impl<'m> Interface<'m> {
    /// The interface of that name.
    pub fn named(machine: &'m Machine, name: &str) -> Interface<'m> {
        Interface { machine, name: name.to_owned() }
    }

    /// The interface with that hardware address.
    ///
    /// # Panics
    /// When none comes up within 30 seconds.
    #[track_caller]
    pub fn with_mac(machine: &'m Machine, mac: &str) -> Interface<'m> {
        let command = format!("grep -l {mac} /sys/class/net/*/address");
        let name = wait_for(&format!("{}'s interface {mac}", machine.name()), LIMIT, || {
            let path = machine.run(&command).text();
            path.split('/').nth(4).map(str::to_owned).ok_or(path)
        });
        Interface::named(machine, &name)
    }

    /// Name in the machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The machine it belongs to.
    pub fn machine(&self) -> &'m Machine {
        self.machine
    }

    /// Gives it addresses, with prefix lengths, and switches it on. IPv6 addresses are usable at once.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[track_caller]
    pub fn up(&self, addresses: &[&str]) {
        let name = &self.name;
        for address in addresses {
            let flag = if address.contains(':') { "nodad" } else { "" };
            self.machine.run_ok(&format!("ip address replace {address} dev {name} {flag}"));
        }
        self.machine.run_ok(&format!("ip link set {name} up"));
        wait_for(&format!("{}'s {name} to be up", self.machine.name()), LIMIT, || {
            let carrier = self.machine.run(&format!("cat /sys/class/net/{name}/carrier"));
            if carrier.text() == "1" { Ok(()) } else { Err(carrier.to_string()) }
        });
    }

    /// Switches it off.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[track_caller]
    pub fn down(&self) {
        self.machine.run_ok(&format!("ip link set {} down", self.name));
    }

    /// Sets the largest packet size.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[track_caller]
    pub fn mtu(&self, mtu: u32) {
        self.machine.run_ok(&format!("ip link set {} mtu {mtu}", self.name));
    }

    /// Hardware address.
    #[track_caller]
    pub fn mac(&self) -> String {
        self.machine.read(&format!("/sys/class/net/{}/address", self.name))
    }

    /// Sets the number of queue pairs in use (`ethtool -L`).
    ///
    /// # Panics
    /// When the kernel refuses.
    #[track_caller]
    pub fn queues(&self, pairs: u32) {
        // ethtool fails when nothing changes.
        let now = self.machine.run_ok(&format!("ls -d /sys/class/net/{}/queues/rx-* | wc -l", self.name));
        if now != pairs.to_string() {
            self.machine.run_ok(&format!("ethtool -L {} combined {pairs}", self.name));
        }
    }

    /// Switches offloads (`ethtool -K`), such as `tso off`.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[track_caller]
    pub fn offloads(&self, settings: &str) {
        self.machine.run_ok(&format!("ethtool -K {} {settings}", self.name));
    }

    /// Packets received so far, per queue in use, as the driver counts them.
    ///
    /// # Panics
    /// When the driver has no such counters.
    #[track_caller]
    pub fn receive_packets(&self) -> Vec<u64> {
        // Newer kernels have them in netlink only, and older ones only here.
        let command = format!("/proc/1/exe queues {0} 2>/dev/null || ethtool -S {0}", self.name);
        let text = self.machine.run_ok(&command);
        let mut queues: Vec<(u32, u64)> = text.lines().filter_map(receive_counter).collect();
        queues.sort_unstable();
        assert!(!queues.is_empty(), "No receive counters per queue in {text}");
        queues.into_iter().map(|(_, packets)| packets).collect()
    }

    /// Interrupts of the receive queues so far, over all processors.
    ///
    /// # Panics
    /// When it is no virtio interface.
    #[track_caller]
    pub fn receive_interrupts(&self) -> Vec<u64> {
        self.interrupts("input")
    }

    /// As [`Interface::receive_interrupts`], of the transmit queues.
    ///
    /// # Panics
    /// When it is no virtio interface.
    #[track_caller]
    pub fn transmit_interrupts(&self) -> Vec<u64> {
        self.interrupts("output")
    }

    #[track_caller]
    fn interrupts(&self, direction: &str) -> Vec<u64> {
        procfs::interrupts(&self.machine.read("/proc/interrupts"), &format!("{}-{direction}.", self.device()))
    }

    /// Name of its device on the virtio bus, such as `virtio2`.
    ///
    /// # Panics
    /// When it is no virtio interface.
    #[track_caller]
    pub fn device(&self) -> String {
        let path = self.machine.run_ok(&format!("readlink /sys/class/net/{}/device", self.name));
        path.rsplit('/').next().unwrap_or_default().to_owned()
    }

    /// Sends a frame made by hand `count` times.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[track_caller]
    pub fn send(&self, frame: &[u8], count: u32) {
        self.send_from(None, frame, count);
    }

    /// As [`Interface::send`], from the processor `cpu` and so out of the transmit queue that belongs to it.
    ///
    /// # Panics
    /// When the kernel refuses.
    #[track_caller]
    pub fn send_on(&self, cpu: u32, frame: &[u8], count: u32) {
        self.send_from(Some(cpu), frame, count);
    }

    #[track_caller]
    fn send_from(&self, cpu: Option<u32>, frame: &[u8], count: u32) {
        let pin = cpu.map_or_else(String::new, |cpu| format!("taskset -c {cpu} "));
        // The agent sends frames too; it is the first process of every machine.
        let command = format!("{pin}/proc/1/exe send {} {count}", self.name);
        let output = self.machine.run_with_input(&command, frame);
        assert!(output.success(), "{}: `{command}` ended with {output}", self.machine.name());
    }

    /// What each receive queue gets while `traffic` runs.
    #[track_caller]
    pub fn received_during(&self, traffic: impl FnOnce()) -> Vec<u64> {
        let before = self.receive_packets();
        traffic();
        let after = self.receive_packets();
        assert_eq!(before.len(), after.len(), "the number of queues changed under way");
        after.iter().zip(before).map(|(after, before)| after - before).collect()
    }
}

/// Queue and count of a line: `3 7` from netlink, `rx_queue_3_packets: 7` or `rx3_packets: 7` from `ethtool -S`.
fn receive_counter(line: &str) -> Option<(u32, u64)> {
    let (queue, value) = line.trim().split_once(' ')?;
    let name = queue.strip_suffix("_packets:");
    let queue =
        name.and_then(|name| name.strip_prefix("rx_queue_").or(name.strip_prefix("rx"))).unwrap_or(queue);
    Some((queue.parse().ok()?, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_two_spellings() {
        assert_eq!(receive_counter("     rx_queue_3_packets: 12"), Some((3, 12)));
        assert_eq!(receive_counter("     rx3_packets: 12"), Some((3, 12)));
        assert_eq!(receive_counter("     rx0_gso_packets: 7"), None);
        assert_eq!(receive_counter("10 7"), Some((10, 7)));
        assert_eq!(receive_counter("     rx_queue_0_xdp_packets: 7"), None);
        assert_eq!(receive_counter("     tx_queue_0_packets: 7"), None);
        assert_eq!(receive_counter("NIC statistics:"), None);
    }
}
