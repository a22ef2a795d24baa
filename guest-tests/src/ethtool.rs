//! ethtool in a guest: what it sets, shows and refuses.

use crate::machine::Machine;
use crate::nic::Interface;

/// ethtool in the guest.
pub struct Ethtool<'m> {
    machine: &'m Machine,
    interface: String,
}

impl<'m> Ethtool<'m> {
    /// For an interface.
    pub fn new(nic: &Interface<'m>) -> Ethtool<'m> {
        Ethtool { machine: nic.machine(), interface: nic.name().to_owned() }
    }

    /// `ethtool OPTION INTERFACE WORDS`: what it prints, or what it says is wrong.
    ///
    /// # Errors
    /// When it fails.
    pub fn run(&self, option: &str, words: &str) -> Result<String, String> {
        let output = self.machine.run(&format!("ethtool {option} {} {words}", self.interface));
        if output.success() { Ok(output.text()) } else { Err(output.to_string()) }
    }

    /// As [`Ethtool::run`], for what must succeed.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn ok(&self, option: &str, words: &str) -> String {
        self.run(option, words).unwrap_or_else(|e| panic!("ethtool {option} {words}: {e}"))
    }

    /// As [`Ethtool::run`], for what must fail and say `reason`.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn refused(&self, option: &str, words: &str, reason: &str) {
        let error = self.run(option, words).expect_err(words);
        assert!(error.contains(reason), "{option} {words}: {error} does not say {reason}");
    }

    /// Adds a rule without a location, and gives the one that the driver chose.
    ///
    /// # Panics
    /// When it is refused.
    #[track_caller]
    pub fn rule(&self, words: &str) -> u32 {
        let text = self.ok("-N", words);
        let location = text.strip_prefix("Added rule with ID ").and_then(|id| id.trim().parse().ok());
        location.unwrap_or_else(|| panic!("{words}: {text}"))
    }

    /// Deletes the rule at a location.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn delete(&self, location: u32) {
        self.ok("-N", &format!("delete {location}"));
    }

    /// How many rules there are.
    #[track_caller]
    pub fn rules(&self) -> usize {
        self.ok("-n", "").matches("Filter: ").count()
    }

    /// A counter of `ethtool -S`.
    ///
    /// # Panics
    /// When there is no such counter.
    #[track_caller]
    pub fn counter(&self, name: &str) -> u64 {
        let text = self.ok("-S", "");
        let value =
            text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": ")?.parse().ok());
        value.unwrap_or_else(|| panic!("no counter {name} in {text}"))
    }
}
