//! What the hand has learnt of the address space: where there is memory that it can take, and where there is none.
//! To ask costs a call for each mapping, of which a program can have thousands, and the hand comes by again and
//! again.
//!
//! What is known may be older than the address space. That costs time at most, and never a byte, because
//! 1. of memory that is registered every change is an event, after which its range is forgotten ([`Areas::forget_at`]);
//! 2. memory that is not registered is asked about again before it is registered (`Kernel::register`), and nothing is
//!    taken that is not registered;
//! 3. a mapping that is new where none was known is registered by `register_all` or `register_now`, which ask the
//!    kernel, and is forgotten then. Before that its pages are not looked at, and so they go out a little later.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

/// How long it is remembered at least, in nanoseconds: as long as the hand may overlook what is new.
const KEEP_NS: u64 = 50_000_000;

/// And at least so many times as long as it took to learn: to ask takes no more than this part of the time, however
/// many mappings there are.
const KEEP_PART: u64 = 16;

/// How many mappings are asked about in one search for pages: a millisecond, for which somebody may wait.
const ASKS: usize = 1024;

/// An area that can be taken, and the address before it from where on there is no other. An empty area is the address
/// up to which that is known.
#[derive(Debug)]
struct Stretch {
    from: usize,
    area: Range<usize>,
}

/// See the head of the file. Sorted and apart.
pub(crate) struct Areas {
    stretches: Vec<Stretch>,
    until_ns: u64,
    /// How many mappings may still be asked about in this search.
    pub(crate) asks: usize,
}

impl Default for Areas {
    fn default() -> Areas {
        Areas { stretches: Vec::new(), until_ns: 0, asks: ASKS }
    }
}

impl Areas {
    /// A search for pages begins.
    pub(crate) fn begin_search(&mut self) {
        self.asks = ASKS;
    }

    /// The first area that ends after an address, or the empty one at the address up to which there is none; `None`
    /// when that has to be asked.
    pub(crate) fn find(&self, at: usize) -> Option<Range<usize>> {
        let next = self.stretches.partition_point(|stretch| stretch.area.end <= at);
        self.stretches.get(next).filter(|stretch| stretch.from <= at).map(|stretch| stretch.area.clone())
    }

    /// The first address from `at` on where there may be something to take.
    pub(crate) fn skip(&self, at: usize) -> usize {
        let mut at = at;
        while let Some(area) = self.find(at).filter(|area| area.start > at) {
            at = area.start;
        }
        at
    }

    /// It is this one. To ask has taken so long.
    pub(crate) fn learn(&mut self, at: usize, area: Range<usize>, took_ns: u64) {
        self.until_ns += took_ns * KEEP_PART;
        let first = self.stretches.partition_point(|stretch| stretch.area.end <= at);
        let last = self.stretches.partition_point(|stretch| stretch.from < area.end);
        self.stretches.splice(first..last.max(first), [Stretch { from: at, area }]);
    }

    /// All of it may have changed.
    pub(crate) fn forget(&mut self) {
        self.stretches.clear();
    }

    /// The mappings of a range may have changed: what is known of others stays.
    pub(crate) fn forget_at(&mut self, range: &Range<usize>) {
        let first = self.stretches.partition_point(|stretch| stretch.area.end <= range.start);
        let last = self.stretches.partition_point(|stretch| stretch.from < range.end);
        if first >= last {
            return;
        }
        let (head, tail) = (&self.stretches[first], &self.stretches[last - 1]);
        let known_to = head.area.start.min(range.start);
        let before = (head.from < known_to).then_some(Stretch { from: head.from, area: known_to..known_to });
        let from = tail.from.max(range.end);
        let after = (tail.area.start >= from && tail.area.end > from)
            .then(|| Stretch { from, area: tail.area.clone() });
        self.stretches.splice(first..last, before.into_iter().chain(after));
    }

    /// What does not hold, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_apart = self.stretches.windows(2).all(|pair| pair[0].area.end <= pair[1].from);
        if !is_apart || self.stretches.iter().any(|s| s.from > s.area.start || s.area.start > s.area.end) {
            return Err(alloc::format!("stretches of the address space overlap: {:x?}", self.stretches));
        }
        Ok(())
    }

    /// Forgets what is too old.
    pub(crate) fn keep_until(&mut self, now_ns: u64) {
        if now_ns >= self.until_ns {
            self.forget();
            self.until_ns = now_ns + KEEP_NS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_is_known_for_all_that_lies_before_it() {
        let mut areas = Areas::default();
        assert_eq!(areas.find(5), None);
        areas.learn(10, 30..40, 0);
        areas.learn(50, 50..60, 0);
        let found = [9, 10, 29, 30, 39, 40, 49, 50, 59, 60].map(|at| areas.find(at).map(|area| area.start));
        let (first, second) = (Some(30), Some(50));
        assert_eq!(found, [None, first, first, first, first, None, None, second, second, None]);
        areas.learn(60, usize::MAX..usize::MAX, 0);
        assert_eq!(areas.find(1 << 40), Some(usize::MAX..usize::MAX), "none as far as the end");
    }

    #[test]
    fn what_is_learnt_later_takes_the_place_of_what_was_known() {
        let mut areas = Areas::default();
        areas.learn(10, 30..40, 0);
        areas.learn(40, 50..60, 0);
        areas.learn(60, 70..80, 0);
        // The first has grown over the second.
        areas.learn(35, 30..65, 0);
        assert_eq!([34, 35, 64, 65].map(|at| areas.find(at)), [None, Some(30..65), Some(30..65), None]);
        assert_eq!(areas.stretches.len(), 1);
        areas.learn(0, 20..25, 0);
        assert_eq!(
            [0, 24, 25, 35].map(|at| areas.find(at)),
            [Some(20..25), Some(20..25), None, Some(30..65)]
        );
    }

    #[test]
    fn it_is_forgotten_after_a_while() {
        let mut areas = Areas::default();
        areas.keep_until(7);
        areas.learn(10, 30..40, 0);
        areas.keep_until(7 + KEEP_NS - 1);
        assert_eq!(areas.find(10), Some(30..40));
        areas.keep_until(7 + KEEP_NS);
        assert_eq!(areas.find(10), None);
    }

    #[test]
    fn what_took_long_to_learn_is_kept_for_longer() {
        let mut areas = Areas::default();
        areas.keep_until(0);
        areas.learn(10, 30..40, KEEP_NS);
        areas.learn(40, 50..60, KEEP_NS);
        let all_ns = KEEP_NS + 2 * KEEP_NS * KEEP_PART;
        areas.keep_until(all_ns - 1);
        assert_eq!(areas.find(45), Some(50..60));
        areas.keep_until(all_ns);
        assert_eq!(areas.find(45), None);
        areas.learn(10, 30..40, 0);
        areas.keep_until(all_ns + KEEP_NS);
        assert_eq!(areas.find(10), None, "what it took before does not count any more");
    }

    #[test]
    fn a_long_way_without_anything_is_learnt_in_parts_and_passed_at_once() {
        let mut areas = Areas::default();
        for at in 1..10 {
            areas.learn(at * 10, (at + 1) * 10..(at + 1) * 10, 0);
        }
        assert_eq!([9, 10, 55, 99, 100].map(|at| areas.skip(at)), [9, 100, 100, 100, 100]);
        areas.learn(100, 150..160, 0);
        assert_eq!([55, 149, 150, 159, 160].map(|at| areas.skip(at)), [150, 150, 150, 159, 160]);
        areas.learn(160, usize::MAX..usize::MAX, 0);
        assert_eq!(areas.skip(200), usize::MAX);
    }

    #[test]
    fn what_changes_is_forgotten_and_what_lies_around_it_is_not() {
        let known = |range: Range<usize>| {
            let mut areas = Areas::default();
            areas.learn(10, 30..40, 0);
            areas.learn(40, 50..60, 0);
            areas.learn(60, 90..95, 0);
            areas.forget_at(&range);
            (0..10).map(|n| areas.find(n * 10).map(|area| area.start)).collect::<Vec<_>>()
        };
        let (a, b, c) = (Some(30), Some(50), Some(90));
        assert_eq!(known(0..10), [None, a, a, a, b, b, c, c, c, c]);
        assert_eq!(known(95..99), [None, a, a, a, b, b, c, c, c, c]);
        assert_eq!(
            known(20..21),
            [None, Some(20), None, a, b, b, c, c, c, c],
            "a new one where none was known"
        );
        assert_eq!(known(30..40), [None, a, a, None, b, b, c, c, c, c], "known up to where it begins");
        assert_eq!(known(55..56), [None, a, a, a, b, None, c, c, c, c]);
        assert_eq!(known(35..75), [None, a, a, None, None, None, None, None, c, c]);
        assert_eq!(known(0..100), [None; 10]);
    }
}
