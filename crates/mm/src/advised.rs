//! What the program has advised of its memory, or its faults let expect, and the pager has not done yet.
//!
//! Advice may be forgotten at any time. There are so many ranges at most, and what a range held is gone with it.

use crate::ranges::RangeSet;
use alloc::string::String;
use base::Advice;
use core::ops::Range;

/// How many ranges of one kind are remembered.
const RANGES: usize = 256;

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Advised {
    ranges: [RangeSet; Advice::ALL.len()],
    /// What is to come since much of it was asked for.
    prefetch: RangeSet,
    /// So many bytes have gone to the inactive list and are to go on from there.
    due_bytes: usize,
}

impl Advised {
    fn of(&mut self, advice: Advice) -> &mut RangeSet {
        &mut self.ranges[advice as usize - 1]
    }

    /// The program has advised something, which ends what it has advised before; false where there is no room for it.
    pub fn add(&mut self, advice: Advice, range: Range<usize>) -> bool {
        self.forget(&range);
        let ranges = self.of(advice);
        let has_room = ranges.as_slice().len() < RANGES;
        if has_room {
            ranges.insert(range);
        }
        has_room
    }

    /// Much of a range was asked for: all of it is to come, unless the program has advised that some of it is not
    /// needed. Forgotten where there is too much.
    pub fn prefetch(&mut self, range: Range<usize>) {
        let is_unneeded =
            [Advice::PageOut, Advice::Cold].iter().any(|&advice| self.of(advice).overlaps(&range));
        if !is_unneeded && self.prefetch.as_slice().len() < RANGES {
            self.prefetch.insert(range);
        }
    }

    /// What is to come though nobody has advised it stays away.
    pub fn forget_prefetch(&mut self) {
        self.prefetch.clear();
    }

    /// What was advised to come stays away.
    pub fn forget_needed(&mut self) {
        self.of(Advice::WillNeed).clear();
    }

    /// The first range that is to come, and whether that was advised.
    pub fn first_in(&self) -> Option<(Range<usize>, bool)> {
        let advised = self.first(Advice::WillNeed).map(|range| (range, true));
        advised.or_else(|| self.prefetch.first().map(|range| (range, false)))
    }

    /// It has come, or will not.
    pub fn done_in(&mut self, range: &Range<usize>) {
        self.done(Advice::WillNeed, range);
        self.prefetch.remove(range);
    }

    /// The first range of this advice.
    pub fn first(&self, advice: Advice) -> Option<Range<usize>> {
        self.ranges[advice as usize - 1].first()
    }

    /// It is done there.
    pub fn done(&mut self, advice: Advice, range: &Range<usize>) {
        self.of(advice).remove(range);
    }

    /// What was there is gone.
    pub fn forget(&mut self, range: &Range<usize>) {
        self.ranges.iter_mut().chain([&mut self.prefetch]).for_each(|ranges| ranges.remove(range));
    }

    /// So many bytes have gone to the inactive list by advice.
    pub fn went(&mut self, bytes: usize) {
        self.due_bytes += bytes;
    }

    /// So many bytes are to go on from there.
    pub fn due_bytes(&self) -> usize {
        self.due_bytes
    }

    /// So many have gone on.
    pub fn went_on(&mut self, bytes: usize) {
        self.due_bytes = self.due_bytes.saturating_sub(bytes);
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        for ranges in self.ranges.iter().chain([&self.prefetch]) {
            ranges.check()?;
            // To take a part out of one makes two.
            if ranges.as_slice().len() > 2 * RANGES {
                return Err(alloc::format!("advice on {} ranges", ranges.as_slice().len()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmscan::PAGE;

    #[test]
    fn advice_is_forgotten_with_its_range_and_where_there_is_too_much() {
        let mut advised = Advised::default();
        assert!(advised.add(Advice::PageOut, 0..8 * PAGE));
        advised.forget(&(2 * PAGE..4 * PAGE));
        advised.done(Advice::PageOut, &(0..PAGE));
        assert_eq!(advised.first(Advice::PageOut), Some(PAGE..2 * PAGE));
        let added =
            (10..1000).filter(|n| advised.add(Advice::PageOut, 2 * n * PAGE..(2 * n + 1) * PAGE)).count();
        assert_eq!((added, advised.check()), (RANGES - 2, Ok(())));
    }
}
