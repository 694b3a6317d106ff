//! syscall(3): whatever a program asks for by number goes where the function of that call would have gone.

use crate::advice;
use crate::clone_calls;
use crate::ioctl;
use crate::libc::{Call, NO_SUCH_CALL, real};
use crate::pagemap_reads;
use crate::rights;
use crate::visible;
use crate::wait;
use linux_raw_sys::general as g;

/// What `syscall` goes on with: the address of libc's, of [`no_such_call`], or of what copies the process.
#[cfg_attr(not(panic = "abort"), allow(dead_code))]
extern "C" fn before_syscall(number: i64, first: usize) -> usize {
    if clone_calls::is_ours(number as usize, first) {
        return clone_calls::by_syscall as *const () as usize;
    }
    match u32::try_from(number) {
        Ok(g::__NR_prctl) => return prctl_by_syscall as *const () as usize,
        Ok(g::__NR_madvise) => return madvise_by_syscall as *const () as usize,
        Ok(g::__NR_process_madvise) => return process_madvise_by_syscall as *const () as usize,
        Ok(g::__NR_ioctl) => return ioctl::by_syscall as *const () as usize,
        Ok(g::__NR_wait4) => return wait::wait4_by_syscall as *const () as usize,
        Ok(g::__NR_waitid) => return wait::waitid_by_syscall as *const () as usize,
        Ok(number) if rights::gives_up(number) => return rights::followed as *const () as usize,
        Ok(number) => {
            if let Some(other) = pagemap_reads::by_syscall(number).or_else(|| visible::by_syscall(number)) {
                return other;
            }
        }
        Err(_) => {}
    }
    // SAFETY: only its address is wanted.
    unsafe { real::<usize>(Call::Syscall) }.unwrap_or(no_such_call as *const () as usize)
}

/// prctl by `syscall`. libc's has the same result and error, and none of its options has more arguments.
extern "C" fn prctl_by_syscall(_number: i64, option: i32, a: usize, b: usize, c: usize, d: usize) -> i64 {
    rights::prctl(option, a, b, c, d) as i64
}

/// madvise by `syscall`.
extern "C" fn madvise_by_syscall(_number: i64, at: usize, bytes: usize, advice: i32) -> i64 {
    advice::madvise(at, bytes, advice) as i64
}

/// process_madvise by `syscall`.
extern "C" fn process_madvise_by_syscall(
    _number: i64,
    pidfd: i32,
    ranges: usize,
    count: usize,
    advice: i32,
    flags: u32,
) -> i64 {
    advice::process_madvise(pidfd, ranges, count, advice, flags) as i64
}

extern "C" fn no_such_call() -> i64 {
    NO_SUCH_CALL as i64
}

/// syscall(2): libseccomp and others make their calls by it. Its last argument may lie on the stack, and so it is
/// jumped to.
#[cfg(panic = "abort")]
#[unsafe(naked)]
pub extern "C" fn syscall() {
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
