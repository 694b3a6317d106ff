//! Calls after which an engine could not be started any more: the process gives up the right to userfaultfd, the place where the run's
//! page is, or the system calls that a start takes (seccomp, which may kill for them). A process that is about to do so gets its engine
//! before, however small it is: the engine keeps what the process gives up.

use crate::clone;
use crate::control::CONTROL;
use crate::grow;
use crate::heritage;
use crate::hook::{Call, NO_SUCH_CALL, real};
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as g;

const PR_SET_SECCOMP: usize = 22;

/// Three registers hold the arguments of all of these, whatever their types.
macro_rules! give_up {
    ($($(#[$doc:meta])* $name:ident => $call:ident;)*) => {
        $(
            $(#[$doc])*
            #[cfg_attr(panic = "abort", unsafe(no_mangle))]
            pub extern "C" fn $name(a: usize, b: usize, c: usize) -> i32 {
                before();
                // SAFETY: libc's function of this name, which reads from the registers what it needs.
                let real = unsafe { real::<extern "C" fn(usize, usize, usize) -> i32>(Call::$call) };
                real.map_or(NO_SUCH_CALL, |f| f(a, b, c))
            }
        )*
    };
}

give_up! {
    /// setuid(2).
    setuid => Setuid;
    /// seteuid(2).
    seteuid => Seteuid;
    /// setreuid(2).
    setreuid => Setreuid;
    /// setresuid(2).
    setresuid => Setresuid;
    /// setgid(2): a group may be what opens /dev/userfaultfd.
    setgid => Setgid;
    /// setegid(2).
    setegid => Setegid;
    /// setregid(2).
    setregid => Setregid;
    /// setresgid(2).
    setresgid => Setresgid;
    /// setgroups(2).
    setgroups => Setgroups;
    /// initgroups(3).
    initgroups => Initgroups;
    /// capset(2).
    capset => Capset;
    /// chroot(2).
    chroot => Chroot;
    /// setns(2).
    setns => Setns;
}

/// The process is about to have fewer rights: its children, which keep them, are to read nothing that it writes with those that are left.
fn before() {
    grow::before_it_cannot();
    heritage::seal(CONTROL.pid.load(Relaxed));
}

/// prctl(2): seccomp in its old form.
#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub extern "C" fn prctl(option: i32, a: usize, b: usize, c: usize, d: usize) -> i32 {
    if option as usize == PR_SET_SECCOMP {
        before();
    }
    // SAFETY: the type of prctl(2).
    let real = unsafe { real::<unsafe extern "C" fn(i32, ...) -> i32>(Call::Prctl) };
    // SAFETY: the program's own call, with its own arguments.
    real.map_or(NO_SUCH_CALL, |f| unsafe { f(option, a, b, c, d) })
}

/// True for the system calls that the functions above make, and for those of the same kind that libc has no function for.
fn gives_up(number: u32, first: usize) -> bool {
    match number {
        g::__NR_seccomp | g::__NR_pivot_root | g::__NR_capset | g::__NR_chroot | g::__NR_setns => true,
        g::__NR_unshare | g::__NR_setuid | g::__NR_setreuid | g::__NR_setresuid => true,
        g::__NR_setgid | g::__NR_setregid | g::__NR_setresgid | g::__NR_setgroups => true,
        g::__NR_prctl => first == PR_SET_SECCOMP,
        _ => false,
    }
}

/// What `syscall` goes on with: the address of libc's, of [`no_such_call`], or of what copies the process.
#[cfg_attr(not(panic = "abort"), allow(dead_code))]
extern "C" fn before_syscall(number: i64, first: usize) -> usize {
    if clone::is_ours(number as usize, first) {
        return clone::by_syscall as *const () as usize;
    }
    if u32::try_from(number).is_ok_and(|number| gives_up(number, first)) {
        before();
    }
    // SAFETY: only its address is wanted.
    unsafe { real::<usize>(Call::Syscall) }.unwrap_or(no_such_call as *const () as usize)
}

extern "C" fn no_such_call() -> i64 {
    NO_SUCH_CALL as i64
}

/// syscall(2): libseccomp and others make their calls by it. Its last argument may lie on the stack, and so it is jumped to.
#[cfg(panic = "abort")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn syscall() {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        before = sym before_syscall,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_something_away_asks_for_an_engine() {
        for (number, first, expected) in [
            (g::__NR_seccomp, 1, true),
            (g::__NR_prctl, PR_SET_SECCOMP, true),
            (g::__NR_prctl, 15, false),
            (g::__NR_chroot, 0, true),
            (g::__NR_gettid, 0, false),
            (g::__NR_futex, PR_SET_SECCOMP, false),
        ] {
            assert_eq!(gives_up(number, first), expected, "{number} {first}");
        }
    }
}
