//! Brings a guest up as its first process.
//!
//! The processors that wait are started, then modules are loaded. The kernel command line says which modules to load,
//! `flownic.modules=virtio_net,...`, and which driver each network card gets ([`crate::drivers`]). The ones that the
//! agent's own port needs are always loaded. Whatever fails is collected and told to the host, which decides whether it
//! matters.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use guest_tests::protocol::PORT_NAME;

use crate::{drivers, serve, sys};

/// Modules of the port itself.
const PORT_MODULES: [&str; 2] = ["virtio_pci", "virtio_console"];
/// How long the port may take to appear.
const PORT_DEADLINE: Duration = Duration::from_secs(20);

/// What is mounted: source, target, type, and whether the guest is of no use without it.
const MOUNTS: [(&str, &str, &str, bool); 9] = [
    ("proc", "/proc", "proc", true),
    ("sysfs", "/sys", "sysfs", true),
    ("devtmpfs", "/dev", "devtmpfs", true),
    ("devpts", "/dev/pts", "devpts", true),
    ("tmpfs", "/run", "tmpfs", true),
    ("tmpfs", "/tmp", "tmpfs", true),
    ("debugfs", "/sys/kernel/debug", "debugfs", false),
    ("tracefs", "/sys/kernel/tracing", "tracefs", false),
    ("bpf", "/sys/fs/bpf", "bpf", false),
];

/// Mounts, loads modules, and serves; returns only when the port is lost for good.
pub(crate) fn run() -> Result<(), String> {
    let mut problems = mount_all();
    problems.extend(start_processors());
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    problems.extend(load(&PORT_MODULES));
    let modules = listed(&command_line, "flownic.modules=");
    problems.extend(drivers::bind(&listed(&command_line, "flownic.drivers="), || load(&modules)));
    let port = find_port()?;
    let open = File::options().read(true).write(true).open(&port);
    let stream = open.map_err(|error| format!("Could not open {}: {error}", port.display()))?;
    let watched = stream.try_clone().map_err(|error| format!("Could not watch the port: {error}"))?;
    let wait_for_host = || {
        // The port reads as ended while the host is away, and poll reports it at once: look again now and then.
        let pipe = std::io::pipe();
        if let Ok((never, _open)) = &pipe {
            let _ = sys::poll_readable([never.as_fd()], 50);
        }
        watched.metadata().is_ok()
    };
    serve::serve(stream, problems, wait_for_host).map_err(|error| format!("Port failed: {error}"))
}

fn mount_all() -> Vec<String> {
    let mut problems = Vec::new();
    for (source, target, kind, needed) in MOUNTS {
        let made = match fs::create_dir_all(target) {
            Err(error) if needed => Err(error),
            _ => sys::mount(source, target, kind, 0),
        };
        match made {
            // The kernel may have mounted its devices itself.
            Err(error) if needed && error.raw_os_error() != Some(libc::EBUSY) => {
                problems.push(format!("Could not mount {target}: {error}"));
            }
            _ => {}
        }
    }
    problems
}

/// Starts the processors that the kernel was told to leave alone while it patches itself. Drivers count them.
fn start_processors() -> Vec<String> {
    let entries = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let switches = entries.map(|entry| entry.path().join("online"));
    let off = switches.filter(|switch| fs::read_to_string(switch).is_ok_and(|state| state.trim() == "0"));
    let failed = off.filter_map(|switch| Some((fs::write(&switch, "1").err()?, switch)));
    failed.map(|(error, switch)| format!("Could not write {}: {error}", switch.display())).collect()
}

/// The values of an option such as `flownic.modules=a,b`.
fn listed<'a>(command_line: &'a str, option: &str) -> Vec<&'a str> {
    let value = command_line.split_whitespace().find_map(|word| word.strip_prefix(option));
    value.unwrap_or_default().split(',').filter(|name| !name.is_empty()).collect()
}

/// Loads modules with what they depend on. Runs before the reaper, so waiting for the child is safe.
fn load(modules: &[&str]) -> Option<String> {
    if modules.is_empty() {
        return None;
    }
    let path = "/usr/sbin:/usr/bin:/sbin:/bin";
    match Command::new("modprobe").arg("-a").args(modules).env("PATH", path).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            Some(format!("modprobe -a {modules:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Some(format!("Could not run modprobe: {error}")),
    }
}

fn find_port() -> Result<PathBuf, String> {
    let deadline = Instant::now() + PORT_DEADLINE;
    loop {
        let ports = fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten();
        for entry in ports {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            let device = Path::new("/dev").join(entry.file_name());
            if name.trim() == PORT_NAME && device.exists() {
                return Ok(device);
            }
        }
        if Instant::now() >= deadline {
            return Err(format!("No virtio-serial port {PORT_NAME} after {PORT_DEADLINE:?}"));
        }
        // The port's name comes over its control queue after the driver has bound; there is nothing to wait on.
        std::thread::sleep(Duration::from_millis(5));
    }
}
