//! What the device can be told and asked, command by command.

use super::GuestError;
use super::channel::{Channel, Frames, Repeat};
use crate::virtio::admin::{self, BitList, ObjectId, Opcode, Qualifier};
use crate::virtio::ctrl::{self, Class, Coalesce, QueueCoalesce, RssParams};
use crate::virtio::flow::{
    Actions, CAP_ACTIONS, CAP_RESOURCES, CAP_SELECTORS, Classifier, Group, Limits, ObjectType, RuleObject,
};
use crate::virtio::statistics::{self, StatsReply, StatsRequest};
use crate::virtio::vendor::{self, Identity, RssState};
use crate::virtio::wire::{Reader, Writer};

/// Queue pairs that virtqueue indices can name.
const QUEUES_MAX: u16 = 0x4000;

/// The device at the other end of a channel.
pub struct Device<F> {
    channel: Channel<F>,
    identity: Identity,
}

impl<F: Frames> Device<F> {
    /// Asks the device what it is.
    ///
    /// # Errors
    /// When it does not answer, or answers what nobody here understands.
    pub fn find(mut channel: Channel<F>) -> Result<Self, GuestError> {
        let command = ctrl::command(Class::Flownic, vendor::IDENTIFY, &[]);
        let answer = channel.control("Identification", &command, Repeat::Yes)?;
        let identity = Identity::from_bytes(&answer).ok_or(GuestError::Nonsense("Identification".into()))?;
        if identity.abi != Identity::ABI {
            return Err(GuestError::Impossible(format!(
                "The device has ABI {}, this program knows {}",
                identity.abi,
                Identity::ABI
            )));
        }
        if !(1..=QUEUES_MAX).contains(&identity.queue_pairs) {
            return Err(GuestError::Nonsense("Identification".into()));
        }
        Ok(Device { channel, identity })
    }

    /// What it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    fn control(
        &mut self,
        what: &str,
        class: Class,
        command: u8,
        data: &[u8],
        repeat: Repeat,
    ) -> Result<Vec<u8>, GuestError> {
        self.channel.control(what, &ctrl::command(class, command, data), repeat)
    }

    fn ask(&mut self, what: &str, class: Class, command: u8, data: &[u8]) -> Result<Vec<u8>, GuestError> {
        self.control(what, class, command, data, Repeat::Yes)
    }

    fn tell(&mut self, what: &str, class: Class, command: u8, data: &[u8]) -> Result<(), GuestError> {
        self.control(what, class, command, data, Repeat::No).map(drop)
    }

    /// Has the device take all administration commands that it has, unless it does already.
    pub(super) fn use_commands(&mut self) -> Result<(), GuestError> {
        let probe = self.channel.admin("Capabilities", &admin::cap_id_list_query(), Repeat::Yes);
        match probe {
            Err(GuestError::Refused { qualifier, .. }) if qualifier == Qualifier::Opcode.code() => {}
            other => return other.map(drop),
        }
        let all = self.channel.admin("List of commands", &admin::list_query(), Repeat::Yes)?;
        let all = BitList::from_bytes(&all);
        if !all.contains(Opcode::ObjectCreate.code()) {
            return Err(GuestError::Impossible("The device has no flow filter".into()));
        }
        // All of them, so as to take none away from anybody who uses some already.
        self.channel.admin("Use of commands", &admin::list_use(&all), Repeat::Yes).map(drop)
    }

    fn capability(&mut self, what: &str, id: u16) -> Result<Vec<u8>, GuestError> {
        self.channel.admin(what, &admin::device_cap_get(id), Repeat::Yes)
    }

    /// How much the flow filter holds.
    pub(super) fn limits(&mut self) -> Result<Limits, GuestError> {
        self.capability("Limits of the flow filter", CAP_RESOURCES).map(|c| Limits::from_bytes(&c))
    }

    /// What the flow filter can compare.
    pub(super) fn selectors(&mut self) -> Result<Classifier, GuestError> {
        self.capability("Selectors of the flow filter", CAP_SELECTORS).map(|c| Classifier::from_bytes(&c))
    }

    /// Says that all of the flow filter may be used. Where objects exist, somebody has said what may be.
    pub(super) fn use_filter(&mut self) -> Result<(), GuestError> {
        let actions = self.capability("Actions of the flow filter", CAP_ACTIONS)?;
        let (limits, selectors) = (self.limits()?, self.selectors()?);
        for (id, capability) in [
            (CAP_RESOURCES, limits.to_bytes()),
            (CAP_SELECTORS, selectors.to_bytes()),
            (CAP_ACTIONS, Actions::from_bytes(&actions).to_bytes()),
        ] {
            let set = admin::driver_cap_set(id, &capability);
            match self.channel.admin("Capability of the driver", &set, Repeat::Yes) {
                Err(GuestError::Refused { status, .. }) if status == admin::Status::Busy.code() => {
                    return Ok(());
                }
                other => other.map(drop)?,
            }
        }
        Ok(())
    }

    fn query(&mut self, object: ObjectId) -> Result<Option<Vec<u8>>, GuestError> {
        let what = format!("Object {:#x}/{}", object.kind, object.id);
        match self.channel.admin(what, &admin::object_query(object), Repeat::Yes) {
            Err(GuestError::Refused { status, .. }) if status == admin::Status::NoSuch.code() => Ok(None),
            other => other.map(Some),
        }
    }

    /// A group, if it exists.
    pub(super) fn group(&mut self, id: u32) -> Result<Option<Group>, GuestError> {
        Ok(self.query(ObjectType::Group.id(id))?.map(|b| Group::from_bytes(&b)))
    }

    /// A classifier, if it exists.
    pub(super) fn classifier(&mut self, id: u32) -> Result<Option<Classifier>, GuestError> {
        Ok(self.query(ObjectType::Classifier.id(id))?.map(|b| Classifier::from_bytes(&b)))
    }

    /// A rule, if it exists.
    pub(super) fn rule(&mut self, id: u32) -> Result<Option<RuleObject>, GuestError> {
        Ok(self.query(ObjectType::Rule.id(id))?.map(|b| RuleObject::from_bytes(&b)))
    }

    /// Makes an object.
    pub(super) fn create(&mut self, what: &str, object: ObjectId, data: &[u8]) -> Result<(), GuestError> {
        self.channel.admin(what, &admin::object_create(object, data), Repeat::No).map(drop)
    }

    /// Changes an object.
    pub(super) fn modify(&mut self, what: &str, object: ObjectId, data: &[u8]) -> Result<(), GuestError> {
        self.channel.admin(what, &admin::object_modify(object, data), Repeat::No).map(drop)
    }

    /// Destroys an object.
    pub(super) fn destroy(&mut self, what: &str, object: ObjectId) -> Result<(), GuestError> {
        self.channel.admin(what, &admin::object_destroy(object), Repeat::No).map(drop)
    }

    /// Ids of all rules, whosever they are, in ascending order.
    pub(super) fn rule_ids(&mut self) -> Result<Vec<u32>, GuestError> {
        let mut ids = Vec::new();
        loop {
            let first = ids.last().map_or(0, |last: &u32| last.saturating_add(1));
            let data = first.to_le_bytes();
            let bytes = self.ask("List of rules", Class::Flownic, vendor::RULE_LIST, &data)?;
            let mut r = Reader::new(&bytes);
            let before = ids.len();
            // What follows must ascend, or this would go on for ever.
            ids.extend((0..bytes.len() / 4).map(|_| r.le32()).take_while(|id| *id >= first));
            if ids.len() == before {
                return Ok(ids);
            }
            if !ids.is_sorted() {
                return Err(GuestError::Nonsense("List of rules".into()));
            }
        }
    }

    /// How many packets a rule has decided about; none if it is gone.
    pub(super) fn hits(&mut self, id: u32) -> Result<Option<u64>, GuestError> {
        match self.ask("Hits of a rule", Class::Flownic, vendor::RULE_HITS, &id.to_le_bytes()) {
            Ok(bytes) => Ok(Some(Reader::new(&bytes).le64())),
            Err(GuestError::Error(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Receive-side scaling as it is.
    pub(super) fn rss(&mut self) -> Result<RssState, GuestError> {
        let bytes = self.ask("RSS", Class::Flownic, vendor::RSS_GET, &[])?;
        // A table of more than some 600 entries does not fit into the frame of an answer.
        RssState::from_bytes(&bytes)
            .ok_or_else(|| GuestError::Impossible("The indirection table is too long for a frame".into()))
    }

    /// Configures receive-side scaling.
    pub(super) fn set_rss(&mut self, params: &RssParams) -> Result<(), GuestError> {
        self.tell("RSS", Class::Mq, ctrl::mq::RSS_CONFIG, &params.to_bytes())
    }

    /// Interrupt moderation of a virtqueue.
    pub(super) fn coalesce(&mut self, vq_index: u16) -> Result<Coalesce, GuestError> {
        let data = Writer::new().le16(vq_index).le16(0).finish();
        let bytes = self.ask("Interrupt moderation", Class::Coalesce, ctrl::coalesce::VQ_GET, &data)?;
        let queue = QueueCoalesce::from_bytes(&bytes);
        queue.map(|q| q.coalesce).ok_or(GuestError::Nonsense("Interrupt moderation".into()))
    }

    /// Sets the interrupt moderation of a virtqueue.
    pub(super) fn set_coalesce(&mut self, vq_index: u16, coalesce: Coalesce) -> Result<(), GuestError> {
        let data = QueueCoalesce { vq_index, coalesce }.to_bytes();
        self.tell("Interrupt moderation", Class::Coalesce, ctrl::coalesce::VQ_SET, &data)
    }

    /// Sets the interrupt moderation of all receive (or transmit) queues.
    pub(super) fn set_all_coalesce(&mut self, receive: bool, coalesce: Coalesce) -> Result<(), GuestError> {
        let command = if receive { ctrl::coalesce::RX_SET } else { ctrl::coalesce::TX_SET };
        self.tell("Interrupt moderation", Class::Coalesce, command, &coalesce.to_bytes())
    }

    /// Which statistics there are: a bit for each type.
    pub(super) fn stats_types(&mut self) -> Result<u64, GuestError> {
        let bytes = self.ask("Statistics", Class::Stats, statistics::QUERY, &[])?;
        Ok(Reader::new(&bytes).le64())
    }

    /// Statistics of a queue.
    pub(super) fn stats(&mut self, request: StatsRequest) -> Result<Vec<StatsReply>, GuestError> {
        let bytes = self.ask("Statistics", Class::Stats, statistics::GET, &request.to_bytes())?;
        Ok(StatsReply::all_from_bytes(&bytes))
    }

    /// Has the device forget all that this guest has set up, whoever in it did.
    ///
    /// # Errors
    /// When it does not answer or refuses.
    pub fn reset(&mut self) -> Result<(), GuestError> {
        self.control("Reset", Class::Flownic, vendor::RESET, &[], Repeat::Yes).map(drop)
    }
}
