//! Generic netlink: as much as the programs that run in guests need to ask and to tell the kernel.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};

const CONTROL_FAMILY: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const FLAG_REQUEST: u16 = 1;
const FLAG_ACKNOWLEDGE: u16 = 4;
const FLAG_DUMP: u16 = 0x300;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
/// Netlink's header and generic netlink's behind it.
const HEADERS: usize = 16 + 4;

/// A family of messages, and a socket to speak it.
#[derive(Debug)]
pub struct Family {
    socket: File,
    number: u16,
}

impl Family {
    /// The family with that name.
    ///
    /// # Errors
    /// `NotFound` when the kernel has none of that name, else what the socket says.
    pub fn open(name: &str) -> io::Result<Family> {
        let mut family = Family { socket: socket()?, number: CONTROL_FAMILY };
        let wanted = attribute(FAMILY_NAME, &[name.as_bytes(), b"\0"].concat());
        let answers = family.ask(FLAG_REQUEST, GET_FAMILY, &wanted)?;
        let number = answers.first().and_then(|answer| find(answer, FAMILY_ID));
        family.number =
            number.ok_or_else(|| io::Error::other("The kernel did not tell the family's number"))? as u16;
        Ok(family)
    }

    /// Asks for all there is; gives the attributes of each answer.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn dump(&mut self, command: u8, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.ask(FLAG_REQUEST | FLAG_DUMP, command, attributes)
    }

    /// Tells the kernel to do something.
    ///
    /// # Errors
    /// When it refuses.
    pub fn tell(&mut self, command: u8, attributes: &[u8]) -> io::Result<()> {
        self.ask(FLAG_REQUEST | FLAG_ACKNOWLEDGE, command, attributes).map(drop)
    }

    fn ask(&mut self, flags: u16, command: u8, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut request = Vec::new();
        request.extend((HEADERS as u32 + attributes.len() as u32).to_ne_bytes());
        request.extend(self.number.to_ne_bytes());
        request.extend(flags.to_ne_bytes());
        request.extend([0; 8]);
        request.extend([command, 1, 0, 0]);
        request.extend(attributes);
        self.socket.write_all(&request)?;

        let mut answers = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = self.socket.read(&mut buffer)?;
            let mut rest = &buffer[..length];
            while let Some((message, kind)) = split_message(&mut rest) {
                match kind {
                    MESSAGE_DONE => return Ok(answers),
                    MESSAGE_ERROR => {
                        let code =
                            message.get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
                        return match code {
                            // An acknowledgement.
                            Some(0) => Ok(answers),
                            Some(code) => Err(io::Error::from_raw_os_error(-code)),
                            None => Err(io::Error::from_raw_os_error(libc::EPROTO)),
                        };
                    }
                    _ => answers.push(message.get(HEADERS..).unwrap_or_default().to_vec()),
                }
            }
            // What is neither a dump nor acknowledged has one answer.
            if flags & (FLAG_DUMP | FLAG_ACKNOWLEDGE) == 0 {
                return Ok(answers);
            }
        }
    }
}

fn socket() -> io::Result<File> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: takes integers only.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_GENERIC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is a fresh descriptor that nobody else owns.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// An attribute as it stands in a message.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Value of a number among attributes.
pub fn find(attributes: &[u8], wanted: u16) -> Option<u64> {
    let mut rest = attributes;
    loop {
        let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
        let value = rest.get(4..length)?;
        if kind == wanted {
            return match value.len() {
                2 => Some(u16::from_ne_bytes(value.try_into().ok()?).into()),
                4 => Some(u32::from_ne_bytes(value.try_into().ok()?).into()),
                _ => Some(u64::from_ne_bytes(value.try_into().ok()?)),
            };
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

/// Takes the next message and its kind off `rest`.
fn split_message<'b>(rest: &mut &'b [u8]) -> Option<(&'b [u8], u16)> {
    let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    let message = rest.get(..length.max(16))?;
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((message, u16::from_ne_bytes(message[4..6].try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_again() {
        let all =
            [attribute(1, &7u16.to_ne_bytes()), attribute(2, b"abc\0"), attribute(3, &9u64.to_ne_bytes())];
        let all = all.concat();
        assert_eq!((find(&all, 1), find(&all, 3), find(&all, 4)), (Some(7), Some(9), None));
        assert_eq!(find(&all[..all.len() - 1], 3), None);
    }

    #[test]
    fn the_kernel_knows_its_own_family() {
        assert_eq!(Family::open("nlctrl").unwrap().number, CONTROL_FAMILY);
        assert_eq!(Family::open("no such thing").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
