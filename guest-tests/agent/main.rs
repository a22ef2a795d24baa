//! The agent: runs commands and moves files for the harness.
//!
//! It is PID 1 of a guest, where it also brings the system up and talks over a virtio-serial port, or PID 1 of a
//! network namespace on the host (`flownic-agent namespace [TOOLS_ROOT]`, the stream is standard input).
//! `flownic-agent send INTERFACE COUNT` sends a frame from standard input, for tests that make frames by hand;
//! `flownic-agent queues INTERFACE` prints what each receive queue has received; `flownic-agent xdp PROGRAM FILE [frags]`
//! pins a small XDP program; `flownic-agent serve-flows`, `ask-flows`, `stream` and `follow` are the two ends of UDP flows.
//! Everything ends when the machine or the namespace ends; there is no state on disk.

mod drivers;
mod flows;
mod init;
mod namespace;
mod process;
mod pump;
mod qstats;
mod send;
mod serve;
mod sys;
mod xdp;

use std::process::ExitCode;

const USAGE: &str = "Usage: flownic-agent namespace [TOOLS_ROOT] | send INTERFACE COUNT | queues INTERFACE | \
                     xdp PROGRAM FILE [frags] | serve-flows LOCAL PEER COUNT CPUS | ask-flows LOCAL PEER COUNT ROUNDS | \
                     stream LOCAL PEER WINDOW | follow LOCAL PEER CPUS MOVES, or as the first process of a guest";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["namespace", root @ ..] if root.len() <= 1 => namespace::enter(root.first().copied()),
        ["namespace-init", root @ ..] if root.len() <= 1 => namespace::run(root.first().copied()),
        ["send", interface, count] => send::run(interface, count),
        ["queues", interface] => qstats::run(interface),
        ["xdp", program, path] => xdp::pin(program, path, false),
        ["xdp", program, path, "frags"] => xdp::pin(program, path, true),
        ["serve-flows", local, peer, count, cpus] => flows::serve(local, peer, count, cpus),
        ["ask-flows", local, peer, count, rounds] => flows::ask(local, peer, count, rounds),
        ["stream", local, peer, window] => flows::stream(local, peer, window),
        ["follow", local, peer, cpus, moves] => flows::follow(local, peer, cpus, moves),
        _ if std::process::id() == 1 => init::run(),
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("flownic-agent: {message}");
            ExitCode::FAILURE
        }
    }
}
