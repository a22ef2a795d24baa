//! How the guest programs rules: as on a card with these [`Knobs`].

use super::filter::{FilterError, FilterTable, Rule};
use super::key::Mask;
use super::knobs::{Knobs, Replace};
use super::tuple::{Action, RuleSlot};

/// What goes wrong because somebody wants to see it go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FilterFaults {
    /// Rules are refused as if the table were full.
    pub table_full: bool,
    /// Rules and changes are refused as if too many were on their way.
    pub busy: bool,
    /// Rules and changes are accepted, and never come in force.
    pub lost: bool,
}

/// When a change comes that never comes.
const NEVER: u64 = u64::MAX;

impl FilterTable {
    /// The same table, which takes rules of the guest like this.
    pub(super) fn with_knobs(mut self, knobs: Knobs) -> Self {
        self.knobs = knobs;
        self
    }

    /// How it takes rules of the guest.
    pub fn knobs(&self) -> Knobs {
        self.knobs
    }

    /// Says how it takes rules of the guest from now on. What is on its way already comes when it was to.
    pub fn set_knobs(&mut self, knobs: Knobs) {
        self.knobs = knobs;
    }

    /// What goes wrong on purpose.
    pub fn faults(&self) -> FilterFaults {
        self.faults
    }

    /// Says what is to go wrong from now on. What was lost stays lost.
    pub fn set_faults(&mut self, faults: FilterFaults) {
        self.faults = faults;
    }

    /// Whether a classifier of the guest may have this mask.
    ///
    /// # Errors
    /// [`FilterError::Key`] if the card can't compare this.
    pub fn check_key(&self, mask: &Mask) -> Result<(), FilterError> {
        let key = self.knobs.key;
        if key.accepts(mask) { Ok(()) } else { Err(FilterError::Key(key)) }
    }

    /// Creates a rule for the guest, to be in force after the delay. `now` is in nanoseconds, on the clock of
    /// [`FilterTable::settle`].
    ///
    /// # Errors
    /// As [`FilterTable::create_rule`], and [`FilterError::TryAgain`] if too many are on their way.
    pub fn program_rule(&mut self, id: u32, rule: Rule, now: u64) -> Result<RuleSlot, FilterError> {
        self.check_room_on_the_way(now)?;
        if self.faults.table_full {
            return Err(FilterError::NoSpace("a fault was injected"));
        }
        match self.due(now) {
            due if due <= now => self.create_rule(id, rule),
            due => self.stage_rule(id, rule, due),
        }
    }

    /// Changes a rule's action for the guest, in the way that [`Knobs::replace`] says.
    ///
    /// # Errors
    /// When there is no such rule or queue, and [`FilterError::TryAgain`] if too many are on their way.
    pub fn program_action(&mut self, id: u32, action: Action, now: u64) -> Result<(), FilterError> {
        self.rule(id).ok_or(FilterError::NotFound { what: "rule", id })?;
        self.check_action(action)?;
        if self.knobs.replace == Replace::None {
            return Ok(());
        }
        self.check_room_on_the_way(now)?;
        let due = self.due(now);
        self.stage_action(id, action, due, self.knobs.replace == Replace::Atomic)?;
        if due <= now {
            self.settle(now);
        }
        Ok(())
    }

    fn due(&self, now: u64) -> u64 {
        if self.faults.lost {
            return NEVER;
        }
        let delay = u64::try_from(self.knobs.delay.as_nanos()).unwrap_or(NEVER);
        now.saturating_add(delay)
    }

    fn check_room_on_the_way(&mut self, now: u64) -> Result<(), FilterError> {
        self.settle(now);
        let staged = self.staged();
        if self.faults.busy || self.knobs.in_flight.is_some_and(|most| staged >= most) {
            return Err(FilterError::TryAgain(staged));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::packet::frames::tcp4;
    use crate::steer::{FilterKey, Match};

    fn port(n: u16) -> Match {
        Match::new().ipv4().tcp().dst_port(n, 0xffff)
    }

    fn rule(n: u16, queue: u16) -> Rule {
        Rule { group: 0, classifier: 0, priority: 0, fields: port(n), action: Action::Queue(queue) }
    }

    fn table(knobs: Knobs) -> FilterTable {
        let mut table = FilterTable::new(16, 8);
        table.create_group(0, 10).unwrap();
        table.create_classifier(0, port(0).mask()).unwrap();
        table.set_knobs(knobs);
        table
    }

    fn queue(table: &FilterTable) -> Option<u16> {
        match table.lookup(&tcp4().headers()) {
            Some((_, Action::Queue(queue))) => Some(queue),
            None => None,
            other => panic!("{other:?}"),
        }
    }

    const DELAY: Duration = Duration::from_nanos(100);

    #[test]
    fn without_knobs_all_is_in_force_at_once() {
        let mut table = table(Knobs::default());
        table.program_rule(1, rule(80, 3), 7).unwrap();
        assert_eq!(queue(&table), Some(3));
        table.program_action(1, Action::Queue(4), 7).unwrap();
        assert_eq!((queue(&table), table.staged()), (Some(4), 0));
    }

    #[test]
    fn so_many_are_on_their_way_and_one_more_is_to_try_again() {
        let mut table = table(Knobs { delay: DELAY, in_flight: Some(2), ..Knobs::default() });
        table.program_rule(1, rule(80, 1), 0).unwrap();
        table.program_rule(2, rule(81, 1), 50).unwrap();
        assert_eq!(table.program_rule(3, rule(82, 1), 99), Err(FilterError::TryAgain(2)));
        assert_eq!(table.program_action(1, Action::Queue(2), 99), Err(FilterError::TryAgain(2)));
        assert_eq!(queue(&table), None);
        // The first has arrived, though no packet has come since.
        table.program_rule(3, rule(82, 1), 100).unwrap();
        assert_eq!((queue(&table), table.staged()), (Some(1), 2));
    }

    #[test]
    fn each_way_to_replace_is_its_own() {
        for (replace, at_once, later) in [
            (Replace::Atomic, Some(1), Some(2)),
            (Replace::DeleteAdd, None, Some(2)),
            (Replace::None, Some(1), Some(1)),
        ] {
            let mut table = table(Knobs { replace, ..Knobs::default() });
            table.program_rule(1, rule(80, 1), 0).unwrap();
            table.set_knobs(Knobs { replace, delay: DELAY, ..Knobs::default() });
            table.program_action(1, Action::Queue(2), 0).unwrap();
            assert_eq!(queue(&table), at_once, "{replace}");
            table.settle(100);
            assert_eq!(queue(&table), later, "{replace}");
            let said = if replace == Replace::None { 1 } else { 2 };
            assert_eq!(
                table.rule(1).unwrap().1.action,
                Action::Queue(said),
                "{replace}: the object says the truth"
            );
            let missing = FilterError::NotFound { what: "rule", id: 9 };
            assert_eq!(table.program_action(9, Action::Drop, 0), Err(missing));
            assert!(matches!(table.program_action(1, Action::Queue(8), 0), Err(FilterError::Invalid(_))));
        }
    }

    #[test]
    fn a_card_refuses_what_it_cannot_compare() {
        let five = table(Knobs { key: FilterKey::FiveTuple, ..Knobs::default() });
        assert_eq!(five.check_key(&port(0).mask()), Err(FilterError::Key(FilterKey::FiveTuple)));
        let four = table(Knobs { key: FilterKey::FourTuple, ..Knobs::default() });
        assert_eq!(four.check_key(&port(0).mask()), Ok(()));
    }

    #[test]
    fn faults_are_there_until_they_are_taken_away() {
        let mut table = table(Knobs::default());
        table.set_faults(FilterFaults { table_full: true, ..FilterFaults::default() });
        assert!(matches!(table.program_rule(1, rule(80, 1), 0), Err(FilterError::NoSpace(_))));
        table.set_faults(FilterFaults { busy: true, ..FilterFaults::default() });
        assert_eq!(table.program_rule(1, rule(80, 1), 0), Err(FilterError::TryAgain(0)));
        table.set_faults(FilterFaults { lost: true, ..FilterFaults::default() });
        table.program_rule(1, rule(80, 1), 0).unwrap();
        table.settle(NEVER - 1);
        assert_eq!((queue(&table), table.next_due()), (None, None));
        table.set_faults(FilterFaults::default());
        table.program_rule(2, rule(80, 2), 0).unwrap();
        assert_eq!(queue(&table), Some(2));
    }
}
