//! Takes Ethernet frames apart and trusts nothing it reads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::frame::{IPV4, IPV6, QINQ, TCP, UDP, VLAN, checksum, pseudo_v4, pseudo_v6};
use crate::virtio::MacAddr;

/// What [`verify`] found in a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// The 16 bits of each VLAN tag, outermost first.
    pub tags: Vec<u16>,
    /// The innermost EtherType.
    pub ether_type: u16,
    /// Source and destination address, for IP.
    pub addrs: Option<(IpAddr, IpAddr)>,
    /// Protocol number behind all IP headers.
    pub protocol: Option<u8>,
    /// Source and destination port, for unfragmented TCP and UDP.
    pub ports: Option<(u16, u16)>,
    /// Sequence number and flags, for TCP.
    pub tcp: Option<(u32, u8)>,
    /// What the innermost known header carries, without padding.
    pub payload: Vec<u8>,
}

/// Takes a frame apart and checks every length and checksum on the way; says what is wrong first.
pub fn verify(frame: &[u8]) -> Result<Parsed, String> {
    let mut at = 12;
    let mut tags = Vec::new();
    let mut ether_type = be16(frame, at)?;
    while ether_type == VLAN || ether_type == QINQ {
        tags.push(be16(frame, at + 2)?);
        at += 4;
        ether_type = be16(frame, at)?;
    }
    let address = |range: std::ops::Range<usize>| MacAddr(frame[range].try_into().expect("6 bytes"));
    let mut parsed = Parsed {
        dst: address(0..6),
        src: address(6..12),
        tags,
        ether_type,
        addrs: None,
        protocol: None,
        ports: None,
        tcp: None,
        payload: frame[at + 2..].to_vec(),
    };
    match ether_type {
        IPV4 => verify_v4(&frame[at + 2..], &mut parsed)?,
        IPV6 => verify_v6(&frame[at + 2..], &mut parsed)?,
        _ => {}
    }
    Ok(parsed)
}

fn be16(b: &[u8], at: usize) -> Result<u16, String> {
    let two = b.get(at..at + 2).ok_or_else(|| format!("ends before byte {}", at + 2))?;
    Ok(u16::from_be_bytes([two[0], two[1]]))
}

fn cut(b: &[u8], from: usize, to: usize) -> Result<&[u8], String> {
    b.get(from..to).ok_or_else(|| format!("bytes {from}..{to} asked of {}", b.len()))
}

fn verify_v4(b: &[u8], parsed: &mut Parsed) -> Result<(), String> {
    let fixed = cut(b, 0, 20)?;
    let (header_len, total) = (usize::from(fixed[0] & 15) * 4, usize::from(be16(fixed, 2)?));
    if fixed[0] >> 4 != 4 || header_len < 20 {
        return Err(format!("IPv4 starts with {:#04x}", fixed[0]));
    }
    if checksum(&[cut(b, 0, header_len)?]) != 0 {
        return Err("the IPv4 header checksum is wrong".into());
    }
    let octets = |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]);
    let (src, dst) = (octets(12), octets(16));
    parsed.addrs = Some((src.into(), dst.into()));
    let fragment = be16(fixed, 6)? & 0x3fff != 0;
    verify_transport(cut(b, header_len, total)?, fixed[9], fragment, &pseudo_v4(src, dst), parsed)
}

fn verify_v6(b: &[u8], parsed: &mut Parsed) -> Result<(), String> {
    let fixed = cut(b, 0, 40)?;
    let octets = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&fixed[at..at + 16]).expect("16 bytes"));
    let (src, dst) = (octets(8), octets(24));
    parsed.addrs = Some((src.into(), dst.into()));
    let mut body = cut(b, 40, 40 + usize::from(be16(fixed, 4)?))?;
    let (mut number, mut fragment) = (fixed[6], false);
    // Hop-by-hop, routing, fragment and destination options.
    while matches!(number, 0 | 43 | 44 | 60) {
        let len =
            if number == 44 { 8 } else { (usize::from(*body.get(1).ok_or("ends in an extension")?) + 1) * 8 };
        fragment |= number == 44;
        number = body[0];
        body = cut(body, len, body.len())?;
    }
    verify_transport(body, number, fragment, &pseudo_v6(src, dst), parsed)
}

fn verify_transport(
    body: &[u8],
    number: u8,
    fragment: bool,
    pseudo: &dyn Fn(u8, usize) -> Vec<u8>,
    parsed: &mut Parsed,
) -> Result<(), String> {
    parsed.protocol = Some(number);
    parsed.payload = body.to_vec();
    if fragment || (number != TCP && number != UDP) {
        return Ok(());
    }
    parsed.ports = Some((be16(body, 0)?, be16(body, 2)?));
    let header_len = if number == TCP { usize::from(cut(body, 12, 13)?[0] >> 4) * 4 } else { 8 };
    if number == UDP && usize::from(be16(body, 4)?) != body.len() {
        return Err(format!("UDP says {} bytes, IP says {}", be16(body, 4)?, body.len()));
    }
    let absent = number == UDP && be16(body, 6)? == 0 && matches!(parsed.addrs, Some((IpAddr::V4(_), _)));
    if !absent && checksum(&[&pseudo(number, body.len()), body]) != 0 {
        return Err(format!("the checksum of protocol {number} is wrong"));
    }
    if number == TCP {
        let seq = cut(body, 4, 8)?;
        parsed.tcp = Some((u32::from_be_bytes(seq.try_into().expect("4 bytes")), body[13]));
    }
    parsed.payload = cut(body, header_len, body.len())?.to_vec();
    Ok(())
}
