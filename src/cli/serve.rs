//! `flownic serve`: the NICs themselves.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use flownic::config::{Config, CpuList, InBand, PollMode, Settings};
use flownic::control::server::{Limits, Server};
use flownic::control::{ENVIRONMENT, default_path};
use flownic::daemon::Daemon;
use flownic::port::sys_socket::poll_readable;
use flownic::vhost::Endpoint;
use log::{info, warn};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::nics::{NicFlags, usage};
use super::{Failure, describe};

/// Serve NICs to virtual machines, until SIGTERM or SIGINT.
#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    nics: NicFlags,
    /// CPUs to run on, one worker on each; without, one worker that is not bound.
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// What a worker does when idle: off (sleep), adaptive (poll for 50 microseconds, then sleep),
    /// adaptive=USECS, or always [default: off].
    #[arg(long, value_name = "MODE")]
    poll: Option<PollMode>,
    /// Path of the control socket [default: flownic.sock in XDG_RUNTIME_DIR; for root without one, in /run].
    #[arg(long, value_name = "PATH", env = ENVIRONMENT)]
    control: Option<PathBuf>,
    /// No control socket.
    #[arg(long)]
    no_control: bool,
    /// Record all frames of all NICs in this pcapng file.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Which commands of guests to their NICs are taken: off, user (from user space), kernel (from drivers) or all
    /// [default: all].
    #[arg(long, value_name = "ROADS")]
    in_band: Option<InBand>,
    /// Print what this back end is as JSON, and exit.
    #[arg(long)]
    print_capabilities: bool,
}

impl Serve {
    fn config(self) -> Result<Config, Failure> {
        let flags = Settings {
            cpus: self.cpus,
            poll: self.poll,
            control: self.control,
            capture: self.capture,
            in_band: self.in_band,
            ..Settings::default()
        };
        flags.or(self.nics.settings()?).build().map_err(usage)
    }

    pub(super) fn run(self) -> Result<(), Failure> {
        if self.print_capabilities {
            println!("{}", describe::capabilities());
            return Ok(());
        }
        let no_control = self.no_control;
        let config = self.config()?;
        let stop = signals().map_err(|e| Failure::failed(&e))?;
        let daemon = Arc::new(Daemon::start(&config).map_err(|e| Failure::failed(&e))?);
        let control = control(&daemon, &config, no_control)?;
        info!(
            "Ready: {}",
            config.nics.iter().map(|n| place(&n.name, &n.endpoint)).collect::<Vec<_>>().join(", ")
        );
        let ready = poll_readable(&[stop.as_raw_fd(), daemon.ended_fd()], None);
        match ready {
            Ok([true, _]) => info!("Stopping, as told"),
            _ => info!("Stopping: the last front end is gone"),
        }
        drop(control);
        drop(daemon);
        info!("Stopped");
        Ok(())
    }
}

/// The control socket. One that was asked for must be had; the usual one may be another process's.
fn control(daemon: &Arc<Daemon>, config: &Config, none: bool) -> Result<Option<Server>, Failure> {
    let start = |path: &Path| Server::start(Arc::clone(daemon), path, Limits::default());
    let usual = match (&config.control, default_path()) {
        _ if none => return Ok(None),
        (Some(path), _) => return start(path).map(Some).map_err(|e| Failure::failed(&e)),
        (None, Some(usual)) => usual,
        (None, None) => return Ok(None),
    };
    match start(&usual) {
        Ok(server) => {
            info!("The control socket is {}", usual.display());
            Ok(Some(server))
        }
        Err(e) => {
            warn!("There is no control socket (say --control PATH for one elsewhere): {e}");
            Ok(None)
        }
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
