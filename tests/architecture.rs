//! The rules of the house that the compiler does not know: which module may know of which, where `unsafe` may be, how long
//! a file may get.

use std::fs;
use std::path::Path;

/// Modules that only compute: what goes in comes out changed, and nothing else happens.
const PURE: [&str; 5] = ["virtio", "packet", "offload", "steer", "stats"];
/// What pure modules may not name: modules of this crate that do things, and ways to do them directly.
const IMPURE_MODULES: [&str; 8] =
    ["vhost", "port", "nic", "dataplane", "daemon", "control", "listener", "config"];
const IMPURE_WORDS: [&str; 14] = [
    "unsafe",
    "libc",
    "epoll",
    "vmm_sys_util",
    "vm_memory",
    "Instant",
    "SystemTime",
    "thread",
    "spawn",
    "RawFd",
    "OwnedFd",
    "BorrowedFd",
    "File",
    "UnixStream",
];
/// Where `unsafe` may be.
const UNSAFE: [&str; 3] = ["vhost/ring/", "port/sys", "hint.rs"];
/// Lines of a file, without its tests.
const MOST_LINES: usize = 450;
/// Files that are longer, because they are one thing.
const LONG: &[&str] = &[];

/// One file of `src`, by its path in there.
struct Source {
    path: String,
    /// Its code, without tests and comments, line by line.
    code: Vec<String>,
    /// Lines before its tests.
    lines: usize,
}

impl Source {
    fn words(&self) -> impl Iterator<Item = &str> {
        let separates = |c: char| !c.is_alphanumeric() && c != '_';
        self.code.iter().flat_map(move |l| l.split(separates)).filter(|w| !w.is_empty())
    }

    /// The first name of every path into this crate: `a` of `crate::a::b` and of `use crate::{a::b}`.
    fn modules(&self) -> Vec<String> {
        let code: String = self.code.join(" ").split_whitespace().collect();
        let mut modules = Vec::new();
        for rest in code.split("crate::").skip(1) {
            let list = match rest.strip_prefix('{') {
                Some(group) => top_level(group),
                None => vec![rest],
            };
            modules.extend(list.into_iter().map(|path| {
                let end = path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len());
                path[..end].to_string()
            }));
        }
        modules
    }
}

/// The parts of `a::{b,c},d}...`, up to the brace that closes it.
fn top_level(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (i, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                parts.push(&group[start..i]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts
}

fn is_for_tests(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    path.starts_with("testkit/")
        || path.contains("/tests/")
        || name.ends_with("tests.rs")
        || name == "testing.rs"
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_string();
            if name.ends_with(".rs") && !is_for_tests(&name) {
                sources.push(read(name, &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(sources.len() > 40, "only {} files found", sources.len());
    sources
}

fn read(path: String, text: &str) -> Source {
    let lines: Vec<&str> = text.lines().collect();
    // Tests are at the end of a file.
    let tests = lines.windows(2).position(|w| w[0] == "#[cfg(test)]" && w[1].ends_with('{'));
    let lines = &lines[..tests.unwrap_or(lines.len())];
    let code = lines.iter().map(|l| l.split_once("//").map_or(*l, |(code, _)| code).to_string()).collect();
    Source { path, code, lines: lines.len() }
}

#[test]
fn pure_modules_know_no_transport_no_port_and_no_nic() {
    for s in sources().iter().filter(|s| is_pure(&s.path)) {
        for module in s.modules() {
            assert!(!IMPURE_MODULES.contains(&module.as_str()), "src/{} uses crate::{module}", s.path);
        }
    }
}

#[test]
fn pure_modules_use_no_descriptor_clock_thread_or_unsafe() {
    for s in sources().iter().filter(|s| is_pure(&s.path)) {
        for word in s.words() {
            assert!(!IMPURE_WORDS.contains(&word), "src/{} says {word}", s.path);
        }
    }
}

fn is_pure(path: &str) -> bool {
    PURE.iter().any(|m| *path == format!("{m}.rs") || path.starts_with(&format!("{m}/")))
}

#[test]
fn unsafe_code_is_where_rings_and_system_calls_are() {
    let mut places = 0;
    for s in sources() {
        let uses = s.words().any(|w| w == "unsafe" || w == "unsafe_code");
        assert!(!uses || UNSAFE.iter().any(|p| s.path.starts_with(p)), "src/{} has unsafe code", s.path);
        places += usize::from(uses);
    }
    assert!(places > 3, "the test finds none at all");
}

#[test]
fn the_root_denies_unsafe_code() {
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    assert!(manifest.contains("unsafe_code = \"deny\""));
}

#[test]
fn no_file_is_too_long_to_be_read_in_one_go() {
    let sources = sources();
    let long: Vec<_> = sources.iter().filter(|s| s.lines > MOST_LINES).collect();
    for s in &long {
        assert!(LONG.contains(&s.path.as_str()), "src/{} has {} lines of code", s.path, s.lines);
    }
    for listed in LONG {
        assert!(long.iter().any(|s| s.path == *listed), "src/{listed} need not be listed any more");
    }
}

#[test]
fn the_rules_are_able_to_fail() {
    let text = "use std::fmt;\nuse crate::{a::{b, c}, vhost::ring};\nfn f() { crate::nic::g() } // crate::port\n\
                #[cfg(test)]\nmod tests {\nuse crate::daemon;\n}";
    let s = read("steer/x.rs".into(), text);
    assert_eq!((s.modules(), s.lines), (vec!["a".into(), "vhost".into(), "nic".into()], 3));
    assert!(is_pure(&s.path) && is_pure("packet.rs") && !is_pure("port/sys.rs") && !is_pure("packets.rs"));
    assert!(s.words().any(|w| w == "ring") && !s.words().any(|w| w == "port"));
}
