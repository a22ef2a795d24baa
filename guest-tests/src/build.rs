//! Builds the programs under test with cargo, at most once per process.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The workspace's root folder.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// The workspace's target folder: the one that holds the running test.
pub fn target() -> &'static Path {
    static TARGET: LazyLock<PathBuf> = LazyLock::new(|| {
        let program = std::env::current_exe().expect("the running test has a path");
        // target/PROFILE/deps/NAME
        let target = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
        target.map_or_else(|| workspace().join("target"), Path::to_owned)
    });
    &TARGET
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(workspace()).args(["build", "--quiet", "--locked"]);
    // Those of the running cargo are about this package.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

fn finish(mut command: Command, program: PathBuf) -> PathBuf {
    let output = command.output().unwrap_or_else(|error| panic!("Could not run {command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}:\n{stderr}", output.status);
    assert!(program.exists(), "{command:?} did not make {}", program.display());
    program
}

/// The flownic program: `FLOWNIC_BIN`, or one built in the profile of the running test.
pub fn flownic() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(program) = std::env::var_os("FLOWNIC_BIN") {
            return PathBuf::from(program);
        }
        let mut command = cargo();
        command.args(["--package", "flownic", "--bin", "flownic"]).arg("--target-dir").arg(target());
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        if profile == "release" {
            command.arg("--release");
        }
        finish(command, target().join(profile).join("flownic"))
    });
    &PROGRAM
}

/// The agent, linked statically so that it runs in any guest.
pub fn agent() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| static_program("guest-tests", "flownic-agent"));
    &PROGRAM
}

/// Ping-pong with a choice of ways to wait, linked statically so that it runs in guests and namespaces.
pub fn pingpong() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| static_program("guest-tests", "flownic-pingpong"));
    &PROGRAM
}

/// The program that programs the card from user space, as guests get it: `FLOWNIC_GUEST_BIN`, or one built here.
pub fn guest_program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| match std::env::var_os("FLOWNIC_GUEST_BIN") {
        Some(program) => program.into(),
        None => static_program("flownic", "flownic-guest"),
    });
    &PROGRAM
}

/// A program that needs no libraries.
fn static_program(package: &str, name: &str) -> PathBuf {
    const TRIPLE: &str = "x86_64-unknown-linux-gnu";
    let folder = target().join("guest-agent");
    let mut command = cargo();
    command.args(["--package", package, "--bin", name, "--release", "--target", TRIPLE]);
    // Small and soon built; they have little to compute.
    for setting in ["strip=true", "debug=false", "lto=\"off\"", "codegen-units=16", "opt-level=1"] {
        command.args(["--config", &format!("profile.release.{setting}")]);
    }
    command.arg("--target-dir").arg(&folder).env("RUSTFLAGS", "-C target-feature=+crt-static");
    finish(command, folder.join(TRIPLE).join("release").join(name))
}
