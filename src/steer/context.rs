//! RSS contexts (5.1.6.5.8): more RSS configurations beside the one of the NIC, each with a key, hash types and a table of its
//! own, for packets that a rule sends through one of them.
//!
//! A context is *there* or not; it is changed as a whole. One that a rule refers to is *in use* and cannot be deleted.
//!
//! The queue of a packet is the entry of the context's table for its hash, or the context's queue for packets without a hash,
//! plus the rule's offset. If that queue is not enabled, the packet goes on as if the rule had not matched: unlike that
//! of the NIC, the table of a context is never spread over other queues, whose owners did not ask for these packets.

use thiserror::Error;

use super::rss::{HashReport, RssConfig, RssError, Toeplitz};
use crate::packet::Headers;

/// Contexts that there may be; their ids go from 1 to this.
pub const CONTEXTS_MAX: u16 = 32;

/// Why a context is not made, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ContextError {
    /// Its id is outside of what there may be.
    #[error("There is no RSS context {0}: they go from 1 to {CONTEXTS_MAX}")]
    Id(u16),
    /// It is there already.
    #[error("RSS context {0} exists already")]
    Exists(u16),
    /// It is not there.
    #[error("There is no RSS context {0}")]
    NotFound(u16),
    /// Rules refer to it.
    #[error("RSS context {id} is in use by {rules} rule(s)")]
    Busy {
        /// Its id.
        id: u16,
        /// How many rules refer to it.
        rules: u32,
    },
    /// It has no table.
    #[error("An RSS context needs an indirection table")]
    NoTable,
    /// Its configuration makes no sense.
    #[error("{0}")]
    Config(#[from] RssError),
}

#[derive(Clone)]
struct Context {
    config: RssConfig,
    toeplitz: Toeplitz,
    table: Box<[u16]>,
}

/// The contexts of one NIC. See the module's documentation.
#[derive(Clone, Default)]
pub(super) struct Contexts {
    /// By id - 1; empty as long as there was none.
    slots: Vec<Option<Context>>,
}

impl Contexts {
    /// The queue of a packet, without regard to what is enabled; `None` if there is no such context.
    #[inline(never)]
    pub(super) fn queue(&self, id: u16, offset: u16, h: &Headers) -> Option<u16> {
        let context = self.slots.get(usize::from(id).wrapping_sub(1))?.as_ref()?;
        let queue = match context.toeplitz.hash(context.config.hash_types, h) {
            Some((hash, _)) => context.table[hash as usize & (context.table.len() - 1)],
            None => context.config.unclassified,
        };
        queue.checked_add(offset)
    }

    /// The hash of a packet and what it covers, as a context computes it.
    pub(super) fn hash(&self, id: u16, h: &Headers) -> Option<(u32, HashReport)> {
        let context = self.slots.get(usize::from(id).wrapping_sub(1))?.as_ref()?;
        context.toeplitz.hash(context.config.hash_types, h)
    }

    /// The configuration of a context.
    pub(super) fn get(&self, id: u16) -> Option<&RssConfig> {
        Some(&self.slots.get(usize::from(id).checked_sub(1)?)?.as_ref()?.config)
    }

    /// All contexts, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &RssConfig)> {
        (1..).zip(&self.slots).filter_map(|(id, slot)| Some((id, &slot.as_ref()?.config)))
    }

    /// Puts a checked configuration into a place. A key that `known` or another context has is not prepared again.
    pub(super) fn put(&mut self, id: u16, config: RssConfig, known: (&RssConfig, &Toeplitz)) {
        debug_assert!((1..=CONTEXTS_MAX).contains(&id));
        let others = self.slots.iter().flatten().map(|c| (&c.config, &c.toeplitz));
        let toeplitz = match others.chain([known]).find(|(other, _)| other.key == config.key) {
            Some((_, toeplitz)) => toeplitz.clone(),
            None => Toeplitz::new(&config.key),
        };
        let table = config.table.clone().unwrap_or_else(|| vec![config.unclassified]).into();
        self.slots.resize(usize::from(CONTEXTS_MAX), None);
        self.slots[usize::from(id) - 1] = Some(Context { config, toeplitz, table });
    }

    /// Empties a place.
    pub(super) fn remove(&mut self, id: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(id).wrapping_sub(1)) {
            *slot = None;
        }
    }

    /// Empties all places.
    pub(super) fn clear(&mut self) {
        self.slots = Vec::new();
    }
}
