//! What requests do.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use super::flows::FlowRule;
use super::guest;
use super::protocol::{Code, ControlError, Request};
use super::replies::{
    CoalesceStatus, Done, FeatureList, FlowAdded, FlowList, KnobStatus, LearnStatus, NicStatus, RssChange,
    RssStatus, SteeringMode, TableChange,
};
use super::{knobs, status};
use crate::config::parse_key;
use crate::daemon::Daemon;
use crate::nic::Nic;
use crate::stats::NicStats;
use crate::steer::{DropReason, FilterError, Mode, Reason, RssConfig, RssError, Steering, SteeringChange};
use crate::trace::TraceFilter;

/// How long a trace waits for the one before it, whose client may have gone without its thread having looked yet.
const HANDOVER: Duration = Duration::from_secs(1);

/// What a request came to.
#[derive(Serialize)]
#[serde(untagged)]
pub enum Reply {
    /// To `show`.
    Show(Vec<NicStatus>),
    /// To `stats`.
    Stats(Vec<NicStats>),
    /// To `features`.
    Features(FeatureList),
    /// To `flows_list`.
    Flows(FlowList),
    /// To `flows_add`.
    FlowAdded(FlowAdded),
    /// To `rss_get`.
    Rss(RssStatus),
    /// To `coalesce_get`.
    Coalesce(CoalesceStatus),
    /// To `learn_show`.
    Learn(LearnStatus),
    /// To `knobs_get`.
    Knobs(KnobStatus),
    /// To what only changes something.
    Done(Done),
    /// To `trace`: records follow.
    Trace(Watch),
}

/// A trace that goes on until this is dropped.
pub struct Watch {
    /// The NIC that is watched.
    pub nic: Arc<Nic>,
    /// How many records are wanted.
    pub limit: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.nic.trace.stop();
    }
}

impl Serialize for Watch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Done {}.serialize(serializer)
    }
}

/// Does what is asked, or nothing of it.
///
/// # Errors
/// [`ControlError`] says what is wrong with the request and what would be right.
pub fn apply(daemon: &Daemon, request: Request) -> Result<Reply, ControlError> {
    let find = |nic: Option<String>| find(daemon, nic.as_deref());
    let some_or_all = |nic: Option<String>| match nic {
        Some(_) => find(nic).map(|n| vec![n]),
        None => Ok(daemon.nics().iter().collect()),
    };
    match request {
        Request::Show { nic } => {
            let show = |n: &Arc<Nic>| status::show(n, daemon.now());
            return Ok(Reply::Show(some_or_all(nic)?.into_iter().map(show).collect()));
        }
        Request::Stats { nic } => {
            return Ok(Reply::Stats(some_or_all(nic)?.into_iter().map(|n| n.stats()).collect()));
        }
        Request::Features { nic } => return Ok(Reply::Features(status::features(find(nic)?))),
        Request::FlowsList { nic } => return Ok(Reply::Flows(status::flows(find(nic)?))),
        Request::FlowsAdd { nic, rule } => return add_rule(find(nic)?, *rule).map(Reply::FlowAdded),
        Request::RssGet { nic } => return Ok(Reply::Rss(status::rss(find(nic)?))),
        Request::CoalesceGet { nic } => return Ok(Reply::Coalesce(guest::coalesce(find(nic)?))),
        Request::LearnShow { nic } => return Ok(Reply::Learn(status::learn(find(nic)?, daemon.now()))),
        Request::KnobsGet { nic } => {
            let nic = find(nic)?;
            nic.settle();
            return Ok(Reply::Knobs(knobs::show(nic, &nic.steering.read())));
        }
        Request::Trace { nic, filter, limit } => return watch(find(nic)?, filter, limit).map(Reply::Trace),
        // What follows has nothing to say but that it was done.
        Request::ResetStats { nic } => find(nic)?.reset_stats(),
        Request::FlowsDel { nic, loc } => {
            steering(find(nic)?).filters_mut().remove_ntuple(loc)?;
        }
        Request::FlowsClear { nic } => steering(find(nic)?).filters_mut().clear_ntuples(),
        Request::RssSet { nic, change } => set_rss(&mut steering(find(nic)?), change)?,
        Request::CoalesceSet { nic, change } => guest::set_coalesce(find(nic)?, change),
        Request::LearnSet { nic, on } => steering(find(nic)?).set_learn(on),
        Request::LearnClear { nic, queue } => clear_learned(find(nic)?, queue)?,
        Request::KnobsSet { nic, change } => {
            let nic = find(nic)?;
            knobs::change(nic, &mut steering(nic), &change)?;
        }
        Request::Inject { nic, fault: Some(fault), on } if fault == knobs::RESET => {
            knobs::reset(find(nic)?, on)?
        }
        Request::Inject { nic, fault, on } => {
            let nic = find(nic)?;
            knobs::inject(nic, &mut steering(nic), fault.as_deref(), on)?;
        }
        Request::Link { nic, up } => find(nic)?.set_link(up),
    }
    Ok(Reply::Done(Done {}))
}

/// A NIC's steering to change, with no worker looking at it meanwhile.
fn steering(nic: &Nic) -> SteeringChange<'_> {
    nic.settle();
    nic.steering.write()
}

fn add_rule(nic: &Nic, rule: FlowRule) -> Result<FlowAdded, ControlError> {
    let mut steering = steering(nic);
    let (loc, slot) = steering.filters_mut().add_ntuple(rule.into())?;
    // The slot may have been another rule's.
    nic.rule_hits.reset(slot);
    Ok(FlowAdded { loc })
}

fn find<'a>(daemon: &'a Daemon, name: Option<&str>) -> Result<&'a Arc<Nic>, ControlError> {
    let names = || daemon.nics().iter().map(|n| n.name()).collect::<Vec<_>>().join(", ");
    match (name, daemon.nics()) {
        (None, [nic]) => Ok(nic),
        (None, _) => Err(invalid(format!("There are several NICs, name one: {}", names()))),
        (Some(name), _) => daemon.nic(name).ok_or_else(|| {
            ControlError::new(Code::NotFound, format!("There is no NIC '{name}'; there are: {}", names()))
        }),
    }
}

fn invalid(message: impl Into<String>) -> ControlError {
    ControlError::new(Code::Invalid, message)
}

impl From<FilterError> for ControlError {
    fn from(e: FilterError) -> Self {
        let code = match e {
            FilterError::NoSpace(_) => Code::NoSpace,
            FilterError::Exists { .. } => Code::Exists,
            FilterError::NotFound { .. } => Code::NotFound,
            FilterError::Busy { .. } | FilterError::TryAgain(_) => Code::Busy,
            FilterError::Invalid(_) | FilterError::Key(_) => Code::Invalid,
        };
        ControlError::new(code, e.to_string())
    }
}

impl From<RssError> for ControlError {
    fn from(e: RssError) -> Self {
        invalid(e.to_string())
    }
}

fn set_rss(steering: &mut Steering, wanted: RssChange) -> Result<(), ControlError> {
    let queues = steering.queue_pairs();
    let mut config: RssConfig = steering.rss().config().clone();
    if let Some(key) = &wanted.key {
        config.key = parse_key(key).map_err(|e| invalid(format!("The key is not possible: {e}")))?;
    }
    if let Some(names) = &wanted.hash_types {
        config.hash_types = status::hash_type_bits(names).map_err(invalid)?;
    }
    if let Some(queue) = wanted.unclassified {
        config.unclassified = queue;
    }
    if let Some(change) = wanted.table {
        let len = steering.rss().table(queues).len();
        config.table = new_table(change, len, queues).map_err(invalid)?;
    }
    steering.set_rss(config)?;
    // Nothing fails from here on.
    if let Some(on) = wanted.on {
        steering.set_rss_on(on);
    }
    if let Some(mode) = wanted.mode {
        steering.set_mode(match mode {
            SteeringMode::Automatic => Mode::Automatic,
            SteeringMode::Rss => Mode::Rss,
        });
    }
    Ok(())
}

/// The table of `len` entries that a change makes; none is the one that spreads over whatever queues run.
///
/// # Errors
/// Says what is possible.
pub(crate) fn new_table(change: TableChange, len: usize, queues: u16) -> Result<Option<Vec<u16>>, String> {
    match change {
        TableChange::Default => Ok(None),
        TableChange::Entries(entries) => Ok(Some(entries)),
        TableChange::Equal(n) if (1..=queues).contains(&n) => {
            Ok(Some((0..len).map(|i| i as u16 % n).collect()))
        }
        TableChange::Equal(n) => {
            Err(format!("The table can't spread over {n} queues: 1 to {queues} are possible"))
        }
        TableChange::Weight(weights) => weighted(&weights, len, queues).map(Some),
    }
}

/// A table in which each queue has a share like its weight, as near as entries allow.
fn weighted(weights: &[u32], len: usize, queues: u16) -> Result<Vec<u16>, String> {
    let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
    if weights.len() > queues.into() || sum == 0 {
        return Err(format!(
            "Weights are for queues 0 to {}, and not all are zero",
            queues.saturating_sub(1)
        ));
    }
    let mut table = Vec::with_capacity(len);
    let mut before = 0;
    for (queue, weight) in weights.iter().enumerate() {
        before += u64::from(*weight);
        table.resize((before * len as u64 / sum) as usize, queue as u16);
    }
    Ok(table)
}

fn clear_learned(nic: &Nic, queue: Option<u16>) -> Result<(), ControlError> {
    match queue {
        None => nic.learned.clear(),
        Some(queue) => {
            check_queue(nic, queue)?;
            nic.learned.clear_queue(queue);
        }
    }
    Ok(())
}

fn check_queue(nic: &Nic, queue: u16) -> Result<(), ControlError> {
    let queues = nic.config.queue_pairs;
    if queue < queues {
        return Ok(());
    }
    Err(invalid(format!("There is no receive queue {queue}: queues go from 0 to {}", queues - 1)))
}

fn watch(nic: &Arc<Nic>, filter: TraceFilter, limit: Option<u64>) -> Result<Watch, ControlError> {
    let reasons = || Reason::ALL.iter().map(|r| r.name()).chain(DropReason::ALL.iter().map(|r| r.name()));
    if let Some(reason) = &filter.reason
        && reason != "drop"
        && !reasons().any(|r| r == reason)
    {
        let all = reasons().collect::<Vec<_>>().join(", ");
        return Err(invalid(format!("'{reason}' is no reason; these are: {all}, and drop for all drops")));
    }
    if let Some(queue) = filter.queue {
        check_queue(nic, queue)?;
    }
    let until = Instant::now() + HANDOVER;
    while !nic.trace.start(filter.clone()) {
        if Instant::now() >= until {
            let message = format!("{} is being traced by somebody else", nic.name());
            return Err(ControlError::new(Code::Busy, message));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(Watch { nic: Arc::clone(nic), limit: limit.unwrap_or(u64::MAX) })
}
