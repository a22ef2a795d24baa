//! Knobs and faults: how a NIC's filter table takes rules of the guest, and what goes wrong on purpose.

use std::sync::atomic::Ordering;

use super::protocol::{Code, ControlError};
use super::replies::{KnobChange, KnobStatus};
use crate::config::{Profile, parse_in_flight};
use crate::nic::Nic;
use crate::steer::{FilterFaults, Steering, parse_delay};

/// The fault that happens once; the others last until they are taken away.
pub(super) const RESET: &str = "reset";
/// Faults that can be injected.
pub const FAULTS: [&str; 5] = ["table-full", "busy", "lost", "ctrl-hang", RESET];

fn invalid(message: String) -> ControlError {
    ControlError::new(Code::Invalid, message)
}

pub(super) fn show(nic: &Nic, steering: &Steering) -> KnobStatus {
    let filters = steering.filters();
    let (knobs, faults) = (filters.knobs(), filters.faults());
    let hang = nic.commands_hang.load(Ordering::Relaxed);
    let there = [faults.table_full, faults.busy, faults.lost, hang];
    KnobStatus {
        nic: nic.config.name.clone(),
        profile: Profile::by_id(nic.profile.load(Ordering::Relaxed)).map(|p| p.name.into()),
        filters: filters.capacity(),
        delay_ns: u64::try_from(knobs.delay.as_nanos()).unwrap_or(u64::MAX),
        in_flight: knobs.in_flight,
        replace: knobs.replace.name().into(),
        key: knobs.key.name().into(),
        on_the_way: filters.staged(),
        faults: FAULTS.iter().zip(there).filter(|(_, on)| *on).map(|(name, _)| (*name).into()).collect(),
    }
}

/// Changes all that is wanted, or nothing.
pub(super) fn change(nic: &Nic, steering: &mut Steering, wanted: &KnobChange) -> Result<(), ControlError> {
    let profile = wanted.profile.as_deref().map(Profile::by_name).transpose().map_err(invalid)?;
    let mut knobs = profile.map_or(steering.filters().knobs(), |p| p.knobs);
    if let Some(delay) = &wanted.delay {
        knobs.delay = parse_delay(delay).map_err(invalid)?;
    }
    if let Some(in_flight) = &wanted.in_flight {
        knobs.in_flight = parse_in_flight(in_flight).map_err(invalid)?;
    }
    if let Some(replace) = &wanted.replace {
        knobs.replace = replace.parse().map_err(invalid)?;
    }
    if let Some(key) = &wanted.key {
        knobs.key = key.parse().map_err(invalid)?;
    }
    // Nothing fails from here on.
    steering.filters_mut().set_knobs(knobs);
    if let Some(profile) = profile {
        nic.profile.store(profile.id, Ordering::Relaxed);
    }
    Ok(())
}

/// Resets the NIC under its guest. What must be forgotten is, when the connection has ended. The caller must not hold the steering
/// lock.
pub(super) fn reset(nic: &Nic, on: bool) -> Result<(), ControlError> {
    if !on {
        return Err(invalid("A reset can't be taken back".into()));
    }
    if !nic.reset.reset() {
        return Err(invalid(format!("No front end is connected to {}", nic.name())));
    }
    Ok(())
}

/// Injects a fault or takes it away; all that last without a name.
pub(super) fn inject(
    nic: &Nic,
    steering: &mut Steering,
    fault: Option<&str>,
    on: bool,
) -> Result<(), ControlError> {
    let mut faults = steering.filters().faults();
    let mut hang = nic.commands_hang.load(Ordering::Relaxed);
    match fault {
        None => (faults, hang) = (FilterFaults { table_full: on, busy: on, lost: on }, on),
        Some("table-full") => faults.table_full = on,
        Some("busy") => faults.busy = on,
        Some("lost") => faults.lost = on,
        Some("ctrl-hang") => hang = on,
        Some(other) => {
            return Err(invalid(format!("'{other}' is no fault; there are {}", FAULTS.join(", "))));
        }
    }
    steering.filters_mut().set_faults(faults);
    if nic.commands_hang.swap(hang, Ordering::Relaxed) != hang {
        // What waits goes on.
        nic.workers.iter().for_each(|w| w.wake());
    }
    Ok(())
}
