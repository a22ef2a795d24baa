//! Typed configuration: the only place where strings become types.
//!
//! Flags and files both end in [`Settings`], which know what was said and what was not; [`Settings::build`] checks
//! them together and fills in the rest.

mod features;
mod file;
mod nic;
mod profile;
mod settings;
#[cfg(test)]
mod tests;

pub use features::{FeatureEdits, resolve_features};
pub(crate) use nic::parse_key;
pub use nic::{MTU_MAX, MTU_MIN, NicSettings};
pub use profile::{FilterSettings, Profile, parse_in_flight};
pub use settings::{ConfigError, CpuList, Settings};

use std::path::PathBuf;
use std::time::Duration;

use crate::dataplane::notify::CoalesceRule;
use crate::port::template::GenConfig;
use crate::steer::{LearnConfig, SteerConfig};
use crate::vhost::Endpoint;
use crate::virtio::channel::Road;
use crate::virtio::*;

/// Queue pairs of a NIC, at most: steering knows no more. The protocol itself numbers 256 rings.
pub const MAX_QUEUE_PAIRS: u16 = crate::steer::MAX_QUEUE_PAIRS;

/// Every feature that the device has, those of the rings and of vhost-user included.
pub const DEVICE_FEATURES: u64 = F_CSUM
    | F_GUEST_CSUM
    | F_MTU
    | F_GUEST_TSO4
    | F_GUEST_TSO6
    | F_GUEST_ECN
    | F_HOST_TSO4
    | F_HOST_TSO6
    | F_HOST_ECN
    | F_MRG_RXBUF
    | F_STATUS
    | F_CTRL_VQ
    | F_CTRL_RX
    | F_GUEST_ANNOUNCE
    | F_MQ
    | F_LOG_ALL
    | F_ANY_LAYOUT
    | F_INDIRECT_DESC
    | F_EVENT_IDX
    | F_PROTOCOL_FEATURES
    | F_VERSION_1
    | F_RING_PACKED
    | F_IN_ORDER
    | F_GUEST_USO4
    | F_GUEST_USO6
    | F_HOST_USO;

/// What workers do when there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollMode {
    /// Sleep at once.
    Off,
    /// Poll for that long, then sleep.
    Adaptive(Duration),
    /// Never sleep.
    Always,
}

/// What the wire of a NIC is connected to.
#[derive(Debug, Clone, PartialEq)]
pub enum PortConfig {
    /// A TAP device of this name, created if it does not exist. NICs that are linked to this one share it.
    Tap(String),
    /// The NIC of this name; NICs that are linked, in whichever direction, share a wire.
    Link(String),
    /// Frames come back as they were sent.
    Loopback,
    /// Frames come back with their MAC addresses swapped.
    Echo,
    /// Frames vanish.
    Null,
    /// A traffic source.
    Gen(GenConfig),
}

/// Which roads commands of the guest may take ("The channel" in `docs/guest-abi.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InBand {
    /// None: nothing is a command.
    Off,
    /// From user space, as frames.
    User,
    /// From the kernel, in chains with device-writable buffers.
    Kernel,
    /// Both.
    #[default]
    All,
}

impl InBand {
    /// The words for it.
    pub const NAMES: [(&'static str, InBand); 4] =
        [("off", InBand::Off), ("user", InBand::User), ("kernel", InBand::Kernel), ("all", InBand::All)];

    /// The word for this.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// Whether commands that come by this road are carried out.
    pub fn allows(self, road: Road) -> bool {
        match road {
            Road::Kernel => matches!(self, InBand::Kernel | InBand::All),
            Road::User => matches!(self, InBand::User | InBand::All),
        }
    }
}

/// One NIC.
#[derive(Debug, Clone)]
pub struct NicConfig {
    /// Its name.
    pub name: String,
    /// How it meets its front end.
    pub endpoint: Endpoint,
    /// Queue pairs, 1 to [`MAX_QUEUE_PAIRS`].
    pub queue_pairs: u16,
    /// The wire.
    pub port: PortConfig,
    /// Feature bits that are offered.
    pub features: u64,
    /// MTU of the wire (of the TAP device, and what `qemu-args` suggests).
    pub mtu: u16,
    /// Flow filters and RSS.
    pub steer: SteerConfig,
    /// Learned flows.
    pub learn: LearnConfig,
    /// Where its frames are recorded.
    pub capture: Option<PathBuf>,
    /// Which roads commands of the guest may take.
    pub in_band: InBand,
    /// How moderation values of 0 are read.
    pub coalesce: CoalesceRule,
    /// Whether it keeps how long frames and signals take.
    pub latency: bool,
    /// Which card its filter table is like.
    pub profile: Option<&'static Profile>,
}

/// The whole process.
#[derive(Debug, Clone)]
pub struct Config {
    /// The NICs.
    pub nics: Vec<NicConfig>,
    /// CPUs of the workers, one each; without any, one worker that is not bound.
    pub cpus: Vec<usize>,
    /// What workers do when idle.
    pub poll: PollMode,
    /// Where the control socket is.
    pub control: Option<PathBuf>,
}
