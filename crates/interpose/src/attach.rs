//! How an engine is started from outside, in a process whose memory came past every hook (grow.rs): by system calls of
//! the program's own, as sanitizers make them, or by the loader.
//!
//! ```text
//!   zfolio run (ptrace)                            a thread of the program
//!   stops it, saves registers and mask ─────────>  at any instruction, or in a system call
//!   has it go on at `zfolio_attach` ────────────>  on the stack below: grow::start_from_outside
//!   finds the state Done, stops it again <───────  waits
//!   restores registers and mask, lets go ───────>  goes on, or its system call does
//! ```
//!
//! This is safe at any instruction because
//! 1. it is what a signal handler is that maps memory: whatever the hook at mmap may do there, `start_from_outside` may
//!    do here. No signal is heeded meanwhile;
//! 2. where a lock of ours is held all signals are blocked, and `zfolio run` leaves a thread alone that blocks all of
//!    them;
//! 3. nothing is written to the program's stack, whose end, red zone or use nobody knows;
//! 4. the registers are restored while the thread is stopped, and with them what the kernel returned of a system call
//!    that is to be made again: the kernel itself then decides between that and EINTR, by the signals that have come by
//!    then;
//! 5. one thread at a time is here, since one `zfolio run` has one at a time.
//!
//! `zfolio run` may die at any moment. A thread that nobody fetches goes on by itself, with the registers that it came
//! with.

use crate::grow;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use uffd::sys;

/// Where it stands: known to crates/zfolio/src/attach.rs by these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AttachStage {
    /// The thread is at it.
    Running = 1,
    /// It waits to be fetched.
    Done = 2,
    /// Nobody came: it goes on by itself.
    Left = 3,
}

/// For how long a thread waits to be fetched, in nanoseconds.
const FETCHED_NS: u64 = 3_000_000_000;

const STACK: usize = 48 << 10;

/// What `zfolio run` reads and writes. The registers that the thread is to have if nobody fetches it lie at the stack's
/// upper end, as iretq takes them.
#[repr(C, align(4096))]
struct Attachment {
    /// An [`AttachStage`].
    stage: AtomicU32,
    /// A [`StartOutcome`](grow::StartOutcome).
    outcome: AtomicU32,
    /// The signal mask that the thread came with.
    mask: AtomicU64,
    stack: UnsafeCell<[u8; STACK]>,
}

// SAFETY: one thread is on the stack at a time; the rest is atomics.
unsafe impl Sync for Attachment {}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".bss.zfolio_attachment")]
static zfolio_attachment: Attachment = Attachment {
    stage: AtomicU32::new(0),
    outcome: AtomicU32::new(0),
    mask: AtomicU64::new(0),
    stack: UnsafeCell::new([0; STACK]),
};

/// Where the thread is made to go on, with its own registers but for those of iretq's frame, which is on the stack.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn zfolio_attach() {
    core::arch::naked_asm!(
        "push rax",
        "push rbx",
        "push rcx",
        "push rdx",
        "push rsi",
        "push rdi",
        "push rbp",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov rbp, rsp",
        "sub rsp, 512",
        "and rsp, -16",
        // The upper halves of vector registers are nobody's here: the library is compiled for the first x86-64.
        "fxsave64 [rsp]",
        "call {attached}",
        "fxrstor64 [rsp]",
        "mov rsp, rbp",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rbp",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rcx",
        "pop rbx",
        "pop rax",
        "iretq",
        attached = sym attached,
    )
}

/// Starts the engine, and waits to be fetched; returns where nobody comes.
extern "C" fn attached() {
    let own = &zfolio_attachment;
    own.outcome.store(grow::start_from_outside() as u32, Relaxed);
    own.stage.store(AttachStage::Done as u32, Release);
    // By no call that the kernel would have to restart: that would take the place of the one that the thread came from.
    let end = sys::now_ns() + FETCHED_NS;
    while sys::now_ns() < end {
        sys::sched_yield();
    }
    // Whoever stops the thread from here on leaves it alone.
    own.stage.store(AttachStage::Left as u32, Release);
    sys::signal_mask(own.mask.load(Relaxed));
}
