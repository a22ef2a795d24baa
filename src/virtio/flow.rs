//! The flow filter's capabilities and resource objects (5.1.6.6), from bytes and to bytes.

use super::admin::ObjectId;
use super::wire::{Reader, Writer, codes};

/// `VIRTIO_NET_FF_RESOURCE_CAP`: [`Limits`].
pub const CAP_RESOURCES: u16 = 0x800;
/// `VIRTIO_NET_FF_SELECTOR_CAP`: a list of [`Selector`]s.
pub const CAP_SELECTORS: u16 = 0x801;
/// `VIRTIO_NET_FF_ACTION_CAP`: a list of actions.
pub const CAP_ACTIONS: u16 = 0x802;

codes! {
    /// Kinds of objects.
    ObjectType: u16 {
        /// A group of rules: [`Group`].
        Group = 0x200,
        /// What is compared: [`Classifier`].
        Classifier = 0x201,
        /// Values, and what becomes of a packet: [`RuleObject`].
        Rule = 0x202,
    }
}

impl ObjectType {
    /// The object of this kind with this id.
    pub fn id(self, id: u32) -> ObjectId {
        ObjectId { kind: self.code(), id }
    }
}

codes! {
    /// What becomes of a packet.
    FlowAction: u8 {
        /// It is dropped.
        Drop = 1,
        /// It goes to a receive virtqueue.
        Direct = 2,
        /// It goes through an RSS context. Not of the specification.
        RssContext = 0x80,
    }
}

codes! {
    /// Which header a selector is about.
    SelectorType: u8 {
        /// Ethernet: destination, source, EtherType.
        Ethernet = 1,
        /// IPv4 without options.
        Ipv4 = 2,
        /// IPv6 without extension headers.
        Ipv6 = 3,
        /// TCP without options.
        Tcp = 4,
        /// UDP.
        Udp = 5,
    }
}

impl SelectorType {
    /// Bytes of the header, and so of a mask or key.
    pub const fn size(self) -> usize {
        match self {
            SelectorType::Ethernet => 14,
            SelectorType::Ipv4 | SelectorType::Tcp => 20,
            SelectorType::Ipv6 => 40,
            SelectorType::Udp => 8,
        }
    }
}

/// `virtio_net_ff_cap_data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Groups; their ids are below it.
    pub groups: u32,
    /// Classifiers; their ids are below it.
    pub classifiers: u32,
    /// Rules; their ids are below it.
    pub rules: u32,
    /// Rules in one group.
    pub rules_per_group: u32,
    /// The highest rule priority.
    pub last_rule_priority: u8,
    /// Selectors of one classifier.
    pub selectors_per_classifier: u8,
}

impl Limits {
    /// Bytes of it.
    pub const SIZE: usize = 20;

    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut r = Reader::new(bytes);
        Limits {
            groups: r.le32(),
            classifiers: r.le32(),
            rules: r.le32(),
            rules_per_group: r.le32(),
            last_rule_priority: r.u8(),
            selectors_per_classifier: r.u8(),
        }
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.le32(self.groups).le32(self.classifiers).le32(self.rules).le32(self.rules_per_group);
        w.u8(self.last_rule_priority).u8(self.selectors_per_classifier).zeros(2).finish()
    }
}

/// `virtio_net_ff_selector`: a header, and which of its bits are compared (in a capability: can be).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// A [`SelectorType`], or something else.
    pub kind: u8,
    /// [`Selector::PARTIAL_MASK`].
    pub flags: u8,
    /// 1 = compared, in network byte order.
    pub mask: Vec<u8>,
}

impl Selector {
    /// Fields may be compared in part.
    pub const PARTIAL_MASK: u8 = 1;
    /// Bytes before the mask.
    pub const HEADER: usize = 8;

    /// One that compares nothing yet.
    pub fn new(kind: SelectorType) -> Self {
        Selector { kind: kind.code(), flags: 0, mask: vec![0; kind.size()] }
    }

    /// Reads it.
    pub fn read(r: &mut Reader<'_>) -> Self {
        let (kind, flags) = (r.u8(), r.u8());
        r.skip(2);
        let length = r.u8();
        r.skip(3);
        Selector { kind, flags, mask: r.bytes(length.into()) }
    }

    /// Writes it. A mask has 255 bytes at most.
    pub fn write(&self, w: &mut Writer) {
        w.u8(self.kind).u8(self.flags).zeros(2).u8(self.mask.len() as u8).zeros(3).bytes(&self.mask);
    }
}

/// Selectors with their number before them: a classifier (`virtio_net_resource_obj_ff_classifier`), or the capability
/// (`virtio_net_ff_cap_mask_data`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Classifier {
    /// 255 at most.
    pub selectors: Vec<Selector>,
}

impl Classifier {
    /// Bytes before the selectors.
    pub const HEADER: usize = 8;

    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut r = Reader::new(bytes);
        let count = r.u8();
        r.skip(7);
        Classifier { selectors: (0..count).map(|_| Selector::read(&mut r)).collect() }
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u8(self.selectors.len() as u8).zeros(7);
        self.selectors.iter().for_each(|s| s.write(&mut w));
        w.finish()
    }

    /// Bytes of a key: one header after the other.
    pub fn key_length(&self) -> usize {
        self.selectors.iter().map(|s| s.mask.len()).sum()
    }
}

/// `virtio_net_ff_actions`: numbers of actions, ascending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Actions(pub Vec<u8>);

impl Actions {
    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut r = Reader::new(bytes);
        let count = r.u8();
        r.skip(7);
        Actions(r.bytes(count.into()))
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        Writer::new().u8(self.0.len() as u8).zeros(7).bytes(&self.0).finish()
    }
}

/// `virtio_net_resource_obj_ff_group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Higher goes first; no two groups have the same.
    pub priority: u16,
}

impl Group {
    /// Bytes of it.
    pub const SIZE: usize = 2;

    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Group { priority: Reader::new(bytes).le16() }
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.priority.to_le_bytes().into()
    }
}

/// `virtio_net_resource_obj_ff_rule`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleObject {
    /// The group that it is in.
    pub group_id: u32,
    /// What it compares.
    pub classifier_id: u32,
    /// Higher goes first, within the group.
    pub priority: u8,
    /// A [`FlowAction`], or something else.
    pub action: u8,
    /// Index of a receive virtqueue (0, 2, 4, ...), or, with [`FlowAction::RssContext`], a context.
    pub vq_index: u16,
    /// With [`FlowAction::RssContext`], added to the context's queue; else reserved.
    pub queue_offset: u16,
    /// The values, one header after the other, 255 bytes at most.
    pub keys: Vec<u8>,
}

impl RuleObject {
    /// Bytes before the keys.
    pub const HEADER: usize = 16;

    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut r = Reader::new(bytes);
        let (group_id, classifier_id, priority, key_length) = (r.le32(), r.le32(), r.u8(), r.u8());
        let action = r.u8();
        r.skip(1);
        let (vq_index, queue_offset) = (r.le16(), r.le16());
        let keys = r.bytes(key_length.into());
        RuleObject { group_id, classifier_id, priority, action, vq_index, queue_offset, keys }
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.le32(self.group_id).le32(self.classifier_id).u8(self.priority).u8(self.keys.len() as u8);
        w.u8(self.action).zeros(1).le16(self.vq_index).le16(self.queue_offset).bytes(&self.keys).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_their_sizes_and_places() {
        let limits = Limits {
            groups: 1,
            classifiers: 2,
            rules: 3,
            rules_per_group: 4,
            last_rule_priority: 5,
            selectors_per_classifier: 6,
        };
        let bytes = limits.to_bytes();
        assert_eq!(bytes, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 6, 0, 0]);
        assert_eq!((bytes.len(), Limits::from_bytes(&bytes)), (Limits::SIZE, limits));
        // Drivers that know the structure without its padding.
        assert_eq!(Limits::from_bytes(&bytes[..18]), limits);

        assert_eq!(Group { priority: 0x0102 }.to_bytes(), [2, 1]);
        assert_eq!(Group::from_bytes(&[2, 1]), Group { priority: 0x0102 });

        let rule = RuleObject {
            group_id: 1,
            classifier_id: 2,
            priority: 3,
            action: 2,
            vq_index: 6,
            queue_offset: 9,
            keys: vec![0xaa, 0xbb],
        };
        let bytes = rule.to_bytes();
        assert_eq!(bytes, [1, 0, 0, 0, 2, 0, 0, 0, 3, 2, 2, 0, 6, 0, 9, 0, 0xaa, 0xbb]);
        assert_eq!((bytes.len() - 2, RuleObject::from_bytes(&bytes)), (RuleObject::HEADER, rule));
        assert_eq!(Actions(vec![1, 2, 0x80]).to_bytes(), [3, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0x80]);
        assert_eq!(Actions::from_bytes(&[2, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]), Actions(vec![1, 2]));
    }

    #[test]
    fn a_classifier_is_its_selectors_one_after_the_other() {
        let mut ethernet = Selector::new(SelectorType::Ethernet);
        ethernet.mask[12..].fill(0xff);
        let classifier = Classifier { selectors: vec![ethernet, Selector::new(SelectorType::Udp)] };
        let bytes = classifier.to_bytes();
        assert_eq!(bytes.len(), Classifier::HEADER + 2 * Selector::HEADER + 14 + 8);
        assert_eq!(bytes[..13], [2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 14]);
        assert_eq!(bytes[30], 5);
        assert_eq!((Classifier::from_bytes(&bytes), classifier.key_length()), (classifier, 22));
        // What is missing is zero, and so is a type that does not exist.
        let cut = Classifier::from_bytes(&bytes[..20]);
        assert_eq!((cut.selectors[0].mask.len(), cut.selectors[1].kind), (14, 0));
    }

    #[test]
    fn a_key_that_is_cut_ends_in_zeros() {
        let cut = RuleObject::from_bytes(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, 0, 0, 7]);
        assert_eq!(cut.keys, [7, 0, 0]);
        assert_eq!(ObjectType::Rule.id(4), ObjectId { kind: 0x202, id: 4 });
        let sizes = SelectorType::ALL.iter().map(|t| t.size()).collect::<Vec<_>>();
        assert_eq!(sizes, [14, 20, 40, 20, 8]);
    }
}
