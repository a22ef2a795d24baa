//! What a guest is made of.

use std::path::PathBuf;
use std::process::Command;

use super::{Driver, Files, Guest, Nic};
use crate::image::{self, Kernel, Qemu};
use crate::workdir::Workdir;

/// A guest to be booted.
#[derive(Debug, Clone)]
pub struct Builder {
    name: String,
    kernel: Kernel,
    qemu: Qemu,
    vcpus: u32,
    memory: u32,
    modules: Vec<String>,
    driver: Driver,
    over: Option<PathBuf>,
    nics: Vec<Nic>,
    arguments: Vec<String>,
}

impl Builder {
    pub(super) fn new(name: &str) -> Builder {
        Builder {
            name: name.to_owned(),
            kernel: Kernel::Stable,
            qemu: Qemu::Backports,
            vcpus: 2,
            memory: 512,
            modules: vec!["virtio_net".to_owned()],
            driver: Driver::VirtioNet,
            over: None,
            nics: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// Which kernel to boot; stable unless told otherwise.
    pub fn kernel(self, kernel: Kernel) -> Builder {
        Builder { kernel, ..self }
    }

    /// Which QEMU to run; that of backports unless told otherwise.
    pub fn qemu(self, qemu: Qemu) -> Builder {
        Builder { qemu, ..self }
    }

    /// Number of processors; 2 unless told otherwise.
    pub fn vcpus(self, vcpus: u32) -> Builder {
        Builder { vcpus, ..self }
    }

    /// Memory in MiB; 512 unless told otherwise.
    pub fn memory(self, memory: u32) -> Builder {
        Builder { memory, ..self }
    }

    /// Driver of the network cards that have none of their own choice; `virtio_net` unless told otherwise.
    pub fn driver(self, driver: Driver) -> Builder {
        Builder { driver, ..self }
    }

    /// A cpio archive that is unpacked over the image.
    pub fn over(self, archive: PathBuf) -> Builder {
        Builder { over: Some(archive), ..self }
    }

    /// Modules to load at boot; `virtio_net` unless told otherwise. The reference driver is loaded where a card wants it.
    pub fn modules(self, modules: &[&str]) -> Builder {
        Builder { modules: modules.iter().map(|name| (*name).to_owned()).collect(), ..self }
    }

    /// Adds a network card.
    pub fn nic(mut self, nic: Nic) -> Builder {
        self.nics.push(nic);
        self
    }

    /// Adds arguments for QEMU.
    pub fn arguments(mut self, arguments: &[&str]) -> Builder {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// Boots and waits until commands can be run.
    ///
    /// # Panics
    /// When it does not come up, with its console.
    #[track_caller]
    pub fn boot(self, workdir: &Workdir) -> Guest {
        let [guest] = Guest::boot_all(workdir, [self]);
        guest
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn program(&self) -> PathBuf {
        self.qemu.program()
    }

    /// Hardware address of card `index`: as asked, else from the guest's name and the index.
    #[track_caller]
    pub(super) fn mac(&self, index: usize) -> String {
        let nic = self.nics.get(index);
        let nic = nic.unwrap_or_else(|| {
            panic!("{} has {} network cards, no number {index}", self.name, self.nics.len())
        });
        let sum = self.name.bytes().fold(0u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let [high, low] = sum.to_be_bytes();
        nic.address().map_or_else(|| format!("52:54:00:{high:02x}:{low:02x}:{index:02x}"), str::to_owned)
    }

    /// Driver of each card.
    fn drivers(&self) -> Vec<Driver> {
        self.nics.iter().map(|nic| nic.wanted_driver().unwrap_or(self.driver)).collect()
    }

    /// Major version of the QEMU program.
    fn version(&self) -> u32 {
        let output = Command::new(self.program()).arg("--version").output().expect("QEMU tells its version");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let major = text.split("version ").nth(1).and_then(|rest| rest.split('.').next()?.parse().ok());
        major.unwrap_or_else(|| panic!("No version in {text:?}"))
    }

    pub(super) fn arguments_for(&self, files: &Files) -> Vec<String> {
        let socket = |id: &str, path: &PathBuf| format!("socket,id={id},path={}", path.display());
        let mut append = format!("{} flownic.modules={}", image::command_line(), self.modules.join(","));
        let drivers = self.drivers();
        let with_module = drivers.contains(&Driver::FlownicNet);
        if with_module {
            let names: Vec<&str> = drivers.iter().map(|driver| driver.name()).collect();
            append.push_str(&format!(" flownic.drivers={}", names.join(",")));
        }
        let mut arguments: Vec<String> = [
            "-name",
            &self.name,
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-machine",
            "q35,memory-backend=mem",
            "-object",
            &format!("memory-backend-memfd,id=mem,size={}M,share=on", self.memory),
            "-m",
            &format!("{}M", self.memory),
            "-smp",
            &self.vcpus.to_string(),
            "-kernel",
            &self.kernel.image().join("vmlinux").display().to_string(),
            "-initrd",
            &image::initrd(self.kernel, self.over.as_deref(), with_module).display().to_string(),
            "-append",
            &append,
            "-serial",
            &format!("file:{}", files.console.display()),
            "-chardev",
            &socket("monitor", &files.monitor),
            "-mon",
            "chardev=monitor,mode=control",
            "-chardev",
            &socket("agent", &files.agent),
            "-device",
            "virtio-serial-pci",
            "-device",
            &format!("virtserialport,chardev=agent,name={}", crate::protocol::PORT_NAME),
            "-device",
            "virtio-rng-pci",
        ]
        .map(str::to_owned)
        .to_vec();
        let (program, version) = (self.program(), self.version());
        for (index, nic) in self.nics.iter().enumerate() {
            arguments.extend(nic.arguments(index, &self.mac(index), &program, version));
        }
        arguments.extend(self.arguments.iter().cloned());
        arguments
    }
}
