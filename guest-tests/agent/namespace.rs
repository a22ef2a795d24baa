//! A network namespace on the host, with process and mount namespaces of its own: when its first process ends, so does
//! everything in it, devices and processes alike. Without privileges a user namespace is put around it.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::process::Command;

use crate::{serve, sys};

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> String {
    move |error| format!("Could not {what}: {error}")
}

/// Makes the namespaces and runs [`run`] as their first process; returns when that has ended, which it does when the
/// harness closes the stream.
pub(crate) fn enter(root: Option<&str>) -> Result<(), String> {
    let (user, group) = sys::user_and_group();
    if user != 0 {
        sys::unshare(libc::CLONE_NEWUSER).map_err(failed("make a user namespace"))?;
        fs::write("/proc/self/setgroups", "deny").map_err(failed("give up group changes"))?;
        fs::write("/proc/self/uid_map", format!("0 {user} 1")).map_err(failed("map the user"))?;
        fs::write("/proc/self/gid_map", format!("0 {group} 1")).map_err(failed("map the group"))?;
    }
    sys::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC)
        .map_err(failed("make a network namespace"))?;
    let mut first = Command::new("/proc/self/exe");
    first.arg("namespace-init").args(root);
    let status = first.status().map_err(failed("start the namespace's first process"))?;
    if status.success() { Ok(()) } else { Err(format!("First process of the namespace: {status}")) }
}

/// First process of the namespaces: mounts their views and serves.
pub(crate) fn run(root: Option<&str>) -> Result<(), String> {
    sys::die_with_parent().map_err(failed("tie the namespace to its parent"))?;
    sys::mount("none", "/", "", libc::MS_REC | libc::MS_PRIVATE).map_err(failed("make mounts private"))?;
    sys::mount("proc", "/proc", "proc", 0).map_err(failed("mount /proc"))?;
    sys::mount("sysfs", "/sys", "sysfs", 0).map_err(failed("mount /sys"))?;
    if let Some(root) = root {
        let mount_point = |view: &str| {
            let target = format!("{root}{view}");
            // All namespaces share the root, and another one may be making it, too.
            let made = fs::create_dir_all(&target);
            made.map(|()| target).map_err(failed("make a mount point in the tools' root"))
        };
        for view in ["/proc", "/sys", "/dev"] {
            sys::mount(view, &mount_point(view)?, "", libc::MS_BIND | libc::MS_REC)
                .map_err(failed("show the host's files in the tools' root"))?;
        }
        // A folder of its own: files of two namespaces may have the same names.
        sys::mount("tmpfs", &mount_point("/tmp")?, "tmpfs", 0).map_err(failed("mount /tmp"))?;
    }
    let input = std::io::stdin();
    let stream = input.as_fd().try_clone_to_owned().map_err(failed("take the stream"))?;
    serve::serve(File::from(stream), Vec::new(), || false).map_err(|error| format!("Stream failed: {error}"))
}
