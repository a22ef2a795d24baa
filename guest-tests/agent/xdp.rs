//! Small XDP programs, written in the kernel's instructions since guests have no compiler. A program is pinned to a file,
//! from which `ip link set NIC xdpdrv pinned FILE` attaches it.

use crate::sys;

/// One instruction: operation, destination and source register, offset, immediate.
type Instruction = (u8, u8, u8, i16, i32);

// Operations, as in the kernel's instruction set: class, source of the operand, and what is done.
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const ADD: u8 = 0x07;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LOAD_16: u8 = 0x69;
const LOAD_32: u8 = 0x61;
const STORE_16: u8 = 0x6b;
const STORE_32: u8 = 0x63;
const JUMP_IF_GREATER: u8 = 0x2d;
const JUMP_UNLESS_ZERO: u8 = 0x55;

const ABORTED: i32 = 0;
const DROP: i32 = 1;
const PASS: i32 = 2;
const TX: i32 = 3;

const REDIRECT: i32 = 23;
const ADJUST_HEAD: i32 = 44;
const ADJUST_TAIL: i32 = 65;

/// Returns `verdict`.
fn verdict(verdict: i32) -> Vec<Instruction> {
    vec![(MOVE, 0, 0, 0, verdict), (EXIT, 0, 0, 0, 0)]
}

/// Sends a frame back where it came from: its hardware addresses change places.
fn send_back() -> Vec<Instruction> {
    vec![
        (LOAD_32, 2, 1, 0, 0),
        (LOAD_32, 3, 1, 4, 0),
        (MOVE_REGISTER, 4, 2, 0, 0),
        (ADD, 4, 0, 0, 14),
        // Shorter than an Ethernet header: to the last two instructions.
        (JUMP_IF_GREATER, 4, 3, 10, 0),
        (LOAD_32, 5, 2, 0, 0),
        (LOAD_16, 6, 2, 4, 0),
        (LOAD_32, 7, 2, 6, 0),
        (LOAD_16, 8, 2, 10, 0),
        (STORE_32, 2, 7, 0, 0),
        (STORE_16, 2, 8, 4, 0),
        (STORE_32, 2, 5, 6, 0),
        (STORE_16, 2, 6, 10, 0),
        (MOVE, 0, 0, 0, TX),
        (EXIT, 0, 0, 0, 0),
        (MOVE, 0, 0, 0, DROP),
        (EXIT, 0, 0, 0, 0),
    ]
}

/// Takes `bytes` more room at one end and gives them back, then passes the frame on as it was.
fn grow_and_shrink(helper: i32, bytes: i32) -> Vec<Instruction> {
    vec![
        (MOVE_REGISTER, 6, 1, 0, 0),
        (MOVE, 2, 0, 0, bytes),
        (CALL, 0, 0, 0, helper),
        (JUMP_UNLESS_ZERO, 0, 0, 6, 0),
        (MOVE_REGISTER, 1, 6, 0, 0),
        (MOVE, 2, 0, 0, -bytes),
        (CALL, 0, 0, 0, helper),
        (JUMP_UNLESS_ZERO, 0, 0, 2, 0),
        (MOVE, 0, 0, 0, PASS),
        (EXIT, 0, 0, 0, 0),
        (MOVE, 0, 0, 0, ABORTED),
        (EXIT, 0, 0, 0, 0),
    ]
}

fn program(name: &str) -> Result<Vec<Instruction>, String> {
    Ok(match name.split_once('=') {
        None if name == "pass" => verdict(PASS),
        None if name == "drop" => verdict(DROP),
        None if name == "tx" => send_back(),
        // The largest that a driver promises: 256 bytes, less the kernel's own structure at their start.
        None if name == "head" => grow_and_shrink(ADJUST_HEAD, -192),
        None if name == "tail" => grow_and_shrink(ADJUST_TAIL, 64),
        Some(("redirect", index)) => {
            let index = index.parse().map_err(|_| format!("No interface index: {index}"))?;
            vec![(MOVE, 1, 0, 0, index), (MOVE, 2, 0, 0, 0), (CALL, 0, 0, 0, REDIRECT), (EXIT, 0, 0, 0, 0)]
        }
        _ => return Err(format!("No program {name}: pass, drop, tx, head, tail or redirect=INDEX")),
    })
}

/// Loads the program `name` and pins it to `path`; with `frags` it takes frames in several buffers.
pub(crate) fn pin(name: &str, path: &str, frags: bool) -> Result<(), String> {
    let encoded: Vec<u64> = program(name)?
        .into_iter()
        .map(|(operation, destination, source, offset, immediate)| {
            let registers = destination | source << 4;
            let [low, high] = offset.to_le_bytes();
            let [a, b, c, d] = immediate.to_le_bytes();
            u64::from_ne_bytes([operation, registers, low, high, a, b, c, d])
        })
        .collect();
    sys::pin_xdp(&encoded, path, frags).map_err(|error| format!("Could not pin {name} to {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_names() {
        for name in ["pass", "drop", "tx", "head", "tail", "redirect=7"] {
            assert_eq!(program(name).map(|program| program.last().copied()), Ok(Some((EXIT, 0, 0, 0, 0))));
        }
        assert!(program("redirect=x").is_err());
        assert!(program("fly").is_err());
    }
}
