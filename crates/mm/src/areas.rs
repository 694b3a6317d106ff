//! What the hand has learnt of the address space: where there is memory that it can take, and where there is none. To ask costs a call for each mapping, of which a
//! program with many libraries has hundreds, and the hand comes by again and again.
//!
//! What is known may be older than the address space, and that does no harm: a mapping that is new is taken a little later, what happens to one that is registered is an event,
//! after which nothing is known any more, and one that is not is asked about before it is registered (`Pager::area`).

use alloc::vec::Vec;
use core::ops::Range;

/// How long it is remembered, in nanoseconds: as long as the hand may overlook what is new.
const KEEP_NS: u64 = 50_000_000;

/// An area that can be taken, and the address before it from where on there is no other.
struct Stretch {
    from: usize,
    area: Range<usize>,
}

/// See the head of the file. Sorted and apart.
#[derive(Default)]
pub(crate) struct Areas {
    stretches: Vec<Stretch>,
    until_ns: u64,
}

impl Areas {
    /// The first area that ends after an address; `None` when that has to be asked.
    pub(crate) fn find(&self, at: usize) -> Option<Range<usize>> {
        let next = self.stretches.partition_point(|stretch| stretch.area.end <= at);
        self.stretches.get(next).filter(|stretch| stretch.from <= at).map(|stretch| stretch.area.clone())
    }

    /// It is this one.
    pub(crate) fn learn(&mut self, at: usize, area: Range<usize>) {
        let first = self.stretches.partition_point(|stretch| stretch.area.end <= at);
        let last = self.stretches.partition_point(|stretch| stretch.from < area.end);
        self.stretches.splice(first..last.max(first), [Stretch { from: at, area }]);
    }

    /// Some of it may have changed.
    pub(crate) fn forget(&mut self) {
        self.stretches.clear();
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
        areas.learn(10, 30..40);
        areas.learn(50, 50..60);
        let found = [9, 10, 29, 30, 39, 40, 49, 50, 59, 60].map(|at| areas.find(at).map(|area| area.start));
        let (first, second) = (Some(30), Some(50));
        assert_eq!(found, [None, first, first, first, first, None, None, second, second, None]);
        areas.learn(60, usize::MAX..usize::MAX);
        assert_eq!(areas.find(1 << 40), Some(usize::MAX..usize::MAX), "none as far as the end");
    }

    #[test]
    fn what_is_learnt_later_takes_the_place_of_what_was_known() {
        let mut areas = Areas::default();
        areas.learn(10, 30..40);
        areas.learn(40, 50..60);
        areas.learn(60, 70..80);
        // The first has grown over the second.
        areas.learn(35, 30..65);
        assert_eq!([34, 35, 64, 65].map(|at| areas.find(at)), [None, Some(30..65), Some(30..65), None]);
        assert_eq!(areas.stretches.len(), 1);
        areas.learn(0, 20..25);
        assert_eq!(
            [0, 24, 25, 35].map(|at| areas.find(at)),
            [Some(20..25), Some(20..25), None, Some(30..65)]
        );
    }

    #[test]
    fn it_is_forgotten_after_a_while() {
        let mut areas = Areas::default();
        areas.keep_until(7);
        areas.learn(10, 30..40);
        areas.keep_until(7 + KEEP_NS - 1);
        assert_eq!(areas.find(10), Some(30..40));
        areas.keep_until(7 + KEEP_NS);
        assert_eq!(areas.find(10), None);
    }
}
