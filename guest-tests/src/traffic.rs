//! Traffic between two machines: netperf, ping, and transfers whose content is compared.

use std::time::Duration;

use crate::machine::{Machine, Process};
use crate::wait_for;

/// How long a server may take to listen.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts `command` in `machine` and waits until something listens at `port` (`tcp` or `udp`).
///
/// # Panics
/// When nothing does in time.
#[track_caller]
pub fn serve<'m>(machine: &'m Machine, command: &str, protocol: &str, port: u16) -> Process<'m> {
    let mut server = machine.spawn(command);
    let flag = if protocol == "udp" { 'u' } else { 't' };
    wait_for(&format!("{}: `{command}` to listen", machine.name()), LIMIT, || {
        if server.ended().is_some() {
            panic!("{}: `{command}` ended with {}", machine.name(), server.output());
        }
        let listening = machine.run(&format!("ss -{flag}lnH 'sport = :{port}'"));
        if listening.text().is_empty() { Err(listening.to_string()) } else { Ok(()) }
    });
    server
}

/// Starts netperf's server.
///
/// # Panics
/// When it does not start.
#[track_caller]
pub fn netserver(machine: &Machine) -> Process<'_> {
    serve(machine, "netserver -D", "tcp", 12865)
}

/// Runs a netperf test and gives its figure: transactions per second, or what the receiver got in Mbit/s. `length` is
/// how long it runs: seconds or, negative, transactions or bytes. `more` are the test's own arguments.
///
/// # Panics
/// When netperf fails or nothing came through.
#[track_caller]
pub fn netperf(client: &Machine, address: &str, test: &str, length: i64, more: &str) -> f64 {
    let family = if address.contains(':') { "-6" } else { "-4" };
    let text = client.run_ok(&format!("netperf {family} -H {address} -t {test} -l {length} -P 0 -- {more}"));
    // The last line is the receiver's. Its last number is the figure, but for request/response, where it is alone.
    let figures: Vec<Vec<f64>> = text
        .lines()
        .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        .filter(|numbers: &Vec<f64>| !numbers.is_empty())
        .collect();
    let line = if test.ends_with("_RR") { figures.first() } else { figures.last() };
    let figure = line.and_then(|numbers| numbers.last().copied()).unwrap_or_default();
    assert!(figure > 0.0, "{}: {test} to {address} got nothing through: {text}", client.name());
    figure
}

/// Waits until an echo request is answered. Some may be lost: a flood may be on its way as well.
///
/// # Panics
/// When none is for a minute.
#[track_caller]
pub fn wait_for_answer(from: &Machine, address: &str) {
    wait_for(&format!("{address} to answer"), Duration::from_secs(60), || {
        let output = from.run(&format!("ping -c 1 -W 1 {address}"));
        if output.success() { Ok(()) } else { Err(output.to_string()) }
    });
}

/// Sends `count` echo requests of `size` bytes and wants an answer to each. Larger packets than the path takes fail.
///
/// # Panics
/// When an answer is missing.
#[track_caller]
pub fn ping(from: &Machine, address: &str, count: u32, size: u32) {
    from.run_ok(&format!("ping -M do -i 0.05 -W 5 -c {count} -s {size} {address}"));
}

/// Copies `bytes` random bytes over TCP to `address`, which is `to`'s, and compares the checksums.
///
/// # Panics
/// When they differ.
#[track_caller]
pub fn transfer(from: &Machine, to: &Machine, address: &str, bytes: u64) {
    const PORT: u16 = 5001;
    let (sent, received) = ("/tmp/sent", "/tmp/received");
    from.run_ok(&format!("head -c {bytes} /dev/urandom >{sent}"));
    // Input that never ends, from a pipe that is open for writing too: the peer would take its end for ours.
    let server = serve(
        to,
        &format!("mkfifo {received}.in && exec busybox nc -l -p {PORT} <>{received}.in >{received}"),
        "tcp",
        PORT,
    );
    from.run_ok(&format!("busybox nc {address} {PORT} <{sent}"));
    let output = server.wait(Duration::from_secs(60));
    assert!(output.success(), "{}: receiving ended with {output}", to.name());
    let sum = |machine: &Machine, file: &str| {
        machine.run_ok(&format!("sha256sum <{file}; wc -c <{file}; rm -f {file} {file}.in"))
    };
    let (sent, received) = (sum(from, sent), sum(to, received));
    assert_eq!(sent, received, "{} -> {}: content differs", from.name(), to.name());
}
