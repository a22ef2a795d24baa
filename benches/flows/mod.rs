//! Flows by number, and the frames that go with them, for benches of steering.

use std::net::{Ipv4Addr, Ipv6Addr};

use flownic::packet::{PROTO_TCP, PROTO_UDP};

/// Bytes of a frame that a worker has for itself.
pub(crate) const HEAD: usize = 128;
/// Frames of a burst.
pub(crate) const BATCH: usize = 32;

/// What a flow is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) v6: bool,
    pub(crate) protocol: u8,
}

impl Kind {
    pub(crate) const UDP4: Kind = Kind { v6: false, protocol: PROTO_UDP };
    pub(crate) const TCP4: Kind = Kind { v6: false, protocol: PROTO_TCP };
    pub(crate) const UDP6: Kind = Kind { v6: true, protocol: PROTO_UDP };
}

pub(crate) const DEST4: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
pub(crate) const DEST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub(crate) const DEST_PORT: u16 = 80;

pub(crate) fn source4(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 | n >> 4)
}

pub(crate) fn source6(n: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfd01 << 112 | u128::from(n >> 4))
}

pub(crate) fn port(n: u32) -> u16 {
    1024 + (n & 15) as u16
}

/// A 60-byte UDP or TCP frame of flow `n`, padded to a snapshot of 128 bytes.
pub(crate) fn frame(n: u32, kind: Kind, tags: usize) -> [u8; HEAD] {
    let mut b = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tag in 0..tags {
        b.extend([0x81, 0, 0, tag as u8 + 1]);
    }
    let l4: u16 = if kind.protocol == PROTO_TCP { 20 } else { 8 };
    if kind.v6 {
        b.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        b.extend(l4.to_be_bytes());
        b.extend([kind.protocol, 64]);
        b.extend(source6(n).octets());
        b.extend(DEST6.octets());
    } else {
        b.extend([0x08, 0, 0x45, 0]);
        b.extend((20 + l4).to_be_bytes());
        b.extend([0, 0, 0, 0, 64, kind.protocol, 0, 0]);
        b.extend(source4(n).octets());
        b.extend(DEST4.octets());
    }
    b.extend(port(n).to_be_bytes());
    b.extend(DEST_PORT.to_be_bytes());
    b.extend([0, 8, 0, 0, 0, 0, 0, 0, 0x50, 0x18, 0, 0, 0, 0, 0, 0]);
    b.resize(HEAD, 0);
    b.try_into().expect("its length")
}

/// Numbers without a pattern, the same ones each time.
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Random(0x2545_f491_4f6c_dd1d)
    }
}

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
