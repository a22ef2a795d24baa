//! Which driver each network card of a guest gets.
//!
//! The kernel command line says so, `flownic.drivers=flownic_net,virtio_net`, in the order of the cards. Two drivers
//! want the same kind of device, so nobody may take one while they are loaded; then each card is bound by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest_tests::protocol::MODULE_PATH;

const BUS: &str = "/sys/bus/virtio";
/// Device id of a network card, as sysfs writes it.
const NETWORK: &str = "0x0001";

/// Runs `load`, which loads what the bus may need, and binds the cards; gives what went wrong. Without any choice the
/// kernel's own rule applies: who is loaded first takes all.
pub(crate) fn bind(drivers: &[&str], load: impl FnOnce() -> Option<String>) -> Vec<String> {
    if drivers.is_empty() {
        return load().into_iter().collect();
    }
    let mut problems: Vec<String> = write(&format!("{BUS}/drivers_autoprobe"), "0").into_iter().collect();
    problems.extend(load());
    problems.extend(insert_module());
    problems.extend(bind_each(drivers));
    problems.extend(write(&format!("{BUS}/drivers_autoprobe"), "1"));
    problems
}

fn write(path: &str, text: &str) -> Option<String> {
    let error = fs::write(path, text).err()?;
    Some(format!("Could not write {text} to {path}: {error}"))
}

/// Inserts the module that came with the agent, if one did, after those that it needs.
fn insert_module() -> Option<String> {
    if !Path::new(MODULE_PATH).exists() {
        return None;
    }
    let script = "set -e
        needs=$(modinfo -F depends \"$1\" | tr , ' ')
        [ -z \"$needs\" ] || modprobe -a $needs
        insmod \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", MODULE_PATH]).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    match command.output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("{MODULE_PATH}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Some(format!("Could not insert {MODULE_PATH}: {error}")),
    }
}

/// Names of the virtio network devices in the order of their PCI addresses, which is that of QEMU's arguments.
fn cards() -> Vec<String> {
    let entries = fs::read_dir(format!("{BUS}/devices")).into_iter().flatten().flatten();
    let networks = entries
        .filter(|entry| fs::read_to_string(entry.path().join("device")).is_ok_and(|id| id.trim() == NETWORK));
    let mut paths: Vec<PathBuf> = networks.filter_map(|entry| entry.path().canonicalize().ok()).collect();
    paths.sort_unstable();
    paths.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect()
}

fn bind_each(drivers: &[&str]) -> Vec<String> {
    let cards = cards();
    let mut problems = Vec::new();
    if cards.len() != drivers.len() {
        problems.push(format!("{} drivers for the network cards {cards:?}", drivers.len()));
    }
    let bound = cards.iter().zip(drivers);
    problems.extend(bound.filter_map(|(card, driver)| write(&format!("{BUS}/drivers/{driver}/bind"), card)));
    problems
}
