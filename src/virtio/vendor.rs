//! Control class 0xf0: what the specification does not have (`docs/guest-abi.md`), from bytes and to bytes.

use super::ctrl::RssParams;
use super::wire::{Reader, Writer};

/// Asks what this device is: [`Identity`].
pub const IDENTIFY: u8 = 0;
/// Forgets all that this guest has set up.
pub const RESET: u8 = 1;
/// Puts the RSS hash into the header of received frames, or not: `{u8 on; u8 reserved[3]}`.
pub const HASH_SET: u8 = 2;
/// Asks how many packets a rule has decided about: {le32 rule_id}, and le64 back.
pub const RULE_HITS: u8 = 3;
/// Asks which rules there are: {le32 first}, and their ids from there on back, le32 each, ascending, [`RULE_LIST_MAX`] at most.
pub const RULE_LIST: u8 = 4;
/// Asks for receive-side scaling as it is: [`RssState`].
pub const RSS_GET: u8 = 5;
/// Lets the device find the time of receive queues' moderation itself, or not: [`Adaptive`].
pub const ADAPTIVE_SET: u8 = 6;
/// Asks whether it does for a queue: {le16 vq_index}, and `{u8 on; u8 reserved[3]; le32 usecs}` back, the time that it has come to.
pub const ADAPTIVE_GET: u8 = 7;
/// Asks what became of the signals of some virtqueues: {le16 vq_index; le16 count}, and for each of them {le64 suppressed; le64 held;
/// le64 by_time; le64 by_count} back.
pub const SIGNALS_GET: u8 = 8;

/// Ids in an answer to [`RULE_LIST`].
pub const RULE_LIST_MAX: usize = 256;

/// Bits of [`Identity::capabilities`].
pub mod capability {
    /// The hash can be put into the header.
    pub const HASH: u32 = 1 << 0;
    /// There are RSS contexts.
    pub const RSS_CONTEXTS: u32 = 1 << 1;
    /// Rules can send packets through RSS contexts.
    pub const ACTION_RSS_CONTEXT: u32 = 1 << 2;
    /// Rules can be modified.
    pub const MODIFY_RULES: u32 = 1 << 3;
    /// Hash types may leave out fields, or be symmetric.
    pub const HASH_FIELDS: u32 = 1 << 4;
    /// The device can find the time of moderation itself.
    pub const ADAPTIVE: u32 = 1 << 5;
    /// The device tells what became of signals.
    pub const SIGNALS: u32 = 1 << 6;
}

/// What [`ADAPTIVE_SET`] sets: {le16 vq_index; u8 on; u8 reserved}.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adaptive {
    /// Receive virtqueue, or [`Adaptive::ALL`].
    pub vq_index: u16,
    /// Whether the device finds the time.
    pub on: bool,
}

impl Adaptive {
    /// All receive queues.
    pub const ALL: u16 = 0xffff;

    /// None if it is too short, or `on` is neither 0 nor 1.
    pub fn from_bytes(b: &[u8]) -> Option<Self> {
        let &[low, high, on, _] = b.first_chunk()?;
        (on <= 1).then_some(Adaptive { vq_index: u16::from_le_bytes([low, high]), on: on == 1 })
    }

    /// The bytes.
    pub fn to_bytes(self) -> [u8; 4] {
        let [low, high] = self.vq_index.to_le_bytes();
        [low, high, self.on.into(), 0]
    }
}

/// What `IDENTIFY` answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// Version of all this: [`Identity::ABI`].
    pub abi: u32,
    /// Queue pairs of the device.
    pub queue_pairs: u16,
    /// RSS contexts that there may be; their ids go from 1 to this.
    pub max_rss_contexts: u16,
    /// Entries that an indirection table may have.
    pub rss_max_table: u16,
    /// Bytes that a key may have.
    pub rss_max_key: u8,
    /// Hash types that there are.
    pub hash_types: u32,
    /// Bits of [`capability`].
    pub capabilities: u32,
    /// Feature bits of the network device whose commands are served.
    pub features: u64,
    /// Reserved.
    pub profile: u32,
    /// The device's version, 24 bytes at most.
    pub version: String,
}

impl Identity {
    /// The only value of [`Identity::abi`] so far.
    pub const ABI: u32 = 1;
    /// Bytes of it.
    pub const SIZE: usize = 64;
    /// Bytes of the version.
    pub const VERSION: usize = 24;

    /// Reads it; `None` if it is too short.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let (abi, queue_pairs, max_rss_contexts) = (r.le32(), r.le16(), r.le16());
        let (rss_max_table, rss_max_key) = (r.le16(), r.u8());
        r.skip(1);
        let (hash_types, capabilities, features, profile) = (r.le32(), r.le32(), r.le64(), r.le32());
        r.skip(8);
        let version: [u8; Self::VERSION] = r.array();
        let end = version.iter().position(|b| *b == 0).unwrap_or(Self::VERSION);
        let version = String::from_utf8_lossy(&version[..end]).into_owned();
        (!r.is_short()).then_some(Identity {
            abi,
            queue_pairs,
            max_rss_contexts,
            rss_max_table,
            rss_max_key,
            hash_types,
            capabilities,
            features,
            profile,
            version,
        })
    }

    /// The bytes. A version that is too long is cut.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.le32(self.abi).le16(self.queue_pairs).le16(self.max_rss_contexts);
        w.le16(self.rss_max_table).u8(self.rss_max_key).zeros(1);
        w.le32(self.hash_types).le32(self.capabilities).le64(self.features).le32(self.profile).zeros(8);
        let version = &self.version.as_bytes()[..self.version.len().min(Self::VERSION)];
        w.bytes(version).zeros(Self::VERSION - version.len()).finish()
    }
}

/// What `RSS_GET` answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RssState {
    /// The host has not switched RSS off.
    pub on: bool,
    /// RSS alone decides; else learned flows go before it.
    pub rss_mode: bool,
    /// Nobody has set a table: it spreads over all queues that run.
    pub default_table: bool,
    /// The guest has set it, not the host.
    pub by_guest: bool,
    /// The configuration; `max_tx_vq` means nothing.
    pub params: RssParams,
}

impl RssState {
    /// Bytes before the configuration.
    pub const HEADER: usize = 4;

    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let flags = r.u8();
        r.skip(3);
        let flag = |bit: u8| flags >> bit & 1 == 1;
        let params = RssParams::read(&mut r)?;
        Some(RssState { on: flag(0), rss_mode: flag(1), default_table: flag(2), by_guest: flag(3), params })
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let flags = [self.on, self.rss_mode, self.default_table, self.by_guest];
        let flags = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
        let mut w = Writer::new();
        w.u8(flags).zeros(3);
        self.params.write(&mut w);
        w.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_64_bytes_and_comes_back() {
        let identity = Identity {
            abi: Identity::ABI,
            queue_pairs: 4,
            max_rss_contexts: 32,
            rss_max_table: 4096,
            rss_max_key: 52,
            hash_types: 0x3f,
            capabilities: 0xf,
            features: 1 << 60,
            profile: 0,
            version: "0.1.0".into(),
        };
        let bytes = identity.to_bytes();
        assert_eq!(bytes.len(), Identity::SIZE);
        assert_eq!(bytes[..12], [1, 0, 0, 0, 4, 0, 32, 0, 0, 16, 52, 0]);
        assert_eq!(bytes[12..28], [0x3f, 0, 0, 0, 0xf, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10]);
        assert_eq!((&bytes[40..45], bytes[45]), (&b"0.1.0"[..], 0));
        assert_eq!(Identity::from_bytes(&bytes), Some(identity.clone()));
        assert_eq!(Identity::from_bytes(&bytes[..63]), None);
        let long = Identity { version: "x".repeat(30), ..identity };
        assert_eq!(Identity::from_bytes(&long.to_bytes()).unwrap().version, "x".repeat(24));
    }

    #[test]
    fn the_state_of_rss_is_flags_and_a_configuration() {
        let params =
            RssParams { hash_types: 1, unclassified: 2, table: vec![0, 3], max_tx_vq: 0, key: vec![9; 40] };
        let state = RssState { on: true, rss_mode: false, default_table: true, by_guest: true, params };
        let bytes = state.to_bytes();
        assert_eq!(bytes[..RssState::HEADER], [0b1101, 0, 0, 0]);
        assert_eq!(bytes[RssState::HEADER..], state.params.to_bytes());
        assert_eq!(RssState::from_bytes(&bytes), Some(state));
        assert_eq!(RssState::from_bytes(&bytes[..bytes.len() - 1]), None);
    }
}
