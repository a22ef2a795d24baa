//! A hostile guest's commands against transmit ring and channel.
//!
//! The input is a script: how the ring is set up, then chains, most of them commands or nearly so, and what the guest writes
//! where it should not. A slow model says which chains are commands, what the reply must be like, and what may be written to
//! memory; everything else must stay as it was. What a command does is another matter: its answer is taken as it comes.
#![no_main]

#[path = "shared/desc.rs"]
mod desc;
#[path = "in_band/driver.rs"]
mod driver;
#[path = "shared/guest.rs"]
mod guest;
#[path = "in_band/model.rs"]
mod model;
#[path = "in_band/reference.rs"]
mod reference;
#[path = "shared/script.rs"]
mod script;

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use driver::Driver;
use flownic::config::{InBand, NicConfig, PortConfig};
use flownic::dataplane::notify::CoalesceRule;
use flownic::dataplane::worker::WorkerHandle;
use flownic::nic::Nic;
use flownic::steer::{LearnConfig, SteerConfig};
use flownic::vhost::Endpoint;
use flownic::vhost::ring::{RingSetup, TxRing};
use guest::{BASE, GUEST, PAGE};
use libfuzzer_sys::fuzz_target;
use model::Model;
use script::Script;

/// Where the buffers start; rings and indirect tables are before.
pub const BUFFERS: usize = 6 * PAGE;

/// NICs that take commands from somewhere. They stay as commands leave them.
static NICS: LazyLock<[Nic; 3]> = LazyLock::new(|| {
    [InBand::All, InBand::User, InBand::Kernel].map(|in_band| {
        let config = NicConfig {
            name: "n0".into(),
            endpoint: Endpoint::Listen(PathBuf::new()),
            queue_pairs: 4,
            port: PortConfig::Null,
            features: 0,
            mtu: 1500,
            steer: SteerConfig { queue_pairs: 4, filter_capacity: 64, ..SteerConfig::default() },
            learn: LearnConfig { entries: 64, ..LearnConfig::default() },
            capture: None,
            in_band,
            coalesce: CoalesceRule::Nic,
            latency: false,
            profile: None,
        };
        let worker = Arc::new(WorkerHandle::new(0).expect("descriptors"));
        Nic::new(1, config, vec![worker; 4], 1, None)
    })
});

fuzz_target!(|input: &[u8]| {
    let mut s = Script(input);
    let flags = s.u8();
    let setup = RingSetup {
        packed: false,
        size: [1, 2, 4, 16, 64, 256][s.below(6)],
        desc: BASE,
        avail: BASE + PAGE as u64,
        used: BASE + 2 * PAGE as u64,
        base: [0, 65530][s.below(2)],
        event_idx: flags & 1 != 0,
        indirect: flags & 2 != 0,
        in_order: flags & 16 != 0,
        header_len: if flags & 4 != 0 { 10 } else { 12 },
        mergeable: false,
        logging: flags & 8 != 0,
        in_band: true,
    };
    GUEST.reset(BUFFERS);
    let mut driver = Driver::new(setup);
    driver.write_indices();
    let table = &GUEST.tables[s.below(3)];
    let Ok(ring) = TxRing::start(Arc::clone(&table.rings), setup) else { return };
    GUEST.take_log();
    let mut model = Model::new(ring, &NICS[s.below(3)], table, setup);
    for _ in 0..200 {
        if s.is_over() {
            break;
        }
        match s.u8() % 8 {
            0..4 => driver.add_chain(&mut s),
            4 => driver.disturb(&mut s),
            _ => {
                if !model.burst(&mut s) {
                    return;
                }
            }
        }
    }
});
