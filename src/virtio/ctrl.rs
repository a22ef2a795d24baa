//! Commands of the control virtqueue (5.1.6.5): their layouts, from bytes and to bytes, for the device and for whoever
//! commands it. Statistics are in [`super::statistics`], the class of this device in [`super::vendor`].
//!
//! Here, unlike with administration commands, data that is too short makes a command an error: `None`. Data that is too
//! long is ignored beyond its end.

use super::MacAddr;
use super::wire::{Reader, Writer, codes};

codes! {
    /// What a control command is about.
    Class: u8 {
        /// Receive mode: `rx`.
        Rx = 0,
        /// Addresses that are received: `mac`.
        Mac = 1,
        /// VLANs that are received: `vlan`.
        Vlan = 2,
        /// Multiqueue: `mq`.
        Mq = 4,
        /// Interrupt moderation: `coalesce`.
        Coalesce = 6,
        /// Statistics: `stats`.
        Stats = 8,
        /// RSS contexts: `rss_context`.
        RssContext = 9,
        /// This device's own: [`super::vendor`].
        Flownic = 0xf0,
    }
}

/// Commands of [`Class::Rx`]: their data is one byte, on or off.
pub mod rx {
    /// Receive every address.
    pub const PROMISC: u8 = 0;
    /// Receive every multicast address.
    pub const ALLMULTI: u8 = 1;
    /// Receive every unicast address.
    pub const ALLUNI: u8 = 2;
    /// Receive no multicast address.
    pub const NOMULTI: u8 = 3;
    /// Receive no unicast address.
    pub const NOUNI: u8 = 4;
    /// Receive no broadcast.
    pub const NOBCAST: u8 = 5;
}

/// Commands of [`Class::Mac`].
pub mod mac {
    /// Replaces the table of addresses: [`MacTable`](super::MacTable).
    pub const TABLE_SET: u8 = 0;
    /// Sets the device's own address: 6 bytes.
    pub const ADDR_SET: u8 = 1;
}

/// Commands of [`Class::Vlan`]: their data is a VLAN id, le16.
pub mod vlan {
    /// Receive this VLAN.
    pub const ADD: u8 = 0;
    /// Do not receive it any more.
    pub const DEL: u8 = 1;
}

/// Commands of [`Class::Mq`].
pub mod mq {
    /// How many queue pairs are used.
    pub const VQ_PAIRS_SET: u8 = 0;
    /// Steering by hash: [`RssParams`](super::RssParams).
    pub const RSS_CONFIG: u8 = 1;
    /// What is hashed: [`HashParams`](super::HashParams).
    pub const HASH_CONFIG: u8 = 2;
}

/// Commands of [`Class::Coalesce`].
pub mod coalesce {
    /// For all transmit queues: [`Coalesce`](super::Coalesce).
    pub const TX_SET: u8 = 0;
    /// For all receive queues: [`Coalesce`](super::Coalesce).
    pub const RX_SET: u8 = 1;
    /// For one queue: [`QueueCoalesce`](super::QueueCoalesce).
    pub const VQ_SET: u8 = 2;
    /// Asks for those of one queue: {le16 vq_index; le16 reserved}, and all of [`QueueCoalesce`](super::QueueCoalesce) back.
    pub const VQ_GET: u8 = 3;
}

/// Commands of [`Class::RssContext`].
pub mod rss_context {
    /// Asks how many there may be: le16.
    pub const CAP_GET: u8 = 0;
    /// Makes one: [`RssContextParams`](super::RssContextParams).
    pub const ADD: u8 = 1;
    /// Changes one: [`RssContextParams`](super::RssContextParams).
    pub const MOD: u8 = 2;
    /// Deletes one: its id, le16.
    pub const DEL: u8 = 3;
}

codes! {
    /// How a command ended.
    Ack: u8 {
        /// It was carried out.
        Ok = 0,
        /// It was not.
        Error = 1,
    }
}

/// A command's bytes.
pub fn command(class: Class, command: u8, data: &[u8]) -> Vec<u8> {
    Writer::new().u8(class.code()).u8(command).bytes(data).finish()
}

/// Splits an answer: the result, or `None` if the command was not carried out.
pub fn result(answer: &[u8]) -> Option<&[u8]> {
    let (ack, result) = answer.split_first()?;
    (*ack == Ack::Ok.code()).then_some(result)
}

fn whole<T>(r: &Reader<'_>, value: T) -> Option<T> {
    (!r.is_short()).then_some(value)
}

/// `virtio_net_ctrl_mac`, twice: the unicast and the multicast addresses that are received beside the device's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MacTable {
    /// Unicast addresses.
    pub unicast: Vec<MacAddr>,
    /// Multicast addresses.
    pub multicast: Vec<MacAddr>,
}

impl MacTable {
    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let mut list = || {
            let n = r.le32() as usize;
            (n <= r.rest().len() / 6).then(|| (0..n).map(|_| MacAddr(r.array())).collect::<Vec<_>>())
        };
        let table = MacTable { unicast: list()?, multicast: list()? };
        whole(&r, table)
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        for list in [&self.unicast, &self.multicast] {
            w.le32(list.len() as u32);
            list.iter().for_each(|mac| _ = w.bytes(&mac.0));
        }
        w.finish()
    }
}

/// `virtio_net_rss_config`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RssParams {
    /// Bits of [`hash_type`](crate::steer::hash_type).
    pub hash_types: u32,
    /// Receive queue (virtqueue index / 2) of packets without a hash.
    pub unclassified: u16,
    /// Receive queues by hash, 1 to 65536 of them.
    pub table: Vec<u16>,
    /// How many transmit queues are used.
    pub max_tx_vq: u16,
    /// The key, 255 bytes at most.
    pub key: Vec<u8>,
}

impl RssParams {
    /// Reads it.
    pub fn read(r: &mut Reader<'_>) -> Option<Self> {
        let (hash_types, mask, unclassified) = (r.le32(), r.le16(), r.le16());
        let entries = usize::from(mask) + 1;
        if entries > r.rest().len() / 2 {
            return None;
        }
        let table = (0..entries).map(|_| r.le16()).collect();
        let (max_tx_vq, key_length) = (r.le16(), r.u8());
        let key = r.bytes(key_length.into());
        whole(r, RssParams { hash_types, unclassified, table, max_tx_vq, key })
    }

    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::read(&mut Reader::new(bytes))
    }

    /// Writes it.
    pub fn write(&self, w: &mut Writer) {
        w.le32(self.hash_types).le16((self.table.len().max(1) - 1) as u16).le16(self.unclassified);
        self.table.iter().for_each(|q| _ = w.le16(*q));
        w.le16(self.max_tx_vq).u8(self.key.len() as u8).bytes(&self.key);
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        self.write(&mut w);
        w.finish()
    }
}

/// `virtio_net_hash_config`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HashParams {
    /// Bits of [`hash_type`](crate::steer::hash_type).
    pub hash_types: u32,
    /// The key, 255 bytes at most.
    pub key: Vec<u8>,
}

impl HashParams {
    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let hash_types = r.le32();
        r.skip(8);
        let key_length = r.u8();
        let key = r.bytes(key_length.into());
        whole(&r, HashParams { hash_types, key })
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        Writer::new().le32(self.hash_types).zeros(8).u8(self.key.len() as u8).bytes(&self.key).finish()
    }
}

/// `virtnet_rss_ctx_add_modify`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RssContextParams {
    /// From 1 to the number of contexts that there may be.
    pub id: u16,
    /// Its configuration.
    pub rss: RssParams,
}

impl RssContextParams {
    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let id = r.le16();
        r.skip(6);
        Some(RssContextParams { id, rss: RssParams::read(&mut r)? })
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.le16(self.id).zeros(6);
        self.rss.write(&mut w);
        w.finish()
    }
}

/// `virtio_net_ctrl_coal`: when a notification is sent at the latest. If either is 0, after every packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coalesce {
    /// After this many packets.
    pub max_packets: u32,
    /// After this many microseconds.
    pub max_usecs: u32,
}

impl Coalesce {
    /// Bytes of it.
    pub const SIZE: usize = 8;

    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let coalesce = Coalesce { max_packets: r.le32(), max_usecs: r.le32() };
        whole(&r, coalesce)
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        Writer::new().le32(self.max_packets).le32(self.max_usecs).finish()
    }
}

/// `virtio_net_ctrl_coal_vq`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueCoalesce {
    /// Index of a virtqueue.
    pub vq_index: u16,
    /// Its moderation.
    pub coalesce: Coalesce,
}

impl QueueCoalesce {
    /// Bytes of it.
    pub const SIZE: usize = 12;

    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let vq_index = Reader::new(bytes).le16();
        Some(QueueCoalesce { vq_index, coalesce: Coalesce::from_bytes(bytes.get(4..)?)? })
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        Writer::new().le16(self.vq_index).zeros(2).bytes(&self.coalesce.to_bytes()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_and_its_answer() {
        assert_eq!(command(Class::Flownic, 2, &[1]), [0xf0, 2, 1]);
        assert_eq!(result(&[0, 5, 6]), Some(&[5, 6][..]));
        assert_eq!((result(&[1, 5]), result(&[])), (None, None));
        assert_eq!((Class::from_code(9), Class::from_code(5)), (Some(Class::RssContext), None));
    }

    #[test]
    fn an_rss_configuration_is_laid_out_as_specified_and_never_cut() {
        let rss = RssParams {
            hash_types: 0x3f,
            unclassified: 1,
            table: vec![0, 1],
            max_tx_vq: 2,
            key: vec![7, 8, 9],
        };
        let bytes = rss.to_bytes();
        assert_eq!(bytes, [0x3f, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 2, 0, 3, 7, 8, 9]);
        for cut in 0..bytes.len() {
            assert_eq!(RssParams::from_bytes(&bytes[..cut]), None, "{cut}");
        }
        let mut longer = bytes.clone();
        longer.push(1);
        assert_eq!(RssParams::from_bytes(&longer), Some(rss.clone()));
        let context = RssContextParams { id: 3, rss };
        let with_id = context.to_bytes();
        assert_eq!((&with_id[..8], &with_id[8..]), (&[3, 0, 0, 0, 0, 0, 0, 0][..], &bytes[..]));
        assert_eq!(RssContextParams::from_bytes(&with_id), Some(context));
        assert_eq!(RssContextParams::from_bytes(&with_id[..8]), None);
    }

    #[test]
    fn the_hash_configuration_has_8_reserved_bytes_where_rss_has_its_table() {
        let hash = HashParams { hash_types: 2, key: vec![1, 2] };
        assert_eq!(hash.to_bytes(), [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2]);
        assert_eq!(HashParams::from_bytes(&hash.to_bytes()), Some(hash.clone()));
        assert_eq!(HashParams::from_bytes(&hash.to_bytes()[..14]), None);
    }

    #[test]
    fn address_tables_are_two_counted_lists() {
        let table = MacTable {
            unicast: vec![MacAddr([2, 0, 0, 0, 0, 1])],
            multicast: vec![MacAddr([1; 6]), MacAddr([3; 6])],
        };
        let bytes = table.to_bytes();
        assert_eq!(bytes.len(), 4 + 6 + 4 + 12);
        assert_eq!(MacTable::from_bytes(&bytes), Some(table));
        for cut in 0..bytes.len() {
            assert_eq!(MacTable::from_bytes(&bytes[..cut]), None, "{cut}");
        }
        assert_eq!(MacTable::from_bytes(&[0xff; 64]), None, "a count that is a lie allocates nothing");
        assert_eq!(MacTable::from_bytes(&[0; 8]), Some(MacTable::default()));
    }

    #[test]
    fn moderation_has_packets_before_microseconds() {
        let coalesce = Coalesce { max_packets: 1, max_usecs: 2 };
        assert_eq!(coalesce.to_bytes(), [1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(coalesce.to_bytes().len(), Coalesce::SIZE);
        assert_eq!(Coalesce::from_bytes(&[0; 7]), None);
        let queue = QueueCoalesce { vq_index: 3, coalesce };
        assert_eq!(queue.to_bytes(), [3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(queue.to_bytes().len(), QueueCoalesce::SIZE);
        assert_eq!(QueueCoalesce::from_bytes(&queue.to_bytes()), Some(queue));
        assert_eq!((QueueCoalesce::from_bytes(&[0; 11]), QueueCoalesce::from_bytes(&[])), (None, None));
    }
}
