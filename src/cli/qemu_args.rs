//! `flownic qemu-args`: what QEMU must be told to use a NIC.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use flownic::control::client::Client;
use flownic::control::replies::NicStatus;
use flownic::control::{ENVIRONMENT, Request, default_path};
use flownic::vhost::Endpoint;
use flownic::virtio::MacAddr;

use super::Failure;
use super::nics::{NicFlags, usage};

/// The first QEMU that wants milliseconds for reconnecting.
const RECONNECT_MS: (u32, u32) = (9, 2);
/// The largest rings that QEMU's virtio-net has.
const RING: u32 = 1024;

/// Print the QEMU arguments for NICs, of a running flownic or of these flags.
///
/// QEMU must have its memory in a shared backend, of which there can be only one: give the guest's memory here, or
/// --no-memory if your command line has a shared backend already. Arguments come one group a line, quoted for a shell:
/// qemu-system-x86_64 -enable-kvm -cpu host $(flownic qemu-args n0) ...
#[derive(Debug, Args)]
pub(super) struct QemuArgs {
    /// Which NICs; may be left out where there is only one.
    #[arg(value_name = "NIC")]
    names: Vec<String>,
    #[command(flatten)]
    nics: NicFlags,
    /// The control socket of the running flownic.
    #[arg(long, value_name = "PATH", env = ENVIRONMENT)]
    control: Option<PathBuf>,
    /// Memory of the guest.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size)]
    memory: String,
    /// Leave the memory out.
    #[arg(long)]
    no_memory: bool,
    /// MAC address of the (first) NIC; otherwise one that is made of the socket's path.
    #[arg(long)]
    mac: Option<MacAddr>,
    /// MSI-X vectors of each NIC; QEMU 7.2 without KVM needs 0 [default: 2 for each queue pair, and 2].
    #[arg(long, value_name = "N")]
    vectors: Option<u16>,
    /// Packed rings. Their front end can't tell where they stood when flownic ended without a word, so the guest has to load
    /// its driver again then.
    #[arg(long)]
    packed: bool,
    /// QEMU's version, as 7.2; otherwise the program is asked.
    #[arg(long, value_name = "VERSION", value_parser = version)]
    qemu_version: Option<(u32, u32)>,
    /// The program whose version counts [default: qemu-system-ARCHITECTURE].
    #[arg(long, value_name = "PROGRAM")]
    qemu: Option<PathBuf>,
    /// Print a JSON list of arguments.
    #[arg(long)]
    json: bool,
}

/// What QEMU must know of a NIC.
struct Nic {
    name: String,
    socket: String,
    /// QEMU listens, and flownic connects.
    qemu_listens: bool,
    queues: u16,
    mtu: u16,
}

fn size(s: &str) -> Result<String, String> {
    let number = s.strip_suffix(['K', 'M', 'G', 'T']).unwrap_or(s);
    let ok = number.parse::<u64>().is_ok_and(|n| n > 0) && number.bytes().all(|b| b.is_ascii_digit());
    if ok { Ok(s.into()) } else { Err("a number is, with K, M, G or T, like 512M".into()) }
}

fn version(s: &str) -> Result<(u32, u32), String> {
    let (major, rest) = s.split_once('.').unwrap_or((s, "0"));
    let minor = rest.split('.').next().unwrap_or_default();
    let ok = major.parse().ok().zip(minor.parse().ok());
    ok.ok_or_else(|| "versions look like 7.2".into())
}

impl QemuArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let version = match (self.qemu_version, &self.qemu) {
            (Some(version), _) => version,
            (None, Some(program)) => ask_version(program).ok_or_else(|| {
                Failure::Failed(format!(
                    "{} does not tell its version; say --qemu-version",
                    program.display()
                ))
            })?,
            (None, None) => ask_version(&usual_program()).unwrap_or(RECONNECT_MS),
        };
        let memory = (!self.no_memory).then(|| self.memory.clone());
        let (mac, vectors, packed, json) = (self.mac, self.vectors, self.packed, self.json);
        let nics = self.select()?;
        let mut groups = memory.map(|m| memory_arguments(&m)).unwrap_or_default();
        for (i, nic) in nics.iter().enumerate() {
            groups.extend(nic.arguments(mac.filter(|_| i == 0), vectors, packed, version));
        }
        let text = if json {
            format!("{}\n", serde_json::Value::from(groups.concat()))
        } else {
            let line = |g: &Vec<String>| g.iter().map(|a| quote(a)).collect::<Vec<_>>().join(" ") + "\n";
            groups.iter().map(line).collect()
        };
        Ok(io::stdout().write_all(text.as_bytes())?)
    }

    /// The NICs that are asked for.
    fn select(self) -> Result<Vec<Nic>, Failure> {
        let nics = if self.nics.is_empty() {
            let path = self.control.or_else(default_path).ok_or_else(|| {
                Failure::Usage(
                    "Where is the control socket? Say --control PATH, or describe the NICs here".into(),
                )
            })?;
            let asked = Client::connect(&path).and_then(|mut c| c.call(&Request::Show { nic: None }));
            let all: Vec<NicStatus> = asked.map_err(|e| match Failure::from(e) {
                Failure::Failed(e) => Failure::Failed(format!("{e}, or describe the NICs here: --nic ...")),
                e => e,
            })?;
            all.into_iter().map(from_status).collect()
        } else {
            let config = self.nics.settings()?.build().map_err(usage)?;
            config.nics.into_iter().map(from_config).collect::<Vec<_>>()
        };
        let known = || nics.iter().map(|n| n.0.as_str()).collect::<Vec<_>>().join(", ");
        if self.names.is_empty() && nics.len() != 1 {
            return Err(Failure::Usage(format!("There are several NICs, name some: {}", known())));
        }
        let unknown = self.names.iter().find(|name| nics.iter().all(|n| n.0 != **name));
        if let Some(name) = unknown {
            return Err(Failure::Usage(format!("There is no NIC '{name}'; there are: {}", known())));
        }
        let wanted = |name: &String| self.names.is_empty() || self.names.contains(name);
        nics.into_iter()
            .filter(|(name, _)| wanted(name))
            .map(|(name, nic)| {
                let text =
                    format!("NIC {name} has a descriptor and no path; whoever made it knows what QEMU needs");
                nic.ok_or(Failure::Failed(text))
            })
            .collect()
    }
}

fn from_status(s: NicStatus) -> (String, Option<Nic>) {
    let nic = s.socket.map(|socket| Nic {
        name: s.nic.clone(),
        socket,
        qemu_listens: s.mode == "client",
        queues: s.queues,
        mtu: s.mtu,
    });
    (s.nic, nic)
}

fn from_config(c: flownic::config::NicConfig) -> (String, Option<Nic>) {
    let (socket, qemu_listens) = match &c.endpoint {
        Endpoint::Listen(path) => (path, false),
        Endpoint::Connect(path) => (path, true),
        Endpoint::Fd(_) => return (c.name, None),
    };
    let socket = socket.display().to_string();
    let nic = Nic { name: c.name.clone(), socket, qemu_listens, queues: c.queue_pairs, mtu: c.mtu };
    (c.name, Some(nic))
}

fn usual_program() -> PathBuf {
    format!("qemu-system-{}", std::env::consts::ARCH).into()
}

/// The version that the program says it has.
fn ask_version(program: &Path) -> Option<(u32, u32)> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    version(text.split("version ").nth(1)?.split([' ', '\n', '(']).next()?).ok()
}

fn group(option: &str, value: String) -> Vec<String> {
    vec![option.into(), value]
}

fn memory_arguments(size: &str) -> Vec<Vec<String>> {
    vec![
        group("-m", size.into()),
        group("-object", format!("memory-backend-memfd,id=flownic-memory,size={size},share=on")),
        group("-machine", "memory-backend=flownic-memory".into()),
    ]
}

impl Nic {
    fn arguments(
        &self,
        mac: Option<MacAddr>,
        vectors: Option<u16>,
        packed: bool,
        version: (u32, u32),
    ) -> Vec<Vec<String>> {
        let (name, queues) = (&self.name, self.queues);
        // QEMU's options end at a comma, unless there are two.
        let path = self.socket.replace(',', ",,");
        let ways = match (self.qemu_listens, version >= RECONNECT_MS) {
            (true, _) => "server=on",
            (false, true) => "reconnect-ms=1000",
            (false, false) => "reconnect=1",
        };
        let mac = mac.unwrap_or_else(|| mac_of(&self.socket));
        let mut device = format!("virtio-net-pci,netdev=net-{name},mac={mac}");
        if queues > 1 {
            device += ",mq=on";
        }
        // Two for each pair, one for the control queue, one for configuration changes.
        let vectors = vectors.unwrap_or(2 * queues + 2);
        device += &format!(",vectors={vectors},rx_queue_size={RING},tx_queue_size={RING}");
        if packed {
            device += ",packed=on";
        }
        if self.mtu != 1500 {
            device += &format!(",host_mtu={}", self.mtu);
        }
        vec![
            group("-chardev", format!("socket,id=chr-{name},path={path},{ways}")),
            group("-netdev", format!("vhost-user,id=net-{name},chardev=chr-{name},queues={queues}")),
            group("-device", device),
        ]
    }
}

/// A locally administered address that is the same each time, and another one for another socket.
fn mac_of(socket: &str) -> MacAddr {
    // FNV-1a, 64 bits.
    let hash = socket
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    MacAddr([2, a, b, c, d, e])
}

/// For a POSIX shell.
fn quote(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,./:@%+".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.into()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic() -> Nic {
        Nic { name: "n0".into(), socket: "/run/n,0".into(), qemu_listens: false, queues: 4, mtu: 1500 }
    }

    #[test]
    fn all_that_a_nic_needs() {
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        let groups: Vec<String> =
            nic().arguments(Some(mac), None, false, (7, 2)).iter().map(|g| g.join(" ")).collect();
        assert_eq!(
            groups,
            [
                "-chardev socket,id=chr-n0,path=/run/n,,0,reconnect=1",
                "-netdev vhost-user,id=net-n0,chardev=chr-n0,queues=4",
                "-device virtio-net-pci,netdev=net-n0,mac=02:00:00:00:00:09,mq=on,vectors=10,rx_queue_size=1024,\
                 tx_queue_size=1024",
            ]
        );
        let chardev = |nic: Nic, version| nic.arguments(None, None, false, version)[0][1].clone();
        assert!(chardev(nic(), (9, 2)).ends_with(",reconnect-ms=1000"));
        assert!(chardev(Nic { qemu_listens: true, ..nic() }, (9, 2)).ends_with(",server=on"));
        assert!(nic().arguments(None, Some(0), false, (7, 2))[2][1].contains(",vectors=0,"));
        let packed = |packed| nic().arguments(None, None, packed, (7, 2))[2][1].contains(",packed=on");
        assert!(packed(true) && !packed(false));
        let device = Nic { mtu: 9000, queues: 1, ..nic() }.arguments(None, None, false, (9, 2))[2][1].clone();
        assert!(
            device.ends_with(",host_mtu=9000") && device.contains(",vectors=4,") && !device.contains("mq")
        );
    }

    #[test]
    fn addresses_differ_and_are_local() {
        let (a, b) = (mac_of("/run/n0"), mac_of("/run/n1"));
        assert!(a != b && a.0[0] == 2 && b.0[0] == 2);
        assert_eq!(a, mac_of("/run/n0"));
    }

    #[test]
    fn versions_sizes_and_quotes() {
        assert_eq!(
            (version("7.2"), version("10.0.3"), version("11")),
            (Ok((7, 2)), Ok((10, 0)), Ok((11, 0)))
        );
        assert!(version("new").is_err());
        assert!(size("512M").is_ok() && size("4096").is_ok());
        assert!(["", "M", "0G", "1.5G", "+1G", "1X"].iter().all(|s| size(s).is_err()));
        assert_eq!(
            (quote("a=b,c"), quote("it's"), quote("")),
            ("a=b,c".into(), r"'it'\''s'".into(), "''".into())
        );
    }
}
