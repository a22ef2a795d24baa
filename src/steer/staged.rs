//! Rules that were accepted and are not in force yet, as on hardware that takes its time.
//!
//! # Theory of operation
//!
//! A rule of the flow filter is *in force*, or *staged* until its time comes ([`FilterTable::settle`]). A staged rule is an object
//! like any other: it has its id, its slot and its place in the table's capacity, it can be asked for and destroyed, and its group
//! and classifier are in use. Only packets don't find it: it stands in a tuple of its own that demands a header which no packet
//! has, so a lookup passes it over without looking, and lesser rules decide as if it were not there.
//!
//! | from | by | to |
//! |---|---|---|
//! | - | `stage_rule` | staged |
//! | in force | `stage_action`, not in one step | staged, with the new action |
//! | in force | `stage_action`, in one step | in force with the old action; the new one is noted, to be taken in its time |
//! | either | `destroy_rule`, `reset_objects` | - |
//! | staged, or action noted | `settle`, in its time | in force |
//!
//! Changing a rule again starts its time anew. The slot of a rule stays the same throughout, and with it its hits.

use std::collections::{BTreeMap, BTreeSet};

use super::filter::{FilterError, FilterTable, Rule};
use super::key::{Key, NEVER, WORDS};
use super::tuple::{Action, Full, Rank, RuleSlot};

/// Rank of staged rules, which nothing is compared with.
const STAGED_GROUP: u32 = 1 << 16 | 1;
/// How long a rule waits again for which there was no room in its time (another combination of fields took the last).
const AGAIN: u64 = 1_000_000;

/// What is waiting, by rule id and by time.
#[derive(Clone, Default)]
pub(super) struct Staged {
    by_id: BTreeMap<u32, Waiting>,
    by_due: BTreeSet<(u64, u32)>,
}

#[derive(Clone, Copy)]
struct Waiting {
    /// When, in nanoseconds.
    due: u64,
    change: Change,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// The rule comes in force.
    Rule,
    /// Its action does.
    Action,
}

impl Staged {
    fn put(&mut self, id: u32, waiting: Waiting) {
        self.forget(id);
        self.by_id.insert(id, waiting);
        self.by_due.insert((waiting.due, id));
    }

    pub(super) fn forget(&mut self, id: u32) {
        if let Some(waiting) = self.by_id.remove(&id) {
            self.by_due.remove(&(waiting.due, id));
        }
    }

    pub(super) fn clear(&mut self) {
        self.by_id.clear();
        self.by_due.clear();
    }
}

/// Where a staged rule stands: nowhere that a packet could come.
fn aside(id: u32) -> (Key, Key, Rank) {
    let key = |first| {
        let mut key = [0; WORDS];
        (key[0], key[WORDS - 1]) = (first, NEVER);
        Key(key)
    };
    (key(u64::MAX), key(id.into()), Rank::new(STAGED_GROUP, 0, id))
}

impl FilterTable {
    /// Creates a rule that is in force from `due` on (nanoseconds on the clock of [`FilterTable::settle`]).
    ///
    /// # Errors
    /// As [`FilterTable::create_rule`].
    pub fn stage_rule(&mut self, id: u32, rule: Rule, due: u64) -> Result<RuleSlot, FilterError> {
        // For a moment it is in force, to see whether it can be. Nobody else looks meanwhile.
        let slot = self.create_rule(id, rule)?;
        if let Err(full) = self.set_aside(id, slot) {
            self.forget_rule(id);
            return Err(full.into());
        }
        self.staged.put(id, Waiting { due, change: Change::Rule });
        Ok(slot)
    }

    /// Changes a rule's action from `due` on. Until then the old one holds; or, unless `at_once` is meant to be one step, nothing
    /// does, as if the rule were not there.
    ///
    /// # Errors
    /// When there is no such rule or queue, or no room to take it out.
    pub fn stage_action(
        &mut self,
        id: u32,
        action: Action,
        due: u64,
        at_once: bool,
    ) -> Result<(), FilterError> {
        let (slot, rule) = self.rule(id).ok_or(FilterError::NotFound { what: "rule", id })?;
        self.check_action(action)?;
        let change = match self.staged.by_id.get(&id) {
            Some(Waiting { change: Change::Rule, .. }) => Change::Rule,
            _ if at_once => Change::Action,
            _ => {
                if let Err(full) = self.set_aside(id, slot) {
                    let again = self.insert_rule(id, &rule);
                    debug_assert_eq!(again, Ok(slot), "the place that it has just left is free");
                    return Err(full.into());
                }
                Change::Rule
            }
        };
        self.note_action(id, action);
        self.staged.put(id, Waiting { due, change });
        Ok(())
    }

    /// Rules whose creation or last change is not in force yet.
    pub fn staged(&self) -> u32 {
        self.staged.by_id.len() as u32
    }

    /// When the next of them is due; none if nothing will ever be.
    pub fn next_due(&self) -> Option<u64> {
        self.staged.by_due.first().map(|(due, _)| *due).filter(|due| *due != u64::MAX)
    }

    /// Puts in force what is due at `now`; returns how much was.
    pub fn settle(&mut self, now: u64) -> u32 {
        let mut settled = 0;
        while let Some(&(due, id)) = self.staged.by_due.first()
            && due <= now
        {
            let (Some((slot, rule)), Some(&waiting)) = (self.rule(id), self.staged.by_id.get(&id)) else {
                debug_assert!(false, "who takes a rule away forgets that it waits");
                self.staged.by_due.pop_first();
                continue;
            };
            let done = match waiting.change {
                Change::Action => {
                    self.space.set_action(slot, rule.action);
                    true
                }
                Change::Rule => self.put_in_force(id, slot, &rule),
            };
            if done {
                self.staged.forget(id);
                settled += 1;
            } else {
                self.staged.put(id, Waiting { due: now.saturating_add(AGAIN), ..waiting });
            }
        }
        settled
    }

    /// Takes a rule that is in force out of packets' way. If that can't be, it is nowhere.
    fn set_aside(&mut self, id: u32, slot: RuleSlot) -> Result<(), Full> {
        let (mask, key, rank) = aside(id);
        self.space.remove(slot);
        let again = self.space.insert(STAGED_GROUP, &mask, &key, rank, Action::Drop)?;
        debug_assert_eq!(slot, again, "the slot freed last is the first to be used");
        Ok(())
    }

    /// The opposite of [`set_aside`](Self::set_aside). False if there is no room.
    fn put_in_force(&mut self, id: u32, slot: RuleSlot, rule: &Rule) -> bool {
        self.space.remove(slot);
        let again = self.insert_rule(id, rule);
        let fits = again.is_ok();
        let again = again.or_else(|_| {
            let (mask, key, rank) = aside(id);
            self.space.insert(STAGED_GROUP, &mask, &key, rank, Action::Drop)
        });
        debug_assert_eq!(again.ok(), Some(slot), "the place that it has just left is free");
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::frames::tcp4;
    use crate::steer::Match;

    const TO: fn(u16) -> Option<Action> = |queue| Some(Action::Queue(queue));

    fn port(n: u16) -> Match {
        Match::new().ipv4().tcp().dst_port(n, 0xffff)
    }

    fn rule(fields: Match, queue: u16) -> Rule {
        Rule { group: 0, classifier: 0, priority: 0, fields, action: Action::Queue(queue) }
    }

    fn table(capacity: u32) -> FilterTable {
        let mut table = FilterTable::new(capacity, 8);
        table.create_group(0, 10).unwrap();
        table.create_classifier(0, port(0).mask()).unwrap();
        table
    }

    fn found(table: &FilterTable) -> Option<Action> {
        table.lookup(&tcp4().headers()).map(|(_, action)| action)
    }

    #[test]
    fn a_rule_is_in_force_when_its_time_comes_and_not_a_moment_before() {
        let mut table = table(4);
        let slot = table.stage_rule(1, rule(port(80), 3), 1000).unwrap();
        assert_eq!((found(&table), table.staged(), table.next_due(), table.len()), (None, 1, Some(1000), 1));
        assert_eq!(table.rule(1), Some((slot, rule(port(80), 3))), "it is an object already");
        assert_eq!((table.settle(999), found(&table)), (0, None));
        assert_eq!((table.settle(1000), found(&table)), (1, TO(3)));
        assert_eq!((table.staged(), table.next_due(), table.rule(1).unwrap().0), (0, None, slot));
        assert_eq!(table.settle(u64::MAX), 0);
    }

    #[test]
    fn lesser_rules_decide_while_one_is_staged() {
        let mut table = table(4);
        table.create_rule(2, rule(port(80), 2)).unwrap();
        table.stage_rule(1, rule(port(80), 1), 10).unwrap();
        assert_eq!(found(&table), TO(2));
        table.settle(10);
        assert_eq!(found(&table), TO(1));
    }

    #[test]
    fn a_staged_rule_takes_room_and_holds_its_group_and_classifier() {
        let mut table = table(2);
        table.stage_rule(0, rule(port(1), 1), 10).unwrap();
        table.stage_rule(1, rule(port(80), 1), 10).unwrap();
        assert_eq!(table.create_rule(0, rule(port(2), 1)), Err(FilterError::Exists { what: "rule", id: 0 }));
        table.destroy_rule(0).unwrap();
        table.create_rule(0, rule(port(3), 1)).unwrap();
        assert_eq!(table.destroy_group(0), Err(FilterError::Busy { what: "group", id: 0, rules: 2 }));
        table.destroy_rule(0).unwrap();
        table.destroy_rule(1).unwrap();
        assert_eq!((table.staged(), table.len(), table.settle(10), table.tuples()), (0, 0, 0, 0));
        table.destroy_group(0).unwrap();
        table.destroy_classifier(0).unwrap();
        // One that is destroyed does not come back, and a new one of the same id has its own time.
        table.create_group(0, 10).unwrap();
        table.create_classifier(0, port(0).mask()).unwrap();
        table.stage_rule(1, rule(port(80), 1), 10).unwrap();
        table.destroy_rule(1).unwrap();
        table.stage_rule(1, rule(port(80), 2), 20).unwrap();
        assert_eq!((table.settle(10), found(&table)), (0, None));
        assert_eq!((table.settle(20), found(&table)), (1, TO(2)));
        table.stage_rule(0, rule(port(80), 1), 30).unwrap();
        table.reset_objects();
        assert_eq!((table.staged(), table.len(), table.settle(30)), (0, 0, 0));
    }

    #[test]
    fn changed_in_one_step_the_old_action_holds_until_the_new_one_does() {
        let mut table = table(4);
        let slot = table.create_rule(1, rule(port(80), 1)).unwrap();
        table.stage_action(1, Action::Queue(2), 10, true).unwrap();
        assert_eq!((found(&table), table.rule(1).unwrap().1.action), (TO(1), Action::Queue(2)));
        table.stage_action(1, Action::Queue(3), 20, true).unwrap();
        assert_eq!((table.staged(), table.settle(10), found(&table)), (1, 0, TO(1)));
        assert_eq!((table.settle(20), found(&table)), (1, TO(3)));
        assert_eq!(table.rule(1).unwrap().0, slot);
        assert_eq!(
            table.stage_action(2, Action::Drop, 0, true),
            Err(FilterError::NotFound { what: "rule", id: 2 })
        );
        assert!(matches!(table.stage_action(1, Action::Queue(8), 0, true), Err(FilterError::Invalid(_))));
        // Changed before it was in force: it comes in force with what it was changed to.
        table.stage_rule(0, rule(port(80), 4), 30).unwrap();
        table.stage_action(0, Action::Queue(5), 40, true).unwrap();
        assert_eq!((table.settle(30), found(&table)), (0, TO(3)));
        assert_eq!((table.settle(40), found(&table)), (1, TO(5)));
    }

    #[test]
    fn deleted_and_added_again_there_is_a_gap() {
        let mut table = table(4);
        let slot = table.create_rule(1, rule(port(80), 1)).unwrap();
        table.stage_action(1, Action::Queue(2), 10, false).unwrap();
        assert_eq!((found(&table), table.len(), table.staged()), (None, 1, 1));
        assert_eq!((table.settle(10), found(&table)), (1, TO(2)));
        assert_eq!(table.rule(1).unwrap().0, slot);
    }

    #[test]
    fn a_rule_for_which_there_is_no_room_any_more_waits_for_some() {
        let mut table = FilterTable::new(128, 8);
        table.create_group(0, 10).unwrap();
        let masked = |n: u16| Match::new().ipv4().tcp().src_port(0, n).dst_port(81, 0xffff);
        for n in 0..62 {
            table.create_classifier(n, masked(n as u16).mask()).unwrap();
            table.create_rule(n, Rule { classifier: n, ..rule(masked(n as u16), 7) }).unwrap();
        }
        table.create_classifier(62, masked(62).mask()).unwrap();
        table.create_classifier(63, masked(63).mask()).unwrap();
        table.stage_rule(100, Rule { classifier: 62, priority: 9, ..rule(masked(62), 1) }, 10).unwrap();
        table.stage_rule(101, Rule { classifier: 63, priority: 1, ..rule(masked(63), 1) }, 10).unwrap();
        // 62 are there, that of the staged rules, and one that came in between.
        table.create_group(1, 1).unwrap();
        table.create_rule(102, Rule { group: 1, ..rule(masked(0), 1) }).unwrap();
        assert_eq!((table.settle(10), table.tuples(), table.staged()), (0, 64, 2));
        assert_eq!((table.next_due(), found(&table)), (Some(10 + AGAIN), None));
        table.destroy_rule(0).unwrap();
        assert_eq!((table.settle(10 + AGAIN), table.tuples(), table.staged()), (2, 64, 0));
    }

    #[test]
    fn where_nothing_can_be_set_aside_all_stays_as_it_was() {
        let mut table = FilterTable::new(128, 8);
        table.create_group(0, 10).unwrap();
        let masked = |n: u16| Match::new().ipv4().tcp().src_port(0, n).dst_port(80, 0xffff);
        for n in 0..64 {
            table.create_classifier(n, masked(n as u16).mask()).unwrap();
            table.create_rule(n, Rule { classifier: n, ..rule(masked(n as u16), 1) }).unwrap();
        }
        // Another of the same fields: its combination stays in use without it.
        table.create_rule(100, Rule { priority: 9, ..rule(masked(0), 3) }).unwrap();
        assert_eq!((found(&table), table.tuples(), table.len()), (TO(3), 64, 65));
        let e = table.stage_action(100, Action::Queue(4), 10, false).unwrap_err();
        assert!(matches!(e, FilterError::NoSpace(_)));
        assert_eq!((found(&table), table.rule(100).unwrap().1.action), (TO(3), Action::Queue(3)));
        let e = table.stage_rule(101, Rule { priority: 10, ..rule(masked(0), 4) }, 10).unwrap_err();
        assert!(matches!(e, FilterError::NoSpace(_)));
        assert_eq!((found(&table), table.rule(101), table.len(), table.staged()), (TO(3), None, 65, 0));
    }
}
