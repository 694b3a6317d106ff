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
    result(ret)
}

/// What the kernel's answer means: the last 4095 numbers are errors.
pub(super) fn result(ret: usize) -> Result<usize> {
    if ret > -4096isize as usize { Err(Errno(ret.wrapping_neg() as u16)) } else { Ok(ret) }
}

/// The registers of a call with fewer arguments than six: the kernel does not look at the others.
#[inline(always)]
pub(super) fn registers<const N: usize>(arguments: [usize; N]) -> [usize; 6] {
    core::array::from_fn(|n| arguments.get(n).copied().unwrap_or(0))
}

/// A call of [`syscall`] by the name of its number. It is unsafe, and each place that makes it says why it may.
macro_rules! call {
    ($nr:ident $(, $arg:expr)* $(,)?) => {
        $crate::sys::syscall(linux_raw_sys::general::$nr, super::call::registers([$($arg as usize),*]))
    };
}
