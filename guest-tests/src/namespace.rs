//! The host side of a test.

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::machine::Machine;
use crate::{build, image};

/// A network namespace with processes of its own. Its commands run with the guest image's tools; `/proc`, `/sys` and
/// `/dev` are the host's, `/tmp` is its own. Dropped, everything in it goes: processes, taps, addresses.
///
/// Needs root, or a kernel that lets users make namespaces.
pub struct Namespace {
    machine: Machine,
    first: Child,
}

impl Namespace {
    /// Makes a namespace with the loopback interface up.
    ///
    /// # Panics
    /// When it cannot be made.
    #[track_caller]
    pub fn new(name: &str) -> Namespace {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let root = image::tools().to_str().expect("the target folder's path is text").to_owned();
        let mut command = Command::new(build::agent());
        command.args(["namespace", &root]).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let first = command.spawn().unwrap_or_else(|error| panic!("Could not run {command:?}: {error}"));
        drop(command);
        let machine = Machine::new(name, ours, Some(root)).expect("a thread for the agent");
        let namespace = Namespace { machine, first };
        if let Err(message) = namespace.wait_ready(Duration::from_secs(20)) {
            panic!("{message} (see its message above)");
        }
        namespace.run_ok("ip link set lo up");
        namespace
    }
}

impl Deref for Namespace {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The first process ends with the stream, and the kernel ends everything else in the namespace with that.
        self.machine.hang_up();
        let _ = self.first.wait();
    }
}
