//! A request to one process's engine to shrink the process now (`memory.reclaim`).
//!
//! ```text
//!   zfolio run: ask ── number ──> the engine: asked ── makes room ──> got, end ──> zfolio run: answer
//!                └── withdraw: the engine ends it with what it has got
//! ```
//!
//! One request at a time: whoever asks has the number, and asks again when the last one is done. A request that its
//! process does not live to do ends with its slot.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// See the head of the file.
#[repr(C)]
#[derive(Default)]
pub struct ReclaimRequest {
    /// The last request's number, and that of the last one that is done.
    number: AtomicU32,
    done: AtomicU32,
    /// By how much the footprint is to be lower, in bytes; 0: not any more.
    ask_bytes: AtomicU64,
    /// By how much it is lower, in bytes, since the request that is under way, or the last one, began.
    got_bytes: AtomicU64,
}

impl ReclaimRequest {
    /// For `zfolio run`: asks for so many bytes. The request's number; `None` while another one is under way.
    pub fn ask(&self, bytes: u64) -> Option<u32> {
        let number = self.number.load(Relaxed);
        if self.done.load(Acquire) != number {
            return None;
        }
        self.ask_bytes.store(bytes, Relaxed);
        self.got_bytes.store(0, Relaxed);
        self.number.store(number.wrapping_add(1), Release);
        Some(number.wrapping_add(1))
    }

    /// For `zfolio run`: nobody waits for this request any more.
    pub fn withdraw(&self, number: u32) {
        if self.number.load(Relaxed) == number {
            self.ask_bytes.store(0, Relaxed);
        }
    }

    /// For `zfolio run`: how much a request has brought so far, in bytes, and whether it is done.
    pub fn answer(&self, number: u32) -> (u64, bool) {
        let is_done = self.done.load(Acquire) == number;
        (self.got_bytes.load(Relaxed), is_done)
    }

    /// For the engine: the request that is under way, and what is asked for in bytes.
    pub fn asked(&self) -> Option<(u32, u64)> {
        let number = self.number.load(Acquire);
        (self.done.load(Relaxed) != number).then(|| (number, self.ask_bytes.load(Relaxed)))
    }

    /// For the engine: the footprint is lower by so many bytes.
    pub fn got(&self, bytes: u64) {
        self.got_bytes.store(bytes, Relaxed);
    }

    /// For the engine: a request is done.
    pub fn end(&self, number: u32) {
        self.done.store(number, Release);
    }

    /// The slot is another process's, whom nobody has asked.
    pub(crate) fn clear(&self) {
        self.got_bytes.store(0, Relaxed);
        self.done.store(self.number.load(Relaxed), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_after_the_other_is_done_or_withdrawn() {
        let reclaim = ReclaimRequest::default();
        assert_eq!(reclaim.asked(), None);
        let first = reclaim.ask(100).unwrap();
        assert_eq!((reclaim.asked(), reclaim.ask(7)), (Some((first, 100)), None));
        reclaim.got(40);
        assert_eq!(reclaim.answer(first), (40, false));
        reclaim.end(first);
        assert_eq!((reclaim.answer(first), reclaim.asked()), ((40, true), None));
        let second = reclaim.ask(50).unwrap();
        assert_eq!(reclaim.answer(second), (0, false), "nothing of the last one is left");
        reclaim.withdraw(first);
        assert_eq!(reclaim.asked(), Some((second, 50)), "it was another one");
        reclaim.withdraw(second);
        assert_eq!(reclaim.asked(), Some((second, 0)));
        reclaim.clear();
        assert_eq!(reclaim.asked(), None, "the next process of the slot was asked nothing");
        assert!(reclaim.ask(1).is_some());
    }
}
