//! Commands as a driver gives them, through the door.

mod admin_commands;
mod control_commands;
mod knobs;
mod model;
mod objects;

use super::{Kind, execute};
use crate::dataplane::testing::Bed;
use crate::nic::Nic;
use crate::packet::frames::Frame;
use crate::steer::{Reason, Verdict};
use crate::virtio::admin::{self, Answer, BitList, ObjectId, Opcode};
use crate::virtio::ctrl::{self, Class, RssParams};
use crate::virtio::flow::{
    CAP_ACTIONS, CAP_RESOURCES, CAP_SELECTORS, Classifier, FlowAction, Group, ObjectType, RuleObject,
    Selector, SelectorType,
};

/// Status and qualifier of a command that is not, or not yet, known.
const UNKNOWN: (u16, u16) = (22, 2);
/// A field has a value that is not possible.
const FIELD: (u16, u16) = (22, 3);
const NO_SUCH: (u16, u16) = (6, 3);
const EXISTS: (u16, u16) = (17, 3);
const BUSY: (u16, u16) = (16, 1);
const FULL: (u16, u16) = (28, 6);

type Result<T = Vec<u8>> = std::result::Result<T, (u16, u16)>;

/// A NIC with four queue pairs that run, and its driver.
struct Driver {
    bed: Bed,
}

impl Driver {
    /// One that has just started.
    fn new() -> Self {
        Driver { bed: Bed::new(4, 0) }
    }

    /// One that uses all there is.
    fn ready() -> Self {
        let driver = Driver::new();
        driver.agree();
        driver
    }

    fn nic(&self) -> &Nic {
        &self.bed.nic
    }

    /// Uses all commands and capabilities.
    fn agree(&self) {
        let all = BitList::from_bytes(&self.admin(&admin::list_query()).unwrap());
        self.admin(&admin::list_use(&all)).unwrap();
        for id in [CAP_RESOURCES, CAP_SELECTORS, CAP_ACTIONS] {
            let capability = self.admin(&admin::device_cap_get(id)).unwrap();
            self.admin(&admin::driver_cap_set(id, &capability)).unwrap();
        }
    }

    fn answer(&self, kind: Kind, command: &[u8]) -> Vec<u8> {
        let room = if kind == Kind::Admin { 512 } else { 1 << 16 };
        let mut answer = vec![0xee; room];
        let length = execute(self.nic(), kind, command, &mut answer);
        assert!(answer[length..].iter().all(|b| *b == 0xee), "nothing is written beyond the answer");
        answer.truncate(length);
        answer
    }

    fn admin(&self, command: &[u8]) -> Result {
        let answer = self.answer(Kind::Admin, command);
        assert!(answer.len() >= Answer::HEADER && answer.len().is_multiple_of(8), "{answer:?}");
        Answer::from_bytes(&answer).into_result()
    }

    /// The result of a control command, or `None` for ERR.
    fn control(&self, class: Class, command: u8, data: &[u8]) -> Option<Vec<u8>> {
        let answer = self.answer(Kind::Control, &ctrl::command(class, command, data));
        assert!(matches!(answer[0], 0 | 1) && (answer[0] == 0 || answer.len() == 1), "{answer:?}");
        ctrl::result(&answer).map(<[u8]>::to_vec)
    }

    fn create(&self, object: ObjectId, data: &[u8]) -> Result<()> {
        self.admin(&admin::object_create(object, data)).map(|result| assert!(result.is_empty()))
    }

    fn modify(&self, object: ObjectId, data: &[u8]) -> Result<()> {
        self.admin(&admin::object_modify(object, data)).map(|result| assert!(result.is_empty()))
    }

    fn query(&self, object: ObjectId) -> Result {
        self.admin(&admin::object_query(object))
    }

    fn destroy(&self, object: ObjectId) -> Result<()> {
        self.admin(&admin::object_destroy(object)).map(|result| assert!(result.is_empty()))
    }

    /// Group 0 and, as classifier 0, the ports of TCP over IPv4.
    fn with_ports(self) -> Self {
        self.create(group(0), &Group { priority: 1 }.to_bytes()).unwrap();
        self.create(classifier(0), &dst_port().to_bytes()).unwrap();
        self
    }

    /// Where a frame goes, and why.
    fn verdict(&self, frame: &Frame) -> Verdict {
        let steering = self.nic().steering.read();
        steering.classify(&frame.headers(), &self.nic().learned, crate::steer::Tick::ZERO)
    }

    fn queue(&self, frame: &Frame) -> Option<(u16, Reason)> {
        match self.verdict(frame) {
            Verdict::Queue { queue, reason, .. } => Some((queue, reason)),
            Verdict::Drop { .. } => None,
        }
    }
}

fn group(id: u32) -> ObjectId {
    ObjectType::Group.id(id)
}

fn classifier(id: u32) -> ObjectId {
    ObjectType::Classifier.id(id)
}

fn rule(id: u32) -> ObjectId {
    ObjectType::Rule.id(id)
}

/// A classifier for the destination port of TCP over IPv4.
fn dst_port() -> Classifier {
    let mut selectors = [SelectorType::Ethernet, SelectorType::Ipv4, SelectorType::Tcp].map(Selector::new);
    selectors[0].mask[12..].fill(0xff);
    selectors[1].mask[9] = 0xff;
    selectors[2].mask[2..4].fill(0xff);
    Classifier { selectors: selectors.into() }
}

/// A rule for that classifier, which sends a port to a queue.
fn to_queue(port: u16, queue: u16) -> RuleObject {
    let mut keys = vec![0; 54];
    keys[12] = 8;
    keys[14 + 9] = 6;
    keys[34 + 2..34 + 4].copy_from_slice(&port.to_be_bytes());
    RuleObject {
        group_id: 0,
        classifier_id: 0,
        priority: 0,
        action: FlowAction::Direct.code(),
        vq_index: 2 * queue,
        queue_offset: 0,
        keys,
    }
}

/// A TCP segment to this port.
fn tcp_to(port: u16) -> Frame {
    Frame { ports: (1, port), ..crate::packet::frames::tcp4() }
}

/// An RSS configuration with this table.
fn table(table: &[u16]) -> RssParams {
    RssParams {
        hash_types: 0x3f,
        unclassified: 0,
        table: table.to_vec(),
        max_tx_vq: 4,
        key: crate::steer::DEFAULT_KEY.to_vec(),
    }
}

/// Every opcode that is not LIST_QUERY or LIST_USE.
fn restricted() -> impl Iterator<Item = Opcode> {
    Opcode::ALL.iter().copied().skip(2)
}
