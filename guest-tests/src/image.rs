//! Guest images, kernels and QEMU, as the recipes in `images/` make them.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use crate::build;
use crate::cpio::{self, Entry};
use crate::protocol::MODULE_PATH;

/// Which kernel a guest boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// That of Debian's stable release.
    Stable,
    /// The newest in backports.
    Backports,
}

/// Which QEMU runs the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Qemu {
    /// The host distribution's.
    Host,
    /// The newest in backports.
    Backports,
}

impl Kernel {
    fn name(self) -> &'static str {
        match self {
            Kernel::Stable => "stable",
            Kernel::Backports => "backports",
        }
    }

    /// Folder with `vmlinux` and `base.cpio`, built on first use.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn image(self) -> PathBuf {
        recipe("build", &[self.name()]).into()
    }

    /// The reference driver, `guest-tests/driver`, built for this kernel on first use.
    ///
    /// # Panics
    /// When it cannot be built, with what the compiler said.
    pub fn module(self) -> PathBuf {
        recipe("module", &[self.name()]).into()
    }
}

/// Archive with the kernel's selftests and what they need, to be unpacked over [`Kernel::Backports`].
///
/// # Panics
/// When it cannot be made.
pub fn selftests() -> PathBuf {
    PathBuf::from(recipe("selftests", &[])).join("root.cpio")
}

impl Qemu {
    /// The program.
    ///
    /// # Panics
    /// When there is none and it cannot be fetched.
    pub fn program(self) -> PathBuf {
        let name = match self {
            Qemu::Host => "host",
            Qemu::Backports => "backports",
        };
        recipe("qemu", &[name]).into()
    }
}

/// Kernel command line that the images want.
///
/// # Panics
/// When the recipe's file cannot be read.
pub fn command_line() -> String {
    let path = images().join("cmdline");
    let text = fs::read_to_string(&path);
    text.unwrap_or_else(|error| panic!("Could not read {}: {error}", path.display())).trim().to_owned()
}

fn images() -> PathBuf {
    std::env::var_os("FLOWNIC_IMAGES").map_or_else(|| build::workspace().join("images"), PathBuf::from)
}

/// Runs a recipe once per process and gives the last line it prints.
fn recipe(name: &str, arguments: &[&str]) -> String {
    static RESULTS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());
    let key = format!("{name} {arguments:?}");
    // Held while the recipe runs: the others want the same result.
    let mut results = RESULTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some((_, result)) = results.iter().find(|(made, _)| *made == key) {
        return result.clone();
    }
    let mut command = Command::new(images().join(name));
    let output =
        command.args(arguments).output().unwrap_or_else(|error| panic!("Could not run {command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let result = stdout.lines().last().unwrap_or_default().to_owned();
    let good = output.status.success() && !result.is_empty();
    assert!(good, "{command:?} ended with {}:\n{stderr}", output.status);
    results.push((key, result.clone()));
    result
}

/// Name of a file's version: changes when the file does.
fn version(path: &Path) -> String {
    let metadata =
        fs::metadata(path).unwrap_or_else(|error| panic!("Could not look at {}: {error}", path.display()));
    let mut hasher = DefaultHasher::new();
    (path, metadata.len(), metadata.modified().ok()).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Makes `name` in the cache unless it is there, through `make`, which gets a path to be renamed into place.
fn cached(name: &str, make: impl FnOnce(&Path) -> io::Result<()>) -> PathBuf {
    let folder = build::target().join("guest-images");
    let made = folder.join(name);
    if !made.exists() {
        let fresh = folder.join(format!("{name}.{}", std::process::id()));
        let result = fs::create_dir_all(&folder).and_then(|()| make(&fresh));
        result.unwrap_or_else(|error| panic!("Could not make {}: {error}", fresh.display()));
        // Another process may have been faster: a folder is not replaced then, and its content is the same.
        if let Err(error) = fs::rename(&fresh, &made) {
            assert!(made.exists(), "Could not make {}: {error}", made.display());
            let _ = fs::remove_dir_all(&fresh);
        }
    }
    made
}

/// How long an initial RAM file system that is of no use any more stays: others may be about to boot it.
const KEEP: Duration = Duration::from_secs(3600);

/// Initial RAM file system of a guest: the image's, the archive `over` unpacked over it if there is one, the agent as
/// its first process and, if asked for, the reference driver at [`MODULE_PATH`].
///
/// # Panics
/// When it cannot be made.
pub fn initrd(kernel: Kernel, over: Option<&Path>, with_module: bool) -> PathBuf {
    let module = with_module.then(|| kernel.module());
    let (base, agent) = (kernel.image().join("base.cpio"), build::agent());
    let archives: Vec<&Path> = [Some(base.as_path()), over].into_iter().flatten().collect();
    let parts = archives.iter().copied().chain([agent]).chain(module.as_deref());
    let versions: Vec<String> = parts.map(version).collect();
    let content = if with_module { "driver" } else { "stock" };
    let under = if over.is_some() { "-more" } else { "" };
    let prefix = format!("{content}{under}-{}-", kernel.name());
    cached(&format!("{prefix}{}.cpio", versions.join("-")), |fresh| {
        forget(&prefix);
        let mut file = File::create(fresh)?;
        for archive in archives {
            let length = io::copy(&mut File::open(archive)?, &mut file)?;
            file.write_all(&[0; 3][..(length.next_multiple_of(4) - length) as usize])?;
        }
        let mut entries = vec![Entry { path: "init".into(), mode: 0o755, content: fs::read(agent)? }];
        if let Some(module) = &module {
            let path = MODULE_PATH.trim_start_matches('/').to_owned();
            entries.push(Entry { path, mode: 0o644, content: fs::read(module)? });
        }
        cpio::write(&mut file, &entries)
    })
}

/// Removes what was made under names with that prefix some time ago: each change of the driver makes a new one.
fn forget(prefix: &str) {
    let entries = fs::read_dir(build::target().join("guest-images")).into_iter().flatten().flatten();
    let old = entries.filter(|entry| {
        let age = entry.metadata().and_then(|metadata| metadata.modified()).map(|made| made.elapsed());
        entry.file_name().to_string_lossy().starts_with(prefix)
            && age.is_ok_and(|age| age.is_ok_and(|age| age > KEEP))
    });
    for entry in old {
        // Somebody else may be doing the same.
        let _ = fs::remove_file(entry.path());
    }
}

/// Folder with the stable image's programs, to be used as root directory on the host: the same tools on both sides.
///
/// # Panics
/// When it cannot be made.
pub fn tools() -> &'static Path {
    static TOOLS: LazyLock<PathBuf> = LazyLock::new(|| {
        let base = Kernel::Stable.image().join("base.cpio");
        cached(&format!("tools-{}", version(&base)), |fresh| {
            fs::create_dir(fresh)?;
            cpio::unpack(&mut BufReader::new(File::open(&base)?), fresh)
        })
    });
    &TOOLS
}
