//! The rules of groups and classifiers as objects: by id, as they were given.
//!
//! What is kept of a rule stands by its slot; a table from ids to slots leads there. Both are as long as the filter table's
//! capacity, and untouched pages of them cost nothing; so a rule comes and goes in the same few steps however many there are.

use super::filter::Rule;
use super::key::Key;
use super::tuple::{Action, RuleSlot};

/// A rule without what its classifier says.
#[derive(Clone, Copy)]
pub(super) struct Object {
    pub(super) group: u32,
    pub(super) classifier: u32,
    pub(super) priority: u8,
    pub(super) action: Action,
    /// Masked values.
    pub(super) key: Key,
}

impl Object {
    pub(super) fn of(rule: &Rule) -> Self {
        let &Rule { group, classifier, priority, action, ref fields } = rule;
        Object { group, classifier, priority, action, key: *fields.key() }
    }
}

/// See the module's documentation.
#[derive(Clone)]
pub(super) struct Objects {
    /// Slot + 1 by id, 0 for none.
    slots: Box<[u32]>,
    /// By slot; what is at a slot that no id has means nothing.
    objects: Vec<Object>,
    count: u32,
}

impl Objects {
    /// For ids and slots below `capacity`.
    pub(super) fn new(capacity: u32) -> Self {
        let capacity = capacity as usize;
        Objects { slots: vec![0; capacity].into(), objects: Vec::with_capacity(capacity), count: 0 }
    }

    pub(super) fn get(&self, id: u32) -> Option<(RuleSlot, &Object)> {
        let slot = self.slots.get(id as usize)?.checked_sub(1)?;
        Some((RuleSlot(slot), &self.objects[slot as usize]))
    }

    pub(super) fn action_mut(&mut self, id: u32) -> Option<(RuleSlot, &mut Action)> {
        let slot = self.slots.get(id as usize)?.checked_sub(1)?;
        Some((RuleSlot(slot), &mut self.objects[slot as usize].action))
    }

    /// Adds one whose id is free.
    pub(super) fn insert(&mut self, id: u32, RuleSlot(slot): RuleSlot, object: Object) {
        if self.objects.len() <= slot as usize {
            // Slots between are others', which need no object.
            self.objects.resize(slot as usize + 1, object);
        }
        self.objects[slot as usize] = object;
        self.slots[id as usize] = slot + 1;
        self.count += 1;
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<(RuleSlot, Object)> {
        let slot = std::mem::take(self.slots.get_mut(id as usize)?).checked_sub(1)?;
        self.count -= 1;
        Some((RuleSlot(slot), self.objects[slot as usize]))
    }

    /// In the order of ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, RuleSlot, &Object)> {
        let used = (0..).zip(&self.slots).filter(|(_, slot)| **slot != 0);
        used.take(self.count as usize)
            .map(|(id, slot)| (id, RuleSlot(slot - 1), &self.objects[*slot as usize - 1]))
    }
}
