//! The "newc" cpio format of an initramfs: enough to add a few files to an image.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path};

/// A file to add.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Path in the image, without a leading slash.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Content.
    pub content: Vec<u8>,
}

const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;
const KIND: u32 = 0o170_000;
const HEADER: usize = 110;
const TRAILER: &str = "TRAILER!!!";

/// Writes an archive of `entries` with the folders above them. The kernel unpacks archives that follow one another,
/// later files over earlier ones; each must start at a multiple of four bytes.
///
/// # Errors
/// What the stream says.
pub fn write(stream: &mut impl Write, entries: &[Entry]) -> io::Result<()> {
    let mut folders: Vec<String> = Vec::new();
    for entry in entries {
        let above = Path::new(&entry.path).ancestors().skip(1).filter_map(Path::to_str);
        let mut above: Vec<String> = above.filter(|path| !path.is_empty()).map(str::to_owned).collect();
        above.reverse();
        for folder in above {
            if !folders.contains(&folder) {
                record(stream, &folder, DIRECTORY | 0o755, &[])?;
                folders.push(folder);
            }
        }
        record(stream, &entry.path, REGULAR | entry.mode, &entry.content)?;
    }
    record(stream, TRAILER, 0, &[])
}

fn record(stream: &mut impl Write, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    // Magic, then: inode, mode, uid, gid, links, mtime, size, device (2), special device (2), name length, checksum.
    write!(stream, "070701")?;
    let (size, name) = (content.len() as u32, path.len() as u32 + 1);
    for field in [0, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name, 0] {
        write!(stream, "{field:08x}")?;
    }
    write!(stream, "{path}\0")?;
    pad(stream, HEADER + path.len() + 1)?;
    stream.write_all(content)?;
    pad(stream, content.len())
}

fn pad(stream: &mut impl Write, length: usize) -> io::Result<()> {
    stream.write_all(&[0; 3][..length.next_multiple_of(4) - length])
}

/// Unpacks the first archive of `stream` into the folder `into`. Devices are left out.
///
/// # Errors
/// `InvalidData` when it is no such archive or names a path outside, else what stream and file system say.
pub fn unpack(stream: &mut impl Read, into: &Path) -> io::Result<()> {
    let invalid =
        |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("Bad cpio archive: {what}"));
    loop {
        let mut header = [0; HEADER];
        stream.read_exact(&mut header)?;
        let header = std::str::from_utf8(&header).map_err(|_| invalid("header is not text"))?;
        let field = |index: usize| {
            let digits = header.get(6 + index * 8..14 + index * 8).unwrap_or_default();
            u32::from_str_radix(digits, 16).map_err(|_| invalid("number is not hexadecimal"))
        };
        if !header.starts_with("070701") && !header.starts_with("070702") {
            return Err(invalid("no magic number"));
        }
        let (mode, size, name_length) = (field(1)?, field(6)? as usize, field(11)? as usize);
        let name = take(stream, name_length, HEADER)?;
        let name = name.strip_suffix(b"\0").and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or_else(|| invalid("bad file name"))?;
        if name == TRAILER {
            return Ok(());
        }
        if Path::new(name).components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
        {
            return Err(invalid("path leads outside"));
        }
        let path = into.join(name);
        let content = take(stream, size, 0)?;
        match mode & KIND {
            DIRECTORY => fs::create_dir_all(&path)?,
            REGULAR => {
                File::create(&path)?.write_all(&content)?;
                fs::set_permissions(&path, Permissions::from_mode(mode & 0o7777))?;
            }
            SYMLINK => symlink(std::str::from_utf8(&content).map_err(|_| invalid("bad link"))?, &path)?,
            _ => {}
        }
    }
}

/// Reads `length` bytes and the padding behind them; `before` bytes lie between the last boundary and them.
fn take(stream: &mut impl Read, length: usize, before: usize) -> io::Result<Vec<u8>> {
    let padded = (before + length).next_multiple_of(4) - before;
    let mut bytes = vec![0; padded];
    stream.read_exact(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_aligned_and_carry_their_folders() {
        let entry = Entry { path: "a/b/c".into(), mode: 0o755, content: b"hello".to_vec() };
        let mut bytes = Vec::new();
        write(&mut bytes, &[entry]).unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8(bytes).unwrap();
        let starts: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        let names: Vec<&str> = starts.iter().map(|at| text[at + 110..].split('\0').next().unwrap()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/c", "TRAILER!!!"]);
        assert!(starts.iter().all(|at| at % 4 == 0));
        // The file's mode and size are the second and the seventh field.
        assert_eq!(&text[starts[2] + 14..starts[2] + 22], "000081ed");
        assert_eq!(&text[starts[2] + 54..starts[2] + 62], "00000005");
    }

    #[test]
    fn unpacking_gives_what_was_packed() {
        let entry = Entry { path: "a/b".into(), mode: 0o755, content: b"hello".to_vec() };
        let mut bytes = Vec::new();
        write(&mut bytes, &[entry]).unwrap();
        let dir = crate::Workdir::new();
        unpack(&mut bytes.as_slice(), dir.path()).unwrap();
        assert_eq!(fs::read(dir.join("a/b")).unwrap(), b"hello");
        assert_eq!(fs::metadata(dir.join("a/b")).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn a_path_that_leads_outside_is_refused() {
        let mut bytes = Vec::new();
        record(&mut bytes, "../evil", REGULAR | 0o644, b"x").unwrap();
        let dir = crate::Workdir::new();
        let error = unpack(&mut bytes.as_slice(), dir.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
