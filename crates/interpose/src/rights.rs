//! Calls after which an engine could not be started any more: the process gives up the right to userfaultfd, the place
//! where the run's page is, or the system calls that a start takes (seccomp, which may kill for them). A process that
//! is about to do so gets its engine before, however small it is: the engine opens what it needs, and then gives up the
//! same (follow.rs).

use crate::bell;
use crate::grow;
use crate::libc::{Call, NO_SUCH_CALL, real};
use control::log;
use control::page_tables;
use control::run;
use control::{CONTROL, EngineState};
use core::ffi::{c_char, c_void};
use core::sync::atomic::Ordering::*;
use linux_raw_sys::general as g;
use uffd::sys::{self, consts::*};

/// seccomp's operations that set a filter or the strict mode; others only ask.
const SECCOMP_SET_MODE_FILTER: usize = 1;

const PR_SET_DUMPABLE: usize = 4;
const PR_SET_SECCOMP: usize = 22;
const PR_CAPBSET_DROP: usize = 24;
const PR_SET_NO_NEW_PRIVS: usize = 38;
const PR_CAP_AMBIENT: usize = 47;

/// The program is about to give something up: it has an engine after this, which has opened what it needs. Its
/// children, which keep their rights, are to read nothing that it writes with those that are left.
pub(crate) fn begin() {
    grow::before_it_cannot();
    log::seal(CONTROL.pid.load(Relaxed));
    ask();
}

/// How long a thread of the program waits for an engine that sleeps, at most, and how often it calls it.
const WAIT_NS: u64 = 1_000_000_000;
const CALL_NS: u64 = 500_000;

/// For a thread of the program that is about to give something up, or has done so: returns when the engine has seen to
/// it. In a process without one it does nothing, nor in one that only shares the program's memory (a child of vfork),
/// whose rights are its own.
fn ask() {
    if !CONTROL.has_engine() || sys::getpid() != Ok(CONTROL.pid.load(Relaxed) as usize) {
        return;
    }
    let asked = CONTROL.rights_asked.fetch_add(1, SeqCst).wrapping_add(1);
    let end = sys::now_ns() + WAIT_NS;
    loop {
        let done = CONTROL.rights_done.load(SeqCst);
        if done.wrapping_sub(asked) as i32 >= 0 || !CONTROL.has_engine() {
            return;
        }
        if CONTROL.state() == EngineState::Awake {
            // Whoever waits there is answered, and this was asked for before.
            bell::ring();
            if CONTROL.state() == EngineState::Awake {
                continue;
            }
        }
        if sys::now_ns() > end {
            return;
        }
        // It sleeps on this word, or is about to.
        if let Some((word, _)) = CONTROL.order().main_thread {
            sys::futex_wake(word as *const u32, u32::MAX >> 1, true);
        }
        let _ = sys::futex_wait(CONTROL.rights_done.as_ptr(), done, Some(CALL_NS), true);
    }
}

/// Defines functions that give something up by libc's own. Each use looks that one up, as a function with the same
/// arguments and result.
macro_rules! give_up {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) => $real:expr;)*) => {
        $(
            $(#[$doc])*
            pub extern "C" fn $name($($argument: $type),*) -> i32 {
                begin();
                let real: Option<extern "C" fn($($type),*) -> i32> = $real;
                let result = real.map_or(NO_SUCH_CALL, |f| f($($argument),*));
                ask();
                result
            }
        )*
    };
}

give_up! {
    /// setuid(2).
    // SAFETY: the type of setuid(2).
    setuid(user: u32) => unsafe { real(Call::Setuid) };
    /// seteuid(2).
    // SAFETY: the type of seteuid(2).
    seteuid(user: u32) => unsafe { real(Call::Seteuid) };
    /// setreuid(2).
    // SAFETY: the type of setreuid(2).
    setreuid(user: u32, effective: u32) => unsafe { real(Call::Setreuid) };
    /// setresuid(2).
    // SAFETY: the type of setresuid(2).
    setresuid(user: u32, effective: u32, saved: u32) => unsafe { real(Call::Setresuid) };
    /// setfsuid(2).
    // SAFETY: the type of setfsuid(2).
    setfsuid(user: u32) => unsafe { real(Call::Setfsuid) };
    /// setfsgid(2).
    // SAFETY: the type of setfsgid(2).
    setfsgid(group: u32) => unsafe { real(Call::Setfsgid) };
    /// setgid(2): a group may be what opens /dev/userfaultfd.
    // SAFETY: the type of setgid(2).
    setgid(group: u32) => unsafe { real(Call::Setgid) };
    /// setegid(2).
    // SAFETY: the type of setegid(2).
    setegid(group: u32) => unsafe { real(Call::Setegid) };
    /// setregid(2).
    // SAFETY: the type of setregid(2).
    setregid(group: u32, effective: u32) => unsafe { real(Call::Setregid) };
    /// setresgid(2).
    // SAFETY: the type of setresgid(2).
    setresgid(group: u32, effective: u32, saved: u32) => unsafe { real(Call::Setresgid) };
    /// setgroups(2).
    // SAFETY: the type of setgroups(2).
    setgroups(count: usize, groups: *const u32) => unsafe { real(Call::Setgroups) };
    /// initgroups(3).
    // SAFETY: the type of initgroups(3).
    initgroups(user: *const c_char, group: u32) => unsafe { real(Call::Initgroups) };
    /// capset(2).
    // SAFETY: the type of capset(2).
    capset(header: *mut c_void, data: *const c_void) => unsafe { real(Call::Capset) };
    /// chroot(2).
    // SAFETY: the type of chroot(2).
    chroot(path: *const c_char) => unsafe { real(Call::Chroot) };
    /// setns(2).
    // SAFETY: the type of setns(2).
    setns(fd: i32, kind: i32) => unsafe { real(Call::Setns) };
}

/// True for an option of prctl after which an engine could not be started, or not open what it needs: seccomp in its
/// old form, and a memory that nobody may look into.
fn gives_up_by_prctl(option: usize, argument: usize) -> bool {
    option == PR_SET_SECCOMP || option == PR_SET_DUMPABLE && argument != 1
}

/// prctl(2).
pub extern "C" fn prctl(option: i32, a: usize, b: usize, c: usize, d: usize) -> i32 {
    if gives_up_by_prctl(option as usize, a) {
        begin();
    }
    if option as usize == PR_SET_SECCOMP {
        page_tables::bind();
    }
    // SAFETY: the type of prctl(2).
    let real = unsafe { real::<unsafe extern "C" fn(i32, ...) -> i32>(Call::Prctl) };
    // SAFETY: the program's own call, with its own arguments.
    let result = real.map_or(NO_SUCH_CALL, |f| unsafe { f(option, a, b, c, d) });
    // Not after a filter: it may end who makes a call of ours.
    if matches!(option as usize, PR_CAPBSET_DROP | PR_SET_NO_NEW_PRIVS | PR_CAP_AMBIENT) {
        ask();
    }
    result
}

/// unshare(2): CLONE_VM asks that nobody shares the memory, and does nothing else. The engine does, of which the
/// program knows nothing: what can be asked of the program's own threads is CLONE_SIGHAND.
pub extern "C" fn unshare(flags: i32) -> i32 {
    const VM: i32 = CLONE_VM as i32;
    const SIGHAND: i32 = 0x800;
    // In other namespaces the run's page may not be found, nor the right to userfaultfd.
    begin();
    // SAFETY: the type of unshare(2).
    let real = unsafe { real::<extern "C" fn(i32) -> i32>(Call::Unshare) };
    let flags = if flags & VM != 0 && run::is_managed() { flags & !VM | SIGHAND } else { flags };
    let result = real.map_or(NO_SUCH_CALL, |f| f(flags));
    ask();
    result
}

/// True for the system calls that the functions above make, and for those of the same kind that libc has no function
/// for.
pub fn gives_up(number: u32) -> bool {
    matches!(
        number,
        g::__NR_seccomp
            | g::__NR_pivot_root
            | g::__NR_capset
            | g::__NR_chroot
            | g::__NR_setns
            | g::__NR_unshare
            | g::__NR_setuid
            | g::__NR_setreuid
            | g::__NR_setresuid
            | g::__NR_setfsuid
            | g::__NR_setgid
            | g::__NR_setregid
            | g::__NR_setresgid
            | g::__NR_setfsgid
            | g::__NR_setgroups
    )
}

/// A call that [`gives_up`] something, by `syscall`. None of them has more than five arguments.
pub extern "C" fn followed(number: i64, a: usize, b: usize, c: usize, d: usize, e: usize) -> i64 {
    // What a thread gives up by itself changes nothing of what the process may do by others: the engine goes by the
    // main thread.
    let is_main = sys::gettid() == sys::getpid();
    if is_main {
        begin()
    } else {
        grow::before_it_cannot()
    }
    if number == g::__NR_seccomp as i64 && a <= SECCOMP_SET_MODE_FILTER {
        page_tables::bind();
    }
    // SAFETY: the type of syscall(2).
    let real = unsafe { real::<unsafe extern "C" fn(i64, ...) -> i64>(Call::Syscall) };
    // SAFETY: the program's own call, with its own arguments.
    let result = real.map_or(NO_SUCH_CALL as i64, |f| unsafe { f(number, a, b, c, d, e) });
    if is_main && number != g::__NR_seccomp as i64 {
        ask();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_something_away_asks_for_an_engine() {
        for (number, expected) in [
            (g::__NR_seccomp, true),
            (g::__NR_setfsuid, true),
            (g::__NR_chroot, true),
            (g::__NR_gettid, false),
            (g::__NR_futex, false),
        ] {
            assert_eq!(gives_up(number), expected, "{number}");
        }
        for (option, argument, expected) in [
            (PR_SET_SECCOMP, 2, true),
            (PR_SET_DUMPABLE, 0, true),
            (PR_SET_DUMPABLE, 1, false),
            (15, 0, false),
        ] {
            assert_eq!(gives_up_by_prctl(option, argument), expected, "{option} {argument}");
        }
    }
}
