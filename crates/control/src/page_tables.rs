//! What the program is told of its own page tables while memory is out (pagemap_reads.rs): whether it must be told
//! anything, and the engine's answer.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Not 0 while memory may be out: the calls pass us.
#[unsafe(link_section = ".data.zfolio")]
pub static IS_AWAKE: AtomicU32 = AtomicU32::new(0);

/// Not 0 where a seccomp filter binds the program: it may end who makes a call that it does not foresee, and so the
/// kernel's answers stay as they are.
static IS_BOUND: AtomicU32 = AtomicU32::new(0);

/// The engine is awake: from now on memory may be out.
pub fn begin() {
    IS_AWAKE.store(1, SeqCst);
}

/// In a child of fork, which has no engine yet.
pub fn reset() {
    if IS_AWAKE.load(Relaxed) != 0 {
        IS_AWAKE.store(0, Relaxed);
    }
}

/// A filter binds the program, or is about to.
pub fn bind() {
    IS_BOUND.store(1, Relaxed);
}

/// True where a filter binds the program.
pub fn is_bound() -> bool {
    IS_BOUND.load(Relaxed) != 0
}

/// How many pages the engine is asked about at a time.
pub const LOOK_PAGES: usize = 512;

/// The engine's answer. The bell is held around its use.
struct AnswerBuffer(UnsafeCell<[u64; LOOK_PAGES]>);

// SAFETY: written by the engine while the one thread that holds the bell waits for it.
unsafe impl Sync for AnswerBuffer {}

static ANSWER: AnswerBuffer = AnswerBuffer(UnsafeCell::new([0; LOOK_PAGES]));

/// Where the engine writes how the pages stand, as words of page tables.
pub fn answer() -> *mut [u64; LOOK_PAGES] {
    ANSWER.0.get()
}
