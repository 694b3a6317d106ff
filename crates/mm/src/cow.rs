//! Copy-on-write: pages that a fork has left to several processes.
//!
//! Each of them is write-protected: who writes to it takes memory for a copy, and waits for room like one who
//! touches fresh memory. What has come since the fork is this process's alone, and is remembered here, since it
//! goes out first.
//!
//! Invariant: while nothing is shared nothing is remembered; and never more than `MOST_RECENT` ranges are.

use alloc::collections::VecDeque;
use alloc::string::String;
use core::ops::Range;
use vmscan::{PAGE, WINDOW};

/// How many ranges that are this process's alone are known.
const MOST_RECENT: usize = 1 << 16;

/// What other processes may have too.
#[derive(Debug, Default)]
pub struct CopyOnWrite {
    /// They have pages of this one's since a fork, and the writes to them are told.
    is_shared: bool,
    /// What has come into the program since then, the oldest first.
    recent: VecDeque<Range<usize>>,
    /// The pages that were unprotected last.
    unprotected: Range<usize>,
}

impl CopyOnWrite {
    /// True while other processes may have pages of this one's.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// From now on they have, or have none any more.
    pub fn share(&mut self, is_shared: bool) {
        self.is_shared = is_shared;
        self.recent.clear();
    }

    /// A range has come into the program, or been copied there.
    pub fn note_own(&mut self, range: Range<usize>) {
        if self.is_shared && !range.is_empty() {
            self.recent.push_back(range);
            // What is dropped is left to the hand.
            if self.recent.len() > MOST_RECENT {
                self.recent.pop_front();
            }
        }
    }

    /// How many ranges are known to be this process's alone.
    pub fn recent(&self) -> usize {
        self.recent.len()
    }

    /// Takes the oldest of them.
    pub fn take_recent(&mut self) -> Option<Range<usize>> {
        self.recent.pop_front()
    }

    /// Something is left of it: it is looked at again after the others.
    pub fn put_back(&mut self, range: Range<usize>) {
        self.recent.push_back(range);
    }

    /// A thread writes to the page at `at`: the pages that it may write to from now on, up to `end` at most. Who
    /// writes one page after the other is let through to ever more of them.
    pub fn unprotect(&mut self, at: usize, end: usize) -> Range<usize> {
        let follows = at == self.unprotected.end;
        let most = if follows { (2 * self.unprotected.len()).min(WINDOW) } else { PAGE };
        self.unprotected = at..end.min(at + most);
        self.unprotected.clone()
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        let is_idle = self.is_shared || self.recent.is_empty();
        if !is_idle || self.recent.len() > MOST_RECENT || self.recent.iter().any(Range::is_empty) {
            return Err(alloc::format!("{} ranges are remembered: {:x?}", self.recent.len(), self.recent));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_writes_in_order_is_let_through_to_more_and_more() {
        let mut cow = CopyOnWrite::default();
        let mut at = 64 * PAGE;
        let mut pages = || {
            let range = cow.unprotect(at, usize::MAX);
            at = range.end;
            range.len() / PAGE
        };
        assert_eq!([(); 7].map(|()| pages()), [1, 2, 4, 8, 16, 16, 16]);
        assert_eq!(cow.unprotect(0, usize::MAX), 0..PAGE, "elsewhere");
        assert_eq!(cow.unprotect(PAGE, 2 * PAGE), PAGE..2 * PAGE, "no further than its region");
    }

    #[test]
    fn what_comes_is_remembered_only_while_something_is_shared() {
        let mut cow = CopyOnWrite::default();
        cow.note_own(0..PAGE);
        assert_eq!((cow.recent(), cow.check()), (0, Ok(())));
        cow.share(true);
        cow.note_own(0..0);
        [3, 1].into_iter().for_each(|page| cow.note_own(page * PAGE..(page + 1) * PAGE));
        assert_eq!((cow.recent(), cow.take_recent()), (2, Some(3 * PAGE..4 * PAGE)));
        (0..2 * MOST_RECENT).for_each(|page| cow.note_own(page * PAGE..(page + 1) * PAGE));
        assert_eq!((cow.recent(), cow.check()), (MOST_RECENT, Ok(())));
        cow.share(false);
        assert_eq!((cow.recent(), cow.check()), (0, Ok(())));
    }
}
