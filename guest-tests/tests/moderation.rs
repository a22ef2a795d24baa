//! Interrupt moderation with the reference driver: which values are in force, who finds them, and what comes of them.
//!
//! How many interrupts come is compared with the rule by counters and the time that has really passed, never with a rate: what
//! the rule forbids must not happen in any window, what it predicts must be seen in one of several, as others may have the CPUs.

use std::fmt;
use std::time::{Duration, Instant};

use guest_tests::nic::Interface;
use guest_tests::{Driver, Family, Flownic, Guest, Kernel, Link, Namespace, Nic, Workdir, traffic, wait_for};
use serde_json::Value;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(90);
/// Windows in which what the rule predicts may be seen.
const WINDOWS: usize = 30;

/// Boots a guest with a card for each of `nics` (settings without the name, and queue pairs), and switches them on.
fn with_guest(kernel: Kernel, nics: &[(&str, u32)], body: impl FnOnce(&Flownic<'_>, &Guest, &[Card<'_>])) {
    let workdir = Workdir::new();
    let host = Namespace::new("host");
    let name = |i: usize| format!("n{i}");
    let settings = nics.iter().enumerate();
    let settings: Vec<String> =
        settings.map(|(i, (port, queues))| format!("{},queues={queues},port={port}", name(i))).collect();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let flownic = Flownic::start(&host, &workdir, &settings, &[]);
    // What a host has set before is what a driver finds.
    flownic.ctl(&["coalesce", "set", "n0", "rx-usecs", "7", "rx-frames", "3", "tx-usecs", "9"]);
    // One processor for each queue pair: as many are in use at first.
    let vcpus = nics.iter().map(|(_, queues)| *queues).max().unwrap_or_default().max(2);
    let mut builder = Guest::builder("guest").kernel(kernel).vcpus(vcpus).driver(Driver::FlownicNet);
    for (i, (_, queues)) in nics.iter().enumerate() {
        builder = builder.nic(Nic::flownic(Flownic::socket(&workdir, &name(i)), *queues));
    }
    let guest = builder.boot(&workdir);
    let card = |i| Card { flownic: &flownic, name: name(i), nic: guest.interface(i) };
    let cards: Vec<Card<'_>> = (0..nics.len()).map(card).collect();
    cards.iter().for_each(|card| card.nic.up(&[]));
    body(&flownic, &guest, &cards);
    let said =
        guest.run("dmesg | grep -E 'WARNING|BUG|Oops|Call Trace|hung task|nobody cared|could not|timed out'");
    assert_eq!(said.text(), "", "kernel messages");
}

/// Moderation of a queue pair, or of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Values {
    adaptive: bool,
    /// Microseconds and frames of receiving.
    rx: (u64, u64),
    tx: (u64, u64),
}

impl Values {
    const fn new(rx: (u64, u64), tx: (u64, u64)) -> Values {
        Values { adaptive: false, rx, tx }
    }

    /// As ethtool shows them.
    #[track_caller]
    fn shown(text: &str) -> Values {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
            line.trim().parse().unwrap_or_else(|_| panic!("{name} in {text}"))
        };
        let pair = |side: &str| (value(&format!("{side}-usecs")), value(&format!("{side}-frames")));
        Values { adaptive: text.contains("Adaptive RX: on"), rx: pair("rx"), tx: pair("tx") }
    }

    /// As the device has them.
    #[track_caller]
    fn device(pair: &Value) -> Values {
        let of = |side: &str| {
            let number = |name: &str| pair[side][name].as_u64().unwrap_or_else(|| panic!("{name} in {pair}"));
            (number("usecs"), number("frames"))
        };
        Values { adaptive: pair["rx"]["adaptive"] == true, rx: of("rx"), tx: of("tx") }
    }
}

/// A card, from both sides.
struct Card<'m> {
    flownic: &'m Flownic<'m>,
    name: String,
    nic: Interface<'m>,
}

impl Card<'_> {
    /// `ethtool OPTION NIC WORDS` in the guest.
    #[track_caller]
    fn ethtool(&self, option: &str, words: &str) -> String {
        self.nic.machine().run_ok(&format!("ethtool {option} {} {words}", self.nic.name()))
    }

    /// Sets one queue pair.
    #[track_caller]
    fn set_queue(&self, queue: u32, words: &str) {
        self.ethtool("-Q", &format!("queue_mask {:#x} --coalesce {words}", 1 << queue));
    }

    /// All of them and each, as the device has them.
    #[track_caller]
    fn device(&self) -> (Values, Vec<Values>) {
        let answer = self.flownic.ctl(&["coalesce", "get", &self.name]);
        let queues = answer["queues"].as_array().expect("a list of queues").iter().map(Values::device);
        (Values::device(&answer), queues.collect())
    }

    /// Queue pair `queue` as the guest sees it.
    #[track_caller]
    fn shown(&self, queue: usize) -> Values {
        Values::shown(&self.ethtool("-Q", &format!("queue_mask {:#x} --show-coalesce", 1 << queue)))
    }

    /// Both sides have these values, of all and of the queues in use.
    #[track_caller]
    fn expect(&self, what: &str, all: Values, queues: &[Values]) {
        assert_eq!(Values::shown(&self.ethtool("-c", "")), all, "{what}: ethtool -c");
        let shown: Vec<Values> = (0..queues.len()).map(|queue| self.shown(queue)).collect();
        assert_eq!(shown, queues, "{what}: ethtool -Q");
        let (device_all, device) = self.device();
        assert_eq!((device_all, &device[..queues.len()]), (all, queues), "{what}: the device");
    }

    /// Which receive queues' time is found, as all see it.
    #[track_caller]
    fn expect_adaptive(&self, what: &str, all: bool, queues: &[bool]) {
        assert_eq!(Values::shown(&self.ethtool("-c", "")).adaptive, all, "{what}: ethtool -c");
        let shown: Vec<bool> = (0..queues.len()).map(|queue| self.shown(queue).adaptive).collect();
        assert_eq!(shown, queues, "{what}: ethtool -Q");
        let (device_all, device) = self.device();
        let device: Vec<bool> = device.iter().take(queues.len()).map(|values| values.adaptive).collect();
        assert_eq!((device_all.adaptive, &device[..]), (all, queues), "{what}: the device");
    }

    fn counter(&self, queue: usize, name: &str) -> u64 {
        self.flownic.counter(&self.name, &format!("/rx/{queue}/{name}"))
    }

    fn link(&self, state: &str) {
        self.flownic.ctl(&["link", &self.name, state]);
    }
}

fn values_last(kernel: Kernel) {
    with_guest(kernel, &[("null", 4)], |flownic, _, cards| {
        let card = &cards[0];
        let host = Values::new((7, 3), (9, 0));
        card.expect("the host's values", host, &[host; 4]);

        card.ethtool("-C", "rx-usecs 20 rx-frames 0 tx-usecs 60 tx-frames 5");
        let all = Values::new((20, 0), (60, 5));
        card.expect("all queues", all, &[all; 4]);

        // Each queue's own, receiving and sending.
        let own: Vec<Values> =
            (0..4).map(|i| Values::new((30 + i, 1 + i), (90 + i, if i == 2 { 0 } else { 11 * i }))).collect();
        for (i, v) in own.iter().enumerate() {
            let ((ru, rf), (tu, tf)) = (v.rx, v.tx);
            card.set_queue(i as u32, &format!("rx-usecs {ru} rx-frames {rf} tx-usecs {tu} tx-frames {tf}"));
        }
        card.expect("single queues", all, &own);
        let zero = Values::new((0, 0), (0, 0));
        card.set_queue(1, "rx-usecs 0 rx-frames 0 tx-usecs 0 tx-frames 0");
        let own = [own[0], zero, own[2], own[3]];
        card.expect("one back to 0", all, &own);

        let name = card.nic.name();
        card.ethtool("-G", "rx 256 tx 128");
        card.expect("other ring sizes", all, &own);
        card.nic.machine().run_ok(&format!("ip link set {name} down; ip link set {name} up"));
        card.expect("down and up", all, &own);
        // The device is reset and forgets everything.
        let starts = flownic.counter("n0", "/device/driver_starts");
        card.ethtool("-K", "rx-gro-hw off");
        assert!(flownic.counter("n0", "/device/driver_starts") > starts, "the device was not reset");
        card.expect("a reset", all, &own);
        card.ethtool("-L", "combined 2");
        card.expect("two queues", all, &own[..2]);
        card.ethtool("-L", "combined 4");
        card.expect("queues that start anew", all, &[own[0], zero, all, all]);
        card.ethtool("-C", "rx-usecs 60 tx-frames 0");
        let all = Values::new((60, 0), (60, 0));
        card.expect("all over single ones", all, &[all; 4]);
        // The host's word counts as well, and is seen where the device is asked.
        flownic.ctl(&["coalesce", "set", "rx-usecs", "44", "tx-usecs", "45"]);
        assert_eq!(card.shown(3), Values::new((44, 0), (45, 0)), "the host's change");

        // Values and adaptive-rx at once: they are there when it ends.
        card.ethtool("-C", "adaptive-rx on rx-usecs 21 tx-usecs 22");
        card.expect_adaptive("all", true, &[true; 4]);
        card.set_queue(1, "adaptive-rx off rx-usecs 33");
        let but_one = [true, false, true, true];
        card.expect_adaptive("not one", true, &but_one);
        assert_eq!(card.device().1[1].rx, (33, 0));
        card.ethtool("-K", "rx-gro-hw on");
        card.expect_adaptive("a reset", true, &but_one);
        card.ethtool("-L", "combined 1");
        card.ethtool("-L", "combined 4");
        card.expect_adaptive("queues that start anew", true, &[true; 4]);
        card.ethtool("-C", "adaptive-rx off");
        let all = Values::new((21, 0), (22, 0));
        card.expect("what was set before", all, &[all; 4]);
        card.set_queue(2, "adaptive-rx on");
        card.expect_adaptive("one", false, &[false, false, true, false]);
        card.ethtool("-K", "rx-gro-hw off");
        card.expect_adaptive("one after a reset", false, &[false, false, true, false]);
    });
}

#[test]
fn values_are_the_device_s_and_last_on_the_stable_kernel() {
    values_last(Kernel::Stable);
}

#[test]
fn values_are_the_device_s_and_last_on_the_backports_kernel() {
    values_last(Kernel::Backports);
}

/// What has been counted of a receive queue in a window of time.
#[derive(Debug, Clone, Copy)]
struct Window {
    /// The window is no longer than this.
    micros: f64,
    packets: u64,
    signals: u64,
    suppressed: u64,
    held: u64,
    by_time: u64,
    by_count: u64,
}

impl Window {
    /// A window in which `packets` or more come.
    #[track_caller]
    fn of(card: &Card<'_>, packets: u64) -> Window {
        let read = || {
            let all = card.flownic.counters(&card.name, "/rx/0");
            let of = |name: &str| all.iter().find(|(n, _)| n == name).expect("such a counter").1;
            [
                "packets",
                "signals",
                "signals_suppressed",
                "signals_held",
                "signals_by_time",
                "signals_by_count",
            ]
            .map(of)
        };
        let begin = Instant::now();
        let before = read();
        let after = wait_for("packets", LIMIT, || match read() {
            now if now[0] >= before[0] + packets => Ok(now),
            now => Err(format!("{} of {packets}", now[0] - before[0])),
        });
        let [packets, signals, suppressed, held, by_time, by_count] =
            std::array::from_fn(|i| after[i] - before[i]);
        let micros = begin.elapsed().as_secs_f64() * 1e6;
        Window { micros, packets, signals, suppressed, held, by_time, by_count }
    }

    /// What no rule allows. Counters of one burst may be on either side of the window's ends.
    #[track_caller]
    fn check(&self, usecs: u64) {
        let most = self.micros / usecs as f64 + 2.0;
        assert!(self.by_time as f64 <= most, "more than one signal in {usecs} us: {self}");
        assert!(self.signals.abs_diff(self.by_time + self.by_count) <= 2, "signals without a cause: {self}");
        assert!(self.by_time <= self.held + 2, "more signals than bursts: {self}");
    }

    /// Bursts that the queue got.
    fn bursts(&self) -> u64 {
        self.held + self.suppressed + self.by_count
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} ms, {} packets in {} bursts, {} held, {} suppressed; {} signals, {} by time, {} by count",
            self.micros / 1000.0,
            self.packets,
            self.bursts(),
            self.held,
            self.suppressed,
            self.signals,
            self.by_time,
            self.by_count
        )
    }
}

/// Windows of so many packets, all of which must keep the rule, until one is as predicted.
#[track_caller]
fn predicted(
    what: &str,
    card: &Card<'_>,
    (packets, usecs): (u64, u64),
    as_predicted: impl Fn(&Window) -> bool,
) {
    // One that began with other values says nothing.
    Window::of(card, packets / 4);
    let mut seen = String::new();
    for _ in 0..WINDOWS {
        let window = Window::of(card, packets);
        window.check(usecs);
        seen += &format!("\n  {window}");
        if as_predicted(&window) {
            println!("{what}: {}", seen.lines().last().unwrap_or_default());
            return;
        }
    }
    panic!("{what}: no window is as predicted:{seen}");
}

fn near(seen: f64, predicted: f64) -> bool {
    (0.9 * predicted..=1.1 * predicted).contains(&seen)
}

#[test]
fn signals_are_as_many_as_the_rule_says_and_all_count_the_same() {
    let nics = [("gen:rate=400", 1), ("gen:flows=16;rate=400", 2), ("gen:rate=20000", 1)];
    with_guest(Kernel::Backports, &nics, |_, guest, cards| {
        let [even, spread, fast] = cards else { unreachable!("as many as were asked for") };
        fast.link("down");
        // Every queue has a clock of its own.
        spread.ethtool("-C", "rx-usecs 60 rx-frames 0");
        for queue in [0, 1] {
            wait_for(&format!("signals by time of queue {queue}"), LIMIT, || {
                let signals = spread.counter(queue, "signals_by_time");
                if signals >= 20 { Ok(()) } else { Err(signals.to_string()) }
            });
        }
        spread.link("down");
        // Frames come 2500 us apart: one signal for each, or one for those that come within the time.
        for (usecs, frames) in [(20, 1.0), (60, 1.0), (11_250, 5.0)] {
            even.ethtool("-C", &format!("rx-usecs {usecs} rx-frames 0"));
            predicted(&format!("even, rx-usecs {usecs}"), even, (100, usecs), |w| {
                near(w.by_time as f64, w.held as f64 / frames)
                    && near(w.by_time as f64, w.packets as f64 / frames)
            });
        }
        // By number: the time never comes.
        even.ethtool("-C", "rx-usecs 60000000 rx-frames 10");
        predicted("even, rx-frames 10", even, (200, 60_000_000), |w| {
            assert!(10 * w.by_count <= w.packets + 10, "a signal for less than 10 packets: {w}");
            near(w.by_count as f64, w.packets as f64 / 10.0)
        });
        agree(even, guest);
        even.link("down");
        fast.link("up");
        for usecs in [20, 60, 2000] {
            fast.ethtool("-C", &format!("rx-usecs {usecs}"));
            predicted(&format!("fast, rx-usecs {usecs}"), fast, (5000, usecs), |w| w.by_time > 0);
        }
    });
}

/// A counter of `ethtool -S`.
#[track_caller]
fn statistic(card: &Card<'_>, name: &str) -> u64 {
    let statistics = card.ethtool("-S", "");
    let value = statistics.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {statistics}"))
}

/// Interrupts of queue 0 as everybody counts them: the device, the device when the guest asks it, /proc, the driver.
fn interrupts(card: &Card<'_>) -> [u64; 4] {
    let (asked, driver) = (statistic(card, "rx0_device_interrupts"), statistic(card, "rx0_interrupts"));
    [card.counter(0, "signals"), asked, card.nic.receive_interrupts()[0], driver]
}

/// As [`interrupts`], once nothing comes any more.
fn settled(card: &Card<'_>) -> [u64; 4] {
    let mut last = [0; 4];
    wait_for("interrupts to end", LIMIT, || {
        let now = interrupts(card);
        let before = std::mem::replace(&mut last, now);
        if now == before { Ok(now) } else { Err(format!("{now:?}")) }
    })
}

fn agree(card: &Card<'_>, guest: &Guest) {
    card.link("down");
    // What is held is sent.
    card.ethtool("-C", "rx-usecs 10 rx-frames 0");
    let before = settled(card);
    card.link("up");
    Window::of(card, 200);
    card.link("down");
    let after = settled(card);
    let [device, asked, proc, driver]: [u64; 4] = std::array::from_fn(|i| after[i] - before[i]);
    println!("interrupts: device {device}, asked {asked}, /proc/interrupts {proc}, driver {driver}");
    assert_eq!(device, asked, "flownic ctl stats and ethtool -S");
    let statistics = card.ethtool("-S", "");
    for (shown, counted) in
        [("unwanted", "suppressed"), ("held", "held"), ("by_time", "by_time"), ("by_count", "by_count")]
    {
        let value = card.counter(0, &format!("signals_{counted}"));
        let line = format!("rx0_device_interrupts_{shown}: {value}");
        assert!(statistics.lines().any(|l| l.trim() == line), "no {line} in {statistics}");
    }
    // Those that come while one is pending are one; the driver does not see those for which there is nothing any more.
    assert!(driver <= proc && proc <= device, "{}: an interrupt that was not sent", guest.name());
    assert!(10 * driver >= 8 * device, "interrupts that were not seen");
}

/// Transactions of each run, and runs for each value.
const TRANSACTIONS: i64 = 60;
const RUNS: usize = 5;

#[test]
fn a_request_waits_for_as_long_as_it_was_said_and_no_longer() {
    with_guest(Kernel::Backports, &[("tap:fn0", 1)], |flownic, guest, cards| {
        let card = &cards[0];
        let link = Link::up(0, Interface::named(flownic.machine(), "fn0"), card.nic.clone());
        let _server = traffic::netserver(guest);
        // A pair's poll serves both directions: one for what was sent would find what is being held.
        let usecs = [0, 20, 60, 5000];
        let mut latencies: [Vec<f64>; 4] = Default::default();
        for _ in 0..RUNS {
            for (value, latencies) in usecs.iter().zip(&mut latencies) {
                card.ethtool("-C", &format!("rx-usecs {value} rx-frames 0 tx-usecs 10000000 tx-frames 0"));
                let rate =
                    traffic::netperf(flownic.machine(), &link.far(Family::V4), "TCP_RR", -TRANSACTIONS, "");
                latencies.push(1e6 / rate);
            }
        }
        let median = |sorted: &[f64]| sorted[sorted.len() / 2];
        for (value, latencies) in usecs.iter().zip(&mut latencies) {
            latencies.sort_by(f64::total_cmp);
            let (low, high) = (latencies[0], latencies[RUNS - 1]);
            println!("rx-usecs {value}: median {:.0} us, {low:.0} to {high:.0}", median(latencies));
        }
        let [without, .., with] = latencies;
        assert!(with[0] >= 5000.0, "a response before the request's interrupt was due: {with:?}");
        // Others on this machine only make it longer.
        let rise = with[0] - without[0];
        assert!(rise <= 2.0 * 5000.0, "{rise:.0} us more");
    });
}

#[test]
fn the_device_finds_no_time_for_requests_and_a_long_one_for_streams() {
    with_guest(Kernel::Backports, &[("tap:fn0", 1)], |flownic, guest, cards| {
        let card = &cards[0];
        let link = Link::up(0, Interface::named(flownic.machine(), "fn0"), card.nic.clone());
        let _server = traffic::netserver(guest);
        card.ethtool("-C", "adaptive-rx on rx-usecs 0 rx-frames 0");
        let found = || card.device().1[0].rx.0;
        let requests = |seconds| {
            traffic::netperf(flownic.machine(), &link.far(Family::V4), "TCP_RR", seconds, "");
        };
        requests(2);
        assert_eq!(found(), 0, "requests wait for nothing");
        for _ in 0..2 {
            let stream = format!("netperf -H {} -t TCP_STREAM -l 3600", link.far(Family::V4));
            let stream = flownic.machine().spawn(&stream);
            let begin = Instant::now();
            let usecs = wait_for("a stream to be held", LIMIT, || match found() {
                0 => Err("0".to_owned()),
                usecs => Ok(usecs),
            });
            println!("a stream is held for {usecs} us after {:.1} s", begin.elapsed().as_secs_f64());
            assert!(card.shown(0).adaptive);
            stream.stop();
            let begin = Instant::now();
            wait_for("requests not to be held", LIMIT, || {
                requests(1);
                if found() == 0 { Ok(()) } else { Err(found().to_string()) }
            });
            println!("requests are not after {:.1} s", begin.elapsed().as_secs_f64());
        }
    });
}

/// Times that the kernel's DIM may choose.
const DIM: [u64; 5] = [1, 8, 64, 128, 256];

fn dim_adapts(kernel: Kernel) {
    with_guest(kernel, &[("gen:rate=4000", 2)], |_, _, cards| {
        let card = &cards[0];
        let now = || card.device().1[0];
        let chosen = || statistic(card, "dim_changes");
        let moves = |what: &str| {
            let before = chosen();
            // DIM rests while nothing changes, so what it sees does. What it has chosen is said again after a change
            // of settings, once for each queue.
            wait_for(&format!("DIM to choose after {what}"), LIMIT, || {
                card.link("down");
                card.link("up");
                match chosen() {
                    now if now >= before + 4 => Ok(()),
                    now => Err(format!("{before}, then {now}; {:?}", card.device())),
                }
            });
            let values = now();
            assert!(
                !values.adaptive && DIM.contains(&values.rx.0) && values.rx.1 > 0,
                "{values:?} is none of DIM's"
            );
            println!("{what}: {:?}", values.rx);
        };
        card.ethtool("-C", "rx-usecs 5 rx-frames 0");
        card.ethtool("--set-priv-flags", "dim on");
        assert!(card.ethtool("--show-priv-flags", "").contains("on"));
        assert_eq!(now(), Values::new((5, 0), (9, 0)), "the flag alone does nothing");
        card.ethtool("-C", "adaptive-rx on");
        moves("the start");
        moves("its first choice");
        assert!(Values::shown(&card.ethtool("-c", "")).adaptive && card.shown(0).adaptive);
        // Whatever is in its way for a while, it goes on.
        card.ethtool("-K", "rx-gro-hw off");
        moves("a reset");
        for pairs in [1, 2, 1, 2] {
            card.ethtool("-L", &format!("combined {pairs}"));
        }
        moves("changes of the number of queues");
        card.nic.down();
        card.nic.up(&[]);
        moves("down and up");
        card.ethtool("--set-priv-flags", "dim off");
        card.expect_adaptive("the device's turn", true, &[true; 2]);
        card.ethtool("--set-priv-flags", "dim on");
        moves("the device's turn");
        card.ethtool("-C", "adaptive-rx off");
        let all = Values::new((5, 0), (9, 0));
        card.expect("nobody's turn", all, &[all; 2]);
    });
}

#[test]
fn the_kernel_adapts_if_it_is_to_on_the_stable_kernel() {
    dim_adapts(Kernel::Stable);
}

#[test]
fn the_kernel_adapts_if_it_is_to_on_the_backports_kernel() {
    dim_adapts(Kernel::Backports);
}
