//! Feature bits by name: which ones a user switches off, and what goes with them.

use std::str::FromStr;

use log::info;

use super::{ConfigError, DEVICE_FEATURES};
use crate::virtio::*;

/// Features that make no sense without (one of) others (5.1.3.1).
const NEEDS: &[(u64, u64)] = &[
    (F_GUEST_TSO4, F_GUEST_CSUM),
    (F_GUEST_TSO6, F_GUEST_CSUM),
    (F_GUEST_USO4, F_GUEST_CSUM),
    (F_GUEST_USO6, F_GUEST_CSUM),
    (F_GUEST_ECN, F_GUEST_TSO4 | F_GUEST_TSO6),
    (F_HOST_TSO4, F_CSUM),
    (F_HOST_TSO6, F_CSUM),
    (F_HOST_USO, F_CSUM),
    (F_HOST_ECN, F_HOST_TSO4 | F_HOST_TSO6),
    (F_CTRL_RX, F_CTRL_VQ),
    (F_GUEST_ANNOUNCE, F_CTRL_VQ),
    (F_MQ, F_CTRL_VQ),
];

/// Features to switch off or on again, in the order in which they were written: `-mrg_rxbuf,-event_idx`,
/// `-all+version_1`. Names without a sign are switched on. `,`, `;` and blanks separate; a sign does too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureEdits(Vec<(bool, u64)>);

impl FeatureEdits {
    /// The bits after all edits.
    pub fn apply(&self, features: u64) -> u64 {
        self.0.iter().fold(features, |f, &(on, bits)| if on { f | bits } else { f & !bits })
    }
}

impl FromStr for FeatureEdits {
    type Err = ConfigError;

    fn from_str(s: &str) -> Result<Self, ConfigError> {
        let mut edits = Vec::new();
        for word in s.split([',', ';', ' ']) {
            let mut rest = word;
            while !rest.is_empty() {
                let on = !rest.starts_with('-');
                let name = rest.trim_start_matches(['+', '-']);
                let (name, next) = name.split_at(name.find(['+', '-']).unwrap_or(name.len()));
                // "+-name" is a separator and a sign.
                let on = on && !rest.starts_with("+-");
                rest = next;
                if !name.is_empty() {
                    edits.push((on, switchable(name)?));
                }
            }
        }
        Ok(FeatureEdits(edits))
    }
}

/// The bits that a user's name stands for.
fn switchable(name: &str) -> Result<u64, ConfigError> {
    let allowed = DEVICE_FEATURES & !F_PROTOCOL_FEATURES;
    match feature_by_name(name) {
        _ if name == "all" => Ok(allowed),
        Some(bit) if bit & allowed != 0 => Ok(bit),
        _ => Err(ConfigError::Feature { name: name.into(), allowed: feature_names(allowed).join(", ") }),
    }
}

/// What a NIC offers: every feature of the device after these edits, without those that need one that is off.
pub fn resolve_features(nic: &str, edits: &[&FeatureEdits]) -> u64 {
    let mut features = edits.iter().fold(DEVICE_FEATURES, |f, e| e.apply(f));
    // Twice, because ECN needs TSO, which needs checksums.
    for (feature, needed) in NEEDS.iter().chain(NEEDS) {
        if features & feature != 0 && features & needed == 0 {
            info!(
                "{nic}: {} is off too, since {} is off",
                feature_names(*feature).join(", "),
                feature_names(*needed).join(" and ")
            );
            features &= !feature;
        }
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(s: &str) -> u64 {
        resolve_features("n0", &[&s.parse().unwrap()])
    }

    #[test]
    fn signs_and_separators_mean_the_same_everywhere() {
        let off = DEVICE_FEATURES & !(F_MRG_RXBUF | F_EVENT_IDX);
        for s in [
            "-mrg_rxbuf,-event_idx",
            "-mrg_rxbuf;-event_idx",
            "-mrg_rxbuf-event_idx",
            "-mrg_rxbuf+-event_idx",
            "-mrg_rxbuf -event_idx",
        ] {
            assert_eq!(resolve(s), off, "{s}");
        }
        assert_eq!(resolve(""), DEVICE_FEATURES);
        assert_eq!(resolve("-mq+mq"), DEVICE_FEATURES);
        assert_eq!(resolve("-mq,mq"), DEVICE_FEATURES);
        assert_eq!(resolve("-all+version_1"), F_PROTOCOL_FEATURES | F_VERSION_1);
    }

    #[test]
    fn a_later_list_edits_what_an_earlier_one_left() {
        let (global, own): (FeatureEdits, FeatureEdits) =
            ("-mq,-in_order".parse().unwrap(), "+mq".parse().unwrap());
        assert_eq!(resolve_features("n0", &[&global, &own]), DEVICE_FEATURES & !F_IN_ORDER);
    }

    #[test]
    fn a_feature_without_what_it_needs_is_off() {
        let guest = F_GUEST_TSO4 | F_GUEST_TSO6 | F_GUEST_ECN | F_GUEST_USO4 | F_GUEST_USO6;
        assert_eq!(resolve("-guest_csum"), DEVICE_FEATURES & !(F_GUEST_CSUM | guest));
        let host = F_HOST_TSO4 | F_HOST_TSO6 | F_HOST_ECN | F_HOST_USO;
        assert_eq!(resolve("-csum"), DEVICE_FEATURES & !(F_CSUM | host));
        assert_ne!(resolve("-host_tso4") & F_HOST_ECN, 0, "the other TSO is left");
        assert_eq!(resolve("-host_tso4-host_tso6") & F_HOST_ECN, 0);
        assert_eq!(resolve("-ctrl_vq") & (F_MQ | F_CTRL_RX | F_GUEST_ANNOUNCE), 0);
    }

    #[test]
    fn names_that_are_none_and_the_transports_bit_are_refused_with_the_list() {
        for name in ["turbo", "protocol_features", "notf_coal", "mac"] {
            let e = format!("-{name}").parse::<FeatureEdits>().unwrap_err().to_string();
            assert!(e.contains(&format!("'{name}'")) && e.contains("mrg_rxbuf, "), "{e}");
            assert!(!e.contains("protocol_features,"), "{e}");
        }
    }
}
