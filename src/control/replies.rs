//! What replies say, and the parts of requests that look like them.

use serde::{Deserialize, Serialize};

use super::flows::{Field, FlowRule};

/// One NIC, as `show` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicStatus {
    /// Its name.
    pub nic: String,
    /// `server`, `client` or `fd`.
    pub mode: String,
    /// Its socket, unless it was given as a descriptor.
    pub socket: Option<String>,
    /// What its wire is.
    pub port: String,
    /// MTU of the wire.
    pub mtu: u16,
    /// Queue pairs.
    pub queues: u16,
    /// Where its frames are recorded.
    pub capture: Option<String>,
    /// Which commands of the guest are taken: `off`, `user`, `kernel` or `all`.
    pub in_band: String,
    /// Whether a front end is connected.
    pub connected: bool,
    /// Features that its driver has negotiated; none without a driver.
    pub features: Vec<String>,
    /// Whether frames pass.
    pub link_up: bool,
    /// Steering.
    pub steering: SteeringStatus,
    /// How rules of the guest are taken.
    pub knobs: KnobStatus,
    /// The queue pairs.
    pub pairs: Vec<PairStatus>,
}

/// How a NIC steers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeringStatus {
    /// Whether learned flows have a say.
    pub mode: SteeringMode,
    /// Whether flows are learned (as far as the mode lets them).
    pub learn: bool,
    /// Learned flows now.
    pub learned: u64,
    /// Learned flows that fit.
    pub learned_capacity: u64,
    /// Whether the RSS hash is used.
    pub rss: bool,
    /// Filter rules now.
    pub rules: u32,
    /// Filter rules that fit.
    pub rules_capacity: u32,
}

/// Whether learned flows have a say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SteeringMode {
    /// Learned flows, then the RSS hash.
    Automatic,
    /// The RSS hash alone.
    Rss,
}

/// A queue pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairStatus {
    /// Number of the worker that serves it.
    pub worker: usize,
    /// Entries of its receive ring, if that runs.
    pub rx_size: Option<u16>,
    /// Entries of its transmit ring, if that runs.
    pub tx_size: Option<u16>,
}

/// The features of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureList {
    /// The NIC's name.
    pub nic: String,
    /// Every feature of the device.
    pub features: Vec<FeatureStatus>,
}

/// A feature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureStatus {
    /// Its name.
    pub name: String,
    /// Its bit.
    pub bit: u8,
    /// Whether the NIC offers it.
    pub offered: bool,
    /// Whether the driver has taken it.
    pub negotiated: bool,
}

/// The filter rules of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowList {
    /// The NIC's name.
    pub nic: String,
    /// Rules that fit.
    pub capacity: u32,
    /// The host's rules, in order of precedence.
    pub rules: Vec<FlowStatus>,
    /// The guest's rules, which come after all of the host's, in order of precedence.
    #[serde(default)]
    pub guest: Vec<GuestFlow>,
}

/// A filter rule that the guest has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFlow {
    /// Its id.
    pub id: u32,
    /// Id of its group.
    pub group: u32,
    /// Priority of the group; the highest goes first.
    pub group_priority: u16,
    /// Id of its classifier.
    pub classifier: u32,
    /// Its priority in the group; the highest goes first, and the lowest id among equals.
    pub priority: u8,
    /// What it compares, and its action: receive queue, -1 to drop, or, with a context, what is added to the context's queue. It
    /// has no location.
    pub rule: FlowRule,
    /// TCP flags that it compares.
    pub tcp_flags: Option<Field<u8>>,
    /// The RSS context that it sends frames through.
    pub context: Option<u16>,
    /// Frames that it decided about.
    pub hits: u64,
}

/// A filter rule that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// The rule, with its location.
    pub rule: FlowRule,
    /// Frames that it decided about.
    pub hits: u64,
}

/// A filter rule has been added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowAdded {
    /// Its location.
    pub loc: u32,
}

/// Receive-side scaling of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RssStatus {
    /// The NIC's name.
    pub nic: String,
    /// Whether the hash is used.
    pub on: bool,
    /// Whether learned flows go before it.
    pub mode: SteeringMode,
    /// Key, as `6d:5a:...`.
    pub key: String,
    /// Names of the hash types that are on.
    pub hash_types: Vec<String>,
    /// Whether the table is the one that spreads evenly.
    pub default_table: bool,
    /// Receive queues by hash, as they were set.
    pub table: Vec<u16>,
    /// The same with running queues only: what is in force. Empty while none runs.
    pub effective: Vec<u16>,
    /// Receive queue of packets without a hash.
    pub unclassified: u16,
    /// Whether the guest has set this, and not the host.
    #[serde(default)]
    pub by_guest: bool,
    /// RSS contexts of the guest.
    #[serde(default)]
    pub contexts: Vec<ContextStatus>,
}

/// An RSS context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextStatus {
    /// Its id.
    pub id: u16,
    /// Key, as `6d:5a:...`.
    pub key: String,
    /// Names of the hash types that are on.
    pub hash_types: Vec<String>,
    /// Receive queues by hash.
    pub table: Vec<u16>,
    /// Receive queue of packets without a hash.
    pub unclassified: u16,
    /// Rules that send frames through it.
    pub rules: u32,
}

/// Interrupt moderation of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoalesceStatus {
    /// The NIC's name.
    pub nic: String,
    /// How 0 is read: `nic` or `strict`.
    pub rule: String,
    /// As it was set last for all receive queues.
    pub rx: CoalesceValues,
    /// As it was set last for all transmit queues.
    pub tx: CoalesceValues,
    /// By queue pair, as it is.
    pub queues: Vec<QueueCoalesce>,
}

/// When an interrupt is sent at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoalesceValues {
    /// After this many microseconds.
    pub usecs: u32,
    /// After this many frames.
    pub frames: u32,
    /// The device finds the time itself.
    pub adaptive: bool,
}

/// Interrupt moderation of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCoalesce {
    /// Of its receive queue.
    pub rx: CoalesceValues,
    /// Of its transmit queue.
    pub tx: CoalesceValues,
}

/// A change of interrupt moderation, for all queues; what is not given stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CoalesceChange {
    /// Microseconds of receive queues.
    pub rx_usecs: Option<u32>,
    /// Frames of receive queues.
    pub rx_frames: Option<u32>,
    /// Microseconds of transmit queues.
    pub tx_usecs: Option<u32>,
    /// Frames of transmit queues.
    pub tx_frames: Option<u32>,
    /// Whether the device finds the time of receive queues itself.
    pub adaptive_rx: Option<bool>,
}

/// A change of receive-side scaling; what is not given stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RssChange {
    /// Whether the hash is to be used.
    pub on: Option<bool>,
    /// Whether learned flows are to go before it.
    pub mode: Option<SteeringMode>,
    /// Key, as `6d:5a:...`.
    pub key: Option<String>,
    /// Names of the hash types that are to be on, and no others.
    pub hash_types: Option<Vec<String>>,
    /// The table.
    pub table: Option<TableChange>,
    /// Receive queue of packets without a hash.
    pub unclassified: Option<u16>,
}

/// A new indirection table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableChange {
    /// Evenly over whatever queues run.
    Default,
    /// Evenly over the first so many queues.
    Equal(u16),
    /// By weight, one for each queue from the first.
    Weight(Vec<u32>),
    /// Entry by entry.
    Entries(Vec<u16>),
}

/// Learned flows of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnStatus {
    /// The NIC's name.
    pub nic: String,
    /// Whether flows are learned.
    pub on: bool,
    /// The mode; nothing is learned in `rss`.
    pub mode: SteeringMode,
    /// Flows that fit.
    pub capacity: u64,
    /// Seconds after which an unused flow is forgotten.
    pub idle_secs: u16,
    /// Flows by receive queue.
    pub flows: Vec<u32>,
    /// Flows that were learned so far.
    pub learned: u64,
    /// Times that a flow went to another queue.
    pub moved: u64,
    /// Flows that had to give way to others.
    pub evicted: u64,
    /// Flows that were too old.
    pub expired: u64,
}

/// How a NIC's filter table takes rules of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnobStatus {
    /// The NIC's name.
    pub nic: String,
    /// The card that it is like; knobs may have been turned since.
    pub profile: Option<String>,
    /// Rules that fit, those of the host included.
    pub filters: u32,
    /// Nanoseconds from accepting a rule to its being in force.
    pub delay_ns: u64,
    /// Rules that may be on their way; any number if there is none.
    pub in_flight: Option<u32>,
    /// What changing a rule does: `atomic`, `delete-add` or `none`.
    pub replace: String,
    /// What a rule can compare: `any`, `5-tuple`, `4-tuple` or `ipv4`.
    pub key: String,
    /// Rules that are on their way now.
    pub on_the_way: u32,
    /// Faults that are injected: `table-full`, `busy`, `lost`, `ctrl-hang`.
    pub faults: Vec<String>,
}

/// A change of that; what is not given stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KnobChange {
    /// The knobs of this profile, and then what else is given.
    pub profile: Option<String>,
    /// Delay, as `5ms`.
    pub delay: Option<String>,
    /// A number, or `any`.
    pub in_flight: Option<String>,
    /// `atomic`, `delete-add` or `none`.
    pub replace: Option<String>,
    /// `any`, `5-tuple`, `4-tuple` or `ipv4`.
    pub key: Option<String>,
}

/// Nothing to say but that it was done: `{}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}
