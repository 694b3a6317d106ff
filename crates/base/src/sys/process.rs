//! Processes and threads.

use super::{Errno, Result};
use core::arch::asm;
use linux_raw_sys::general as g;

macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident => $nr:ident ( $($arg:ident : $ty:ty),* );)*) => {
        $($(#[$doc])* pub fn $name($($arg: $ty),*) -> Result<usize> { call!($nr $(, $arg)*) })*
    };
}

plain! {
    /// Process id. In line, since every process asks for it as it starts, where all code lies together.
    #[inline(always)]
    getpid => __NR_getpid();
    /// Process id of the parent.
    getppid => __NR_getppid();
    /// Thread id.
    gettid => __NR_gettid();
    /// Signals a process.
    kill => __NR_kill(pid: u32, signal: u32);
    /// Starts a session, so that no terminal's signal reaches the caller.
    setsid => __NR_setsid();
    /// Waits for child `pid`; `options` as in wait4(2).
    wait4 => __NR_wait4(pid: u32, status: *mut u32, options: u32);
    /// Waits for children in the manner of waitid(2); `info` is a `siginfo_t` of 128 bytes, or null.
    waitid => __NR_waitid(kind: u32, id: u32, info: *mut u32, options: u32);
    /// Asks whether orphaned descendants come to this process (PR_GET_CHILD_SUBREAPER); writes 0 or 1.
    get_subreaper => __NR_prctl(op: u32, yes: *mut u32);
    /// Sets the name that ps shows; 15 bytes and a NUL.
    set_name => __NR_prctl(op: u32, name: *const u8);
    /// The name of the calling thread (PR_GET_NAME) into a buffer of 16 bytes.
    get_name => __NR_prctl(op: u32, name: *mut u8);
    /// Whether this memory gets no transparent huge pages (PR_GET_THP_DISABLE), or is to get none from now on (PR_SET_THP_DISABLE), nor a child's copy
    /// of it; the others are 0.
    thp_disable => __NR_prctl(op: u32, yes: usize, a: usize, b: usize, c: usize);
    /// Fills a buffer with random bytes.
    getrandom => __NR_getrandom(at: *mut u8, bytes: usize, flags: u32);
    /// Changes the working directory; a NUL-terminated path.
    chdir => __NR_chdir(path: *const u8);
    /// Advises the kernel on a range without discarding anything; for advice such as MADV_DONTFORK.
    madvise_keep => __NR_madvise(at: usize, bytes: usize, advice: u32);
    /// Writes a mapping back. MS_INVALIDATE alone does nothing to anonymous memory, and says EBUSY where it is locked.
    msync => __NR_msync(at: usize, bytes: usize, flags: u32);
}

/// Starts a thread of execution at `entry(argument)` on the stack that ends at `stack_top`, with clone's `flags`. The new
/// one must not return from `entry`. Returns its id to the caller.
///
/// # Safety
/// `stack_top` must be 16-byte aligned and the stack unused; with CLONE_VM all that `entry` does is done to this process.
pub unsafe fn clone(
    flags: u32,
    stack_top: usize,
    entry: extern "C" fn(usize) -> !,
    argument: usize,
) -> Result<u32> {
    let mut ret = g::__NR_clone as usize;
    // SAFETY: the child runs on its own stack and never comes back here; the parent sees an ordinary system call.
    unsafe {
        asm!(
            "syscall",
            "test eax, eax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") ret,
            in("rdi") flags as usize, in("rsi") stack_top, in("rdx") 0usize, in("r10") 0usize, in("r8") 0usize,
            in("r12") argument, in("r13") entry,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    if ret > -4096isize as usize { Err(Errno(ret.wrapping_neg() as u32)) } else { Ok(ret as u32) }
}

/// Ends the calling thread.
pub fn exit(code: u32) -> ! {
    let _ = call!(__NR_exit, code);
    unreachable!("exit returned")
}
