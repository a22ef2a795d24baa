//! Administration commands (2.13): their layouts, from bytes and to bytes, for the device and for whoever commands it.
//!
//! What the objects of the flow filter look like is in [`super::flow`].

use super::wire::{Reader, Writer, codes};

codes! {
    /// What an administration command is for (2.13, `opcode`).
    ///
    /// The table of the specification has MODIFY and QUERY the other way round; its text, which drivers follow, has these.
    Opcode: u16 {
        /// Asks which commands there are.
        ListQuery = 0x0,
        /// Says which commands will be used.
        ListUse = 0x1,
        /// Asks which capabilities there are.
        CapIdListQuery = 0x7,
        /// Asks for a capability of the device.
        DeviceCapGet = 0x8,
        /// Says what of a capability the driver uses.
        DriverCapSet = 0x9,
        /// Makes a resource object.
        ObjectCreate = 0xa,
        /// Changes a resource object.
        ObjectModify = 0xb,
        /// Asks what a resource object was made of.
        ObjectQuery = 0xc,
        /// Destroys a resource object.
        ObjectDestroy = 0xd,
    }
}

codes! {
    /// How a command ended (2.13, `status`): Linux error numbers.
    Status: u16 {
        /// It was carried out.
        Ok = 0,
        /// ENXIO: no such capability or object.
        NoSuch = 6,
        /// EAGAIN: try again.
        Again = 11,
        /// ENOMEM: not enough resources.
        NoMemory = 12,
        /// EBUSY: other objects depend on it.
        Busy = 16,
        /// EEXIST: the object exists already.
        Exists = 17,
        /// EINVAL: the command makes no sense.
        Invalid = 22,
        /// ENOSPC: no room for another object.
        NoSpace = 28,
    }
}

codes! {
    /// What was wrong with a command (2.13, `status_qualifier`).
    Qualifier: u16 {
        /// Nothing.
        Ok = 0,
        /// No additional information.
        Command = 1,
        /// `opcode`.
        Opcode = 2,
        /// A field of the command's data.
        Field = 3,
        /// `group_type`.
        Group = 4,
        /// `group_member_id`.
        Member = 5,
        /// Nothing but that there is no room.
        NoResource = 6,
        /// It would take too long now.
        TryAgain = 7,
    }
}

/// The only group type here: the device itself.
pub const GROUP_SELF: u16 = 0;

/// The fixed part of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommandHeader {
    /// An [`Opcode`], or something else.
    pub opcode: u16,
    /// [`GROUP_SELF`], or something else.
    pub group_type: u16,
    /// Means nothing for the device itself.
    pub member: u64,
}

impl CommandHeader {
    /// Bytes before the command's data.
    pub const SIZE: usize = 24;

    /// Reads it.
    pub fn read(r: &mut Reader<'_>) -> Self {
        let (opcode, group_type) = (r.le16(), r.le16());
        r.skip(12);
        CommandHeader { opcode, group_type, member: r.le64() }
    }

    /// Writes it.
    pub fn write(&self, w: &mut Writer) {
        w.le16(self.opcode).le16(self.group_type).zeros(12).le64(self.member);
    }
}

/// The device-writable part of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// A [`Status`].
    pub status: u16,
    /// A [`Qualifier`].
    pub qualifier: u16,
    /// What was asked for.
    pub result: Vec<u8>,
}

impl Answer {
    /// Bytes before the result.
    pub const HEADER: usize = 8;

    /// It was carried out.
    pub fn ok(result: Vec<u8>) -> Self {
        Answer { status: Status::Ok.code(), qualifier: Qualifier::Ok.code(), result }
    }

    /// It was not.
    pub fn error(status: Status, qualifier: Qualifier) -> Self {
        Answer { status: status.code(), qualifier: qualifier.code(), result: Vec::new() }
    }

    /// Reads it.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut r = Reader::new(bytes);
        let (status, qualifier) = (r.le16(), r.le16());
        r.skip(4);
        Answer { status, qualifier, result: r.rest().to_vec() }
    }

    /// The bytes, zeros at the end up to a multiple of 8 (2.14.1: the writable part is a multiple of 64 bits).
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.le16(self.status).le16(self.qualifier).zeros(4).bytes(&self.result);
        w.zeros(self.result.len().next_multiple_of(8) - self.result.len());
        w.finish()
    }

    /// The result, or what there is instead.
    ///
    /// # Errors
    /// Status and qualifier of a command that was not carried out.
    pub fn into_result(self) -> Result<Vec<u8>, (u16, u16)> {
        if self.status == Status::Ok.code() { Ok(self.result) } else { Err((self.status, self.qualifier)) }
    }
}

/// Which object a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// Its type: [`super::flow::ObjectType`], or something else.
    pub kind: u16,
    /// Its id, unique among those of its type.
    pub id: u32,
}

impl ObjectId {
    /// Bytes of it.
    pub const SIZE: usize = 8;

    /// Reads it.
    pub fn read(r: &mut Reader<'_>) -> Self {
        let kind = r.le16();
        r.skip(2);
        ObjectId { kind, id: r.le32() }
    }

    /// Writes it.
    pub fn write(&self, w: &mut Writer) {
        w.le16(self.kind).zeros(2).le32(self.id);
    }
}

/// A set of small numbers as the specification writes opcodes and capability ids: number `n` is bit `n % 64` of word
/// `n / 64`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BitList(pub Vec<u64>);

impl BitList {
    /// The set of these.
    pub fn of(numbers: impl IntoIterator<Item = u16>) -> Self {
        let mut words = Vec::new();
        for n in numbers.into_iter().map(usize::from) {
            if words.len() <= n / 64 {
                words.resize(n / 64 + 1, 0);
            }
            words[n / 64] |= 1 << (n % 64);
        }
        BitList(words)
    }

    /// Whether it has `n`.
    pub fn contains(&self, n: u16) -> bool {
        self.0.get(usize::from(n / 64)).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// Whether everything in it is in `other`, too.
    pub fn is_within(&self, other: &BitList) -> bool {
        self.0.iter().enumerate().all(|(i, word)| word & !other.0.get(i).unwrap_or(&0) == 0)
    }

    /// Reads it, up to the end of the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut r = Reader::new(bytes);
        BitList((0..bytes.len().div_ceil(8)).map(|_| r.le64()).collect())
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// A command's bytes.
pub fn command(opcode: Opcode, data: &[u8]) -> Vec<u8> {
    let mut w = Writer::new();
    CommandHeader { opcode: opcode.code(), ..CommandHeader::default() }.write(&mut w);
    w.bytes(data).finish()
}

/// `LIST_QUERY`; its result is a [`BitList`] of opcodes.
pub fn list_query() -> Vec<u8> {
    command(Opcode::ListQuery, &[])
}

/// `LIST_USE`.
pub fn list_use(opcodes: &BitList) -> Vec<u8> {
    command(Opcode::ListUse, &opcodes.to_bytes())
}

/// `CAP_ID_LIST_QUERY`; its result is a [`BitList`] of capability ids.
pub fn cap_id_list_query() -> Vec<u8> {
    command(Opcode::CapIdListQuery, &[])
}

/// `DEVICE_CAP_GET`; its result is the capability.
pub fn device_cap_get(id: u16) -> Vec<u8> {
    command(Opcode::DeviceCapGet, Writer::new().le16(id).zeros(6).0.as_slice())
}

/// `DRIVER_CAP_SET`.
pub fn driver_cap_set(id: u16, capability: &[u8]) -> Vec<u8> {
    command(Opcode::DriverCapSet, &Writer::new().le16(id).zeros(6).bytes(capability).finish())
}

/// `RESOURCE_OBJ_CREATE`.
pub fn object_create(object: ObjectId, data: &[u8]) -> Vec<u8> {
    object_command(Opcode::ObjectCreate, object, Some(data))
}

/// `RESOURCE_OBJ_MODIFY`.
pub fn object_modify(object: ObjectId, data: &[u8]) -> Vec<u8> {
    object_command(Opcode::ObjectModify, object, Some(data))
}

/// `RESOURCE_OBJ_QUERY`; its result is what the object was made of.
pub fn object_query(object: ObjectId) -> Vec<u8> {
    object_command(Opcode::ObjectQuery, object, Some(&[]))
}

/// `RESOURCE_OBJ_DESTROY`.
pub fn object_destroy(object: ObjectId) -> Vec<u8> {
    object_command(Opcode::ObjectDestroy, object, None)
}

/// With data come the flags, of which there are none.
fn object_command(opcode: Opcode, object: ObjectId, data: Option<&[u8]>) -> Vec<u8> {
    let mut w = Writer::new();
    object.write(&mut w);
    if let Some(data) = data {
        w.le64(0).bytes(data);
    }
    command(opcode, &w.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_their_sizes_and_places() {
        let mut w = Writer::new();
        let header = CommandHeader { opcode: 0x0102, group_type: 0x0304, member: 5 };
        header.write(&mut w);
        assert_eq!(w.0.len(), CommandHeader::SIZE);
        assert_eq!((&w.0[..4], w.0[16]), (&[2, 1, 4, 3][..], 5));
        assert_eq!(CommandHeader::read(&mut Reader::new(&w.0)), header);

        let mut w = Writer::new();
        let object = ObjectId { kind: 0x202, id: 7 };
        object.write(&mut w);
        assert_eq!(w.0, [2, 2, 0, 0, 7, 0, 0, 0]);
        assert_eq!((w.0.len(), ObjectId::read(&mut Reader::new(&w.0))), (ObjectId::SIZE, object));
    }

    #[test]
    fn an_answer_is_a_multiple_of_8_bytes() {
        let answer = Answer::ok(vec![1, 2, 3]);
        let bytes = answer.to_bytes();
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0]);
        assert_eq!(Answer::from_bytes(&bytes).into_result(), Ok(bytes[8..].to_vec()));
        let refused = Answer::error(Status::Invalid, Qualifier::Field);
        assert_eq!(refused.to_bytes(), [22, 0, 3, 0, 0, 0, 0, 0]);
        assert_eq!(Answer::from_bytes(&refused.to_bytes()).into_result(), Err((22, 3)));
        assert_eq!(Answer::HEADER, refused.to_bytes().len());
    }

    #[test]
    fn a_list_is_as_long_as_its_largest_number_needs() {
        let list = BitList::of([0x800, 0x802, 1]);
        // 0x800 / 64 = 32, so there are 33 words, though the specification's formula for the length says 32 for 0x800.
        assert_eq!((list.0.len(), list.0[0], list.0[32]), (33, 2, 5));
        assert!(list.contains(0x802) && !list.contains(0x801) && !list.contains(0xffff));
        assert_eq!(BitList::from_bytes(&list.to_bytes()), list);
        assert!(BitList::of([1]).is_within(&list) && !BitList::of([2]).is_within(&list));
        assert!(BitList(vec![2, 0, 0]).is_within(&BitList::of([1])), "zeros may follow");
        assert!(!list.is_within(&BitList::of([1])));
        assert_eq!(BitList::from_bytes(&[1; 9]).0, [0x0101_0101_0101_0101, 1]);
    }

    #[test]
    fn the_text_decides_which_of_modify_and_query_has_which_opcode() {
        assert_eq!((Opcode::ObjectModify.code(), Opcode::ObjectQuery.code()), (0xb, 0xc));
        assert_eq!(Opcode::from_code(0xd), Some(Opcode::ObjectDestroy));
        assert_eq!((Opcode::from_code(2), Opcode::from_code(0xe)), (None, None));
    }

    #[test]
    fn commands_are_laid_out_as_specified() {
        let object = ObjectId { kind: 0x200, id: 1 };
        let create = object_create(object, &[0xaa, 0xbb]);
        assert_eq!((create[0], create.len()), (0xa, 24 + 16 + 2));
        assert_eq!(create[24..], [0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xaa, 0xbb]);
        assert_eq!((object_query(object).len(), object_destroy(object).len()), (40, 32));
        assert_eq!(device_cap_get(0x800)[24..], [0, 8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(driver_cap_set(0x802, &[9])[24..], [2, 8, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(list_use(&BitList(vec![3]))[24..], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((list_query()[0], cap_id_list_query()[0]), (0, 7));
    }
}
