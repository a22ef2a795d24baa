//! Steering by hash: the NIC's configuration (5.1.6.5.7), what is hashed (5.1.6.5.6.4), and RSS contexts (5.1.6.5.8).

use super::control::{DONE, Outcome};
use crate::nic::Nic;
use crate::steer::{CONTEXTS_MAX, RssConfig, RssKey};
use crate::virtio::ctrl::{HashParams, RssContextParams, RssParams, mq, rss_context};

pub(super) fn multiqueue(nic: &Nic, command: u8, data: &[u8]) -> Outcome {
    match command {
        mq::RSS_CONFIG => {
            let wanted = RssParams::from_bytes(data)?;
            let mut steering = nic.steering.write();
            let config = config(nic, wanted, steering.rss().config())?;
            steering.set_guest_rss(config).ok()?;
        }
        mq::HASH_CONFIG => {
            let HashParams { hash_types, key } = HashParams::from_bytes(data)?;
            let mut steering = nic.steering.write();
            let current = steering.rss().config().clone();
            let key = key_of(&key, hash_types, &current)?;
            steering.set_guest_hash(RssConfig { key, hash_types, ..current }).ok()?;
        }
        // The number of queue pairs is QEMU's.
        _ => return None,
    }
    DONE
}

pub(super) fn contexts(nic: &Nic, command: u8, data: &[u8]) -> Outcome {
    let mut steering = nic.steering.write();
    match command {
        rss_context::CAP_GET => return Some(CONTEXTS_MAX.to_le_bytes().into()),
        rss_context::ADD => {
            let RssContextParams { id, rss } = RssContextParams::from_bytes(data)?;
            let config = config(nic, rss, steering.rss().config())?;
            steering.add_context(id, config).ok()?;
        }
        rss_context::MOD => {
            let RssContextParams { id, rss } = RssContextParams::from_bytes(data)?;
            let config = config(nic, rss, steering.context(id)?)?;
            steering.modify_context(id, config).ok()?;
        }
        rss_context::DEL => {
            let id = u16::from_le_bytes(*data.first_chunk()?);
            steering.delete_context(id).ok()?;
        }
        _ => return None,
    }
    DONE
}

/// A configuration as it was sent; steering checks the rest of it. How many transmit queues are used is QEMU's to say,
/// so no more is asked of that number than that it is one.
fn config(nic: &Nic, wanted: RssParams, current: &RssConfig) -> Option<RssConfig> {
    if wanted.max_tx_vq > nic.config.queue_pairs {
        return None;
    }
    let key = key_of(&wanted.key, wanted.hash_types, current)?;
    Some(RssConfig {
        key,
        hash_types: wanted.hash_types,
        table: Some(wanted.table),
        unclassified: wanted.unclassified,
    })
}

/// The key; none need be sent where nothing is hashed.
fn key_of(bytes: &[u8], hash_types: u32, current: &RssConfig) -> Option<RssKey> {
    if bytes.is_empty() && hash_types == 0 {
        return Some(current.key.clone());
    }
    RssKey::new(bytes).ok()
}
