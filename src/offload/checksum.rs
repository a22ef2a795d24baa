//! The Internet checksum (RFC 1071).

use super::{BadOffload, validate};
use crate::virtio::{GSO_NONE, HDR_F_NEEDS_CSUM, NetHeader};

/// A running one's complement sum of 16-bit big-endian words, over one slice or several that follow each other
/// (also when one ends in the middle of a word).
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum {
    /// Words so far, unfolded: 2^48 of them fit.
    words: u64,
    /// Whether an odd number of bytes was added, so that the next byte is the low half of a word.
    odd: bool,
}

impl Sum {
    /// The sum of nothing.
    pub const fn new() -> Sum {
        Sum { words: 0, odd: false }
    }

    /// Adds bytes.
    #[inline]
    pub fn add_bytes(mut self, bytes: &[u8]) -> Sum {
        // Bytes that start in the middle of a word sum up the same with the halves swapped (RFC 1071, 2.B).
        let sum = u16::from_be(fold(raw_sum(bytes)));
        self.words += u64::from(if self.odd { sum.swap_bytes() } else { sum });
        self.odd ^= bytes.len() % 2 == 1;
        self
    }

    /// Adds one word, given as a number.
    #[inline]
    pub const fn add_word(mut self, word: u16) -> Sum {
        self.words += word as u64;
        self
    }

    /// Adds a number of 32 bits as two words.
    #[inline]
    pub const fn add_long(mut self, long: u32) -> Sum {
        self.words += long as u64;
        self
    }

    /// Takes back one word that was added.
    #[inline]
    pub const fn sub_word(self, word: u16) -> Sum {
        self.add_word(!word)
    }

    /// The sum in 16 bits.
    #[inline]
    pub const fn folded(self) -> u16 {
        fold(self.words)
    }

    /// The checksum: the complement of the sum.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.folded()
    }

    /// The checksum as UDP stores it, where 0 means that there is none: all ones are the same number
    /// (RFC 768). To TCP both are as good.
    #[inline]
    pub const fn nonzero_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            sum => sum,
        }
    }
}

/// Adds the carries back in until 16 bits are left.
const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) as u16
}

/// The unfolded sum in host byte order: one's complement addition does not mind the order (RFC 1071, 2.B).
/// Eight 32-bit words at a time, each into its own 64-bit lane, where no carry is lost and the compiler can
/// use vector registers.
#[inline]
fn raw_sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0u64; 8];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    let mut sum: u64 = lanes.iter().sum();
    let (words, tail) = rest.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    let mut last = [0; 4];
    last[..tail.len()].copy_from_slice(tail);
    sum + u64::from(u32::from_ne_bytes(last))
}

/// Completes a partial checksum (5.1.6.2): the one's complement of the sum from `csum_start` to the end of the
/// frame, whose checksum field already holds the sum of the pseudo header. Clears `NEEDS_CSUM` and what belongs
/// to it; a header without that flag leaves the frame alone.
///
/// # Errors
/// When the field is not within the frame or the frame is unsegmented (its segments have the checksums). Frame
/// and header are unchanged then.
pub fn checksum(frame: &mut [u8], hdr: &mut NetHeader) -> Result<(), BadOffload> {
    if hdr.flags & HDR_F_NEEDS_CSUM == 0 {
        return Ok(());
    }
    if hdr.gso_type != GSO_NONE {
        return Err(BadOffload::Mismatch("unsegmented frames get their checksums with their segments"));
    }
    validate(hdr, frame.len())?;
    let start = usize::from(hdr.csum_start);
    let field = start + usize::from(hdr.csum_offset);
    let sum = Sum::new().add_bytes(&frame[start..]).nonzero_checksum();
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    hdr.flags &= !HDR_F_NEEDS_CSUM;
    hdr.csum_start = 0;
    hdr.csum_offset = 0;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, word by word.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071_section_3() {
        let sum = Sum::new().add_bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded(), 0xddf2);
        assert_eq!(sum.checksum(), !0xddf2);
    }

    #[test]
    fn words_can_be_added_and_taken_back() {
        let sum = Sum::new().add_bytes(&[0x12, 0x34, 0xff, 0xfe]);
        assert_eq!(Sum::new().add_word(0x1234).add_word(0xfffe).folded(), sum.folded());
        assert_eq!(Sum::new().add_long(0x1234_fffe).folded(), sum.folded());
        assert_eq!(sum.add_word(0xabcd).sub_word(0xabcd).folded(), sum.folded());
        assert_eq!(Sum::new().add_bytes(&[0xff, 0xff]).checksum(), 0);
        assert_eq!(Sum::new().add_bytes(&[0xff, 0xff]).nonzero_checksum(), 0xffff);
    }

    #[test]
    fn all_ones_do_not_lose_carries() {
        let long = vec![0xff; 65_550];
        assert_eq!(Sum::new().add_bytes(&long).checksum(), naive(&long));
    }

    #[test]
    fn a_partial_udp_checksum_that_comes_out_zero_is_stored_as_all_ones() {
        let mut frame = [0u8; 50];
        frame[40..42].copy_from_slice(&[0xff, 0xff]);
        let mut hdr =
            NetHeader { flags: HDR_F_NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..NetHeader::default() };
        checksum(&mut frame, &mut hdr).unwrap();
        assert_eq!(frame[40..42], [0xff, 0xff]);
        assert_eq!(hdr, NetHeader::default());
    }

    #[test]
    fn fields_outside_the_frame_and_unsegmented_frames_are_refused_untouched() {
        let header = |start, offset| NetHeader {
            flags: HDR_F_NEEDS_CSUM,
            csum_start: start,
            csum_offset: offset,
            ..NetHeader::default()
        };
        let gso = NetHeader { gso_type: 1, gso_size: 10, ..header(34, 16) };
        for mut hdr in [header(34, 25), header(0, 16), header(0xffff, 0xffff), header(59, 0), gso] {
            let (mut frame, before) = ([7u8; 60], hdr);
            checksum(&mut frame, &mut hdr).unwrap_err();
            assert_eq!((frame, hdr), ([7; 60], before));
        }
        let mut frame = [7u8; 60];
        checksum(&mut frame, &mut header(58, 0)).unwrap();
        checksum(&mut frame, &mut NetHeader { csum_start: 999, ..NetHeader::default() }).unwrap();
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..300), skip in 0usize..8) {
            let bytes = &bytes[skip.min(bytes.len())..];
            prop_assert_eq!(Sum::new().add_bytes(bytes).checksum(), naive(bytes));
        }

        #[test]
        fn pieces_sum_up_like_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..200), mut cuts in prop::collection::vec(0usize..200, 0..6),
        ) {
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let (mut sum, mut from) = (Sum::new(), 0);
            for cut in cuts.into_iter().filter(|c| *c <= bytes.len()) {
                sum = sum.add_bytes(&bytes[from..cut]);
                from = cut;
            }
            prop_assert_eq!(sum.checksum(), naive(&bytes));
        }

        #[test]
        fn a_completed_checksum_verifies_and_nothing_else_changes(
            mut frame in prop::collection::vec(any::<u8>(), 62..200), start in 14u16..40, offset in 0u16..10,
        ) {
            let offset = offset * 2;
            let (s, field) = (usize::from(start), usize::from(start + offset));
            // The seed is the sum of a pseudo header: with it, the receiver's sum over everything is all ones.
            let pseudo = u16::from_be_bytes([frame[field], frame[field + 1]]);
            let before = frame.clone();
            let mut hdr =
                NetHeader { flags: HDR_F_NEEDS_CSUM, csum_start: start, csum_offset: offset, ..NetHeader::default() };
            checksum(&mut frame, &mut hdr).unwrap();
            prop_assert_eq!(Sum::new().add_word(pseudo).add_bytes(&frame[s..]).folded(), 0xffff);
            prop_assert_eq!(&frame[..field], &before[..field]);
            prop_assert_eq!(&frame[field + 2..], &before[field + 2..]);
        }
    }
}
