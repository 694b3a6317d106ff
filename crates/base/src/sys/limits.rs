//! Limits of the process (getrlimit(2)).

use super::Result;
use linux_raw_sys::general as g;

/// What a limit is, and up to where the process may raise it.
fn limit(which: u32) -> Result<[u64; 2]> {
    let mut limits = [0u64; 2];
    // SAFETY: the kernel reads no limits, since there are none, and writes two words.
    unsafe { call!(__NR_prlimit64, 0, which, 0, limits.as_mut_ptr()) }?;
    Ok(limits)
}

/// Lets this process have `count` descriptors, or as many as it may.
pub fn want_descriptors(count: u64) {
    let Ok([now, most]) = limit(g::RLIMIT_NOFILE) else { return };
    if now >= count {
        return;
    }
    let set = |limits: [u64; 2]| {
        // SAFETY: the kernel reads two words, and writes none, since none are asked for.
        unsafe { call!(__NR_prlimit64, 0, g::RLIMIT_NOFILE, limits.as_ptr(), 0) }
    };
    if set([count, most.max(count)]).is_err() {
        let _ = set([most, most]);
    }
}

/// Up to which priority this process may raise others of its user (RLIMIT_NICE).
pub fn nice_limit() -> u64 {
    limit(g::RLIMIT_NICE).map_or(0, |[now, _]| now)
}

/// How many bytes the process may map (RLIMIT_AS), `u64::MAX` for as much as it likes.
pub fn address_space_limit() -> Result<u64> {
    limit(g::RLIMIT_AS).map(|[now, _]| now)
}

/// True when the process may not map as much as it likes.
pub fn is_address_space_limited() -> bool {
    address_space_limit() != Ok(u64::MAX)
}
