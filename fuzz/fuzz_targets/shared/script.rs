//! What a target does, read from its input.

/// The input, read from its start; zeroes behind its end.
pub struct Script<'a>(pub &'a [u8]);

impl Script<'_> {
    pub fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.u8()))
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        let x = if n <= 256 { usize::from(self.u8()) } else { usize::from(self.u16()) };
        x % n
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u8) -> bool {
        self.u8() % n == n - 1
    }

    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}
