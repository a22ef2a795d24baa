//! Sends frames made elsewhere.

use std::fs::File;
use std::io::{self, Read, Write};

use crate::sys;

/// Sends what standard input holds `count` times out of `interface`.
pub(crate) fn run(interface: &str, count: &str) -> Result<(), String> {
    let times: u32 = count.parse().map_err(|_| format!("COUNT is {count:?}, not a number"))?;
    let mut frame = Vec::new();
    io::stdin().read_to_end(&mut frame).map_err(|error| format!("Could not read the frame: {error}"))?;
    let socket =
        sys::packet_socket(interface).map_err(|error| format!("No socket on {interface}: {error}"))?;
    let mut socket = File::from(socket);
    for number in 0..times {
        let sent = socket.write(&frame).map_err(|error| format!("Could not send frame {number}: {error}"))?;
        if sent != frame.len() {
            return Err(format!("Sent {sent} of {} bytes", frame.len()));
        }
    }
    Ok(())
}
