//! The end that sends everything back.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use crate::arguments::{Protocol, Service};
use crate::sys::{self, Epoll};
use crate::waiting::Waiting;

/// Longest message that comes in one piece.
const LONGEST: usize = 65536;

/// Serves until it is killed.
pub(crate) fn run(service: &Service) -> Result<(), String> {
    let address = (Ipv6Addr::UNSPECIFIED, service.port);
    let failed = |error: io::Error| format!("Could not listen on port {}: {error}", service.port);
    match service.protocol {
        Protocol::Udp => datagrams(&UdpSocket::bind(address).map_err(failed)?, service.waiting),
        Protocol::Tcp => {
            let listener = TcpListener::bind(address).map_err(failed)?;
            if service.waiting.epoll {
                shared(&listener, service)
            } else {
                one_each(&listener, service.waiting)
            }
        }
    }
}

fn datagrams(socket: &UdpSocket, waiting: Waiting) -> Result<(), String> {
    waiting.prepare(socket)?;
    let epoll = if waiting.epoll {
        let epoll = waiting.instance()?;
        epoll.add(socket, 0).map_err(|error| format!("Could not watch the socket: {error}"))?;
        Some(epoll)
    } else {
        None
    };
    println!("Ready");
    let mut buffer = vec![0; LONGEST];
    loop {
        let answered = epoll.as_ref().map_or(Ok(()), |epoll| epoll.wait(None).map(drop)).and_then(|()| {
            let (length, from) = socket.recv_from(&mut buffer)?;
            socket.send_to(&buffer[..length], from).map(drop)
        });
        if let Err(error) = answered {
            eprintln!("flownic-pingpong: {error}");
        }
    }
}

/// A thread for each connection, which waits in `recv`.
fn one_each(listener: &TcpListener, waiting: Waiting) -> Result<(), String> {
    // Before the first connection: a server that cannot wait as it should is of no use.
    waiting.prepare(listener)?;
    println!("Ready");
    for stream in listener.incoming() {
        let mut stream = stream.map_err(|error| format!("Could not accept: {error}"))?;
        let ready = stream.set_nodelay(true).map_err(|error| error.to_string());
        ready.and_then(|()| waiting.prepare(&stream))?;
        thread::spawn(move || {
            let mut buffer = vec![0; LONGEST];
            while echo(&mut stream, &mut buffer) {}
        });
    }
    Ok(())
}

/// Sends back what has come; whether the connection goes on.
fn echo(stream: &mut TcpStream, buffer: &mut [u8]) -> bool {
    match stream.read(buffer) {
        Ok(0) | Err(_) => false,
        Ok(length) => stream.write_all(&buffer[..length]).is_ok(),
    }
}

/// An epoll instance, and the connections that it watches, by their descriptors.
struct Worker {
    epoll: Epoll,
    streams: Mutex<BTreeMap<u64, TcpStream>>,
}

impl Worker {
    /// One that runs in a thread of its own.
    fn start(waiting: Waiting) -> Result<Arc<Worker>, String> {
        let worker = Arc::new(Worker { epoll: waiting.instance()?, streams: Mutex::default() });
        let runs = Arc::clone(&worker);
        thread::spawn(move || runs.serve());
        Ok(worker)
    }

    fn streams(&self) -> MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.streams.lock().expect("no thread panics while it holds them")
    }

    fn take(&self, stream: TcpStream) -> Result<(), String> {
        let number = stream.as_raw_fd() as u64;
        // The worker looks for it under the same lock, so it may have something to read at once.
        let mut streams = self.streams();
        self.epoll.add(&stream, number).map_err(|error| format!("Could not watch a connection: {error}"))?;
        streams.insert(number, stream);
        Ok(())
    }

    fn serve(&self) {
        let mut buffer = vec![0; LONGEST];
        loop {
            match self.epoll.wait(None) {
                Ok(Some(number)) => {
                    let mut streams = self.streams();
                    if streams.get_mut(&number).is_some_and(|stream| !echo(stream, &mut buffer)) {
                        streams.remove(&number);
                    }
                }
                Ok(None) => {}
                Err(error) => panic!("epoll_wait: {error}"),
            }
        }
    }
}

/// Workers, to which connections go by their NAPI.
fn shared(listener: &TcpListener, service: &Service) -> Result<(), String> {
    let workers: Result<Vec<Arc<Worker>>, String> =
        (0..service.workers).map(|_| Worker::start(service.waiting)).collect();
    let workers = workers?;
    println!("Ready");
    let mut routes = Routes::default();
    for stream in listener.incoming() {
        let stream = stream.map_err(|error| format!("Could not accept: {error}"))?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let napi = sys::option(&stream, sys::INCOMING_NAPI_ID)
            .map_err(|error| format!("Could not read SO_INCOMING_NAPI_ID: {error}"))?;
        let worker = routes.worker(napi, workers.len());
        println!("Connection of NAPI {napi} goes to worker {worker}");
        workers[worker].take(stream)?;
    }
    Ok(())
}

/// Which worker has the connections of a NAPI.
#[derive(Debug, Default)]
struct Routes(BTreeMap<i32, usize>);

impl Routes {
    /// The one that has them already, or the next in turn.
    fn worker(&mut self, napi: i32, workers: usize) -> usize {
        let next = self.0.len() % workers;
        *self.0.entry(napi).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_a_queue_stay_together() {
        let mut routes = Routes::default();
        let workers: Vec<usize> = [513, 514, 513, 515, 514].map(|napi| routes.worker(napi, 2)).into();
        assert_eq!(workers, [0, 1, 0, 0, 1]);
    }
}
