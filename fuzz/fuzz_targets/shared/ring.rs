//! What drivers of rings of either format have in common.

use flownic::vhost::ring::RingSetup;

use crate::BUFFERS;
use crate::guest::{BASE, TOTAL};
use crate::script::Script;

/// Where a guest address is in the guest's bytes; their end if it is in none.
pub fn at(gpa: u64) -> usize {
    gpa.wrapping_sub(BASE).min(TOTAL as u64) as usize
}

/// Puts a ring's parts anywhere, even on top of each other, and now and then where they can't be.
pub fn displace(setup: &mut RingSetup, s: &mut Script<'_>) {
    for part in [&mut setup.desc, &mut setup.avail, &mut setup.used] {
        *part = BASE + u64::from(s.u16()) * 4;
    }
    if s.once_in(2) {
        setup.desc &= !15;
    }
}

/// Where the next buffer goes.
pub struct Buffers(usize);

impl Buffers {
    pub fn new() -> Self {
        Buffers(BUFFERS)
    }

    /// The guest address of a buffer of that many bytes; behind the last one, or from the start again.
    pub fn take(&mut self, len: usize) -> u64 {
        if self.0 + len > TOTAL {
            self.0 = BUFFERS;
        }
        let at = self.0;
        self.0 += len;
        BASE + at as u64
    }
}
