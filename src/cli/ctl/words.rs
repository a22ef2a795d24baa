//! Commands that are words in a row, the NIC's name perhaps first.

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
    fn what_is_wrong_is_said_with_what_is_right() {
        assert!(learn(words("n0 forget")).unwrap_err().contains("[show | on | off | clear [QUEUE]]"));
        assert!(delete_flow(words("n0 x")).unwrap_err().contains("'x' is no location"));
        assert!(add_flow(words("n0 tcp4")).unwrap_err().contains("begins with 'flow-type TYPE'"));
    }
}
