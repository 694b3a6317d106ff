//! Waiting for children, in a process to which orphaned descendants come (PR_SET_CHILD_SUBREAPER, or the first of a pid namespace): the
//! engines of those descendants come to it too, as children that it does not know. They are reaped here before the program's own
//! wait can find them. Elsewhere a wait is libc's own.

use crate::hook::{Call, NO_SUCH_CALL, is_in_run, real};
use crate::words::Line;
use core::ffi::c_void;
use core::fmt::Write;
use uffd::sys::{self, consts::*};

/// Bytes of `siginfo_t` in words, and which of them is `si_pid`.
const INFO_WORDS: usize = 32;
const INFO_PID: usize = 4;

type Waitid = extern "C" fn(i32, u32, *mut u32, i32) -> i32;

fn adopts() -> bool {
    let mut yes = 0;
    is_in_run()
        && (sys::get_subreaper(PR_GET_CHILD_SUBREAPER, &raw mut yes).is_ok() && yes != 0
            || sys::getpid() == Ok(1))
}

/// True when child `pid` is an engine or a worker, by the name that it gave itself.
fn is_engine(pid: u32) -> bool {
    let (mut path, mut name) = (Line::default(), [0; 16]);
    let _ = write!(path, "/proc/{pid}/comm\0");
    let len =
        sys::open(path.as_str().as_bytes(), O_RDONLY).and_then(|f| sys::read(&f, &mut name)).unwrap_or(0);
    matches!(&name[..len], b"zfolio-engine\n" | b"zfolio-worker\n")
}

/// Reaps engines until the next child that any wait would find is the program's own. False when there is none to come: errno is set.
fn settle(options: i32) -> bool {
    // SAFETY: the type of waitid(2).
    let Some(waitid) = (unsafe { real::<Waitid>(Call::Waitid) }) else { return true };
    loop {
        let mut info = [0u32; INFO_WORDS];
        // libc's, since it sets errno and can be cancelled.
        if waitid(P_ALL as i32, 0, info.as_mut_ptr(), options | WNOWAIT as i32) != 0 {
            return false;
        }
        if info[INFO_PID] == 0 || !is_engine(info[INFO_PID]) {
            return true;
        }
        let mut status = 0;
        let _ = sys::wait4(info[INFO_PID], &mut status, WNOHANG | __WALL);
    }
}

/// The same for the calls whose `options` say nothing of WEXITED; `pid` is -1 for any child.
fn settle_any(pid: i32, options: i32) -> bool {
    pid != -1 || !adopts() || settle(options | WEXITED as i32)
}

/// wait(2).
pub extern "C" fn wait(status: *mut i32) -> i32 {
    // SAFETY: the type of wait(2).
    let real = unsafe { real::<extern "C" fn(*mut i32) -> i32>(Call::Wait) };
    if settle_any(-1, 0) { real.map_or(NO_SUCH_CALL, |f| f(status)) } else { -1 }
}

/// wait3(2).
pub extern "C" fn wait3(status: *mut i32, options: i32, usage: *mut c_void) -> i32 {
    // SAFETY: the type of wait3(2).
    let real = unsafe { real::<extern "C" fn(*mut i32, i32, *mut c_void) -> i32>(Call::Wait3) };
    if settle_any(-1, options) { real.map_or(NO_SUCH_CALL, |f| f(status, options, usage)) } else { -1 }
}

/// wait4(2).
pub extern "C" fn wait4(pid: i32, status: *mut i32, options: i32, usage: *mut c_void) -> i32 {
    // SAFETY: the type of wait4(2).
    let real = unsafe { real::<extern "C" fn(i32, *mut i32, i32, *mut c_void) -> i32>(Call::Wait4) };
    if settle_any(pid, options) { real.map_or(NO_SUCH_CALL, |f| f(pid, status, options, usage)) } else { -1 }
}

/// waitpid(2).
pub extern "C" fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32 {
    // SAFETY: the type of waitpid(2).
    let real = unsafe { real::<extern "C" fn(i32, *mut i32, i32) -> i32>(Call::Waitpid) };
    if settle_any(pid, options) { real.map_or(NO_SUCH_CALL, |f| f(pid, status, options)) } else { -1 }
}

/// waitid(2).
pub extern "C" fn waitid(kind: i32, id: u32, info: *mut u32, options: i32) -> i32 {
    // SAFETY: the type of waitid(2).
    let real = unsafe { real::<Waitid>(Call::Waitid) };
    if kind == P_ALL as i32 && options & WEXITED as i32 != 0 && adopts() && !settle(options) {
        return -1;
    }
    real.map_or(NO_SUCH_CALL, |f| f(kind, id, info, options))
}
