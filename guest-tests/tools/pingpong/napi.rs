//! What an interface's queues do between packets, over netlink (family `netdev`) and, where that is for the whole
//! interface, sysfs.

use std::fs;
use std::io;

use guest_tests::netlink::{Family, attribute, find};

const GET: u8 = 11;
const SET: u8 = 14;

const INTERFACE: u16 = 1;
const ID: u16 = 2;
const DEFER_HARD_IRQS: u16 = 5;
const GRO_FLUSH_TIMEOUT: u16 = 6;
const IRQ_SUSPEND_TIMEOUT: u16 = 7;
const THREADED: u16 = 8;

/// Whether a thread of the kernel polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threaded {
    Off,
    On,
    /// It never sleeps.
    BusyPoll,
}

impl Threaded {
    const ALL: [(Threaded, u64, &'static str); 3] =
        [(Threaded::Off, 0, "off"), (Threaded::On, 1, "on"), (Threaded::BusyPoll, 2, "busy-poll")];

    fn number(self) -> u32 {
        self as u32
    }

    fn name(number: u64) -> &'static str {
        Threaded::ALL.iter().find(|(_, known, _)| *known == number).map_or("?", |(.., name)| name)
    }
}

/// A setting of all queues of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    DeferHardIrqs(u32),
    GroFlushTimeout(u64),
    IrqSuspendTimeout(u64),
    Threaded(Threaded),
}

/// State of a queue pair, as far as the kernel tells.
#[derive(Debug, PartialEq, Eq)]
struct State {
    id: u64,
    defer_hard_irqs: Option<u64>,
    gro_flush_timeout: Option<u64>,
    irq_suspend_timeout: Option<u64>,
    threaded: Option<u64>,
}

impl State {
    fn of(answer: &[u8]) -> Option<State> {
        Some(State {
            id: find(answer, ID)?,
            defer_hard_irqs: find(answer, DEFER_HARD_IRQS),
            gro_flush_timeout: find(answer, GRO_FLUSH_TIMEOUT),
            irq_suspend_timeout: find(answer, IRQ_SUSPEND_TIMEOUT),
            threaded: find(answer, THREADED),
        })
    }

    fn line(&self) -> String {
        let number = |value: Option<u64>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
        format!(
            "napi {}: defer-hard-irqs {} gro-flush-timeout {} irq-suspend-timeout {} threaded {}",
            self.id,
            number(self.defer_hard_irqs),
            number(self.gro_flush_timeout),
            number(self.irq_suspend_timeout),
            self.threaded.map_or("?", Threaded::name),
        )
    }
}

/// Changes settings and prints the state of each queue pair.
pub(crate) fn run(interface: &str, settings: &[Setting]) -> Result<(), String> {
    let index = fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"));
    let index = index.map_err(|error| format!("No interface {interface}: {error}"))?;
    let index: u32 = index.trim().parse().map_err(|_| format!("The kernel numbers {interface} {index}"))?;
    for setting in settings {
        match *setting {
            Setting::DeferHardIrqs(count) => write(interface, "napi_defer_hard_irqs", count.into())?,
            Setting::GroFlushTimeout(time) => write(interface, "gro_flush_timeout", time)?,
            Setting::IrqSuspendTimeout(time) => {
                let value = attribute(IRQ_SUSPEND_TIMEOUT, &time.to_ne_bytes());
                set(index, IRQ_SUSPEND_TIMEOUT, &value, "irq-suspend-timeout", "6.13")?;
            }
            Setting::Threaded(threaded) => {
                let value = attribute(THREADED, &threaded.number().to_ne_bytes());
                set(index, THREADED, &value, "threaded", "6.17; threaded busy-poll with 6.19")?;
            }
        }
    }
    match states(index) {
        Ok(states) => states.iter().for_each(|state| println!("{}", state.line())),
        // Old kernels have the settings of whole interfaces only; if those were all, that is no matter.
        Err(error) => eprintln!("flownic-pingpong: {error}"),
    }
    Ok(())
}

/// Writes a setting that the kernel has for the whole interface, and hands on to its queues.
fn write(interface: &str, file: &str, value: u64) -> Result<(), String> {
    let path = format!("/sys/class/net/{interface}/{file}");
    fs::write(&path, value.to_string()).map_err(|error| format!("Could not write {value} to {path}: {error}"))
}

fn family() -> Result<Family, String> {
    Family::open("netdev").map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            "This kernel tells nothing about queues (no netlink family netdev; it came with Linux 6.3)"
                .to_owned()
        }
        _ => format!("No netlink socket: {error}"),
    })
}

fn states(index: u32) -> Result<Vec<State>, String> {
    let answers = family()?.dump(GET, &attribute(INTERFACE, &index.to_ne_bytes()));
    let answers = answers.map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EINVAL) => {
            "This kernel tells nothing about queues (napi-get came with Linux 6.8)".to_owned()
        }
        _ => format!("Could not ask about queues: {error}"),
    })?;
    Ok(answers.iter().filter_map(|answer| State::of(answer)).collect())
}

/// Changes the attribute `kind` of each queue pair to `value`.
fn set(index: u32, kind: u16, value: &[u8], name: &str, since: &str) -> Result<(), String> {
    let mut family = family()?;
    let states = states(index)?;
    if states.is_empty() {
        return Err("The interface has no queues that the kernel knows of; is it up?".to_owned());
    }
    for state in states {
        let attributes = [attribute(ID, &(state.id as u32).to_ne_bytes()), value.to_owned()].concat();
        family.tell(SET, &attributes).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE) => {
                format!("This kernel does not know the attribute {kind}, {name}: {error}; it came with Linux {since}")
            }
            _ => format!("Could not set {name} of napi {}: {error}", state.id),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_from_answers() {
        let answer = [
            attribute(INTERFACE, &2u32.to_ne_bytes()),
            attribute(ID, &513u32.to_ne_bytes()),
            attribute(GRO_FLUSH_TIMEOUT, &20_000u32.to_ne_bytes()),
            attribute(THREADED, &2u32.to_ne_bytes()),
        ];
        let line = State::of(&answer.concat()).unwrap().line();
        let expected =
            "napi 513: defer-hard-irqs ? gro-flush-timeout 20000 irq-suspend-timeout ? threaded busy-poll";
        assert_eq!(line, expected);
    }

    #[test]
    fn kinds_of_threads_have_the_kernels_numbers() {
        for (threaded, number, name) in Threaded::ALL {
            assert_eq!((u64::from(threaded.number()), Threaded::name(number)), (number, name));
        }
    }
}
