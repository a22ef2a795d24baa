//! The end that measures.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::arguments::{Exchange, Protocol};
use crate::latency::Latencies;
use crate::sys::{self, Epoll};

/// How long to wait for the answer to a datagram, which may be lost, and to what TCP sends again when it is.
fn limit(protocol: Protocol) -> Duration {
    match protocol {
        Protocol::Udp => Duration::from_secs(1),
        Protocol::Tcp => Duration::from_secs(30),
    }
}

/// A connected socket.
enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
        }
    }
}

impl Socket {
    fn connect(exchange: &Exchange) -> io::Result<Socket> {
        let address = SocketAddr::new(exchange.address, exchange.port);
        Ok(match exchange.protocol {
            Protocol::Tcp => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(limit(Protocol::Tcp)))?;
                Socket::Tcp(stream)
            }
            Protocol::Udp => {
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_read_timeout(Some(limit(Protocol::Udp)))?;
                Socket::Udp(socket)
            }
        })
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.write_all(message),
            Socket::Udp(socket) => socket.send(message).map(drop),
        }
    }

    /// Takes what has come of an answer, after `have` bytes of it; gives how many there are then.
    fn receive(&mut self, answer: &mut [u8], have: usize) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => match stream.read(&mut answer[have..])? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                length => Ok(have + length),
            },
            Socket::Udp(socket) => socket.recv(answer),
        }
    }
}

/// Sends messages and waits for their answers.
struct Client {
    socket: Socket,
    epoll: Option<Epoll>,
    limit: Duration,
    message: Vec<u8>,
    answer: Vec<u8>,
    number: u64,
}

impl Client {
    /// Sends the next message; whether its answer came.
    fn exchange(&mut self) -> io::Result<bool> {
        self.number += 1;
        self.message[..8].copy_from_slice(&self.number.to_le_bytes());
        self.socket.send(&self.message)?;
        let mut have = 0;
        loop {
            if let Some(epoll) = &self.epoll
                && epoll.wait(Some(self.limit))?.is_none()
            {
                return self.lost();
            }
            have = match self.socket.receive(&mut self.answer, have) {
                Ok(have) => have,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.lost(),
                Err(error) => return Err(error),
            };
            if have < self.message.len() {
                continue;
            }
            if self.answer == self.message {
                return Ok(true);
            }
            // The answer to a datagram that was given up.
            have = 0;
        }
    }

    fn lost(&self) -> io::Result<bool> {
        match self.socket {
            Socket::Udp(_) => Ok(false),
            Socket::Tcp(_) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {:?}", self.limit)))
            }
        }
    }
}

/// Sends and receives as it is told, and reports.
pub(crate) fn run(exchange: &Exchange) -> Result<Value, String> {
    let server = SocketAddr::new(exchange.address, exchange.port);
    let socket =
        Socket::connect(exchange).map_err(|error| format!("Could not connect to {server}: {error}"))?;
    exchange.waiting.prepare(&socket)?;
    let epoll = if exchange.waiting.epoll {
        let epoll = exchange.waiting.instance()?;
        epoll.add(&socket, 0).map_err(|error| format!("Could not watch the socket: {error}"))?;
        Some(epoll)
    } else {
        None
    };
    let (message, answer) = (vec![0; exchange.size], vec![0; exchange.size]);
    let mut client = Client { socket, epoll, limit: limit(exchange.protocol), message, answer, number: 0 };
    let outcome = measure(&mut client, exchange);
    outcome.map_err(|error| format!("After {} messages to {server}: {error}", client.number))
}

fn measure(client: &mut Client, exchange: &Exchange) -> io::Result<Value> {
    let mut latencies = Latencies::default();
    let mut lost = 0u64;
    let begin = Instant::now() + exchange.warm_up;
    let end = begin + exchange.length;
    let (mut due, mut before) = (Instant::now(), None);
    loop {
        let mut sent = Instant::now();
        // Between messages it does not sleep: that would be another thing to wake up from.
        while sent < due {
            std::hint::spin_loop();
            sent = Instant::now();
        }
        if sent >= end {
            break;
        }
        if sent >= begin && before.is_none() {
            before = Some(sys::cpu_time()?);
            sent = Instant::now();
        }
        let answered = client.exchange()?;
        let now = Instant::now();
        if !answered {
            lost += 1;
        } else if before.is_some() {
            latencies.add(now - sent);
        }
        // What is late is sent at once, and does not have the next ones follow closely.
        due = (due + exchange.interval).max(now.min(sent + exchange.interval));
    }
    let cpu = sys::cpu_time()?.saturating_sub(before.unwrap_or_default());
    Ok(json!({
        "messages": client.number,
        "lost": lost,
        "measured": latencies.count(),
        "seconds": exchange.length.as_secs(),
        "cpu_us": cpu.as_micros() as u64,
        "napi_id": sys::option(&client.socket, sys::INCOMING_NAPI_ID)?,
        "rtt_us": latencies.report(),
    }))
}
