//! Memory regions that a front end adds more than once.
//!
//! QEMU (11.1) keeps a memory table for each queue pair and announces every region once per table, all over one
//! connection. The crate refuses a region that it has. So each is passed on when it is added first and
//! when it is removed last; what lies between is answered here.

use std::collections::HashMap;

use super::{HEADER, Message};

/// A region's guest address, size and address in the front end, as words of the message.
type Region = [u32; 6];

/// How often each region has been added.
#[derive(Default)]
pub(super) struct Regions(HashMap<Region, usize>);

/// More regions than the protocol's slots; a front end that adds more gets them refused by the crate.
const MAX_REGIONS: usize = 512;

impl Regions {
    /// Whether the crate must hear of this `ADD_MEM_REG`.
    pub(super) fn added(&mut self, message: &Message) -> bool {
        let Some(region) = region(message) else { return true };
        if !self.0.contains_key(&region) && self.0.len() == MAX_REGIONS {
            return true;
        }
        let times = self.0.entry(region).or_default();
        *times += 1;
        *times == 1
    }

    /// Whether the crate must hear of this `REM_MEM_REG`.
    pub(super) fn removed(&mut self, message: &Message) -> bool {
        let Some(region) = region(message) else { return true };
        match self.0.get_mut(&region) {
            Some(times @ 2..) => {
                *times -= 1;
                false
            }
            _ => {
                self.0.remove(&region);
                true
            }
        }
    }
}

/// `None` if it is no such message; the crate says what is wrong with it.
fn region(message: &Message) -> Option<Region> {
    // Padding, guest address, size, front end's address, offset in the file: 8 bytes each.
    (message.bytes.len() == HEADER + 40).then(|| std::array::from_fn(|i| message.word(5 + i)))
}
