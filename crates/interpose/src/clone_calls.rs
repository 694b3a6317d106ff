//! The system calls by which a process makes a copy of itself: clone inside libc's fork (stubs.rs), libc's `clone`
//! without CLONE_VM, and fork, clone and clone3 by `syscall`. All of them end in `fork::pass`, whatever flags they
//! have.
//!
//! ```text
//!   fork ──────────── a site in libc ──┐
//!   clone(f, stack) ── its symbol ─────┼─> fork::pass ─> takes over ─┬─> comes back, as its parent does
//!   syscall(SYS_clone) ─ its symbol ───┘                             └─> goes to its own stack
//! ```

use crate::clone::{self, Clone};
use crate::fork;
use crate::libc::{Call, NO_SUCH_CALL, real, settle};
use control::run::is_in_run;
use core::arch::asm;
use linux_raw_sys::general as g;
use uffd::sys::consts::*;

/// True for a system call that makes a process with a copy of the memory. Of clone3 the arguments must be looked at:
/// false where they cannot be read, and where the kernel will say so.
fn copies(number: usize, first: usize) -> bool {
    const VM: usize = CLONE_VM as usize;
    match number as u32 {
        g::__NR_fork => true,
        g::__NR_clone => first & VM == 0,
        g::__NR_clone3 => {
            let mut flags = [0; 8];
            clone::read(first, &mut flags).is_ok() && usize::from_ne_bytes(flags) & VM == 0
        }
        _ => false,
    }
}

/// True when `syscall` is to go on with [`by_syscall`].
pub fn is_ours(number: usize, first: usize) -> bool {
    is_in_run() && copies(number, first)
}

/// A copying call by `syscall`, whose arguments are `call`, its number first. In a copy that is to be on a stack of its
/// own `stack` is set to where that is.
extern "C" fn on_syscall(call: &[usize; 6], stack: &mut usize) -> isize {
    let [number, a, b, c, d, e] = *call;
    let asked = match number as u32 {
        g::__NR_clone => Clone::of_program([a, b, c, d, e, 0]).map(|clone| (clone, b)),
        g::__NR_clone3 => Clone::of_program_3(a, b),
        _ => Clone::of_program([SIGCHLD as usize, 0, 0, 0, 0, 0]).map(|clone| (clone, 0)),
    };
    match asked {
        Ok((clone, own_stack)) => {
            let result = fork::pass(&clone);
            if result == 0 {
                *stack = own_stack;
            }
            settle(result)
        }
        Err(errno) => settle(-(errno.0 as isize)),
    }
}

/// What `syscall` jumps to for a call that copies the process: with its arguments, and its caller's stack. A copy with
/// a stack of its own returns to what is on top of that, as from libc's `syscall`.
#[unsafe(naked)]
pub extern "C" fn by_syscall() {
    core::arch::naked_asm!(
        "push r9",
        "push r8",
        "push rcx",
        "push rdx",
        "push rsi",
        "push rdi",
        "push 0",
        "lea rdi, [rsp + 8]",
        "mov rsi, rsp",
        "call {on_syscall}",
        "pop rcx",
        "add rsp, 48",
        "test rcx, rcx",
        "jz 2f",
        "mov rsp, rcx",
        "2:",
        "ret",
        on_syscall = sym on_syscall,
    )
}

/// The arguments of clone(3), in its order.
type LibcClone = extern "C" fn(usize, usize, i32, usize, usize, usize, usize) -> i32;

/// clone(3): what copies the memory is ours; libc itself never does so by this function.
pub extern "C" fn clone(
    function: usize,
    stack: usize,
    flags: i32,
    argument: usize,
    parent_tid: usize,
    tls: usize,
    child_tid: usize,
) -> i32 {
    if !is_in_run() || flags as u32 & CLONE_VM != 0 || function == 0 || stack == 0 {
        // SAFETY: the type of clone(3); the rest is its caller's business.
        let real = unsafe { real::<LibcClone>(Call::Clone) };
        return real
            .map_or(NO_SUCH_CALL, |f| f(function, stack, flags, argument, parent_tid, tls, child_tid));
    }
    let arguments = [flags as u32 as usize, 0, parent_tid, child_tid, tls, 0];
    let result = match Clone::of_program(arguments) {
        Ok(clone) => fork::pass(&clone),
        Err(errno) => -(errno.0 as isize),
    };
    if result != 0 {
        return settle(result) as i32;
    }
    // SAFETY: a copy, as libc would begin it: the stack is the program's, and nothing here is needed any more.
    unsafe {
        asm!(
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "call {function}",
            "mov edi, eax",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            stack = in(reg) stack & !15,
            function = in(reg) function,
            exit = const g::__NR_exit,
            in("rdi") argument,
            options(noreturn),
        )
    }
}

/// Its other name.
pub use self::clone as __clone;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_copy_the_memory_are_ours() {
        let (vm, fork) = ([CLONE_VM as u64 | 0x8000_0000, 0], [SIGCHLD as u64, 0]);
        for (number, first, expected) in [
            (g::__NR_fork, 0, true),
            (g::__NR_vfork, 0, false),
            (g::__NR_clone, SIGCHLD as usize, true),
            (g::__NR_clone, (CLONE_VM | CLONE_VFORK) as usize, false),
            (g::__NR_clone3, fork.as_ptr() as usize, true),
            (g::__NR_clone3, vm.as_ptr() as usize, false),
            (g::__NR_clone3, 16, false),
            (g::__NR_getpid, 0, false),
        ] {
            assert_eq!(copies(number as usize, first), expected, "{number} {first:x}");
        }
    }
}
