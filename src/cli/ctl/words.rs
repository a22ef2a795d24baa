//! Commands that are words in a row, the NIC's name perhaps first.

use flownic::control::replies::{CoalesceChange, RssChange, SteeringMode, TableChange};
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

pub(super) const RSS: &[&str] =
    &["on", "off", "mode", "key", "hkey", "equal", "weight", "entries", "default", "types", "unclassified"];

pub(super) fn set_rss(words: Vec<String>) -> Result<Request, String> {
    let (nic, words) = Target::split(words, RSS);
    let mut change = RssChange::default();
    let mut words = words.iter().map(String::as_str).peekable();
    if words.peek().is_none() {
        return Err(format!("Nothing is changed; there are {}", RSS.join(", ")));
    }
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("'{word}' has no value"));
        let fresh = match word {
            "on" | "off" => change.on.replace(word == "on").is_none(),
            "mode" => {
                let mode = match value()? {
                    "automatic" => SteeringMode::Automatic,
                    "rss" => SteeringMode::Rss,
                    other => return Err(format!("mode: '{other}' is none; automatic and rss are")),
                };
                change.mode.replace(mode).is_none()
            }
            "key" | "hkey" => change.key.replace(value()?.into()).is_none(),
            "equal" => change.table.replace(TableChange::Equal(number(word, value()?)?)).is_none(),
            "default" => change.table.replace(TableChange::Default).is_none(),
            "entries" => change.table.replace(TableChange::Entries(list(word, value()?)?)).is_none(),
            "weight" => {
                let mut weights = list(word, value()?)?;
                while let Some(w) = words.next_if(|w| w.starts_with(|c: char| c.is_ascii_digit())) {
                    weights.append(&mut list(word, w)?);
                }
                change.table.replace(TableChange::Weight(weights)).is_none()
            }
            "types" => {
                let names = value()?.split(',').filter(|n| !n.is_empty()).map(str::to_string);
                change.hash_types.replace(names.collect()).is_none()
            }
            "unclassified" => change.unclassified.replace(number(word, value()?)?).is_none(),
            _ => return Err(format!("RSS has no '{word}'; it has {}", RSS.join(", "))),
        };
        if !fresh {
            return Err(format!("'{word}' sets what has been set before it"));
        }
    }
    Ok(Request::RssSet { nic, change })
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

fn list<T: std::str::FromStr>(word: &str, s: &str) -> Result<Vec<T>, String> {
    s.split(',').map(|n| number(word, n)).collect()
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
    fn rss_words() {
        let change = |s: &str| match set_rss(words(s)) {
            Ok(Request::RssSet { nic: Some(nic), change }) if nic == "n0" => Ok(change),
            Err(e) => Err(e),
            other => panic!("{other:?}"),
        };
        let all = change("n0 off mode rss key 6d:5a weight 1 2,3 types tcpv4,udpv4 unclassified 2").unwrap();
        let wanted = RssChange {
            on: Some(false),
            mode: Some(SteeringMode::Rss),
            key: Some("6d:5a".into()),
            hash_types: Some(vec!["tcpv4".into(), "udpv4".into()]),
            table: Some(TableChange::Weight(vec![1, 2, 3])),
            unclassified: Some(2),
        };
        assert_eq!(all, wanted);
        let table = |s: &str| change(s).unwrap().table.unwrap();
        assert_eq!(table("n0 equal 3"), TableChange::Equal(3));
        assert_eq!(table("n0 default"), TableChange::Default);
        assert_eq!(table("n0 entries 0,1,0,1"), TableChange::Entries(vec![0, 1, 0, 1]));
        for (s, e) in [
            ("n0", "Nothing is changed; there are on, off"),
            ("n0 faster", "RSS has no 'faster'; it has on, off"),
            ("n0 equal", "'equal' has no value"),
            ("n0 equal x", "equal: 'x' is no number"),
            ("n0 mode fast", "mode: 'fast' is none; automatic and rss are"),
            ("n0 on off", "'off' sets what has been set before it"),
            ("n0 equal 1 default", "'default' sets what has been set before it"),
        ] {
            assert!(change(s).unwrap_err().starts_with(e), "{s}: {:?}", change(s));
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
