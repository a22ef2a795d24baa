//! `flownic serve`: the NICs themselves.

use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use clap::Args;
use flownic::config::{Config, ConfigError, CpuList, FeatureEdits, NicSettings, PollMode, Settings};
use flownic::daemon::Daemon;
use flownic::port::sys_socket::poll_readable;
use flownic::vhost::Endpoint;
use log::info;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::Failure;

/// Serve NICs to virtual machines, until SIGTERM or SIGINT.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// A NIC; may be repeated.
    ///
    /// Keys: socket=PATH; mode=server|client (client: the front end listens); fd=N (an inherited socket, instead of
    /// socket=); queues=1..31 (default 1); port=tap:NAME|link:NIC|loopback|echo|null|gen:flows=16;size=60;rate=1000
    /// (default null); features=-mrg_rxbuf-event_idx; mtu=N (default 1500); capture=FILE; filters=N (rules that fit);
    /// learn-entries=N and learn-idle=SECONDS (learned flows); rss-table=N; rss-key=HEX:HEX:...
    #[arg(long, value_name = "NAME,KEY=VALUE,...")]
    nic: Vec<NicSettings>,
    #[command(flatten)]
    one: OneNic,
    /// CPUs to run on, one worker on each; without, one worker that is not bound.
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// What a worker does when idle: off (sleep), adaptive (poll for 50 microseconds, then sleep),
    /// adaptive=USECS, or always [default: off].
    #[arg(long, value_name = "MODE")]
    poll: Option<PollMode>,
    /// Path of the control socket.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Features of all NICs to switch off (or on again): -mrg_rxbuf,-event_idx; -all switches off all.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    features: Option<FeatureEdits>,
    /// Record all frames of all NICs in this pcapng file.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Settings in a TOML file; flags go before it, and --nic adds to its NICs.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print what this back end is as JSON, and exit.
    #[arg(long)]
    print_capabilities: bool,
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
    /// Port of n0: tap:NAME, loopback, echo, null, gen:flows=16,size=60...
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
            return Err(Failure::Usage(
                "--queues, --port and --mtu go with --socket-path or --fd; with --nic, write them there"
                    .into(),
            ));
        }
        let usage = |e: ConfigError| Failure::Usage(e.to_string());
        let mut nic = NicSettings::named("n0").map_err(usage)?;
        for (key, value) in given {
            if let Some(value) = value {
                nic.set(key, value).map_err(usage)?;
            }
        }
        Ok(Some(nic))
    }
}

impl Serve {
    fn config(self) -> Result<Config, Failure> {
        let one = self.one.settings()?;
        let flags = Settings {
            nics: one.into_iter().chain(self.nic).collect(),
            cpus: self.cpus,
            poll: self.poll,
            control: self.control,
            features: self.features,
            capture: self.capture,
        };
        let usage = |e: ConfigError| Failure::Usage(e.to_string());
        let file =
            self.config.map_or(Ok(Settings::default()), |path| Settings::from_file(&path)).map_err(usage)?;
        flags.or(file).build().map_err(usage)
    }

    pub(super) fn run(self) -> Result<(), Failure> {
        if self.print_capabilities {
            println!("{}", serde_json::json!({ "type": "net" }));
            return Ok(());
        }
        let config = self.config()?;
        let stop = signals().map_err(|e| Failure::failed(&e))?;
        let daemon = Daemon::start(&config).map_err(|e| Failure::failed(&e))?;
        info!(
            "Ready: {}",
            config.nics.iter().map(|n| place(&n.name, &n.endpoint)).collect::<Vec<_>>().join(", ")
        );
        let ready = poll_readable(&[stop.as_raw_fd(), daemon.ended_fd()], None);
        match ready {
            Ok([true, _]) => info!("Stopping, as told"),
            _ => info!("Stopping: the last front end is gone"),
        }
        Ok(())
    }
}

fn place(nic: &str, endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Listen(path) => format!("{nic} on {}", path.display()),
        Endpoint::Connect(path) => format!("{nic} to {}", path.display()),
        Endpoint::Fd(fd) => format!("{nic} on descriptor {fd}"),
    }
}

/// Readable once SIGTERM or SIGINT has come.
fn signals() -> std::io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read)
}
