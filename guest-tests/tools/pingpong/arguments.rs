//! What the user wants.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::napi::{Setting, Threaded};
use crate::waiting::Waiting;

pub(crate) const USAGE: &str = "Usage: flownic-pingpong serve [--workers N] [OPTION...]
       flownic-pingpong ping ADDRESS [--mps N] [--seconds N] [--warm-up MS] [OPTION...]
       flownic-pingpong napi INTERFACE [SETTING VALUE]...

serve sends back whatever it gets. ping sends a message, waits for the answer, and sends the next one when it is due; it
prints a line of JSON: how many there were, and percentiles of the round-trip time in microseconds. napi shows the state of
an interface's queues, after it has changed it.

  --tcp, --udp      the protocol (tcp)
  --port N          the server's port (11110)
  --size N          bytes of a message, 8 to 65000 (16)
  --mps N           messages a second at the most, 0 for as many as possible (0)
  --seconds N       how long, 1 to 3600, after the warm-up (1)
  --warm-up MS      how long messages go to and fro before they count, 0 to 60000 (200)
  --workers N       with --epoll: threads, each with an epoll instance (1). Connections go to them by the queue that they
                    come in on (SO_INCOMING_NAPI_ID): all of an instance must have the same, or it does not busy-poll

How it waits, if not asleep until an interrupt wakes it:
  --epoll           in epoll_wait, not in recv
  --busy-poll US    polls the device's queue for so long first: SO_BUSY_POLL, with --epoll EPIOCSPARAMS (Linux 6.9)
  --prefer          busy polling goes before interrupts: SO_PREFER_BUSY_POLL, or the same of EPIOCSPARAMS
  --budget N        packets that are taken at once, 1 to 65535: SO_BUSY_POLL_BUDGET, or the same of EPIOCSPARAMS

Settings of napi:
  defer-hard-irqs N          times that a queue is looked at before its interrupt is wanted again
  gro-flush-timeout NS       when it is looked at again meanwhile
  irq-suspend-timeout NS     how long interrupts stay away after a busy poll with --epoll --prefer (Linux 6.13)
  threaded off|on|busy-poll  a thread of the kernel does the work; busy-poll: it never sleeps (Linux 6.19)";

/// Protocol of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

/// A server to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
    pub(crate) workers: usize,
    pub(crate) waiting: Waiting,
}

/// Messages to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) address: IpAddr,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
    /// Bytes of a message.
    pub(crate) size: usize,
    /// From one message to the next; zero: as fast as answers come.
    pub(crate) interval: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
    pub(crate) waiting: Waiting,
}

/// What the user wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    Help,
    Serve(Service),
    Ping(Exchange),
    Napi { interface: String, settings: Vec<Setting> },
}

/// Options of both ends, and those of one of them as they were found.
struct Options {
    protocol: Protocol,
    port: u16,
    waiting: Waiting,
    size: Option<u64>,
    mps: Option<u64>,
    seconds: Option<u64>,
    warm_up: Option<u64>,
    workers: Option<u64>,
}

impl Order {
    /// From the command line, without the program's name.
    pub(crate) fn parse(arguments: &[String]) -> Result<Order, String> {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        if words.iter().any(|word| ["-h", "--help"].contains(word)) {
            return Ok(Order::Help);
        }
        match words.as_slice() {
            ["serve", options @ ..] => serve(options),
            ["ping", address, options @ ..] if !address.starts_with('-') => ping(address, options),
            ["ping", ..] => Err("ping takes the server's address first".to_owned()),
            ["napi", interface, settings @ ..] => napi(interface, settings),
            ["napi"] => Err("napi takes the name of an interface".to_owned()),
            [] => Err("What is to be done: serve, ping or napi?".to_owned()),
            [word, ..] => Err(format!("There is no '{word}', only serve, ping and napi")),
        }
    }
}

fn serve(words: &[&str]) -> Result<Order, String> {
    let options = Options::parse(words)?;
    let ping_only = [
        ("--size", options.size),
        ("--mps", options.mps),
        ("--seconds", options.seconds),
        ("--warm-up", options.warm_up),
    ];
    if let Some((name, _)) = ping_only.iter().find(|(_, value)| value.is_some()) {
        return Err(format!("{name} is of ping, not of serve"));
    }
    let Options { protocol, port, waiting, workers, .. } = options;
    if workers.is_some() && !(waiting.epoll && protocol == Protocol::Tcp) {
        return Err("--workers needs --epoll and TCP".to_owned());
    }
    Ok(Order::Serve(Service { protocol, port, workers: workers.unwrap_or(1) as usize, waiting }))
}

fn ping(address: &str, words: &[&str]) -> Result<Order, String> {
    let address = address.parse().map_err(|_| format!("'{address}' is no IP address"))?;
    let options = Options::parse(words)?;
    if options.workers.is_some() {
        return Err("--workers is of serve, not of ping".to_owned());
    }
    let interval = match options.mps.unwrap_or(0) {
        0 => Duration::ZERO,
        mps => Duration::from_nanos(1_000_000_000 / mps),
    };
    Ok(Order::Ping(Exchange {
        address,
        protocol: options.protocol,
        port: options.port,
        size: options.size.unwrap_or(16) as usize,
        interval,
        warm_up: Duration::from_millis(options.warm_up.unwrap_or(200)),
        length: Duration::from_secs(options.seconds.unwrap_or(1)),
        waiting: options.waiting,
    }))
}

impl Options {
    fn parse(words: &[&str]) -> Result<Options, String> {
        let mut options = Options {
            protocol: Protocol::Tcp,
            port: 11110,
            waiting: Waiting::default(),
            size: None,
            mps: None,
            seconds: None,
            warm_up: None,
            workers: None,
        };
        let mut words = words.iter();
        while let Some(option) = words.next() {
            let mut value = |range: RangeInclusive<u64>| {
                let text = words.next().ok_or_else(|| format!("{option} takes a number"))?;
                number(option, text, range)
            };
            match *option {
                "--tcp" => options.protocol = Protocol::Tcp,
                "--udp" => options.protocol = Protocol::Udp,
                "--port" => options.port = value(1..=65535)? as u16,
                "--size" => options.size = Some(value(8..=65000)?),
                "--mps" => options.mps = Some(value(0..=10_000_000)?),
                "--seconds" => options.seconds = Some(value(1..=3600)?),
                "--warm-up" => options.warm_up = Some(value(0..=60_000)?),
                "--workers" => options.workers = Some(value(1..=64)?),
                "--epoll" => options.waiting.epoll = true,
                "--busy-poll" => options.waiting.usecs = Some(value(0..=10_000_000)? as u32),
                "--prefer" => options.waiting.prefer = true,
                "--budget" => options.waiting.budget = Some(value(1..=65535)? as u16),
                _ => return Err(format!("There is no option '{option}'")),
            }
        }
        Ok(options)
    }
}

fn napi(interface: &str, words: &[&str]) -> Result<Order, String> {
    if words.len() % 2 == 1 {
        return Err(format!("'{}' takes a value", words[words.len() - 1]));
    }
    let settings: Result<Vec<Setting>, String> =
        words.chunks_exact(2).map(|pair| setting(pair[0], pair[1])).collect();
    Ok(Order::Napi { interface: interface.to_owned(), settings: settings? })
}

fn setting(name: &str, value: &str) -> Result<Setting, String> {
    let most = i32::MAX as u64;
    Ok(match name {
        "defer-hard-irqs" => Setting::DeferHardIrqs(number(name, value, 0..=most)? as u32),
        "gro-flush-timeout" => Setting::GroFlushTimeout(number(name, value, 0..=most)?),
        "irq-suspend-timeout" => Setting::IrqSuspendTimeout(number(name, value, 0..=u64::MAX)?),
        "threaded" => Setting::Threaded(match value {
            "off" => Threaded::Off,
            "on" => Threaded::On,
            "busy-poll" => Threaded::BusyPoll,
            _ => return Err(format!("threaded takes off, on or busy-poll, not '{value}'")),
        }),
        _ => return Err(format!("There is no setting '{name}'")),
    })
}

fn number(name: &str, text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("{name} takes {} to {}, not '{text}'", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Order, String> {
        Order::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn orders_are_taken() {
        let Ok(Order::Ping(exchange)) = parse(
            "ping 192.0.2.1 --udp --mps 1000 --size 64 --warm-up 0 --epoll --busy-poll 1000 --prefer --budget 8",
        ) else {
            panic!("no exchange")
        };
        assert_eq!((exchange.protocol, exchange.size, exchange.port), (Protocol::Udp, 64, 11110));
        assert_eq!((exchange.interval, exchange.warm_up), (Duration::from_millis(1), Duration::ZERO));
        let waiting = Waiting { epoll: true, usecs: Some(1000), prefer: true, budget: Some(8) };
        assert_eq!(exchange.waiting, waiting);
        let Ok(Order::Serve(service)) = parse("serve --epoll --workers 2") else { panic!("no service") };
        assert_eq!((service.workers, service.protocol), (2, Protocol::Tcp));
        let settings = vec![Setting::DeferHardIrqs(2), Setting::Threaded(Threaded::BusyPoll)];
        let order = parse("napi eth0 defer-hard-irqs 2 threaded busy-poll");
        assert_eq!(order, Ok(Order::Napi { interface: "eth0".to_owned(), settings }));
        assert_eq!(parse("ping --help"), Ok(Order::Help));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |line: &str| parse(line).unwrap_err();
        assert_eq!(error(""), "What is to be done: serve, ping or napi?");
        assert_eq!(error("pong"), "There is no 'pong', only serve, ping and napi");
        assert_eq!(error("ping --mps 5"), "ping takes the server's address first");
        assert_eq!(error("ping host"), "'host' is no IP address");
        assert_eq!(error("ping ::1 --size 7"), "--size takes 8 to 65000, not '7'");
        assert_eq!(error("ping ::1 --budget"), "--budget takes a number");
        assert_eq!(error("ping ::1 --workers 2"), "--workers is of serve, not of ping");
        assert_eq!(error("ping ::1 --fast"), "There is no option '--fast'");
        assert_eq!(error("serve --mps 3"), "--mps is of ping, not of serve");
        assert_eq!(error("serve --udp --epoll --workers 2"), "--workers needs --epoll and TCP");
        assert_eq!(error("napi"), "napi takes the name of an interface");
        assert_eq!(error("napi eth0 threaded"), "'threaded' takes a value");
        assert_eq!(error("napi eth0 threaded 2"), "threaded takes off, on or busy-poll, not '2'");
        assert_eq!(error("napi eth0 rate 2"), "There is no setting 'rate'");
        assert_eq!(error("napi eth0 defer-hard-irqs x"), "defer-hard-irqs takes 0 to 2147483647, not 'x'");
    }
}
