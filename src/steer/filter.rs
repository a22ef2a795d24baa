//! The flow-filter table: groups, classifiers and rules as virtio 1.4 has them, and ethtool's view beside them.
//!
//! # Theory of operation
//!
//! The *objects* are those of the flow filter (5.1.6.6): a GROUP has a priority, a CLASSIFIER says which bits of which
//! fields are compared, a RULE belongs to one of each and has a priority, values and an action. Ids are chosen by whoever
//! creates the objects. A group or classifier that a rule refers to is *in use* and cannot be destroyed; a rule can be at any
//! time. One rule decides: that of the highest group, in it the highest rule priority, in it the lowest id.
//!
//! *ntuple* rules (`ntuple.rs`) come from the host's control socket and live in a group of their own above all
//! others, under the precedence of ethtool: the lowest location wins.
//!
//! Both kinds are rows of the same [`TupleSpace`], share its capacity, and are found by the same lookup.

use std::collections::BTreeMap;

use thiserror::Error;

use super::key::{Mask, Match};
use super::knobs::{FilterKey, Knobs};
use super::ntuple::NtupleTable;
use super::program::FilterFaults;
use super::rules::{Object, Objects};
use super::staged::Staged;
use super::tuple::{Action, Full, Rank, RuleSlot, Started, TupleSpace};
use crate::packet::Headers;

/// Groups that may exist (ids are below it).
pub const GROUPS_LIMIT: u32 = 16;
/// Classifiers that may exist (ids are below it).
pub const CLASSIFIERS_LIMIT: u32 = 64;

/// Why the table refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FilterError {
    /// No room: for a rule, a group, a classifier, another combination of group and classifier (64), or another rule that
    /// compares equal in all but precedence (256).
    #[error("The filter table is full: {0}")]
    NoSpace(&'static str),
    /// An object with this id, or a group with this priority, is already there.
    #[error("{what} {id} exists already")]
    Exists {
        /// `group`, `group priority`, `classifier` or `rule`.
        what: &'static str,
        /// Its number.
        id: u32,
    },
    /// There is no such object.
    #[error("There is no {what} {id}")]
    NotFound {
        /// `group`, `classifier` or `rule`.
        what: &'static str,
        /// The number asked for.
        id: u32,
    },
    /// Rules refer to the object.
    #[error("{what} {id} is in use by {rules} rule(s)")]
    Busy {
        /// `group` or `classifier`.
        what: &'static str,
        /// Its id.
        id: u32,
        /// How many rules refer to it.
        rules: u32,
    },
    /// So many rules are on their way, and no more can be ([`Knobs::in_flight`]).
    #[error("{0} rule(s) are on their way; try again when one has arrived")]
    TryAgain(u32),
    /// A classifier compares what a card with this key can't.
    #[error("The card can't compare this; its filter key is {0}")]
    Key(FilterKey),
    /// A value is outside what is allowed; the text says which and what is.
    #[error("{0}")]
    Invalid(String),
}

/// A flow-filter rule (`RULE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Its group's id.
    pub group: u32,
    /// Its classifier's id.
    pub classifier: u32,
    /// Precedence within the group; higher goes first, and the lower rule id among equals.
    pub priority: u8,
    /// Values; the mask must be the classifier's.
    pub fields: Match,
    /// What becomes of a packet.
    pub action: Action,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    priority: u16,
    rules: u32,
}

#[derive(Debug, Clone, Copy)]
struct Classifier {
    mask: Mask,
    rules: u32,
}

/// The flow-filter table of one NIC. See the module's documentation.
#[derive(Clone)]
pub struct FilterTable {
    pub(super) space: TupleSpace,
    pub(super) ntuple: NtupleTable,
    queue_pairs: u16,
    groups: BTreeMap<u32, Group>,
    classifiers: BTreeMap<u32, Classifier>,
    rules: Objects,
    pub(super) staged: Staged,
    pub(super) knobs: Knobs,
    pub(super) faults: FilterFaults,
}

/// Rank of the group of ntuple rules: above the u16 of any other.
pub(super) const NTUPLE_GROUP: u32 = 1 << 16;

impl FilterTable {
    /// An empty table for `capacity` rules (2^20 at most) of a NIC with `queue_pairs` receive queues.
    pub fn new(capacity: u32, queue_pairs: u16) -> Self {
        let space = TupleSpace::new(capacity);
        let ntuple = NtupleTable::new(space.capacity());
        let rules = Objects::new(space.capacity());
        Self {
            space,
            ntuple,
            queue_pairs,
            groups: BTreeMap::new(),
            classifiers: BTreeMap::new(),
            rules,
            staged: Staged::default(),
            knobs: Knobs::default(),
            faults: FilterFaults::default(),
        }
    }

    /// Rules that fit, of both kinds together; also the bound of ids, locations and slots.
    pub fn capacity(&self) -> u32 {
        self.space.capacity()
    }

    /// Rules that are there, of both kinds.
    pub fn len(&self) -> u32 {
        self.space.len()
    }

    /// Whether there is no rule.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.space.is_empty()
    }

    /// How many hash tables a packet may have to visit: the combinations of group and mask in use.
    pub fn tuples(&self) -> usize {
        self.space.tuples()
    }

    /// The rule that decides about a packet, and its action.
    #[inline]
    pub fn lookup(&self, h: &Headers) -> Option<(RuleSlot, Action)> {
        self.space.lookup(h.words())
    }

    /// Starts a lookup, see [`TupleSpace::start`].
    #[inline]
    pub(super) fn start(&self, h: &Headers) -> Started {
        self.space.start(h.words())
    }

    /// Goes on with it, see [`TupleSpace::go_on`].
    #[inline]
    pub(super) fn go_on(&self, started: &Started) -> bool {
        self.space.go_on(started)
    }

    /// The rule that decides, and its action.
    #[inline]
    pub(super) fn finish(&self, h: &Headers, started: &Started) -> Option<(RuleSlot, Action)> {
        self.space.finish(h.words(), started)
    }

    /// Creates a group. Priorities are unique.
    pub fn create_group(&mut self, id: u32, priority: u16) -> Result<(), FilterError> {
        check_id("group", id, GROUPS_LIMIT)?;
        if self.groups.contains_key(&id) {
            return Err(FilterError::Exists { what: "group", id });
        }
        self.check_priority(id, priority)?;
        self.groups.insert(id, Group { priority, rules: 0 });
        Ok(())
    }

    /// Gives another priority to a group without rules.
    pub fn modify_group(&mut self, id: u32, priority: u16) -> Result<(), FilterError> {
        self.check_priority(id, priority)?;
        match self.groups.get_mut(&id) {
            None => Err(FilterError::NotFound { what: "group", id }),
            Some(&mut Group { rules, .. }) if rules != 0 => {
                Err(FilterError::Busy { what: "group", id, rules })
            }
            Some(group) => {
                group.priority = priority;
                Ok(())
            }
        }
    }

    /// Refuses a priority that another group has.
    fn check_priority(&self, id: u32, priority: u16) -> Result<(), FilterError> {
        if self.groups.iter().any(|(other, g)| *other != id && g.priority == priority) {
            return Err(FilterError::Exists { what: "group priority", id: priority.into() });
        }
        Ok(())
    }

    /// Destroys a group without rules.
    pub fn destroy_group(&mut self, id: u32) -> Result<(), FilterError> {
        match self.groups.get(&id) {
            None => Err(FilterError::NotFound { what: "group", id }),
            Some(&Group { rules: 0, .. }) => {
                self.groups.remove(&id);
                Ok(())
            }
            Some(&Group { rules, .. }) => Err(FilterError::Busy { what: "group", id, rules }),
        }
    }

    /// Creates a classifier.
    pub fn create_classifier(&mut self, id: u32, mask: Mask) -> Result<(), FilterError> {
        check_id("classifier", id, CLASSIFIERS_LIMIT)?;
        if self.classifiers.contains_key(&id) {
            return Err(FilterError::Exists { what: "classifier", id });
        }
        self.classifiers.insert(id, Classifier { mask, rules: 0 });
        Ok(())
    }

    /// Lets a classifier without rules compare something else.
    pub fn modify_classifier(&mut self, id: u32, mask: Mask) -> Result<(), FilterError> {
        match self.classifiers.get_mut(&id) {
            None => Err(FilterError::NotFound { what: "classifier", id }),
            Some(&mut Classifier { rules, .. }) if rules != 0 => {
                Err(FilterError::Busy { what: "classifier", id, rules })
            }
            Some(classifier) => {
                classifier.mask = mask;
                Ok(())
            }
        }
    }

    /// Destroys a classifier without rules.
    pub fn destroy_classifier(&mut self, id: u32) -> Result<(), FilterError> {
        match self.classifiers.get(&id) {
            None => Err(FilterError::NotFound { what: "classifier", id }),
            Some(&Classifier { rules: 0, .. }) => {
                self.classifiers.remove(&id);
                Ok(())
            }
            Some(&Classifier { rules, .. }) => Err(FilterError::Busy { what: "classifier", id, rules }),
        }
    }

    /// Creates a rule, in force from the next batch.
    pub fn create_rule(&mut self, id: u32, rule: Rule) -> Result<RuleSlot, FilterError> {
        check_id("rule", id, self.capacity())?;
        if self.rules.get(id).is_some() {
            return Err(FilterError::Exists { what: "rule", id });
        }
        let not_found = |what, id| FilterError::NotFound { what, id };
        let group = self.groups.get_mut(&rule.group).ok_or(not_found("group", rule.group))?;
        let classifier =
            self.classifiers.get_mut(&rule.classifier).ok_or(not_found("classifier", rule.classifier))?;
        if rule.fields.mask() != classifier.mask {
            let text = format!("Rule {id} compares other fields than its classifier {}", rule.classifier);
            return Err(FilterError::Invalid(text));
        }
        check_action(rule.action, self.queue_pairs)?;
        let group_rank = group.priority.into();
        let rank = Rank::new(group_rank, rule.priority, id);
        let slot = self.space.insert(group_rank, &classifier.mask.0, rule.fields.key(), rank, rule.action)?;
        group.rules += 1;
        classifier.rules += 1;
        self.rules.insert(id, slot, Object::of(&rule));
        Ok(slot)
    }

    /// Changes what becomes of a rule's packets. A packet meets the old action or the new one, and its hits go on.
    pub fn modify_rule(&mut self, id: u32, action: Action) -> Result<(), FilterError> {
        check_action(action, self.queue_pairs)?;
        let (slot, noted) = self.rules.action_mut(id).ok_or(FilterError::NotFound { what: "rule", id })?;
        *noted = action;
        self.space.set_action(slot, action);
        Ok(())
    }

    /// Destroys a rule.
    pub fn destroy_rule(&mut self, id: u32) -> Result<(), FilterError> {
        let (slot, rule) = self.rules.remove(id).ok_or(FilterError::NotFound { what: "rule", id })?;
        self.space.remove(slot);
        self.staged.forget(id);
        self.release(&rule);
        Ok(())
    }

    /// Puts a rule that is an object already where packets find it.
    pub(super) fn insert_rule(&mut self, id: u32, rule: &Rule) -> Result<RuleSlot, Full> {
        // A rule's group outlives it.
        let group = self.groups.get(&rule.group).map_or(0, |g| u32::from(g.priority));
        let rank = Rank::new(group, rule.priority, id);
        self.space.insert(group, &rule.fields.mask().0, rule.fields.key(), rank, rule.action)
    }

    /// The object says this action from now on; packets don't know yet.
    pub(super) fn note_action(&mut self, id: u32, action: Action) {
        if let Some((_, noted)) = self.rules.action_mut(id) {
            *noted = action;
        }
    }

    /// Takes away the object of a rule that is nowhere else any more.
    pub(super) fn forget_rule(&mut self, id: u32) {
        self.staged.forget(id);
        if let Some((_, rule)) = self.rules.remove(id) {
            self.release(&rule);
        }
    }

    /// One rule less refers to its group and classifier.
    fn release(&mut self, rule: &Object) {
        self.groups.entry(rule.group).and_modify(|g| g.rules -= 1);
        self.classifiers.entry(rule.classifier).and_modify(|c| c.rules -= 1);
    }

    /// A group's priority.
    pub fn group(&self, id: u32) -> Option<u16> {
        self.groups.get(&id).map(|g| g.priority)
    }

    /// How many rules are in a group.
    pub fn rules_in_group(&self, id: u32) -> u32 {
        self.groups.get(&id).map_or(0, |g| g.rules)
    }

    /// How many rules send their packets through an RSS context.
    pub fn rules_of_context(&self, context: u16) -> u32 {
        let uses = |rule: &Object| matches!(rule.action, Action::Context { id, .. } if id == context);
        self.rules.iter().filter(|(.., rule)| uses(rule)).count() as u32
    }

    /// What the rule in a slot does, of either kind; `None` if there never was one.
    pub(super) fn action(&self, slot: RuleSlot) -> Option<Action> {
        self.space.action(slot)
    }

    /// A classifier's mask.
    pub fn classifier(&self, id: u32) -> Option<Mask> {
        self.classifiers.get(&id).map(|c| c.mask)
    }

    /// A rule and its slot.
    pub fn rule(&self, id: u32) -> Option<(RuleSlot, Rule)> {
        self.rules.get(id).map(|(slot, object)| (slot, self.as_given(object)))
    }

    fn as_given(&self, object: &Object) -> Rule {
        let &Object { group, classifier, priority, action, key } = object;
        // A rule's classifier outlives it, and is not modified meanwhile.
        let mask = self.classifiers.get(&classifier).map_or(Mask::default(), |c| c.mask);
        Rule { group, classifier, priority, action, fields: Match::from_parts(key, mask) }
    }

    /// All rules of groups and classifiers by id; ntuple rules are listed by [`FilterTable::ntuples`].
    pub fn rules(&self) -> impl Iterator<Item = (u32, RuleSlot, Rule)> {
        self.rules.iter().map(|(id, slot, object)| (id, slot, self.as_given(object)))
    }

    /// Destroys all groups, classifiers and their rules, as a device reset does. The host's ntuple rules stay.
    pub fn reset_objects(&mut self) {
        let none = Objects::new(self.capacity());
        let rules = std::mem::replace(&mut self.rules, none);
        rules.iter().for_each(|(_, slot, _)| self.space.remove(slot));
        self.staged.clear();
        self.groups.clear();
        self.classifiers.clear();
    }

    /// Refuses a queue that the NIC will never have.
    pub(crate) fn check_action(&self, action: Action) -> Result<(), FilterError> {
        check_action(action, self.queue_pairs)
    }
}

fn check_id(what: &str, id: u32, limit: u32) -> Result<(), FilterError> {
    if id < limit {
        return Ok(());
    }
    Err(FilterError::Invalid(format!(
        "There is no {what} {id}: ids go from 0 to {}",
        limit.saturating_sub(1)
    )))
}

fn check_action(action: Action, queue_pairs: u16) -> Result<(), FilterError> {
    match action {
        Action::Queue(q) if q >= queue_pairs => {
            let last = queue_pairs.saturating_sub(1);
            Err(FilterError::Invalid(format!("There is no receive queue {q}: queues go from 0 to {last}")))
        }
        Action::Context { offset, .. } if offset >= queue_pairs => {
            let last = queue_pairs.saturating_sub(1);
            Err(FilterError::Invalid(format!("A queue offset of {offset} leads nowhere: 0 to {last} do")))
        }
        _ => Ok(()),
    }
}

impl From<Full> for FilterError {
    fn from(full: Full) -> Self {
        FilterError::NoSpace(match full {
            Full::Rules => "every slot holds a rule",
            Full::Tuples => "too many combinations of group and mask (64 at most)",
            Full::SameKey => "too many rules that compare the same (256 at most)",
        })
    }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
