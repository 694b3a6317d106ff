//! Ranges that a REMOVE event covered: nothing there goes out until every thread that uses the memory has been seen
//! outside of such a call.
//!
//! Between the reading of the event and the zapping of the pages by its causer the old contents are still mapped,
//! and saving them would bring them back after the zap. A census of the threads tells when that is over; what comes
//! while one is under way waits for the next.

use crate::ranges::RangeSet;
use alloc::string::String;
use core::ops::Range;

/// The ranges.
#[derive(Debug, Default)]
pub struct Quarantine {
    /// Those that the census under way is about.
    old: RangeSet,
    /// Those that came after it began.
    young: RangeSet,
}

impl Quarantine {
    /// A REMOVE event covers a range.
    pub fn insert(&mut self, range: Range<usize>) {
        self.young.insert(range);
    }

    /// True when the page at `at` is in quarantine.
    pub fn holds(&self, at: usize) -> bool {
        self.old.contains(at) || self.young.contains(at)
    }

    /// True when any page of a range is.
    pub fn overlaps(&self, range: &Range<usize>) -> bool {
        self.old.overlaps(range) || self.young.overlaps(range)
    }

    /// The mapping is gone, and whoever discards there discards something else.
    pub fn lift(&mut self, range: &Range<usize>) {
        self.old.remove(range);
        self.young.remove(range);
    }

    /// Ends the quarantine of those ranges whose causers have all been seen elsewhere since. If a census is to
    /// begin now: of how many bytes.
    pub fn release(&mut self, is_census_done: impl FnOnce() -> bool) -> Option<usize> {
        if !self.old.is_empty() && is_census_done() {
            self.old.clear();
        }
        if !self.old.is_empty() || self.young.is_empty() {
            return None;
        }
        core::mem::swap(&mut self.old, &mut self.young);
        Some(self.old.bytes())
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        self.old.check()?;
        self.young.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_held_until_a_census_that_began_after_its_event_is_done() {
        let mut quarantine = Quarantine::default();
        assert_eq!(quarantine.release(|| unreachable!("none is under way")), None);
        quarantine.insert(10..20);
        assert_eq!(quarantine.release(|| unreachable!("none is under way")), Some(10));
        quarantine.insert(15..30);
        assert_eq!(quarantine.release(|| false), None);
        assert!([10, 19, 29].iter().all(|&at| quarantine.holds(at)));
        assert_eq!(quarantine.release(|| true), Some(15), "the next one is about what came since");
        assert_eq!([14, 15, 29, 30].map(|at| quarantine.holds(at)), [false, true, true, false]);
        assert_eq!(quarantine.release(|| true), None);
        assert!(!quarantine.holds(15));
    }

    #[test]
    fn what_is_unmapped_is_held_no_longer() {
        let mut quarantine = Quarantine::default();
        quarantine.insert(10..20);
        quarantine.release(|| true);
        quarantine.insert(20..30);
        quarantine.lift(&(15..25));
        assert_eq!([14, 15, 24, 25].map(|at| quarantine.holds(at)), [true, false, false, true]);
        assert_eq!(quarantine.check(), Ok(()));
    }
}
