//! libc's functions that fork, where the system call inside them does not pass the library (patch.rs): memory comes
//! home before the call, and the engine holds still until it has returned, so that parent and child find all of it
//! present whatever libc does in between. The child starts an engine of its own. vfork, posix_spawn, system and popen
//! need nothing: their child runs in the same memory, with the same engine.

use crate::bell;
use crate::child;
use crate::libc::{Call, NO_SUCH_CALL, find_for_child, real};
use crate::own;
use control::CONTROL;
use control::hooked;
use control::run;
use core::sync::atomic::Ordering::*;
use uffd::sites::Site;

/// Before a call that copies the address space, in a process with an engine: everything comes home and stays.
fn fork_begin() {
    CONTROL.forks.fetch_add(1, SeqCst);
    CONTROL.begin_copy();
    bell::come_home();
}

/// After it, in the parent.
fn fork_end() {
    CONTROL.end_copy();
    CONTROL.forks.fetch_sub(1, SeqCst);
}

/// Calls libc's fork, in whatever form, with the engine prepared for it. `call` returns 0 in the child.
fn around_fork(call: impl FnOnce() -> i32) -> i32 {
    // The system call itself passes us (fork.rs).
    if hooked::is_active(Site::Clone) {
        return call();
    }
    own::is_own_memory();
    own::fork_begin();
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
        own::fork_end();
        return pid;
    }
    own::child_begin();
    if is_managed {
        child::begin(0)
    } else {
        child::begin_small()
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
