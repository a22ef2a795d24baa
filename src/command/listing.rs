//! What there is, for a program that remembers nothing: `RULE_LIST` and `RSS_GET` of class 0xf0.

use super::control::Outcome;
use super::objects::Objects;
use crate::nic::Nic;
use crate::steer::Mode;
use crate::virtio::ctrl::RssParams;
use crate::virtio::vendor::{RULE_LIST_MAX, RssState};

pub(super) fn rules(objects: &Objects, data: &[u8]) -> Outcome {
    let first = u32::from_le_bytes(*data.first_chunk()?);
    Some(objects.rule_ids(first).take(RULE_LIST_MAX).flat_map(u32::to_le_bytes).collect())
}

pub(super) fn rss(nic: &Nic) -> Outcome {
    let steering = nic.steering.read();
    let config = steering.rss().config();
    let params = RssParams {
        hash_types: config.hash_types,
        unclassified: config.unclassified,
        table: steering.rss().table(steering.queue_pairs()),
        max_tx_vq: 0,
        key: config.key.bytes().to_vec(),
    };
    let state = RssState {
        on: steering.rss_on(),
        rss_mode: steering.mode() == Mode::Rss,
        default_table: config.table.is_none(),
        by_guest: steering.rss_is_guests(),
        params,
    };
    Some(state.to_bytes())
}
