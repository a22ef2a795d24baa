//! Moderation in force, as workers see it: one word per virtqueue, read once per burst.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::notify::Limits;
use super::worker::WorkerHandle;

/// The limits of a NIC's queues.
#[derive(Default)]
pub struct LiveLimits {
    /// By virtqueue.
    words: Box<[AtomicU64]>,
    /// Microseconds that adaptive moderation has come to, by virtqueue.
    adapted: Box<[AtomicU32]>,
    /// Who may hold a signal of these queues: every worker of the process, since NICs may be linked.
    workers: OnceLock<Vec<Arc<WorkerHandle>>>,
}

impl LiveLimits {
    /// No moderation.
    pub fn new(queue_pairs: u16) -> Self {
        let queues = 0..2 * queue_pairs;
        LiveLimits {
            words: queues.clone().map(|_| AtomicU64::new(Limits::OFF.to_word())).collect(),
            adapted: queues.map(|_| AtomicU32::new(0)).collect(),
            workers: OnceLock::new(),
        }
    }

    /// Says, once, who the workers of the process are.
    pub fn set_workers(&self, workers: &[Arc<WorkerHandle>]) {
        let _ = self.workers.set(workers.to_vec());
    }

    /// The limits of a virtqueue, as a word.
    #[inline(always)]
    pub(super) fn word(&self, vq: usize) -> u64 {
        self.words[vq].load(Ordering::Relaxed)
    }

    /// The limits of a virtqueue at this moment, with the time that adaptive moderation has come to.
    pub fn get(&self, vq: usize) -> Limits {
        let limits = Limits::from_word(self.word(vq));
        if limits.adaptive {
            return Limits { usecs: self.adapted[vq].load(Ordering::Relaxed), ..limits };
        }
        limits
    }

    /// Puts new limits in force, for the signals too that are held at this moment.
    pub fn set_all(&self, of: impl Fn(usize) -> Limits) {
        let mut changed = false;
        for (vq, word) in self.words.iter().enumerate() {
            let new = of(vq).to_word();
            changed |= word.swap(new, Ordering::SeqCst) != new;
        }
        if changed {
            self.workers.get().into_iter().flatten().for_each(|w| w.limits_changed());
        }
    }

    /// Adaptive moderation of a virtqueue has come to this time.
    pub(super) fn adapted(&self, vq: usize, usecs: u32) {
        self.adapted[vq].store(usecs, Ordering::Relaxed);
    }
}
