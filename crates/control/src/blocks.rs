//! Where libc has its threads' control blocks, and what in them: as a thread of the program has learned it
//! (libc_threads.rs), for the engine to find them (robust_lists.rs).

use core::sync::atomic::{AtomicUsize, Ordering::*};

/// What libc says of its control blocks; all 0 where it says nothing (before 2.34).
pub struct BlockLayout {
    /// Addresses of the two lists: of threads on libc's stacks, and on others.
    pub lists: [AtomicUsize; 2],
    /// Where in a block the list's pointers are, the thread's number, and the robust list head.
    pub list: AtomicUsize,
    /// See `list`.
    pub tid: AtomicUsize,
    /// See `list`.
    pub head: AtomicUsize,
}

impl BlockLayout {
    /// Nothing known.
    pub const fn unknown() -> BlockLayout {
        let zero = AtomicUsize::new;
        BlockLayout { lists: [zero(0), zero(0)], list: zero(0), tid: zero(0), head: zero(0) }
    }

    /// How far a thread's number, which is its exit word, lies behind its robust list head.
    pub fn tid_from_head(&self) -> Option<isize> {
        let head = self.head.load(Acquire) as isize;
        (head != 0).then(|| self.tid.load(Relaxed) as isize - head)
    }
}
