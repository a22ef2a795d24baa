//! The RSS hash in the header of received frames.

use std::sync::atomic::Ordering;

use super::testing::{Bed, frame};
use crate::packet;
use crate::port::template::Template;
use crate::steer::{HashReport, RssConfig, RssKey, hash_type};
use crate::virtio::{
    F_GUEST_CSUM, F_GUEST_TSO4, GSO_TCPV4, HDR_F_DATA_VALID, HDR_F_HASH, HDR_F_HASH_PORTS, HDR_F_NEEDS_CSUM,
    NetHeader,
};

const BOTH: u8 = HDR_F_HASH | HDR_F_HASH_PORTS;

/// A NIC with one pair whose guest wants the hash, and takes `features`.
fn bed(features: u64) -> Bed {
    let mut bed = Bed::new(1, features);
    bed.nic.hash_in_header.store(true, Ordering::Relaxed);
    bed.post(64);
    bed
}

/// The header and length of every frame that came since the last call.
fn headers(bed: &mut Bed) -> Vec<NetHeader> {
    let guest = &mut bed.rx[0].guest;
    let used = guest.used();
    used.iter()
        .map(|(head, _)| {
            let desc = guest.read(guest.setup.desc + 16 * u64::from(*head), 8);
            let at = u64::from_le_bytes(desc.try_into().unwrap());
            NetHeader::from_bytes(guest.read(at, 12).first_chunk().unwrap())
        })
        .collect()
}

fn hash(bed: &Bed, frame: &[u8]) -> Option<(u32, HashReport)> {
    bed.nic.steering.read().rss().hash(&packet::parse(frame, frame.len()))
}

/// Low and high half.
fn halves(value: u32) -> (u16, u16) {
    (value as u16, (value >> 16) as u16)
}

fn tcp(len: usize) -> Vec<u8> {
    Template::new(&format!("size={len},proto=tcp").parse().unwrap()).stamp(0).to_vec()
}

fn partial(gso_type: u8) -> NetHeader {
    let gso_size = if gso_type == 0 { 0 } else { 1000 };
    NetHeader {
        flags: HDR_F_NEEDS_CSUM,
        gso_type,
        gso_size,
        csum_start: 34,
        csum_offset: 16,
        ..NetHeader::default()
    }
}

#[test]
fn a_frame_without_a_request_has_the_hash_in_the_fields_of_the_checksum() {
    let mut bed = bed(F_GUEST_CSUM);
    let mut fragment = frame(1);
    fragment[20] = 0x20;
    let valid = NetHeader { flags: HDR_F_DATA_VALID, ..NetHeader::default() };
    let mut arp = vec![2; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    let burst = [frame(1), frame(2), fragment, arp];
    // Twice, the second time out of the verdict cache.
    for _ in 0..2 {
        bed.receive(&burst.each_ref().map(|f| (valid, &f[..])));
        let got = headers(&mut bed);
        assert_eq!(got.len(), 4);
        for (net, (sent, flags)) in got.iter().zip(burst.iter().zip([BOTH, BOTH, HDR_F_HASH, 0])) {
            let fields = hash(&bed, sent).map_or((0, 0), |(value, _)| halves(value));
            assert_eq!((net.flags, net.csum_start, net.csum_offset), (flags | 2, fields.0, fields.1));
            assert_eq!((net.hdr_len, net.gso_size, net.num_buffers), (0, 0, 1));
        }
        assert_ne!(got[0].csum_start, got[1].csum_start, "flows differ");
    }
}

#[test]
fn a_frame_with_a_partial_checksum_has_it_in_the_fields_of_segmentation() {
    let mut bed = bed(F_GUEST_CSUM | F_GUEST_TSO4);
    let sent = tcp(200);
    bed.receive(&[(partial(0), &sent), (partial(GSO_TCPV4), &tcp(1900))]);
    let (low, high) = halves(hash(&bed, &sent).unwrap().0);
    let got = headers(&mut bed);
    let one = NetHeader { num_buffers: 1, ..partial(0) };
    let flags = HDR_F_NEEDS_CSUM | BOTH;
    assert_eq!(got[0], NetHeader { flags, hdr_len: low, gso_size: high, ..one });
    assert_eq!(got[1], NetHeader { num_buffers: 1, ..partial(GSO_TCPV4) }, "no field is free");
}

#[test]
fn frames_completed_or_cut_up_in_software_have_the_hash_of_the_whole() {
    let mut bed = bed(0);
    bed.receive(&[(partial(0), &tcp(200)), (partial(GSO_TCPV4), &tcp(2900))]);
    let (low, high) = halves(hash(&bed, &tcp(200)).unwrap().0);
    let expected =
        NetHeader { flags: BOTH, csum_start: low, csum_offset: high, num_buffers: 1, ..NetHeader::default() };
    assert_eq!(headers(&mut bed), [expected; 4]);
}

#[test]
fn the_hash_is_that_of_the_configuration_in_force() {
    let mut bed = bed(0);
    bed.receive_plain(&frame(1));
    let before = headers(&mut bed)[0];
    let key = RssKey::new(&[0x5a; 40]).unwrap();
    let config = RssConfig { key, hash_types: hash_type::IPV4, ..RssConfig::default() };
    bed.nic.steering.write().set_rss(config).unwrap();
    bed.receive_plain(&frame(1));
    let (value, report) = hash(&bed, &frame(1)).unwrap();
    assert_eq!(report, HashReport::Ipv4);
    let after = headers(&mut bed)[0];
    assert_eq!(
        (after.flags, after.csum_start, after.csum_offset),
        (HDR_F_HASH, value as u16, (value >> 16) as u16)
    );
    assert_ne!((before.csum_start, before.csum_offset), (after.csum_start, after.csum_offset));
    let none = RssConfig { hash_types: 0, ..RssConfig::default() };
    bed.nic.steering.write().set_rss(none).unwrap();
    bed.receive_plain(&frame(1));
    assert_eq!(headers(&mut bed)[0], NetHeader { num_buffers: 1, ..NetHeader::default() });
}

#[test]
fn nobody_sees_a_hash_who_did_not_ask_and_no_sender_can_forge_one() {
    let mut bed = bed(F_GUEST_CSUM);
    bed.nic.hash_in_header.store(false, Ordering::Relaxed);
    let forged = NetHeader { flags: BOTH, csum_start: 1, csum_offset: 2, ..NetHeader::default() };
    bed.receive(&[
        (forged, &frame(1)),
        (NetHeader { flags: BOTH | HDR_F_NEEDS_CSUM, ..partial(0) }, &tcp(200)),
    ]);
    let got = headers(&mut bed);
    assert_eq!(
        got,
        [NetHeader { num_buffers: 1, ..NetHeader::default() }, NetHeader { num_buffers: 1, ..partial(0) }]
    );
    bed.nic.hash_in_header.store(true, Ordering::Relaxed);
    bed.receive(&[(forged, &[7; 60])]);
    assert_eq!(headers(&mut bed)[0].flags, 0, "a frame without a hash");
    bed.nic.forget_guest();
    bed.receive_plain(&frame(1));
    assert_eq!(headers(&mut bed)[0].flags, 0, "it is forgotten with everything else");
}
