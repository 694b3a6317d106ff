//! What zfolio says of a slow run. A run in half of its memory is one, where the machine has other work too.

use std::time::{Duration, Instant};

/// The shortest run of which it can be said: its first window of time.
const SHORTEST: Duration = Duration::from_secs(10);

/// `stderr` without that, if the run has taken long enough since `began`. zfolio is right to say it then, and a test
/// looks for something else. In a shorter run zfolio may say nothing at all.
pub fn without_slowness(stderr: &str, began: Instant) -> String {
    let is_slow = began.elapsed() >= SHORTEST;
    let is_slowness = |line: &&str| {
        is_slow
            && line.starts_with("zfolio: warning: process ")
            && line.contains(" has waited for memory for ")
    };
    stderr.split_inclusive('\n').filter(|line| !is_slowness(line)).collect()
}
