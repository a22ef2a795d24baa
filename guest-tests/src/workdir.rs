//! The files of one test.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A folder with a short path (UNIX socket addresses are limited to 107 bytes) for sockets and logs. The last clone to
/// go removes it, unless a test has failed: then it stays and its path is printed.
#[derive(Clone, Debug)]
pub struct Workdir {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
}

impl Workdir {
    /// Makes a folder named after the running test.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new() -> Workdir {
        let test: String =
            thread::current().name().unwrap_or("test").replace("::", "-").chars().take(40).collect();
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("flownic-{test}-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Workdir { inner: Arc::new(Inner { path }) },
                // A test that failed left it, or somebody with the same pid in another namespace has it.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("Could not make {}: {error}", path.display()),
            }
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// A file in the folder.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.inner.path.join(name)
    }
}

impl Default for Workdir {
    fn default() -> Workdir {
        Workdir::new()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("Logs are in {}", self.path.display());
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("Could not remove {}: {error}", self.path.display());
        }
    }
}
