//! The policy against a model that keeps whole histories, on a clock that is turned by hand; and the races around it, in every
//! order that there is.

use std::collections::HashSet;
use std::hash::Hash;

use proptest::prelude::*;

use super::notify::{Cause, CoalesceRule, Decision, Kicks, Limits, Moment, Nanos, Pending};
use crate::virtio::ctrl::Coalesce;

fn coalesce(max_packets: u32, max_usecs: u32) -> Coalesce {
    Coalesce { max_packets, max_usecs }
}

fn limits(frames: u32, usecs: u32) -> Limits {
    Limits::new(CoalesceRule::Nic, coalesce(frames, usecs), false)
}

fn at(usecs: u64, packets: u64) -> Moment {
    Moment { now: usecs * 1000, packets, wanted: true, crowded: false }
}

#[test]
fn zero_is_no_limit_for_a_nic_and_no_moderation_where_it_is_strict() {
    use CoalesceRule::{Nic, Strict};
    let of = |rule, frames, usecs| {
        let l = Limits::new(rule, coalesce(frames, usecs), false);
        (l.frames, l.usecs)
    };
    assert_eq!(of(Nic, 0, 0), (0, 0));
    assert_eq!(of(Nic, 0, 20), (0, 20));
    assert_eq!(of(Nic, 64, 0), (64, 0));
    assert_eq!(of(Nic, 64, 20), (64, 20));
    assert_eq!(of(Nic, 1, 20), (0, 0), "the first packet fires");
    assert_eq!(of(Strict, 0, 20), (0, 0));
    assert_eq!(of(Strict, 64, 0), (0, 0));
    assert_eq!(of(Strict, 64, 20), (64, 20));
    // A guest that waits for room in its ring never brings the count up.
    let tx = Limits::new(Nic, coalesce(64, 0), true);
    assert_eq!((tx.frames, tx.usecs), (64, Limits::TX_LONGEST));
    assert_eq!(
        CoalesceRule::NAMES.map(|(name, rule)| (name == rule.name(), rule)),
        [(true, Nic), (true, Strict)]
    );
}

#[test]
fn limits_survive_their_word() {
    for l in
        [Limits::OFF, Limits::ADAPTIVE, limits(u32::MAX, u32::MAX), limits(2, 0), limits(0, 1), limits(7, 9)]
    {
        assert_eq!(Limits::from_word(l.to_word()), l);
    }
    assert_eq!((Limits::OFF.to_word(), Limits::ADAPTIVE.to_word() != 0), (0, true));
    assert_eq!(limits(u32::MAX, 1).frames, i32::MAX as u32);
}

#[test]
fn a_signal_is_held_from_the_first_packet_on_until_its_time_or_its_number() {
    let (mut p, l) = (Pending::default(), limits(10, 20));
    assert_eq!(p.decide(l, at(100, 1)), Decision::Hold(120_000));
    assert_eq!(p.decide(l, at(110, 8)), Decision::Hold(120_000), "of the first one");
    assert_eq!(p.decide(l, at(111, 1)), Decision::Fire(Cause::Count));
    assert_eq!(p.decide(l, at(112, 0)), Decision::Nothing);
    assert_eq!(p.decide(l, at(113, 3)), Decision::Hold(133_000), "it starts again");
    assert_eq!(p.decide(l, at(132, 0)), Decision::Hold(133_000));
    assert_eq!(p.decide(l, at(133, 0)), Decision::Fire(Cause::Time));
    assert_eq!(p.decide(l, at(140, 12)), Decision::Fire(Cause::Count), "a burst is not cut");
    assert!(!p.is_held());
}

#[test]
fn what_the_guest_wants_is_asked_when_it_matters() {
    let (mut p, l) = (Pending::default(), limits(0, 20));
    let unwanted = |usecs, packets| Moment { wanted: false, ..at(usecs, packets) };
    // It has looked while the signal was held, and wants none.
    assert_eq!(p.decide(l, at(0, 1)), Decision::Hold(20_000));
    assert_eq!(p.decide(l, unwanted(20, 0)), Decision::Quiet);
    assert_eq!(p.decide(l, at(21, 0)), Decision::Nothing, "that was that");
    // What it did not want to hear of does not count.
    assert_eq!(p.decide(l, unwanted(30, 5)), Decision::Quiet);
    assert_eq!(p.decide(l, at(40, 1)), Decision::Hold(60_000));
}

#[test]
fn a_ring_that_is_getting_full_is_signalled() {
    let mut p = Pending::default();
    let l = limits(1000, 0);
    assert_eq!(p.decide(l, at(0, 100)), Decision::Hold(Nanos::MAX));
    assert_eq!(p.decide(l, Moment { crowded: true, ..at(9, 1) }), Decision::Fire(Cause::Count));
}

#[test]
fn new_limits_go_for_what_is_held_already() {
    for (new, expected) in [
        (limits(0, 0), Decision::Fire(Cause::Burst)),
        (limits(0, 5), Decision::Fire(Cause::Time)),
        (limits(4, 1000), Decision::Fire(Cause::Count)),
        (limits(5, 1000), Decision::Hold(1_000_000)),
        (limits(5, 0), Decision::Hold(Nanos::MAX)),
    ] {
        let mut p = Pending::default();
        assert_eq!(p.decide(limits(0, 100), at(0, 4)), Decision::Hold(100_000));
        assert_eq!(p.decide(new, at(6, 0)), expected);
    }
}

#[test]
fn a_queue_sets_one_timer_at_a_time_and_an_earlier_one_replaces_it() {
    let mut p = Pending::default();
    assert!(p.sets_timer(100));
    assert!(!p.sets_timer(100) && !p.sets_timer(200));
    assert!(p.sets_timer(50));
    assert!(!p.timer_runs_out(100), "replaced");
    assert!(p.timer_runs_out(50));
    assert!(!p.timer_runs_out(50));
    assert!(p.sets_timer(300));
}

/// One thing that happens.
#[derive(Debug, Clone)]
enum Step {
    /// A burst of so many packets.
    Burst(u64),
    /// Time passes, in nanoseconds.
    Wait(Nanos),
    /// The guest wants signals, or not.
    Wants(bool),
    /// The guest has looked at everything.
    Looks,
    /// Other values.
    Values(u32, u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..40u64).prop_map(Step::Burst),
        4 => (0..60_000u64).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(Step::Wants),
        1 => Just(Step::Looks),
        1 => (prop_oneof![Just(0), Just(1), 2..64u32], prop_oneof![Just(0), 1..50u32])
            .prop_map(|(frames, usecs)| Step::Values(frames, usecs)),
    ]
}

/// The rule, from the whole history of what was published since the last signal or the last wish for silence.
fn expected(rule: CoalesceRule, values: (u32, u32), history: &[(Nanos, u64)], now: Nanos) -> bool {
    let Some((first, _)) = history.first() else { return false };
    let packets: u64 = history.iter().map(|(_, n)| n).sum();
    let (frames, usecs) = (u64::from(values.0), u64::from(values.1));
    let by_count = frames != 0 && packets >= frames;
    let by_time = usecs != 0 && now >= first + usecs * 1000;
    match rule {
        CoalesceRule::Strict if frames == 0 || usecs == 0 => true,
        CoalesceRule::Nic if frames == 0 && usecs == 0 => true,
        _ => by_count || by_time,
    }
}

proptest! {
    #[test]
    fn signals_are_sent_when_the_rule_says_so_and_not_otherwise(
        strict in any::<bool>(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let rule = if strict { CoalesceRule::Strict } else { CoalesceRule::Nic };
        let (mut p, mut now, mut values, mut wants) = (Pending::default(), 0, (0, 0), true);
        let mut history: Vec<(Nanos, u64)> = Vec::new();
        // Whether the guest has looked at everything that is published: then it wants no signal, as with an event index.
        let mut looked = false;
        let mut timers: Vec<Nanos> = Vec::new();
        for step in steps {
            let mut packets = 0;
            let mut look = true;
            match step {
                Step::Burst(n) => {
                    packets = n;
                    history.push((now, n));
                    looked = false;
                }
                Step::Wait(time) => {
                    // The timers on the way run out one by one, each on time.
                    let end = now + time;
                    while let Some(i) = (0..timers.len()).filter(|i| timers[*i] <= end).min_by_key(|i| timers[*i]) {
                        let due = timers.swap_remove(i);
                        if !p.timer_runs_out(due) {
                            continue;
                        }
                        now = now.max(due);
                        let wanted = wants && !looked;
                        let fires = wanted && expected(rule, values, &history, now);
                        let l = Limits::new(rule, coalesce(values.0, values.1), false);
                        let d = p.decide(l, Moment { now, packets: 0, wanted, crowded: false });
                        prop_assert_eq!(matches!(d, Decision::Fire(_)), fires, "at {}", now);
                        match d {
                            Decision::Hold(due) => if p.sets_timer(due) { timers.push(due) },
                            _ => history.clear(),
                        }
                    }
                    now = end;
                    look = false;
                }
                Step::Wants(on) => {
                    // Who wants signals again looks at everything first.
                    looked |= on && !wants;
                    wants = on;
                    look = false;
                }
                Step::Looks => {
                    looked = true;
                    look = false;
                }
                Step::Values(frames, usecs) => values = (frames, usecs),
            }
            if look {
                let wanted = wants && !looked;
                let fires = wanted && expected(rule, values, &history, now);
                let l = Limits::new(rule, coalesce(values.0, values.1), false);
                let d = p.decide(l, Moment { now, packets, wanted, crowded: false });
                prop_assert_eq!(matches!(d, Decision::Fire(_)), fires, "at {}", now);
                match d {
                    Decision::Hold(due) => {
                        prop_assert!(wanted && !history.is_empty());
                        if p.sets_timer(due) { timers.push(due) }
                    }
                    _ => history.clear(),
                }
            }
            // Somebody comes back for a signal that is owed, and not too late.
            if wants && !looked && !history.is_empty() {
                let longest = if values.1 == 0 { Nanos::MAX } else { history[0].0 + u64::from(values.1) * 1000 };
                prop_assert!(timers.iter().any(|t| *t <= longest), "{:?} until {}", timers, longest);
            }
            prop_assert!(timers.len() <= 64);
        }
    }
}

// ---- races ----

/// What became of a step.
enum Outcome {
    /// Go on there.
    Go(usize),
    /// Waits, for now.
    Wait,
    /// Is at its end.
    End,
}

type Program<S> = fn(&mut S, usize) -> Outcome;

/// Runs two programs, step by step on shared memory that everybody sees in one order, in every way to interleave them.
/// Returns the number of states in which nobody can go on; each is checked.
fn race<S: Clone + Eq + Hash>(start: S, programs: [Program<S>; 2], check: fn(&S)) -> usize {
    let mut ends = 0;
    // The same state comes about in many ways.
    let mut seen = HashSet::new();
    let mut to_do = vec![(start, [Some(0), Some(0)])];
    while let Some((state, at)) = to_do.pop() {
        if !seen.insert((state.clone(), at)) {
            continue;
        }
        let before = to_do.len();
        for i in 0..2 {
            let Some(pc) = at[i] else { continue };
            let (mut next, mut places) = (state.clone(), at);
            match programs[i](&mut next, pc) {
                Outcome::Go(pc) => places[i] = Some(pc),
                Outcome::End => places[i] = None,
                Outcome::Wait => continue,
            }
            to_do.push((next, places));
        }
        if to_do.len() == before {
            ends += 1;
            check(&state);
        }
    }
    assert!(seen.len() > 30, "only {} states", seen.len());
    ends
}

/// A guest sends so many frames; the device takes them, and sleeps in between.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Sending {
    event_idx: bool,
    available: u16,
    taken: u16,
    /// What the guest reads: flags (true: no kicks), or an event index.
    no_kicks: bool,
    event: u16,
    /// The eventfd.
    kicked: bool,
    kicks: Kicks,
    /// What the guest had read of it.
    before: u16,
    empty: bool,
}

const FRAMES: u16 = 3;

fn sender(s: &mut Sending, pc: usize) -> Outcome {
    match pc {
        // Make one available, after the last of them nothing more.
        0 if s.available == FRAMES => Outcome::End,
        0 => {
            s.before = s.available;
            s.available += 1;
            Outcome::Go(1)
        }
        // Look whether a kick is wanted.
        _ => {
            let wanted = if s.event_idx {
                s.available.wrapping_sub(s.event).wrapping_sub(1) < s.available.wrapping_sub(s.before)
            } else {
                !s.no_kicks
            };
            s.kicked |= wanted;
            Outcome::Go(0)
        }
    }
}

/// As the worker does it, in the same order: take, refuse kicks, look again, ask for kicks, look once more, sleep.
fn taker(s: &mut Sending, pc: usize) -> Outcome {
    match pc {
        0 => {
            let took = s.taken != s.available;
            s.taken = s.available;
            Outcome::Go(if took { 1 } else { 2 })
        }
        1 => {
            if s.kicks.refuse() {
                (s.no_kicks, s.event) = (true, s.taken.wrapping_sub(1));
            }
            Outcome::Go(0)
        }
        2 => {
            if s.kicks.ask() {
                (s.no_kicks, s.event) = (false, s.taken);
            }
            Outcome::Go(3)
        }
        3 => {
            s.empty = s.taken == s.available;
            Outcome::Go(if s.empty { 4 } else { 0 })
        }
        // Asleep: only a kick helps. Edge-triggered, so that it is used up.
        _ if s.kicked => {
            s.kicked = false;
            Outcome::Go(0)
        }
        _ => Outcome::Wait,
    }
}

#[test]
fn no_frame_is_left_in_the_ring_of_a_device_that_sleeps_whatever_happens_first() {
    for event_idx in [false, true] {
        let start = Sending { event_idx, no_kicks: true, event: u16::MAX, ..Sending::default() };
        assert_ne!(
            race(start, [sender, taker], |s: &Sending| assert_eq!((s.available, s.taken), (FRAMES, FRAMES))),
            0
        );
    }
}

/// A device publishes; its guest looks, asks for signals, looks once more, and sleeps. The device's time passes at any moment.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Receiving {
    event_idx: bool,
    published: u16,
    signalled: u16,
    seen: u16,
    no_signals: bool,
    event: u16,
    signal: bool,
    pending: Pending,
    now: Nanos,
    timer: Option<Nanos>,
}

impl Receiving {
    fn device_decides(&mut self, packets: u64) {
        let (new, old) = (self.published, self.signalled);
        let wanted = new != old
            && if self.event_idx {
                new.wrapping_sub(self.event).wrapping_sub(1) < new.wrapping_sub(old)
            } else {
                !self.no_signals
            };
        let l = limits(0, 1);
        match self.pending.decide(l, Moment { now: self.now, packets, wanted, crowded: false }) {
            Decision::Hold(due) => {
                if self.pending.sets_timer(due) {
                    self.timer = Some(due);
                }
            }
            d => {
                self.signal |= matches!(d, Decision::Fire(_));
                self.signalled = new;
            }
        }
    }
}

fn publisher(s: &mut Receiving, pc: usize) -> Outcome {
    match pc {
        0 if s.published == FRAMES => Outcome::Go(3),
        0 => {
            s.published += 1;
            Outcome::Go(1)
        }
        1 => {
            s.device_decides(1);
            Outcome::Go(2)
        }
        // The timer runs out before the next frame, or does not.
        2 => Outcome::Go(0),
        _ => match s.timer.take() {
            Some(due) => {
                s.now = s.now.max(due);
                if s.pending.timer_runs_out(due) {
                    s.device_decides(0);
                }
                Outcome::Go(3)
            }
            None => Outcome::End,
        },
    }
}

/// The same, with a timer that runs out between any two frames.
fn publisher_on_time(s: &mut Receiving, pc: usize) -> Outcome {
    if pc == 2
        && let Some(due) = s.timer.take()
    {
        s.now = s.now.max(due);
        if s.pending.timer_runs_out(due) {
            s.device_decides(0);
        }
        return Outcome::Go(2);
    }
    publisher(s, pc)
}

fn poller(s: &mut Receiving, pc: usize) -> Outcome {
    match pc {
        // No signals while it looks.
        0 => {
            (s.no_signals, s.event) = (true, s.seen.wrapping_sub(1));
            Outcome::Go(1)
        }
        1 => {
            s.seen = s.published;
            Outcome::Go(2)
        }
        2 => {
            (s.no_signals, s.event) = (false, s.seen);
            Outcome::Go(3)
        }
        3 if s.seen != s.published => Outcome::Go(0),
        3 => Outcome::Go(4),
        _ if s.signal => {
            s.signal = false;
            Outcome::Go(0)
        }
        _ => Outcome::Wait,
    }
}

#[test]
fn no_frame_is_left_unseen_by_a_guest_that_sleeps_whatever_happens_first() {
    for event_idx in [false, true] {
        for device in [publisher, publisher_on_time] {
            let start = Receiving { event_idx, ..Receiving::default() };
            assert_ne!(
                race(start, [device, poller], |s: &Receiving| assert_eq!(
                    (s.published, s.seen),
                    (FRAMES, FRAMES)
                )),
                0
            );
        }
    }
}

/// Limits change while a worker that holds a signal for ever goes to sleep.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Changing {
    limits: u32,
    changed: bool,
    holding: bool,
    woken: bool,
    acted_on: u32,
}

fn changer(s: &mut Changing, pc: usize) -> Outcome {
    match pc {
        0 => s.limits = 1,
        1 => s.changed = true,
        2 if s.holding => s.woken = true,
        2 => {}
        _ => return Outcome::End,
    }
    Outcome::Go(pc + 1)
}

fn holder(s: &mut Changing, pc: usize) -> Outcome {
    match pc {
        // It is awake: looks at all signals if there was a change.
        0 if s.changed => {
            s.changed = false;
            Outcome::Go(1)
        }
        0 => Outcome::Go(2),
        1 => {
            s.acted_on = s.limits;
            Outcome::Go(2)
        }
        2 => {
            s.holding = true;
            Outcome::Go(3)
        }
        3 if s.changed => Outcome::Go(5),
        3 => Outcome::Go(4),
        4 if s.woken => {
            s.woken = false;
            Outcome::Go(5)
        }
        4 => Outcome::Wait,
        _ => {
            s.holding = false;
            Outcome::Go(0)
        }
    }
}

#[test]
fn a_worker_that_goes_to_sleep_with_a_signal_in_hand_hears_of_new_limits() {
    let start = Changing::default();
    assert_ne!(race(start, [changer, holder], |s| assert_eq!(s.acted_on, 1)), 0);
}

#[test]
fn the_race_finder_finds_races() {
    // A device that does not look once more after it has asked.
    fn careless(s: &mut Sending, pc: usize) -> Outcome {
        match taker(s, pc) {
            Outcome::Go(3) => Outcome::Go(4),
            outcome => outcome,
        }
    }
    let lost = std::panic::catch_unwind(|| {
        let start = Sending { no_kicks: true, ..Sending::default() };
        race(start, [sender, careless], |s| assert_eq!(s.available, s.taken))
    });
    assert!(lost.is_err());
}
