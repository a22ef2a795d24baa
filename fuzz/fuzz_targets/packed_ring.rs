//! A hostile guest against the packed ring.
//!
//! The input is a script, as that of `split_ring`: how a ring is set up, then what guest and device do in turn. A guest that
//! keeps to the rules gets its frames, ids and buffers as a slow model says; from the moment it breaks them, all that is asked is
//! that nothing but the ring and what it calls buffers is written, that every look ends, and that the ring says what is wrong.
//! Regions lie between pages that fault, frames between the sanitizer's red zones.
#![no_main]

#[path = "packed_ring/driver.rs"]
mod driver;
#[path = "shared/guest.rs"]
mod guest;
#[path = "shared/ring.rs"]
mod ring;
#[path = "shared/script.rs"]
mod script;

use std::sync::Arc;

use driver::{Driver, Sent};
use flownic::vhost::dirty::DirtyLog;
use flownic::vhost::ring::{
    BATCH, BatchStore, MAX_FRAME, RingFault, RingSetup, RxRefused, RxRing, Segment, TxRing,
};
use flownic::virtio::NetHeader;
use guest::{BASE, GUEST, PAGE, TOTAL};
use libfuzzer_sys::fuzz_target;
use script::Script;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

/// Where indirect tables start, and buffers; the ring and its two words are before.
pub const TABLES: usize = 3 * PAGE;
pub const BUFFERS: usize = 6 * PAGE;

fn setup(s: &mut Script<'_>) -> RingSetup {
    let features = s.u8();
    let mergeable = features & 1 != 0;
    let size = [1, 2, 3, 5, 8, 17, 33, 64, 100, 256][s.below(10)];
    let slot = s.u16() % size;
    let mut setup = RingSetup {
        packed: true,
        size,
        desc: BASE,
        avail: BASE + 2 * PAGE as u64,
        used: BASE + 2 * PAGE as u64 + 4,
        base: slot | u16::from(features & 2) << 14,
        event_idx: features & 4 != 0,
        indirect: features & 8 != 0,
        in_order: features & 64 != 0,
        header_len: if !mergeable && features & 16 != 0 { 10 } else { 12 },
        mergeable,
        logging: features & 32 != 0,
        in_band: false,
    };
    if features & 0xc0 == 0xc0 {
        // And sizes and bases that can't be.
        ring::displace(&mut setup, s);
        if s.once_in(4) {
            (setup.size, setup.base) = (s.u16(), s.u16());
        }
    }
    setup
}

/// Whether a ring may start with this (2.8.10.1).
fn can_start(mem: &GuestMemoryMmap<DirtyLog>, s: &RingSetup) -> bool {
    let parts = [(s.desc, 16 * u64::from(s.size), 16), (s.avail, 4, 4), (s.used, 4, 4)];
    (1..=32768).contains(&s.size)
        && s.base & 0x7fff < s.size
        && parts.into_iter().all(|(gpa, len, align)| {
            let region = mem.find_region(GuestAddress(gpa));
            let room = region.map_or(0, |r| r.start_addr().0 + r.len() - gpa);
            room >= len && gpa % align == 0
        })
}

enum Device {
    Tx(TxRing, BatchStore),
    Rx(RxRing),
}

fuzz_target!(|input: &[u8]| {
    let mut s = Script(input);
    let transmits = s.u8() & 1 == 0;
    let setup = setup(&mut s);
    GUEST.reset(BUFFERS);
    let which = s.below(GUEST.tables.len());
    let table = &GUEST.tables[which];
    let memory = Arc::clone(&table.rings);
    let started = if transmits {
        TxRing::start(memory, setup).map(|r| Device::Tx(r, BatchStore::default()))
    } else {
        RxRing::start(memory, setup).map(Device::Rx)
    };
    assert_eq!(started.is_ok(), can_start(&table.plain, &setup), "{setup:x?}: {:?}", started.err());
    let Ok(mut device) = started else { return };
    // The first two tables have no holes.
    let mut driver = Driver::new(setup, transmits, which < 2);
    GUEST.take_log();

    for _ in 0..400 {
        if s.is_over() {
            break;
        }
        match s.u8() % 16 {
            0..6 => driver.add_chain(&mut s),
            6 => driver.disturb(&mut s),
            7 => (0..=s.below(40)).for_each(|_| driver.add_simple_chain()),
            _ => {
                if !step(&mut device, &mut driver, &mut s) {
                    return;
                }
            }
        }
    }
});

/// One step of the device; false if the ring is broken.
fn step(device: &mut Device, driver: &mut Driver, s: &mut Script<'_>) -> bool {
    let before = GUEST.snapshot();
    let ring: &mut flownic::vhost::ring::Ring = match device {
        Device::Tx(ring, _) => ring,
        Device::Rx(ring) => ring,
    };
    match s.u8() % 16 {
        0 => {
            let moved = &GUEST.tables[s.below(GUEST.tables.len())];
            _ = ring.set_memory(Arc::clone(&moved.rings));
            // Buffers may be elsewhere now, or nowhere.
            driver.is_honest = false;
        }
        1 => {
            let wanted = ring.is_signal_wanted();
            assert_eq!(ring.wants_signal(), wanted);
            assert!(!ring.has_unsignalled() && !ring.is_signal_wanted());
        }
        2 => {
            let more = ring.want_kicks().expect("a packed ring can't be wrong here");
            assert_eq!(more, !ring.is_empty().unwrap());
        }
        3 => ring.refuse_kicks(),
        _ => {}
    }
    driver.check_writes(&before, &[]);
    match device {
        Device::Tx(ring, store) => transmit(ring, store, driver),
        Device::Rx(ring) => receive(ring, driver, s),
    }
}

fn transmit(ring: &mut TxRing, store: &mut BatchStore, driver: &mut Driver) -> bool {
    let before = GUEST.snapshot();
    let frames: Vec<Vec<u8>> = match ring.pop(store) {
        Ok(batch) => (0..batch.len())
            .map(|i| {
                let mut frame = vec![0; batch.frame(i).len()];
                assert!(frame.len() <= MAX_FRAME);
                batch.copy_frame(i, &mut frame);
                frame
            })
            .collect(),
        Err(RingFault::NoEnd { .. }) => {
            assert!(!driver.is_honest, "a chain that ends has no end");
            return false;
        }
        Err(fault) => panic!("{fault}"),
    };
    let taken = ring.complete();
    assert!(frames.len() <= taken && taken <= BATCH);
    driver.check_writes(&before, &[]);
    let chains = driver.returned(taken);
    if driver.is_honest {
        assert_eq!(chains.iter().filter_map(Sent::frame).collect::<Vec<_>>(), frames);
        if driver.setup.in_order {
            // The first place says how far it goes, the others nothing.
            let (first, last) = (chains.first(), chains.last());
            assert_eq!(first.map(|chain| chain.used), last.map(|chain| Some((chain.id, 0))));
        } else {
            assert!(chains.iter().all(|chain| chain.used == Some((chain.id, 0))));
        }
    }
    true
}

fn receive(ring: &mut RxRing, driver: &mut Driver, s: &mut Script<'_>) -> bool {
    let before = GUEST.snapshot();
    let (mut delivered, mut written) = (Vec::new(), 0);
    for _ in 0..1 + s.below(40) {
        let len = match s.u8() % 8 {
            0 => MAX_FRAME,
            1 => 14,
            2 => 9000,
            _ => 14 + s.below(2000),
        };
        let frame = vec![s.u8() | 1; len];
        let (head, tail) = frame.split_at(len.min(128));
        match ring.push(NetHeader::default(), head, &[Segment::from_slice(tail)], len) {
            Ok(()) => {
                written += len + driver.setup.header_len;
                delivered.push(frame);
            }
            Err(RxRefused::NoBuffer | RxRefused::BufferTooSmall) => {}
            Err(RxRefused::Broken(RingFault::NoEnd { .. })) => {
                assert!(!driver.is_honest, "a chain that ends has no end");
                return false;
            }
            Err(RxRefused::Broken(fault)) => panic!("{fault}"),
        }
    }
    ring.publish();
    let buffers = driver.buffers();
    driver.check_writes(&before, &buffers);
    let chains = driver.returned_now();
    if driver.is_honest {
        assert!(chains.iter().all(|chain| chain.used.is_some_and(|used| used.0 == chain.id)));
        let told: usize = chains.iter().map(|chain| chain.used.map_or(0, |used| used.1 as usize)).sum();
        assert_eq!(told, written, "bytes that the used descriptors tell of");
    }
    true
}

/// Bytes of guest memory that two copies differ in.
pub fn differing(before: &[u8]) -> Vec<usize> {
    let after = GUEST.bytes();
    (0..TOTAL)
        .step_by(64)
        .filter(|at| before[*at..at + 64] != after[*at..at + 64])
        .flat_map(|at| at..at + 64)
        .filter(|at| before[*at] != after[*at])
        .collect()
}
