//! Commands that are words in a row, the NIC's name perhaps first.

use flownic::control::knobs::FAULTS;
use flownic::control::replies::{CoalesceChange, KnobChange};
pub(super) use flownic::control::rss_words::RSS;
use flownic::control::rss_words::parse_rss;
use flownic::control::{Request, parse_flow};

/// The NIC that words are about.
pub(super) struct Target;

impl Target {
    /// The NIC, if the first word is none of the command's own.
    pub(super) fn split(mut words: Vec<String>, own: &[&str]) -> (Option<String>, Vec<String>) {
        match words.first() {
            Some(first) if !own.contains(&first.as_str()) => (Some(words.remove(0)), words),
            _ => (None, words),
        }
    }
}

pub(super) fn add_flow(words: Vec<String>) -> Result<Request, String> {
    let (nic, words) = Target::split(words, &["flow-type"]);
    Ok(Request::FlowsAdd { nic, rule: Box::new(parse_flow(&words)?) })
}

pub(super) fn delete_flow(mut words: Vec<String>) -> Result<Request, String> {
    let nic = (words.len() > 1).then(|| words.remove(0));
    match &words[..] {
        [loc] => {
            let loc = loc.parse().map_err(|_| format!("'{loc}' is no location, a number is"))?;
            Ok(Request::FlowsDel { nic, loc })
        }
        _ => Err("A rule is deleted with: flows del [NIC] LOCATION".into()),
    }
}

pub(super) const LEARN: &[&str] = &["show", "on", "off", "clear"];

pub(super) fn learn(words: Vec<String>) -> Result<Request, String> {
    let (nic, words) = Target::split(words, LEARN);
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] | ["show"] => Ok(Request::LearnShow { nic }),
        ["on"] => Ok(Request::LearnSet { nic, on: true }),
        ["off"] => Ok(Request::LearnSet { nic, on: false }),
        ["clear"] => Ok(Request::LearnClear { nic, queue: None }),
        ["clear", queue] => Ok(Request::LearnClear { nic, queue: Some(number("clear", queue)?) }),
        _ => Err("Learned flows take: learn [NIC] [show | on | off | clear [QUEUE]]".into()),
    }
}

pub(super) fn set_rss(words: Vec<String>) -> Result<Request, String> {
    let (nic, words) = Target::split(words, RSS);
    Ok(Request::RssSet { nic, change: parse_rss(&words)? })
}

pub(super) const KNOBS: &[&str] = &["profile", "delay", "inflight", "replace", "key"];

pub(super) fn knobs(words: Vec<String>) -> Result<Request, String> {
    let (nic, words) = Target::split(words, KNOBS);
    if words.is_empty() {
        return Ok(Request::KnobsGet { nic });
    }
    let mut change = KnobChange::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let place = match word.as_str() {
            "profile" => &mut change.profile,
            "delay" => &mut change.delay,
            "inflight" => &mut change.in_flight,
            "replace" => &mut change.replace,
            "key" => &mut change.key,
            _ => return Err(format!("There is no knob '{word}'; there are {}", KNOBS.join(", "))),
        };
        let value = words.next().ok_or_else(|| format!("'{word}' has no value"))?;
        if place.replace(value).is_some() {
            return Err(format!("'{word}' is given twice"));
        }
    }
    Ok(Request::KnobsSet { nic, change })
}

pub(super) fn inject(words: Vec<String>) -> Result<Request, String> {
    let own: Vec<_> = FAULTS.iter().copied().chain(["none"]).collect();
    let (nic, words) = Target::split(words, &own);
    let fault = |name: &str| FAULTS.contains(&name).then(|| Some(name.to_string()));
    let (fault, on) = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["none"] => (Some(None), false),
        [name] | [name, "on"] => (fault(name), true),
        [name, "off"] => (fault(name), false),
        _ => (None, false),
    };
    let fault = fault.ok_or_else(|| {
        format!(
            "Faults take: inject [NIC] FAULT [on | off], or inject [NIC] none; there are {}",
            FAULTS.join(", ")
        )
    })?;
    Ok(Request::Inject { nic, fault, on })
}

pub(super) const COALESCE: &[&str] = &["rx-usecs", "rx-frames", "tx-usecs", "tx-frames", "adaptive-rx"];

pub(super) fn set_coalesce(words: Vec<String>) -> Result<Request, String> {
    let (nic, words) = Target::split(words, COALESCE);
    if words.is_empty() {
        return Err(format!("Nothing is changed; there are {}", COALESCE.join(", ")));
    }
    let mut change = CoalesceChange::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let place = match word.as_str() {
            "adaptive-rx" => {
                let value = words.next().ok_or_else(|| format!("'{word}' has no value"))?;
                let on = match value.as_str() {
                    "on" => true,
                    "off" => false,
                    _ => return Err(format!("{word}: '{value}' is neither on nor off")),
                };
                if change.adaptive_rx.replace(on).is_some() {
                    return Err(format!("'{word}' is given twice"));
                }
                continue;
            }
            "rx-usecs" => &mut change.rx_usecs,
            "rx-frames" => &mut change.rx_frames,
            "tx-usecs" => &mut change.tx_usecs,
            "tx-frames" => &mut change.tx_frames,
            _ => return Err(format!("Moderation has no '{word}'; it has {}", COALESCE.join(", "))),
        };
        let value = words.next().ok_or_else(|| format!("'{word}' has no value"))?;
        if place.replace(number(word, value)?).is_some() {
            return Err(format!("'{word}' is given twice"));
        }
    }
    Ok(Request::CoalesceSet { nic, change })
}

fn number<T: std::str::FromStr>(word: &str, s: &str) -> Result<T, String> {
    s.parse().map_err(|_| format!("{word}: '{s}' is no number that is possible"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(s: &str) -> Vec<String> {
        s.split_whitespace().map(str::to_string).collect()
    }

    #[test]
    fn the_nic_comes_first_or_not_at_all() {
        let nic = |r: Request| match r {
            Request::LearnSet { nic, on: false } | Request::FlowsDel { nic, loc: 7 } => nic,
            Request::FlowsAdd { nic, rule } if rule.loc == Some(1) => nic,
            other => panic!("{other:?}"),
        };
        let n0 = Some("n0".to_string());
        assert_eq!(nic(learn(words("n0 off")).unwrap()), n0);
        assert_eq!(nic(learn(words("off")).unwrap()), None);
        assert_eq!(nic(learn(words("off off")).unwrap_or(Request::LearnSet { nic: None, on: false })), None);
        assert_eq!(nic(delete_flow(words("n0 7")).unwrap()), n0);
        assert_eq!(nic(delete_flow(words("7")).unwrap()), None);
        assert_eq!(nic(add_flow(words("n0 flow-type tcp4 action -1 loc 1")).unwrap()), n0);
        assert_eq!(nic(add_flow(words("flow-type tcp4 action -1 loc 1")).unwrap()), None);
        assert_eq!(learn(vec![]), Ok(Request::LearnShow { nic: None }));
        assert_eq!(learn(words("n0 clear 3")), Ok(Request::LearnClear { nic: n0, queue: Some(3) }));
    }

    #[test]
    fn knobs_and_faults() {
        let n0 = Some("n0".to_string());
        assert_eq!(knobs(vec![]), Ok(Request::KnobsGet { nic: None }));
        assert_eq!(knobs(words("n0")), Ok(Request::KnobsGet { nic: n0.clone() }));
        let change =
            KnobChange { delay: Some("5ms".into()), in_flight: Some("2".into()), ..KnobChange::default() };
        assert_eq!(
            knobs(words("n0 delay 5ms inflight 2")),
            Ok(Request::KnobsSet { nic: n0.clone(), change })
        );
        for (s, e) in [
            ("n0 speed 1", "There is no knob 'speed'; there are profile, delay"),
            ("delay", "'delay' has no value"),
            ("delay 0 delay 1", "'delay' is given twice"),
        ] {
            assert!(knobs(words(s)).unwrap_err().starts_with(e), "{s}");
        }
        let fault =
            |fault: Option<&str>, on| Ok(Request::Inject { nic: None, fault: fault.map(str::to_string), on });
        assert_eq!(inject(words("table-full")), fault(Some("table-full"), true));
        assert_eq!(inject(words("busy on")), fault(Some("busy"), true));
        assert_eq!(inject(words("ctrl-hang off")), fault(Some("ctrl-hang"), false));
        assert_eq!(inject(words("none")), fault(None, false));
        assert_eq!(
            inject(words("n0 lost")),
            Ok(Request::Inject { nic: n0, fault: Some("lost".into()), on: true })
        );
        for s in ["n0 fire", "n0", "busy maybe", ""] {
            assert!(
                inject(words(s)).unwrap_err().ends_with("table-full, busy, lost, ctrl-hang, reset"),
                "{s}"
            );
        }
    }

    #[test]
    fn coalesce_words() {
        let wanted = CoalesceChange {
            rx_usecs: Some(20),
            tx_frames: Some(1),
            adaptive_rx: Some(true),
            ..CoalesceChange::default()
        };
        let given = set_coalesce(words("n0 rx-usecs 20 adaptive-rx on tx-frames 1"));
        assert_eq!(given, Ok(Request::CoalesceSet { nic: Some("n0".into()), change: wanted }));
        for (s, e) in [
            ("n0", "Nothing is changed; there are rx-usecs"),
            ("n0 usecs 1", "Moderation has no 'usecs'; it has rx-usecs"),
            ("rx-usecs", "'rx-usecs' has no value"),
            ("adaptive-rx 1", "adaptive-rx: '1' is neither on nor off"),
            ("adaptive-rx", "'adaptive-rx' has no value"),
            ("adaptive-rx on adaptive-rx on", "'adaptive-rx' is given twice"),
            ("rx-usecs -1", "rx-usecs: '-1' is no number"),
            ("rx-usecs 1 rx-usecs 1", "'rx-usecs' is given twice"),
        ] {
            assert!(set_coalesce(words(s)).unwrap_err().starts_with(e), "{s}: {:?}", set_coalesce(words(s)));
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_right() {
        assert!(learn(words("n0 forget")).unwrap_err().contains("[show | on | off | clear [QUEUE]]"));
        assert!(delete_flow(words("n0 x")).unwrap_err().contains("'x' is no location"));
        assert!(add_flow(words("n0 tcp4")).unwrap_err().contains("begins with 'flow-type TYPE'"));
    }
}
