//! System calls that the standard library does not offer, each behind a safe function.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use guest_tests::protocol::Power;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn text(string: &str) -> io::Result<CString> {
    CString::new(string).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "String holds a zero byte"))
}

/// Mounts `source` of type `kind` on `target`. An empty `kind` is for bind mounts and propagation changes.
pub(crate) fn mount(source: &str, target: &str, kind: &str, flags: libc::c_ulong) -> io::Result<()> {
    let (source, target, kind) = (text(source)?, text(target)?, text(kind)?);
    // SAFETY: the strings live until the call returns; no mount data is passed.
    let result =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
    check(result).map(drop)
}

/// Moves the process into new namespaces.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes flags only, and the process has one thread when this is called.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Has the kernel kill this process when its parent ends.
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: this operation takes one integer.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).map(drop)
}

/// Effective user and group.
pub(crate) fn user_and_group() -> (u32, u32) {
    // SAFETY: these calls take nothing and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Writes file systems back, then ends the machine.
pub(crate) fn power(power: Power) -> io::Result<()> {
    let command = match power {
        Power::Reboot => libc::LINUX_REBOOT_CMD_RESTART,
        Power::Off => libc::LINUX_REBOOT_CMD_POWER_OFF,
    };
    // SAFETY: both calls take integers only.
    check(unsafe {
        libc::sync();
        libc::reboot(command)
    })
    .map(drop)
}

/// Sends `signal` to the process group `group`.
pub(crate) fn kill_group(group: u32, signal: i32) -> io::Result<()> {
    // SAFETY: takes integers only.
    check(unsafe { libc::kill(-(group as libc::pid_t), signal) }).map(drop)
}

/// Waits until a child has ended and leaves it in place; `ECHILD` when there is none.
pub(crate) fn peek_ended_child() -> io::Result<u32> {
    // SAFETY: siginfo_t is plain old data for which zero is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a valid siginfo_t that outlives the call.
    check(unsafe { libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOWAIT) })?;
    // SAFETY: waitid succeeded without WNOHANG, so the fields of SIGCHLD are set.
    Ok(unsafe { info.si_pid() } as u32)
}

/// Reaps the child `pid` if it has ended and nobody else has reaped it.
pub(crate) fn reap(pid: u32) -> Option<ExitStatus> {
    let mut status = 0;
    // SAFETY: `status` is a valid int that outlives the call.
    let reaped = unsafe { libc::waitpid(pid as libc::pid_t, &mut status, libc::WNOHANG) };
    (reaped == pid as libc::pid_t).then(|| ExitStatus::from_raw(status))
}

/// Waits until one of the descriptors is readable or closed by its peer; `timeout` in milliseconds, -1 for ever.
pub(crate) fn poll_readable<const N: usize>(fds: [BorrowedFd; N], timeout: i32) -> io::Result<[bool; N]> {
    let mut entries = fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: `entries` is an array of N pollfd that outlives the call.
        match check(unsafe { libc::poll(entries.as_mut_ptr(), N as libc::nfds_t, timeout) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
            Ok(_) => return Ok(entries.map(|entry| entry.revents != 0)),
        }
    }
}

/// Has this thread run on the processor `cpu` only.
pub(crate) fn run_on(cpu: usize) -> io::Result<()> {
    // SAFETY: cpu_set_t is plain old data for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= 8 * size_of_val(&set) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `cpu` is within the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: `set` outlives the call, and its size is passed along.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) }).map(drop)
}

/// Number of the NAPI instance that brought a socket's last packet.
pub(crate) fn incoming_napi_id(socket: &impl AsRawFd) -> io::Result<u32> {
    let mut id = 0u32;
    let mut length = size_of_val(&id) as libc::socklen_t;
    // SAFETY: `id` and `length` outlive the call, and `length` is the size of `id`.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_INCOMING_NAPI_ID,
            (&raw mut id).cast(),
            &raw mut length,
        )
    })?;
    Ok(id)
}

/// Has the process that `command` starts use `root` as its root directory.
pub(crate) fn change_root(command: &mut Command, root: &str) -> io::Result<()> {
    let root = text(root)?;
    // SAFETY: between fork and exec only chroot and chdir run, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            check(libc::chroot(root.as_ptr()))?;
            check(libc::chdir(c"/".as_ptr())).map(drop)
        });
    }
    Ok(())
}

/// Number of a network interface.
pub(crate) fn interface_index(interface: &str) -> io::Result<u32> {
    let name = text(interface)?;
    // SAFETY: the string lives until the call returns.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

fn socket(family: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: `fd` is a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A packet socket that sends whole frames out of `interface`, without receiving any.
pub(crate) fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let index = interface_index(interface)?;
    // Protocol 0: nothing is received.
    let socket = socket(libc::AF_PACKET, 0)?;
    // SAFETY: sockaddr_ll is plain old data for which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` is a sockaddr_ll of the given length that outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(socket)
}

/// What the kernel is told to load a program; the start of its `union bpf_attr`.
#[repr(C)]
struct LoadProgram {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// What the kernel is told to pin an object.
#[repr(C)]
struct PinObject {
    path: u64,
    descriptor: u32,
    flags: u32,
}

/// Loads an XDP program and pins it to `path`, in a BPF file system. With `frags` it is said to take frames in fragments.
pub(crate) fn pin_xdp(instructions: &[u64], path: &str, frags: bool) -> io::Result<()> {
    const BPF_PROG_LOAD: libc::c_int = 5;
    const BPF_OBJ_PIN: libc::c_int = 6;
    const BPF_PROG_TYPE_XDP: u32 = 6;
    const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
    let license = text("GPL")?;
    let load = LoadProgram {
        kind: BPF_PROG_TYPE_XDP,
        instruction_count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: if frags { BPF_F_XDP_HAS_FRAGS } else { 0 },
    };
    // SAFETY: `load` and what it points to live until the call returns, and its size is passed along.
    let descriptor = check(unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, size_of::<LoadProgram>()) as libc::c_int
    })?;
    // SAFETY: the kernel has just made the descriptor, and nobody else has it.
    let program = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let path = text(path)?;
    let pin = PinObject { path: path.as_ptr() as u64, descriptor: program.as_raw_fd() as u32, flags: 0 };
    // SAFETY: `pin` and its path live until the call returns, and its size is passed along.
    check(unsafe {
        libc::syscall(libc::SYS_bpf, BPF_OBJ_PIN, &raw const pin, size_of::<PinObject>()) as libc::c_int
    })
    .map(drop)
}
