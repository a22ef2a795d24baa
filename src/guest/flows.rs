//! Filter rules of a guest in ethtool's terms: a location is a rule's id, and the lowest that matches decides.

use serde::{Deserialize, Serialize};

use super::channel::{Frames, GuestError};
use super::device::Device;
use super::groups::{exists, locations};
use super::layout::{Layout, lay_out, read_back};
use crate::control::FlowRule;
use crate::control::replies::{FlowAdded, FlowStatus};
use crate::steer::NtupleSpec;
use crate::virtio::flow::{FlowAction, Limits, ObjectType, RuleObject};

/// The rules that there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFlows {
    /// The interface's name.
    pub nic: String,
    /// Rules that fit.
    pub capacity: u32,
    /// Those of this program, in order of precedence, as `flownic ctl flows list` has the host's.
    pub rules: Vec<FlowStatus>,
    /// How many there are of others: of a driver, or another program.
    pub others: u32,
}

/// All rules have the same, so that the lowest id decides among them.
const PRIORITY: u8 = 0;

fn action(action: i64, queues: u16) -> Result<(FlowAction, u16), GuestError> {
    match u16::try_from(action) {
        Ok(queue) if queue < queues => Ok((FlowAction::Direct, 2 * queue)),
        _ if action == -1 => Ok((FlowAction::Drop, 0)),
        _ => Err(GuestError::Impossible(format!(
            "There is no receive queue {action}: queues go from 0 to {}, and -1 drops",
            queues.saturating_sub(1)
        ))),
    }
}

/// A rule of this program in its own words; none if it is another's.
fn own(rule: &RuleObject, group: Option<u32>) -> bool {
    Some(rule.group_id) == group
}

impl<F: Frames> Device<F> {
    /// Lists rules, in order of precedence. `name` is how the NIC is called.
    ///
    /// # Errors
    /// When the device does not answer or refuses.
    pub fn flows(&mut self, name: &str) -> Result<GuestFlows, GuestError> {
        self.use_commands()?;
        let limits = self.limits()?;
        let (ids, group) = self.all_rules(&limits)?;
        let mut rules = Vec::new();
        let mut others = 0;
        for id in ids {
            // One may be gone meanwhile.
            let Some(rule) = self.rule(id)? else { continue };
            match self.read_rule(id, &rule).filter(|_| own(&rule, group)) {
                Some(rule) => rules.push(FlowStatus { rule, hits: self.hits(id)?.unwrap_or(0) }),
                None => others += 1,
            }
        }
        Ok(GuestFlows { nic: name.into(), capacity: locations(&limits), rules, others })
    }

    /// Ids of all rules, and this program's group. Where there is no rule, objects can perhaps not even be asked for: nobody
    /// has said that any will be used.
    fn all_rules(&mut self, limits: &Limits) -> Result<(Vec<u32>, Option<u32>), GuestError> {
        let ids = self.rule_ids()?;
        let group = if ids.is_empty() { None } else { self.own_group(limits)? };
        Ok((ids, group))
    }

    fn read_rule(&mut self, id: u32, rule: &RuleObject) -> Option<FlowRule> {
        let classifier = self.classifier(rule.classifier_id).ok()??;
        let mut spec = read_back(&classifier, &rule.keys)?;
        spec.loc = Some(id);
        spec.action = match FlowAction::from_code(rule.action)? {
            FlowAction::Drop => -1,
            FlowAction::Direct => (rule.vq_index / 2).into(),
            FlowAction::RssContext => return None,
        };
        Some(FlowRule::from(&spec))
    }

    /// Adds a rule, or replaces this program's at the same location.
    ///
    /// # Errors
    /// When the rule is none that the device can have, there is no room, or another's is in its place. Nothing is changed then.
    pub fn add_flow(&mut self, rule: FlowRule) -> Result<FlowAdded, GuestError> {
        let spec = NtupleSpec::from(rule);
        let layout = lay_out(&spec).map_err(GuestError::Impossible)?;
        let (action, vq_index) = action(spec.action, self.identity().queue_pairs)?;
        self.use_commands()?;
        self.use_filter()?;
        let limits = self.limits()?;
        self.check_selectors(&layout)?;
        let old = match spec.loc {
            None => None,
            Some(loc) => self.at(loc, &limits)?,
        };
        let (classifier_id, fresh) = self.make_classifier(&limits, &layout.classifier)?;
        let made = self.make_group(&limits).and_then(|group_id| {
            let object = RuleObject {
                group_id,
                classifier_id,
                priority: PRIORITY,
                action: action.code(),
                vq_index,
                queue_offset: 0,
                keys: layout.key.clone(),
            };
            match (spec.loc, &old) {
                (Some(loc), Some(old)) => self.replace(loc, old, &object, &limits).map(|()| loc),
                (Some(loc), None) => self.create_rule(loc, &object).map(|()| loc),
                (None, _) => self.create_anywhere(&object, &limits),
            }
        });
        if made.is_err() {
            // What went wrong first is what counts.
            if fresh {
                let _ = self.drop_classifier(&limits, classifier_id);
            }
            if let Ok(Some(group)) = self.own_group(&limits) {
                let _ = self.drop_group(group);
            }
        }
        made.map(|loc| FlowAdded { loc })
    }

    /// Says which header the device can't compare as the rule wants, since its own answer would not.
    fn check_selectors(&mut self, layout: &Layout) -> Result<(), GuestError> {
        let can = self.selectors()?;
        for wanted in &layout.classifier.selectors {
            let within = |mask: &[u8]| wanted.mask.iter().zip(mask).all(|(w, m)| w & !m == 0);
            let found = can.selectors.iter().find(|s| s.kind == wanted.kind);
            if !found.is_some_and(|s| within(&s.mask)) {
                let header = ["?", "Ethernet", "IPv4", "IPv6", "TCP", "UDP"];
                let header = header.get(usize::from(wanted.kind)).unwrap_or(&"?");
                return Err(GuestError::Impossible(format!(
                    "The device can't compare these fields of the {header} header"
                )));
            }
        }
        Ok(())
    }

    /// The rule at a location, if it is this program's.
    fn at(&mut self, loc: u32, limits: &Limits) -> Result<Option<RuleObject>, GuestError> {
        let locations = locations(limits);
        if loc >= locations {
            return Err(GuestError::Impossible(format!(
                "There is no location {loc}: locations go from 0 to {}",
                locations.saturating_sub(1)
            )));
        }
        let Some(rule) = self.rule(loc)? else { return Ok(None) };
        let group = self.own_group(limits)?;
        if own(&rule, group) { Ok(Some(rule)) } else { Err(anothers(loc, &rule)) }
    }

    fn create_rule(&mut self, loc: u32, object: &RuleObject) -> Result<(), GuestError> {
        self.create("Rule", ObjectType::Rule.id(loc), &object.to_bytes())
    }

    /// Puts a rule at the highest location that is free: it yields to all whose place was chosen.
    fn create_anywhere(&mut self, object: &RuleObject, limits: &Limits) -> Result<u32, GuestError> {
        let mut taken = self.rule_ids()?;
        for loc in (0..locations(limits)).rev() {
            if taken.last() == Some(&loc) {
                taken.pop();
                continue;
            }
            match self.create_rule(loc, object) {
                // Somebody was faster.
                Err(e) if exists(&e) => {}
                other => return other.map(|()| loc),
            }
        }
        Err(GuestError::Impossible("Every location is taken".into()))
    }

    fn replace(
        &mut self,
        loc: u32,
        old: &RuleObject,
        new: &RuleObject,
        limits: &Limits,
    ) -> Result<(), GuestError> {
        let id = ObjectType::Rule.id(loc);
        if (old.classifier_id, &old.keys, old.group_id) == (new.classifier_id, &new.keys, new.group_id) {
            return self.modify("Rule", id, &new.to_bytes());
        }
        self.destroy("Rule", id)?;
        let made = self.create_rule(loc, new);
        if made.is_err() {
            // It has just been there; there is nothing better to do if it can't be again.
            let _ = self.create_rule(loc, old);
        } else if old.classifier_id != new.classifier_id {
            self.drop_classifier(limits, old.classifier_id)?;
        }
        made
    }

    /// Deletes this program's rule at a location.
    ///
    /// # Errors
    /// When there is none, or another's.
    pub fn delete_flow(&mut self, loc: u32) -> Result<(), GuestError> {
        self.use_commands()?;
        let limits = self.limits()?;
        let found = if self.rule_ids()?.contains(&loc) { self.at(loc, &limits)? } else { None };
        let rule =
            found.ok_or_else(|| GuestError::Impossible(format!("There is no rule at location {loc}")))?;
        self.delete(loc, &rule, &limits)?;
        self.drop_group(rule.group_id)
    }

    fn delete(&mut self, loc: u32, rule: &RuleObject, limits: &Limits) -> Result<(), GuestError> {
        self.destroy("Rule", ObjectType::Rule.id(loc))?;
        self.drop_classifier(limits, rule.classifier_id)
    }

    /// Deletes all rules of this program.
    ///
    /// # Errors
    /// When the device does not answer or refuses.
    pub fn clear_flows(&mut self) -> Result<(), GuestError> {
        self.use_commands()?;
        let limits = self.limits()?;
        let (ids, Some(group)) = self.all_rules(&limits)? else { return Ok(()) };
        for id in ids {
            match self.rule(id)? {
                Some(rule) if rule.group_id == group => self.delete(id, &rule, &limits)?,
                _ => {}
            }
        }
        self.drop_group(group)
    }

    /// How many rules there are of others.
    ///
    /// # Errors
    /// When the device does not answer or refuses.
    pub fn others(&mut self) -> Result<u32, GuestError> {
        self.use_commands()?;
        let limits = self.limits()?;
        let (ids, group) = self.all_rules(&limits)?;
        let mut others = 0;
        for id in ids {
            others += u32::from(self.rule(id)?.is_some_and(|rule| !own(&rule, group)));
        }
        Ok(others)
    }
}

fn anothers(loc: u32, rule: &RuleObject) -> GuestError {
    GuestError::Impossible(format!(
        "Location {loc} has a rule that is not this program's (of group {}); it is left alone",
        rule.group_id
    ))
}
