//! What is, in the words of the protocol.

use std::sync::atomic::Ordering;

use super::guest;
use super::replies::{
    FeatureList, FeatureStatus, FlowList, FlowStatus, LearnStatus, NicStatus, PairStatus, RssStatus,
    SteeringMode, SteeringStatus,
};
use crate::config::{DEVICE_FEATURES, PortConfig};
use crate::nic::Nic;
use crate::steer::{Mode, Tick, hash_type};
use crate::vhost::Endpoint;
use crate::virtio::{FEATURES, feature_names};

const HASH_TYPES: [(&str, u32); 6] = [
    ("ipv4", hash_type::IPV4),
    ("tcpv4", hash_type::TCPV4),
    ("udpv4", hash_type::UDPV4),
    ("ipv6", hash_type::IPV6),
    ("tcpv6", hash_type::TCPV6),
    ("udpv6", hash_type::UDPV6),
];

/// The bits of these hash types.
pub(crate) fn hash_type_bits(names: &[String]) -> Result<u32, String> {
    names.iter().try_fold(0, |bits, name| {
        let found = HASH_TYPES.iter().find(|(n, _)| n == name);
        let all = || HASH_TYPES.map(|(n, _)| n).join(", ");
        found
            .map(|(_, bit)| bits | bit)
            .ok_or_else(|| format!("'{name}' is no hash type; there are {}", all()))
    })
}

/// The names of these hash types.
pub(crate) fn hash_type_names(bits: u32) -> Vec<String> {
    HASH_TYPES.iter().filter(|(_, bit)| bits & bit != 0).map(|(name, _)| (*name).into()).collect()
}

/// A key, as `6d:5a:...`.
pub(crate) fn key_text(key: &[u8]) -> String {
    key.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")
}

impl From<Mode> for SteeringMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Automatic => SteeringMode::Automatic,
            Mode::Rss => SteeringMode::Rss,
        }
    }
}

/// The port as the command line has it.
fn port_name(port: &PortConfig) -> String {
    match port {
        PortConfig::Tap(name) => format!("tap:{name}"),
        PortConfig::Link(peer) => format!("link:{peer}"),
        PortConfig::Loopback => "loopback".into(),
        PortConfig::Echo => "echo".into(),
        PortConfig::Null => "null".into(),
        PortConfig::Gen(_) => "gen".into(),
    }
}

pub(super) fn show(nic: &Nic, now: Tick) -> NicStatus {
    let config = &nic.config;
    let (mode, socket) = match &config.endpoint {
        Endpoint::Listen(path) => ("server", Some(path.display().to_string())),
        Endpoint::Connect(path) => ("client", Some(path.display().to_string())),
        Endpoint::Fd(_) => ("fd", None),
    };
    let pairs = nic.workers.iter().zip(nic.rx.iter().zip(&nic.tx)).map(|(worker, (rx, tx))| PairStatus {
        worker: worker.id(),
        rx_size: rx.change(|q| q.as_ref().map(|q| q.ring.size())),
        tx_size: tx.change(|q| q.as_ref().map(|q| q.ring.size())),
    });
    let pairs = pairs.collect();
    nic.settle();
    let steering = nic.steering.read();
    let learned = nic.learned.flows_per_queue(config.queue_pairs, now);
    NicStatus {
        nic: config.name.clone(),
        mode: mode.into(),
        socket,
        port: port_name(&config.port),
        mtu: config.mtu,
        queues: config.queue_pairs,
        capture: config.capture.as_ref().map(|p| p.display().to_string()),
        in_band: config.in_band.name().into(),
        connected: nic.connected.load(Ordering::Relaxed),
        features: feature_names(negotiated(nic)),
        link_up: nic.is_link_up(),
        steering: SteeringStatus {
            mode: steering.mode().into(),
            learn: steering.learn_on(),
            learned: learned.iter().map(|n| u64::from(*n)).sum(),
            learned_capacity: nic.learned.capacity() as u64,
            rss: steering.rss_on(),
            rules: steering.filters().len(),
            rules_capacity: steering.filters().capacity(),
        },
        knobs: super::knobs::show(nic, &steering),
        pairs,
    }
}

/// Feature bits in force; none without a driver.
fn negotiated(nic: &Nic) -> u64 {
    nic.features.load(Ordering::Relaxed)
}

pub(super) fn features(nic: &Nic) -> FeatureList {
    let negotiated = negotiated(nic);
    let ours = FEATURES.iter().filter(|f| DEVICE_FEATURES >> f.bit & 1 == 1);
    let status = |f: &crate::virtio::Feature| FeatureStatus {
        name: f.name.into(),
        bit: f.bit,
        offered: nic.config.features >> f.bit & 1 == 1,
        negotiated: negotiated >> f.bit & 1 == 1,
    };
    FeatureList { nic: nic.config.name.clone(), features: ours.map(status).collect() }
}

pub(super) fn flows(nic: &Nic) -> FlowList {
    let guest = guest::flows(nic);
    let steering = nic.steering.read();
    let filters = steering.filters();
    let rules = filters
        .ntuples()
        .map(|(_, slot, spec)| FlowStatus { rule: spec.into(), hits: nic.rule_hits.get(slot) });
    FlowList { nic: nic.config.name.clone(), capacity: filters.capacity(), rules: rules.collect(), guest }
}

pub(super) fn rss(nic: &Nic) -> RssStatus {
    let steering = nic.steering.read();
    let rss = steering.rss();
    let config = rss.config();
    RssStatus {
        nic: nic.config.name.clone(),
        on: steering.rss_on(),
        mode: steering.mode().into(),
        key: key_text(config.key.bytes()),
        hash_types: hash_type_names(config.hash_types),
        default_table: config.table.is_none(),
        table: rss.table(steering.queue_pairs()),
        effective: if nic.rx.iter().any(|q| q.is_running()) { rss.effective_table() } else { Vec::new() },
        unclassified: config.unclassified,
        by_guest: steering.rss_is_guests(),
        contexts: guest::contexts(&steering),
    }
}

pub(super) fn learn(nic: &Nic, now: Tick) -> LearnStatus {
    let steering = nic.steering.read();
    let stats = nic.learned.stats();
    LearnStatus {
        nic: nic.config.name.clone(),
        on: steering.learn_on(),
        mode: steering.mode().into(),
        capacity: nic.learned.capacity() as u64,
        idle_secs: nic.config.learn.idle_secs,
        flows: nic.learned.flows_per_queue(nic.config.queue_pairs, now),
        learned: stats.learned,
        moved: stats.moved,
        evicted: stats.evicted,
        expired: stats.expired,
    }
}
