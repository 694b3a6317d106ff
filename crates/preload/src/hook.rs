//! What the program passes through: start-up, fork, madvise. Everything here runs on the program's own threads.
//!
//! Fork, for now, brings memory home: before the call the engine takes everything back and lets go of all ranges, and holds still until the call
//! has returned, so that parent and child find all of it present whatever libc does in between. The child starts an engine of its own.
//! vfork, posix_spawn, system and popen need nothing: their child runs in the same memory, with the same engine.

use crate::arena;
use crate::birth;
use crate::control::{CONTROL, Order, State, Wish};
use crate::dontfork::{self, Advice};
use crate::engine;
use crate::words;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use memcg::Memcg;
use uffd::sys::{self, consts::*};
use uffd::{Mutex, PAGE};

/// The shared page of the run, once start-up has found it.
static MEMCG: AtomicPtr<Memcg> = AtomicPtr::new(core::ptr::null_mut());

/// libc's own functions behind ours.
static REAL: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];

#[derive(Clone, Copy)]
pub(crate) enum Call {
    Fork,
    RawFork,
    Daemon,
    Forkpty,
    Madvise,
    Unshare,
    Ioctl,
    Wait,
    Wait3,
    Wait4,
    Waitpid,
    Waitid,
    Vmsplice,
    Setsockopt,
    // Not hooked: libc's own, for what the others do.
    Fcntl,
    Pwritev2,
    Poll,
    ErrnoLocation,
}

const NAMES: [&[u8]; 18] = [
    b"fork\0",
    b"_Fork\0",
    b"daemon\0",
    b"forkpty\0",
    b"madvise\0",
    b"unshare\0",
    b"ioctl\0",
    b"wait\0",
    b"wait3\0",
    b"wait4\0",
    b"waitpid\0",
    b"waitid\0",
    b"vmsplice\0",
    b"setsockopt\0",
    b"fcntl\0",
    b"pwritev2\0",
    b"poll\0",
    b"__errno_location\0",
];

/// One request to the engine at a time.
static BELL: Mutex<()> = Mutex::new(());

/// Start-up: runs as the library's constructor.
///
/// # Safety
/// `envp` must be the environment as the dynamic linker passes it.
pub unsafe fn start(envp: *const *const u8) {
    for (name, real) in NAMES.iter().zip(&REAL) {
        real.store(next_symbol(name), Relaxed);
    }
    // SAFETY: the caller's contract.
    let Some(path) = (unsafe { variable(envp, memcg::ENV.as_bytes()) }) else { return };
    let Ok(file) = sys::open(path, O_RDWR) else { return };
    let Ok(at) = sys::mmap(size_of::<Memcg>(), PROT_READ | PROT_WRITE, MAP_SHARED, Some(&file)) else {
        return;
    };
    let shared = at as *mut Memcg;
    // SAFETY: the mapping is as large as the structure, and all of it is atomics and plain integers; it is never unmapped.
    if unsafe { (*shared).magic.load(Acquire) } == memcg::MAGIC {
        MEMCG.store(shared, Release);
        start_engine();
    }
}

/// Starts an engine for this process.
fn start_engine() {
    // SAFETY: set once, and never unmapped.
    let Some(memcg) = (unsafe { MEMCG.load(Acquire).as_ref() }) else { return };
    let pid = sys::getpid().unwrap_or(0) as u32;
    let Some(slot) = memcg.claim(pid) else {
        memcg.unmanaged.fetch_add(1, Relaxed);
        return;
    };
    let order = Order { memcg, slot, pid, main_thread: exit_word() };
    CONTROL.begin(&order);
    // Every signal is blocked while the engine is born, so that it is born with all of them blocked.
    let mask = sys::signal_mask(!0);
    // SAFETY: `engine::main` is made to run beside the program.
    let born = unsafe { birth::detached(engine::main, &raw const CONTROL as usize) };
    sys::signal_mask(mask);
    match born {
        Ok(engine) => {
            memcg.managed.fetch_add(1, Relaxed);
            slot.engine_pid.store(engine.pid, Release);
            CONTROL.may_yield.store(engine.may_yield as u32, Relaxed);
        }
        Err(errno) => {
            words::unmanaged(&order, format_args!("the engine could not be started: clone says {errno}"));
            memcg.release(slot);
        }
    }
}

/// The word that the kernel clears and wakes as the calling thread ends or the process executes another program: glibc keeps it right before the
/// robust list head. `None` where it is not found there.
fn exit_word() -> Option<(usize, u32)> {
    let tid = sys::gettid().ok()? as u32;
    let head = sys::robust_list(0).ok().filter(|h| *h != 0)?;
    let word = head - 16;
    // SAFETY: the thread's own control block, which it has been using since it began.
    (unsafe { (word as *const u32).read_volatile() } == tid).then_some((word, tid))
}

/// The value of a variable, with its NUL.
///
/// # Safety
/// As for [`start`].
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

/// The function that the program would have called without us; 0 where there is none.
fn next_symbol(name: &[u8]) -> usize {
    #[cfg(panic = "abort")]
    {
        const RTLD_NEXT: usize = usize::MAX;
        let dlsym: usize;
        // SAFETY: reads the address of a weak symbol from the table of addresses: 0 where libc has none.
        unsafe {
            core::arch::asm!(".weak dlsym", "mov {}, qword ptr [rip + dlsym@GOTPCREL]", out(reg) dlsym)
        };
        if dlsym == 0 {
            return 0;
        }
        // SAFETY: dlsym(3) has this signature.
        let dlsym = unsafe { core::mem::transmute::<usize, extern "C" fn(usize, *const u8) -> usize>(dlsym) };
        dlsym(RTLD_NEXT, name.as_ptr())
    }
    #[cfg(not(panic = "abort"))]
    {
        let _ = name;
        0
    }
}

/// libc's own function, as the function type `F`.
///
/// # Safety
/// `F` must be the type of a pointer to that function.
pub(crate) unsafe fn real<F: Copy>(call: Call) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // A constructor that runs before ours may call already.
    let address = match REAL[call as usize].load(Relaxed) {
        0 => next_symbol(NAMES[call as usize]),
        known => known,
    };
    // SAFETY: the address of a function is a function pointer; the type is the caller's contract.
    (address != 0).then(|| unsafe { core::mem::transmute_copy(&address) })
}

/// Touches the doorbell: returns when the engine has done what was asked for.
fn ring() {
    let bell = CONTROL.doorbell.load(Acquire);
    if bell != 0 {
        // SAFETY: the engine's own page, mapped as long as the process lives; the read waits until the engine answers.
        unsafe { (bell as *const u8).read_volatile() };
    }
}

/// Holds the doorbell for this thread. Signals are blocked, since a handler might want it too.
fn with_bell<R>(act: impl FnOnce() -> R) -> R {
    let mask = sys::signal_mask(!0);
    let bell = BELL.lock();
    let result = act();
    drop(bell);
    sys::signal_mask(mask);
    result
}

/// Asks the engine for something, with the bell held, and returns when it is done.
fn ask(wish: Wish, range: Range<usize>) {
    CONTROL.range.0.store(range.start, Relaxed);
    CONTROL.range.1.store(range.end, Relaxed);
    CONTROL.wish.store(wish as u32, SeqCst);
    // Another thread's answer may be under way, and the bell found answered: the wish itself says when it is done.
    while CONTROL.wish.load(Acquire) != 0 && CONTROL.state() == State::Awake {
        ring();
    }
}

/// Before a call that copies the address space: everything comes home and stays.
fn fork_begin() {
    CONTROL.forks.fetch_add(1, SeqCst);
    // The bell may be found answered for another thread's sake: what counts is what the engine says.
    while CONTROL.home.load(SeqCst) == 0 && CONTROL.state() == State::Awake {
        ring();
    }
}

/// After it, in the parent.
fn fork_end() {
    CONTROL.forks.fetch_sub(1, SeqCst);
}

/// After it, in the child: the engine, its memory and its locks have stayed behind.
fn child_begin() {
    // SAFETY: a child of fork has one thread, and nothing of the engine's is left that could be in use.
    unsafe {
        arena::reset();
        dontfork::reset();
        (&raw const BELL).cast_mut().write(Mutex::new(()));
        CONTROL.reset();
    }
    start_engine();
}

/// Calls libc's fork, in whatever form, with the engine prepared for it. `call` returns 0 in the child.
fn around_fork(call: impl FnOnce() -> i32) -> i32 {
    if MEMCG.load(Relaxed).is_null() {
        return call();
    }
    fork_begin();
    let pid = call();
    if pid == 0 {
        child_begin()
    } else {
        fork_end()
    }
    pid
}

/// What a call returns that this libc does not have.
pub(crate) const NO_SUCH_CALL: i32 = -1;

/// fork(3).
#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub extern "C" fn fork() -> i32 {
    // SAFETY: the type of fork(3).
    let real = unsafe { real::<extern "C" fn() -> i32>(Call::Fork) };
    around_fork(|| real.map_or(NO_SUCH_CALL, |f| f()))
}

/// _Fork(3).
#[allow(non_snake_case)]
#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub extern "C" fn _Fork() -> i32 {
    // SAFETY: the type of _Fork(3).
    let real = unsafe { real::<extern "C" fn() -> i32>(Call::RawFork) };
    around_fork(|| real.map_or(NO_SUCH_CALL, |f| f()))
}

/// daemon(3): forks inside libc, returns 0 in the child and never in the parent.
#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub extern "C" fn daemon(no_chdir: i32, no_close: i32) -> i32 {
    // SAFETY: the type of daemon(3).
    let real = unsafe { real::<extern "C" fn(i32, i32) -> i32>(Call::Daemon) };
    around_fork(|| real.map_or(NO_SUCH_CALL, |f| f(no_chdir, no_close)))
}

/// forkpty(3).
#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub extern "C" fn forkpty(terminal: *mut i32, name: *mut u8, termios: *const u8, size: *const u8) -> i32 {
    type Forkpty = extern "C" fn(*mut i32, *mut u8, *const u8, *const u8) -> i32;
    // SAFETY: the type of forkpty(3).
    let real = unsafe { real::<Forkpty>(Call::Forkpty) };
    around_fork(|| real.map_or(NO_SUCH_CALL, |f| f(terminal, name, termios, size)))
}

/// True when an engine was started for this process, or tried to be.
pub(crate) fn is_managed() -> bool {
    !MEMCG.load(Relaxed).is_null()
}

/// unshare(2): CLONE_VM asks that nobody shares the memory, and does nothing else. The engine does, of which the program knows nothing: what can
/// be asked of the program's own threads is CLONE_SIGHAND.
#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub extern "C" fn unshare(flags: i32) -> i32 {
    const VM: i32 = CLONE_VM as i32;
    const SIGHAND: i32 = 0x800;
    // SAFETY: the type of unshare(2).
    let real = unsafe { real::<extern "C" fn(i32) -> i32>(Call::Unshare) };
    let flags = if flags & VM != 0 && is_managed() { flags & !VM | SIGHAND } else { flags };
    real.map_or(NO_SUCH_CALL, |f| f(flags))
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

/// ioctl(2): memory that the program gives to a userfaultfd of its own must not be another's, and the engine may have registered it.
#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub extern "C" fn ioctl(fd: i32, request: usize, argument: usize) -> i32 {
    // SAFETY: the type of ioctl(2).
    let real = unsafe { real::<unsafe extern "C" fn(i32, usize, ...) -> i32>(Call::Ioctl) };
    // SAFETY: the program's own call, with its own arguments.
    let call = || real.map_or(NO_SUCH_CALL, |f| unsafe { f(fd, request, argument) });
    if request as u32 != uffd::REGISTER || !is_managed() {
        return call();
    }
    // struct uffdio_register begins with start and length. Where it cannot be read the call will say so.
    let mut words = [0u8; 16];
    let pid = sys::getpid().unwrap_or(0) as u32;
    if sys::peek(pid, argument, &mut words) != Ok(words.len()) {
        return call();
    }
    let word = |i: usize| usize::from_ne_bytes(core::array::from_fn(|b| words[i * 8 + b]));
    let range = word(0)..word(0).saturating_add(word(1));
    if range.is_empty() || range.end > 1 << 47 || (range.start | range.end) % PAGE != 0 {
        return call();
    }
    with_bell(|| {
        CONTROL.spare(range.clone());
        if CONTROL.state() == State::Awake {
            ask(Wish::LetGo, range);
        }
        let result = call();
        CONTROL.spare(0..0);
        result
    })
}

/// madvise(2): what the program keeps out of its children is remembered, since we keep more out; a guard that it installs discards pages
/// without an event, and so we are told here.
#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub extern "C" fn madvise(at: usize, bytes: usize, advice: i32) -> i32 {
    const FREE: i32 = 8;
    const GUARD_INSTALL: i32 = 102;
    // SAFETY: the type of madvise(2).
    let real = unsafe { real::<extern "C" fn(usize, usize, i32) -> i32>(Call::Madvise) };
    // To give pages up at once is one of the two things that MADV_FREE allows, and the one that is seen at once: memory that is given up later
    // would have to be watched until then.
    let managed = is_managed();
    let effective = if advice == FREE && managed { MADV_DONTNEED as i32 } else { advice };
    let call = || real.map_or(NO_SUCH_CALL, |f| f(at, bytes, effective));
    let range = at..at.saturating_add(bytes.next_multiple_of(PAGE));
    if advice == GUARD_INSTALL && managed {
        return install_guards(range, call);
    }
    if !managed {
        return call();
    }
    let post = |advice| dontfork::advised(range.clone(), advice, || CONTROL.has_engine());
    match advice as u32 {
        MADV_DONTFORK => {
            post(Advice::Begin);
            let result = call();
            post(if result == 0 { Advice::KeepOut } else { Advice::Refused });
            result
        }
        MADV_DOFORK => {
            let result = call();
            if result == 0 {
                post(Advice::GiveBack);
            }
            result
        }
        _ => call(),
    }
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
