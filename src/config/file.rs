//! Settings from a TOML file: the words of the command line, one `[[nic]]` for each NIC.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use toml::{Table, Value};

use super::{ConfigError, CpuList, NicSettings, Profile, Settings};

const KEYS: &str = "nic, cpus, poll, control, features, capture, in-band, profile";

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// When it can't be read, is no TOML, or says what the command line could not say either.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let fail = |problem: String| ConfigError::File { path: path.into(), problem };
        let text = fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
        Self::from_toml(&text).map_err(fail)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|e: toml::de::Error| e.to_string().trim_end().to_string())?;
        let mut settings = Settings::default();
        for (key, value) in &table {
            match key.as_str() {
                "nic" => settings.nics = nics(value)?,
                "cpus" => settings.cpus = Some(parsed::<CpuList>(key, value)?),
                "poll" => settings.poll = Some(parsed(key, value)?),
                "control" => settings.control = Some(word(key, value)?.into()),
                "features" => settings.features = Some(parsed(key, value)?),
                "in-band" => settings.in_band = Some(parsed(key, value)?),
                "profile" => settings.profile = Some(Profile::by_name(&word(key, value)?)?),
                "capture" => settings.capture = Some(word(key, value)?.into()),
                _ => return Err(format!("unknown key '{key}'; keys are {KEYS}")),
            }
        }
        Ok(settings)
    }
}

fn nics(value: &Value) -> Result<Vec<NicSettings>, String> {
    let tables = value.as_array().ok_or("'nic' is to be written as [[nic]], once for each NIC")?;
    tables
        .iter()
        .map(|nic| {
            let table = nic.as_table().ok_or("'nic' is to be written as [[nic]], once for each NIC")?;
            let name = table.get("name").ok_or("a [[nic]] has no name")?;
            let mut nic = NicSettings::named(&word("name", name)?).map_err(|e| e.to_string())?;
            for (key, value) in table.iter().filter(|(k, _)| *k != "name") {
                nic.set(key, &word(key, value)?).map_err(|e| e.to_string())?;
            }
            Ok(nic)
        })
        .collect()
}

fn parsed<T: FromStr<Err = ConfigError>>(key: &str, value: &Value) -> Result<T, String> {
    word(key, value)?.parse().map_err(|e: ConfigError| e.to_string())
}

/// A value as the command line has it; a list is written with commas there.
fn word(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(s) => Ok(s.clone()),
        Value::Integer(n) => Ok(n.to_string()),
        Value::Array(items) => {
            Ok(items.iter().map(|i| word(key, i)).collect::<Result<Vec<_>, _>>()?.join(","))
        }
        other => Err(format!("'{key}' takes text, a number or a list of those, no {}", other.type_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, PollMode, PortConfig};
    use crate::virtio::{F_EVENT_IDX, F_MRG_RXBUF};

    #[test]
    fn a_file_says_what_flags_say() {
        let file = r#"
            control = "/run/c.sock"
            cpus = [0, "2-3"]
            poll = "adaptive=7"
            features = ["-mrg_rxbuf", "-event_idx"]
            in-band = "kernel"
            profile = "sfc"
            [[nic]]
            name = "n0"
            socket = "/run/n0.sock"
            queues = 4
            port = "tap:fn0"
            in-band = "user"
            filter-delay = "5ms"
            filter-inflight = 2
            [[nic]]
            name = "n1"
            fd = 5
            features = "+event_idx"
            port = "gen:flows=16,size=100"
        "#;
        let flags = Settings {
            nics: [
                "n0,socket=/run/n0.sock,queues=4,port=tap:fn0,in-band=user,filter-delay=5ms,filter-inflight=2",
                "n1,fd=5,features=+event_idx,port=gen:flows=16;size=100",
            ]
            .iter()
            .map(|s| s.parse().unwrap())
            .collect(),
            cpus: Some("0,2-3".parse().unwrap()),
            poll: Some("adaptive=7".parse().unwrap()),
            control: Some("/run/c.sock".into()),
            features: Some("-mrg_rxbuf,-event_idx".parse().unwrap()),
            capture: None,
            in_band: Some("kernel".parse().unwrap()),
            profile: Some(Profile::by_name("sfc").unwrap()),
        };
        let build = |s: Settings| format!("{:?}", s.build().unwrap());
        assert_eq!(build(Settings::from_toml(file).unwrap()), build(flags));
    }

    #[test]
    fn flags_go_before_the_file() {
        let file =
            Settings::from_toml("poll = 'always'\ncpus = 1\n[[nic]]\nname = 'a'\nsocket = '/a'").unwrap();
        let flags = Settings {
            nics: vec!["b,socket=/b".parse().unwrap()],
            poll: Some(PollMode::Off),
            ..Settings::default()
        };
        let Config { nics, cpus, poll, .. } = flags.or(file).build().unwrap();
        assert_eq!(nics.iter().map(|n| n.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((cpus, poll), (vec![1], PollMode::Off));
        assert_eq!(nics[0].port, PortConfig::Null);
        assert_ne!(nics[0].features & (F_MRG_RXBUF | F_EVENT_IDX), 0);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wanted) in [
            ("turbo = true", "unknown key 'turbo'; keys are nic, cpus"),
            ("poll = true", "'poll' takes text, a number or a list of those, no boolean"),
            ("poll = 'often'", "'often' is no poll mode"),
            ("nic = 3", "[[nic]]"),
            ("profile = 'x'", "'x' is no profile; there are sfc"),
            (
                "[[nic]]\nname = 'n0'\nfilter-delay = 5",
                "NIC n0: filter-delay=5 is not possible: '5' is no delay",
            ),
            ("[[nic]]\nsocket = '/a'", "a [[nic]] has no name"),
            ("[[nic]]\nname = 'n0'\nqueues = 0", "NIC n0: queues=0 is not possible; queues takes 1 to 127"),
            ("[[nic]]\nname = 'n0'\nport = {tap = 'a'}", "'port' takes text"),
            ("poll = ", "line 1"),
        ] {
            let e = Settings::from_toml(text).unwrap_err();
            assert!(e.contains(wanted), "{text:?}: {e}");
        }
        let e = Settings::from_file(Path::new("/nonexistent/f.toml")).unwrap_err().to_string();
        assert!(e.starts_with("/nonexistent/f.toml: ") && e.contains("No such file"), "{e}");
    }
}
