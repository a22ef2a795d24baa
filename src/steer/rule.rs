//! What a rule is to the engine: where it lives, what it does, and which other rules it beats.

/// Most rules that a table can be made for.
pub(crate) const MAX_CAPACITY: u32 = 1 << 20;

/// The word of a rule that a lookup reads beside its key, from the top: rank, tuple, action.
pub(super) const ACTION_BITS: u32 = 13;
pub(super) const TUPLE_BITS: u32 = 6;
pub(super) const RANK_SHIFT: u32 = ACTION_BITS + TUPLE_BITS;

/// What a matching rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The packet is dropped.
    Drop,
    /// The packet goes to this receive queue (counted from 0, not a virtqueue index).
    Queue(u16),
    /// The packet goes where an RSS context says.
    Context {
        /// Which context.
        id: u16,
        /// Added to the queue that the context names.
        offset: u16,
    },
}

impl Action {
    /// As it stands in a rule's line; 0 if it does not fit there.
    pub(super) fn code(self) -> u64 {
        const LAST: u16 = (1 << ACTION_BITS) - 3;
        match self {
            Action::Drop => 1,
            Action::Queue(queue @ 0..=LAST) => u64::from(queue) + 2,
            Action::Queue(_) | Action::Context { .. } => 0,
        }
    }

    /// The action whose code is in the low bits of `word`, if it fitted there.
    #[inline(always)]
    pub(super) fn from_code(word: u64) -> Option<Self> {
        match (word & ((1 << ACTION_BITS) - 1)) as u16 {
            0 => None,
            1 => Some(Action::Drop),
            queue => Some(Action::Queue(queue - 2)),
        }
    }
}

/// Where a rule lives: dense, below the table's capacity, for as long as the rule exists. Workers keep hit counters in arrays
/// of their own by slot; since a new rule may get the slot of a deleted one, whoever shows hits notes the counter's
/// value when the rule is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleSlot(pub u32);

/// Position of a rule among all rules; higher wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(pub(super) u64);

impl Rank {
    /// `group` < 2^17, `id` < [`MAX_CAPACITY`].
    pub(crate) fn new(group: u32, priority: u8, id: u32) -> Self {
        debug_assert!(group < 1 << 17 && id < MAX_CAPACITY);
        let id = !id & (MAX_CAPACITY - 1);
        Self((u64::from(group) << 28 | u64::from(priority) << 20 | u64::from(id)) << RANK_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_that_have_a_code_come_back_and_others_have_none() {
        let last = (1 << ACTION_BITS) - 3;
        for action in [Action::Drop, Action::Queue(0), Action::Queue(126), Action::Queue(last)] {
            assert_eq!(Action::from_code(action.code() | 5 << ACTION_BITS), Some(action));
        }
        for action in [Action::Queue(last + 1), Action::Queue(u16::MAX), Action::Context { id: 1, offset: 2 }]
        {
            assert_eq!(Action::from_code(action.code()), None);
        }
    }

    #[test]
    fn group_then_priority_then_the_lower_id_ranks_higher() {
        let ranks = [(1, 0, 5), (0, 9, 0), (0, 3, 0), (0, 3, 1), (0, 3, MAX_CAPACITY - 1), (0, 0, 7)];
        let ranks = ranks.map(|(group, priority, id)| Rank::new(group, priority, id));
        assert!(ranks.windows(2).all(|pair| pair[0] > pair[1]), "{ranks:?}");
    }
}
