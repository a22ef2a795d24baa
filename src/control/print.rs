//! Replies for people: what `flownic ctl` and `flownic-guest` print.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use super::replies::*;
use super::table::Table;
use crate::latency::{Bucket, LatencyStats};
use crate::stats::{Named, NicStats};

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn mode(mode: SteeringMode) -> &'static str {
    match mode {
        SteeringMode::Automatic => "automatic",
        SteeringMode::Rss => "rss",
    }
}

fn or_none(words: &[String]) -> String {
    if words.is_empty() { "none".into() } else { words.join(", ") }
}

/// A NIC, as `show` has it.
pub fn show(n: &NicStatus) -> String {
    let place = n.socket.as_ref().map_or("a descriptor".into(), |s| format!("{s} ({})", n.mode));
    let connected = if n.connected { "connected" } else { "not connected" };
    let link = if n.link_up { "up" } else { "down" };
    let s = &n.steering;
    let mut text =
        format!("{}: {connected}, on {place}; port {}, MTU {}, link {link}\n", n.nic, n.port, n.mtu);
    let _ = writeln!(
        text,
        "  steering: mode {}, learned flows {} ({} of {}), RSS {}, {} of {} rules",
        mode(s.mode),
        on_off(s.learn),
        s.learned,
        s.learned_capacity,
        on_off(s.rss),
        s.rules,
        s.rules_capacity
    );
    text += &knob_line(&n.knobs);
    let _ = writeln!(text, "  features: {}", or_none(&n.features));
    let _ = writeln!(text, "  commands of the guest: {}", n.in_band);
    if let Some(capture) = &n.capture {
        let _ = writeln!(text, "  capture: {capture}");
    }
    let mut table = Table::new(["queue", "worker", "rx ring", "tx ring"]);
    let ring = |size: Option<u16>| size.map_or("stopped".into(), |s| s.to_string());
    for (queue, pair) in n.pairs.iter().enumerate() {
        table.row([queue.to_string(), pair.worker.to_string(), ring(pair.rx_size), ring(pair.tx_size)]);
    }
    text + &table.render(2)
}

fn delay(ns: u64) -> String {
    match ns {
        0 => "0".into(),
        n if n.is_multiple_of(1_000_000_000) => format!("{}s", n / 1_000_000_000),
        n if n.is_multiple_of(1_000_000) => format!("{}ms", n / 1_000_000),
        n if n.is_multiple_of(1_000) => format!("{}us", n / 1_000),
        n => format!("{n}ns"),
    }
}

/// How rules of the guest are taken.
fn knob_line(k: &KnobStatus) -> String {
    let profile = k.profile.as_ref().map_or(String::new(), |p| format!("profile {p}, "));
    let in_flight = k.in_flight.map_or("any".into(), |n| n.to_string());
    let mut text = format!(
        "  rules of the guest: {profile}delay {}, {} of {in_flight} in flight, replace {}, key {}\n",
        delay(k.delay_ns),
        k.on_the_way,
        k.replace,
        k.key
    );
    if !k.faults.is_empty() {
        let _ = writeln!(text, "  injected faults: {}", k.faults.join(", "));
    }
    text
}

/// Knobs and faults.
pub fn knobs(k: KnobStatus) -> String {
    format!("{}: {} rules fit\n{}", k.nic, k.filters, knob_line(&k))
}

/// Counters; those that are zero only with `all`.
pub fn stats(nics: &[NicStats], all: bool) -> String {
    let totals = |_: &str, value: u64| value.to_string();
    nics.iter().map(|n| nic_stats(n, None, all, &totals)).collect()
}

/// What has happened since `before`, per second.
pub fn rates(before: &[NicStats], now: &[NicStats], elapsed: Duration, all: bool) -> String {
    let rate = |_: &str, n: u64| format!("{:.0}", n as f64 / elapsed.as_secs_f64());
    let nics = now.iter().zip(before).map(|(n, b)| nic_stats(n, Some(b), all, &rate));
    nics.fold("Per second:\n".into(), |text, nic| text + &nic)
}

fn nic_stats(
    n: &NicStats,
    before: Option<&NicStats>,
    all: bool,
    show: &dyn Fn(&str, u64) -> String,
) -> String {
    let since = |now: &Named, before: Option<&Named>| -> Vec<(String, u64)> {
        // A counter that has been reset in between has gone back.
        let minus = |name: &str| before.map_or(0, |b| b.get(name));
        now.iter().map(|(name, v)| (name.to_string(), v.checked_sub(minus(name)).unwrap_or(v))).collect()
    };
    let queues = |now: &[Named], before: Option<&[Named]>| -> Vec<Vec<(String, u64)>> {
        now.iter().enumerate().map(|(i, n)| since(n, before.and_then(|b| b.get(i)))).collect()
    };
    let mut text = format!("{}\n", n.nic);
    for (name, value) in since(&n.device, before.map(|b| &b.device)) {
        if all || value != 0 {
            let _ = writeln!(text, "  {name}: {}", show(&name, value));
        }
    }
    text += &queue_table("rx", &queues(&n.rx, before.map(|b| &b.rx[..])), all, show);
    text += &queue_table("tx", &queues(&n.tx, before.map(|b| &b.tx[..])), all, show);
    if before.is_none() && !n.latency.is_empty() {
        text += &latency_table(&n.latency);
    }
    text
}

/// Queues in rows, counters in columns: those that say anything.
fn queue_table(
    side: &str,
    queues: &[Vec<(String, u64)>],
    all: bool,
    show: &dyn Fn(&str, u64) -> String,
) -> String {
    let Some(first) = queues.first() else { return String::new() };
    let columns: Vec<usize> =
        (0..first.len()).filter(|c| all || *c < 2 || queues.iter().any(|q| q[*c].1 != 0)).collect();
    let mut table = Table::new([side].into_iter().chain(columns.iter().map(|c| first[*c].0.as_str())));
    for (queue, values) in queues.iter().enumerate() {
        let cells = columns.iter().map(|c| show(&values[*c].0, values[*c].1));
        table.row([queue.to_string()].into_iter().chain(cells));
    }
    if queues.len() > 1 {
        let sum = |c: usize| queues.iter().fold(0u64, |sum, q| sum.wrapping_add(q[c].1));
        let cells = columns.iter().map(|c| show(&first[*c].0, sum(*c)));
        table.row(["all".to_string()].into_iter().chain(cells));
    }
    table.render(2)
}

/// How long frames and signals of receive queues took: a row for each power of two.
fn latency_table(queues: &[LatencyStats]) -> String {
    let mut table = Table::new(["rx", "below", "frames published", "signals sent"]);
    for (i, queue) in queues.iter().enumerate() {
        let count = |of: &[Bucket], below| of.iter().find(|b| b.below_ns == below).map_or(0, |b| b.count);
        let all = queue.published.iter().chain(&queue.signalled).map(|b| b.below_ns);
        let rows: BTreeSet<u64> = all.map(|below| below.unwrap_or(u64::MAX)).collect();
        for row in rows {
            let below = (row != u64::MAX).then_some(row);
            let words = below.map_or("more".into(), |n| format!("{} us", n as f64 / 1000.0));
            let counts = [count(&queue.published, below), count(&queue.signalled, below)];
            table.row([i.to_string(), words].into_iter().chain(counts.map(|n| n.to_string())));
        }
    }
    table.render(2)
}

/// Features.
pub fn features(list: FeatureList) -> String {
    let mut table = Table::new(["feature", "bit", "offered", "negotiated"]).left(0);
    let yes = |b: bool| if b { "yes" } else { "-" };
    for f in &list.features {
        table.row([&f.name, &f.bit.to_string(), yes(f.offered), yes(f.negotiated)]);
    }
    format!("{}\n{}", list.nic, table.render(2))
}

/// Filter rules.
pub fn flows(list: FlowList) -> String {
    let rules = list.rules.len() + list.guest.len();
    let mut text = format!("{}: {rules} of {} rules\n", list.nic, list.capacity);
    if !list.rules.is_empty() {
        text += &host_flows(list.rules);
    }
    if !list.guest.is_empty() {
        text += "  made by the guest:\n";
        text += &guest_flows(list.guest);
    }
    text
}

fn host_flows(rules: Vec<FlowStatus>) -> String {
    let mut table = Table::new(["loc", "hits", "to", "rule"]).left(3);
    for FlowStatus { rule, hits } in rules {
        let loc = rule.loc.map_or("-".into(), |loc| loc.to_string());
        let to = if rule.action < 0 { "drop".into() } else { format!("queue {}", rule.action) };
        table.row([loc, hits.to_string(), to, rule.to_string()]);
    }
    table.render(2)
}

fn guest_flows(rules: Vec<GuestFlow>) -> String {
    let mut table = Table::new(["group", "priority", "id", "hits", "to", "rule"]).left(5);
    for r in rules {
        let to = match (r.context, r.rule.action) {
            (None, -1) => "drop".into(),
            (None, queue) => format!("queue {queue}"),
            (Some(context), 0) => format!("context {context}"),
            (Some(context), offset) => format!("context {context} + {offset}"),
        };
        let mut words = r.rule.to_string();
        if let Some(flags) = r.tcp_flags {
            let (value, mask) = flags.parts();
            let _ = write!(words, ", TCP flags {value:#04x} of {mask:#04x}");
        }
        let group = format!("{} ({})", r.group, r.group_priority);
        table.row([group, r.priority.to_string(), r.id.to_string(), r.hits.to_string(), to, words]);
    }
    table.render(2)
}

/// Receive-side scaling.
pub fn rss(r: RssStatus) -> String {
    let by = if r.by_guest { ", set by the guest" } else { "" };
    let mut text = format!("{}: RSS {}, mode {}{by}\n", r.nic, on_off(r.on), mode(r.mode));
    let _ = writeln!(text, "  key: {}", r.key);
    let _ = writeln!(text, "  hash types: {}", or_none(&r.hash_types));
    let _ = writeln!(text, "  packets without a hash: queue {}", r.unclassified);
    text += &indirection(if r.default_table { "default table" } else { "table" }, &r.table);
    if r.effective.is_empty() {
        text.push_str("  in force: nothing, no queue runs\n");
    } else if r.effective != r.table {
        text += &indirection("in force, with the queues that run", &r.effective);
    }
    for c in &r.contexts {
        let _ = writeln!(text, "  context {}, used by {} rule(s)", c.id, c.rules);
        let _ = writeln!(text, "  key: {}", c.key);
        let _ = writeln!(text, "  hash types: {}", or_none(&c.hash_types));
        let _ = writeln!(text, "  packets without a hash: queue {}", c.unclassified);
        text += &indirection("table", &c.table);
    }
    text
}

/// Interrupt moderation.
pub fn coalesce(c: CoalesceStatus) -> String {
    let mut text = format!("{}, coalesce={}\n  adaptive-rx: {}\n", c.nic, c.rule, on_off(c.rx.adaptive));
    for (side, v) in [("rx", c.rx), ("tx", c.tx)] {
        let _ = writeln!(text, "  {side}-usecs: {}\n  {side}-frames: {}", v.usecs, v.frames);
    }
    let mut table = Table::new(["queue", "rx-usecs", "rx-frames", "tx-usecs", "tx-frames"]);
    let common = QueueCoalesce { rx: c.rx, tx: c.tx };
    let others: Vec<_> = c.queues.iter().enumerate().filter(|(_, q)| **q != common).collect();
    for (i, q) in &others {
        table.row(
            [*i, q.rx.usecs as usize, q.rx.frames as usize, q.tx.usecs as usize, q.tx.frames as usize]
                .map(|n| n.to_string()),
        );
    }
    if others.is_empty() { text } else { text + "  queues of their own:\n" + &table.render(2) }
}

fn indirection(what: &str, table: &[u16]) -> String {
    let mut text = format!("  {what}, {} entries:\n", table.len());
    for (i, row) in table.chunks(16).enumerate() {
        let queues: String = row.iter().map(|q| format!(" {q:>2}")).collect();
        let _ = writeln!(text, "  {:>5}:{queues}", i * 16);
    }
    text
}

/// Learned flows.
pub fn learn(l: LearnStatus) -> String {
    let total: u64 = l.flows.iter().map(|n| u64::from(*n)).sum();
    let mut text = format!(
        "{}: learned flows {}, mode {}; {total} of {}, forgotten after {} s\n",
        l.nic,
        on_off(l.on),
        mode(l.mode),
        l.capacity,
        l.idle_secs
    );
    let _ = writeln!(
        text,
        "  so far: {} learned, {} moved, {} evicted, {} expired",
        l.learned, l.moved, l.evicted, l.expired
    );
    let mut table = Table::new(["queue", "flows"]);
    for (queue, flows) in l.flows.iter().enumerate() {
        table.row([queue.to_string(), flows.to_string()]);
    }
    text + &table.render(2)
}
