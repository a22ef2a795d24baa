//! UDP flows: servers that answer on chosen processors, and clients that ask them. Flow number i of several goes between
//! the i-th ports from the given ones on.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::sys;

/// How long a client waits for an answer before it asks again.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same of a stream, whose answers are not to be overtaken by what was sent again too soon.
const STREAM_PATIENCE: Duration = Duration::from_secs(20);
/// Datagrams on the new queue, one after the other, after which a flow has arrived there.
const SETTLED: u32 = 100;

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is not an address with a port"))
}

fn number(text: &str, name: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{name} is {text:?}, not a number"))
}

fn processors(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').map(|cpu| number(cpu, "CPUS").map(|cpu| cpu as usize)).collect()
}

/// The socket of flow `index`.
fn connect(local: SocketAddr, peer: SocketAddr, index: u32) -> Result<UdpSocket, String> {
    let nth = |address: SocketAddr| {
        let port = u16::try_from(u32::from(address.port()) + index);
        port.map(|port| SocketAddr::new(address.ip(), port))
            .map_err(|_| format!("{address} has too few ports behind it"))
    };
    let (local, peer) = (nth(local)?, nth(peer)?);
    let socket = UdpSocket::bind(local).map_err(|error| format!("Could not bind {local}: {error}"))?;
    // RFS takes note only of connected sockets.
    socket.connect(peer).map_err(|error| format!("Could not connect to {peer}: {error}"))?;
    Ok(socket)
}

/// Moves this thread to a processor.
fn run_on(cpu: usize) -> Result<(), String> {
    sys::run_on(cpu).map_err(|error| format!("Could not run on CPU {cpu}: {error}"))
}

/// Answers datagrams of `count` flows from `peer`, each in a thread of its own on the first of `cpus`. Where there are
/// more, the threads move to the next one after each datagram.
pub(crate) fn serve(local: &str, peer: &str, count: &str, cpus: &str) -> Result<(), String> {
    let (local, peer, count, cpus) =
        (address(local)?, address(peer)?, number(count, "COUNT")?, processors(cpus)?);
    let sockets: Result<Vec<_>, _> = (0..count).map(|index| connect(local, peer, index)).collect();
    let threads: Vec<_> = sockets?
        .into_iter()
        .map(|socket| {
            let cpus = cpus.clone();
            thread::Builder::new().stack_size(64 * 1024).spawn(move || answer(&socket, &cpus))
        })
        .collect();
    println!("serving");
    for thread in threads {
        let thread = thread.map_err(|error| format!("Could not start a thread: {error}"))?;
        thread.join().map_err(|_| "A server panicked".to_owned())??;
    }
    Ok(())
}

fn answer(socket: &UdpSocket, cpus: &[usize]) -> Result<(), String> {
    let mut buffer = [0; 2048];
    for cpu in cpus.iter().cycle() {
        run_on(*cpu)?;
        // A peer that has no socket any more, or an interface that is down, is no reason to end.
        if let Ok(length) = socket.recv(&mut buffer) {
            let _ = socket.send(&buffer[..length]);
        }
    }
    Ok(())
}

/// Asks on `count` flows in turn, `rounds` times, and waits for each answer; prints how many requests were sent again.
pub(crate) fn ask(local: &str, peer: &str, count: &str, rounds: &str) -> Result<(), String> {
    let (local, peer, count, rounds) =
        (address(local)?, address(peer)?, number(count, "COUNT")?, number(rounds, "ROUNDS")?);
    let sockets: Result<Vec<_>, _> = (0..count).map(|index| connect(local, peer, index)).collect();
    let sockets = sockets?;
    let mut repeated = 0;
    for round in 0..rounds {
        for socket in &sockets {
            let _ = socket.send(&round.to_ne_bytes());
            while receive(socket, Some(round), PATIENCE).is_none() {
                repeated += 1;
                let _ = socket.send(&round.to_ne_bytes());
            }
        }
    }
    println!("{repeated}");
    Ok(())
}

/// Keeps `window` numbered datagrams under way on one flow until it is killed.
pub(crate) fn stream(local: &str, peer: &str, window: &str) -> Result<(), String> {
    let socket = connect(address(local)?, address(peer)?, 0)?;
    let window = number(window, "WINDOW")?;
    for sequence in 0.. {
        let _ = socket.send(&u32::to_ne_bytes(sequence));
        if sequence + 1 >= window {
            // Without an answer another one is sent, which takes the lost one's place.
            receive(&socket, None, STREAM_PATIENCE);
        }
    }
    Ok(())
}

/// Waits for a datagram, with that number if any is wanted. None when it does not come in time.
fn receive(socket: &UdpSocket, wanted: Option<u32>, patience: Duration) -> Option<u32> {
    let mut buffer = [0; 4];
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        socket.set_read_timeout(Some(left)).ok()?;
        match socket.recv(&mut buffer) {
            Ok(4) if wanted.is_none_or(|wanted| wanted == u32::from_ne_bytes(buffer)) => {
                return Some(u32::from_ne_bytes(buffer));
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
            // Nobody there: a little later there may be.
            _ => {}
        }
    }
}

/// Serves one flow of numbered datagrams and moves through `cpus`, `moves` times, each time when the flow has followed.
/// Prints for each move: CPU, microseconds from the move to the first datagram that came by another queue, datagrams after the
/// move that came by the old one, those that did so after the first by the new one, those missing, and those out of order.
pub(crate) fn follow(local: &str, peer: &str, cpus: &str, moves: &str) -> Result<(), String> {
    let (moves, cpus) = (number(moves, "MOVES")?, processors(cpus)?);
    let mut flow =
        Flow { socket: connect(address(local)?, address(peer)?, 0)?, next: None, lost: 0, late: 0 };
    println!("serving");
    let mut stops = cpus.iter().cycle();
    run_on(*stops.next().ok_or("No CPUS")?)?;
    flow.settle(None)?;
    for cpu in stops.take(moves as usize) {
        let old = flow.queue()?;
        (flow.lost, flow.late) = (0, 0);
        run_on(*cpu)?;
        let (took, before, back) = flow.settle(Some(old))?;
        println!("{cpu} {} {before} {back} {} {}", took.as_micros(), flow.lost, flow.late);
    }
    Ok(())
}

/// A flow that is watched.
struct Flow {
    socket: UdpSocket,
    next: Option<u32>,
    lost: u32,
    late: u32,
}

impl Flow {
    /// The NAPI instance that brought the last datagram: there is one for each queue.
    fn queue(&self) -> Result<u32, String> {
        sys::incoming_napi_id(&self.socket)
            .map_err(|error| format!("Could not ask for the NAPI instance: {error}"))
    }

    /// Answers until the flow has come by one queue for a while, which is not `old`. Gives the time to the first datagram by
    /// another queue, how many came by the old one, and how many of these after that first.
    fn settle(&mut self, old: Option<u32>) -> Result<(Duration, u32, u32), String> {
        let start = Instant::now();
        let (mut took, mut before, mut back) = (None, 0, 0);
        let (mut last, mut row) = (old, 0);
        while row < SETTLED {
            self.answer()?;
            let queue = Some(self.queue()?);
            if queue == old {
                before += 1;
                back += u32::from(took.is_some());
                row = 0;
            } else {
                took = took.or_else(|| Some(start.elapsed()));
                row = if queue == last { row + 1 } else { 1 };
            }
            last = queue;
        }
        Ok((took.unwrap_or_default(), before, back))
    }

    fn answer(&mut self) -> Result<(), String> {
        let mut buffer = [0; 4];
        let length = self.socket.recv(&mut buffer).map_err(|error| format!("Could not receive: {error}"))?;
        let sequence = u32::from_ne_bytes(buffer);
        match self.next {
            Some(next) if sequence < next => {
                self.late += 1;
                // It was taken for lost.
                self.lost = self.lost.saturating_sub(1);
            }
            next => {
                self.lost += next.map_or(0, |next| sequence - next);
                self.next = Some(sequence + 1);
            }
        }
        let _ = self.socket.send(&buffer[..length]);
        Ok(())
    }
}
