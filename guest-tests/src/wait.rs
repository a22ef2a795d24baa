//! Waiting for what has no event to wait on.

use std::time::{Duration, Instant};

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks with `look` until it finds something, at least once and for at most `limit`.
///
/// # Panics
/// When the time is over, with `what` and what was seen last.
#[track_caller]
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) if Instant::now() >= deadline => {
                panic!("Waited {limit:?} for {what}; last seen: {seen}")
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_again_until_found() {
        let mut left = 3;
        let found = wait_for("a countdown", Duration::from_secs(60), || {
            left -= 1;
            if left == 0 { Ok("zero") } else { Err(format!("{left}")) }
        });
        assert_eq!(found, "zero");
    }

    #[test]
    #[should_panic(expected = "for a miracle; last seen: nothing")]
    fn gives_up_and_tells_what_it_saw() {
        wait_for("a miracle", Duration::ZERO, || Err::<(), _>("nothing".to_owned()));
    }
}
