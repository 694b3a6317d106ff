//! Processes and threads.

use super::{Result, call};
use core::arch::asm;
use core::ffi::CStr;
use linux_raw_sys::general as g;

/// Process id. In line, since every process asks for it as it starts, where all code lies together.
#[inline(always)]
pub fn getpid() -> Result<usize> {
    // SAFETY: the call takes nothing, and changes no memory.
    unsafe { call!(__NR_getpid) }
}

/// Process id of the parent.
pub fn getppid() -> Result<usize> {
    // SAFETY: the call takes nothing, and changes no memory.
    unsafe { call!(__NR_getppid) }
}

/// Thread id.
pub fn gettid() -> Result<usize> {
    // SAFETY: the call takes nothing, and changes no memory.
    unsafe { call!(__NR_gettid) }
}

/// Starts a session, so that no terminal's signal reaches the caller.
pub fn setsid() -> Result<usize> {
    // SAFETY: the call takes nothing, and changes no memory.
    unsafe { call!(__NR_setsid) }
}

/// Waits for child `pid`; `options` as in wait4(2).
pub fn wait4(pid: u32, status: &mut u32, options: u32) -> Result<usize> {
    // SAFETY: the kernel writes the status, and no usage, since none is asked for.
    unsafe { call!(__NR_wait4, pid, status as *mut u32, options, 0) }
}

/// `siginfo_t`, in words.
pub type SignalInfo = [u32; 32];

/// Waits for children in the manner of waitid(2).
pub fn waitid(kind: u32, id: u32, info: Option<&mut SignalInfo>, options: u32) -> Result<usize> {
    let info = info.map_or(core::ptr::null_mut(), |info| info.as_mut_ptr());
    // SAFETY: the kernel writes the 128 bytes of the `siginfo_t`, if there is one, and no usage, since none is asked
    // for.
    unsafe { call!(__NR_waitid, kind, id, info, options, 0) }
}

/// True when orphaned descendants come to this process (PR_GET_CHILD_SUBREAPER).
pub fn is_subreaper() -> Result<bool> {
    const PR_GET_CHILD_SUBREAPER: u32 = 37;
    let mut yes = 0u32;
    // SAFETY: the kernel writes the word.
    unsafe { call!(__NR_prctl, PR_GET_CHILD_SUBREAPER, &raw mut yes, 0, 0, 0) }?;
    Ok(yes != 0)
}

/// Bytes of a thread's name, its NUL included (TASK_COMM_LEN).
pub const NAME_BYTES: usize = 16;

/// Sets the name of the calling thread, which ps shows; what is longer than [`NAME_BYTES`] is cut off.
pub fn set_name(name: &CStr) -> Result<()> {
    const PR_SET_NAME: u32 = 15;
    // SAFETY: the kernel reads the name up to its NUL.
    unsafe { call!(__NR_prctl, PR_SET_NAME, name.as_ptr(), 0, 0, 0) }.map(drop)
}

/// The name of the calling thread, padded with NUL.
pub fn name() -> Result<[u8; NAME_BYTES]> {
    const PR_GET_NAME: u32 = 16;
    let mut name = [0u8; NAME_BYTES];
    // SAFETY: the kernel writes the 16 bytes.
    unsafe { call!(__NR_prctl, PR_GET_NAME, name.as_mut_ptr(), 0, 0, 0) }?;
    Ok(name)
}

/// Changes the working directory.
pub fn chdir(path: &CStr) -> Result<()> {
    // SAFETY: the kernel reads the path up to its NUL.
    unsafe { call!(__NR_chdir, path.as_ptr()) }.map(drop)
}

/// Fills a buffer with random bytes; how many.
pub fn getrandom(buffer: &mut [u8], flags: u32) -> Result<usize> {
    // SAFETY: the kernel writes to the buffer, whose length it is told.
    unsafe { call!(__NR_getrandom, buffer.as_mut_ptr(), buffer.len(), flags) }
}

/// Ends the calling thread.
pub fn exit(code: u32) -> ! {
    // SAFETY: what the thread had borrowed stays borrowed for ever, as in a thread that sleeps.
    let _ = unsafe { call!(__NR_exit, code) };
    unreachable!("exit returned")
}

/// Starts a thread of execution at `entry(argument)` on the stack that ends at `stack_top`, with clone's `flags`. The
/// new one must not return from `entry`. Returns its id to the caller.
///
/// # Safety
/// `stack_top` must be 16-byte aligned and the stack unused; with CLONE_VM all that `entry` does is done to this
/// process.
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
    call::result(ret).map(|id| id as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_name_that_it_was_given() {
        std::thread::spawn(|| {
            set_name(c"a name that is too long").unwrap();
            assert_eq!(&name().unwrap(), b"a name that is \0");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn random_bytes_come_as_many_as_asked_for() {
        let (mut first, mut second) = ([0; 16], [0; 16]);
        assert_eq!((getrandom(&mut first, 0), getrandom(&mut second, 0)), (Ok(16), Ok(16)));
        assert_ne!(first, second);
    }
}
