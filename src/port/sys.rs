//! Every system call of the ports and workers, each as a small safe function.
//!
//! No policy lives here: callers decide what an error means. Descriptors are close-on-exec, and non-blocking
//! where they can be waited for.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_short, c_uint, c_ulong};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Turns the result of a system call into a `Result`.
fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Like [`check`], for calls that return a new descriptor.
fn owned(result: c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the call that returned `fd` has just opened it for us; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Repeats a call that a signal interrupted; `None` when it would block.
fn transfer(mut call: impl FnMut() -> isize) -> io::Result<Option<usize>> {
    loop {
        if let Ok(n) = usize::try_from(call()) {
            return Ok(Some(n));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        }
    }
}

// ---- scattered writes ----

/// Buffers for [`writev`] whose memory need not be Rust's own: that of a guest, above all.
///
/// Who makes one answers for the memory; who uses it needs no `unsafe`.
#[derive(Clone, Copy)]
pub struct RawIoVecs<'a> {
    vecs: &'a [libc::iovec],
    memory: PhantomData<&'a [u8]>,
}

impl<'a> RawIoVecs<'a> {
    /// Vouches for the buffers.
    ///
    /// # Safety
    /// Every element must describe memory that stays mapped and readable for the whole of `'a`. That others (a guest)
    /// may change the memory at any time is allowed: the kernel copies bytes and trusts none.
    pub unsafe fn new(vecs: &'a [libc::iovec]) -> RawIoVecs<'a> {
        RawIoVecs { vecs, memory: PhantomData }
    }

    /// Number of buffers; more than `IOV_MAX` (1024) make the kernel refuse with `EINVAL`.
    pub fn len(self) -> usize {
        self.vecs.len()
    }

    /// Whether there is no buffer at all.
    pub fn is_empty(self) -> bool {
        self.vecs.is_empty()
    }
}

/// `writev(2)`: writes the buffers in order. Retries after a signal; `None` when it would block.
pub fn writev(fd: BorrowedFd<'_>, buffers: RawIoVecs<'_>) -> io::Result<Option<usize>> {
    let count = c_int::try_from(buffers.vecs.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the array is a live slice of `count` elements, and whoever made `buffers` has promised that each
    // element is mapped memory, which the kernel only reads here.
    transfer(|| unsafe { libc::writev(fd.as_raw_fd(), buffers.vecs.as_ptr(), count) })
}

// ---- events and timers ----

/// A new epoll instance.
pub fn epoll() -> io::Result<OwnedFd> {
    owned(epoll::create(true)?)
}

/// Makes an eventfd that somebody else made one that can't keep us waiting: non-blocking.
///
/// # Errors
/// `InvalidInput` if it is something else (a pipe, a file), as far as `/proc` is there to tell: writing to such a thing,
/// or waiting for it, may take for ever.
pub fn adopt_eventfd(fd: BorrowedFd<'_>) -> io::Result<()> {
    let kind = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    if kind.is_ok_and(|kind| kind.as_os_str() != "anon_inode:[eventfd]") {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no eventfd"));
    }
    // SAFETY: takes no pointers.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Reads and zeroes the counter of a non-blocking timerfd; `None` when it is 0.
pub fn read_counter(fd: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let mut count = 0u64;
    // SAFETY: `count` is 8 writable bytes that outlive the call, and any bytes are a valid u64.
    let n = transfer(|| unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) })?;
    match n {
        None => Ok(None),
        Some(8) => Ok(Some(count)),
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A non-blocking, disarmed timer on the monotonic clock.
pub fn timerfd() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) })
}

/// Arms a timer to fire once after `delay` (at once for zero), or disarms it with `None`. Replaces what was set
/// before, and an expiry that nobody has read yet.
pub fn timerfd_set(fd: BorrowedFd<'_>, delay: Option<Duration>) -> io::Result<()> {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let value = match delay {
        None => zero,
        // Zero would disarm.
        Some(Duration::ZERO) => libc::timespec { tv_sec: 0, tv_nsec: 1 },
        Some(d) => libc::timespec {
            tv_sec: libc::time_t::try_from(d.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: d.subsec_nanos().into(),
        },
    };
    let spec = libc::itimerspec { it_interval: zero, it_value: value };
    // SAFETY: `spec` outlives the call; a null old value is allowed.
    check(unsafe { libc::timerfd_settime(fd.as_raw_fd(), 0, &spec, std::ptr::null_mut()) }).map(drop)
}

// ---- processors ----

/// The CPUs that the calling thread may run on, ascending.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: a cpu_set_t is an array of integers, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable and of the size given; 0 means the calling thread.
    check(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) })?;
    // SAFETY: CPU_ISSET reads `set` within its bounds for every cpu below CPU_SETSIZE.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// The text names the CPUs that are allowed.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    let allowed = allowed_cpus()?;
    if !allowed.contains(&cpu) {
        let list = allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let text = format!("CPU {cpu} is not available to this thread; allowed are {list}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    // SAFETY: a cpu_set_t is an array of integers, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` comes from `allowed_cpus`, so it is below CPU_SETSIZE.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: `set` is readable and of the size given; 0 means the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) }).map(drop)
}

// ---- TUN/TAP ----

/// A request about the interface `name`, which must be shorter than `IFNAMSIZ`.
fn ifreq(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an ifreq is characters and a union of integers, addresses and pointers, all valid when zero.
    let mut req: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= req.ifr_name.len() || name.bytes().any(|b| b == 0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in req.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(req)
}

/// An ioctl whose argument is an `ifreq` that the kernel may write to.
fn ioctl_ifreq(fd: BorrowedFd<'_>, op: libc::Ioctl, req: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: every caller in this file passes an operation that takes a `struct ifreq *`; `req` is one, and
    // outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), op, std::ptr::from_mut(req)) }).map(drop)
}

/// An ioctl whose argument is a pointer to an int that the kernel reads.
fn ioctl_int(fd: BorrowedFd<'_>, op: libc::Ioctl, value: c_int) -> io::Result<()> {
    // SAFETY: every caller in this file passes an operation that takes an `int *` to read; `value` outlives the
    // call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), op, &raw const value) }).map(drop)
}

/// `TUNSETIFF`: attaches a fresh `/dev/net/tun` descriptor to the device `name`, creating it if need be. Returns
/// the name that it has, which the kernel completes when it contains `%d`.
pub fn tun_set_iff(fd: BorrowedFd<'_>, name: &str, flags: c_int) -> io::Result<String> {
    let mut req = ifreq(name)?;
    req.ifr_ifru.ifru_flags = flags as c_short;
    ioctl_ifreq(fd, libc::TUNSETIFF, &mut req)?;
    Ok(req.ifr_name.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect())
}

/// `TUNGETIFF`: whether the device that `fd` is attached to stays when nobody is.
pub fn tun_is_persistent(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut req = ifreq("")?;
    ioctl_ifreq(fd, libc::TUNGETIFF, &mut req)?;
    // SAFETY: the kernel has just filled in the flags, and any bits are a valid number.
    let flags = unsafe { req.ifr_ifru.ifru_flags };
    Ok(i32::from(flags) & libc::IFF_PERSIST != 0)
}

/// `TUNSETVNETHDRSZ` and `TUNSETVNETLE`: a virtio-net header of `size` bytes, little-endian, precedes each frame.
pub fn tun_set_vnet_header(fd: BorrowedFd<'_>, size: usize) -> io::Result<()> {
    ioctl_int(fd, libc::TUNSETVNETHDRSZ, size as c_int)?;
    ioctl_int(fd, libc::TUNSETVNETLE, 1)
}

/// `TUNSETOFFLOAD`: which frames the reader takes, as `TUN_F_*` bits.
pub fn tun_set_offload(fd: BorrowedFd<'_>, bits: c_uint) -> io::Result<()> {
    // SAFETY: this operation takes its argument by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, c_ulong::from(bits)) }).map(drop)
}

/// `TUNSETSNDBUF` to no limit: a write never waits for those that the stack still holds.
pub fn tun_unlimited_sndbuf(fd: BorrowedFd<'_>) -> io::Result<()> {
    ioctl_int(fd, libc::TUNSETSNDBUF, c_int::MAX)
}

/// `TUNSETCARRIER`: plugs or unplugs the cable (Linux 5.0).
pub fn tun_set_carrier(fd: BorrowedFd<'_>, up: bool) -> io::Result<()> {
    ioctl_int(fd, libc::TUNSETCARRIER, up.into())
}

// ---- network interfaces ----

/// A socket that serves for questions about interfaces, in the network namespace of the calling thread.
pub fn interface_socket() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })
}

/// Whether an interface of this name exists.
pub fn interface_exists(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    match ioctl_ifreq(socket, libc::SIOCGIFINDEX as libc::Ioctl, &mut ifreq(name)?) {
        Ok(()) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The MTU of an interface, in bytes.
pub fn interface_mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut req = ifreq(name)?;
    ioctl_ifreq(socket, libc::SIOCGIFMTU as libc::Ioctl, &mut req)?;
    // SAFETY: this operation fills in `ifru_mtu`; any bytes are a valid int.
    Ok(unsafe { req.ifr_ifru.ifru_mtu }.try_into().unwrap_or(0))
}

/// Sets the MTU of an interface, in bytes. Needs `CAP_NET_ADMIN`.
pub fn set_interface_mtu(socket: BorrowedFd<'_>, name: &str, mtu: u32) -> io::Result<()> {
    let mut req = ifreq(name)?;
    req.ifr_ifru.ifru_mtu = c_int::try_from(mtu).map_err(|_| io::ErrorKind::InvalidInput)?;
    ioctl_ifreq(socket, libc::SIOCSIFMTU as libc::Ioctl, &mut req)
}

/// Whether an interface is administratively up.
pub fn interface_is_up(socket: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    Ok(interface_flags(socket, name)? & libc::IFF_UP as c_short != 0)
}

fn interface_flags(socket: BorrowedFd<'_>, name: &str) -> io::Result<c_short> {
    let mut req = ifreq(name)?;
    ioctl_ifreq(socket, libc::SIOCGIFFLAGS as libc::Ioctl, &mut req)?;
    // SAFETY: this operation fills in `ifru_flags`; any bytes are a valid short.
    Ok(unsafe { req.ifr_ifru.ifru_flags })
}

/// Sets an interface administratively up or down. Needs `CAP_NET_ADMIN`.
pub fn set_interface_up(socket: BorrowedFd<'_>, name: &str, up: bool) -> io::Result<()> {
    let flags = interface_flags(socket, name)?;
    let bit = libc::IFF_UP as c_short;
    let mut req = ifreq(name)?;
    req.ifr_ifru.ifru_flags = if up { flags | bit } else { flags & !bit };
    ioctl_ifreq(socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut req)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn an_eventfd_of_somebody_else_is_made_to_keep_nobody_waiting() {
        // SAFETY: takes no pointers.
        let fd = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }).unwrap();
        adopt_eventfd(fd.as_fd()).unwrap();
        assert_eq!(read_counter(fd.as_fd()).unwrap(), None);
        let (reader, writer) = io::pipe().unwrap();
        for other in [reader.as_fd(), writer.as_fd(), epoll().unwrap().as_fd()] {
            assert_eq!(adopt_eventfd(other).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    /// Whether `fd` becomes readable within `ms` milliseconds.
    fn readable(fd: &OwnedFd, ms: i32) -> bool {
        let ep = epoll::create(true).unwrap();
        let event = epoll::Event::new(epoll::Events::EPOLLIN, 0);
        epoll::ctl(ep, epoll::ControlOptions::EPOLL_CTL_ADD, fd.as_raw_fd(), event).unwrap();
        let n = epoll::wait(ep, ms, &mut [event]).unwrap();
        epoll::close(ep).unwrap();
        n == 1
    }

    #[test]
    fn a_timer_fires_once_and_can_be_disarmed() {
        let fd = timerfd().unwrap();
        for delay in [Duration::ZERO, Duration::from_micros(100)] {
            timerfd_set(fd.as_fd(), Some(delay)).unwrap();
            assert!(readable(&fd, 10_000));
            assert_eq!(read_counter(fd.as_fd()).unwrap(), Some(1));
            assert_eq!(read_counter(fd.as_fd()).unwrap(), None);
        }
        timerfd_set(fd.as_fd(), Some(Duration::ZERO)).unwrap();
        assert!(readable(&fd, 10_000));
        timerfd_set(fd.as_fd(), None).unwrap();
        assert!(!readable(&fd, 0));
        timerfd_set(fd.as_fd(), Some(Duration::MAX)).unwrap();
        assert!(!readable(&fd, 0));
    }

    #[test]
    fn a_thread_is_pinned_to_an_allowed_cpu_only() {
        std::thread::spawn(|| {
            let allowed = allowed_cpus().unwrap();
            let last = *allowed.last().unwrap();
            let error = pin_current_thread(last + 1).unwrap_err().to_string();
            assert!(error.starts_with(&format!("CPU {} is not available", last + 1)), "{error}");
            assert!(error.ends_with(&format!("{last}")), "{error}");
            assert!(pin_current_thread(usize::MAX).is_err());
            pin_current_thread(last).unwrap();
            assert_eq!(allowed_cpus().unwrap(), [last]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn scattered_writes_keep_the_order() {
        use std::os::unix::net::UnixDatagram;
        let (a, b) = UnixDatagram::pair().unwrap();
        let vec = |m: &[u8]| libc::iovec { iov_base: m.as_ptr().cast_mut().cast(), iov_len: m.len() };
        let vecs = [vec(b"he"), vec(b"llo")];
        // SAFETY: both pieces are static.
        let buffers = unsafe { RawIoVecs::new(&vecs) };
        assert_eq!(writev(a.as_fd(), buffers).unwrap(), Some(5));
        let mut got = [0; 8];
        assert_eq!(b.recv(&mut got).unwrap(), 5);
        assert_eq!(&got[..5], b"hello");
    }

    #[test]
    fn interfaces_are_found_by_name() {
        let socket = interface_socket().unwrap();
        assert!(interface_exists(socket.as_fd(), "lo").unwrap());
        assert!(!interface_exists(socket.as_fd(), "no-such-if").unwrap());
        assert!(interface_mtu(socket.as_fd(), "lo").unwrap() >= 1280);
        let long = interface_exists(socket.as_fd(), "sixteen-letters-").unwrap_err();
        assert_eq!(long.kind(), io::ErrorKind::InvalidInput);
    }
}
