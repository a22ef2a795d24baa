//! A TAP device of the host's kernel, one descriptor per queue.
//!
//! Every frame is preceded by a virtio-net header of [`NetHeader::SIZE`] bytes, little-endian, so that partial
//! checksums and unsegmented frames travel both ways without being touched here.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use super::sys;
use crate::offload::Accepts;
use crate::virtio::NetHeader;

/// The most queues that one device can have.
pub const MAX_QUEUES: usize = 256;

const TUN_DEVICE: &str = "/dev/net/tun";

/// What to do about a device that exists, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// Attach to it if it exists, create it if not.
    #[default]
    CreateOrAttach,
    /// Attach; it must exist.
    Attach,
    /// Create; it must not exist.
    Create,
}

/// How to open a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapConfig {
    /// The interface's name, at most 15 bytes; the kernel puts a number in place of `%d`.
    pub name: String,
    /// Number of queues, 1 to [`MAX_QUEUES`].
    pub queues: usize,
    /// MTU in bytes; `None` leaves the kernel's.
    pub mtu: Option<u32>,
    /// Whether the device is created or must be there.
    pub existing: Existing,
    /// Whether partial checksums and unsegmented frames are exchanged with the kernel.
    pub offload: bool,
}

impl TapConfig {
    /// One queue, offloads on, created if need be, the MTU left as it is.
    pub fn new(name: impl Into<String>) -> TapConfig {
        TapConfig { name: name.into(), queues: 1, mtu: None, existing: Existing::default(), offload: true }
    }
}

/// Why a device could not be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// No interface can have this name.
    #[error("'{0}' cannot name an interface: 1 to 15 bytes without blanks, '/' and ':' are allowed")]
    Name(String),
    /// A number of queues that no device can have.
    #[error("A TAP device has 1 to {MAX_QUEUES} queues, not {0}")]
    Queues(usize),
    /// The kernel offers no TAP devices.
    #[error(
        "Cannot open {TUN_DEVICE}; load the module with `modprobe tun`, or pass the device into the container"
    )]
    NoTun(#[source] io::Error),
    /// The file that stands for all TAP devices may not be opened.
    #[error("Not permitted to open {TUN_DEVICE}; its file mode must let this user read and write it")]
    TunPermission(#[source] io::Error),
    /// Creating or attaching was not permitted.
    #[error(
        "Not permitted to use TAP device '{0}': run with CAP_NET_ADMIN (as root, or in a namespace of your own \
         with `unshare -rn`), or let an administrator create it for you with `ip tuntap add dev {0} mode tap \
         multi_queue user $USER`"
    )]
    Permission(String),
    /// Another process has it: its only queue, or a device that is there only for that process.
    #[error("TAP device '{0}' is in use by another process; stop that one or choose another name")]
    Busy(String),
    /// Other processes have so many queues that not enough are left.
    #[error("TAP device '{0}' has no more queues left: {MAX_QUEUES} at most, of all processes together")]
    NoQueueLeft(String),
    /// The device must exist and does not.
    #[error(
        "There is no TAP device '{0}' to attach to; create it with `ip tuntap add dev {0} mode tap multi_queue`"
    )]
    Missing(String),
    /// The device must not exist and does.
    #[error(
        "An interface '{0}' exists already; choose another name, or delete it with `ip link del dev {0}`"
    )]
    Exists(String),
    /// The device exists with a single queue.
    #[error(
        "TAP device '{name}' was created for one queue and {queues} are wanted; ask for one, or create it anew \
         with `ip link del dev {name}` and `ip tuntap add dev {name} mode tap multi_queue`"
    )]
    SingleQueue {
        /// The device.
        name: String,
        /// Queues that were asked for.
        queues: usize,
    },
    /// An interface of another kind has the name.
    #[error("Interface '{0}' exists and is no TAP device; choose another name")]
    NotTap(String),
    /// The MTU was refused.
    #[error(
        "Cannot set the MTU of '{name}' to {mtu}; TAP devices take 68 to 65521, and changing it needs CAP_NET_ADMIN"
    )]
    Mtu {
        /// The device.
        name: String,
        /// The MTU that was asked for.
        mtu: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Something failed that should not.
    #[error("TAP device '{name}': {what} failed")]
    Setup {
        /// The device.
        name: String,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Opening of TAP devices.
#[derive(Debug)]
pub struct Tap;

impl Tap {
    /// Opens the queues of a device, in order. A device that did not exist is created, gets its MTU and is set
    /// up; it vanishes with its last queue. One that exists keeps its state, but for an MTU that is asked for.
    ///
    /// An existing single-queue request attaches to a multi-queue device too.
    ///
    /// # Errors
    /// See [`TapError`]; what was created is gone again.
    pub fn open(config: &TapConfig) -> Result<Vec<TapQueue>, TapError> {
        let TapConfig { name, queues, .. } = config;
        check_name(name)?;
        if !(1..=MAX_QUEUES).contains(queues) {
            return Err(TapError::Queues(*queues));
        }
        let failed = |what| move |source| TapError::Setup { name: name.clone(), what, source };
        let socket = sys::interface_socket().map_err(failed("opening a socket"))?;
        let exists = !name.contains('%')
            && sys::interface_exists(socket.as_fd(), name).map_err(failed("looking for the interface"))?;
        match (config.existing, exists) {
            (Existing::Attach, false) => return Err(TapError::Missing(name.clone())),
            (Existing::Create, true) => return Err(TapError::Exists(name.clone())),
            _ => {}
        }

        let (first, flags, name) = attach_first(config, exists)?;
        // One that is not persistent exists only because somebody holds it. With several queues the kernel would let
        // us in, and share its traffic out among us.
        if exists && !sys::tun_is_persistent(first.as_fd()).map_err(failed("asking for the flags"))? {
            return Err(TapError::Busy(name));
        }
        let failed = |what| {
            let name = name.clone();
            move |source| TapError::Setup { name, what, source }
        };
        let mut files = vec![first];
        while files.len() < *queues {
            let file = open_tun()?;
            sys::tun_set_iff(file.as_fd(), &name, flags).map_err(|e| refusal(e, &name))?;
            files.push(file);
        }
        for file in &files {
            sys::tun_set_vnet_header(file.as_fd(), NetHeader::SIZE)
                .map_err(failed("setting the header size"))?;
            sys::tun_unlimited_sndbuf(file.as_fd()).map_err(failed("lifting the send limit"))?;
        }
        let wanted = if config.offload { Accepts::ALL } else { Accepts::NONE };
        let accepts = set_offload(files[0].as_fd(), wanted).map_err(failed("setting the offloads"))?;

        if let Some(mtu) = config.mtu {
            let now = sys::interface_mtu(socket.as_fd(), &name).map_err(failed("asking for the MTU"))?;
            if now != mtu {
                sys::set_interface_mtu(socket.as_fd(), &name, mtu).map_err(|source| TapError::Mtu {
                    name: name.clone(),
                    mtu,
                    source,
                })?;
            }
        }
        if !exists {
            sys::set_interface_up(socket.as_fd(), &name, true).map_err(failed("setting the link up"))?;
        }
        let name: Arc<str> = name.into();
        Ok(files.into_iter().map(|file| TapQueue { file, name: Arc::clone(&name), accepts }).collect())
    }
}

fn check_name(name: &str) -> Result<(), TapError> {
    let bad = |b: u8| b.is_ascii_whitespace() || b.is_ascii_control() || b"/:".contains(&b);
    if name.is_empty() || name.len() > 15 || name == "." || name == ".." || name.bytes().any(bad) {
        return Err(TapError::Name(name.to_string()));
    }
    Ok(())
}

fn open_tun() -> Result<File, TapError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(TUN_DEVICE)
        .map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => TapError::TunPermission(e),
            _ => TapError::NoTun(e),
        })
}

/// What a refused `TUNSETIFF` means, but for `EINVAL` on an existing device.
fn refusal(error: io::Error, name: &str) -> TapError {
    let name = name.to_string();
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => TapError::Permission(name),
        Some(libc::EBUSY) => TapError::Busy(name),
        Some(libc::E2BIG) => TapError::NoQueueLeft(name),
        _ => TapError::Setup { name, what: "attaching", source: error },
    }
}

/// Creates the device or attaches to it. Returns the first queue, the flags that the others need, and the
/// device's name.
fn attach_first(config: &TapConfig, exists: bool) -> Result<(File, i32, String), TapError> {
    let base = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let multi = config.queues > 1;
    let with = |multi: bool| base | if multi { libc::IFF_MULTI_QUEUE } else { 0 };
    // EXCL closes the gap since we looked; it is refused on a device that exists, as for every later queue.
    let create = if exists || config.existing != Existing::Create { 0 } else { libc::IFF_TUN_EXCL };
    let attach = |flags: i32| {
        let file = open_tun()?;
        Ok(sys::tun_set_iff(file.as_fd(), &config.name, flags).map(|name| (file, name)))
    };
    match attach(with(multi) | create)? {
        Ok((file, name)) => Ok((file, with(multi), name)),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) && exists => {
            // Not a TAP device, or one that was created with the other kind of queues.
            match attach(with(!multi))? {
                Ok((file, name)) if !multi => Ok((file, with(true), name)),
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    Err(TapError::NotTap(config.name.clone()))
                }
                Err(e) if e.raw_os_error() != Some(libc::EBUSY) => Err(refusal(e, &config.name)),
                _ => Err(TapError::SingleQueue { name: config.name.clone(), queues: config.queues }),
            }
        }
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) && create != 0 => {
            Err(TapError::Exists(config.name.clone()))
        }
        Err(e) => Err(refusal(e, &config.name)),
    }
}

/// Tells the kernel which frames the reader takes, and steps down while it knows less. Returns what it agreed to.
fn set_offload(fd: BorrowedFd<'_>, wanted: Accepts) -> io::Result<Accepts> {
    let tso = wanted.csum && (wanted.tso4 || wanted.tso6);
    let wanted = if !wanted.csum {
        Accepts::NONE
    } else {
        let uso = wanted.uso4 && wanted.uso6;
        Accepts { ecn: wanted.ecn && tso, uso4: uso, uso6: uso, ..wanted }
    };
    let no_uso = Accepts { uso4: false, uso6: false, ..wanted };
    let csum = Accepts { csum: wanted.csum, ..Accepts::NONE };
    let mut refused = None;
    for step in [wanted, no_uso, Accepts { ecn: false, ..no_uso }, csum, Accepts::NONE] {
        match sys::tun_set_offload(fd, offload_bits(step)) {
            Ok(()) => return Ok(step),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => refused = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(refused.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
}

fn offload_bits(accepts: Accepts) -> u32 {
    [
        (accepts.csum, libc::TUN_F_CSUM),
        (accepts.tso4, libc::TUN_F_TSO4),
        (accepts.tso6, libc::TUN_F_TSO6),
        (accepts.ecn, libc::TUN_F_TSO_ECN),
        (accepts.uso4, libc::TUN_F_USO4),
        (accepts.uso6, libc::TUN_F_USO6),
    ]
    .into_iter()
    .filter(|(on, _)| *on)
    .fold(0, |bits, (_, bit)| bits | bit)
}

/// One queue of a TAP device: reads what the kernel sends, writes what it shall receive. Non-blocking.
///
/// A buffer begins with the virtio-net header. A read that does not fit is cut silently, so leave room for
/// 12 + 65550 bytes with offloads. While the link is down, writes fail with `EIO`; when the device has been
/// deleted, everything fails with `EBADFD`.
#[derive(Debug)]
pub struct TapQueue {
    file: File,
    name: Arc<str>,
    accepts: Accepts,
}

impl TapQueue {
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the kernel takes from us in [`TapQueue::write`]; nothing when offloads are off.
    pub fn accepts(&self) -> Accepts {
        self.accepts
    }

    /// Tells the kernel which frames we take from now on, on every queue of the device: all that a guest did not
    /// negotiate is done before it reaches us. Returns what the kernel agreed to: never more than asked, perhaps
    /// less (USO needs Linux 6.2, and both IP versions).
    pub fn set_offload(&self, wanted: Accepts) -> io::Result<Accepts> {
        set_offload(self.file.as_fd(), wanted)
    }

    /// Plugs or unplugs the cable of the device, for all of its queues.
    pub fn set_carrier(&self, up: bool) -> io::Result<()> {
        sys::tun_set_carrier(self.file.as_fd(), up)
    }

    /// Reads one frame into `buf`; `None` when there is none.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        retry(|| (&self.file).read(buf))
    }

    /// Writes one frame; `None` when the kernel cannot take it now.
    pub fn write(&self, frame: &[u8]) -> io::Result<Option<usize>> {
        retry(|| (&self.file).write(frame))
    }

    /// Writes one frame that lies in several pieces.
    pub fn write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        retry(|| (&self.file).write_vectored(pieces))
    }

    /// Writes one frame from memory that is not Rust's, above all a guest's transmit buffers.
    pub fn write_raw(&self, pieces: sys::RawIoVecs<'_>) -> io::Result<Option<usize>> {
        sys::writev(self.file.as_fd(), pieces)
    }
}

fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Ok(n) => return Ok(Some(n)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) => return Err(e),
        }
    }
}

impl AsRawFd for TapQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl AsFd for TapQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
#[path = "tap_tests.rs"]
mod tests;
