//! What the conventions for vhost-user back ends ask for: capabilities, and a description that QEMU's management finds.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::Failure;

/// The file's name: back ends are tried in the order of their names.
const FILE: &str = "50-flownic.json";

/// Install the description of this back end where QEMU's management software looks for one.
///
/// For root that is /etc/qemu/vhost-user, for others qemu/vhost-user in XDG_CONFIG_HOME or ~/.config. A package puts
/// contrib/50-flownic.json into /usr/share/qemu/vhost-user instead.
#[derive(Debug, Args)]
pub(super) struct InstallDescription {
    /// Folder to install into.
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    /// The program that the description names; otherwise this one.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// What `--print-capabilities` prints.
pub(super) fn capabilities() -> Value {
    json!({ "type": "net" })
}

fn description(binary: &str) -> Value {
    // The packaged file is the model; only the program's place differs.
    let mut description: Value =
        serde_json::from_str(include_str!("../../contrib/50-flownic.json")).expect("a test reads it too");
    description["binary"] = binary.into();
    description
}

impl InstallDescription {
    pub(super) fn run(self) -> Result<(), Failure> {
        let failed = |what: &str, e: io::Error| Failure::Failed(format!("{what}: {e}"));
        let binary =
            self.binary.map_or_else(std::env::current_exe, Ok).map_err(|e| failed("This program", e))?;
        if !binary.is_absolute() {
            return Err(Failure::Usage(format!("--binary {} is no absolute path", binary.display())));
        }
        let folder = self.dir.or_else(usual_folder).ok_or_else(|| {
            Failure::Usage("There is no home folder to install into; say --dir PATH".into())
        })?;
        let path = folder.join(FILE);
        let text =
            serde_json::to_string_pretty(&description(&binary.to_string_lossy())).expect("plain data") + "\n";
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|e| failed(&format!("{} can't be written", path.display()), e))?;
        Ok(writeln!(io::stdout(), "{}", path.display())?)
    }
}

fn usual_folder() -> Option<PathBuf> {
    if flownic::control::is_root() {
        return Some("/etc/qemu/vhost-user".into());
    }
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let config = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")))?;
    Some(config.join("qemu/vhost-user"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_has_what_the_schema_demands_and_nothing_else() {
        let d = description("/opt/flownic");
        let keys: Vec<_> = d.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["description", "type", "binary", "tags"]);
        assert_eq!((&d["type"], &d["binary"]), (&"net".into(), &"/opt/flownic".into()));
        assert!(d["tags"].as_array().unwrap().iter().all(Value::is_string));
        assert_eq!(capabilities()["type"], d["type"]);
    }
}
