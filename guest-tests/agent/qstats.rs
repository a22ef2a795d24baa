//! Counters per queue over netlink (family `netdev`, since Linux 6.10), where `ethtool -S` has them no longer.

use std::fs::File;
use std::io::{self, Read, Write};

use crate::sys;

const CONTROL_FAMILY: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const GET_QUEUE_STATS: u8 = 12;
const INTERFACE: u16 = 1;
const QUEUE_TYPE: u16 = 2;
const QUEUE_ID: u16 = 3;
const SCOPE: u16 = 4;
const RX_PACKETS: u16 = 8;
const SCOPE_QUEUE: u32 = 1;
const QUEUE_TYPE_RX: u64 = 0;

const FLAG_REQUEST: u16 = 1;
const FLAG_DUMP: u16 = 0x300;
const MESSAGE_ERROR: u16 = 2;
const MESSAGE_DONE: u16 = 3;
/// Netlink's header and generic netlink's behind it.
const HEADERS: usize = 16 + 4;

/// Prints `QUEUE PACKETS` for each receive queue of `interface`.
pub(crate) fn run(interface: &str) -> Result<(), String> {
    let queues = receive_packets(interface).map_err(|error| format!("No queue statistics: {error}"))?;
    queues.iter().for_each(|(queue, packets)| println!("{queue} {packets}"));
    Ok(())
}

fn receive_packets(interface: &str) -> io::Result<Vec<(u64, u64)>> {
    let index = sys::interface_index(interface)?;
    let mut socket = File::from(sys::generic_netlink()?);
    let name = ask(&mut socket, CONTROL_FAMILY, 0, GET_FAMILY, &attribute(FAMILY_NAME, b"netdev\0"))?;
    let family = name.first().and_then(|answer| find(answer, FAMILY_ID));
    let family = family.ok_or_else(|| io::Error::other("The kernel did not tell the family's number"))?;
    let wanted =
        [attribute(INTERFACE, &index.to_ne_bytes()), attribute(SCOPE, &SCOPE_QUEUE.to_ne_bytes())].concat();
    let answers = ask(&mut socket, family as u16, FLAG_DUMP, GET_QUEUE_STATS, &wanted)?;
    let receive = answers.iter().filter(|answer| find(answer, QUEUE_TYPE) == Some(QUEUE_TYPE_RX));
    Ok(receive.filter_map(|answer| Some((find(answer, QUEUE_ID)?, find(answer, RX_PACKETS)?))).collect())
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Value of a number among attributes.
fn find(attributes: &[u8], wanted: u16) -> Option<u64> {
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

/// Sends a request and gives the attributes of each answer.
fn ask(
    socket: &mut File,
    family: u16,
    flags: u16,
    command: u8,
    attributes: &[u8],
) -> io::Result<Vec<Vec<u8>>> {
    let mut request = Vec::new();
    request.extend((HEADERS as u32 + attributes.len() as u32).to_ne_bytes());
    request.extend(family.to_ne_bytes());
    request.extend((FLAG_REQUEST | flags).to_ne_bytes());
    request.extend([0; 8]);
    request.extend([command, 1, 0, 0]);
    request.extend(attributes);
    socket.write_all(&request)?;

    let mut answers = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = socket.read(&mut buffer)?;
        let mut rest = &buffer[..length];
        while let Some((message, kind)) = split_message(&mut rest) {
            match kind {
                MESSAGE_DONE => return Ok(answers),
                MESSAGE_ERROR => {
                    let code =
                        message.get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
                    return Err(io::Error::from_raw_os_error(-code.unwrap_or(-libc::EPROTO)));
                }
                _ => answers.push(message.get(HEADERS..).unwrap_or_default().to_vec()),
            }
        }
        // Only a dump ends with a message of its own.
        if flags & FLAG_DUMP == 0 {
            return Ok(answers);
        }
    }
}

/// Takes the next message and its kind off `rest`.
fn split_message<'b>(rest: &mut &'b [u8]) -> Option<(&'b [u8], u16)> {
    let length = u32::from_ne_bytes(rest.get(..4)?.try_into().ok()?) as usize;
    let message = rest.get(..length.max(16))?;
    *rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((message, u16::from_ne_bytes(message[4..6].try_into().ok()?)))
}
