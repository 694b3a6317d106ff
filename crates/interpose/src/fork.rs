//! Fork in place: the child takes over what is out, and nothing is brought home.
//!
//! ```text
//!   thread   ── asks ─────── waits ──> clone ──────────────────────────> goes on
//!   engine        └ calm, lets the child have all ─┤ stands still ├─ reads what is late, tells ─> goes on
//!   child                                    └> its engine: takes over, registers, verifies ─> its thread goes on
//! ```
//!
//! The thread is inside libc's fork, with whatever locks that takes, or calls another of clone.rs, and [`pass`] is
//! called instead of the system call. From the moment when the engine stands still nothing that is out can come in, so
//! the thread touches no memory of the program's until that is over: it is on a stack of the library's own. This is
//! safe because
//! 1. one thread forks at a time (the bell is held), and the engine stands still for nothing but the clone itself: it
//!    goes on when either the thread or the child has been seen behind it, or the program is gone;
//! 2. the child's thread waits until its engine has registered all that is out, and has found it to be holes
//!    (mm/pager/fork.rs); if that fails it is killed with a message, before an instruction of the program's has run;
//! 3. the parent does not wait for the child, so that a child that is killed leaves nobody waiting; and the child needs
//!    of the parent what its engine writes to the channel before it does anything else. If that never comes the child
//!    is killed with a message.
//!
//! Where a child could not have an engine (no right to userfaultfd, no slot), or other threads leave no moment without
//! an event, memory is brought home first instead, as libc_fork.rs does.

use crate::aside;
use crate::bell;
use crate::child::{self, ChildKind};
use crate::clone::Clone;
use crate::own;
use crate::start;
use control::fork_channel::{CHANNEL_BYTES, ForkStage, LOOK_NS, channel};
use control::messages;
use control::run;
use control::{CONTROL, EngineState, Order, Request, Takeover};
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::*;
use memcg::{Memcg, Slot};
use uffd::sys::{self, Errno, consts::*};

/// The stack of the thread that forks, while the engine stands still. The bell is held around its use.
#[repr(align(4096))]
struct OwnStack(UnsafeCell<[u8; 64 << 10]>);

// SAFETY: used by one thread at a time.
unsafe impl Sync for OwnStack {}

static OWN_STACK: OwnStack = OwnStack(UnsafeCell::new([0; 64 << 10]));

/// Calls `f(argument)` on the library's own stack. The bell must be held.
fn on_own_stack(f: extern "C" fn(usize), argument: usize) {
    let top = OWN_STACK.0.get() as usize + size_of::<OwnStack>();
    // SAFETY: the stack is nobody else's meanwhile; the old pointer is in a register that calls preserve.
    unsafe {
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {f}",
            "mov rsp, r12",
            top = in(reg) top,
            f = in(reg) f,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// An attempt to fork in place.
struct Attempt {
    memcg: &'static Memcg,
    clone: Clone,
    /// Nothing was done, where it is `None`.
    result: Option<isize>,
}

/// Makes a system call that copies the address space, with all of ours prepared for it. The result is the kernel's: a
/// number, 0 in the child, or an error below 0.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn pass(clone: &Clone) -> isize {
    own::is_own_memory();
    own::fork_begin();
    let pid = around(clone);
    if pid == 0 {
        own::child_begin()
    } else {
        own::fork_end()
    }
    pid
}

/// Makes the call, beside an engine.
fn make(clone: &Clone) -> isize {
    CONTROL.begin_copy();
    let result = clone.make();
    CONTROL.end_copy();
    result
}

/// The same as [`pass`] where no engine is half started.
fn around(clone: &Clone) -> isize {
    let Some(memcg) = run::memcg() else {
        let make = || {
            let result = clone.make();
            if result == 0 {
                child::begin_small();
            }
            clone.tell(result);
            result
        };
        return if clone.is_told() { own::with_bell(make) } else { make() };
    };
    own::with_bell(|| {
        CONTROL.forks.fetch_add(1, SeqCst);
        if CONTROL.state() == EngineState::Awake {
            CONTROL.forks.fetch_sub(1, SeqCst);
            let mut attempt = Attempt { memcg, clone: *clone, result: None };
            on_own_stack(attempt_in_place, &raw mut attempt as usize);
            if let Some(result) = attempt.result {
                clone.tell(result);
                return result;
            }
            CONTROL.forks.fetch_add(1, SeqCst);
            bell::come_home();
        }
        let result = make(clone);
        match result {
            0 => child::begin(clone.exit_word()),
            _ => drop(CONTROL.forks.fetch_sub(1, SeqCst)),
        }
        clone.tell(result);
        result
    })
}

/// On the library's own stack: what `attempt` points to is on the program's, and is not touched while the engine stands
/// still, nor while a lock of the engine's is held.
extern "C" fn attempt_in_place(attempt: usize) {
    let attempt = attempt as *mut Attempt;
    // SAFETY: `around` waits for us.
    let (memcg, clone) = unsafe { ((*attempt).memcg, (*attempt).clone) };
    let result = in_place(memcg, clone);
    // SAFETY: as above.
    unsafe { (*attempt).result = result };
}

fn in_place(memcg: &'static Memcg, clone: Clone) -> Option<isize> {
    if !aside::has_rights(clone.namespaces()) {
        return None;
    }
    let own_pid = sys::getpid().unwrap_or(0) as u32;
    let slot = memcg.claim(own_pid)?;
    // SAFETY: null, or of static life.
    if let Some(own) = unsafe { CONTROL.slot.load(Acquire).as_ref() } {
        memcg.join_family(own, slot);
    }
    CONTROL.channel.store(0, SeqCst);
    bell::ask(Request::Fork, 0..0);
    let Some(channel) = channel() else {
        memcg.forgo(slot);
        return None;
    };
    channel.reach(ForkStage::Waiting);
    channel.wait_while(&[ForkStage::Waiting], || true);
    if channel.stage() == ForkStage::Refused as u32 {
        channel.leave();
        memcg.forgo(slot);
        return None;
    }
    let pid = make(&clone);
    channel.pass(if pid < 0 { ForkStage::Failed } else { ForkStage::Cloned });
    if pid == 0 {
        take_over(memcg, slot, clone.exit_word());
        return Some(0);
    }
    channel.leave();
    if pid < 0 {
        memcg.forgo(slot);
    } else {
        // The child does the same, unless it is killed before; or it has ended, and the slot is another's.
        let _ = slot.pid.compare_exchange(own_pid, pid as u32, AcqRel, Relaxed);
    }
    Some(pid)
}

/// The child's thread, before it touches any memory of the program's.
fn take_over(memcg: &'static Memcg, slot: &'static Slot, exit_word: usize) {
    let (channel, pager) = (CONTROL.channel.load(Relaxed), CONTROL.pager.load(Relaxed));
    // SAFETY: a child of fork has one thread, and its parent's engine stood still: nothing of the engine's is in use.
    unsafe { child::reset(&ChildKind::TakesOver(channel..channel + CHANNEL_BYTES)) };
    // The thread is through with it.
    CONTROL.channel_users.store(1, Relaxed);
    CONTROL.channel.store(channel, Relaxed);
    CONTROL.pager.store(pager, Relaxed);
    CONTROL.takeover.store(Takeover::UnderWay as u32, Release);
    let (pid, tid) = (sys::getpid().unwrap_or(0) as u32, sys::gettid().unwrap_or(0) as u32);
    slot.pid.store(pid, Release);
    start::introduce(slot);
    let main_thread = (exit_word != 0).then_some((exit_word, tid));
    let order = Order { memcg, slot, pid, main_thread };
    CONTROL.begin(&order);
    memcg.managed.fetch_add(1, Relaxed);
    match start::make_engine() {
        Ok(engine) => {
            CONTROL.may_yield.store(engine.may_yield as u32, Relaxed);
            await_takeover(engine.pid);
        }
        Err(errno) => cannot(slot, format_args!("its engine could not be started: clone says {errno}")),
    }
}

fn await_takeover(engine: u32) {
    let takeover = &CONTROL.takeover;
    while takeover.load(Acquire) == Takeover::UnderWay as u32 {
        let _ = sys::futex_wait(takeover.as_ptr(), Takeover::UnderWay as u32, Some(LOOK_NS), false);
        let mut byte = [0];
        // It has this memory as long as it lives.
        if sys::peek(engine, takeover.as_ptr() as usize, &mut byte) == Err(Errno::ESRCH)
            && takeover.load(Acquire) == Takeover::UnderWay as u32
        {
            messages::leave_message(
                "the engine of a forked process has died; the process was stopped, since what is out would be missing",
            );
            break;
        }
    }
    if takeover.load(Acquire) != Takeover::Done as u32 {
        let _ = sys::kill(sys::getpid().unwrap_or(0) as u32, SIGKILL);
        sys::exit(1);
    }
}

/// A child cannot go on.
fn cannot(slot: &Slot, why: core::fmt::Arguments<'_>) {
    messages::child_stopped(slot, why);
    let _ = sys::kill(sys::getpid().unwrap_or(0) as u32, SIGKILL);
    sys::exit(1);
}
