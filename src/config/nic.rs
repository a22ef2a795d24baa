//! One NIC's settings: `n0,socket=/run/n0.sock,queues=4,port=tap:fn0`.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::str::FromStr;

use super::{
    ConfigError, FeatureEdits, FilterSettings, InBand, MAX_QUEUE_PAIRS, NicConfig, PortConfig, Profile,
    resolve_features,
};
use crate::dataplane::notify::CoalesceRule;
use crate::steer::{LearnConfig, RssKey, SteerConfig, TABLE_MAX};
use crate::vhost::Endpoint;

/// The smallest MTU of IPv4 (RFC 791).
pub const MTU_MIN: u16 = 68;
/// The largest MTU that a TAP device takes.
pub const MTU_MAX: u16 = 65521;

/// Bytes of a NIC's name.
const NAME_MAX: usize = 32;
/// Most filter rules.
const FILTERS_MAX: u32 = 1 << 20;
/// Most learned flows.
const LEARN_MAX: u32 = 1 << 20;
/// Longest memory of learned flows, in seconds.
const IDLE_MAX: u16 = 16383;
/// Kernel's limit of `sun_path`, less the final NUL.
const SOCKET_PATH_MAX: usize = 107;

const KEYS: &str = "socket, mode, fd, queues, port, features, mtu, capture, filters, learn-entries, learn-idle, \
                    rss-table, rss-key, in-band, coalesce, profile, filter-delay, filter-inflight, filter-replace, \
                    filter-key, learn, latency";
const PORTS: &str = "tap:NAME, link:NIC, loopback, echo, null or gen[:flows=N;size=N;rate=N...]";

/// What was said about one NIC.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NicSettings {
    /// Its name.
    pub name: String,
    /// Keys that were given.
    seen: Vec<String>,
    socket: Option<PathBuf>,
    connects: bool,
    fd: Option<RawFd>,
    queues: Option<u16>,
    port: Option<PortConfig>,
    features: FeatureEdits,
    mtu: Option<u16>,
    capture: Option<PathBuf>,
    filters: Option<u32>,
    learn_entries: Option<u32>,
    learn_idle: Option<u16>,
    rss_table: Option<u16>,
    rss_key: Option<RssKey>,
    in_band: Option<InBand>,
    coalesce: Option<CoalesceRule>,
    latency: bool,
    filter: FilterSettings,
}

impl NicSettings {
    /// A NIC of this name, of which nothing else is known.
    ///
    /// # Errors
    /// When the name is none.
    pub fn named(name: &str) -> Result<Self, ConfigError> {
        let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(ok) {
            return Err(ConfigError::Name(name.into()));
        }
        Ok(NicSettings { name: name.into(), ..Self::default() })
    }

    /// Takes one setting.
    ///
    /// # Errors
    /// When the key is unknown or given twice, or the value is not one that it can have.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let at = Setting { nic: &self.name, key, value };
        match key {
            "socket" => self.socket = Some(at.socket()?),
            "mode" => self.connects = at.choice(&[("server", false), ("client", true)])?,
            "fd" => self.fd = Some(at.number(3, RawFd::MAX as u64)? as RawFd),
            "queues" => self.queues = Some(at.number(1, MAX_QUEUE_PAIRS.into())? as u16),
            "port" => self.port = Some(at.port()?),
            "features" => self.features = value.parse().map_err(|e| at.because(e))?,
            "mtu" => self.mtu = Some(at.number(MTU_MIN.into(), MTU_MAX.into())? as u16),
            "capture" => self.capture = Some(at.path()?),
            "filters" => self.filters = Some(at.number(1, FILTERS_MAX.into())? as u32),
            "learn-entries" => self.learn_entries = Some(at.number(1, LEARN_MAX.into())? as u32),
            "learn-idle" => self.learn_idle = Some(at.number(1, IDLE_MAX.into())? as u16),
            "rss-table" => self.rss_table = Some(at.table()?),
            "rss-key" => self.rss_key = Some(parse_key(value).map_err(|e| at.because(e))?),
            "in-band" => self.in_band = Some(at.choice(&InBand::NAMES)?),
            "coalesce" => self.coalesce = Some(at.choice(&CoalesceRule::NAMES)?),
            "latency" => self.latency = at.choice(&[("off", false), ("on", true)])?,
            "profile" | "filter-delay" | "filter-inflight" | "filter-replace" | "filter-key" | "learn" => {
                self.filter.set(key, value).map_err(|e| at.because(e))?;
            }
            _ => {
                return Err(ConfigError::UnknownKey {
                    nic: self.name.clone(),
                    key: key.into(),
                    allowed: KEYS,
                });
            }
        }
        if self.seen.iter().any(|k| k == key) {
            return Err(ConfigError::Twice { nic: self.name.clone(), key: key.into() });
        }
        self.seen.push(key.into());
        Ok(())
    }

    /// Whether anything was said of its port.
    pub(super) fn says_port(&self) -> bool {
        self.port.is_some()
    }

    /// The NIC that this describes, with what goes for all NICs.
    ///
    /// # Errors
    /// When it is not said how it meets its front end, or in two ways.
    pub fn build(
        &self,
        features: &FeatureEdits,
        capture: Option<&PathBuf>,
        in_band: InBand,
        profile: Option<&'static Profile>,
    ) -> Result<NicConfig, ConfigError> {
        let nic = || self.name.clone();
        let endpoint = match (&self.socket, self.fd) {
            (Some(path), None) if self.connects => Endpoint::Connect(path.clone()),
            (Some(path), None) => Endpoint::Listen(path.clone()),
            (None, Some(fd)) if !self.connects => Endpoint::Fd(fd),
            (None, Some(_)) => return Err(ConfigError::FdMode(nic())),
            (Some(_), Some(_)) => return Err(ConfigError::SocketAndFd(nic())),
            (None, None) => return Err(ConfigError::NoSocket(nic())),
        };
        let queue_pairs = self.queues.unwrap_or(1);
        let (steer, learn) = (SteerConfig::default(), LearnConfig::default());
        let filter = self.filter.resolve(profile);
        Ok(NicConfig {
            name: nic(),
            endpoint,
            queue_pairs,
            port: self.port.clone().unwrap_or(PortConfig::Null),
            features: resolve_features(&self.name, &[features, &self.features]),
            mtu: self.mtu.unwrap_or(1500),
            steer: SteerConfig {
                queue_pairs,
                filter_capacity: self.filters.or(filter.filters).unwrap_or(steer.filter_capacity),
                rss_key: self.rss_key.clone().unwrap_or(steer.rss_key),
                rss_table_len: self.rss_table.unwrap_or(steer.rss_table_len),
                knobs: filter.knobs,
                learn_on: filter.learn,
            },
            learn: LearnConfig {
                entries: self.learn_entries.unwrap_or(learn.entries),
                idle_secs: self.learn_idle.unwrap_or(learn.idle_secs),
            },
            capture: self.capture.as_ref().or(capture).cloned(),
            in_band: self.in_band.unwrap_or(in_band),
            coalesce: self.coalesce.unwrap_or_default(),
            latency: self.latency,
            profile: filter.profile,
        })
    }
}

impl FromStr for NicSettings {
    type Err = ConfigError;

    fn from_str(s: &str) -> Result<Self, ConfigError> {
        let mut parts = s.split(',');
        let name = parts.next().unwrap_or_default();
        let mut nic = NicSettings::named(name)?;
        for part in parts.filter(|p| !p.is_empty()) {
            let not_key_value =
                || ConfigError::NotKeyValue { nic: name.into(), part: part.into(), allowed: KEYS };
            let (key, value) = part.split_once('=').ok_or_else(not_key_value)?;
            nic.set(key, value)?;
        }
        Ok(nic)
    }
}

/// `6d:5a:56:...`, as ethtool prints keys.
///
/// # Errors
/// Says what is wrong with the key.
pub(crate) fn parse_key(s: &str) -> Result<RssKey, String> {
    let byte = |p: &str| {
        let ok = p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit());
        ok.then(|| u8::from_str_radix(p, 16).ok()).flatten().ok_or_else(|| format!("'{p}' is no byte"))
    };
    let bytes = s.split(':').map(byte).collect::<Result<Vec<_>, _>>()?;
    RssKey::new(&bytes).map_err(|e| e.to_string())
}

/// A setting that is being read.
struct Setting<'a> {
    nic: &'a str,
    key: &'a str,
    value: &'a str,
}

impl Setting<'_> {
    fn refuse(&self, allowed: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            nic: self.nic.into(),
            key: self.key.into(),
            value: self.value.into(),
            allowed: allowed.into(),
        }
    }

    fn because(&self, reason: impl ToString) -> ConfigError {
        ConfigError::Reason {
            nic: self.nic.into(),
            key: self.key.into(),
            value: self.value.into(),
            reason: reason.to_string(),
        }
    }

    fn number(&self, min: u64, max: u64) -> Result<u64, ConfigError> {
        let ok = self.value.parse().ok().filter(|n| (min..=max).contains(n));
        ok.ok_or_else(|| self.refuse(format!("{min} to {max}")))
    }

    fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, ConfigError> {
        let names = || {
            let (last, rest) = choices.split_last().expect("there is a choice");
            let rest = rest.iter().map(|c| c.0).collect::<Vec<_>>().join(", ");
            format!("{rest} or {}", last.0)
        };
        choices.iter().find(|c| c.0 == self.value).map(|c| c.1).ok_or_else(|| self.refuse(names()))
    }

    fn path(&self) -> Result<PathBuf, ConfigError> {
        if self.value.is_empty() { Err(self.refuse("a path")) } else { Ok(self.value.into()) }
    }

    fn socket(&self) -> Result<PathBuf, ConfigError> {
        if self.value.len() > SOCKET_PATH_MAX {
            return Err(self.refuse(format!("a path of at most {SOCKET_PATH_MAX} bytes")));
        }
        self.path()
    }

    fn table(&self) -> Result<u16, ConfigError> {
        let ok =
            self.value.parse().ok().filter(|n: &u16| n.is_power_of_two() && usize::from(*n) <= TABLE_MAX);
        ok.ok_or_else(|| self.refuse(format!("a power of two up to {TABLE_MAX}")))
    }

    fn port(&self) -> Result<PortConfig, ConfigError> {
        let (kind, rest) = match self.value.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (self.value, None),
        };
        let named = || rest.filter(|name| !name.is_empty()).map(str::to_string);
        match (kind, rest) {
            ("tap", _) => named().map(PortConfig::Tap).ok_or_else(|| self.refuse("tap:NAME")),
            ("link", _) => named().map(PortConfig::Link).ok_or_else(|| self.refuse("link:NIC")),
            ("loopback", None) => Ok(PortConfig::Loopback),
            ("echo", None) => Ok(PortConfig::Echo),
            ("null", None) => Ok(PortConfig::Null),
            ("gen", _) => rest.unwrap_or_default().parse().map(PortConfig::Gen).map_err(|e| self.because(e)),
            _ => Err(self.refuse(PORTS)),
        }
    }
}
