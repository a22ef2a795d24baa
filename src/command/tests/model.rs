//! The object table against a model of it: maps, and the rules of the specification written once more, plainly.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::virtio::flow::Limits;

const GROUPS: u32 = 3;
const CLASSIFIERS: u32 = 2;
const RULES: u32 = 6;
const PER_GROUP: usize = 3;
const PORTS: u16 = 4;

#[derive(Debug, Clone)]
enum Step {
    Group { modify: bool, id: u32, priority: u16 },
    Classifier { modify: bool, id: u32, both: bool },
    Rule { modify: bool, id: u32, rule: Made },
    Query(ObjectId),
    Destroy(ObjectId),
    Look { port: u16 },
    Reset,
}

/// A rule: for one port, or any if its classifier compares none.
#[derive(Debug, Clone, PartialEq)]
struct Made {
    group: u32,
    classifier: u32,
    priority: u8,
    port: u16,
    /// `None` drops.
    queue: Option<u16>,
}

impl Made {
    fn object(&self) -> RuleObject {
        let rule = to_queue(self.port, self.queue.unwrap_or(0));
        let action = if self.queue.is_some() { rule.action } else { FlowAction::Drop.code() };
        let (group_id, classifier_id, priority) = (self.group, self.classifier, self.priority);
        RuleObject { group_id, classifier_id, priority, action, ..rule }
    }
}

/// A classifier that compares the destination port, or the source port, too.
fn ports(both: bool) -> Classifier {
    let mut classifier = dst_port();
    if both {
        classifier.selectors[2].mask[..2].fill(0xff);
    }
    classifier
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let object = || {
        prop_oneof![
            (0..GROUPS + 1).prop_map(group),
            (0..CLASSIFIERS + 1).prop_map(classifier),
            (0..RULES + 1).prop_map(rule)
        ]
    };
    let made = (0..GROUPS, 0..CLASSIFIERS, 0..3u8, 0..PORTS, prop::option::of(0..5u16)).prop_map(
        |(group, classifier, priority, port, queue)| Made { group, classifier, priority, port, queue },
    );
    let step = prop_oneof![
        2 => (any::<bool>(), 0..GROUPS + 1, 0..4u16)
            .prop_map(|(modify, id, priority)| Step::Group { modify, id, priority }),
        2 => (any::<bool>(), 0..CLASSIFIERS + 1, any::<bool>())
            .prop_map(|(modify, id, both)| Step::Classifier { modify, id, both }),
        6 => (prop::bool::weighted(0.3), 0..RULES + 1, made)
            .prop_map(|(modify, id, rule)| Step::Rule { modify, id, rule }),
        2 => object().prop_map(Step::Query),
        3 => object().prop_map(Step::Destroy),
        4 => (0..PORTS).prop_map(|port| Step::Look { port }),
        1 => Just(Step::Reset),
    ];
    prop::collection::vec(step, 1..100)
}

#[derive(Default)]
struct Model {
    groups: BTreeMap<u32, u16>,
    classifiers: BTreeMap<u32, bool>,
    rules: BTreeMap<u32, Made>,
}

impl Model {
    fn group(&mut self, modify: bool, id: u32, priority: u16) -> Result<()> {
        match (modify, self.groups.contains_key(&id)) {
            (true, false) => return Err(NO_SUCH),
            (false, true) => return Err(EXISTS),
            (false, false) if id >= GROUPS => return Err(FIELD),
            _ => {}
        }
        if self.groups.iter().any(|(other, p)| *other != id && *p == priority) {
            return Err(FIELD);
        }
        if modify && self.rules.values().any(|r| r.group == id) {
            return Err(BUSY);
        }
        self.groups.insert(id, priority);
        Ok(())
    }

    fn classifier(&mut self, modify: bool, id: u32, both: bool) -> Result<()> {
        match (modify, self.classifiers.contains_key(&id)) {
            (true, false) => return Err(NO_SUCH),
            (false, true) => return Err(EXISTS),
            (false, false) if id >= CLASSIFIERS => return Err(FIELD),
            _ => {}
        }
        if modify && self.rules.values().any(|r| r.classifier == id) {
            return Err(BUSY);
        }
        self.classifiers.insert(id, both);
        Ok(())
    }

    fn rule(&mut self, modify: bool, id: u32, rule: Made) -> Result<()> {
        let was = self.rules.get(&id);
        match (modify, was) {
            (true, None) => return Err(NO_SUCH),
            (false, Some(_)) => return Err(EXISTS),
            (false, None) if id >= RULES => return Err(FIELD),
            _ => {}
        }
        let known = self.groups.contains_key(&rule.group) && self.classifiers.contains_key(&rule.classifier);
        if !known || rule.queue.is_some_and(|q| q >= 4) {
            return Err(FIELD);
        }
        if let Some(was) = was {
            if *was != (Made { queue: was.queue, ..rule.clone() }) {
                return Err(FIELD);
            }
        } else if self.rules.values().filter(|r| r.group == rule.group).count() == PER_GROUP {
            return Err(FULL);
        }
        self.rules.insert(id, rule);
        Ok(())
    }

    fn destroy(&mut self, object: ObjectId) -> Result<()> {
        let ObjectId { kind, id } = object;
        let (there, busy) = match ObjectType::from_code(kind).unwrap() {
            ObjectType::Group => (self.groups.contains_key(&id), self.rules.values().any(|r| r.group == id)),
            ObjectType::Classifier => {
                (self.classifiers.contains_key(&id), self.rules.values().any(|r| r.classifier == id))
            }
            ObjectType::Rule => (self.rules.contains_key(&id), false),
        };
        if !there {
            return Err(NO_SUCH);
        }
        if busy {
            return Err(BUSY);
        }
        self.groups.retain(|i, _| object != group(*i));
        self.classifiers.retain(|i, _| object != classifier(*i));
        self.rules.retain(|i, _| object != rule(*i));
        Ok(())
    }

    fn query(&self, ObjectId { kind, id }: ObjectId) -> Option<Vec<u8>> {
        match ObjectType::from_code(kind).unwrap() {
            ObjectType::Group => self.groups.get(&id).map(|p| Group { priority: *p }.to_bytes()),
            ObjectType::Classifier => self.classifiers.get(&id).map(|both| ports(*both).to_bytes()),
            ObjectType::Rule => self.rules.get(&id).map(|r| r.object().to_bytes()),
        }
    }

    /// The rule that decides about a segment from port 0 to this one, which is the source port of no rule but 0.
    fn look(&self, port: u16) -> Option<&Made> {
        let rank = |(id, r): &(&u32, &Made)| (self.groups[&r.group], r.priority, std::cmp::Reverse(**id));
        self.rules.iter().filter(|(_, r)| r.port == port).max_by_key(rank).map(|(_, r)| r)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_device_agrees_with_the_model(steps in steps()) {
        let d = Driver::ready();
        let limits = Limits {
            groups: GROUPS,
            classifiers: CLASSIFIERS,
            rules: RULES,
            rules_per_group: PER_GROUP as u32,
            last_rule_priority: 2,
            selectors_per_classifier: 3,
        };
        let agree = || d.admin(&admin::driver_cap_set(CAP_RESOURCES, &limits.to_bytes())).unwrap();
        agree();
        let mut model = Model::default();
        for step in steps {
            let put = |modify, object, data: &[u8]| if modify { d.modify(object, data) } else { d.create(object, data) };
            match step {
                Step::Group { modify, id, priority } => prop_assert_eq!(
                    put(modify, group(id), &Group { priority }.to_bytes()),
                    model.group(modify, id, priority)
                ),
                Step::Classifier { modify, id, both } => prop_assert_eq!(
                    put(modify, classifier(id), &ports(both).to_bytes()),
                    model.classifier(modify, id, both)
                ),
                Step::Rule { modify, id, rule: made } => prop_assert_eq!(
                    put(modify, rule(id), &made.object().to_bytes()),
                    model.rule(modify, id, made.clone())
                ),
                Step::Query(object) => match model.query(object) {
                    Some(bytes) => {
                        let answer = d.query(object).unwrap();
                        prop_assert_eq!(&answer[..bytes.len()], &bytes);
                        prop_assert!(answer.len() - bytes.len() < 8);
                    }
                    None => prop_assert_eq!(d.query(object), Err(NO_SUCH)),
                },
                Step::Destroy(object) => prop_assert_eq!(d.destroy(object), model.destroy(object)),
                Step::Look { port } => {
                    let frame = Frame { ports: (0, port), ..crate::packet::frames::tcp4() };
                    match (model.look(port), d.queue(&frame)) {
                        (Some(Made { queue: None, .. }), None) => {}
                        (Some(Made { queue: Some(wanted), .. }), Some((queue, reason))) => {
                            prop_assert_eq!((queue, reason), (*wanted, Reason::Filter))
                        }
                        (None, Some((_, reason))) => prop_assert_ne!(reason, Reason::Filter),
                        (wanted, got) => prop_assert!(false, "{:?} but {:?}", wanted, got),
                    }
                }
                Step::Reset => {
                    d.control(Class::Flownic, crate::virtio::vendor::RESET, &[]).unwrap();
                    model = Model::default();
                    d.agree();
                    agree();
                }
            }
            let objects = model.groups.len() + model.classifiers.len() + model.rules.len();
            prop_assert_eq!(d.nic().guest_state().objects(), objects);
            let steering = d.nic().steering.read();
            prop_assert_eq!(steering.filters().rules().map(|r| r.0).collect::<Vec<_>>(), model.rules.keys().copied().collect::<Vec<_>>());
        }
    }
}
