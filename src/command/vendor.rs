//! Control class 0xf0: what the specification does not have.

use std::sync::atomic::Ordering;

use super::control::{DONE, Outcome};
use super::{GuestState, forget, listing, statistics};
use crate::nic::Nic;
use crate::steer::{CONTEXTS_MAX, KEY_MAX, TABLE_MAX, hash_type};
use crate::virtio::vendor::{
    ADAPTIVE_GET, ADAPTIVE_SET, HASH_SET, IDENTIFY, Identity, RESET, RSS_GET, RULE_HITS, RULE_LIST,
    SIGNALS_GET, capability,
};
use crate::virtio::{
    F_CTRL_MAC_ADDR, F_CTRL_RX, F_CTRL_RX_EXTRA, F_CTRL_VLAN, F_CTRL_VQ, F_DEVICE_STATS, F_HASH_REPORT,
    F_NOTF_COAL, F_RSS, F_VQ_NOTF_COAL,
};

/// Feature bits whose commands are carried out here. RSS contexts are bit 64, and have a capability instead.
const FEATURES: u64 = F_CTRL_VQ
    | F_CTRL_RX
    | F_CTRL_VLAN
    | F_CTRL_RX_EXTRA
    | F_CTRL_MAC_ADDR
    | F_DEVICE_STATS
    | F_VQ_NOTF_COAL
    | F_NOTF_COAL
    | F_HASH_REPORT
    | F_RSS;

pub(super) fn execute(nic: &Nic, guest: &mut GuestState, command: u8, data: &[u8]) -> Outcome {
    match command {
        IDENTIFY => Some(identity(nic).to_bytes()),
        RESET => {
            forget(nic, guest);
            DONE
        }
        HASH_SET => {
            let on = match data.first_chunk::<4>()?[0] {
                0 => false,
                1 => true,
                _ => return None,
            };
            nic.hash_in_header.store(on, Ordering::Relaxed);
            DONE
        }
        RULE_HITS => {
            let id = u32::from_le_bytes(*data.first_chunk()?);
            let steering = nic.steering.read();
            let (slot, _) = steering.filters().rule(id)?;
            Some(nic.rule_hits.get(slot).to_le_bytes().into())
        }
        RULE_LIST => listing::rules(&guest.admin.objects, data),
        RSS_GET => listing::rss(nic),
        ADAPTIVE_SET => guest.moderation.set_adaptive(nic, data),
        SIGNALS_GET => statistics::signals(nic, data),
        ADAPTIVE_GET => guest.moderation.get_adaptive(nic, data),
        _ => None,
    }
}

fn identity(nic: &Nic) -> Identity {
    Identity {
        abi: Identity::ABI,
        queue_pairs: nic.config.queue_pairs,
        max_rss_contexts: CONTEXTS_MAX,
        rss_max_table: TABLE_MAX as u16,
        rss_max_key: KEY_MAX as u8,
        hash_types: hash_type::SUPPORTED,
        capabilities: capability::HASH
            | capability::RSS_CONTEXTS
            | capability::ACTION_RSS_CONTEXT
            | capability::MODIFY_RULES
            | capability::HASH_FIELDS
            | capability::ADAPTIVE
            | capability::SIGNALS,
        features: FEATURES,
        profile: nic.profile.load(Ordering::Relaxed),
        version: env!("CARGO_PKG_VERSION").into(),
    }
}
