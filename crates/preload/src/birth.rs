//! How the engine's processes are made: clone with CLONE_VM and nothing else shared, so that the program sees neither a thread nor a child.
//!
//! ```text
//!   program ── clone(VM|VFORK) ──> midwife ── clone(VM) ──> engine
//!        waits until the midwife has ended, and reaps it; the engine is now a child of the nearest subreaper (`zfolio run`) or of init
//! ```

use crate::arena;
use core::ptr::null_mut;
use uffd::sys::{self, Errno, consts::*};

/// Bytes of stack of the engine and of a worker.
const STACK: usize = 256 << 10;

struct Order {
    flags: u32,
    stack_top: usize,
    entry: extern "C" fn(usize) -> !,
    argument: usize,
    result: Result<u32, Errno>,
    may_yield: bool,
}

/// A process that `detached` has made.
pub struct Born {
    /// Its number.
    pub pid: u32,
    /// It may become SCHED_IDLE and leave that again.
    pub may_yield: bool,
}

extern "C" fn midwife(order: usize) -> ! {
    // SAFETY: `detached` keeps the order alive until this process has ended (CLONE_VFORK).
    let order = unsafe { &mut *(order as *mut Order) };
    // SAFETY: the stack is new; what the entry does is its own contract.
    order.result = unsafe { sys::clone(order.flags, order.stack_top, order.entry, order.argument) };
    // This process has the same rights as the new one, and ends at once.
    order.may_yield = sys::may_yield();
    sys::exit(0)
}

fn new_stack() -> Result<usize, Errno> {
    Ok(arena::map(STACK, 4096).ok_or(Errno::ENOMEM)? + STACK)
}

/// While it lives, a child that ends leaves no trace in the program's account of its children (RUSAGE_CHILDREN): the kernel
/// reaps children whose signal is ignored without counting what they used.
struct Unseen(sys::Disposition);

impl Unseen {
    const IGNORED: sys::Disposition = [1, 0, 0, 0];

    /// `None` where it would show: a child of the program's could end meanwhile, or a pending SIGCHLD would be lost.
    fn begin() -> Option<Unseen> {
        let childless =
            sys::waitid(P_ALL, 0, null_mut(), WEXITED | WNOHANG | WNOWAIT | __WALL) == Err(Errno::ECHILD);
        if !childless || sys::pending_signals() & 1 << (SIGCHLD - 1) != 0 {
            return None;
        }
        // SAFETY: SIGCHLD is blocked, and ignored until `drop`.
        unsafe { sys::sigaction(SIGCHLD, &Self::IGNORED) }.ok().map(Unseen)
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        // SAFETY: what the program had set.
        let _ = unsafe { sys::sigaction(SIGCHLD, &self.0) };
    }
}

/// Starts `entry(argument)` in a process that shares this one's memory, and whose parent is not this process. All signals must be blocked.
///
/// # Safety
/// `entry` must be fit to run beside the program: no libc, no thread-local storage.
pub unsafe fn detached(entry: extern "C" fn(usize) -> !, argument: usize) -> Result<Born, Errno> {
    let stack_top = new_stack()?;
    let mut order =
        Order { flags: CLONE_VM, stack_top, entry, argument, result: Err(Errno::ECHILD), may_yield: false };
    let own_top = new_stack()?;
    let unseen = Unseen::begin();
    // Only children that end with SIGCHLD are reaped by its being ignored.
    let signal = if unseen.is_some() { SIGCHLD } else { 0 };
    // SAFETY: with CLONE_VFORK we wait until the midwife is gone, and `order` lives that long.
    let pid =
        unsafe { sys::clone(CLONE_VM | CLONE_VFORK | signal, own_top, midwife, &raw mut order as usize) }?;
    let mut status = 0;
    // Where it is unseen this says ECHILD as soon as it has ended.
    while sys::wait4(pid, &mut status, __WALL) == Err(Errno::EINTR) {}
    // SAFETY: the midwife has ended.
    unsafe { arena::unmap(own_top - STACK, STACK) };
    let Order { result, may_yield, .. } = order;
    result.map(|pid| Born { pid, may_yield })
}

/// Starts `entry(argument)` in a process that shares this one's memory and descriptors; it is this process's child.
///
/// # Safety
/// As for [`detached`].
pub unsafe fn helper(entry: extern "C" fn(usize) -> !, argument: usize) -> Result<u32, Errno> {
    // SAFETY: the stack is new; the rest is the caller's contract.
    unsafe { sys::clone(CLONE_VM | CLONE_FILES | CLONE_FS, new_stack()?, entry, argument) }
}
