//! What a guest sees and sets of its NIC beside filter rules.

use serde::{Deserialize, Serialize};

use super::channel::{Frames, GuestError};
use super::device::Device;
use super::groups::locations;
use crate::config::parse_key;
use crate::control::apply::new_table;
use crate::control::replies::{RssChange, RssStatus, SteeringMode};
use crate::control::status::{hash_type_bits, hash_type_names, key_text};
use crate::stats::{Named, NicStats};
use crate::virtio::ctrl::Coalesce;
use crate::virtio::feature_names;
use crate::virtio::statistics::{StatsRequest, StatsType};
use crate::virtio::vendor::capability;

/// What the device is, as `info` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The interface's name.
    pub nic: String,
    /// Version of flownic.
    pub version: String,
    /// Queue pairs.
    pub queues: u16,
    /// Entries of the largest indirection table.
    pub rss_max_table: u16,
    /// Bytes of the longest key.
    pub rss_max_key: u8,
    /// RSS contexts that can be made.
    pub rss_contexts: u16,
    /// What it can beyond the specification.
    pub capabilities: Vec<String>,
    /// Features whose commands are served though the device does not offer them.
    pub features: Vec<String>,
    /// Which card it is like, by number; 0 = none in particular.
    pub profile: u32,
    /// What the flow filter holds: none if there is no flow filter.
    pub flow_filter: Option<FilterInfo>,
}

/// What the flow filter holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterInfo {
    /// Groups.
    pub groups: u32,
    /// Classifiers: combinations of fields.
    pub classifiers: u32,
    /// Rules.
    pub rules: u32,
    /// Headers that can be compared.
    pub selectors: Vec<String>,
}

/// Interrupt moderation, by queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoalesceStatus {
    /// The interface's name.
    pub nic: String,
    /// Of each queue pair; null for those that are not enabled.
    pub queues: Vec<Option<PairCoalesce>>,
}

/// Interrupt moderation of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairCoalesce {
    /// Microseconds after which received frames are signalled.
    pub rx_usecs: u32,
    /// Frames after which received frames are signalled.
    pub rx_frames: u32,
    /// Microseconds after which sent frames are signalled.
    pub tx_usecs: u32,
    /// Frames after which sent frames are signalled.
    pub tx_frames: u32,
}

/// A change of interrupt moderation; what is not given stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoalesceChange {
    /// Of this queue pair only.
    pub queue: Option<u16>,
    /// See [`PairCoalesce`].
    pub rx_usecs: Option<u32>,
    /// See [`PairCoalesce`].
    pub rx_frames: Option<u32>,
    /// See [`PairCoalesce`].
    pub tx_usecs: Option<u32>,
    /// See [`PairCoalesce`].
    pub tx_frames: Option<u32>,
}

impl CoalesceChange {
    /// Reads a change: `rx-usecs 20 rx-frames 64`, in ethtool's words, `queue N` before them for one queue pair.
    ///
    /// # Errors
    /// Names the word that is wrong, and what is allowed.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        const WORDS: &str = "queue, rx-usecs, rx-frames, tx-usecs and tx-frames";
        if words.is_empty() {
            return Err(format!("Nothing is changed; there are {WORDS}"));
        }
        let mut change = CoalesceChange::default();
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let mut number = |max: u32| {
                let value = words.next().ok_or_else(|| format!("'{word}' has no value"))?;
                let ok = value.parse().ok().filter(|n| *n <= max);
                ok.ok_or_else(|| format!("{word}: '{value}' is not possible; 0 to {max} is"))
            };
            let fresh = match word {
                "queue" => change.queue.replace(number(u16::MAX.into())? as u16).is_none(),
                "rx-usecs" => change.rx_usecs.replace(number(u32::MAX)?).is_none(),
                "rx-frames" => change.rx_frames.replace(number(u32::MAX)?).is_none(),
                "tx-usecs" => change.tx_usecs.replace(number(u32::MAX)?).is_none(),
                "tx-frames" => change.tx_frames.replace(number(u32::MAX)?).is_none(),
                _ => return Err(format!("Moderation has no '{word}'; it has {WORDS}")),
            };
            if !fresh {
                return Err(format!("'{word}' is given twice"));
            }
        }
        Ok(change)
    }
}

fn impossible(text: impl Into<String>) -> GuestError {
    GuestError::Impossible(text.into())
}

impl<F: Frames> Device<F> {
    /// What the device is.
    ///
    /// # Errors
    /// When it does not answer or refuses.
    pub fn info(&mut self, name: &str) -> Result<Info, GuestError> {
        let flow_filter = match self.use_commands() {
            Ok(()) => Some(self.filter_info()?),
            Err(GuestError::Refused { .. } | GuestError::Impossible(_)) => None,
            Err(e) => return Err(e),
        };
        let i = self.identity();
        let known = [
            (capability::HASH, "hash in the header"),
            (capability::RSS_CONTEXTS, "RSS contexts"),
            (capability::ACTION_RSS_CONTEXT, "rules that lead to an RSS context"),
            (capability::MODIFY_RULES, "rules that can be changed"),
        ];
        let has = known.iter().filter(|(bit, _)| i.capabilities & bit != 0);
        Ok(Info {
            nic: name.into(),
            version: i.version.clone(),
            queues: i.queue_pairs,
            rss_max_table: i.rss_max_table,
            rss_max_key: i.rss_max_key,
            rss_contexts: i.max_rss_contexts,
            capabilities: has.map(|(_, name)| (*name).into()).collect(),
            features: feature_names(i.features),
            profile: i.profile,
            flow_filter,
        })
    }

    fn filter_info(&mut self) -> Result<FilterInfo, GuestError> {
        let limits = self.limits()?;
        let names = ["", "ether", "ip4", "ip6", "tcp", "udp"];
        let selectors = self.selectors()?.selectors;
        let name = |kind: u8| names.get(usize::from(kind)).map_or(format!("type {kind}"), |n| (*n).into());
        Ok(FilterInfo {
            groups: limits.groups,
            classifiers: limits.classifiers,
            rules: locations(&limits),
            selectors: selectors.iter().map(|s| name(s.kind)).collect(),
        })
    }

    /// Receive-side scaling.
    ///
    /// # Errors
    /// When the device does not answer or refuses.
    pub fn rss_status(&mut self, name: &str) -> Result<RssStatus, GuestError> {
        let state = self.rss()?;
        Ok(RssStatus {
            nic: name.into(),
            on: state.on,
            mode: if state.rss_mode { SteeringMode::Rss } else { SteeringMode::Automatic },
            key: key_text(&state.params.key),
            hash_types: hash_type_names(state.params.hash_types),
            default_table: state.default_table,
            effective: state.params.table.clone(),
            table: state.params.table,
            unclassified: state.params.unclassified,
            by_guest: state.by_guest,
            contexts: Vec::new(),
        })
    }

    /// Changes receive-side scaling; it alone decides from then on, as the specification wants it of its command.
    ///
    /// # Errors
    /// When it is the host's to change, or not possible.
    pub fn change_rss(&mut self, change: RssChange) -> Result<(), GuestError> {
        if change.on.is_some() || change.mode.is_some() {
            return Err(impossible("on, off and mode are the host's: flownic ctl rss set"));
        }
        let mut params = self.rss()?.params;
        let (queues, most) = (self.identity().queue_pairs, usize::from(self.identity().rss_max_table));
        if let Some(key) = &change.key {
            let key = parse_key(key).map_err(|e| impossible(format!("The key is not possible: {e}")))?;
            params.key = key.bytes().to_vec();
        }
        if let Some(names) = &change.hash_types {
            params.hash_types = hash_type_bits(names).map_err(impossible)?;
        }
        if let Some(queue) = change.unclassified {
            params.unclassified = queue;
        }
        if let Some(table) = change.table {
            let len = params.table.len();
            let table = new_table(table, len, queues).map_err(impossible)?;
            params.table = table.unwrap_or_else(|| (0..len).map(|i| i as u16 % queues.max(1)).collect());
        }
        if !params.table.len().is_power_of_two() || params.table.len() > most {
            return Err(impossible(format!(
                "The table can't have {} entries: a power of two up to {most} can",
                params.table.len()
            )));
        }
        if let Some(queue) = params.table.iter().chain([&params.unclassified]).find(|q| **q >= queues) {
            let last = queues.saturating_sub(1);
            return Err(impossible(format!("There is no receive queue {queue}: queues go from 0 to {last}")));
        }
        params.max_tx_vq = queues;
        self.set_rss(&params)
    }

    /// Interrupt moderation.
    ///
    /// # Errors
    /// When the device does not answer or refuses.
    pub fn coalesce_status(&mut self, name: &str) -> Result<CoalesceStatus, GuestError> {
        let queues =
            (0..self.identity().queue_pairs).map(|q| self.pair_coalesce(q)).collect::<Result<_, _>>()?;
        Ok(CoalesceStatus { nic: name.into(), queues })
    }

    fn pair_coalesce(&mut self, queue: u16) -> Result<Option<PairCoalesce>, GuestError> {
        let (rx, tx) = match (self.coalesce(2 * queue), self.coalesce(2 * queue + 1)) {
            (Ok(rx), Ok(tx)) => (rx, tx),
            // Queues that are not enabled have none.
            (Err(GuestError::Error(_)), _) | (_, Err(GuestError::Error(_))) => return Ok(None),
            (Err(e), _) | (_, Err(e)) => return Err(e),
        };
        Ok(Some(PairCoalesce {
            rx_usecs: rx.max_usecs,
            rx_frames: rx.max_packets,
            tx_usecs: tx.max_usecs,
            tx_frames: tx.max_packets,
        }))
    }

    /// Changes interrupt moderation.
    ///
    /// # Errors
    /// When there is no such queue, or the device refuses.
    pub fn change_coalesce(&mut self, change: CoalesceChange) -> Result<(), GuestError> {
        let queues = self.identity().queue_pairs;
        if let Some(queue) = change.queue.filter(|q| *q >= queues) {
            let last = queues.saturating_sub(1);
            return Err(impossible(format!("There is no queue {queue}: queues go from 0 to {last}")));
        }
        for (receive, usecs, frames) in
            [(true, change.rx_usecs, change.rx_frames), (false, change.tx_usecs, change.tx_frames)]
        {
            if usecs.or(frames).is_none() {
                continue;
            }
            let vq_index = 2 * change.queue.unwrap_or(0) + u16::from(!receive);
            // The command has both; for all queues, what is not given is the first one's.
            let now = self.coalesce(vq_index)?;
            let coalesce = Coalesce {
                max_packets: frames.unwrap_or(now.max_packets),
                max_usecs: usecs.unwrap_or(now.max_usecs),
            };
            match change.queue {
                Some(_) => self.set_coalesce(vq_index, coalesce)?,
                None => self.set_all_coalesce(receive, coalesce)?,
            }
        }
        Ok(())
    }

    /// What the device has counted.
    ///
    /// # Errors
    /// When it does not answer or refuses.
    pub fn statistics(&mut self, name: &str) -> Result<NicStats, GuestError> {
        let types = self.stats_types()?;
        let queues = 0..self.identity().queue_pairs;
        let mut of = |vq_index: u16, kind: StatsType| {
            if types & kind.bit() == 0 {
                return Ok(Named::default());
            }
            let replies = self.stats(StatsRequest { vq_index, types: kind.bit() })?;
            let found = replies.iter().find(|r| r.kind == kind.code());
            let found = found.ok_or(GuestError::Nonsense("Statistics".into()))?;
            Ok(Named::new(kind.names(), &found.values))
        };
        let control = 2 * queues.end;
        Ok(NicStats {
            nic: name.into(),
            rx: queues.clone().map(|q| of(2 * q, StatsType::RxBasic)).collect::<Result<_, GuestError>>()?,
            tx: queues.map(|q| of(2 * q + 1, StatsType::TxBasic)).collect::<Result<_, _>>()?,
            device: of(control, StatsType::Control)?,
            latency: Vec::new(),
        })
    }
}
