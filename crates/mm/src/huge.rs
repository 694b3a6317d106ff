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
    failures: u32,
    /// Where the last one was refused.
    refused: Option<usize>,
    turn: bool,
}

impl Huge {
    /// None has come or gone.
    pub fn new(bytes: usize) -> Huge {
        let (is_wanted, is_used, turn) = (false, false, false);
        Huge { bytes, is_wanted, is_used, away: RangeSet::default(), failures: 0, refused: None, turn }
    }

    /// A huge page has gone out whole.
    pub fn went(&mut self, range: Range<usize>) {
        self.away.insert(range);
        self.is_used = true;
        self.failures = self.failures.saturating_sub(1);
    }

    /// Something has come to a range, or it may be another one by now.
    pub fn touched(&mut self, range: &Range<usize>) {
        if !self.away.is_empty() && !range.is_empty() {
            let (start, end) = (range.start & !(self.bytes - 1), range.end.next_multiple_of(self.bytes));
            self.away.remove(&(start..end));
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
        self.away.check()
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
        huge.touched(&(3..4));
        assert!(!huge.is_away(&(0..8)) && huge.is_away(&(8..16)));
        assert!(!huge.away.contains(6), "nothing is left of it");
    }
}
