//! The system call itself.

use super::{Errno, Result};
use core::arch::asm;

/// Makes the system call `nr`.
///
/// # Safety
/// The arguments must be right for the call, and what it writes must be the caller's to write.
#[inline]
pub unsafe fn syscall(nr: u32, args: [usize; 6]) -> Result<usize> {
    let mut ret: usize = nr as usize;
    // SAFETY: the kernel clobbers rcx and r11 only; memory effects are the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") ret, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
             in("r10") args[3], in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _,
             options(nostack));
    }
    if ret > -4096isize as usize { Err(Errno(ret.wrapping_neg() as u32)) } else { Ok(ret) }
}

macro_rules! call {
    ($nr:ident $(, $arg:expr)*) => {{
        let given = [$($arg as usize),*];
        let mut args = [0usize; 6];
        args[..given.len()].copy_from_slice(&given);
        // SAFETY: the wrapper's own contract covers the call (see each function).
        unsafe { $crate::sys::syscall(g::$nr, args) }
    }};
}
