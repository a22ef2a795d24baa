//! The guest's counters at one moment.

use std::collections::BTreeMap;
use std::ops::Range;

use guest_tests::Machine;
use guest_tests::procfs::table;
use guest_tests::rig::urgent;

/// What the counters were.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Snapshot {
    /// Seconds since the guest's boot.
    pub(crate) time: f64,
    /// Bytes that each flow's server has received, by the server's port.
    pub(crate) received: BTreeMap<u16, u64>,
    /// Packets that the stack has processed, over all CPUs.
    pub(crate) processed: u64,
    /// Times that a CPU woke another one to hand packets over: `received_rps` of `/proc/net/softnet_stat`.
    pub(crate) received_rps: u64,
    /// `TcpExtTCPOFOQueue`: segments that came before those that belong in front of them.
    pub(crate) out_of_order: u64,
    /// `TcpRetransSegs`.
    pub(crate) retransmitted: u64,
    /// The driver's own counters of filters, `arfs_...` of `ethtool -S`; empty where it has none.
    pub(crate) driver: BTreeMap<String, u64>,
}

/// What `ss` understands as the flows of these server ports.
pub(crate) fn flows(ports: &Range<u16>) -> String {
    format!("state established \"sport >= :{} and sport < :{}\"", ports.start, ports.end)
}

impl Snapshot {
    /// Takes one of `machine`, with the flows of these server ports and the counters of the driver of `interface`.
    pub(crate) fn take(machine: &Machine, ports: &Range<u16>, interface: &str) -> Snapshot {
        let text = machine.run_ok(&urgent(&format!(
            "echo @time; cat /proc/uptime; echo @sockets; ss -tinH {}; echo @softnet; cat /proc/net/softnet_stat; \
             echo @tcp; cat /proc/net/netstat /proc/net/snmp; echo @driver; ethtool -S {interface} || true",
            flows(ports)
        )));
        Snapshot::parse(&text).unwrap_or_else(|what| panic!("No {what} in {text}"))
    }

    /// From the command's output; the error is what is missing.
    fn parse(text: &str) -> Result<Snapshot, &'static str> {
        let part = |name: &str| {
            let start = text.find(name).map(|start| start + name.len());
            let rest = start.and_then(|start| text.get(start..)).unwrap_or_default();
            rest.split("\n@").next().unwrap_or_default().trim_start_matches('\n')
        };
        let softnet = part("@softnet");
        Ok(Snapshot {
            time: part("@time").split_whitespace().next().and_then(|word| word.parse().ok()).ok_or("time")?,
            received: sockets(part("@sockets")),
            processed: column(softnet, 0).ok_or("packets processed")?,
            received_rps: column(softnet, 9).ok_or("received_rps")?,
            out_of_order: table(part("@tcp"), "TcpExt:", "TCPOFOQueue").ok_or("TCPOFOQueue")?,
            retransmitted: table(part("@tcp"), "Tcp:", "RetransSegs").ok_or("RetransSegs")?,
            driver: part("@driver").lines().filter_map(driver_counter).collect(),
        })
    }
}

/// Received bytes by local port, from `ss -tinH`: a line of addresses, then an indented one of figures.
fn sockets(text: &str) -> BTreeMap<u16, u64> {
    let mut found = BTreeMap::new();
    let mut port = None;
    for line in text.lines() {
        if !line.starts_with(char::is_whitespace) {
            port = local_port(line);
        } else if let Some(port) = port.take() {
            let mut words = line.split_whitespace();
            // Not there before the first byte.
            let bytes = words.find_map(|word| word.strip_prefix("bytes_received:")?.parse().ok());
            found.insert(port, bytes.unwrap_or(0));
        }
    }
    found
}

/// Local port of a line of `ss`, without a column for the state.
pub(crate) fn local_port(line: &str) -> Option<u16> {
    line.split_whitespace().nth(2)?.rsplit_once(':')?.1.parse().ok()
}

/// Sum over CPUs of a column of `/proc/net/softnet_stat`.
fn column(text: &str, number: usize) -> Option<u64> {
    let values = text.lines().map(|line| u64::from_str_radix(line.split_whitespace().nth(number)?, 16).ok());
    let values: Option<Vec<u64>> = values.collect();
    values.filter(|values| !values.is_empty()).map(|values| values.iter().sum())
}

fn driver_counter(line: &str) -> Option<(String, u64)> {
    let (name, value) = line.trim().split_once(": ")?;
    name.starts_with("arfs_").then_some(())?;
    Some((name.to_owned(), value.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "@time
71.60 112.60
@sockets
0      0      10.77.0.2:13001 10.77.0.1:13001
\t cubic wscale:10,7 rto:236 bytes_sent:454 bytes_acked:452 bytes_received:453 segs_out:488
0      1      10.77.0.2:13000 10.77.0.1:13000
\t cubic wscale:10,7 rto:236
@softnet
00000010 00000000 00000001 0 0 0 0 0 0 00000003 0 0 0
00000001 00000000 00000001 0 0 0 0 0 0 0000000a 0 0 1
@tcp
TcpExt: SyncookiesSent TCPOFOQueue TCPOFODrop
TcpExt: 1 7 2
IpExt: InNoRoutes
IpExt: 0
Ip: Forwarding
Ip: 2
Tcp: RtoAlgorithm RetransSegs
Tcp: 1 5
@driver
NIC statistics:
     rx0_packets: 5
     arfs_inserted: 64
     arfs_expired: 2
";

    #[test]
    fn all_counters_are_found() {
        let expected = Snapshot {
            time: 71.6,
            received: BTreeMap::from([(13000, 0), (13001, 453)]),
            processed: 17,
            received_rps: 13,
            out_of_order: 7,
            retransmitted: 5,
            driver: BTreeMap::from([("arfs_expired".to_owned(), 2), ("arfs_inserted".to_owned(), 64)]),
        };
        assert_eq!(Snapshot::parse(TEXT), Ok(expected));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(Snapshot::parse(&TEXT.replace("TCPOFOQueue", "Other")), Err("TCPOFOQueue"));
        assert_eq!(Snapshot::parse(&TEXT.replace("@softnet", "@soft")), Err("packets processed"));
        assert_eq!(Snapshot::parse(""), Err("time"));
        let without = TEXT.split("@driver").next().unwrap();
        assert!(Snapshot::parse(without).unwrap().driver.is_empty());
    }
}
