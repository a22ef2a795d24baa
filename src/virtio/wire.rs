//! Little-endian fields out of bytes and into bytes, as commands and answers have them.

/// Reads fields one after the other. What lies beyond the end reads as zero, as 2.13 wants it of administration commands;
/// whoever wants it otherwise asks [`Reader::is_short`].
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    short: bool,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes, short: false }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let there = self.take(N);
        array[..there.len()].copy_from_slice(there);
        array
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// The next two bytes.
    pub fn le16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next four bytes.
    pub fn le32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// The next eight bytes.
    pub fn le64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Passes over `n` reserved bytes.
    pub fn skip(&mut self, n: usize) {
        self.take(n);
    }

    /// The next `n` bytes, zeros where there are none.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = self.take(n).to_vec();
        bytes.resize(n, 0);
        bytes
    }

    /// All bytes that have not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether something was read that was not there.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// The next `n` bytes, or as many as there are.
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(n.min(self.rest.len()));
        self.rest = rest;
        self.short |= taken.len() < n;
        taken
    }
}

/// Writes fields one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Nothing written yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// Adds two bytes.
    pub fn le16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Adds four bytes.
    pub fn le32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Adds eight bytes.
    pub fn le64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds `n` reserved bytes, zeros.
    pub fn zeros(&mut self, n: usize) -> &mut Self {
        self.0.resize(self.0.len() + n, 0);
        self
    }

    /// What was written.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// A number of the specification with a name: the enumeration, its values, and the way back.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $t:ty { $($(#[$help:meta])+ $variant:ident = $code:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$help])+ $variant = $code),+ }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// Its number.
            pub const fn code(self) -> $t {
                self as $t
            }

            /// What has this number, if anything has.
            pub fn from_code(code: $t) -> Option<Self> {
                Self::ALL.iter().copied().find(|c| c.code() == code)
            }
        }
    };
}

pub(super) use codes;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_reads_as_zero_and_is_noticed() {
        let mut r = Reader::new(&[1, 2, 3, 4, 5]);
        assert_eq!((r.u8(), r.le16(), r.is_short()), (1, 0x0302, false));
        assert_eq!((r.le32(), r.is_short()), (0x0504, true));
        assert_eq!((r.le64(), r.bytes(3), r.rest()), (0, vec![0; 3], &[][..]));
        let mut r = Reader::new(&[1, 2, 3]);
        r.skip(2);
        assert_eq!((r.rest(), r.array::<1>(), r.is_short()), (&[3][..], [3], false));
    }

    #[test]
    fn a_writer_is_what_a_reader_reads() {
        let bytes = Writer::new().u8(1).le16(0x0203).zeros(2).le32(4).le64(u64::MAX).bytes(&[9, 8]).finish();
        let mut r = Reader::new(&bytes);
        assert_eq!((r.u8(), r.le16(), r.le16(), r.le32(), r.le64()), (1, 0x0203, 0, 4, u64::MAX));
        assert_eq!((r.array(), r.rest().len(), r.is_short()), ([9, 8], 0, false));
    }
}
