//! Moderation that finds its own time (`adaptive-rx on`): short for requests and responses, long for streams.
//!
//! Pure: time comes in as an argument. About every 100 ms the rate since the last look is compared with a table, and the level
//! goes one step towards what the table says. After a pause it starts from the bottom: the first packet is not kept waiting.
//!
//! A high rate alone does not make a stream: a request that waits for its response comes at 100 000 a second too. If hardly any
//! signal stood for more than one packet, and the packets are small, holding them gained nothing; then it goes back down, and
//! stays there for a while.

use super::notify::{Limits, Nanos};

/// Time between two looks.
const WINDOW: Nanos = 100_000_000;
/// Bytes of packets that are no requests.
const LARGE: u64 = 512;
/// Windows without a step up after one that gained nothing.
const REST: u8 = 10;

/// A level, and what it takes to be there: packets or bytes a second.
struct Level {
    usecs: u32,
    packets: u64,
    bytes: u64,
}

const fn level(usecs: u32, packets: u64, bytes: u64) -> Level {
    Level { usecs, packets, bytes }
}

/// From a signal for every burst up. At the least packets that a level takes, two of them come within its time.
const PROFILE: [Level; 5] = [
    level(0, 0, 0),
    level(16, 75_000, 5_000_000),
    level(32, 85_000, 10_000_000),
    level(64, 100_000, 20_000_000),
    level(128, 500_000, 500_000_000),
];

/// The state of one queue.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Adaptive {
    /// Start of the window.
    since: Nanos,
    packets: u64,
    bytes: u64,
    signals: u64,
    level: u8,
    rest: u8,
}

impl Adaptive {
    /// Packets were published. True if that has changed the level.
    pub(super) fn published(&mut self, now: Nanos, packets: u64, bytes: u64) -> bool {
        let before = self.level;
        let elapsed = now.saturating_sub(self.since);
        if elapsed >= WINDOW {
            self.look(elapsed);
            *self = Adaptive { since: now, level: self.level, rest: self.rest, ..Adaptive::default() };
        }
        self.packets += packets;
        self.bytes += bytes;
        self.level != before
    }

    /// A signal was sent.
    pub(super) fn signalled(&mut self) {
        self.signals += 1;
    }

    /// Moderation at this moment.
    pub(super) fn limits(&self) -> Limits {
        Limits { usecs: self.usecs(), ..Limits::ADAPTIVE }
    }

    /// Its time.
    pub(super) fn usecs(&self) -> u32 {
        PROFILE[usize::from(self.level)].usecs
    }

    fn look(&mut self, elapsed: Nanos) {
        self.rest = self.rest.saturating_sub(1);
        if elapsed >= 2 * WINDOW {
            self.level = 0;
            return;
        }
        // 1.25 packets a signal. Large ones are no requests, and a stream of them makes signals enough to be worth the holding.
        let alone = self.signals > 0 && 4 * self.packets < 5 * self.signals;
        if self.level > 0 && alone && self.bytes < LARGE * self.packets {
            self.level -= 1;
            self.rest = REST;
            return;
        }
        let per_second = |n: u64| (u128::from(n) * 1_000_000_000 / u128::from(elapsed)) as u64;
        let (packets, bytes) = (per_second(self.packets), per_second(self.bytes));
        let wanted = PROFILE.iter().rposition(|l| packets >= l.packets || bytes >= l.bytes).unwrap_or(0);
        match (wanted as u8).cmp(&self.level) {
            std::cmp::Ordering::Greater if self.rest == 0 => self.level += 1,
            std::cmp::Ordering::Less => self.level -= 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    /// Traffic of `packets` a second, of `size` bytes, for so many milliseconds; as many of them in one signal as come within
    /// the hold, or always one if each waits for an answer.
    fn run(a: &mut Adaptive, now: &mut Nanos, ms: u64, packets: u64, size: u64, answers: bool) {
        let gap = 1_000_000_000 / packets;
        let end = *now + ms * MS;
        let mut held_since = None;
        while *now < end {
            a.published(*now, 1, size);
            let hold = u64::from(a.usecs()) * 1000;
            let since = *held_since.get_or_insert(*now);
            if answers || *now - since + gap > hold {
                a.signalled();
                held_since = None;
            }
            *now += gap;
        }
    }

    #[test]
    fn requests_and_responses_are_never_held_and_streams_are_within_a_second() {
        for (packets, size, answers, expected) in [
            (100, 100, true, 0),
            (4000, 100, true, 0),
            (40_000, 100, true, 0),
            (150_000, 60, false, 64),
            (55_000, 1514, false, 64),
            (1500, 65_000, false, 64),
            (2_000_000, 60, false, 128),
            (1_000_000, 1514, false, 128),
        ] {
            let (mut a, mut now) = (Adaptive::default(), 77);
            run(&mut a, &mut now, 700, packets, size, answers);
            assert_eq!(a.usecs(), expected, "{packets}/s of {size} bytes");
            // And back, in time, or at once after a pause.
            let (mut b, mut later) = (a, now + 300 * MS);
            b.published(later, 1, 60);
            assert_eq!(b.usecs(), 0);
            run(&mut b, &mut later, 300, 1000, 100, true);
            run(&mut a, &mut now, 600, 1000, 100, true);
            assert_eq!((a.usecs(), b.usecs()), (0, 0));
        }
    }

    #[test]
    fn fast_requests_that_gain_nothing_are_held_in_one_window_of_ten_at_most() {
        let (mut a, mut now) = (Adaptive::default(), 0);
        let mut held = 0;
        for _ in 0..100 {
            run(&mut a, &mut now, 100, 90_000, 100, true);
            held += u32::from(a.usecs() != 0);
            assert!(a.usecs() <= 16);
        }
        assert!((1..=10).contains(&held), "{held} of 100");
    }

    #[test]
    fn a_level_goes_up_one_step_at_a_time_and_stays_where_its_rate_is() {
        let (mut a, mut now) = (Adaptive::default(), 0);
        let mut seen = Vec::new();
        for _ in 0..40 {
            run(&mut a, &mut now, 101, 3_000_000, 60, false);
            seen.push(a.usecs());
        }
        seen.dedup();
        assert_eq!(seen, [16, 32, 64, 128]);
    }

    #[test]
    fn a_guest_that_polls_gets_no_signals_and_that_says_nothing_about_gain() {
        let (mut a, mut now) = (Adaptive::default(), 0);
        for i in 0..200_000 {
            now = i * 5_000;
            a.published(now, 1, 60);
        }
        assert_eq!(a.usecs(), 64);
        assert!(now > 0);
    }
}
