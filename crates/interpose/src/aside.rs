//! How a thread of the program makes the engine's process: clone with CLONE_VM and nothing else shared, so that the
//! program sees neither a thread nor a child.
//!
//! ```text
//!   program ── clone(VM|VFORK) ──> intermediate process ── clone(VM) ──> engine
//!        waits until that has ended, and reaps it; the engine is now a child of the nearest subreaper
//!        (`zfolio run`) or of init
//! ```
//!
//! Where that would be the program itself (wait.rs) the engine is its child from the start, by CLONE_PARENT, and has no
//! exit signal: a wait does not know of such children unless it asks for them, while an orphan is one like any other,
//! and an init that waits for all of them would wait for its own engine.
//!
//! The same way serves for anything that must leave the program's own descriptors alone ([`aside`]).

use crate::loaded;
use crate::wait;
use control::footprint;
use control::handover;
use control::stack;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering::*};
use uffd::sys::{self, Errno, consts::*};

/// The stack of a process that the program waits for ([`aside`]): nothing is mapped for it, and no lock of the engine's
/// taken.
#[repr(align(4096))]
struct AsideStack(UnsafeCell<[u8; 32 << 10]>);

// SAFETY: used by whoever has taken it.
unsafe impl Sync for AsideStack {}

static ASIDE_STACK: AsideStack = AsideStack(UnsafeCell::new([0; 32 << 10]));
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// A stack for such a process: that one, or, where two threads want one or a process has ended while it had it, a new
/// one.
enum Aside {
    Taken,
    Mapped(usize),
}

impl Aside {
    /// That one, without a mapping: where the engine works, whose lock that would take.
    fn take_own() -> Option<Aside> {
        (!IS_TAKEN.swap(true, Acquire)).then_some(Aside::Taken)
    }

    /// Where no engine works.
    fn take() -> Result<Aside, Errno> {
        Aside::take_own().map_or_else(|| stack::map().map(Aside::Mapped), Ok)
    }

    fn top(&self) -> usize {
        match self {
            Aside::Taken => ASIDE_STACK.0.get() as usize + size_of::<AsideStack>(),
            Aside::Mapped(top) => *top,
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        match self {
            Aside::Taken => IS_TAKEN.store(false, Release),
            // SAFETY: nobody is on that stack any more.
            Aside::Mapped(top) => unsafe { stack::unmap(*top) },
        }
    }
}

/// In a child: whoever had the stack in the parent has not come along.
pub fn free_aside_stack() {
    // Not written where it is so already: the page stays shared with the parent.
    if IS_TAKEN.load(Relaxed) {
        IS_TAKEN.store(false, Relaxed);
    }
}

struct CloneOrder {
    flags: u32,
    stack_top: usize,
    entry: extern "C" fn(usize) -> !,
    argument: usize,
    result: Result<u32, Errno>,
    may_yield: bool,
}

/// A process that `detached` has made.
pub struct EngineProcess {
    /// Its number.
    pub pid: u32,
    /// It may become SCHED_IDLE and leave that again.
    pub may_yield: bool,
}

extern "C" fn intermediate(order: usize) -> ! {
    // SAFETY: `detached` keeps the order alive until this process has ended (CLONE_VFORK).
    let order = unsafe { &mut *(order as *mut CloneOrder) };
    // SAFETY: the stack is new; what the entry does is its own contract.
    order.result = unsafe { sys::clone(order.flags, order.stack_top, order.entry, order.argument) };
    // This process has the same rights as the new one, and ends at once.
    order.may_yield = sys::may_yield();
    sys::exit(0)
}

/// While it lives, a child that ends leaves no trace in the program's account of its children (RUSAGE_CHILDREN): the
/// kernel reaps children whose signal is ignored without counting what they used.
struct Unaccounted(sys::Disposition);

impl Unaccounted {
    const IGNORED: sys::Disposition = [1, 0, 0, 0];

    /// `None` where it would show: a child of the program's could end meanwhile, or a pending SIGCHLD would be lost.
    fn begin() -> Option<Unaccounted> {
        // Another thread could make a child, and it could end, before the signal is heeded again.
        if !loaded::has_one_thread() {
            return None;
        }
        let childless =
            sys::waitid(P_ALL, 0, None, WEXITED | WNOHANG | WNOWAIT | __WALL) == Err(Errno::ECHILD);
        if !childless || sys::pending_signals() & 1 << (SIGCHLD - 1) != 0 {
            return None;
        }
        // SAFETY: SIGCHLD is blocked, and ignored until `drop`.
        unsafe { sys::sigaction(SIGCHLD, &Self::IGNORED) }.ok().map(Unaccounted)
    }
}

impl Drop for Unaccounted {
    fn drop(&mut self) {
        // SAFETY: what the program had set.
        let _ = unsafe { sys::sigaction(SIGCHLD, &self.0) };
    }
}

/// Runs `entry(argument)` in a process that shares this one's memory and nothing else, to its end. All signals must be
/// blocked.
///
/// # Safety
/// `entry` must be fit to run in the program's place: no libc, no thread-local storage.
pub unsafe fn aside(entry: extern "C" fn(usize) -> !, argument: usize) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    unsafe { aside_in(Aside::take()?, 0, Unaccounted::begin(), entry, argument) }
}

/// The same in new namespaces, as these flags of clone say, `unseen` or as a child without an exit signal.
///
/// # Safety
/// As for [`aside`].
unsafe fn aside_in(
    stack: Aside,
    namespaces: u32,
    unseen: Option<Unaccounted>,
    entry: extern "C" fn(usize) -> !,
    argument: usize,
) -> Result<(), Errno> {
    // Only children that end with SIGCHLD are reaped by its being ignored.
    let signal = if unseen.is_some() { SIGCHLD } else { 0 };
    // SAFETY: the stack is new, and with CLONE_VFORK we wait until the process is gone.
    let made =
        unsafe { sys::clone(CLONE_VM | CLONE_VFORK | namespaces | signal, stack.top(), entry, argument) };
    if let Ok(pid) = made {
        let mut status = 0;
        // Where it is unseen this says ECHILD as soon as it has ended.
        while sys::wait4(pid, &mut status, __WALL) == Err(Errno::EINTR) {}
    }
    made.map(drop)
}

/// Starts `entry(argument)` in a process that shares this one's memory, and that no wait of the program's finds. All
/// signals must be blocked.
///
/// # Safety
/// `entry` must be fit to run beside the program: no libc, no thread-local storage.
pub unsafe fn detached(entry: extern "C" fn(usize) -> !, argument: usize) -> Result<EngineProcess, Errno> {
    let stack_top = stack::map()?;
    let adopts = wait::adopts();
    let flags = if adopts { CLONE_VM | CLONE_PARENT } else { CLONE_VM };
    let mut order =
        CloneOrder { flags, stack_top, entry, argument, result: Err(Errno::ECHILD), may_yield: false };
    // With CLONE_PARENT the engine has the intermediate process's exit signal.
    let unseen = if adopts { None } else { Unaccounted::begin() };
    // SAFETY: `order` lives until the intermediate process has ended; the rest is the caller's contract.
    unsafe { aside_in(Aside::take()?, 0, unseen, intermediate, &raw mut order as usize) }?;
    let CloneOrder { result, may_yield, .. } = order;
    result.map(|pid| EngineProcess { pid, may_yield })
}

/// True when the engine of a child that is made now, in new `namespaces` (flags of clone) or not, could open and map
/// what it needs. All signals must be blocked, and the caller be
/// on a stack that is always there.
pub fn has_rights(namespaces: u32) -> bool {
    extern "C" fn attempt(result: usize) -> ! {
        sys::close_all();
        sys::want_descriptors(8);
        // SAFETY: `has_rights` waits for the end of this process.
        unsafe { *(result as *mut bool) = handover::can_be_had(handover::TRY_NS) && has_room() };
        sys::exit(0)
    }
    // In another PID namespace /proc shows others (tasks.rs). And the first process there must be the program's: when
    // that ends there can be no more.
    if namespaces & CLONE_NEWPID != 0 || !has_own_pid_namespace() {
        return false;
    }
    // Nobody else has it while the bell is held, and there is an engine.
    let Some(stack) = Aside::take_own() else { return false };
    let mut result = false;
    // SAFETY: `attempt` uses no libc, and what it writes lives as long as it does.
    unsafe { aside_in(stack, namespaces, Unaccounted::begin(), attempt, &raw mut result as usize) }.is_ok()
        && result
}

/// How much an engine maps at most beyond what its parent's had mapped at the fork: stacks, and tables that grow.
const ROOM: u64 = 16 << 20;

/// True when the engine of a child could map as much as its parent's, and a little more. Of a program that limits its
/// addresses after its engine has started the engine is not limited, and its child's is.
fn has_room() -> bool {
    let room = |limit: u64| {
        let statm = sys::open(b"/proc/self/statm\0", O_RDONLY)?;
        Ok(limit.saturating_sub(footprint::sizes(&statm).0 as u64) >= ROOM)
    };
    match sys::address_space_limit() {
        Ok(u64::MAX) => true,
        limit => limit.and_then(room).unwrap_or(false),
    }
}

/// True when children come to this process's own PID namespace: otherwise after unshare or setns.
fn has_own_pid_namespace() -> bool {
    let (mut own, mut for_children) = ([0; 32], [0; 32]);
    let read = |path: &[u8], name| sys::readlink(path, name).is_ok();
    read(b"/proc/thread-self/ns/pid\0", &mut own)
        && read(b"/proc/thread-self/ns/pid_for_children\0", &mut for_children)
        && own == for_children
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It would take a lock of the engine's, which is awake then.
    #[test]
    fn a_fork_beside_an_engine_maps_no_second_stack() {
        let held = Aside::take_own().expect("no other test makes a process aside");
        assert!(!has_rights(0));
        drop(held);
        assert!(Aside::take_own().is_some());
    }
}
