//! Stacks of the engine, its workers and its helpers: mappings of the engine's memory.

use crate::arena;
use uffd::sys::Errno;

/// Bytes of one.
pub const STACK: usize = 256 << 10;

/// A new one: where it ends, and is used first.
pub fn map() -> Result<usize, Errno> {
    Ok(arena::map_apart(STACK, 4096).ok_or(Errno::ENOMEM)? + STACK)
}

/// Gives one back that ends there.
///
/// # Safety
/// Nobody may be on it any more.
pub unsafe fn unmap(top: usize) {
    // SAFETY: the caller's contract.
    unsafe { arena::unmap(top - STACK, STACK) }
}
