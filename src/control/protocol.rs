//! Requests and replies as they are on the socket.
//!
//! A line is `{"version":1,"id":7,"request":{"command":"show"}}`; its answer has the same id and either `ok`, a reply, or
//! `error`. Names are in snake case. A field that nobody knows is an error, so that a misspelt one is not silently
//! ignored.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use super::flows::FlowRule;
use super::replies::{CoalesceChange, KnobChange, RssChange};
use crate::trace::{TraceFilter, TraceRecord};

/// The protocol's version. It grows when something changes its meaning, not when something is added.
pub const VERSION: u64 = 1;

/// What may be asked. `nic` may be left out if there is only one; `show` and `stats` then speak of all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How NICs are configured, and what they are doing: a list of [`NicStatus`](super::replies::NicStatus).
    Show {
        /// This NIC only.
        nic: Option<String>,
    },
    /// Counters: a list of [`NicStats`](crate::stats::NicStats).
    Stats {
        /// This NIC only.
        nic: Option<String>,
    },
    /// Sets all counters to zero, those of rules included.
    ResetStats {
        /// Which NIC.
        nic: Option<String>,
    },
    /// What of each feature is: [`FeatureList`](super::replies::FeatureList).
    Features {
        /// Which NIC.
        nic: Option<String>,
    },
    /// The filter rules: [`FlowList`](super::replies::FlowList).
    FlowsList {
        /// Which NIC.
        nic: Option<String>,
    },
    /// Adds a filter rule, or replaces the one at its location: [`FlowAdded`](super::replies::FlowAdded).
    FlowsAdd {
        /// Which NIC.
        nic: Option<String>,
        /// The rule.
        rule: Box<FlowRule>,
    },
    /// Deletes a filter rule.
    FlowsDel {
        /// Which NIC.
        nic: Option<String>,
        /// Its location.
        loc: u32,
    },
    /// Deletes all filter rules.
    FlowsClear {
        /// Which NIC.
        nic: Option<String>,
    },
    /// Receive-side scaling: [`RssStatus`](super::replies::RssStatus).
    RssGet {
        /// Which NIC.
        nic: Option<String>,
    },
    /// Changes what is given, all of it or nothing.
    RssSet {
        /// Which NIC.
        nic: Option<String>,
        /// The rest.
        #[serde(default)]
        change: RssChange,
    },
    /// Interrupt moderation: [`CoalesceStatus`](super::replies::CoalesceStatus).
    CoalesceGet {
        /// Which NIC.
        nic: Option<String>,
    },
    /// Changes what is given, for all queues.
    CoalesceSet {
        /// Which NIC.
        nic: Option<String>,
        /// The rest.
        #[serde(default)]
        change: CoalesceChange,
    },
    /// Learned flows: [`LearnStatus`](super::replies::LearnStatus).
    LearnShow {
        /// Which NIC.
        nic: Option<String>,
    },
    /// Switches learned flows on or off.
    LearnSet {
        /// Which NIC.
        nic: Option<String>,
        /// Whether they are to be on.
        on: bool,
    },
    /// Forgets learned flows.
    LearnClear {
        /// Which NIC.
        nic: Option<String>,
        /// Those of this receive queue only.
        queue: Option<u16>,
    },
    /// How rules of the guest are taken: [`KnobStatus`](super::replies::KnobStatus).
    KnobsGet {
        /// Which NIC.
        nic: Option<String>,
    },
    /// Changes what is given, all of it or nothing.
    KnobsSet {
        /// Which NIC.
        nic: Option<String>,
        /// The rest.
        #[serde(default)]
        change: KnobChange,
    },
    /// Injects a fault, or takes it away.
    Inject {
        /// Which NIC.
        nic: Option<String>,
        /// Which fault: [`FAULTS`](super::knobs::FAULTS); all of them if none is named.
        fault: Option<String>,
        /// Whether it is to be there.
        on: bool,
    },
    /// Streams steering decisions until there are enough, or the client sends or closes.
    Trace {
        /// Which NIC.
        nic: Option<String>,
        /// Which decisions.
        #[serde(default)]
        filter: TraceFilter,
        /// How many; all there are if not given.
        limit: Option<u64>,
    },
    /// Sets the link up or down.
    Link {
        /// Which NIC.
        nic: Option<String>,
        /// Whether it is to be up.
        up: bool,
    },
}

/// Kinds of failure, named like the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Code {
    /// No JSON, no request, another version.
    #[serde(rename = "EPROTO")]
    Protocol,
    /// The line is too long.
    #[serde(rename = "EMSGSIZE")]
    TooLong,
    /// The line was not finished in time.
    #[serde(rename = "ETIMEDOUT")]
    TimedOut,
    /// There are too many clients.
    #[serde(rename = "EAGAIN")]
    TooMany,
    /// A value that is not possible.
    #[serde(rename = "EINVAL")]
    Invalid,
    /// No such NIC or rule.
    #[serde(rename = "ENOENT")]
    NotFound,
    /// It exists already.
    #[serde(rename = "EEXIST")]
    Exists,
    /// The table is full.
    #[serde(rename = "ENOSPC")]
    NoSpace,
    /// Somebody else is using it.
    #[serde(rename = "EBUSY")]
    Busy,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct ControlError {
    /// For programs.
    pub code: Code,
    /// For people.
    pub message: String,
}

impl ControlError {
    /// An error of this kind.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        ControlError { code, message: message.into() }
    }
}

/// A line to the server, in parts that are checked one after the other.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCall {
    version: Value,
    #[serde(default)]
    id: Value,
    request: Value,
}

/// Reads a line. The id is there, as far as it could be found, also if the request makes no sense.
pub fn parse_call(line: &[u8]) -> (Value, Result<Request, ControlError>) {
    let protocol = |message: String| Err(ControlError::new(Code::Protocol, message));
    let raw: RawCall = match serde_json::from_slice(line) {
        Ok(raw) => raw,
        Err(e) => return (Value::Null, protocol(format!("The line is no call: {e}"))),
    };
    if raw.version != VERSION {
        return (raw.id, protocol(format!("Version {} is not known here, {VERSION} is", raw.version)));
    }
    let request = serde_json::from_value(raw.request)
        .map_err(|e| ControlError::new(Code::Invalid, format!("The request makes no sense: {e}")));
    (raw.id, request)
}

/// A line to the client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer<T> {
    /// [`VERSION`].
    pub version: u64,
    /// The call's id.
    #[serde(default)]
    pub id: Value,
    /// The rest.
    #[serde(flatten)]
    pub body: Body<T>,
}

/// What a line to the client says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body<T> {
    /// It was done; the reply.
    Ok(T),
    /// It was not.
    Error(ControlError),
    /// A steering decision.
    Trace(TraceRecord),
    /// So many decisions did not fit since the last line.
    Lost(u64),
    /// The trace is over.
    End(TraceEnd),
}

/// How a trace ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceEnd {
    /// Decisions that were sent.
    pub records: u64,
    /// Decisions that did not fit.
    pub lost: u64,
}
