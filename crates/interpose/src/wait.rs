//! Waiting for any child, in a process to which orphaned descendants come (PR_SET_CHILD_SUBREAPER, or the first of a
//! PID namespace): engines come to it too, as children that it does not know. They are reaped here, and where nothing
//! but engines is left the answer is ECHILD. Elsewhere a wait is libc's own.
//!
//! ```text
//!   who is ready? ── an engine ──> reaped ──> again
//!     │     │ └───── a child of the program's ──> libc's wait for that one alone; another thread has it? ──> again
//!     │     └ nobody ── engines alone ──> ECHILD
//!     │                 others ──> WNOHANG: 0; else libc's wait, which leaves it to be waited for ──> again
//!     └ there is no child ──> ECHILD
//! ```
//!
//! A wait of the program's that may take any child is never made: an engine that ends between the look and the wait
//! would be taken for the program's child.
//!
//! Its own engine such a process has as a child without an exit signal (aside.rs), of which a wait knows nothing but
//! with `__WALL` or `__WCLONE`: so also who waits past libc is not kept waiting.

use crate::libc::{Call, NO_SUCH_CALL, errno, real, set_errno};
use control::line::Line;
use control::run::is_in_run;
use control::tasks;
use core::ffi::c_void;
use core::fmt::Write;
use core::ptr::null_mut;
use uffd::sys::{self, Errno, consts::*};

/// Bytes of `siginfo_t` in words, and which of them is `si_pid`.
const INFO_WORDS: usize = 32;
const INFO_PID: usize = 4;

/// waitid's P_PID.
const P_PID: i32 = 1;

type Waitid = extern "C" fn(i32, u32, *mut u32, i32) -> i32;
type Wait4 = extern "C" fn(i32, *mut i32, i32, *mut c_void) -> i32;

/// True when orphans come to this process.
pub fn adopts() -> bool {
    is_in_run() && (sys::is_subreaper() == Ok(true) || sys::getpid() == Ok(1))
}

/// The names that engines and workers give themselves.
const NAMES: [&[u8]; 2] = [b"zfolio-engine", b"zfolio-worker"];

/// A file of /proc, or its beginning.
fn read<'a>(path: &Line, text: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let len = sys::read(&sys::open(path.as_str().as_bytes(), O_RDONLY)?, text)?;
    Ok(&text[..len])
}

/// True for the engine or worker that /proc has under this number.
fn is_engine_there(number: u32) -> bool {
    let (mut path, mut name) = (Line::default(), [0; 16]);
    let _ = write!(path, "/proc/{number}/comm\0");
    read(&path, &mut name).is_ok_and(|name| NAMES.contains(&name.trim_ascii_end()))
}

/// True when child `pid` is an engine or a worker. In a PID namespace with another's /proc it has another number there.
fn is_engine(pid: u32) -> bool {
    if tasks::is_shown() {
        return is_engine_there(pid);
    }
    let mut found = false;
    let _ = each_child(|number| {
        found = is_engine_there(number) && own_number(number) == Some(pid);
        !found
    });
    found
}

/// The number that the process has itself which /proc has under this one: the last of its line.
fn own_number(number: u32) -> Option<u32> {
    let (mut path, mut text) = (Line::default(), [0; 1024]);
    let _ = write!(path, "/proc/{number}/status\0");
    let mut lines = read(&path, &mut text).ok()?.split(|&byte| byte == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(b"NSpid:"))?;
    line.split(|byte| byte.is_ascii_whitespace()).filter_map(tasks::parse_tid).next_back()
}

/// Calls `each` with the number of every child, as /proc has it, until it says false. An error where it does not tell.
fn each_child(mut each: impl FnMut(u32) -> bool) -> Result<(), Errno> {
    let mut goes_on = true;
    let mut of_thread = |thread: &str| -> Result<(), Errno> {
        let (mut path, mut text, mut number) = (Line::default(), [0; 256], None);
        let _ = write!(path, "/proc/{thread}/children\0");
        let file = sys::open(path.as_str().as_bytes(), O_RDONLY)?;
        loop {
            let len = sys::read(&file, &mut text)?;
            if len == 0 || !goes_on {
                return Ok(());
            }
            for byte in &text[..len] {
                if byte.is_ascii_digit() {
                    number = Some(number.unwrap_or(0) * 10 + (byte - b'0') as u32);
                } else if let Some(number) = number.take().filter(|_| goes_on) {
                    goes_on = each(number);
                }
            }
        }
    };
    // A directory has a link for each one in it, and two of its own.
    if sys::links(b"/proc/self/task\0")? == 3 && sys::gettid() == sys::getpid() {
        return of_thread("thread-self");
    }
    let tasks = sys::open(b"/proc/self/task\0", O_RDONLY | O_DIRECTORY)?;
    let mut result = Ok(());
    sys::read_dir(&tasks, |name| {
        if let Some(thread) = tasks::parse_tid(name) {
            let mut path = Line::default();
            let _ = write!(path, "self/task/{thread}");
            // A thread that has ended since has left its children to another.
            match of_thread(path.as_str()) {
                Err(Errno::ENOENT | Errno::ESRCH) | Ok(()) => {}
                refused => result = refused,
            }
        }
    })?;
    result
}

/// True when there is no child but engines and workers. Where that cannot be told there may be others.
fn has_engines_alone() -> bool {
    let mut others = false;
    let look = each_child(|number| {
        others = !is_engine_there(number);
        !others
    });
    look.is_ok() && !others
}

/// What a look says of the children.
enum Look {
    /// This one is ready, and none of ours.
    Ready(u32),
    /// None is, and there are some.
    Nobody,
    /// There is none.
    None,
    /// The options are none of the kernel's.
    Refused,
}

/// Reaps the engines that are ready, and looks who else is. `options` are waitid's.
fn look(options: u32) -> Look {
    loop {
        let mut info = [0u32; INFO_WORDS];
        match sys::waitid(P_ALL, 0, Some(&mut info), options | WNOWAIT | WNOHANG) {
            Err(Errno::ECHILD) => return Look::None,
            Err(_) => return Look::Refused,
            Ok(_) if info[INFO_PID] == 0 => return Look::Nobody,
            Ok(_) if !is_engine(info[INFO_PID]) => return Look::Ready(info[INFO_PID]),
            Ok(_) => reap(info[INFO_PID]),
        }
    }
}

fn reap(engine: u32) {
    let mut status = 0;
    let _ = sys::wait4(engine, &mut status, WNOHANG | __WALL);
}

/// How a wait for any child goes on.
#[derive(Clone, Copy)]
enum Next {
    /// By a wait for this one, which may be another thread's by now.
    For(u32),
    /// It is not to wait, and nobody is ready.
    Nobody,
    /// It fails, and errno says why.
    Failed,
    /// It is the kernel's to refuse.
    Refused,
}

/// For a wait of these options, as waitid has them.
fn next(options: u32) -> Next {
    // The engine of what this process has executed before is a child without an exit signal, of which no other wait
    // knows.
    let _ = look(WEXITED | __WCLONE);
    // SAFETY: the type of waitid(2).
    let Some(waitid) = (unsafe { real::<Waitid>(Call::Waitid) }) else { return Next::Refused };
    loop {
        match look(options) {
            Look::Ready(pid) => return Next::For(pid),
            Look::None => return fail(Errno::ECHILD),
            Look::Refused => return Next::Refused,
            Look::Nobody => {}
        }
        // Who ends while the list is read may hide another in it, and is ready then; so there are two.
        if has_engines_alone() {
            match look(options) {
                Look::Nobody if has_engines_alone() => return fail(Errno::ECHILD),
                Look::Ready(pid) => return Next::For(pid),
                _ => continue,
            }
        }
        if options & WNOHANG != 0 {
            return Next::Nobody;
        }
        let mut info = [0u32; INFO_WORDS];
        // libc's, since it sets errno and can be cancelled.
        if waitid(P_ALL as i32, 0, info.as_mut_ptr(), (options | WNOWAIT) as i32) != 0 {
            return Next::Failed;
        }
    }
}

fn fail(errno: Errno) -> Next {
    set_errno(errno.0 as i32);
    Next::Failed
}

/// A wait for any child, with these options of waitid's. `make` does what is left to do, and has no result where a
/// child was ready and is not any more.
fn any(options: u32, make: impl Fn(Next) -> Option<i32>) -> i32 {
    // SAFETY: null, or the thread's own.
    let before = unsafe { errno().as_ref() }.copied().unwrap_or(0);
    loop {
        let next = next(options);
        let result = if matches!(next, Next::Failed) { Some(-1) } else { make(next) };
        if let Some(result) = result {
            return result;
        }
        set_errno(before);
    }
}

/// True when a wait for one child has said that it is not there any more.
fn is_gone(result: i32) -> bool {
    // SAFETY: null, or the thread's own.
    result == -1 && unsafe { errno().as_ref() }.is_some_and(|errno| *errno == Errno::ECHILD.0 as i32)
}

/// wait4(2) for any child, in a process that adopts.
fn wait4_any(status: *mut i32, options: i32, usage: *mut c_void) -> i32 {
    // SAFETY: the type of wait4(2).
    let Some(real) = (unsafe { real::<Wait4>(Call::Wait4) }) else { return NO_SUCH_CALL };
    any(options as u32 | WEXITED, |next| match next {
        Next::For(pid) => {
            let result = real(pid as i32, status, options | WNOHANG as i32, usage);
            (result != 0 && !is_gone(result)).then_some(result)
        }
        Next::Nobody => Some(0),
        Next::Failed | Next::Refused => Some(real(-1, status, options, usage)),
    })
}

/// wait(2).
pub extern "C" fn wait(status: *mut i32) -> i32 {
    if adopts() {
        return wait4_any(status, 0, null_mut());
    }
    // SAFETY: the type of wait(2).
    unsafe { real::<extern "C" fn(*mut i32) -> i32>(Call::Wait) }.map_or(NO_SUCH_CALL, |f| f(status))
}

/// wait3(2).
pub extern "C" fn wait3(status: *mut i32, options: i32, usage: *mut c_void) -> i32 {
    if adopts() {
        return wait4_any(status, options, usage);
    }
    // SAFETY: the type of wait3(2).
    let real = unsafe { real::<extern "C" fn(*mut i32, i32, *mut c_void) -> i32>(Call::Wait3) };
    real.map_or(NO_SUCH_CALL, |f| f(status, options, usage))
}

/// wait4(2).
pub extern "C" fn wait4(pid: i32, status: *mut i32, options: i32, usage: *mut c_void) -> i32 {
    if pid == -1 && adopts() {
        return wait4_any(status, options, usage);
    }
    // SAFETY: the type of wait4(2).
    unsafe { real::<Wait4>(Call::Wait4) }.map_or(NO_SUCH_CALL, |f| f(pid, status, options, usage))
}

/// waitpid(2).
pub extern "C" fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32 {
    if pid == -1 && adopts() {
        return wait4_any(status, options, null_mut());
    }
    // SAFETY: the type of waitpid(2).
    let real = unsafe { real::<extern "C" fn(i32, *mut i32, i32) -> i32>(Call::Waitpid) };
    real.map_or(NO_SUCH_CALL, |f| f(pid, status, options))
}

/// waitid(2).
pub extern "C" fn waitid(kind: i32, id: u32, info: *mut u32, options: i32) -> i32 {
    // SAFETY: the type of waitid(2).
    let Some(real) = (unsafe { real::<Waitid>(Call::Waitid) }) else { return NO_SUCH_CALL };
    if kind != P_ALL as i32 || options as u32 & WEXITED == 0 || !adopts() {
        return real(kind, id, info, options);
    }
    let mut own = [0u32; INFO_WORDS];
    let info = if info.is_null() { own.as_mut_ptr() } else { info };
    // SAFETY: after a call that has succeeded, which has written it.
    let found = || unsafe { info.add(INFO_PID).read() };
    any(options as u32, |next| match next {
        Next::For(pid) => {
            let result = real(P_PID, pid, info, options | WNOHANG as i32);
            (!is_gone(result) && (result != 0 || found() != 0)).then_some(result)
        }
        Next::Nobody => {
            // The kernel writes that there is nobody; who is ready by now stays to be waited for.
            let result = real(kind, id, info, options | (WNOHANG | WNOWAIT) as i32);
            (result != 0 || found() == 0).then_some(result)
        }
        Next::Failed | Next::Refused => Some(real(kind, id, info, options)),
    })
}

/// wait4 by `syscall`. libc's has the same result and error.
pub extern "C" fn wait4_by_syscall(
    _number: i64,
    pid: i32,
    status: *mut i32,
    options: i32,
    usage: *mut c_void,
) -> i64 {
    wait4(pid, status, options, usage) as i64
}

/// The same of waitid, which has an argument more than libc's: where that is used the call is made as it is. The
/// program's addresses are numbers here.
pub extern "C" fn waitid_by_syscall(
    number: i64,
    kind: i32,
    id: u32,
    info: usize,
    options: i32,
    usage: usize,
) -> i64 {
    if usage == 0 {
        return waitid(kind, id, info as *mut u32, options) as i64;
    }
    // SAFETY: the type of syscall(2).
    let real = unsafe { real::<unsafe extern "C" fn(i64, ...) -> i64>(Call::Syscall) };
    // SAFETY: the program's own call, with its own arguments.
    real.map_or(NO_SUCH_CALL as i64, |f| unsafe { f(number, kind, id, info, options, usage) })
}
