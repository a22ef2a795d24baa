//! What a selftest prints: TAP, with the reason of a failure in the comments before its line.

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    /// Skipped, or expected to fail.
    Skipped,
}

/// One case of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    /// Why it did not pass, in one line.
    pub(crate) reason: String,
}

/// Longest reason, in characters; the log has it all.
const REASON: usize = 240;

/// Reads what a test has printed. Cases that it announced and did not come to have failed; `end` says how it ended.
pub(crate) fn parse(text: &str, end: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut announced = None;
    let mut comments: Vec<&str> = Vec::new();
    for line in text.lines() {
        if let Some(count) = line.strip_prefix("1..") {
            announced = count.trim().parse::<usize>().ok();
        } else if let Some(comment) = line.strip_prefix('#') {
            comments.push(comment.trim_start());
        } else if let Some(case) = result(line, &comments) {
            cases.push(case);
            comments.clear();
        }
    }
    let missing = announced.unwrap_or(1).saturating_sub(cases.len());
    for number in 0..missing {
        let name = format!("number {}", cases.len() + 1);
        let reason =
            if number == 0 { format!("{end}: {}", failure(&comments)) } else { "not run".to_owned() };
        cases.push(Case { name, outcome: Outcome::Failed, reason: shortened(&reason) });
    }
    cases
}

/// The case of a line such as `not ok 3 ntuple.queue.tcp4 # SKIP why`.
fn result(line: &str, comments: &[&str]) -> Option<Case> {
    let (good, rest) = match line.strip_prefix("not ok ") {
        Some(rest) => (false, rest),
        None => (true, line.strip_prefix("ok ")?),
    };
    let (_number, rest) = rest.split_once(' ')?;
    let (name, directive) = rest.split_once(" # ").unwrap_or((rest, ""));
    // The name of the test stands before each case.
    let name = name.split_once('.').map_or(name, |(_, case)| case).trim().to_owned();
    let skipped = directive.starts_with("SKIP") || directive.starts_with("XFAIL");
    let (outcome, reason) = match good {
        _ if skipped => (Outcome::Skipped, shortened(directive)),
        true => (Outcome::Passed, String::new()),
        false => (Outcome::Failed, shortened(&failure(comments))),
    };
    Some(Case { name, outcome, reason })
}

/// The comments that say what went wrong: the checks that failed, and the last line of an exception.
fn failure(comments: &[&str]) -> String {
    let mut lines: Vec<&str> =
        comments.iter().filter(|line| line.starts_with("Check failed")).copied().collect();
    let said = |line: &&str| line.split_once("Exception|").map(|(_, text)| text.trim().to_owned());
    let exception: Vec<String> = comments.iter().filter_map(said).filter(|text| !text.is_empty()).collect();
    // A command that failed ends with what it printed.
    let from = exception
        .iter()
        .rposition(|text| text.contains("Error") || text.contains("Exception") || text.contains("Failure"));
    let tail = exception[from.unwrap_or(exception.len().saturating_sub(1))..].join("; ");
    lines.extend((!tail.is_empty()).then_some(tail.as_str()));
    if lines.is_empty() {
        lines.extend(comments.iter().rev().find(|line| !line.is_empty()));
    }
    lines.join("; ")
}

/// The text in one line; of a long one the beginning and the end, where commands say what went wrong.
fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let letters: Vec<char> = line.chars().collect();
    if letters.len() <= REASON {
        return line;
    }
    let (begin, end) = (&letters[..REASON / 2], &letters[letters.len() - REASON / 2..]);
    format!("{} ... {}", begin.iter().collect::<String>(), end.iter().collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(cases: &[Case]) -> Vec<(&str, Outcome, &str)> {
        cases.iter().map(|case| (case.name.as_str(), case.outcome, case.reason.as_str())).collect()
    }

    #[test]
    fn results_have_the_reason_that_was_printed_before() {
        let text = "TAP version 13\n1..4\nok 1 ping.test_v4\n# Check| At x.py, line 7, in f:\n# Check failed 1 != 2 n\n\
             not ok 2 ping.test_v6.a\nok 3 ping.x # SKIP no queues\nok 4 ping.y # XFAIL only netdevsim\n# Totals: pass:1";
        assert_eq!(
            short(&parse(text, "exit status 1")),
            [
                ("test_v4", Outcome::Passed, ""),
                ("test_v6.a", Outcome::Failed, "Check failed 1 != 2 n"),
                ("x", Outcome::Skipped, "SKIP no queues"),
                ("y", Outcome::Skipped, "XFAIL only netdevsim"),
            ]
        );
    }

    #[test]
    fn an_exception_is_told_with_what_the_command_said() {
        let text = "1..1\n# Exception| Traceback (most recent call last):\n# Exception|   File \"a.py\", line 3\n\
             # Exception| net.lib.py.utils.CmdExitFailure: Command failed\n# Exception| CMD: ethtool -N\n\
             # Exception|   STDERR: no\nnot ok 1 a.b";
        assert_eq!(
            short(&parse(text, "")),
            [(
                "b",
                Outcome::Failed,
                "net.lib.py.utils.CmdExitFailure: Command failed; CMD: ethtool -N; STDERR: no"
            )]
        );
    }

    #[test]
    fn long_reasons_keep_their_beginning_and_their_end() {
        let text = format!("1..1\n# Check failed {} too few frames\nnot ok 1 a.b", "x".repeat(1000));
        let reason = &parse(&text, "")[0].reason;
        assert!(reason.starts_with("Check failed xxx") && reason.ends_with("xxx too few frames"), "{reason}");
        assert!(reason.len() < REASON + 10);
    }

    #[test]
    fn cases_that_were_not_reached_have_failed() {
        let cases = parse("1..3\nok 1 a.b\n# Interface: eth0", "ended by a timeout");
        assert_eq!(
            short(&cases)[1..],
            [
                ("number 2", Outcome::Failed, "ended by a timeout: Interface: eth0"),
                ("number 3", Outcome::Failed, "not run")
            ]
        );
        assert_eq!(short(&parse("", "exit status 1")), [("number 1", Outcome::Failed, "exit status 1:")]);
    }
}
