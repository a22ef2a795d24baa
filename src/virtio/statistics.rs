//! Device statistics (5.1.6.5.9): class `stats` of the control commands, from bytes and to bytes.

use super::wire::{Reader, Writer, codes};

/// Asks which types there are: le64, a bit for each.
pub const QUERY: u8 = 0;
/// Asks for statistics: [`StatsRequest`]s, and [`StatsReply`]s back.
pub const GET: u8 = 1;

codes! {
    /// Types of statistics; the number is also the bit in sets of them.
    StatsType: u8 {
        /// Of a receive queue: notifications, packets, bytes, interrupts, drops, drops for want of buffers.
        RxBasic = 0,
        /// Of a transmit queue: notifications, packets, bytes, interrupts, drops, drops of malformed ones.
        TxBasic = 16,
        /// Of the control queue: commands, and commands that were carried out.
        Control = 32,
    }
}

impl StatsType {
    /// Its bit in sets of types.
    pub const fn bit(self) -> u64 {
        1 << self.code()
    }

    /// Names of its values, in their order; those of Linux's `ethtool -S`.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            StatsType::RxBasic => {
                &["notifications", "packets", "bytes", "interrupts", "drops", "drop_overruns"]
            }
            StatsType::TxBasic => {
                &["notifications", "packets", "bytes", "interrupts", "drops", "drop_malformed"]
            }
            StatsType::Control => &["command_num", "ok_num"],
        }
    }
}

/// One entry of `virtio_net_ctrl_queue_stats`: what is wanted of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatsRequest {
    /// Index of the virtqueue.
    pub vq_index: u16,
    /// Set of types.
    pub types: u64,
}

impl StatsRequest {
    /// Bytes of it.
    pub const SIZE: usize = 16;

    /// Reads all there are; `None` if the last one is cut.
    pub fn all_from_bytes(bytes: &[u8]) -> Option<Vec<Self>> {
        let entry = |bytes: &[u8]| {
            let mut r = Reader::new(bytes);
            let vq_index = r.le16();
            r.skip(6);
            StatsRequest { vq_index, types: r.le64() }
        };
        bytes.len().is_multiple_of(Self::SIZE).then(|| bytes.chunks(Self::SIZE).map(entry).collect())
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        Writer::new().le16(self.vq_index).zeros(6).le64(self.types).finish()
    }
}

/// One entry of the answer: `virtio_net_stats_reply_hdr`, and values after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsReply {
    /// A [`StatsType`], or something else.
    pub kind: u8,
    /// Index of the virtqueue.
    pub vq_index: u16,
    /// The values.
    pub values: Vec<u64>,
}

impl StatsReply {
    /// Bytes before the values.
    pub const HEADER: usize = 8;

    /// Reads all that are whole.
    pub fn all_from_bytes(mut bytes: &[u8]) -> Vec<Self> {
        let mut all = Vec::new();
        while bytes.len() >= Self::HEADER {
            let mut r = Reader::new(bytes);
            let kind = r.u8();
            r.skip(1);
            let vq_index = r.le16();
            r.skip(2);
            let size = usize::from(r.le16());
            if size < Self::HEADER || size > bytes.len() {
                break;
            }
            let values = (0..(size - Self::HEADER) / 8).map(|_| r.le64()).collect();
            all.push(StatsReply { kind, vq_index, values });
            bytes = &bytes[size..];
        }
        all
    }

    /// Writes it.
    pub fn write(&self, w: &mut Writer) {
        let size = Self::HEADER + 8 * self.values.len();
        w.u8(self.kind).zeros(1).le16(self.vq_index).zeros(2).le16(size as u16);
        self.values.iter().for_each(|v| _ = w.le64(*v));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_are_laid_out_as_specified() {
        let request = StatsRequest { vq_index: 3, types: StatsType::TxBasic.bit() };
        let bytes = request.to_bytes();
        assert_eq!(bytes, [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(bytes.len(), StatsRequest::SIZE);
        assert_eq!(StatsRequest::all_from_bytes(&bytes.repeat(2)), Some(vec![request; 2]));
        assert_eq!(StatsRequest::all_from_bytes(&bytes[1..]), None);

        let replies = [
            StatsReply { kind: 0, vq_index: 2, values: vec![1, 2] },
            StatsReply { kind: 16, vq_index: 3, values: vec![9] },
        ];
        let mut w = Writer::new();
        replies.iter().for_each(|r| r.write(&mut w));
        assert_eq!(w.0[..16], [0, 0, 2, 0, 0, 0, 24, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(StatsReply::all_from_bytes(&w.0), replies);
        assert_eq!(StatsReply::all_from_bytes(&w.0[..w.0.len() - 1]), replies[..1]);
        assert_eq!(StatsReply::all_from_bytes(&[0; 64]), []);
        assert!(StatsType::ALL.iter().all(|t| t.names().len() <= 6));
    }
}
