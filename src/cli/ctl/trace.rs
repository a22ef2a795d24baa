//! `flownic ctl trace`.

use std::io::{self, Write};
use std::net::IpAddr;

use clap::Args;
use flownic::control::Request;
use flownic::control::protocol::Body;
use flownic::control::replies::Done;
use flownic::trace::{TraceFilter, TraceRecord};

use super::Session;
use crate::cli::Failure;

/// What to trace.
#[derive(Debug, Args)]
pub(super) struct Trace {
    /// Which NIC.
    nic: Option<String>,
    /// Only this receive queue.
    #[arg(long)]
    queue: Option<u16>,
    /// Only this reason: filter, learned, rss, default, or drop, or a certain one for dropping.
    #[arg(long)]
    reason: Option<String>,
    /// Only from or to this IP address.
    #[arg(long)]
    ip: Option<IpAddr>,
    /// Only from or to this port.
    #[arg(long)]
    port: Option<u16>,
    /// Only this IP protocol: tcp, udp, icmp, icmp6 or a number.
    #[arg(long, value_parser = ip_protocol)]
    protocol: Option<u8>,
    /// End after so many packets.
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u64>,
}

impl Trace {
    pub(super) fn request(self) -> Result<Request, String> {
        let Trace { nic, queue, reason, ip, port, protocol, limit } = self;
        Ok(Request::Trace { nic, filter: TraceFilter { queue, reason, ip, port, protocol }, limit })
    }
}

impl Session {
    /// Shows decisions as they come, until the trace ends.
    pub(super) fn trace(&mut self, request: &Request) -> Result<(), Failure> {
        let Done {} = self.client.call(request)?;
        loop {
            let body = self.client.trace()?;
            let end = matches!(body, Body::End(_));
            let text = match &body {
                _ if self.json => serde_json::to_string(&body).expect("a record is plain data"),
                Body::Trace(record) => describe(record),
                Body::Lost(n) => format!("... {n} more, which came too fast"),
                Body::Error(e) => return Err(Failure::Refused(e.clone())),
                Body::End(_) | Body::Ok(_) => String::new(),
            };
            if !text.is_empty() {
                writeln!(io::stdout(), "{text}")?;
            }
            if end {
                return Ok(());
            }
        }
    }
}

/// The protocol number of a name, or of a number.
///
/// # Errors
/// Says what is possible.
fn ip_protocol(s: &str) -> Result<u8, String> {
    match s {
        "icmp" => Ok(1),
        "tcp" => Ok(6),
        "udp" => Ok(17),
        "icmp6" => Ok(58),
        _ => s
            .parse()
            .map_err(|_| format!("'{s}' is no IP protocol: tcp, udp, icmp, icmp6 or a number to 255 is")),
    }
}

/// A trace record in one line, for people: what it was, and where it went and why.
fn describe(r: &TraceRecord) -> String {
    use std::fmt::Write;
    let end = |ip: Option<IpAddr>, port: Option<u16>, mac: &str| match (ip, port) {
        (Some(IpAddr::V6(ip)), Some(port)) => format!("[{ip}]:{port}"),
        (Some(ip), Some(port)) => format!("{ip}:{port}"),
        (Some(ip), None) => ip.to_string(),
        (None, _) => mac.to_string(),
    };
    let kind = match (r.protocol, r.ethertype) {
        (Some(1), _) => "icmp".into(),
        (Some(6), _) => "tcp".into(),
        (Some(17), _) => "udp".into(),
        (Some(58), _) => "icmp6".into(),
        (Some(p), _) => format!("ip proto {p}"),
        (None, 0x0806) => "arp".into(),
        (None, e) => format!("ether {e:#06x}"),
    };
    let mut line = format!(
        "{} > {} {kind}",
        end(r.src_ip, r.src_port, &r.src_mac),
        end(r.dst_ip, r.dst_port, &r.dst_mac)
    );
    if let Some(vlan) = r.vlan {
        let _ = write!(line, " vlan {vlan}");
    }
    if r.fragment {
        line.push_str(" fragment");
    }
    if let Some(problem) = &r.malformed {
        let _ = write!(line, " malformed ({problem})");
    }
    let _ = write!(line, " {} bytes: ", r.len);
    let _ = match r.queue {
        Some(queue) => write!(line, "queue {queue}, by {}", r.reason),
        None => write!(line, "dropped, {}", r.reason),
    };
    if let Some(rule) = r.rule {
        let _ = write!(line, " (rule {rule})");
    }
    if let Some(rule) = r.guest_rule {
        let _ = write!(line, " (the guest's rule {rule})");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> TraceRecord {
        TraceRecord {
            time_ns: 0,
            queue: Some(3),
            reason: "filter".into(),
            rule: Some(7),
            guest_rule: None,
            len: 60,
            src_mac: "02:00:00:00:00:01".into(),
            dst_mac: "02:00:00:00:00:02".into(),
            ethertype: 0x800,
            vlan: None,
            src_ip: "10.0.0.1".parse().ok(),
            dst_ip: "10.0.0.2".parse().ok(),
            protocol: Some(6),
            src_port: Some(1000),
            dst_port: Some(80),
            fragment: false,
            malformed: None,
        }
    }

    #[test]
    fn a_packet_is_a_line() {
        assert_eq!(
            describe(&record()),
            "10.0.0.1:1000 > 10.0.0.2:80 tcp 60 bytes: queue 3, by filter (rule 7)"
        );
        let r = TraceRecord { rule: None, guest_rule: Some(4), ..record() };
        assert!(describe(&r).ends_with("queue 3, by filter (the guest's rule 4)"), "{}", describe(&r));
        let r = TraceRecord {
            queue: None,
            reason: "rule".into(),
            rule: None,
            src_ip: "fe80::1".parse().ok(),
            protocol: Some(17),
            vlan: Some(5),
            fragment: true,
            ..record()
        };
        let wanted = "[fe80::1]:1000 > 10.0.0.2:80 udp vlan 5 fragment 60 bytes: dropped, rule";
        assert_eq!(describe(&r), wanted);
        let r = TraceRecord {
            src_ip: None,
            dst_ip: None,
            protocol: None,
            ethertype: 0x88cc,
            malformed: Some("truncated".into()),
            ..record()
        };
        let wanted =
            "02:00:00:00:00:01 > 02:00:00:00:00:02 ether 0x88cc malformed (truncated) 60 bytes: queue 3";
        assert!(describe(&r).starts_with(wanted), "{}", describe(&r));
    }

    #[test]
    fn protocols_have_names_and_numbers() {
        assert_eq!((ip_protocol("tcp"), ip_protocol("132")), (Ok(6), Ok(132)));
        assert!(ip_protocol("256").unwrap_err().contains("tcp, udp, icmp, icmp6 or a number"));
    }
}
