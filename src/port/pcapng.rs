//! Writing of pcapng files (draft-ietf-opsawg-pcapng), which tcpdump and tshark read.
//!
//! One section per file. Every NIC and queue is an interface of it, named like `n0/q3`; the direction of each
//! packet, as the guest sees it, is in the flags of its block. Blocks are in host byte order, as the format wants.

use std::io::{self, BufWriter, Write};
use std::time::Duration;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;
const OPT_END: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// The largest snap length: what tcpdump uses when it is told to cut nothing.
pub const MAX_SNAPLEN: u32 = 262_144;

/// Which way a packet went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the wire to the guest.
    Rx = 1,
    /// From the guest to the wire.
    Tx = 2,
}

/// An interface of a file, from [`PcapngWriter::add_interface`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceId(u32);

/// The name under which a queue of a NIC shows up in a capture: `n0/q3`.
pub fn interface_name(nic: &str, queue: usize) -> String {
    format!("{nic}/q{queue}")
}

/// Writes one section of packets. Small writes are gathered: what was captured is certain to be out after
/// [`flush`](Self::flush), and, errors aside, when the writer is dropped.
#[derive(Debug)]
pub struct PcapngWriter<W: Write> {
    out: BufWriter<W>,
    snaplen: u32,
    interfaces: u32,
}

impl<W: Write> PcapngWriter<W> {
    /// Begins a section. Of each packet at most `snaplen` bytes are kept; 0 means [`MAX_SNAPLEN`].
    pub fn new(out: W, snaplen: u32) -> io::Result<Self> {
        let snaplen = if snaplen == 0 { MAX_SNAPLEN } else { snaplen.min(MAX_SNAPLEN) };
        let mut writer = PcapngWriter { out: BufWriter::with_capacity(1 << 16, out), snaplen, interfaces: 0 };
        let mut body = Vec::new();
        body.extend(BYTE_ORDER_MAGIC.to_ne_bytes());
        body.extend(1u16.to_ne_bytes());
        body.extend(0u16.to_ne_bytes());
        body.extend(u64::MAX.to_ne_bytes()); // length of the section: not known
        option(&mut body, SHB_USERAPPL, concat!("flownic ", env!("CARGO_PKG_VERSION")).as_bytes());
        option(&mut body, OPT_END, &[]);
        writer.block(SECTION_HEADER, &body)?;
        Ok(writer)
    }

    /// Adds an interface, at any time before its first packet. A name is cut at 65535 bytes.
    pub fn add_interface(&mut self, name: &str) -> io::Result<InterfaceId> {
        let mut body = Vec::new();
        body.extend(LINKTYPE_ETHERNET.to_ne_bytes());
        body.extend(0u16.to_ne_bytes());
        body.extend(self.snaplen.to_ne_bytes());
        option(&mut body, IF_NAME, name.as_bytes());
        option(&mut body, IF_TSRESOL, &[9]); // powers of ten: nanoseconds
        option(&mut body, OPT_END, &[]);
        self.block(INTERFACE_DESCRIPTION, &body)?;
        self.interfaces += 1;
        Ok(InterfaceId(self.interfaces - 1))
    }

    /// Adds a packet that lies in `pieces` (Ethernet header first, no virtio-net header). `time` counts from the
    /// UNIX epoch.
    pub fn packet(
        &mut self,
        interface: InterfaceId,
        direction: Direction,
        time: Duration,
        pieces: &[&[u8]],
    ) -> io::Result<()> {
        let original: usize = pieces.iter().map(|p| p.len()).sum();
        let captured = original.min(self.snaplen as usize);
        let padding = captured.wrapping_neg() % 4;
        let total = (12 + 20 + captured + padding + 12) as u32;
        let nanos = time.as_nanos() as u64;
        for word in [
            ENHANCED_PACKET,
            total,
            interface.0,
            (nanos >> 32) as u32,
            nanos as u32,
            captured as u32,
            u32::try_from(original).unwrap_or(u32::MAX),
        ] {
            self.out.write_all(&word.to_ne_bytes())?;
        }
        let mut left = captured;
        for piece in pieces {
            let part = &piece[..piece.len().min(left)];
            self.out.write_all(part)?;
            left -= part.len();
        }
        self.out.write_all(&[0; 3][..padding])?;
        let mut tail = [0; 16];
        tail[0..2].copy_from_slice(&EPB_FLAGS.to_ne_bytes());
        tail[2..4].copy_from_slice(&4u16.to_ne_bytes());
        tail[4..8].copy_from_slice(&(direction as u32).to_ne_bytes());
        // 8..12 is the end of the options, all zero.
        tail[12..16].copy_from_slice(&total.to_ne_bytes());
        self.out.write_all(&tail)
    }

    /// Hands everything to the system.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let total = (12 + body.len()) as u32;
        self.out.write_all(&kind.to_ne_bytes())?;
        self.out.write_all(&total.to_ne_bytes())?;
        self.out.write_all(body)?;
        self.out.write_all(&total.to_ne_bytes())
    }
}

/// Appends an option, padded to 32 bits.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_ne_bytes());
    body.extend((value.len() as u16).to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    fn u16_at(b: &[u8], at: usize) -> u16 {
        u16::from_ne_bytes(b[at..at + 2].try_into().unwrap())
    }

    fn u32_at(b: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(b[at..at + 4].try_into().unwrap())
    }

    /// Reads blocks back as (type, body), checking that both lengths agree and are multiples of four.
    fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
        let mut out = Vec::new();
        while !file.is_empty() {
            let len = u32_at(file, 4) as usize;
            assert_eq!((len % 4, u32_at(file, len - 4) as usize), (0, len));
            out.push((u32_at(file, 0), &file[8..len - 4]));
            file = &file[len..];
        }
        out
    }

    /// Reads options back, to the end mark, which must be the last.
    fn options(mut b: &[u8]) -> Vec<(u16, &[u8])> {
        let mut out = Vec::new();
        loop {
            let (code, len) = (u16_at(b, 0), usize::from(u16_at(b, 2)));
            if code == OPT_END {
                assert_eq!((len, b.len()), (0, 4));
                return out;
            }
            out.push((code, &b[4..4 + len]));
            b = &b[4 + len.next_multiple_of(4)..];
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut file = Vec::new();
        let mut w = PcapngWriter::new(&mut file, 0).unwrap();
        let q0 = w.add_interface(&interface_name("n0", 0)).unwrap();
        let frame: Vec<u8> = (0..61).collect();
        let time = Duration::new(1_700_000_000, 123_456_789);
        w.packet(q0, Direction::Rx, time, &[&frame]).unwrap();
        let q3 = w.add_interface(&interface_name("n0", 3)).unwrap();
        w.packet(q3, Direction::Tx, time, &[&frame[..14], &[], &frame[14..40]]).unwrap();
        drop(w);

        let blocks = blocks(&file);
        let kinds: Vec<u32> = blocks.iter().map(|b| b.0).collect();
        assert_eq!(
            kinds,
            [SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET, INTERFACE_DESCRIPTION, ENHANCED_PACKET]
        );
        let section = blocks[0].1;
        assert_eq!((u32_at(section, 0), u16_at(section, 4), u16_at(section, 6)), (0x1a2b3c4d, 1, 0));
        let user = options(&section[16..])[0];
        assert_eq!(user.0, SHB_USERAPPL);
        assert!(user.1.starts_with(b"flownic "));

        for (block, name) in [(1, "n0/q0"), (3, "n0/q3")] {
            let body = blocks[block].1;
            assert_eq!((u16_at(body, 0), u32_at(body, 4)), (1, MAX_SNAPLEN));
            assert_eq!(options(&body[8..]), [(IF_NAME, name.as_bytes()), (IF_TSRESOL, &[9][..])]);
        }
        for (block, interface, data, direction) in [(2, 0, &frame[..], 1), (4, 1, &frame[..40], 2)] {
            let body = blocks[block].1;
            assert_eq!(u32_at(body, 0), interface);
            let nanos = u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8));
            assert_eq!(nanos, 1_700_000_000_123_456_789);
            assert_eq!((u32_at(body, 12) as usize, u32_at(body, 16) as usize), (data.len(), data.len()));
            assert_eq!(&body[20..20 + data.len()], data);
            let flags = u32::to_ne_bytes(direction);
            assert_eq!(options(&body[20 + data.len().next_multiple_of(4)..]), [(EPB_FLAGS, &flags[..])]);
        }
    }

    #[test]
    fn long_packets_are_cut_and_keep_their_length() {
        let mut file = Vec::new();
        let mut w = PcapngWriter::new(&mut file, 50).unwrap();
        let q = w.add_interface("n0/q0").unwrap();
        w.packet(q, Direction::Rx, Duration::ZERO, &[&[1; 20], &[2; 20], &[3; 20], &[4; 20]]).unwrap();
        w.packet(q, Direction::Rx, Duration::ZERO, &[]).unwrap();
        drop(w);
        let blocks = blocks(&file);
        assert_eq!(u32_at(blocks[1].1, 4), 50);
        let body = blocks[2].1;
        assert_eq!((u32_at(body, 12), u32_at(body, 16)), (50, 80));
        assert_eq!(body[20..72], [&[1; 20][..], &[2; 20], &[3; 10], &[0; 2]].concat());
        assert_eq!((u32_at(blocks[3].1, 12), u32_at(blocks[3].1, 16)), (0, 0));
    }

    #[derive(Clone, Default)]
    struct Shared(Rc<RefCell<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, b: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(b)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn packets_are_out_after_a_flush_and_after_a_drop() {
        let file = Shared::default();
        let mut w = PcapngWriter::new(file.clone(), 0).unwrap();
        let q = w.add_interface("n0/q0").unwrap();
        assert!(file.0.borrow().is_empty());
        w.flush().unwrap();
        assert_eq!(blocks(&file.0.borrow()).len(), 2);
        w.packet(q, Direction::Tx, Duration::ZERO, &[&[0; 60]]).unwrap();
        assert_eq!(blocks(&file.0.borrow()).len(), 2);
        w.flush().unwrap();
        assert_eq!(blocks(&file.0.borrow()).len(), 3);
        w.packet(q, Direction::Tx, Duration::ZERO, &[&[0; 60]]).unwrap();
        drop(w);
        assert_eq!(blocks(&file.0.borrow()).len(), 4);
    }
}
