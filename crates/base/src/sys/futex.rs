//! Words that threads wait at, and what the kernel does to them as a thread ends.

use super::Result;
use super::clock::{Timespec, timespec};
use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use linux_raw_sys::general as g;

/// Sleeps while `*word == expected`, at most `timeout_ns`. `shared` for words that the kernel wakes across processes.
/// `word` is an address that the kernel looks at, whosever it is: EFAULT where nothing can be read.
pub fn futex_wait(word: *const u32, expected: u32, timeout_ns: Option<u64>, shared: bool) -> Result<()> {
    let timeout = timeout_ns.map(timespec);
    let timeout = timeout.as_ref().map_or(core::ptr::null(), |t| t as *const Timespec);
    let op = g::FUTEX_WAIT | if shared { 0 } else { g::FUTEX_PRIVATE_FLAG };
    // SAFETY: the kernel reads the word, at whatever address, and the time, which lives until the call returns. It
    // changes neither.
    unsafe { call!(__NR_futex, word, op, expected, timeout) }.map(drop)
}

/// Wakes up to `count` sleepers on `word`; `shared` as they sleep.
pub fn futex_wake(word: *const u32, count: u32, shared: bool) {
    let op = g::FUTEX_WAKE | if shared { 0 } else { g::FUTEX_PRIVATE_FLAG };
    // SAFETY: the address is a name alone; the kernel changes nothing there.
    let _ = unsafe { call!(__NR_futex, word, op, count) };
}

/// Writes what it holds to the aligned word at `word`, as if the program had: the page is no longer shared since a
/// fork, nor lazily freeable. Never waits for a fault on a missing page, as any other way to write would: that is
/// EFAULT.
pub fn futex_touch(word: usize) -> Result<()> {
    static NOBODY: AtomicU32 = AtomicU32::new(0);
    // FUTEX_WAKE_OP changes a word on its way to wake sleepers of another. Adding 0 changes nothing; a sleeper on the
    // word itself may be woken for no reason, which futex(2) allows.
    let add_zero = (g::FUTEX_OP_ADD << 28) | (g::FUTEX_OP_CMP_LT << 24);
    let op = g::FUTEX_WAKE_OP | g::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel adds 0 to the word in one step, at whatever address: who reads or writes it meanwhile sees no
    // difference.
    unsafe { call!(__NR_futex, NOBODY.as_ptr(), op, 0, 0, word, add_zero) }.map(drop)
}

/// Writes to a word as it is, and says whether that took a page fault.
pub fn write_faults(word: &AtomicU32) -> bool {
    // `struct rusage` has 18 words; the count of faults that needed no I/O is the ninth.
    const MINOR: usize = 8;
    const RUSAGE_THREAD: u32 = 1;
    let (mut before, mut after) = ([0u64; 18], [0u64; 18]);
    // What the kernel may have done to the page besides (looked whether it is used, moved it) is undone by a read.
    word.load(Relaxed);
    // SAFETY: the kernel writes the two arrays, which have been written before, and the word is added 0 to. The code
    // lies on one page: nothing in it can fault but that.
    unsafe {
        asm!(
            ".balign 64",
            "mov eax, {getrusage}",
            "mov edi, {thread}",
            "syscall",
            "lock add dword ptr [{word}], 0",
            "mov eax, {getrusage}",
            "mov edi, {thread}",
            "mov rsi, {after}",
            "syscall",
            getrusage = const g::__NR_getrusage,
            thread = const RUSAGE_THREAD,
            word = in(reg) word.as_ptr(),
            after = in(reg) after.as_mut_ptr(),
            inlateout("rsi") before.as_mut_ptr() => _,
            out("rax") _, out("rdi") _, out("rcx") _, out("r11") _,
            options(nostack),
        );
    }
    before[MINOR] != after[MINOR]
}

/// The robust list head of thread `tid`, 0 when it has none.
pub fn robust_list(tid: u32) -> Result<usize> {
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: the kernel writes the two words.
    unsafe { call!(__NR_get_robust_list, tid, &raw mut head, &raw mut len) }?;
    Ok(head)
}

/// The word that the kernel clears and wakes as the calling thread ends. Not every kernel says it.
pub fn tid_address() -> Result<usize> {
    const PR_GET_TID_ADDRESS: u32 = 40;
    let mut word = 0usize;
    // SAFETY: the kernel writes the word.
    unsafe { call!(__NR_prctl, PR_GET_TID_ADDRESS, &raw mut word, 0, 0, 0) }?;
    Ok(word)
}
