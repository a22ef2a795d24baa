//! The vhost-user transport: connections, negotiation, memory tables, and the rings they hand to the data plane.
//!
//! The `vhost-user-backend` crate speaks the protocol; one of its daemons is made for every connection, on a socket
//! that is ours and stays. [`ring`] is the data path.

pub mod backend;
pub mod dirty;
pub mod drivers;
mod relay;
pub mod ring;
mod socket;
pub mod stop;
pub mod vring;

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use log::{info, warn};
use thiserror::Error;
use vhost::vhost_user::Error as ProtocolError;
use vhost_user_backend::{Error as DaemonError, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use crate::nic::Nic;
use backend::NetBackend;
pub use socket::{Endpoint, EndpointError, Socket};
use stop::Stop;
use vring::Connection;

/// How soon a front end that did not answer is tried again, at first and at last.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Serves one NIC to one front end after the other, in a thread of its own, until it is dropped.
pub struct Session {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Session {
    /// Starts serving `nic` on `socket`. `alive` is dropped when it no longer serves.
    ///
    /// # Errors
    /// When no thread or eventfd is to be had.
    pub fn start(nic: Arc<Nic>, socket: Socket, alive: Arc<UnixStream>) -> std::io::Result<Self> {
        let stop = Arc::new(Stop::new()?);
        let thread = thread::Builder::new().name(format!("vhost-{}", nic.name())).spawn({
            let stop = Arc::clone(&stop);
            move || {
                let _alive = alive;
                serve(&nic, socket, &stop);
            }
        })?;
        Ok(Session { stop, thread: Some(thread) })
    }

    /// Whether it still serves (a socket that was given as a connected `--fd` serves once).
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(nic: &Arc<Nic>, mut socket: Socket, stop: &Stop) {
    let mut delay = RETRY.0;
    while let Some(peer) = socket.next_peer(stop) {
        match peer.map_err(NoFrontEnd::from).and_then(|peer| connect(nic, peer, stop)) {
            Ok(()) => delay = RETRY.0,
            Err(e) => {
                // A front end that listens may simply not be there yet: said once, at the first try.
                if delay == RETRY.0 {
                    warn!("{}: {e}; trying again", nic.name());
                }
                if stop.wait(delay) {
                    return;
                }
                delay = (delay * 2).min(RETRY.1);
            }
        }
        if !socket.serves_again() {
            return;
        }
    }
}

/// Why a connection did not come about.
#[derive(Debug, Error)]
enum NoFrontEnd {
    #[error("The front end can't be reached: {0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Daemon(DaemonError),
}

impl From<DaemonError> for NoFrontEnd {
    fn from(e: DaemonError) -> Self {
        NoFrontEnd::Daemon(e)
    }
}

/// One connection, from its start to its end. Fails only if it did not come about.
fn connect(nic: &Arc<Nic>, peer: UnixStream, stop: &Stop) -> Result<(), NoFrontEnd> {
    let connection = Connection::new(Arc::clone(nic));
    let backend = NetBackend { connection: Arc::clone(&connection) };
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let name = format!("vhost-{}-rx", nic.name());
    let mut daemon = connection.collect_vrings(|| VhostUserDaemon::new(name, backend, memory))?;
    daemon.start(&mut relay::start(peer)?.into())?;
    info!("{}: front end connected", nic.name());
    nic.counters.of(0).connections.add_shared(1);
    nic.connected.store(true, Ordering::Relaxed);
    let end = {
        let (connection, shutdown) = (Arc::clone(&connection), daemon.shutdown_handle());
        move || {
            // The front end goes on with the rings as soon as it sees the end: nobody may write to them any more.
            connection.stop_all();
            if let Some(shutdown) = &shutdown {
                shutdown.shutdown();
            }
        }
    };
    nic.reset.connected(end.clone());
    let ended = stop.guard(end, || daemon.wait());
    connection.close();
    nic.connected.store(false, Ordering::Relaxed);
    if nic.reset.disconnected() {
        nic.forget_guest();
        info!("{}: reset", nic.name());
    }
    match ended {
        Ok(())
        | Err(DaemonError::HandleRequest(ProtocolError::Disconnected | ProtocolError::PartialMessage)) => {
            info!("{}: front end disconnected", nic.name());
        }
        Err(DaemonError::HandleRequest(e)) => warn!(
            "{}: front end disconnected after a request that can't be served: {e} (this NIC has {} queue pairs, \
             rings of up to {} entries)",
            nic.name(),
            nic.config.queue_pairs,
            backend::MAX_RING_SIZE
        ),
        Err(e) => warn!("{}: connection ended: {e}", nic.name()),
    }
    Ok(())
}
