//! A hostile guest against the split ring.
//!
//! The input is a script. It says how a ring is set up, then what the guest and the device do in turn: chains are
//! made, most of them valid, tables and indices are written at random, and the ring takes, brings and returns. A slow
//! reference says what each step must do, and a copy of all guest memory shows that nothing else was done.
//! Regions lie between pages that fault, frames between the sanitizer's red zones.
#![no_main]

#[path = "shared/desc.rs"]
mod desc;
#[path = "split_ring/driver.rs"]
mod driver;
#[path = "shared/guest.rs"]
mod guest;
#[path = "split_ring/model.rs"]
mod model;
#[path = "split_ring/reference.rs"]
mod reference;
#[path = "shared/ring.rs"]
mod ring;
#[path = "shared/script.rs"]
mod script;

use std::sync::Arc;

use driver::Driver;
use flownic::vhost::ring::{BatchStore, RingSetup, RxRing, TxRing};
use guest::{BASE, GUEST, PAGE};
use libfuzzer_sys::fuzz_target;
use model::{Device, Model};
use script::Script;

/// Where the buffers start; rings and indirect tables are before.
pub const BUFFERS: usize = 6 * PAGE;

fn setup(s: &mut Script<'_>) -> RingSetup {
    let features = s.u8();
    let mergeable = features & 1 != 0;
    let mut setup = RingSetup {
        packed: false,
        size: [1, 2, 4, 8, 16, 32, 64, 256][s.below(8)],
        desc: BASE,
        avail: BASE + PAGE as u64,
        used: BASE + 2 * PAGE as u64,
        base: [0, 0, 65535, 65530][s.below(4)],
        event_idx: features & 2 != 0,
        indirect: features & 4 != 0,
        in_order: features & 32 != 0,
        header_len: if !mergeable && features & 8 != 0 { 10 } else { 12 },
        mergeable,
        logging: features & 16 != 0,
        in_band: false,
    };
    if features & 0xe0 == 0xe0 {
        ring::displace(&mut setup, s);
        if s.once_in(4) {
            setup.size = s.u16();
        }
    }
    setup
}

fuzz_target!(|input: &[u8]| {
    let mut s = Script(input);
    let transmits = s.u8() & 1 == 0;
    let setup = setup(&mut s);
    GUEST.reset(BUFFERS);
    let mut driver = Driver::new(setup, transmits);
    driver.write_indices(if s.once_in(4) { s.u16() } else { setup.base });

    let table = &GUEST.tables[s.below(8) % GUEST.tables.len()];
    let memory = Arc::clone(&table.rings);
    let shadow = GUEST.snapshot();
    GUEST.take_log();
    let started = if transmits {
        TxRing::start(memory, setup).map(|r| Device::Tx(r, BatchStore::default()))
    } else {
        RxRing::start(memory, setup).map(Device::Rx)
    };
    assert_eq!(
        started.is_ok(),
        reference::can_start(&table.plain, &setup),
        "{setup:x?}: {:?}",
        started.err()
    );
    let Ok(device) = started else { return };
    let mut model = Model::new(device, table, setup, shadow);

    for _ in 0..400 {
        if s.is_over() {
            break;
        }
        // The guest is quicker than the device, else rings stay empty.
        match s.u8() % 16 {
            0..6 => driver.add_chain(&mut s),
            6 => driver.disturb(&mut s),
            7 => {
                for _ in 0..=s.below(40) {
                    driver.add_simple_chain();
                }
            }
            _ => {
                model.guest_wrote();
                if !model.step(&mut s) {
                    return;
                }
                continue;
            }
        }
        model.guest_wrote();
    }
    model.finish();
});
