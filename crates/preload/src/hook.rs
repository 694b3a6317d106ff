//! What the program passes through: start-up, fork, madvise. Everything here runs on the program's own threads.
//!
//! Fork is hooked at the system call inside libc (patch.rs, fork.rs). Where that is not to be had, its symbols are: memory comes home before the call, and the engine
//! holds still until it has returned, so that parent and child find all of it present whatever libc does in between. The child starts an engine of its own.
//! vfork, posix_spawn, system and popen need nothing: their child runs in the same memory, with the same engine.
//! A process that has not grown yet (grow.rs) has no engine, and all of this passes on what is called.

use crate::arena;
use crate::aside;
use crate::control::{CONTROL, Order, State, UNANSWERED, Wish};
use crate::engine;
use crate::grow;
use crate::hooked;
use crate::libc::{Call, NO_SUCH_CALL, find_for_child, real, settle};
use crate::libc_threads;
use crate::page;
use crate::page_tables;
use crate::relocate;
use crate::run;
use crate::words;
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use memcg::{Memcg, Slot};
use uffd::sites::Site;
use uffd::sys::{self, consts::*};
use uffd::{Errno, Mutex, PAGE};
use vmscan::WINDOW;

/// One request to the engine at a time.
#[unsafe(link_section = ".data.zfolio")]
static BELL: Mutex<()> = Mutex::new(());

/// Start-up: runs as the library's constructor.
///
/// # Safety
/// `envp` must be the environment as the dynamic linker passes it.
#[unsafe(link_section = ".text.startup.zfolio")]
pub unsafe fn start(envp: *const *const u8) {
    // SAFETY: the caller's contract.
    let Some(path) = (unsafe { variable(envp, memcg::ENV.as_bytes()) }) else { return };
    run::enter(path);
    // SAFETY: as above.
    let waits = unsafe { grow::begin(envp, path) };
    if waits {
        return;
    }
    relocate::finish();
    if let Ok(page) = page::map_here(path).or_else(|refused| map_aside(path, refused)) {
        start_with(page);
    }
}

/// Where the page could not be opened.
fn map_aside(path: &[u8], refused: Errno) -> Result<usize, Errno> {
    let mut text = [0; page::PATH_BYTES];
    text.get_mut(..path.len()).ok_or(refused)?.copy_from_slice(path);
    let mask = sys::signal_mask(!0);
    let page = page::map_aside(text);
    sys::signal_mask(mask);
    page
}

/// Starts an engine for this process, which has none, with the run's page at this address.
pub(crate) fn start_with(page: usize) {
    let shared = page as *mut Memcg;
    // SAFETY: the mapping is as large as the structure, and all of it is atomics and plain integers; it is never unmapped.
    if unsafe { (*shared).magic.load(Acquire) } == memcg::MAGIC {
        // SAFETY: as above.
        run::set_memcg(unsafe { &*shared });
        start_engine(None, None);
    }
}

/// Starts an engine for this process, whose parent had the slot `parent` if it is a fork of it that has taken nothing over, and whose main thread has this exit
/// word, where that is known.
fn start_engine(parent: Option<&Slot>, word: Option<(usize, u32)>) {
    let Some(memcg) = run::memcg() else { return };
    let pid = sys::getpid().unwrap_or(0) as u32;
    let Some(slot) = claim(memcg, pid) else {
        memcg.unmanaged.fetch_add(1, Relaxed);
        return;
    };
    // It may have ended, and the slot be another's.
    let lives = |parent: &&Slot| sys::getppid() == Ok(parent.pid.load(Relaxed) as usize);
    if let Some(parent) = parent.filter(lives) {
        memcg.join_family(parent, slot);
    }
    libc_threads::learn(&CONTROL.blocks);
    let order = Order { memcg, slot, pid, main_thread: word.or_else(|| exit_word(pid)) };
    CONTROL.begin(&order);
    memcg.managed.fetch_add(1, Relaxed);
    // Every signal is blocked while the engine is born, so that it is born with all of them blocked.
    let mask = sys::signal_mask(!0);
    // SAFETY: `engine::main` is made to run beside the program.
    let born = unsafe { aside::detached(engine::main, &raw const CONTROL as usize) };
    sys::signal_mask(mask);
    match born {
        Ok(engine) => {
            // The engine itself says who it is, as long as the slot is its own.
            CONTROL.may_yield.store(engine.may_yield as u32, Relaxed);
            // What the process grows by until its engine looks is nobody's to have.
            if memcg.may_run_short(CONTROL.unseen_bytes() as u64) {
                CONTROL.await_look();
            }
        }
        Err(errno) => {
            words::unmanaged(&order, format_args!("the engine could not be started: clone says {errno}"));
            words::leave(&order);
        }
    }
}

/// Takes a slot for this process, and says there who it is.
fn claim(memcg: &'static Memcg, pid: u32) -> Option<&'static Slot> {
    let slot = memcg.claim(pid)?;
    introduce(slot);
    Some(slot)
}

/// Says in a slot who this process is.
pub(crate) fn introduce(slot: &Slot) {
    let mut name = [0; memcg::NAME_BYTES];
    let _ = sys::get_name(PR_GET_NAME, name.as_mut_ptr());
    slot.introduce(sys::getppid().unwrap_or(0) as u32, &name, sys::now_ns());
}

/// How far glibc's exit word lies before the robust list head, before 2.43; and how far it may lie from there at all, in one control block.
const EXIT_WORD: usize = 16;
const EXIT_WORD_FARTHEST: isize = 0x700;

/// The word that the kernel clears and wakes as the main thread ends or the process executes another program. `None` where it is not found. The main thread's number is the
/// process's.
fn exit_word(tid: u32) -> Option<(usize, u32)> {
    let head = |tid| sys::robust_list(tid).ok().filter(|head| *head != 0);
    // The kernel tells each thread its own, and glibc keeps it at one place of every control block.
    let told = || {
        let offset = sys::tid_address().ok()?.wrapping_sub(head(sys::gettid().ok()? as u32)?) as isize;
        (-EXIT_WORD_FARTHEST..EXIT_WORD_FARTHEST).contains(&offset).then_some(offset)
    };
    let offset = told().or_else(|| CONTROL.blocks.tid_from_head()).unwrap_or(-(EXIT_WORD as isize));
    let word = head(tid)?.wrapping_add_signed(offset);
    // SAFETY: the thread's control block, which stays mapped when it has ended.
    (unsafe { (word as *const u32).read_volatile() } == tid).then_some((word, tid))
}

/// The value of a variable, with its NUL.
///
/// # Safety
/// As for [`start`].
#[unsafe(link_section = ".text.startup.zfolio")]
unsafe fn variable<'a>(envp: *const *const u8, name: &[u8]) -> Option<&'a [u8]> {
    for index in 0.. {
        // SAFETY: the array ends with NULL, each string with NUL.
        let entry = unsafe { *envp.add(index) };
        if entry.is_null() {
            return None;
        }
        // SAFETY: as above.
        let text = unsafe { core::ffi::CStr::from_ptr(entry.cast()) }.to_bytes_with_nul();
        if text.len() > name.len() && text.starts_with(name) && text[name.len()] == b'=' {
            return Some(&text[name.len() + 1..]);
        }
    }
    None
}

/// Touches the doorbell: returns when the engine has answered, or at once where the bell is still full. Whoever asks looks himself whether it was done.
pub(crate) fn ring() {
    let bell = CONTROL.doorbell.load(Acquire);
    if bell != 0 {
        let at = bell + CONTROL.rings.fetch_add(1, Relaxed) * PAGE % WINDOW;
        // SAFETY: the engine's own page, mapped as long as the process lives; the read waits until the engine answers.
        unsafe { (at as *const u8).read_volatile() };
    }
}

/// Holds the doorbell for this thread. Signals are blocked, since a handler might want it too.
pub(crate) fn with_bell<R>(act: impl FnOnce() -> R) -> R {
    grow::is_own_memory();
    let mask = sys::signal_mask(!0);
    let bell = BELL.lock();
    let result = act();
    drop(bell);
    sys::signal_mask(mask);
    result
}

/// Asks the engine for something, with the bell held, and returns when it is done.
pub(crate) fn ask(wish: Wish, range: Range<usize>) {
    CONTROL.range.0.store(range.start, Relaxed);
    CONTROL.range.1.store(range.end, Relaxed);
    CONTROL.wish.store(wish as u32, SeqCst);
    // Another thread's answer may be under way, and the bell found answered: the wish itself says when it is done.
    while CONTROL.wish.load(Acquire) != 0 && CONTROL.state() == State::Awake {
        ring();
    }
}

/// Before a call that copies the address space, in a process with an engine: everything comes home and stays.
fn fork_begin() {
    CONTROL.forks.fetch_add(1, SeqCst);
    CONTROL.begin_copy();
    come_home();
}

/// A fork is counted: returns when everything is home.
pub(crate) fn come_home() {
    // The bell may be found answered for another thread's sake: what counts is what the engine says.
    while CONTROL.home.load(SeqCst) == 0 && CONTROL.state() == State::Awake {
        ring();
    }
}

/// After it, in the parent.
fn fork_end() {
    CONTROL.end_copy();
    CONTROL.forks.fetch_sub(1, SeqCst);
}

/// After it, in the child: the engine, its memory and its locks have stayed behind. `word` is the address of its exit word if the kernel knows that already, or 0.
pub(crate) fn child_begin(word: usize) {
    let parent = CONTROL.slot.load(Acquire);
    // SAFETY: a child of fork has one thread, and nothing of the engine's is left that could be in use.
    unsafe { forget_engine() };
    // SAFETY: null, or of static life.
    let parent = unsafe { parent.as_ref() };
    start_engine(parent, (word != 0).then(|| (word, sys::gettid().unwrap_or(0) as u32)));
}

/// In a process that the engine has not come to with the memory: begins anew.
///
/// # Safety
/// Nothing of the engine's may be in use.
pub(crate) unsafe fn forget_engine() {
    // SAFETY: the caller's contract.
    unsafe {
        arena::begin_anew(run::childrens());
        aside::free_aside_stack();
        (&raw const BELL).cast_mut().write(Mutex::new(()));
        CONTROL.reset(true);
        page_tables::reset();
    }
}

/// After a fork in a process without an engine, in the child: what another thread of the parent's was doing is not under way here. It is too small to be told
/// apart: what an engine finds later is its own.
pub(crate) fn small_child_begin() {
    if BELL.is_held() {
        // SAFETY: a child of fork has one thread.
        unsafe { (&raw const BELL).cast_mut().write(Mutex::new(())) };
    }
    aside::free_aside_stack();
    CONTROL.reset(false);
}

/// Calls libc's fork, in whatever form, with the engine prepared for it. `call` returns 0 in the child.
fn around_fork(call: impl FnOnce() -> i32) -> i32 {
    // The system call itself passes us (fork.rs).
    if hooked::is_active(Site::Clone) {
        return call();
    }
    grow::is_own_memory();
    grow::fork_begin();
    // Nobody starts an engine from here on.
    let is_managed = run::is_managed();
    if is_managed {
        fork_begin();
    }
    let pid = call();
    if pid != 0 {
        if is_managed {
            fork_end();
        }
        grow::fork_end();
        return pid;
    }
    grow::child_begin();
    if is_managed {
        child_begin(0)
    } else {
        small_child_begin()
    }
    pid
}

/// fork(3).
pub extern "C" fn fork() -> i32 {
    // SAFETY: the type of fork(3).
    let real = unsafe { real::<extern "C" fn() -> i32>(Call::Fork) };
    find_for_child();
    around_fork(|| real.map_or(NO_SUCH_CALL, |f| f()))
}

/// _Fork(3).
#[allow(non_snake_case)]
pub extern "C" fn _Fork() -> i32 {
    // SAFETY: the type of _Fork(3).
    let real = unsafe { real::<extern "C" fn() -> i32>(Call::RawFork) };
    find_for_child();
    around_fork(|| real.map_or(NO_SUCH_CALL, |f| f()))
}

/// daemon(3): forks inside libc, returns 0 in the child and never in the parent.
pub extern "C" fn daemon(no_chdir: i32, no_close: i32) -> i32 {
    // SAFETY: the type of daemon(3).
    let real = unsafe { real::<extern "C" fn(i32, i32) -> i32>(Call::Daemon) };
    around_fork(|| real.map_or(NO_SUCH_CALL, |f| f(no_chdir, no_close)))
}

/// forkpty(3).
pub extern "C" fn forkpty(terminal: *mut i32, name: *mut u8, termios: *const u8, size: *const u8) -> i32 {
    type Forkpty = extern "C" fn(*mut i32, *mut u8, *const u8, *const u8) -> i32;
    // SAFETY: the type of forkpty(3).
    let real = unsafe { real::<Forkpty>(Call::Forkpty) };
    around_fork(|| real.map_or(NO_SUCH_CALL, |f| f(terminal, name, termios, size)))
}

/// Installs guards by `call`, while the engine copies nothing: it looks for guards before each copy, and one that is made between the look and
/// the copy would be overwritten. What was there before is forgotten.
fn install_guards(range: Range<usize>, call: impl FnOnce() -> i32) -> i32 {
    with_bell(|| {
        CONTROL.guards.store(1, SeqCst);
        CONTROL.guarding.store(1, SeqCst);
        while CONTROL.copying.load(SeqCst) != 0 && CONTROL.has_engine() {
            sys::sched_yield();
        }
        let result = call();
        CONTROL.guarding.store(0, SeqCst);
        if result == 0 && CONTROL.state() == State::Awake {
            ask(Wish::Forget, range);
        }
        result
    })
}

/// madvise(2): what children are to have, or not, is the engine's to see to, since it keeps more out of them. A guard
/// that the program installs discards pages without an event, and so the engine is told here.
pub extern "C" fn madvise(at: usize, bytes: usize, advice: i32) -> i32 {
    const FREE: i32 = 8;
    const GUARD_INSTALL: i32 = 102;
    // SAFETY: the type of madvise(2).
    let real = unsafe { real::<extern "C" fn(usize, usize, i32) -> i32>(Call::Madvise) };
    // To give pages up at once is one of the two things that MADV_FREE allows, and the one that is seen at once: memory that is given up later
    // would have to be watched until then.
    let managed = run::is_managed();
    let effective = if advice == FREE && managed { MADV_DONTNEED as i32 } else { advice };
    let call = || real.map_or(NO_SUCH_CALL, |f| f(at, bytes, effective));
    let end = bytes.checked_next_multiple_of(PAGE).and_then(|bytes| at.checked_add(bytes));
    let range = at..end.unwrap_or(at);
    if advice == GUARD_INSTALL && run::is_in_run() {
        return install_guards(range, call);
    }
    match advice as u32 {
        // What is no range the kernel refuses before it looks at the advice.
        MADV_DONTFORK | MADV_DOFORK if at.is_multiple_of(PAGE) && !range.is_empty() => {
            advise_children(range, advice as u32, call)
        }
        _ => call(),
    }
}

/// MADV_DONTFORK and MADV_DOFORK: an engine that is awake gives the advice for the program (dontfork.rs).
fn advise_children(range: Range<usize>, advice: u32, call: impl Fn() -> i32) -> i32 {
    grow::is_own_memory();
    if CONTROL.state() == State::Asleep {
        if advice == MADV_DONTFORK {
            CONTROL.early_advice.store(1, SeqCst);
        }
        let result = call();
        // If it has awoken meanwhile it may not know of this.
        if CONTROL.state() == State::Asleep {
            return result;
        }
    }
    let wish = if advice == MADV_DONTFORK { Wish::KeepOut } else { Wish::LetIn };
    let outcome = with_bell(|| {
        CONTROL.outcome.store(UNANSWERED, SeqCst);
        ask(wish, range);
        CONTROL.outcome.load(SeqCst)
    });
    match outcome {
        // The engine can manage nothing after all.
        UNANSWERED => call(),
        errno => settle(-(errno as isize)) as i32,
    }
}

/// mremap has made a mapping of `before` bytes one of `after` bytes, at `at`: what was advised on it goes along, which
/// events tell in part only (dontfork.rs).
pub(crate) fn has_moved(at: usize, before: usize, after: usize) {
    let [before, after] = [before, after].map(|bytes| bytes.next_multiple_of(PAGE));
    if CONTROL.state() == State::Awake {
        let wish = if before < after { Wish::Grow } else { Wish::Move };
        with_bell(|| ask(wish, at..at + after));
    }
}

/// mremap(2), where the program itself calls it: of a process with small mappings libc's own call is not hooked yet.
pub extern "C" fn mremap(at: usize, bytes: usize, new_bytes: usize, flags: i32, to: usize) -> usize {
    grow::before_mremap();
    // SAFETY: the type of mremap(2), whose last argument is there or not.
    let real = unsafe { real::<extern "C" fn(usize, usize, usize, i32, usize) -> usize>(Call::Mremap) };
    real.map_or(usize::MAX, |f| f(at, bytes, new_bytes, flags, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::null;
    use std::vec::Vec;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let texts = [c"ZFOLIO=1", c"ZFOLIO_MEMCG=/x", c"A=b"];
        let mut envp: Vec<*const u8> = texts.iter().map(|t| t.as_ptr().cast()).collect();
        envp.push(null());
        // SAFETY: an environment as the function expects it.
        unsafe {
            assert_eq!(variable(envp.as_ptr(), b"ZFOLIO_MEMCG"), Some(&b"/x\0"[..]));
            assert_eq!(variable(envp.as_ptr(), b"ZFOLIO_MEM"), None);
        }
    }
}
