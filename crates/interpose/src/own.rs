//! Whose memory this is: a child of vfork runs in its parent's, and what it does there is not done for it. And the gate
//! between forks and starts of an engine, which exclude one another.

use crate::bell;
use crate::child::{self, ChildKind};
use crate::relocate;
use control::run;
use core::sync::atomic::{AtomicU32, Ordering::*};
use uffd::sys;

/// The process whose memory this is: in a child of vfork that is not the process that runs.
#[unsafe(link_section = ".data.zfolio")]
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Calls of fork under way, or [`STARTING`]. An engine that is half started must not be copied into a child, and
/// whoever is about to start one cannot wait for a fork, which may want a lock that it holds. So a fork waits for a
/// start, and a start that meets a fork is put off.
#[unsafe(link_section = ".data.zfolio")]
static GATE: AtomicU32 = AtomicU32::new(0);
const STARTING: u32 = 1 << 31;

/// Start-up: the memory is this process's.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn begin() {
    OWNER.store(sys::getpid().unwrap_or(0) as u32, Relaxed);
}

/// Holds the doorbell for this thread, if the memory is its process's.
pub fn with_bell<R>(act: impl FnOnce() -> R) -> R {
    is_own_memory();
    bell::with(act)
}

/// An engine is about to be started; false when somebody forks, or starts one.
pub fn start_begin() -> bool {
    GATE.compare_exchange(0, STARTING, SeqCst, Relaxed).is_ok()
}

/// It has been, or not.
pub fn start_end() {
    GATE.store(0, SeqCst);
}

/// True when the running process is the one that the memory belongs to; false in a child of vfork, whose parent will
/// grow by itself. A copy that no hook saw, whose parent's engine it has not, begins anew here.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn is_own_memory() -> bool {
    let own = sys::getpid().unwrap_or(0) as u32;
    if own == OWNER.load(Acquire) {
        return true;
    }
    relocate::finish();
    // A child of a clone that passed no hook, or one of vfork, or the engine: those share the memory of whose it is,
    // which may not be their parent.
    let parent = sys::getppid().unwrap_or(0) as u32;
    let owner = OWNER.load(Acquire);
    if sys::same_vm(own, parent) != Ok(false) || owner != BEGINNING && sys::same_vm(own, owner) == Ok(true) {
        return false;
    }
    let mask = sys::signal_mask(!0);
    begin_anew(own);
    sys::signal_mask(mask);
    true
}

/// In `OWNER` while a copy that no hook saw begins anew.
const BEGINNING: u32 = u32::MAX;

/// In a copy that no hook saw, which may have several threads by now: one of them sees to it that it is a process of
/// its own, and the others wait for that.
fn begin_anew(own: u32) {
    loop {
        match OWNER.load(Acquire) {
            owner if owner == own => return,
            BEGINNING => sys::sched_yield(),
            owner if OWNER.compare_exchange(owner, BEGINNING, SeqCst, Relaxed).is_ok() => break,
            _ => {}
        }
    }
    if run::is_managed() {
        child::begin(0);
    } else {
        // SAFETY: of the engine that another thread of the parent's may have been starting nothing is in use here.
        unsafe { child::reset(&ChildKind::Anew) };
    }
    child_begin();
}

/// Before the system call of a fork: waits until no engine is half started.
pub fn fork_begin() {
    loop {
        let forks = GATE.load(SeqCst);
        if forks & STARTING != 0 {
            sys::sched_yield();
        } else if GATE.compare_exchange(forks, forks + 1, SeqCst, Relaxed).is_ok() {
            return;
        }
    }
}

/// After it, in the parent.
pub fn fork_end() {
    GATE.fetch_sub(1, SeqCst);
}

/// After it, in the child.
pub fn child_begin() {
    GATE.store(0, SeqCst);
    OWNER.store(sys::getpid().unwrap_or(0) as u32, Release);
}
