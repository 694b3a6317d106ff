//! Fork in place: the child takes over what is out, and nothing is brought home.
//!
//! ```text
//!   thread   ── asks ─────── waits ──> clone ──────────────────────────> goes on
//!   engine        └ calm, lets the child have all ─┤ stands still ├─ reads what is late, tells ─> goes on
//!   child                                    └> its engine: takes over, registers, verifies ─> its thread goes on
//! ```
//!
//! The thread is inside libc's fork, with whatever locks that takes, or calls another of clone.rs, and [`pass`] is called instead of the system call. From the moment when the engine stands
//! still nothing that is out can come in, so the thread touches no memory of the program's until that is over: it is on a stack of the
//! library's own. This is safe because
//! 1. one thread forks at a time (the bell is held), and the engine stands still for nothing but the clone itself: it goes on when either the thread
//!    or the child has been seen behind it, or the program is gone;
//! 2. the child's thread waits until its engine has registered all that is out, and has found it to be holes (mm/fork.rs); if that fails it is killed
//!    with a message, before an instruction of the program's has run;
//! 3. the parent does not wait for the child, so that a child that is killed leaves nobody waiting; and the child needs of the parent what its
//!    engine writes to the cradle before it does anything else. If that never comes the child is killed with a message.
//!
//! Where a child could not have an engine (no right to userfaultfd, no slot), or other threads leave no moment without an event, memory is brought home
//! first instead, as hook.rs does.

use crate::arena;
use crate::birth;
use crate::clone::Clone;
use crate::control::{Birth, CONTROL, Order, State, Wish};
use crate::dontfork;
use crate::engine;
use crate::grow;
use crate::hook;
use crate::line::Line;
use crate::words;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::fmt::Write;
use core::iter::once;
use core::sync::atomic::{AtomicU32, Ordering::*};
use memcg::{Memcg, Slot};
use mm::fork::Late;
use uffd::PAGE;
use uffd::sys::{self, Errno, consts::*};

/// How many late events a child can be told of. More mean that it cannot take over.
const LATE_MAX: usize = 100;

/// How long a child waits for its parent's engine to tell what was late, at most: it does nothing else meanwhile.
const TOLD_NS: u64 = 20_000_000_000;

/// How often the engine looks whether a thread has rung.
const SERVE_NS: u64 = 100_000;

/// How often those who wait look whether what they wait for can still come.
const LOOK_NS: u64 = 20_000_000;

/// Where a fork stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// The thread has asked, and may still touch the doorbell.
    Asked = 0,
    /// It waits, and the engine prepares.
    Waiting = 1,
    /// The engine stands still: the thread may clone.
    Ready = 2,
    /// It cannot: the memory is to be brought home.
    Refused = 3,
    /// There is a child.
    Cloned = 4,
    /// There is none.
    Failed = 5,
    /// The parent's engine has told what was late.
    Told = 6,
    /// It could not tell all.
    Untold = 7,
}

/// What a parent and one child of its have in common: a shared page.
pub struct Cradle {
    /// A [`Stage`].
    stage: AtomicU32,
    len: AtomicU32,
    late: UnsafeCell<[Late; LATE_MAX]>,
}

// SAFETY: `late` is written by the parent's engine before the stage is `Told`, and read by the child's after it.
unsafe impl Sync for Cradle {}

const _: () = assert!(size_of::<Cradle>() <= PAGE);

/// Bytes of its mapping.
const CRADLE: usize = PAGE;

impl Cradle {
    /// For the engine: a new one; `None` without memory. In the parent it goes when both thread and engine have left
    /// it, in the child with the engine.
    pub fn map() -> Option<&'static Cradle> {
        let left = CONTROL.left_cradle.swap(0, Relaxed);
        if left != 0 {
            // SAFETY: its thread has left it before it gave the bell to the next one.
            unsafe { arena::unmap(left, CRADLE) };
        }
        let at = arena::map_shared(CRADLE)?;
        // The child must have it.
        sys::madvise_keep(at, CRADLE, MADV_DOFORK).ok()?;
        CONTROL.cradle_users.store(2, Relaxed);
        // SAFETY: new, zeroed, and large enough; of zeros all of it is a value, or is not read before it is written.
        Some(unsafe { &*(at as *const Cradle) })
    }

    /// The thread is through with it. The engine unmaps it: of engine memory there is a table, with a lock that no
    /// thread of the program's takes.
    fn leave(&'static self) {
        CONTROL.cradle_users.fetch_sub(1, AcqRel);
    }

    /// The engine is through with it, and unmaps it now or, where the thread has not left it yet, before the next one.
    fn give_up(&'static self) {
        if CONTROL.cradle_users.fetch_sub(1, AcqRel) == 1 {
            // SAFETY: nobody of this process uses it any more.
            unsafe { arena::unmap(self.at(), CRADLE) }
        } else {
            CONTROL.left_cradle.store(self.at(), Relaxed);
        }
    }

    /// Its address.
    pub fn at(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    fn stage(&self) -> u32 {
        self.stage.load(Acquire)
    }

    fn reach(&self, stage: Stage) {
        self.stage.store(stage as u32, Release);
        sys::futex_wake(self.stage.as_ptr(), u32::MAX >> 1, true);
    }

    /// For the thread, and its copy in the child: it is behind the clone. The other of the two may have said so already, and the engine have gone on.
    fn pass(&self, stage: Stage) {
        let _ = self.stage.compare_exchange(Stage::Ready as u32, stage as u32, AcqRel, Relaxed);
        sys::futex_wake(self.stage.as_ptr(), u32::MAX >> 1, true);
    }

    /// Waits while the stage is one of `stages`, and `look` says that there is something to wait for.
    fn wait_while(&self, stages: &[Stage], mut look: impl FnMut() -> bool) {
        loop {
            let now = self.stage();
            if !stages.iter().any(|&s| s as u32 == now) || !look() {
                return;
            }
            let _ = sys::futex_wait(self.stage.as_ptr(), now, Some(LOOK_NS), true);
        }
    }

    /// For the engine: serves the thread by `serve` until it waits here; false when it is gone.
    pub fn await_thread(&self, is_gone: impl Fn() -> bool, mut serve: impl FnMut()) -> bool {
        while self.stage() == Stage::Asked as u32 {
            if is_gone() {
                return false;
            }
            serve();
            let _ = sys::futex_wait(self.stage.as_ptr(), Stage::Asked as u32, Some(SERVE_NS), true);
        }
        true
    }

    /// For the engine: the thread may clone; returns when it has, or has not, or is gone. True when there may be a
    /// child.
    pub fn await_clone(&self, is_gone: impl Fn() -> bool) -> bool {
        self.reach(Stage::Ready);
        self.wait_while(&[Stage::Ready], || !is_gone());
        self.stage() != Stage::Failed as u32
    }

    /// For the engine: there can be no clone, and it is through with it.
    pub fn refuse(&'static self) {
        self.reach(Stage::Refused);
        self.give_up();
    }

    /// For the engine: tells the child what was late, if that is not too much, and is through with it.
    pub fn tell(&'static self, late: &[Late]) {
        let fits = late.len() <= LATE_MAX;
        if fits {
            // SAFETY: nobody reads it yet.
            unsafe { (&mut *self.late.get())[..late.len()].copy_from_slice(late) };
            self.len.store(late.len() as u32, Relaxed);
        }
        self.reach(if fits { Stage::Told } else { Stage::Untold });
        self.give_up();
    }

    /// For the child's engine: what was late, after which it is through with the cradle. `None` when it will never know.
    pub fn told(&'static self) -> Option<Vec<Late>> {
        let began = sys::now_ns();
        self.wait_while(&[Stage::Ready, Stage::Cloned], || sys::now_ns() - began < TOLD_NS);
        // SAFETY: written before the stage was `Told`.
        let late = unsafe { &*self.late.get() };
        let told =
            (self.stage() == Stage::Told as u32).then(|| late[..self.len.load(Relaxed) as usize].to_vec());
        self.give_up();
        told
    }
}

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

/// Makes a system call that copies the address space, with all of ours prepared for it. The result is the kernel's: a number, 0 in the child, or an
/// error below 0.
#[unsafe(link_section = ".text.startup.zfolio")]
pub fn pass(clone: &Clone) -> isize {
    grow::is_own_memory();
    grow::fork_begin();
    let pid = around(clone);
    if pid == 0 {
        grow::child_begin()
    } else {
        grow::fork_end()
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
    // SAFETY: null, or mapped for as long as the process lives.
    let Some(memcg) = (unsafe { hook::memcg().as_ref() }) else {
        let make = || {
            let result = clone.make();
            if result == 0 {
                hook::small_child_begin();
            }
            clone.tell(result);
            result
        };
        return if clone.is_told() { hook::with_bell(make) } else { make() };
    };
    hook::with_bell(|| {
        CONTROL.forks.fetch_add(1, SeqCst);
        if CONTROL.state() == State::Awake {
            CONTROL.forks.fetch_sub(1, SeqCst);
            let mut attempt = Attempt { memcg, clone: *clone, result: None };
            on_own_stack(attempt_in_place, &raw mut attempt as usize);
            if let Some(result) = attempt.result {
                clone.tell(result);
                return result;
            }
            CONTROL.forks.fetch_add(1, SeqCst);
            hook::come_home();
        }
        let result = make(clone);
        match result {
            0 => hook::child_begin(clone.exit_word()),
            _ => drop(CONTROL.forks.fetch_sub(1, SeqCst)),
        }
        clone.tell(result);
        result
    })
}

/// On the library's own stack: what `attempt` points to is on the program's, and is not touched while the engine stands still, nor while a lock of the
/// engine's is held.
extern "C" fn attempt_in_place(attempt: usize) {
    let attempt = attempt as *mut Attempt;
    // SAFETY: `around` waits for us.
    let (memcg, clone) = unsafe { ((*attempt).memcg, (*attempt).clone) };
    let result = in_place(memcg, clone);
    // SAFETY: as above.
    unsafe { (*attempt).result = result };
}

fn in_place(memcg: &'static Memcg, clone: Clone) -> Option<isize> {
    if !birth::has_rights(clone.namespaces()) {
        return None;
    }
    let own_pid = sys::getpid().unwrap_or(0) as u32;
    let slot = memcg.claim(own_pid)?;
    // SAFETY: null, or of static life.
    if let Some(own) = unsafe { CONTROL.slot.load(Acquire).as_ref() } {
        memcg.join_family(own, slot);
    }
    CONTROL.cradle.store(0, SeqCst);
    hook::ask(Wish::Fork, 0..0);
    let Some(cradle) = cradle() else {
        memcg.forgo(slot);
        return None;
    };
    cradle.reach(Stage::Waiting);
    cradle.wait_while(&[Stage::Waiting], || true);
    if cradle.stage() == Stage::Refused as u32 {
        cradle.leave();
        memcg.forgo(slot);
        return None;
    }
    let pid = make(&clone);
    cradle.pass(if pid < 0 { Stage::Failed } else { Stage::Cloned });
    if pid == 0 {
        be_born(memcg, slot, clone.exit_word());
        return Some(0);
    }
    cradle.leave();
    if pid < 0 {
        memcg.forgo(slot);
    } else {
        // The child does the same, unless it is killed before; or it has ended, and the slot is another's.
        let _ = slot.pid.compare_exchange(own_pid, pid as u32, AcqRel, Relaxed);
    }
    Some(pid)
}

/// The child's thread, before it touches any memory of the program's.
fn be_born(memcg: &'static Memcg, slot: &'static Slot, exit_word: usize) {
    let (cradle, pager) = (CONTROL.cradle.load(Relaxed), CONTROL.pager.load(Relaxed));
    // SAFETY: a child of fork has one thread, and its parent's engine stood still: nothing of the engine's is in use.
    unsafe {
        arena::take_over(hook::childrens().chain(once(cradle..cradle + CRADLE)));
        dontfork::reset();
    }
    birth::free_aside_stack();
    CONTROL.reset(true);
    // The thread is through with it.
    CONTROL.cradle_users.store(1, Relaxed);
    CONTROL.cradle.store(cradle, Relaxed);
    CONTROL.pager.store(pager, Relaxed);
    CONTROL.birth.store(Birth::Labour as u32, Release);
    let (pid, tid) = (sys::getpid().unwrap_or(0) as u32, sys::gettid().unwrap_or(0) as u32);
    slot.pid.store(pid, Release);
    hook::introduce(slot);
    let main_thread = (exit_word != 0).then_some((exit_word, tid));
    let order = Order { memcg, slot, pid, main_thread };
    CONTROL.begin(&order);
    memcg.managed.fetch_add(1, Relaxed);
    // SAFETY: `engine::main` is made to run beside the program.
    match unsafe { birth::detached(engine::main, &raw const CONTROL as usize) } {
        Ok(engine) => {
            CONTROL.may_yield.store(engine.may_yield as u32, Relaxed);
            await_birth(engine.pid);
        }
        Err(errno) => cannot(slot, format_args!("its engine could not be started: clone says {errno}")),
    }
}

fn await_birth(engine: u32) {
    let birth = &CONTROL.birth;
    while birth.load(Acquire) == Birth::Labour as u32 {
        let _ = sys::futex_wait(birth.as_ptr(), Birth::Labour as u32, Some(LOOK_NS), false);
        let mut byte = [0];
        // It has this memory as long as it lives.
        if sys::peek(engine, birth.as_ptr() as usize, &mut byte) == Err(Errno::ESRCH)
            && birth.load(Acquire) == Birth::Labour as u32
        {
            words::last_words(
                "the engine of a forked process has died; the process was stopped, since what is out would be missing",
            );
            break;
        }
    }
    if birth.load(Acquire) != Birth::Done as u32 {
        let _ = sys::kill(sys::getpid().unwrap_or(0) as u32, SIGKILL);
        sys::exit(1);
    }
}

/// A child cannot go on.
fn cannot(slot: &Slot, why: core::fmt::Arguments<'_>) {
    say(slot, why);
    let _ = sys::kill(sys::getpid().unwrap_or(0) as u32, SIGKILL);
    sys::exit(1);
}

/// For the child's engine: says why the child must not run, and has its thread end it.
pub fn fail(slot: &Slot, why: core::fmt::Arguments<'_>) {
    say(slot, why);
    deliver(Birth::Failed);
}

fn say(slot: &Slot, why: core::fmt::Arguments<'_>) {
    let mut line = Line::default();
    let pid = CONTROL.pid.load(Relaxed);
    let _ = write!(
        line,
        "process {pid}, a child of a fork, was stopped: what is out cannot be restored there: {why}"
    );
    slot.say(line.as_str());
    slot.state.store(memcg::State::Stopped as u32, Release);
}

/// For the child's engine: the thread may run on, or not.
pub fn deliver(birth: Birth) {
    CONTROL.birth.store(birth as u32, Release);
    sys::futex_wake(CONTROL.birth.as_ptr(), 1, false);
}

/// The cradle of the fork under way, in parent and child.
pub fn cradle() -> Option<&'static Cradle> {
    let at = CONTROL.cradle.load(Acquire);
    // SAFETY: mapped for this fork, and unmapped by whoever asks here when it is through with it.
    (at != 0).then(|| unsafe { &*(at as *const Cradle) })
}
