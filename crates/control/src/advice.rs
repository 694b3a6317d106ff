//! Advice of the program's threads that waits for the engine. A thread puts it into a free place and goes on; the
//! engine takes it at its next look.
//!
//! A place is one word, which is changed at once: a thread that is stopped, or a child that is made, leaves no half of
//! anything. There are few places. What finds none is dropped, as advice may be at any time.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::*};
use uffd::{Advice, PAGE};

/// How many ranges can wait.
const PLACES: usize = 32;

/// Bits of a word: the advice, then the number of pages, then the first page. 0 is a free place.
const ADVICE_BITS: u32 = 2;
const PAGES_BITS: u32 = 27;

/// Half a TiB: of a longer range the beginning is advised.
const PAGES_MOST: usize = (1 << PAGES_BITS) - 1;

/// See the head of the file.
pub struct AdviceQueue([AtomicU64; PLACES]);

impl AdviceQueue {
    /// One in which nothing waits.
    pub const fn new() -> AdviceQueue {
        AdviceQueue([const { AtomicU64::new(0) }; PLACES])
    }

    /// Puts advice on whole pages into the queue; false where it is full. What can wait until the engine is awake
    /// leaves places for what wakes it.
    pub fn put(&self, advice: Advice, range: &Range<usize>) -> bool {
        let places = if advice == Advice::Cold { PLACES / 2 } else { PLACES };
        let pages = (range.len() / PAGE).min(PAGES_MOST);
        let run = ((range.start / PAGE) << PAGES_BITS | pages) as u64;
        let word = run << ADVICE_BITS | advice as u64;
        self.0[..places].iter().any(|place| place.compare_exchange(0, word, Release, Relaxed).is_ok())
    }

    /// For the engine: takes what waits.
    pub fn take(&self) -> impl Iterator<Item = (Advice, Range<usize>)> {
        let taken = |place: &AtomicU64| if place.load(Relaxed) == 0 { 0 } else { place.swap(0, Acquire) };
        self.0.iter().map(taken).filter_map(read)
    }

    /// For an engine that sleeps: true when something is to go out.
    pub fn wants_out(&self) -> bool {
        let waits = |place: &AtomicU64| read(place.load(Relaxed));
        self.0.iter().filter_map(waits).any(|(advice, _)| advice == Advice::PageOut)
    }

    /// Nothing waits any more. What is so already is not written.
    pub fn reset(&self) {
        self.take().for_each(drop);
    }
}

impl Default for AdviceQueue {
    fn default() -> AdviceQueue {
        AdviceQueue::new()
    }
}

/// What a word says.
fn read(word: u64) -> Option<(Advice, Range<usize>)> {
    let advice = Advice::ALL.into_iter().find(|&advice| advice as u64 == word & ((1 << ADVICE_BITS) - 1))?;
    let run = (word >> ADVICE_BITS) as usize;
    let start = (run >> PAGES_BITS) * PAGE;
    Some((advice, start..start + (run & PAGES_MOST) * PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_taken_once_and_a_full_queue_takes_no_more() {
        let queue = AdviceQueue::new();
        assert!(!queue.wants_out() && queue.take().next().is_none());
        let top = (1 << 47) - 5 * PAGE..(1 << 47) - PAGE;
        let long = PAGE..PAGE + (1 << 40);
        assert!(queue.put(Advice::PageOut, &top) && queue.put(Advice::PageOut, &long));
        assert!(queue.wants_out());
        let cut = PAGE..PAGE + PAGES_MOST * PAGE;
        assert_eq!(queue.take().collect::<Vec<_>>(), [(Advice::PageOut, top), (Advice::PageOut, cut)]);
        let put = (1..100).filter(|n| queue.put(Advice::PageOut, &(n * PAGE..(n + 1) * PAGE))).count();
        assert_eq!(put, PLACES);
        queue.reset();
        let put = (1..100).filter(|n| queue.put(Advice::Cold, &(n * PAGE..(n + 1) * PAGE))).count();
        assert_eq!(put, PLACES / 2);
        assert!(!queue.wants_out() && queue.put(Advice::PageOut, &(0..PAGE)) && queue.wants_out());
        queue.reset();
        assert!(!queue.wants_out());
    }
}
