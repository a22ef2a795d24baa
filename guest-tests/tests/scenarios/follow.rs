//! How soon a flow follows its server to another processor, as the server itself sees it.

use guest_tests::{Kernel, Process};

use super::{CLIENTS, GUEST, HOST, LIMIT, Rfs, SERVERS, with_rfs};

/// Moves that are measured.
const MOVES: usize = 15;
/// Datagrams that may come by the old queue after a move, for each that is under way: until the stack has seen the server on its new processor, the driver
/// has run its work, and the device has changed the filter. Nothing that waits for time to pass fits into that.
const ON_THE_OLD_QUEUE: u64 = 100;

/// What became of one move.
struct Move {
    micros: u64,
    old: u64,
    back: u64,
    lost: u64,
    late: u64,
}

/// Moves a server of a flow that has `window` datagrams under way.
fn moves(rfs: &Rfs, window: u32) -> Vec<Move> {
    let stream = format!("exec /proc/1/exe stream {HOST}:{CLIENTS} {GUEST}:{SERVERS} {window}");
    let follow = format!("exec /proc/1/exe follow {GUEST}:{SERVERS} {HOST}:{CLIENTS} 1,2,3 {MOVES}");
    let mut server = rfs.guest.spawn(&follow);
    server.wait_for_text("serving", LIMIT);
    let client = rfs.host().spawn(&stream);
    let output = server.wait(LIMIT);
    client.stop();
    assert!(output.success(), "{output}");
    let lines = output.text();
    let moves = lines.lines().filter_map(|line| {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [_, micros, old, back, lost, late] = numbers[..] else { return None };
        Some(Move { micros, old, back, lost, late })
    });
    moves.collect()
}

/// The median and the worst.
fn spread(moves: &[Move], value: impl Fn(&Move) -> u64) -> (u64, u64) {
    let mut values: Vec<u64> = moves.iter().map(value).collect();
    values.sort_unstable();
    (values[values.len() / 2], values[values.len() - 1])
}

fn follows(kernel: Kernel) {
    with_rfs(kernel, "", |rfs| {
        for (window, hogs) in [(1, false), (8, false), (1, true)] {
            // With something else to do on each processor the driver's work has to compete.
            let hogs = hogs.then(|| {
                let pinned =
                    "for cpu in 0 1 2 3; do taskset -c $cpu sh -c 'while :; do :; done' & done; wait";
                rfs.guest.spawn(pinned)
            });
            let (inserted, moved) = (rfs.counter("inserted"), rfs.counter("moved"));
            let moves = moves(rfs, window);
            assert_eq!(moves.len(), MOVES);
            let each: Vec<String> = moves.iter().map(|m| format!("{} us/{}", m.micros, m.old)).collect();
            println!("each move, and datagrams on the old queue: {}", each.join(", "));
            let (micros, old) = (spread(&moves, |m| m.micros), spread(&moves, |m| m.old));
            let sum = |value: fn(&Move) -> u64| moves.iter().map(value).sum::<u64>();
            let (back, lost, late) = (sum(|m| m.back), sum(|m| m.lost), sum(|m| m.late));
            println!(
                "{window} under way{}: followed after {} us, at most {}; {} datagrams on the old queue, at most {}; \
                 {back} of them after the first on the new one; {lost} lost, {late} out of order",
                if hogs.is_some() { ", busy processors" } else { "" },
                micros.0,
                micros.1,
                old.0,
                old.1
            );
            assert!(old.1 <= ON_THE_OLD_QUEUE * u64::from(window), "{} datagrams on the old queue", old.1);
            assert_eq!(lost, 0, "datagrams lost");
            if window == 1 {
                assert_eq!((back, late), (0, 0), "with one under way nothing can be overtaken");
            }
            assert!(rfs.counter("inserted") - inserted <= 1, "one flow, one filter");
            assert_eq!(rfs.counter("moved") - moved, MOVES as u64, "a command for each move");
            hogs.map(Process::stop);
        }
    });
}

#[test]
fn a_flow_follows_its_server() {
    follows(Kernel::Backports);
}

#[test]
fn a_flow_follows_its_server_with_the_older_kernel() {
    follows(Kernel::Stable);
}
