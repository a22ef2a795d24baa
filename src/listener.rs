//! A UNIX socket that listens on a path which never vanishes: what a dead process left there is replaced in one step.

use std::fs::{self, Permissions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why nobody can listen there.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another process serves it.
    #[error("Socket {0} is already served by a running process")]
    InUse(PathBuf),
    /// There is something else of that name.
    #[error("{0} exists and is not a socket; it is left alone")]
    NotASocket(PathBuf),
    /// Too long for `sun_path`, no such folder, no permission...
    #[error("Socket {path} can't be created: {source}")]
    Bind {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Listens on a path, which is removed at the end.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Listens on `path`, with these permissions from the first moment, or those of the umask.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(path: &Path, mode: Option<u32>) -> Result<Self, ListenError> {
        let listener = bind(path, mode)?;
        let inode = fs::symlink_metadata(path).map_or(0, |m| m.ino());
        Ok(Listener { listener, path: path.to_owned(), inode })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Deref for Listener {
    type Target = UnixListener;

    fn deref(&self) -> &UnixListener {
        &self.listener
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another process may have taken the path over in the meantime; then it is no longer ours.
        if fs::symlink_metadata(&self.path).is_ok_and(|m| m.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn bind(path: &Path, mode: Option<u32>) -> Result<UnixListener, ListenError> {
    let fail = |source| ListenError::Bind { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(m) if !m.file_type().is_socket() => return Err(ListenError::NotASocket(path.to_owned())),
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(ListenError::InUse(path.to_owned())),
        _ => {}
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let _ = fs::remove_file(&temporary);
    let restrict =
        |path: &Path| mode.map_or(Ok(()), |m| fs::set_permissions(path, Permissions::from_mode(m)));
    // A path that is only too long by the suffix is bound directly.
    let (listener, bound) = match UnixListener::bind(&temporary) {
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            let _ = fs::remove_file(path);
            let listener = UnixListener::bind(path).map_err(fail)?;
            return restrict(path).map(|()| listener).map_err(fail);
        }
        other => (other.map_err(fail)?, temporary),
    };
    restrict(&bound).and_then(|()| fs::rename(&bound, path)).map_err(|e| {
        let _ = fs::remove_file(&bound);
        fail(e)
    })?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_process_s_path_is_taken_over_and_a_living_one_s_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap()); // leaves the path
        let first = Listener::bind(&path, Some(0o600)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(Listener::bind(&path, None), Err(ListenError::InUse(p)) if p == path));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "text").unwrap();
        assert!(matches!(Listener::bind(&file, None), Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&file).unwrap(), "text");
        let path = dir.path().join("s");
        let mine = Listener::bind(&path, None).unwrap();
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(mine);
        assert!(path.exists(), "another process took it over");
    }
}
