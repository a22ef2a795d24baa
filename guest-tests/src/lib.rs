//! Boots guests whose network card is flownic and tests what they see.
//!
//! * [`Workdir`]: one test's files; kept when the test fails.
//! * [`Namespace`]: the host side, in a network namespace of its own; flownic runs in it, so its taps live there.
//! * [`Flownic`]: the real program and its control socket.
//! * [`Guest`]: a booted kernel under QEMU, with an agent inside.
//! * [`Machine`]: what a guest and a namespace have in common: run commands, move files, look at network cards.
//! * [`Link`]: two interfaces that reach each other, and all kinds of traffic between them.
//! * [`nic`] and [`traffic`]: interfaces and their counters per queue; netperf, ping and checksummed transfers.
//! * [`Ethtool`]: what it sets, shows and refuses.
//! * [`netlink`]: generic netlink, for the programs that run in guests.
//! * [`procfs`]: what files of `/proc` say.
//! * [`frame`]: frames made by hand, and the receive queue that RSS picks for them.
//! * [`rig`] and [`stop`]: what the demo and the experiments have in common.
//! * [`polling`]: a guest whose programs busy-poll, and the counters that say so.
//! * [`wire`]: a tap and a guest's card, and which queue every frame must arrive on.
//! * [`wait`]: the only place that waits for something by looking again.
//!
//! Environment: `FLOWNIC_BIN` tests that program instead of building one; `FLOWNIC_IMAGES` names the folder with the
//! image recipes, by default `images/` of the workspace; `FLOWNIC_GUESTS` says how many guests may run at once.

pub mod build;
pub mod cpio;
pub mod ethtool;
pub mod flownic;
pub mod frame;
pub mod guest;
pub mod image;
pub mod link;
pub mod machine;
pub mod namespace;
pub mod netlink;
pub mod nic;
pub mod polling;
pub mod procfs;
pub mod protocol;
pub mod rig;
pub mod slots;
pub mod stop;
pub mod traffic;
pub mod wait;
pub mod wire;
pub mod workdir;

pub use ethtool::Ethtool;
pub use flownic::Flownic;
pub use guest::{Driver, Guest, Nic};
pub use image::{Kernel, Qemu};
pub use link::{Family, Link};
pub use machine::{Machine, Output, Process};
pub use namespace::Namespace;
pub use wait::wait_for;
pub use workdir::Workdir;
