//! Signals.

use super::Result;
use linux_raw_sys::general as g;

/// Sets the calling thread's signal mask and returns the old one.
pub fn signal_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    let _ = call!(__NR_rt_sigprocmask, g::SIG_SETMASK, &mask as *const u64, &mut old as *mut u64, 8);
    old
}

/// Signals that are pending.
pub fn pending_signals() -> u64 {
    let mut set = 0u64;
    let _ = call!(__NR_rt_sigpending, &mut set as *mut u64, 8);
    set
}

/// What the kernel knows of a signal's disposition (its `struct sigaction`): handler, flags, restorer, mask.
pub type Disposition = [u64; 4];

/// Sets a signal's disposition and returns the old one.
///
/// # Safety
/// A handler must be fit to run; 1 (SIG_IGN) always is.
pub unsafe fn sigaction(signal: u32, new: &Disposition) -> Result<Disposition> {
    let mut old = [0u64; 4];
    call!(__NR_rt_sigaction, signal, new as *const Disposition, &mut old as *mut Disposition, 8)?;
    Ok(old)
}
