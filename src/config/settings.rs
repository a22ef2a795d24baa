//! All settings together, and what can be wrong with them.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use super::{Config, FeatureEdits, InBand, NicConfig, NicSettings, PollMode, PortConfig, Profile};
use crate::vhost::Endpoint;

/// How long `adaptive` polls unless told otherwise.
const ADAPTIVE: Duration = Duration::from_micros(50);
/// Longest time that `adaptive` may poll, in microseconds.
const ADAPTIVE_MAX: u64 = 1_000_000;
/// Highest CPU number.
const CPU_MAX: usize = 4095;

/// What is wrong with the settings.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A name that no NIC can have.
    #[error("'{0}' can't name a NIC: 1 to 32 letters, digits, '-', '_' and '.' can")]
    Name(String),
    /// A part that is no `key=value`.
    #[error("NIC {nic}: '{part}' is no key=value; keys are {allowed}")]
    NotKeyValue {
        /// Of which NIC.
        nic: String,
        /// What it says.
        part: String,
        /// What there is.
        allowed: &'static str,
    },
    /// A key that nobody knows.
    #[error(
        "NIC {nic}: unknown key '{key}'; keys are {allowed} (settings within a value are separated by ';')"
    )]
    UnknownKey {
        /// Of which NIC.
        nic: String,
        /// Which.
        key: String,
        /// What there is.
        allowed: &'static str,
    },
    /// A key that is there twice.
    #[error("NIC {nic}: '{key}' is given twice")]
    Twice {
        /// Of which NIC.
        nic: String,
        /// Which.
        key: String,
    },
    /// A value that a key can't have.
    #[error("NIC {nic}: {key}={value} is not possible; {key} takes {allowed}")]
    Value {
        /// Of which NIC.
        nic: String,
        /// Which key.
        key: String,
        /// What it says.
        value: String,
        /// What it may say.
        allowed: String,
    },
    /// A value that something else found wrong.
    #[error("NIC {nic}: {key}={value} is not possible: {reason}")]
    Reason {
        /// Of which NIC.
        nic: String,
        /// Which key.
        key: String,
        /// What it says.
        value: String,
        /// What is wrong.
        reason: String,
    },
    /// A feature that can't be switched.
    #[error("'{name}' is no feature to switch off or on; these are: all, {allowed}")]
    Feature {
        /// What it says.
        name: String,
        /// What there is.
        allowed: String,
    },
    /// A NIC that nobody could use.
    #[error("NIC {0} needs socket=PATH or fd=N")]
    NoSocket(String),
    /// Two ways to meet.
    #[error("NIC {0} has both socket= and fd=; it takes one")]
    SocketAndFd(String),
    /// A descriptor is what it is.
    #[error("NIC {0} has mode=client and fd=; mode goes with socket=")]
    FdMode(String),
    /// No NIC at all.
    #[error("There is no NIC: give --socket-path PATH, --nic NAME,socket=PATH or --config FILE")]
    NoNic,
    /// What two NICs can't share.
    #[error("NICs {first} and {second} have the same {what}: {value}")]
    Shared {
        /// The one.
        first: String,
        /// The other.
        second: String,
        /// Name, socket, TAP device.
        what: &'static str,
        /// Which.
        value: String,
    },
    /// A path that is a NIC's and the control socket's.
    #[error("{0} can't be both NIC {1}'s socket and the control socket")]
    ControlIsNic(PathBuf, String),
    /// The other end of a link is missing.
    #[error("NIC {nic} is linked to {peer}, which {problem}; there are: {known}")]
    Link {
        /// Who.
        nic: String,
        /// To whom.
        peer: String,
        /// Why not.
        problem: String,
        /// All names.
        known: String,
    },
    /// An idle mode that is none.
    #[error("'{0}' is no poll mode: off, adaptive, adaptive=USECS (1 to {ADAPTIVE_MAX}) and always are")]
    Poll(String),
    /// Roads for commands that are none.
    #[error("'{0}' says not which commands of guests are taken: off, user, kernel and all do")]
    InBand(String),
    /// CPUs that are none.
    #[error("'{0}' is no list of CPUs: write it as 0,2-3 (numbers up to {CPU_MAX}, each once)")]
    Cpus(String),
    /// A file that is none of ours.
    #[error("{path}: {problem}")]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl FromStr for PollMode {
    type Err = ConfigError;

    fn from_str(s: &str) -> Result<Self, ConfigError> {
        let usecs = |n: &str| n.parse().ok().filter(|n| (1..=ADAPTIVE_MAX).contains(n));
        match (s, s.strip_prefix("adaptive=").and_then(usecs)) {
            ("off", _) => Ok(PollMode::Off),
            ("always", _) => Ok(PollMode::Always),
            ("adaptive", _) => Ok(PollMode::Adaptive(ADAPTIVE)),
            (_, Some(usecs)) => Ok(PollMode::Adaptive(Duration::from_micros(usecs))),
            _ => Err(ConfigError::Poll(s.into())),
        }
    }
}

impl FromStr for InBand {
    type Err = ConfigError;

    fn from_str(s: &str) -> Result<Self, ConfigError> {
        let found = InBand::NAMES.iter().find(|(name, _)| *name == s);
        found.map(|(_, roads)| *roads).ok_or_else(|| ConfigError::InBand(s.into()))
    }
}

/// CPUs, in the order of the workers: `0,2-3`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

impl FromStr for CpuList {
    type Err = ConfigError;

    fn from_str(s: &str) -> Result<Self, ConfigError> {
        let bad = || ConfigError::Cpus(s.into());
        let number = |n: &str| n.trim().parse().ok().filter(|n| *n <= CPU_MAX).ok_or_else(bad);
        let mut cpus = Vec::new();
        for part in s.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = number(first)?..=number(last)?;
            if range.is_empty() || cpus.iter().any(|c| range.contains(c)) {
                return Err(bad());
            }
            cpus.extend(range);
        }
        Ok(CpuList(cpus))
    }
}

/// What was said, by flags and in a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// The NICs, in order.
    pub nics: Vec<NicSettings>,
    /// CPUs of the workers.
    pub cpus: Option<CpuList>,
    /// What workers do when idle; off unless said.
    pub poll: Option<PollMode>,
    /// Where the control socket is.
    pub control: Option<PathBuf>,
    /// Features of all NICs.
    pub features: Option<FeatureEdits>,
    /// Where the frames of all NICs are recorded.
    pub capture: Option<PathBuf>,
    /// Which commands of the guests of all NICs are taken; all unless said.
    pub in_band: Option<InBand>,
    /// Which card the filter tables of all NICs are like.
    pub profile: Option<&'static Profile>,
}

impl Settings {
    /// Both together: NICs of both; of the rest, what these say, else what the others say.
    pub fn or(mut self, others: Settings) -> Settings {
        let mut nics = others.nics;
        nics.append(&mut self.nics);
        Settings {
            nics,
            cpus: self.cpus.or(others.cpus),
            poll: self.poll.or(others.poll),
            control: self.control.or(others.control),
            features: self.features.or(others.features),
            capture: self.capture.or(others.capture),
            in_band: self.in_band.or(others.in_band),
            profile: self.profile.or(others.profile),
        }
    }

    /// Checks everything and fills in what was not said.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn build(self) -> Result<Config, ConfigError> {
        let features = self.features.unwrap_or_default();
        let mut nics = self
            .nics
            .iter()
            .map(|n| {
                n.build(&features, self.capture.as_ref(), self.in_band.unwrap_or_default(), self.profile)
            })
            .collect::<Result<Vec<_>, _>>()?;
        if nics.is_empty() {
            return Err(ConfigError::NoNic);
        }
        distinct(&nics, "name", |n| Some(n.name.clone()))?;
        distinct(&nics, "socket", |n| match &n.endpoint {
            Endpoint::Listen(path) | Endpoint::Connect(path) => Some(path.display().to_string()),
            Endpoint::Fd(fd) => Some(format!("descriptor {fd}")),
        })?;
        distinct(&nics, "TAP device", |n| match &n.port {
            PortConfig::Tap(name) => Some(name.clone()),
            _ => None,
        })?;
        let silent: Vec<_> = self.nics.iter().map(|n| !n.says_port()).collect();
        nics.iter().try_for_each(|n| check_link(n, &nics, &silent))?;
        close_links(&mut nics);
        if let Some(control) = &self.control {
            let same = |n: &&NicConfig| matches!(&n.endpoint, Endpoint::Listen(p) | Endpoint::Connect(p) if p == control);
            if let Some(nic) = nics.iter().find(same) {
                return Err(ConfigError::ControlIsNic(control.clone(), nic.name.clone()));
            }
        }
        Ok(Config {
            nics,
            cpus: self.cpus.unwrap_or_default().0,
            poll: self.poll.unwrap_or(PollMode::Off),
            control: self.control,
        })
    }
}

/// Refuses two NICs for which `value` is the same.
fn distinct(
    nics: &[NicConfig],
    what: &'static str,
    value: impl Fn(&NicConfig) -> Option<String>,
) -> Result<(), ConfigError> {
    for (i, second) in nics.iter().enumerate() {
        let Some(v) = value(second) else { continue };
        if let Some(first) = nics[..i].iter().find(|n| value(n).as_ref() == Some(&v)) {
            let (first, second) = (first.name.clone(), second.name.clone());
            return Err(ConfigError::Shared { first, second, what, value: v });
        }
    }
    Ok(())
}

/// Refuses a link that leads nowhere. `silent` are the NICs that say nothing of their port.
fn check_link(nic: &NicConfig, nics: &[NicConfig], silent: &[bool]) -> Result<(), ConfigError> {
    let PortConfig::Link(peer) = &nic.port else { return Ok(()) };
    let problem = match nics.iter().position(|n| n.name == *peer) {
        None => "does not exist".into(),
        Some(p) if nics[p].name == nic.name => "is itself".into(),
        // It is at the other end of the link.
        Some(p) if silent[p] => return Ok(()),
        Some(p) => {
            let port = match &nics[p].port {
                PortConfig::Tap(_) | PortConfig::Link(_) => return Ok(()),
                PortConfig::Loopback => "loopback",
                PortConfig::Echo => "echo",
                PortConfig::Null => "null",
                PortConfig::Gen(_) => "gen",
            };
            format!(
                "has port={port}; a link leads to a NIC with port=tap:NAME, with port=link:NIC or without port="
            )
        }
    };
    Err(ConfigError::Link {
        nic: nic.name.clone(),
        peer: peer.clone(),
        problem,
        known: nics.iter().map(|n| n.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

/// Says of a NIC that others are linked to, and that says nothing of its port, that it is linked to the first of them.
fn close_links(nics: &mut [NicConfig]) {
    for i in 0..nics.len() {
        let name = nics[i].name.clone();
        let peer = nics.iter().find(|n| n.port == PortConfig::Link(name.clone())).map(|n| n.name.clone());
        if let (Some(peer), PortConfig::Null) = (peer, &nics[i].port) {
            nics[i].port = PortConfig::Link(peer);
        }
    }
}
