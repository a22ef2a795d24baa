//! The data plane: what a worker does with frames, in both directions.
//!
//! [`worker::Worker::step`] is all of it: for each queue pair that the worker serves, frames that the port has are
//! received ([`rx`]), and frames that the guest has are sent ([`tx`]); commands among them are carried out.

mod adaptive;
#[cfg(test)]
mod hash_tests;
mod in_band;
pub mod limits;
pub mod notify;
#[cfg(test)]
mod notify_tests;
mod patience;
pub mod rx;
mod signal;
#[cfg(test)]
mod signal_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod timers;
pub mod tx;
pub mod worker;

use std::time::Instant;

use crate::offload::RxHash;
use crate::steer::{DropReason, MAX_QUEUE_PAIRS, Tick, Verdict, VerdictCache};
use crate::vhost::ring::{BATCH, MAX_FRAME, Pieces};
use timers::{Clock, Timers};

pub use signal::SignalState;

/// Places for queues, a power of two so that no index has to be checked.
const QUEUES: usize = (MAX_QUEUE_PAIRS as usize).next_power_of_two();

/// What a worker carries through the data plane: its identity, the time, and scratch memory.
pub struct Context {
    /// Which worker this is: its own row in tables that have one per worker.
    pub worker: usize,
    /// Coarse time, for the age of learned flows.
    pub now: Tick,
    /// Fine time, for signals that are held.
    clock: Clock,
    /// When the turn began in which frames were found, for NICs that keep how long they take.
    turn: notify::Nanos,
    /// When to come back to signals that this worker holds.
    timers: Timers,
    /// How long signals of transmit queues without moderation are held, as [`notify::Limits::to_word`] has it.
    tx_grace: u64,
    /// What was decided a moment ago.
    verdicts: VerdictCache,
    /// What was decided about frames of this burst that were not in there.
    decided: [Verdict; BATCH],
    /// The queues that get frames of this burst, in the order in which they were found.
    queues: [u8; BATCH],
    /// The frames that go to each queue; none between bursts.
    by_queue: [rx::Frames; QUEUES],
    /// The RSS hash of each frame, if the guest wants it.
    hashes: [Option<RxHash>; BATCH],
    /// Room for a frame that has to be worked on as a whole.
    frame: Box<[u8]>,
    /// Pieces of a frame for a system call.
    pub pieces: Pieces,
}

impl Context {
    /// A context for worker number `worker`.
    pub fn new(worker: usize) -> Self {
        Context {
            worker,
            now: Tick::default(),
            clock: Clock::Since(Instant::now()),
            turn: 0,
            timers: Timers::default(),
            tx_grace: 0,
            verdicts: VerdictCache::default(),
            decided: [Verdict::Drop { reason: DropReason::NoQueue, rule: None }; BATCH],
            queues: [0; BATCH],
            by_queue: [0; QUEUES],
            hashes: [None; BATCH],
            frame: vec![0; MAX_FRAME].into(),
            pieces: Pieces::default(),
        }
    }
}
