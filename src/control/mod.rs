//! Control: what can be asked of a running flownic, and the socket on which it is asked.
//!
//! [`Request`]s and their replies are types ([`protocol`]); [`apply()`] is the only way to change a device's state from
//! outside of the data plane. [`server`] brings requests in from a UNIX socket, one JSON object a line, and
//! [`client`] is the other end of it. `docs/control-protocol.md` is for those who write one.

pub(crate) mod apply;
pub mod client;
mod ethtool;
mod flows;
mod guest;
pub mod knobs;
pub mod print;
pub mod protocol;
pub mod replies;
pub mod rss_words;
pub mod server;
#[cfg(test)]
mod server_tests;
pub(crate) mod status;
pub mod table;
#[cfg(test)]
mod tests;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

pub use apply::{Reply, Watch, apply};
pub use ethtool::parse_flow;
pub use flows::{Field, FlowRule, Text, Whole};
pub use protocol::{Code, ControlError, Request};

/// The environment variable that names the control socket, for `serve` and `ctl`.
pub const ENVIRONMENT: &str = "FLOWNIC_CONTROL";

/// Where the control socket is unless somebody says so: in the user's runtime folder, for root without one in `/run`;
/// nowhere for others, since nobody owns a name in `/tmp`.
pub fn default_path() -> Option<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty()).map(PathBuf::from);
    let folder = runtime.or_else(|| is_root().then(|| "/run".into()))?;
    Some(folder.join("flownic.sock"))
}

/// Whether this process is root's.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}
