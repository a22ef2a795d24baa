//! Admin commands: which may be used, and capabilities. Those about objects are in `objects.rs`.
//!
//! States of a driver, each left by the command in parentheses: *new* (LIST_USE), *listed* (DRIVER_CAP_SET of all three
//! capabilities), *capable*, which objects keep it in. In a state that does not allow a command, the command is not known.

use super::objects::{self, Objects};
use super::selectors;
use crate::nic::Nic;
use crate::steer::{CLASSIFIERS_LIMIT, GROUPS_LIMIT};
use crate::virtio::admin::{Answer, BitList, CommandHeader, GROUP_SELF, Opcode, Qualifier, Status};
use crate::virtio::flow::{
    Actions, CAP_ACTIONS, CAP_RESOURCES, CAP_SELECTORS, Classifier, FlowAction, Limits,
};
use crate::virtio::wire::Reader;

/// What admin commands have set up.
#[derive(Default)]
pub(super) struct AdminState {
    /// The commands that the driver uses, a bit for each; before it said so, there are two.
    used: Option<u64>,
    /// What it uses of the resources.
    pub(super) limits: Option<Limits>,
    /// What it uses of the selectors.
    pub(super) selectors: Option<Classifier>,
    /// Which actions it uses.
    pub(super) actions: Option<Actions>,
    /// What it has made.
    pub(super) objects: Objects,
}

/// Why a command is not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) Status, pub(super) Qualifier);

impl Refusal {
    /// The command is not known, or not yet.
    pub(super) const OPCODE: Refusal = Refusal(Status::Invalid, Qualifier::Opcode);
    /// A field has a value that is not possible.
    pub(super) const FIELD: Refusal = Refusal(Status::Invalid, Qualifier::Field);
    /// There is no such thing.
    pub(super) const NO_SUCH: Refusal = Refusal(Status::NoSuch, Qualifier::Field);
    /// It is there already.
    pub(super) const EXISTS: Refusal = Refusal(Status::Exists, Qualifier::Field);
    /// Something depends on it.
    pub(super) const BUSY: Refusal = Refusal(Status::Busy, Qualifier::Command);
    /// Too many rules are on their way.
    pub(super) const TRY_AGAIN: Refusal = Refusal(Status::Again, Qualifier::TryAgain);
    /// There is no room.
    pub(super) const NO_SPACE: Refusal = Refusal(Status::NoSpace, Qualifier::NoResource);
}

/// The result of a command.
pub(super) type Outcome = Result<Vec<u8>, Refusal>;

/// LIST_QUERY and LIST_USE.
const ALWAYS: u64 = 1 << Opcode::ListQuery.code() | 1 << Opcode::ListUse.code();

fn supported() -> BitList {
    BitList::of(Opcode::ALL.iter().map(|o| o.code()))
}

pub(super) fn execute(nic: &Nic, state: &mut AdminState, command: &[u8]) -> Answer {
    let mut r = Reader::new(command);
    let header = CommandHeader::read(&mut r);
    match carry_out(nic, state, header, r.rest()) {
        Ok(result) => Answer::ok(result),
        Err(Refusal(status, qualifier)) => Answer::error(status, qualifier),
    }
}

fn carry_out(nic: &Nic, state: &mut AdminState, header: CommandHeader, data: &[u8]) -> Outcome {
    // In this order (2.13). The member id is unused where the device itself is meant, and what is unused is ignored.
    if header.group_type != GROUP_SELF {
        return Err(Refusal(Status::Invalid, Qualifier::Group));
    }
    let opcode = Opcode::from_code(header.opcode).ok_or(Refusal::OPCODE)?;
    if state.used.unwrap_or(ALWAYS) >> opcode.code() & 1 == 0 {
        return Err(Refusal::OPCODE);
    }
    match opcode {
        Opcode::ListQuery => Ok(supported().to_bytes()),
        Opcode::ListUse => list_use(state, data),
        Opcode::CapIdListQuery => Ok(BitList::of([CAP_RESOURCES, CAP_SELECTORS, CAP_ACTIONS]).to_bytes()),
        Opcode::DeviceCapGet => device_capability(nic, Reader::new(data).le16()),
        Opcode::DriverCapSet => set_capability(nic, state, data),
        Opcode::ObjectCreate => objects::create(nic, state, data),
        Opcode::ObjectModify => objects::modify(nic, state, data),
        Opcode::ObjectQuery => objects::query(state, data),
        Opcode::ObjectDestroy => objects::destroy(nic, state, data),
    }
}

fn list_use(state: &mut AdminState, data: &[u8]) -> Outcome {
    let wanted = BitList::from_bytes(data);
    if !wanted.is_within(&supported()) {
        return Err(Refusal::FIELD);
    }
    state.used = Some(wanted.0.first().copied().unwrap_or(0));
    Ok(Vec::new())
}

fn device_capability(nic: &Nic, id: u16) -> Outcome {
    match id {
        CAP_RESOURCES => Ok(device_limits(nic).to_bytes()),
        CAP_SELECTORS => Ok(device_selectors(nic).to_bytes()),
        CAP_ACTIONS => Ok(device_actions().to_bytes()),
        _ => Err(Refusal::NO_SUCH),
    }
}

/// What there is of groups, classifiers and rules. Rules of the host take room, too: the table may be full before.
fn device_limits(nic: &Nic) -> Limits {
    let rules = nic.steering.read().filters().capacity();
    Limits {
        groups: GROUPS_LIMIT,
        classifiers: CLASSIFIERS_LIMIT,
        rules,
        rules_per_group: rules,
        last_rule_priority: u8::MAX,
        selectors_per_classifier: selectors::MOST,
    }
}

fn device_selectors(nic: &Nic) -> Classifier {
    selectors::device(nic.steering.read().filters().knobs().key)
}

fn device_actions() -> Actions {
    Actions(FlowAction::ALL.iter().map(|a| a.code()).collect())
}

fn set_capability(nic: &Nic, state: &mut AdminState, data: &[u8]) -> Outcome {
    let mut r = Reader::new(data);
    let id = r.le16();
    r.skip(6);
    if ![CAP_RESOURCES, CAP_SELECTORS, CAP_ACTIONS].contains(&id) {
        return Err(Refusal::NO_SUCH);
    }
    // All three are about the same objects.
    if state.objects.len() != 0 {
        return Err(Refusal::BUSY);
    }
    let wanted = r.rest();
    match id {
        CAP_RESOURCES => {
            let (wanted, device) = (Limits::from_bytes(wanted), device_limits(nic));
            let fits = wanted.groups <= device.groups
                && wanted.classifiers <= device.classifiers
                && wanted.rules <= device.rules
                && wanted.rules_per_group <= device.rules_per_group
                && wanted.last_rule_priority <= device.last_rule_priority
                && wanted.selectors_per_classifier <= device.selectors_per_classifier;
            let enables = wanted.groups != 0 || wanted.classifiers != 0 || wanted.rules != 0;
            state.limits = taken(fits, wanted, enables)?;
        }
        CAP_SELECTORS => {
            let wanted = Classifier::from_bytes(wanted);
            let fits = selectors::is_within(&wanted, &device_selectors(nic));
            let enables = !wanted.selectors.is_empty();
            state.selectors = taken(fits, wanted, enables)?;
        }
        _ => {
            let (wanted, device) = (Actions::from_bytes(wanted), device_actions());
            let fits = wanted.0.iter().all(|a| device.0.contains(a)) && wanted.0.is_sorted_by(|a, b| a < b);
            let enables = !wanted.0.is_empty();
            state.actions = taken(fits, wanted, enables)?;
        }
    }
    Ok(Vec::new())
}

/// A capability as the driver is going to use it, none if it wants nothing of it, or a refusal if the device has less.
fn taken<T>(fits: bool, wanted: T, enables: bool) -> Result<Option<T>, Refusal> {
    if fits { Ok(enables.then_some(wanted)) } else { Err(Refusal::FIELD) }
}
