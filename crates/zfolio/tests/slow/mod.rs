//! What zfolio says of a run that is slow, as one of half of its memory is on a machine that does other things too.

use std::time::{Duration, Instant};

/// The shortest run of which it can be said: its first window of time.
const SHORTEST: Duration = Duration::from_secs(10);

/// `stderr` without it, for a run since `began` that has taken long enough. The words are right there, and say nothing
/// about what a test looks for; in a shorter run nothing at all may be said.
pub fn without_slowness(stderr: &str, began: Instant) -> String {
    let is_slow = began.elapsed() >= SHORTEST;
    let is_slowness = |line: &&str| {
        is_slow
            && line.starts_with("zfolio: warning: process ")
            && line.contains(" has waited for memory for ")
    };
    stderr.split_inclusive('\n').filter(|line| !is_slowness(line)).collect()
}
