//! The server: traces, and what a client may cost.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::client::{Client, ClientError};
use super::protocol::{Body, Code, ControlError, Request};
use super::replies::*;
use super::server::{Limits, Server};
use super::tests::{Fixture, rule};
use crate::packet::parse;
use crate::steer::{Reason, RuleSlot, Verdict};

impl Fixture {
    fn serve(&self, limits: Limits) -> (Server, PathBuf) {
        let path = self.folder.path().join("control");
        (Server::start(Arc::clone(&self.daemon), &path, limits).unwrap(), path)
    }
}

#[test]
fn a_trace_brings_decisions_with_locations_and_ends_at_its_limit() {
    let f = Fixture::new(&["n0,queues=2"]);
    let (_server, path) = f.serve(Limits::default());
    f.get::<FlowAdded>(rule(80, 5));
    let nic = &f.daemon.nics()[0];
    let slot = nic.steering.read().filters().ntuples().next().unwrap().1;
    let mut client = Client::connect(&path).unwrap();
    let trace = |limit| Request::Trace { nic: None, filter: Default::default(), limit };
    client.call::<Done>(&trace(Some(2))).unwrap();
    let busy = Client::connect(&path).unwrap().call::<Done>(&trace(None)).unwrap_err();
    assert!(matches!(busy, ClientError::Refused(ControlError { code: Code::Busy, .. })), "{busy}");
    let headers = parse(&[0; 60], 60);
    let verdict = |rule: Option<RuleSlot>| Verdict::Queue { queue: 1, reason: Reason::Filter, rule };
    for rule in [Some(slot), None, None] {
        nic.trace.record(&headers, 60, verdict(rule));
    }
    let records: Vec<_> = (0..2)
        .map(|_| match client.trace().unwrap() {
            Body::Trace(r) => (r.queue, r.rule),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(records, [(Some(1), Some(5)), (Some(1), None)]);
    let Body::End(end) = client.trace().unwrap() else { panic!("no end") };
    assert_eq!((end.records, end.lost), (2, 0));
    // Without a limit, the next request ends it, and is answered; so does the end of the connection.
    client.call::<Done>(&trace(None)).unwrap();
    client.call::<Vec<NicStatus>>(&Request::Show { nic: None }).unwrap();
    assert!(!nic.trace.is_on());
    client.call::<Done>(&trace(None)).unwrap();
    drop(client);
    let mut client = Client::connect(&path).unwrap();
    // At once, whether or not the server has noticed.
    client.call::<Done>(&trace(None)).unwrap();
}

/// Reads a connection to its end: the code of each error that came, and how many lines there were.
fn read_out(stream: UnixStream) -> (Vec<String>, usize) {
    let lines: Vec<String> = BufReader::new(stream).lines().map_while(Result::ok).collect();
    let code =
        |l: &String| serde_json::from_str::<Value>(l).ok()?["error"]["code"].as_str().map(str::to_string);
    (lines.iter().filter_map(code).collect(), lines.len())
}

const SHOW: &[u8] = b"{\"version\":1,\"id\":null,\"request\":{\"command\":\"show\"}}\n";

#[test]
fn a_line_without_end_is_refused_when_it_is_too_long() {
    let f = Fixture::new(&["n0"]);
    let (_server, path) = f.serve(Limits { line: 1000, ..Limits::default() });
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(SHOW).unwrap();
    // It stops reading somewhere; what is written after that fails or is lost.
    let _ = stream.write_all(&[b'x'; 3000]);
    let (codes, lines) = read_out(stream);
    assert_eq!((codes, lines), (vec!["EMSGSIZE".to_string()], 2), "after the answer to what was right");
    // As long as allowed is allowed.
    let mut stream = UnixStream::connect(&path).unwrap();
    let mut line = SHOW.to_vec();
    line.splice(0..0, vec![b' '; 1001 - SHOW.len()]);
    stream.write_all(&line).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_out(stream), (vec![], 1));
}

#[test]
fn a_client_that_does_not_finish_a_line_or_says_nothing_is_let_go() {
    let f = Fixture::new(&["n0"]);
    let short = Duration::from_millis(30);
    let (_server, path) = f.serve(Limits { request: short, idle: short, ..Limits::default() });
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"{\"version\"").unwrap();
    assert_eq!(read_out(stream), (vec!["ETIMEDOUT".to_string()], 1));
    assert_eq!(read_out(UnixStream::connect(&path).unwrap()), (vec![], 0));
}

#[test]
fn a_client_that_does_not_read_is_let_go_and_delays_nobody() {
    let f = Fixture::new(&["n0"]);
    let (_server, path) = f.serve(Limits { write: Duration::from_millis(30), ..Limits::default() });
    let mut deaf = UnixStream::connect(&path).unwrap();
    // It asks on until nobody listens any more: its answers fill the socket, and then it is let go.
    while deaf.write_all(SHOW).is_ok() {
        Client::connect(&path).unwrap().call::<Vec<NicStatus>>(&Request::Show { nic: None }).unwrap();
    }
}

#[test]
fn there_are_only_so_many_clients() {
    let f = Fixture::new(&["n0"]);
    let (server, path) = f.serve(Limits { clients: 2, ..Limits::default() });
    let mut clients: Vec<_> = (0..2).map(|_| Client::connect(&path).unwrap()).collect();
    for client in &mut clients {
        client.call::<Vec<NicStatus>>(&Request::Show { nic: None }).unwrap();
    }
    assert_eq!(read_out(UnixStream::connect(&path).unwrap()), (vec!["EAGAIN".to_string()], 1));
    drop(clients.pop());
    // As soon as the server has noticed, there is room again.
    while Client::connect(&path).unwrap().call::<Vec<NicStatus>>(&Request::Show { nic: None }).is_err() {}
    drop(server);
    assert!(!path.exists());
    let mut end = Vec::new();
    let e = clients[0].call::<Value>(&Request::Show { nic: None }).unwrap_err();
    assert!(matches!(e, ClientError::Closed | ClientError::Io(_)), "{e}");
    assert!(UnixStream::connect(&path).map(|mut s| s.read_to_end(&mut end)).is_err());
}

#[test]
fn a_socket_that_hangs_up_or_says_nothing_is_no_control_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("n0.sock");
    let nic = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let ask = || {
        let mut client = Client::connect(&path).unwrap();
        client.call::<Vec<NicStatus>>(&Request::Show { nic: None }).unwrap_err().to_string()
    };
    let wanted = format!("{} does not answer as a control socket; is it a NIC's socket?", path.display());
    // One that has a front end leaves others waiting in its queue.
    assert_eq!(ask(), wanted);
    let closer = std::thread::spawn(move || (0..2).for_each(|_| drop(nic.accept().unwrap())));
    assert_eq!(ask(), wanted);
    closer.join().unwrap();
}

#[test]
fn calls_in_one_go_are_answered_in_order() {
    let f = Fixture::new(&["n0"]);
    let (_server, path) = f.serve(Limits::default());
    let mut stream = UnixStream::connect(&path).unwrap();
    let calls: String = (0..50)
        .map(|id| format!("{{\"version\":1,\"id\":{id},\"request\":{{\"command\":\"show\"}}}}\n"))
        .collect();
    stream.write_all(calls.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let ids: Vec<u64> = BufReader::new(stream)
        .lines()
        .map(|l| serde_json::from_str::<Value>(&l.unwrap()).unwrap()["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids, (0..50).collect::<Vec<_>>());
}
