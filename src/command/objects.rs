//! Resource objects of the flow filter: groups, classifiers and rules.
//!
//! Steering has what they mean ([`FilterTable`](crate::steer::FilterTable)), and here is what they were made of, for QUERY. Both
//! change together, or not at all.

use std::collections::BTreeMap;

use super::admin::{AdminState, Outcome, Refusal};
use super::selectors;
use crate::nic::Nic;
use crate::steer::{Action, FilterError, Rule, Steering};
use crate::virtio::admin::ObjectId;
use crate::virtio::flow::{Actions, Classifier, FlowAction, Group, Limits, ObjectType, RuleObject};
use crate::virtio::wire::Reader;

/// The objects, as they were given.
#[derive(Default)]
pub(super) struct Objects {
    groups: BTreeMap<u32, Group>,
    classifiers: BTreeMap<u32, Classifier>,
    rules: BTreeMap<u32, RuleObject>,
}

impl Objects {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.groups.len() + self.classifiers.len() + self.rules.len()
    }

    /// A rule, and its classifier.
    pub(super) fn rule(&self, id: u32) -> Option<(&RuleObject, &Classifier)> {
        let rule = self.rules.get(&id)?;
        Some((rule, self.classifiers.get(&rule.classifier_id)?))
    }

    /// Ids of rules from `first` on, ascending.
    pub(super) fn rule_ids(&self, first: u32) -> impl Iterator<Item = u32> {
        self.rules.range(first..).map(|(id, _)| *id)
    }

    fn contains(&self, kind: ObjectType, id: u32) -> bool {
        match kind {
            ObjectType::Group => self.groups.contains_key(&id),
            ObjectType::Classifier => self.classifiers.contains_key(&id),
            ObjectType::Rule => self.rules.contains_key(&id),
        }
    }
}

impl From<FilterError> for Refusal {
    fn from(e: FilterError) -> Self {
        match e {
            FilterError::NoSpace(_) => Refusal::NO_SPACE,
            // 5.1.6.6: a priority that another group has is an invalid field; an id that is taken is not.
            FilterError::Exists { what: "group priority", .. }
            | FilterError::Invalid(_)
            | FilterError::Key(_) => Refusal::FIELD,
            FilterError::TryAgain(_) => Refusal::TRY_AGAIN,
            FilterError::Exists { .. } => Refusal::EXISTS,
            FilterError::NotFound { .. } => Refusal::NO_SUCH,
            FilterError::Busy { .. } => Refusal::BUSY,
        }
    }
}

/// What the driver has agreed upon: without all of it there are no objects.
struct Agreed<'a> {
    limits: &'a Limits,
    selectors: &'a Classifier,
    actions: &'a Actions,
}

/// Reads what all commands about objects begin with, and passes over the flags, of which there are none. Objects of a kind
/// whose capabilities are not enabled are not known.
fn begin<'a, 's>(
    state: &'s mut AdminState,
    data: &'a [u8],
) -> Result<(ObjectType, u32, &'a [u8], Agreed<'s>, &'s mut Objects), Refusal> {
    let mut r = Reader::new(data);
    let object = ObjectId::read(&mut r);
    r.skip(8);
    let kind = ObjectType::from_code(object.kind).ok_or(Refusal::FIELD)?;
    let (Some(limits), Some(selectors), Some(actions)) = (&state.limits, &state.selectors, &state.actions)
    else {
        return Err(Refusal::OPCODE);
    };
    Ok((kind, object.id, r.rest(), Agreed { limits, selectors, actions }, &mut state.objects))
}

pub(super) fn create(nic: &Nic, state: &mut AdminState, data: &[u8]) -> Outcome {
    let (kind, id, data, agreed, objects) = begin(state, data)?;
    let limit = match kind {
        ObjectType::Group => agreed.limits.groups,
        ObjectType::Classifier => agreed.limits.classifiers,
        ObjectType::Rule => agreed.limits.rules,
    };
    if id >= limit {
        return Err(Refusal::FIELD);
    }
    if objects.contains(kind, id) {
        return Err(Refusal::EXISTS);
    }
    let mut steering = nic.steering.write();
    match kind {
        ObjectType::Group => {
            let group = Group::from_bytes(data);
            steering.filters_mut().create_group(id, group.priority)?;
            objects.groups.insert(id, group);
        }
        ObjectType::Classifier => {
            let classifier = agreed.classifier(data)?;
            let mask = selectors::mask_of(&classifier).mask();
            steering.filters().check_key(&mask)?;
            steering.filters_mut().create_classifier(id, mask)?;
            objects.classifiers.insert(id, classifier);
        }
        ObjectType::Rule => {
            let rule = agreed.rule(data);
            let made = agreed.check_rule(&steering, objects, &rule)?;
            // What can't be is wrong whether or not there is room for it.
            steering.filters().check_action(made.action)?;
            if steering.filters().rules_in_group(rule.group_id) >= agreed.limits.rules_per_group {
                return Err(Refusal::NO_SPACE);
            }
            let now = nic.filter_clock.now();
            let slot = steering.filters_mut().program_rule(id, made, now)?;
            nic.filter_clock.note(&steering);
            // The slot may have been another rule's.
            nic.rule_hits.reset(slot);
            objects.rules.insert(id, rule);
        }
    }
    Ok(Vec::new())
}

pub(super) fn modify(nic: &Nic, state: &mut AdminState, data: &[u8]) -> Outcome {
    let (kind, id, data, agreed, objects) = begin(state, data)?;
    if !objects.contains(kind, id) {
        return Err(Refusal::NO_SUCH);
    }
    let mut steering = nic.steering.write();
    match kind {
        ObjectType::Group => {
            let group = Group::from_bytes(data);
            steering.filters_mut().modify_group(id, group.priority)?;
            objects.groups.insert(id, group);
        }
        ObjectType::Classifier => {
            let classifier = agreed.classifier(data)?;
            let mask = selectors::mask_of(&classifier).mask();
            steering.filters().check_key(&mask)?;
            steering.filters_mut().modify_classifier(id, mask)?;
            objects.classifiers.insert(id, classifier);
        }
        ObjectType::Rule => {
            let rule = agreed.rule(data);
            let Rule { action, .. } = agreed.check_rule(&steering, objects, &rule)?;
            let was = &objects.rules[&id];
            let (vq_index, queue_offset) = (rule.vq_index, rule.queue_offset);
            if rule != (RuleObject { action: rule.action, vq_index, queue_offset, ..was.clone() }) {
                return Err(Refusal::FIELD);
            }
            steering.filters_mut().program_action(id, action, nic.filter_clock.now())?;
            nic.filter_clock.note(&steering);
            objects.rules.insert(id, rule);
        }
    }
    Ok(Vec::new())
}

pub(super) fn query(state: &mut AdminState, data: &[u8]) -> Outcome {
    let (kind, id, _, _, objects) = begin(state, data)?;
    let bytes = match kind {
        ObjectType::Group => objects.groups.get(&id).map(Group::to_bytes),
        ObjectType::Classifier => objects.classifiers.get(&id).map(Classifier::to_bytes),
        ObjectType::Rule => objects.rules.get(&id).map(RuleObject::to_bytes),
    };
    bytes.ok_or(Refusal::NO_SUCH)
}

pub(super) fn destroy(nic: &Nic, state: &mut AdminState, data: &[u8]) -> Outcome {
    let (kind, id, _, _, objects) = begin(state, data)?;
    let mut steering = nic.steering.write();
    let filters = steering.filters_mut();
    match kind {
        ObjectType::Group => {
            filters.destroy_group(id)?;
            objects.groups.remove(&id);
        }
        ObjectType::Classifier => {
            filters.destroy_classifier(id)?;
            objects.classifiers.remove(&id);
        }
        ObjectType::Rule => {
            filters.destroy_rule(id)?;
            objects.rules.remove(&id);
        }
    }
    Ok(Vec::new())
}

impl Agreed<'_> {
    fn classifier(&self, data: &[u8]) -> Result<Classifier, Refusal> {
        let classifier = Classifier::from_bytes(data);
        let most = self.limits.selectors_per_classifier;
        if selectors::is_possible(&classifier, self.selectors, most) {
            Ok(classifier)
        } else {
            Err(Refusal::FIELD)
        }
    }

    /// A rule as it was given, without what is reserved.
    fn rule(&self, data: &[u8]) -> RuleObject {
        let rule = RuleObject::from_bytes(data);
        match FlowAction::from_code(rule.action) {
            Some(FlowAction::RssContext) => rule,
            _ => RuleObject { queue_offset: 0, ..rule },
        }
    }

    /// What a rule means to steering.
    fn check_rule(&self, steering: &Steering, objects: &Objects, rule: &RuleObject) -> Result<Rule, Refusal> {
        let classifier = objects.classifiers.get(&rule.classifier_id).ok_or(Refusal::FIELD)?;
        if !objects.groups.contains_key(&rule.group_id)
            || rule.priority > self.limits.last_rule_priority
            || !self.actions.0.contains(&rule.action)
        {
            return Err(Refusal::FIELD);
        }
        Ok(Rule {
            group: rule.group_id,
            classifier: rule.classifier_id,
            priority: rule.priority,
            fields: selectors::fields_of(classifier, &rule.keys).ok_or(Refusal::FIELD)?,
            action: action(steering, rule)?,
        })
    }
}

/// What becomes of a rule's packets. Of a queue, steering checks the number.
fn action(steering: &Steering, rule: &RuleObject) -> Result<Action, Refusal> {
    match FlowAction::from_code(rule.action).ok_or(Refusal::FIELD)? {
        FlowAction::Drop => Ok(Action::Drop),
        // Receive virtqueues are the even ones.
        FlowAction::Direct if rule.vq_index.is_multiple_of(2) => Ok(Action::Queue(rule.vq_index / 2)),
        // Context 0 is the NIC's own RSS, which is always there.
        FlowAction::RssContext if rule.vq_index == 0 || steering.context(rule.vq_index).is_some() => {
            Ok(Action::Context { id: rule.vq_index, offset: rule.queue_offset })
        }
        _ => Err(Refusal::FIELD),
    }
}
