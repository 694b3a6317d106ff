//! Signals.

use super::Result;
use linux_raw_sys::general as g;

/// Bytes of the kernel's signal sets.
const SET_BYTES: usize = size_of::<u64>();

/// Signals a process.
pub fn kill(pid: u32, signal: u32) -> Result<()> {
    // SAFETY: changes no memory of the caller's; what its own handlers do is theirs to answer for.
    unsafe { call!(__NR_kill, pid, signal) }.map(drop)
}

/// Sets the calling thread's signal mask and returns the old one.
pub fn signal_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: the kernel reads one set and writes another.
    let _ = unsafe { call!(__NR_rt_sigprocmask, g::SIG_SETMASK, &raw const mask, &raw mut old, SET_BYTES) };
    old
}

/// Signals that are pending.
pub fn pending_signals() -> u64 {
    let mut set = 0u64;
    // SAFETY: the kernel writes the set.
    let _ = unsafe { call!(__NR_rt_sigpending, &raw mut set, SET_BYTES) };
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
    // SAFETY: the kernel reads one disposition and writes another; the handler is the caller's contract.
    unsafe { call!(__NR_rt_sigaction, signal, new.as_ptr(), old.as_mut_ptr(), SET_BYTES) }?;
    Ok(old)
}
