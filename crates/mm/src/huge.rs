//! What is known of huge pages: whether they are asked for, where they may go whole, and whether that succeeds.

use crate::ranges::RangeSet;
use alloc::string::String;
use core::ops::Range;

/// So many came in pieces, less those that came whole since: no more are tried, until some have gone out whole.
const FAILURES: u32 = 8;

/// The state.
#[derive(Debug)]
pub struct Huge {
    /// Of a huge page.
    bytes: usize,
    /// One was asked for, and none of stock was given back since.
    pub is_wanted: bool,
    /// Some have come or gone.
    pub is_used: bool,
    /// Those that went out whole, and of which nothing has come back: no page table is there.
    away: RangeSet,
    /// Those that went out whole, and of which a part has come back by itself.
    parted: RangeSet,
    /// Of both those of which all may be there by now, or is about to be.
    due: RangeSet,
    failures: u32,
    /// So many in a row could not be made.
    unmade: u32,
    /// Where the last one was refused.
    refused: Option<usize>,
    turn: bool,
}

impl Huge {
    /// None has come or gone.
    pub fn new(bytes: usize) -> Huge {
        let (is_wanted, is_used, turn) = (false, false, false);
        let [away, parted, due] = core::array::from_fn(|_| RangeSet::default());
        Huge { bytes, is_wanted, is_used, away, parted, due, failures: 0, unmade: 0, refused: None, turn }
    }

    /// A huge page has gone out whole.
    pub fn went(&mut self, range: Range<usize>) {
        self.forget(&range);
        self.away.insert(range);
        self.is_used = true;
        self.failures = self.failures.saturating_sub(1);
    }

    /// Something has come back to a range.
    pub fn came_to(&mut self, range: &Range<usize>) {
        if range.is_empty() || self.away.is_empty() && self.parted.is_empty() {
            return;
        }
        for start in (range.start & !(self.bytes - 1)..range.end).step_by(self.bytes) {
            let huge = start..start + self.bytes;
            if range.start <= huge.start && huge.end <= range.end {
                self.forget(&huge);
            } else if self.away.covers(&huge) {
                self.away.remove(&huge);
                self.parted.insert(huge);
            }
        }
    }

    /// A range may be another one by now.
    pub fn forget(&mut self, range: &Range<usize>) {
        if !range.is_empty() {
            let huge = range.start & !(self.bytes - 1)..range.end.next_multiple_of(self.bytes);
            [&mut self.away, &mut self.parted, &mut self.due].into_iter().for_each(|set| set.remove(&huge));
        }
    }

    /// All of a range may be there by now, or is about to be, in parts.
    pub fn may_be_there(&mut self, range: &Range<usize>) {
        for part in self.away.within(range).into_iter().chain(self.parted.within(range)) {
            let start = part.start.next_multiple_of(self.bytes);
            let end = part.end & !(self.bytes - 1);
            if start < end {
                self.due.insert(start..end);
            }
        }
    }

    /// A huge page of which all may be there.
    pub fn first_due(&self) -> Option<Range<usize>> {
        self.due.first().map(|due| due.start..due.start + self.bytes)
    }

    /// One was made, or could not be. After some failures in a row none of the others is tried.
    pub fn made(&mut self, is_made: bool) {
        self.unmade = if is_made { 0 } else { self.unmade + 1 };
        if self.unmade == FAILURES {
            self.unmade = 0;
            self.due.clear();
        }
    }

    /// It was looked at: it is not due any more, and was no huge page if `is_over`.
    pub fn looked_at(&mut self, range: &Range<usize>, is_over: bool) {
        self.due.remove(range);
        if is_over {
            self.parted.remove(range);
        }
    }

    /// True where a huge page can come back whole.
    pub fn is_away(&self, range: &Range<usize>) -> bool {
        self.away.covers(range)
    }

    /// One has come, whole or in pieces.
    pub fn came(&mut self, is_whole: bool) {
        self.is_used = true;
        self.failures = if is_whole { self.failures.saturating_sub(1) } else { self.failures + 1 };
    }

    /// False where too many came in pieces.
    pub fn succeeds(&self) -> bool {
        self.failures < FAILURES
    }

    /// One could not be put here: what is mapped there is locked, or of two kinds, or there is a page.
    pub fn refused(&mut self, at: usize) {
        self.refused = Some(at);
    }

    /// True where that was here, the last time.
    pub fn was_refused(&self, at: usize) -> bool {
        self.refused == Some(at)
    }

    /// Every other time true.
    pub fn take_turns(&mut self) -> bool {
        self.turn = !self.turn;
        self.turn
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        [&self.away, &self.parted, &self.due].into_iter().try_for_each(RangeSet::check)?;
        let is_one = |due: usize| self.parted.contains(due) || self.away.contains(due);
        match self.due.as_slice().iter().all(|due| due.clone().step_by(self.bytes).all(is_one)) {
            true => Ok(()),
            false => Err(String::from("a huge page is to be made of what was none")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_pieces_again_and_again_is_tried_no_more() {
        let mut huge = Huge::new(8);
        (0..FAILURES - 1).for_each(|_| huge.came(false));
        assert!(huge.succeeds());
        huge.came(true);
        (0..2).for_each(|_| huge.came(false));
        assert!(!huge.succeeds());
        huge.went(0..8);
        huge.went(8..16);
        assert!(huge.succeeds() && huge.is_away(&(0..8)));
        huge.came_to(&(3..4));
        assert!(!huge.is_away(&(0..8)) && huge.is_away(&(8..16)));
        assert!(!huge.away.contains(6), "nothing is left of it");
    }

    #[test]
    fn what_has_come_in_parts_may_be_one_again_until_it_is_another() {
        let mut huge = Huge::new(8);
        (0..5).for_each(|n| huge.went(n * 8..n * 8 + 8));
        huge.came_to(&(3..3));
        assert!(huge.is_away(&(0..8)), "nothing has come");
        [3..4, 8..16, 17..26, 33..34].iter().for_each(|range| huge.came_to(range));
        huge.may_be_there(&(0..36));
        let mut due = || {
            let first = huge.first_due()?;
            huge.looked_at(&first, first.start == 0);
            Some(first)
        };
        assert_eq!([(); 4].map(|()| due()), [Some(0..8), Some(16..24), Some(24..32), None]);
        huge.may_be_there(&(0..40));
        assert_eq!((huge.first_due(), huge.check()), (Some(16..24), Ok(())), "the first is none any more");
        huge.forget(&(20..21));
        assert_eq!(huge.first_due(), Some(24..32));
        (1..FAILURES).for_each(|_| huge.made(false));
        huge.made(true);
        (1..FAILURES).for_each(|_| huge.made(false));
        assert_eq!(huge.first_due(), Some(24..32));
        huge.made(false);
        assert_eq!(huge.first_due(), None);
        huge.may_be_there(&(24..40));
        huge.went(24..32);
        assert_eq!((huge.first_due(), huge.is_away(&(24..32))), (Some(32..40), true));
    }
}
