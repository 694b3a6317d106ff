//! Limits of the process (getrlimit(2)).

use super::Result;
use linux_raw_sys::general as g;

/// Lets this process have `count` descriptors, or as many as it may.
pub fn want_descriptors(count: u64) {
    let mut old = [0u64; 2];
    if call!(__NR_prlimit64, 0, g::RLIMIT_NOFILE, 0, old.as_mut_ptr()).is_err() || old[0] >= count {
        return;
    }
    let set = |limits: [u64; 2]| call!(__NR_prlimit64, 0, g::RLIMIT_NOFILE, limits.as_ptr(), 0);
    if set([count, old[1].max(count)]).is_err() {
        let _ = set([old[1], old[1]]);
    }
}

/// Up to which priority this process may raise others of its user (RLIMIT_NICE).
pub fn nice_limit() -> u64 {
    let mut limits = [0u64; 2];
    let _ = call!(__NR_prlimit64, 0, g::RLIMIT_NICE, 0, limits.as_mut_ptr());
    limits[0]
}

/// How many bytes the process may map (RLIMIT_AS), `u64::MAX` for as much as it likes.
pub fn address_space_limit() -> Result<u64> {
    let mut limits = [u64::MAX; 2];
    call!(__NR_prlimit64, 0, g::RLIMIT_AS, 0, limits.as_mut_ptr()).map(|_| limits[0])
}

/// True when the process may not map as much as it likes.
pub fn is_address_space_limited() -> bool {
    address_space_limit() != Ok(u64::MAX)
}
