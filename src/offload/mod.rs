//! Offloads done in software for a receiver that lacks them, and the virtio-net header in translation.
//!
//! A sender that negotiated `csum` and `host_tso*` hands over frames with partial checksums and of up to
//! 64 KiB. Whether the receiver can take such a frame is [`plan`]'s to say:
//!
//! ```text
//! NetHeader -> plan -> AsIs        rx_header
//!                   -> Checksum    checksum, then rx_header
//!                   -> Segment     segment: every piece is a plain frame with full checksums
//!                   -> Invalid     drop, and count the reason
//! ```
//!
//! Everything here is a function of bytes. Headers and frames come from guests and are not trusted: bad ones
//! give a [`BadOffload`], never a panic.

mod checksum;
mod hash;
mod segment;

use crate::virtio::{
    F_GUEST_CSUM, F_GUEST_ECN, F_GUEST_TSO4, F_GUEST_TSO6, F_GUEST_USO4, F_GUEST_USO6, GSO_ECN, GSO_NONE,
    GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, HDR_F_DATA_VALID, HDR_F_NEEDS_CSUM, NetHeader,
};

pub use checksum::{Sum, checksum};
pub use hash::RxHash;
pub use segment::{MAX_HEADERS, MAX_SEGMENTS, segment};

/// Length of an Ethernet header without tags; no checksum starts before its end.
const ETH_HEADER: usize = 14;
/// Where the checksum lies in a TCP header, from its start.
const TCP_CSUM_OFFSET: u16 = 16;
/// Where the checksum lies in a UDP header, from its start.
const UDP_CSUM_OFFSET: u16 = 6;

/// What a receiver takes: the offloads that need not be done for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accepts {
    /// Partial and already verified checksums.
    pub csum: bool,
    /// TCP over IPv4, unsegmented.
    pub tso4: bool,
    /// TCP over IPv6, unsegmented.
    pub tso6: bool,
    /// Unsegmented TCP with CWR set.
    pub ecn: bool,
    /// Unsegmented UDP datagrams over IPv4.
    pub uso4: bool,
    /// Unsegmented UDP datagrams over IPv6.
    pub uso6: bool,
}

impl Accepts {
    /// A receiver that takes everything.
    pub const ALL: Accepts =
        Accepts { csum: true, tso4: true, tso6: true, ecn: true, uso4: true, uso6: true };
    /// A receiver that takes plain frames only.
    pub const NONE: Accepts =
        Accepts { csum: false, tso4: false, tso6: false, ecn: false, uso4: false, uso6: false };

    /// What a guest takes that negotiated the `GUEST_*` bits of `features` (5.1.3.1). Without `guest_csum`
    /// nothing else counts, and `guest_ecn` counts only beside a TSO bit.
    pub fn from_guest_features(features: u64) -> Accepts {
        let has = |bit: u64| features & bit != 0;
        if !has(F_GUEST_CSUM) {
            return Accepts::NONE;
        }
        Accepts {
            csum: true,
            tso4: has(F_GUEST_TSO4),
            tso6: has(F_GUEST_TSO6),
            ecn: has(F_GUEST_ECN) && has(F_GUEST_TSO4 | F_GUEST_TSO6),
            uso4: has(F_GUEST_USO4),
            uso6: has(F_GUEST_USO6),
        }
    }

    /// Whether a frame of this `gso_type` may be passed on unsegmented. The header does not tell the IP version
    /// of a UDP frame, so that USO counts only when it is there for both.
    fn takes_gso(self, gso_type: u8) -> bool {
        if !self.csum || (gso_type & GSO_ECN != 0 && !self.ecn) {
            return false;
        }
        match gso_type & !GSO_ECN {
            GSO_TCPV4 => self.tso4,
            GSO_TCPV6 => self.tso6,
            GSO_UDP_L4 => self.uso4 && self.uso6,
            _ => false,
        }
    }
}

/// What has to be done to a frame before a receiver gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    AsIs,
    /// [`checksum`].
    Checksum,
    /// [`segment`].
    Segment,
    /// The header makes no sense: drop the frame.
    Invalid(BadOffload),
}

/// What is wrong with a header, or with a frame that its header describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadOffload {
    /// `gso_type` is none that the device offers.
    #[error(
        "Unknown gso_type {0:#04x}; 1 (TCPv4), 4 (TCPv6) and 5 (UDP_L4) are known, 0x80 (ECN) beside the first two"
    )]
    UnknownGso(u8),
    /// Segmentation without `NEEDS_CSUM`: the segments' checksums could not be right (5.1.6.2.1).
    #[error("gso_type {0:#04x} without NEEDS_CSUM")]
    GsoWithoutChecksum(u8),
    /// Segments of no bytes.
    #[error("gso_size 0 with a gso_type")]
    ZeroGsoSize,
    /// The checksum field is not within the frame.
    #[error(
        "csum_start {start} and csum_offset {offset} do not lie behind the Ethernet header of a frame of {len} bytes"
    )]
    ChecksumOutside {
        /// `csum_start`.
        start: u16,
        /// `csum_offset`.
        offset: u16,
        /// Bytes of the frame.
        len: usize,
    },
    /// `csum_offset` is not that of the protocol that `gso_type` names.
    #[error("csum_offset {offset} with gso_type {gso_type:#04x}; TCP has 16, UDP 6")]
    ChecksumOffset {
        /// `gso_type`.
        gso_type: u8,
        /// `csum_offset`.
        offset: u16,
    },
    /// The frame's headers are not those that `gso_type` and `csum_start` announce.
    #[error("Frame is not what gso_type and csum_start say: {0}")]
    Mismatch(&'static str),
    /// The headers are longer than [`MAX_HEADERS`].
    #[error("Headers of {0} bytes; {MAX_HEADERS} at most can be segmented")]
    HeadersTooLong(usize),
    /// The frame would fall into more than [`MAX_SEGMENTS`] pieces.
    #[error("gso_size makes {0} segments; {MAX_SEGMENTS} at most")]
    TooManySegments(usize),
    /// A segment would not fit the 16-bit length of its IP header.
    #[error("gso_size {0} makes segments longer than an IP packet")]
    SegmentTooLong(u16),
}

/// Decides what a frame of `frame_len` bytes (without the virtio-net header) needs before a receiver that
/// takes `accepts` can have it. The header's fields are checked against each other and against the length, so
/// that what is passed on [`Plan::AsIs`] points into the frame.
#[inline]
pub fn plan(hdr: &NetHeader, frame_len: usize, accepts: Accepts) -> Plan {
    if hdr.flags & HDR_F_NEEDS_CSUM == 0 && hdr.gso_type == GSO_NONE {
        return Plan::AsIs;
    }
    match validate(hdr, frame_len) {
        Err(bad) => Plan::Invalid(bad),
        Ok(()) if hdr.gso_type != GSO_NONE && !accepts.takes_gso(hdr.gso_type) => Plan::Segment,
        Ok(()) if !accepts.csum => Plan::Checksum,
        Ok(()) => Plan::AsIs,
    }
}

/// Checks a header that asks for a checksum or for segmentation, without looking at the frame.
fn validate(hdr: &NetHeader, frame_len: usize) -> Result<(), BadOffload> {
    if hdr.gso_type != GSO_NONE {
        let offset = match hdr.gso_type {
            GSO_UDP_L4 => UDP_CSUM_OFFSET,
            t if matches!(t & !GSO_ECN, GSO_TCPV4 | GSO_TCPV6) => TCP_CSUM_OFFSET,
            unknown => return Err(BadOffload::UnknownGso(unknown)),
        };
        if hdr.flags & HDR_F_NEEDS_CSUM == 0 {
            return Err(BadOffload::GsoWithoutChecksum(hdr.gso_type));
        }
        if hdr.gso_size == 0 {
            return Err(BadOffload::ZeroGsoSize);
        }
        if hdr.csum_offset != offset {
            return Err(BadOffload::ChecksumOffset { gso_type: hdr.gso_type, offset: hdr.csum_offset });
        }
    }
    let start = usize::from(hdr.csum_start);
    if start < ETH_HEADER || start + usize::from(hdr.csum_offset) + 2 > frame_len {
        return Err(BadOffload::ChecksumOutside {
            start: hdr.csum_start,
            offset: hdr.csum_offset,
            len: frame_len,
        });
    }
    Ok(())
}

/// What remains of a header that a guest sent: a driver may set `NEEDS_CSUM` and no other flag, and the device
/// ignores the rest (5.1.6.2.2). Above all a sender's `DATA_VALID` must not reach a receiver.
#[inline]
pub fn tx_header(hdr: NetHeader) -> NetHeader {
    NetHeader { flags: hdr.flags & HDR_F_NEEDS_CSUM, num_buffers: 0, ..hdr }
}

/// The header that a receiver gets: only what it negotiated shows (5.1.6.4.1), everything else is zero.
/// `num_buffers` is 1; a receive ring that merges buffers writes the true number.
///
/// A frame whose [`Plan`] was not [`Plan::AsIs`] must have been treated accordingly before.
#[inline]
pub fn rx_header(hdr: NetHeader, accepts: Accepts) -> NetHeader {
    let mut out = NetHeader { num_buffers: 1, ..NetHeader::default() };
    if !accepts.csum {
        return out;
    }
    out.flags = hdr.flags & (HDR_F_NEEDS_CSUM | HDR_F_DATA_VALID);
    if out.flags & HDR_F_NEEDS_CSUM != 0 {
        out.csum_start = hdr.csum_start;
        out.csum_offset = hdr.csum_offset;
        if accepts.takes_gso(hdr.gso_type) {
            out.gso_type = hdr.gso_type;
            out.gso_size = hdr.gso_size;
            out.hdr_len = hdr.hdr_len;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tso4() -> NetHeader {
        NetHeader {
            flags: HDR_F_NEEDS_CSUM,
            gso_type: GSO_TCPV4,
            hdr_len: 54,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 0,
        }
    }

    #[test]
    fn guest_csum_is_the_key_to_every_other_offload() {
        let all = F_GUEST_CSUM | F_GUEST_TSO4 | F_GUEST_TSO6 | F_GUEST_ECN | F_GUEST_USO4 | F_GUEST_USO6;
        assert_eq!(Accepts::from_guest_features(all), Accepts::ALL);
        assert_eq!(Accepts::from_guest_features(all & !F_GUEST_CSUM), Accepts::NONE);
        let csum = Accepts { csum: true, ..Accepts::NONE };
        assert_eq!(Accepts::from_guest_features(F_GUEST_CSUM | F_GUEST_ECN), csum);
        let tso6 = Accepts { tso6: true, ecn: true, ..csum };
        assert_eq!(Accepts::from_guest_features(F_GUEST_CSUM | F_GUEST_TSO6 | F_GUEST_ECN), tso6);
        assert_eq!(Accepts::from_guest_features(F_GUEST_CSUM | F_GUEST_USO4), Accepts { uso4: true, ..csum });
    }

    #[test]
    fn plan_does_only_what_the_receiver_lacks() {
        let csum = Accepts { csum: true, ..Accepts::NONE };
        let plain = NetHeader::default();
        let partial = NetHeader { gso_type: 0, gso_size: 0, ..tso4() };
        assert_eq!(plan(&plain, 60, Accepts::NONE), Plan::AsIs);
        assert_eq!(plan(&partial, 60, Accepts::NONE), Plan::Checksum);
        assert_eq!(plan(&partial, 60, csum), Plan::AsIs);
        for (gso_type, offset, enough) in [
            (GSO_TCPV4, 16, Accepts { tso4: true, ..csum }),
            (GSO_TCPV6, 16, Accepts { tso6: true, ..csum }),
            (GSO_TCPV4 | GSO_ECN, 16, Accepts { tso4: true, ecn: true, ..csum }),
            (GSO_TCPV6 | GSO_ECN, 16, Accepts { tso6: true, ecn: true, ..csum }),
            (GSO_UDP_L4, 6, Accepts { uso4: true, uso6: true, ..csum }),
        ] {
            let hdr = NetHeader { gso_type, csum_offset: offset, ..tso4() };
            assert_eq!(plan(&hdr, 9000, enough), Plan::AsIs, "{gso_type:#x}");
            assert_eq!(plan(&hdr, 9000, csum), Plan::Segment, "{gso_type:#x}");
            assert_eq!(plan(&hdr, 9000, Accepts { csum: false, ..enough }), Plan::Segment, "{gso_type:#x}");
        }
        let ecn = NetHeader { gso_type: GSO_TCPV4 | GSO_ECN, ..tso4() };
        assert_eq!(plan(&ecn, 9000, Accepts { ecn: false, ..Accepts::ALL }), Plan::Segment);
        let uso = NetHeader { gso_type: GSO_UDP_L4, csum_offset: 6, ..tso4() };
        assert_eq!(plan(&uso, 9000, Accepts { uso6: false, ..Accepts::ALL }), Plan::Segment);
    }

    #[test]
    fn headers_that_contradict_themselves_are_invalid() {
        let bad = |hdr: NetHeader| match plan(&hdr, 9000, Accepts::ALL) {
            Plan::Invalid(bad) => bad,
            other => panic!("{hdr:?} is {other:?}"),
        };
        assert_eq!(bad(NetHeader { gso_type: 3, ..tso4() }), BadOffload::UnknownGso(3));
        assert_eq!(bad(NetHeader { gso_type: GSO_ECN, ..tso4() }), BadOffload::UnknownGso(GSO_ECN));
        let udp_ecn = GSO_UDP_L4 | GSO_ECN;
        assert_eq!(bad(NetHeader { gso_type: udp_ecn, ..tso4() }), BadOffload::UnknownGso(udp_ecn));
        assert_eq!(bad(NetHeader { flags: 0, ..tso4() }), BadOffload::GsoWithoutChecksum(GSO_TCPV4));
        assert_eq!(bad(NetHeader { gso_size: 0, ..tso4() }), BadOffload::ZeroGsoSize);
        assert!(matches!(bad(NetHeader { csum_offset: 6, ..tso4() }), BadOffload::ChecksumOffset { .. }));
        assert!(matches!(bad(NetHeader { csum_start: 13, ..tso4() }), BadOffload::ChecksumOutside { .. }));
        assert!(matches!(bad(NetHeader { csum_start: 8983, ..tso4() }), BadOffload::ChecksumOutside { .. }));
        assert_eq!(plan(&NetHeader { csum_start: 8982, ..tso4() }, 9000, Accepts::ALL), Plan::AsIs);
        let huge = NetHeader { csum_start: 0xffff, csum_offset: 0xffff, gso_type: 0, ..tso4() };
        assert!(matches!(bad(huge), BadOffload::ChecksumOutside { .. }));
    }

    #[test]
    fn a_driver_cannot_vouch_for_its_checksums() {
        let sent = NetHeader { flags: 0xff, num_buffers: 7, ..tso4() };
        assert_eq!(tx_header(sent), tso4());
    }

    #[test]
    fn rx_header_shows_only_what_was_negotiated() {
        let valid = NetHeader { flags: HDR_F_DATA_VALID, hdr_len: 9, gso_size: 9, csum_start: 9, ..tso4() };
        let one = NetHeader { num_buffers: 1, ..NetHeader::default() };
        let plain = NetHeader { gso_type: GSO_NONE, ..valid };
        assert_eq!(rx_header(plain, Accepts::NONE), one);
        assert_eq!(rx_header(plain, Accepts::ALL), NetHeader { flags: HDR_F_DATA_VALID, ..one });
        assert_eq!(rx_header(tso4(), Accepts::ALL), NetHeader { num_buffers: 1, ..tso4() });
        assert_eq!(rx_header(tso4(), Accepts::NONE), one);
        // RSC_INFO (bit 2) is not offered, so it never shows.
        assert_eq!(rx_header(NetHeader { flags: 0xff, ..plain }, Accepts::ALL).flags, 3);
    }

    fn any_header() -> impl Strategy<Value = NetHeader> {
        any::<[u8; 12]>().prop_map(|b| NetHeader::from_bytes(&b))
    }

    proptest! {
        #[test]
        fn what_goes_on_as_it_is_points_into_the_frame(
            raw in any_header(), flags in 0u8..4, gso in prop::sample::select(&[0u8, 1, 4, 5, 0x81, 0x84][..]),
            start in 0u16..200, offset in prop::sample::select(&[6u16, 16, 30][..]), len in 0usize..200,
            negotiated in any::<u64>(),
        ) {
            let hdr = NetHeader { flags, gso_type: gso, csum_start: start, csum_offset: offset, ..raw };
            let accepts = Accepts::from_guest_features(negotiated);
            if plan(&hdr, len, accepts) == Plan::AsIs {
                let out = rx_header(tx_header(hdr), accepts);
                prop_assert_eq!(out.flags & HDR_F_NEEDS_CSUM, hdr.flags & HDR_F_NEEDS_CSUM);
                prop_assert_eq!(out.gso_type, hdr.gso_type);
                if out.flags & HDR_F_NEEDS_CSUM != 0 {
                    prop_assert!(usize::from(out.csum_start + out.csum_offset) + 2 <= len);
                }
                if out.gso_type != 0 {
                    prop_assert!(out.gso_size > 0 && out.flags & HDR_F_NEEDS_CSUM != 0);
                }
            }
        }

        #[test]
        fn no_header_and_frame_can_make_us_panic(
            raw in any_header(), sane in any::<bool>(), mut frame in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let mut hdr = raw;
            if sane {
                let udp = raw.gso_type & 1 == 1;
                hdr.flags |= HDR_F_NEEDS_CSUM;
                hdr.gso_type = if udp { 5 } else { 1 + 3 * (raw.gso_type >> 1 & 1) };
                hdr.csum_offset = if udp { 6 } else { 16 };
                hdr.csum_start %= 100;
            }
            let _ = plan(&hdr, frame.len(), Accepts::NONE);
            let _ = segment(&frame, &hdr, &mut |_: &[u8], _: &[u8]| ());
            let _ = checksum(&mut frame, &mut hdr);
        }
    }
}
