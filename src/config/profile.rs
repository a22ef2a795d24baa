//! Profiles: what filter tables of real cards are like, by name.
//!
//! A profile is a set of defaults; what is said beside it goes before it. What a card is like is taken from its Linux driver,
//! which is named with each value (`docs/profiles.md` has the same as a table). Where the driver does not tell, flownic's own
//! default stays. Delays are orders of magnitude, not measurements: in the transmit ring it is microseconds, by firmware
//! about a millisecond, by a service task some milliseconds.

use std::time::Duration;

use crate::steer::{FilterKey, IN_FLIGHT_MAX, Knobs, Replace, parse_delay};

/// What a filter table is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Its word in settings.
    pub name: &'static str,
    /// Its number in `IDENTIFY`; 0 is none.
    pub id: u32,
    /// Rules that fit; none is the default.
    pub filters: Option<u32>,
    /// How rules are taken.
    pub knobs: Knobs,
    /// Whether flows are learned from what the guest sends.
    pub learn: bool,
}

const MICROSECONDS_10: Duration = Duration::from_micros(10);
const FIRMWARE: Duration = Duration::from_millis(1);
const SERVICE_TASK: Duration = Duration::from_millis(10);

impl Profile {
    /// All of them.
    pub const ALL: &'static [Profile] = &[
        Profile {
            name: "sfc",
            id: 1,
            // EFX_MCDI_FILTER_TBL_ROWS: one table of 8192 for all kinds of filters (drivers/net/ethernet/sfc/mcdi_filters.h).
            filters: Some(8192),
            knobs: Knobs {
                // A work item that waits for the firmware (efx_filter_rfs_work, rx_common.c).
                delay: FIRMWARE,
                // EFX_RPS_MAX_IN_FLIGHT: 8 work items, beyond that -EBUSY (net_driver.h, efx_filter_rfs).
                in_flight: Some(8),
                // Inserted with `replace_equal`: the firmware puts the new one in the old one's place.
                replace: Replace::Atomic,
                // Addresses, ports, protocol and EtherType, IPv4 and IPv6, no fragments (efx_filter_rfs).
                key: FilterKey::FiveTuple,
            },
            learn: false,
        },
        Profile {
            name: "mlx5",
            id: 2,
            // Four tables, {IPv4, IPv6} x {TCP, UDP}, MLX5E_ARFS_GROUP1_SIZE = 65535 each (drivers/net/ethernet/mellanox/mlx5/core/en_arfs.c).
            filters: Some(4 * 65535),
            knobs: Knobs {
                // A single-threaded work queue and a firmware command (arfs_handle_work).
                delay: FIRMWARE,
                in_flight: None,
                // The destination of the rule is modified in place (arfs_modify_rule_rq).
                replace: Replace::Atomic,
                // Addresses, ports and protocol; encapsulated packets are not for it (mlx5e_rx_flow_steer).
                key: FilterKey::FiveTuple,
            },
            learn: false,
        },
        Profile {
            name: "ice",
            id: 3,
            // The driver asks the card.
            filters: None,
            knobs: Knobs {
                // The service task, with all else that it does (ice_sync_arfs_fltrs, drivers/net/ethernet/intel/ice/ice_arfs.c).
                delay: SERVICE_TASK,
                in_flight: None,
                // The entry is programmed again with another queue, and not deleted before (ICE_ARFS_ACTIVE to ICE_ARFS_INACTIVE).
                replace: Replace::Atomic,
                // "Perfect" rules of the four of TCP and UDP (ice_arfs_is_perfect_flow_set); user's rules may have fewer, whole ones.
                key: FilterKey::FourTuple,
            },
            learn: false,
        },
        Profile {
            name: "i40e-atr",
            id: 4,
            // The driver asks the card, and shares them out with what it learns.
            filters: None,
            knobs: Knobs {
                // A descriptor in the transmit ring (i40e_atr, i40e_program_fdir_filter, drivers/net/ethernet/intel/i40e/i40e_txrx.c).
                delay: MICROSECONDS_10,
                in_flight: None,
                // The next descriptor of the same flow takes the place of the one before.
                replace: Replace::Atomic,
                // Input sets are of addresses and ports (i40e_check_fdir_input_set, i40e_ethtool.c).
                key: FilterKey::FourTuple,
            },
            // ATR: from SYNs and every twentieth packet sent (I40E_DEFAULT_ATR_SAMPLE_RATE). flownic samples nothing, it sees all.
            learn: true,
        },
        Profile {
            name: "bnxt",
            id: 5,
            // BNXT_NTP_FLTR_MAX_FLTR (drivers/net/ethernet/broadcom/bnxt/bnxt.h).
            filters: Some(4096),
            knobs: Knobs {
                // Work, and a firmware command (bnxt_cfg_ntp_filters, bnxt.c).
                delay: FIRMWARE,
                in_flight: None,
                // A filter that is there already is answered with its id, and its queue stays (bnxt_rx_flow_steer).
                replace: Replace::None,
                // An L2 filter and addresses, ports and protocol, no fragments (bnxt_rx_flow_steer).
                key: FilterKey::FiveTuple,
            },
            learn: false,
        },
    ];

    /// The profile of a number; none for 0.
    pub fn by_id(id: u32) -> Option<&'static Profile> {
        Self::ALL.iter().find(|p| p.id == id)
    }

    /// The profile of a name.
    ///
    /// # Errors
    /// Says which there are.
    pub fn by_name(name: &str) -> Result<&'static Profile, String> {
        Self::ALL.iter().find(|p| p.name == name).ok_or_else(|| {
            let all = Self::ALL.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
            format!("'{name}' is no profile; there are {all}")
        })
    }
}

/// What was said of a NIC's filter table, beside its size.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FilterSettings {
    profile: Option<&'static Profile>,
    delay: Option<Duration>,
    /// Any number, if that was said.
    in_flight: Option<Option<u32>>,
    replace: Option<Replace>,
    key: Option<FilterKey>,
    learn: Option<bool>,
}

/// What comes of it.
pub(super) struct Resolved {
    pub(super) profile: Option<&'static Profile>,
    pub(super) filters: Option<u32>,
    pub(super) knobs: Knobs,
    pub(super) learn: bool,
}

impl FilterSettings {
    /// Takes one setting.
    ///
    /// # Errors
    /// Says what is possible.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "profile" => self.profile = Some(Profile::by_name(value)?),
            "filter-delay" => self.delay = Some(parse_delay(value)?),
            "filter-inflight" => self.in_flight = Some(parse_in_flight(value)?),
            "filter-replace" => self.replace = Some(value.parse()?),
            "filter-key" => self.key = Some(value.parse()?),
            "learn" => {
                self.learn = Some(match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(format!("'{value}' is neither on nor off")),
                });
            }
            _ => return Err(format!("'{key}' is none of a filter table's settings")),
        }
        Ok(())
    }

    /// All of it together: what was said, else what the profile says, else how it is anyway.
    pub(super) fn resolve(&self, general: Option<&'static Profile>) -> Resolved {
        let profile = self.profile.or(general);
        let base = profile.map(|p| p.knobs).unwrap_or_default();
        Resolved {
            profile,
            filters: profile.and_then(|p| p.filters),
            knobs: Knobs {
                delay: self.delay.unwrap_or(base.delay),
                in_flight: self.in_flight.unwrap_or(base.in_flight),
                replace: self.replace.unwrap_or(base.replace),
                key: self.key.unwrap_or(base.key),
            },
            learn: self.learn.unwrap_or(profile.is_none_or(|p| p.learn)),
        }
    }
}

/// How many rules may be on their way: a number, or `any`.
///
/// # Errors
/// Says what is possible.
pub fn parse_in_flight(s: &str) -> Result<Option<u32>, String> {
    match s.parse().ok().filter(|n| (1..=IN_FLIGHT_MAX).contains(n)) {
        Some(n) => Ok(Some(n)),
        None if s == "any" => Ok(None),
        None => Err(format!("'{s}' is not possible; 1 to {IN_FLIGHT_MAX}, or any, is")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(settings: &[(&str, &str)], general: Option<&str>) -> Resolved {
        let mut s = FilterSettings::default();
        settings.iter().for_each(|(key, value)| s.set(key, value).unwrap());
        s.resolve(general.map(|name| Profile::by_name(name).unwrap()))
    }

    #[test]
    fn what_is_said_goes_before_the_profile_and_that_before_the_default() {
        let plain = resolve(&[], None);
        assert_eq!(
            (plain.profile, plain.filters, plain.knobs, plain.learn),
            (None, None, Knobs::default(), true)
        );
        let sfc = resolve(&[("profile", "sfc")], Some("bnxt"));
        assert_eq!((sfc.filters, sfc.knobs, sfc.learn), (Some(8192), Profile::ALL[0].knobs, false));
        let general = resolve(&[], Some("bnxt"));
        assert_eq!((general.filters, general.knobs.replace), (Some(4096), Replace::None));
        let mixed = resolve(
            &[
                ("profile", "sfc"),
                ("filter-delay", "5us"),
                ("filter-inflight", "any"),
                ("filter-replace", "delete-add"),
                ("filter-key", "any"),
                ("learn", "on"),
            ],
            None,
        );
        let knobs = Knobs {
            delay: Duration::from_micros(5),
            in_flight: None,
            replace: Replace::DeleteAdd,
            key: FilterKey::Any,
        };
        assert_eq!((mixed.profile.unwrap().name, mixed.knobs, mixed.learn), ("sfc", knobs, true));
        assert_eq!(resolve(&[("filter-inflight", "3")], None).knobs.in_flight, Some(3));
    }

    #[test]
    fn each_profile_is_what_its_card_is_like() {
        let of = |name| Profile::by_name(name).unwrap();
        let key = |name| of(name).knobs.key;
        assert_eq!((of("sfc").knobs.in_flight, of("mlx5").filters), (Some(8), Some(262_140)));
        assert_eq!(
            (key("sfc"), key("mlx5"), key("bnxt")),
            (FilterKey::FiveTuple, FilterKey::FiveTuple, FilterKey::FiveTuple)
        );
        assert_eq!((key("ice"), key("i40e-atr")), (FilterKey::FourTuple, FilterKey::FourTuple));
        assert_eq!((of("bnxt").filters, of("bnxt").knobs.replace), (Some(4096), Replace::None));
        let learns: Vec<_> = Profile::ALL.iter().filter(|p| p.learn).map(|p| p.name).collect();
        assert_eq!(learns, ["i40e-atr"]);
        assert!(Profile::ALL.iter().all(|p| p.knobs.delay > Duration::ZERO));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_right() {
        let e = |key, value| FilterSettings::default().set(key, value).unwrap_err();
        assert_eq!(e("filter-inflight", "0"), "'0' is not possible; 1 to 1048576, or any, is");
        assert!(e("filter-delay", "5").contains("with a unit"));
        assert!(e("filter-replace", "swap").contains("there are atomic, delete-add, none"));
        assert!(e("filter-key", "vlan").contains("there are any, 5-tuple, 4-tuple, ipv4"));
        assert!(e("profile", "e1000").contains("sfc, mlx5, ice, i40e-atr, bnxt"));
        assert_eq!(e("learn", "yes"), "'yes' is neither on nor off");
    }

    #[test]
    fn profiles_have_names_and_numbers_of_their_own() {
        for (i, profile) in Profile::ALL.iter().enumerate() {
            assert_eq!(Profile::by_name(profile.name), Ok(profile));
            assert_eq!((profile.id, Profile::by_id(profile.id)), (i as u32 + 1, Some(profile)));
        }
        assert_eq!(
            Profile::by_name("e1000").unwrap_err(),
            "'e1000' is no profile; there are sfc, mlx5, ice, i40e-atr, bnxt"
        );
    }
}
