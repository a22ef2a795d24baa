//! A guest under QEMU.

mod builder;
mod nic;
mod qmp;

use std::fs;
use std::io;
use std::ops::Deref;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

pub use builder::Builder;
pub use nic::{Backend, Driver, Nic};
pub use qmp::Qmp;

use crate::machine::Machine;
use crate::nic::Interface;
use crate::protocol::{MODULE_PATH, Power};
use crate::slots::Slots;
use crate::{Workdir, wait_for};

/// How long a guest may take to boot: some seconds, but minutes by emulation on a machine that has much else to do.
pub const BOOT_LIMIT: Duration = Duration::from_secs(240);

/// A booted guest: its commands run inside, through [`Machine`]. QEMU is killed on drop.
pub struct Guest {
    qemu: Emulator,
    machine: Machine,
    qmp: Qmp,
    builder: Builder,
    workdir: Workdir,
    boots: u32,
    slot: Slots,
}

impl Guest {
    /// A guest to be configured and booted.
    pub fn builder(name: &str) -> Builder {
        Builder::new(name)
    }

    /// Boots several guests at once, as a test that needs them together must do.
    ///
    /// # Panics
    /// When one does not come up, with its console.
    #[track_caller]
    pub fn boot_all<const N: usize>(workdir: &Workdir, builders: [Builder; N]) -> [Guest; N] {
        let mut slots = Slots::take(N);
        builders.map(|builder| Launch::new(builder, workdir.clone(), 0)).map(|launch| {
            let slot = slots.split().expect("one slot for each guest");
            launch.finish(slot)
        })
    }

    /// The monitor of this guest's QEMU.
    pub fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// Pid of QEMU on the host.
    pub fn qemu_pid(&self) -> u32 {
        self.qemu.0.id()
    }

    /// The interface of the guest's network card `index`.
    ///
    /// # Panics
    /// When there is no such card, or the guest has no interface for it.
    #[track_caller]
    pub fn interface(&self, index: usize) -> Interface<'_> {
        Interface::with_mac(&self.machine, &self.builder.mac(index))
    }

    /// Takes card `index` from its driver and gives it to another one, which is loaded if it is not yet.
    ///
    /// # Panics
    /// When that fails, or the guest was booted without the reference driver and is asked for it.
    #[track_caller]
    pub fn bind(&self, index: usize, driver: Driver) {
        let name = self.interface(index).name().to_owned();
        let device = self.run_ok(&format!("basename $(readlink -f /sys/class/net/{name}/device)"));
        self.run_ok(&format!("echo {device} >/sys/bus/virtio/devices/{device}/driver/unbind"));
        let load = match driver {
            Driver::VirtioNet => "modprobe virtio_net".to_owned(),
            Driver::FlownicNet => format!("[ -e /sys/module/flownic_net ] || insmod {MODULE_PATH}"),
        };
        self.run_ok(&load);
        let of = format!("/sys/bus/virtio/drivers/{}", driver.name());
        // A driver that has just been loaded takes it by itself.
        self.run_ok(&format!("[ -e {of}/{device} ] || echo {device} >{of}/bind"));
    }

    /// Reboots through the kernel and waits until the agent is back.
    ///
    /// # Panics
    /// When it does not come back.
    #[track_caller]
    pub fn reboot(&mut self) {
        self.machine.power(Power::Reboot);
        self.wait_booted();
    }

    /// Resets as the button on the case would, and waits until the agent is back.
    ///
    /// # Panics
    /// When it does not come back.
    #[track_caller]
    pub fn reset(&mut self) {
        self.qmp.execute("system_reset", serde_json::json!({}));
        self.wait_booted();
    }

    #[track_caller]
    fn wait_booted(&mut self) {
        let ready = self.machine.wait_ready(BOOT_LIMIT).and_then(|ready| match ready.problems.as_slice() {
            [] => Ok(()),
            problems => Err(format!("{}: {}", self.machine.name(), problems.join("; "))),
        });
        if let Err(message) = ready {
            let ended = self.qemu.end();
            let logs = logs(&self.workdir, self.machine.name(), self.boots);
            panic!("{message}; QEMU ended with {ended} (now at the latest)\n{logs}");
        }
    }

    /// Powers off and waits until QEMU has ended.
    ///
    /// # Panics
    /// When it does not end.
    #[track_caller]
    pub fn power_off(&mut self) {
        self.machine.power(Power::Off);
        self.wait_ended();
    }

    /// Kills QEMU as `kill -9` does.
    ///
    /// # Panics
    /// When that is not possible.
    #[track_caller]
    pub fn kill(&mut self) {
        self.qemu.0.kill().expect("QEMU is ours to kill");
        self.wait_ended();
    }

    #[track_caller]
    fn wait_ended(&mut self) {
        let qemu = &mut self.qemu.0;
        wait_for("QEMU to end", Duration::from_secs(30), || match qemu.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}")),
        });
    }

    /// Starts a QEMU with the same arguments, after [`Guest::kill`] or [`Guest::power_off`].
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    pub fn boot_again(self) -> Guest {
        let mut old = self;
        old.kill();
        let slot = old.slot.split().expect("a guest holds a slot");
        Launch::new(old.builder.clone(), old.workdir.clone(), old.boots + 1).finish(slot)
    }
}

impl Deref for Guest {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

/// QEMU's process, killed on drop.
struct Emulator(Child);

impl Emulator {
    /// How it ended; kills it first if it runs.
    fn end(&mut self) -> String {
        // Fails only when it has ended already.
        let _ = self.0.kill();
        self.0.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.end();
    }
}

/// A QEMU that is on its way up.
struct Launch {
    qemu: Emulator,
    builder: Builder,
    workdir: Workdir,
    boots: u32,
    agent: UnixListener,
    monitor: UnixListener,
}

/// The file names of one boot of a guest.
struct Files {
    agent: PathBuf,
    monitor: PathBuf,
    console: PathBuf,
    qemu: PathBuf,
}

impl Files {
    fn new(workdir: &Workdir, name: &str, boots: u32) -> Files {
        let file = |kind: &str| workdir.join(format!("{name}-{boots}.{kind}"));
        Files { agent: file("agent"), monitor: file("qmp"), console: file("console"), qemu: file("qemu") }
    }
}

/// What console and QEMU said last.
fn logs(workdir: &Workdir, name: &str, boots: u32) -> String {
    let files = Files::new(workdir, name, boots);
    let tail = |path: &PathBuf| {
        let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        format!("--- {}\n{}\n", path.display(), lines[lines.len().saturating_sub(40)..].join("\n"))
    };
    tail(&files.console) + &tail(&files.qemu)
}

impl Launch {
    #[track_caller]
    fn new(builder: Builder, workdir: Workdir, boots: u32) -> Launch {
        let files = Files::new(&workdir, builder.name(), boots);
        let listen = |path: &PathBuf| {
            let bound = UnixListener::bind(path).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(listener)
            });
            bound.unwrap_or_else(|error| panic!("Could not listen at {}: {error}", path.display()))
        };
        let (agent, monitor) = (listen(&files.agent), listen(&files.monitor));
        let log = fs::File::create(&files.qemu).expect("the work folder takes files");
        let mut command = Command::new(builder.program());
        command.args(builder.arguments_for(&files));
        command.stdout(log.try_clone().expect("a second handle")).stderr(log);
        // The command line is the first thing one wants to see when a guest does not come up.
        let _ =
            fs::write(workdir.join(format!("{}-{boots}.command", builder.name())), format!("{command:?}\n"));
        let qemu = command.spawn().unwrap_or_else(|error| panic!("Could not run {command:?}: {error}"));
        Launch { qemu: Emulator(qemu), builder, workdir, boots, agent, monitor }
    }

    #[track_caller]
    fn accept(&mut self, listener: &UnixListener, what: &str) -> UnixStream {
        let (qemu, name, boots) = (&mut self.qemu.0, self.builder.name().to_owned(), self.boots);
        let workdir = &self.workdir;
        wait_for(&format!("QEMU's {what}"), BOOT_LIMIT, || {
            if let Ok(Some(status)) = qemu.try_wait() {
                panic!("{name}: QEMU ended with {status}\n{}", logs(workdir, &name, boots));
            }
            let (stream, _) = listener.accept().map_err(|error: io::Error| error.to_string())?;
            stream.set_nonblocking(false).map_err(|error| error.to_string())?;
            Ok(stream)
        })
    }

    #[track_caller]
    fn finish(mut self, slot: Slots) -> Guest {
        let (monitor, agent) = (self.monitor.try_clone(), self.agent.try_clone());
        let agent = self.accept(&agent.expect("a second handle"), "agent port");
        let monitor = self.accept(&monitor.expect("a second handle"), "monitor");
        let Launch { qemu, builder, workdir, boots, .. } = self;
        let qmp = Qmp::new(monitor).expect("QEMU's monitor greets");
        let machine = Machine::new(builder.name(), agent, None).expect("a thread for the agent");
        let mut guest = Guest { qemu, machine, qmp, builder, workdir, boots, slot };
        guest.wait_booted();
        guest
    }
}
