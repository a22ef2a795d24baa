//! What files of `/proc` say.

/// A value of `/proc/net/snmp` and its like: a line of names, then one of values, both with the same prefix.
pub fn table(text: &str, prefix: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|word| word == name)?;
    values.split_whitespace().nth(place)?.parse().ok()
}

/// Sums of the lines of `/proc/interrupts` whose action is `prefix` and a queue number, by queue.
pub fn interrupts(text: &str, prefix: &str) -> Vec<u64> {
    let mut queues: Vec<(u32, u64)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(queue) = line.split_whitespace().last().and_then(|action| action.strip_prefix(prefix))
        else {
            continue;
        };
        let Ok(queue) = queue.parse() else { continue };
        let counts = words.by_ref().skip(1).map_while(|word| word.parse::<u64>().ok());
        queues.push((queue, counts.sum()));
    }
    queues.sort_unstable();
    queues.into_iter().map(|(_, count)| count).collect()
}

/// Packets that an interface has received, of `/proc/net/dev`.
pub fn received(text: &str, interface: &str) -> Option<u64> {
    let start = format!("{interface}:");
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&*start))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_names() {
        let text = "TcpExt: SyncookiesSent TCPOFOQueue\nTcpExt: 1 7\nIpExt: InNoRoutes\nIpExt: 3\n";
        assert_eq!(table(text, "TcpExt:", "TCPOFOQueue"), Some(7));
        assert_eq!(table(text, "IpExt:", "InNoRoutes"), Some(3));
        assert_eq!(table(text, "TcpExt:", "InNoRoutes"), None);
    }

    #[test]
    fn packets_are_those_of_the_interface() {
        let text = "Inter-|   Receive\n face |bytes    packets\n    lo: 10 2 0\n  eth0:  1000   7 0 0\n";
        assert_eq!((received(text, "eth0"), received(text, "eth1")), (Some(7), None));
    }

    #[test]
    fn interrupts_are_summed_over_processors() {
        let text = "           CPU0       CPU1\n  \
             26:   0   0   PCI-MSI 49152-edge      virtio2-config\n  \
             28:   3   4   PCI-MSI 49154-edge      virtio2-input.1\n  \
             27:   10  20  PCI-MSI 49153-edge      virtio2-input.0\n  \
             30:   9   9   PCI-MSI 49153-edge      virtio1-input.0\n";
        assert_eq!(interrupts(text, "virtio2-input."), [30, 7]);
    }
}
