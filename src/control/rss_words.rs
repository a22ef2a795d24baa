//! Changes of receive-side scaling in words, as `flownic ctl rss set` and `flownic-guest DEV rss set` take them.

use super::replies::{RssChange, SteeringMode, TableChange};

/// The words that begin a change.
pub const RSS: &[&str] =
    &["on", "off", "mode", "key", "hkey", "equal", "weight", "entries", "default", "types", "unclassified"];

/// Reads a change: `on mode rss equal 4`.
///
/// # Errors
/// Names the word that is wrong, and what is allowed.
pub fn parse_rss(words: &[String]) -> Result<RssChange, String> {
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
    Ok(change)
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

    #[test]
    fn rss_words() {
        let change = |s: &str| parse_rss(&s.split_whitespace().map(str::to_string).collect::<Vec<_>>());
        let all = change("off mode rss key 6d:5a weight 1 2,3 types tcpv4,udpv4 unclassified 2").unwrap();
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
        assert_eq!(table("equal 3"), TableChange::Equal(3));
        assert_eq!(table("default"), TableChange::Default);
        assert_eq!(table("entries 0,1,0,1"), TableChange::Entries(vec![0, 1, 0, 1]));
        for (s, e) in [
            ("", "Nothing is changed; there are on, off"),
            ("faster", "RSS has no 'faster'; it has on, off"),
            ("equal", "'equal' has no value"),
            ("equal x", "equal: 'x' is no number"),
            ("mode fast", "mode: 'fast' is none; automatic and rss are"),
            ("on off", "'off' sets what has been set before it"),
            ("equal 1 default", "'default' sets what has been set before it"),
        ] {
            assert!(change(s).unwrap_err().starts_with(e), "{s}: {:?}", change(s));
        }
    }
}
