//! Which objects of the flow filter are this program's own.
//!
//! The device does not know who made an object, and a driver or another program may have made some. So there is a convention:
//!
//! * The *group* is the one with priority [`OWN_GROUP_PRIORITY`], of which there can be one only. It is made with the highest id
//!   that is free.
//! * *Classifiers* have ids from the upper half of those that there are, and are shared by rules that compare the same.
//! * *Rules* are those of the group; their id is their location. Ids that others have are left alone.
//!
//! What is not in use any more is destroyed. Whoever else makes objects in the same device stays clear of these by counting
//! ids from 0 up.

use super::channel::{Frames, GuestError};
use super::device::Device;
use crate::virtio::admin::Status;
use crate::virtio::flow::{Classifier, Group, Limits, ObjectType};

/// Priority of this program's group: above those of a driver that counts from 0, below the host's rules.
pub const OWN_GROUP_PRIORITY: u16 = 0xf10e;

/// Where rules go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Id of this program's group.
    pub group: u32,
    /// Locations are below it.
    pub locations: u32,
}

/// Ids of rules are below both limits.
pub(super) fn locations(limits: &Limits) -> u32 {
    limits.rules.min(limits.rules_per_group)
}

fn status(e: &GuestError) -> Option<Status> {
    match e {
        GuestError::Refused { status, .. } => Status::from_code(*status),
        _ => None,
    }
}

/// Whether an object could not be destroyed because somebody uses it, or is gone already.
pub(super) fn is_somebody_elses(e: &GuestError) -> bool {
    matches!(status(e), Some(Status::Busy | Status::NoSuch))
}

pub(super) fn exists(e: &GuestError) -> bool {
    status(e) == Some(Status::Exists)
}

impl<F: Frames> Device<F> {
    /// This program's group, if there is one.
    pub(super) fn own_group(&mut self, limits: &Limits) -> Result<Option<u32>, GuestError> {
        for id in (0..limits.groups).rev() {
            if self.group(id)?.is_some_and(|g| g.priority == OWN_GROUP_PRIORITY) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// This program's group, made if there is none.
    pub(super) fn make_group(&mut self, limits: &Limits) -> Result<u32, GuestError> {
        if let Some(id) = self.own_group(limits)? {
            return Ok(id);
        }
        let data = Group { priority: OWN_GROUP_PRIORITY }.to_bytes();
        for id in (0..limits.groups).rev() {
            match self.create("Group", ObjectType::Group.id(id), &data) {
                // Somebody else's, or of another run of this program at the same time.
                Err(e) if exists(&e) => {
                    if self.group(id)?.is_some_and(|g| g.priority == OWN_GROUP_PRIORITY) {
                        return Ok(id);
                    }
                }
                other => return other.map(|()| id),
            }
        }
        Err(GuestError::Impossible("All groups of the flow filter are taken by others".into()))
    }

    /// Ids of classifiers that may be this program's.
    fn own_classifiers(limits: &Limits) -> impl Iterator<Item = u32> + use<F> {
        (limits.classifiers / 2..limits.classifiers).rev()
    }

    /// A classifier that compares this, made if there is none. True if it was made.
    pub(super) fn make_classifier(
        &mut self,
        limits: &Limits,
        wanted: &Classifier,
    ) -> Result<(u32, bool), GuestError> {
        let mut free = None;
        for id in Self::own_classifiers(limits) {
            match self.classifier(id)? {
                // An answer may have zeros after the object.
                Some(c) if c == *wanted => return Ok((id, false)),
                Some(_) => {}
                None => free = free.or(Some(id)),
            }
        }
        let Some(id) = free else {
            return Err(GuestError::Impossible(
                "The flow filter has no room for another combination of fields".into(),
            ));
        };
        self.create("What the rule compares", ObjectType::Classifier.id(id), &wanted.to_bytes())?;
        Ok((id, true))
    }

    /// Destroys a classifier of this program's, unless other rules need it.
    pub(super) fn drop_classifier(&mut self, limits: &Limits, id: u32) -> Result<(), GuestError> {
        if !Self::own_classifiers(limits).any(|own| own == id) {
            return Ok(());
        }
        match self.destroy("Classifier", ObjectType::Classifier.id(id)) {
            Err(e) if is_somebody_elses(&e) => Ok(()),
            other => other,
        }
    }

    /// Destroys this program's group, unless it has rules.
    pub(super) fn drop_group(&mut self, id: u32) -> Result<(), GuestError> {
        match self.destroy("Group", ObjectType::Group.id(id)) {
            Err(e) if is_somebody_elses(&e) => Ok(()),
            other => other,
        }
    }
}
