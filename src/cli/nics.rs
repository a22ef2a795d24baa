//! Flags that describe NICs.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Args;
use flownic::config::{ConfigError, FeatureEdits, NicSettings, Profile, Settings};

use super::Failure;

/// NICs, by flags and in a file.
#[derive(Debug, Args)]
pub(super) struct NicFlags {
    /// A NIC; may be repeated.
    ///
    /// Keys: socket=PATH; mode=server|client (client: the front end listens); fd=N (an inherited socket, instead of
    /// socket=); queues=1..127 (default 1); port=tap:NAME|link:NIC|loopback|echo|null|gen:flows=16;size=60;rate=1000
    /// (default null; link leads to a NIC with port=tap, port=link or no port=, and shares its wire); features=-mrg_rxbuf-event_idx; mtu=N (default 1500); capture=FILE; filters=N (rules that fit);
    /// learn-entries=N and learn-idle=SECONDS (learned flows); rss-table=N; rss-key=HEX:HEX:...;
    /// in-band=off|user|kernel|all (commands of the guest); profile=NAME (see --profile); filter-delay=5ms,
    /// filter-inflight=N|any, filter-replace=atomic|delete-add|none and filter-key=any|5-tuple|4-tuple|ipv4 (how rules
    /// of the guest are taken); learn=on|off;
    /// coalesce=nic|strict (how moderation values of 0 are read); latency=on (keeps histograms, see `ctl stats`)
    #[arg(long, value_name = "NAME,KEY=VALUE,...")]
    nic: Vec<NicSettings>,
    #[command(flatten)]
    one: OneNic,
    /// Settings in a TOML file; flags go before it, and --nic adds to its NICs.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Features of all NICs to switch off (or on again): -mrg_rxbuf,-event_idx; -all switches off all.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    features: Option<FeatureEdits>,
    /// A card that the filter tables of all NICs are to be like: sfc, mlx5, ice, i40e-atr or bnxt. What is said of a NIC goes
    /// before it.
    #[arg(long, value_name = "NAME", value_parser = Profile::by_name)]
    profile: Option<&'static Profile>,
}

/// One NIC, n0, in the words of the conventions for back-end programs.
#[derive(Debug, Args)]
struct OneNic {
    /// Path of the socket of a single NIC, n0.
    #[arg(long, value_name = "PATH", conflicts_with = "fd")]
    socket_path: Option<PathBuf>,
    /// Inherited socket of a single NIC, n0.
    #[arg(long, value_name = "N")]
    fd: Option<RawFd>,
    /// Queue pairs of n0.
    #[arg(long, value_name = "N")]
    queues: Option<String>,
    /// Port of n0: tap:NAME, link:NIC, loopback, echo, null, "gen:flows=16;size=60"...
    #[arg(long, value_name = "PORT")]
    port: Option<String>,
    /// MTU of n0's port.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<String>,
}

impl OneNic {
    fn settings(&self) -> Result<Option<NicSettings>, Failure> {
        let fd = self.fd.map(|fd| fd.to_string());
        let path = self.socket_path.as_ref().map(|p| p.to_string_lossy().into_owned());
        let given = [
            ("socket", &path),
            ("fd", &fd),
            ("queues", &self.queues),
            ("port", &self.port),
            ("mtu", &self.mtu),
        ];
        if given.iter().all(|(_, v)| v.is_none()) {
            return Ok(None);
        }
        if path.is_none() && fd.is_none() {
            let text =
                "--queues, --port and --mtu go with --socket-path or --fd; with --nic, write them there";
            return Err(Failure::Usage(text.into()));
        }
        let mut nic = NicSettings::named("n0").map_err(usage)?;
        for (key, value) in given {
            if let Some(value) = value {
                nic.set(key, value).map_err(usage)?;
            }
        }
        Ok(Some(nic))
    }
}

/// Settings that make no sense.
pub(super) fn usage(e: ConfigError) -> Failure {
    Failure::Usage(e.to_string())
}

impl NicFlags {
    /// Whether nothing was said.
    pub(super) fn is_empty(&self) -> bool {
        self.nic.is_empty()
            && self.config.is_none()
            && self.one.socket_path.is_none()
            && self.one.fd.is_none()
    }

    /// What was said.
    pub(super) fn settings(self) -> Result<Settings, Failure> {
        let one = self.one.settings()?;
        let file =
            self.config.map_or(Ok(Settings::default()), |path| Settings::from_file(&path)).map_err(usage)?;
        let nics = one.into_iter().chain(self.nic).collect();
        Ok(Settings { nics, features: self.features, profile: self.profile, ..Settings::default() }.or(file))
    }
}
