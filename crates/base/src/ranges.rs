//! A set of ranges: which addresses have something.

use alloc::vec::Vec;
use core::ops::Range;

/// Addresses as ranges. In order, none of them empty, and no two touch: what touches is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range<usize>>,
}

impl RangeSet {
    /// The empty set.
    pub const fn new() -> RangeSet {
        RangeSet { ranges: Vec::new() }
    }

    /// True where nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<usize>> + ExactSizeIterator + Clone {
        self.ranges.iter().cloned()
    }

    /// How many bytes are in it.
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Puts a range in.
    pub fn insert(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // All that overlap it or touch it become one with it.
        let first = self.ranges.partition_point(|other| other.end < range.start);
        let end = self.ranges.partition_point(|other| other.start <= range.end);
        let mut whole = range;
        if first < end {
            whole.start = whole.start.min(self.ranges[first].start);
            whole.end = whole.end.max(self.ranges[end - 1].end);
        }
        self.ranges.splice(first..end, [whole]);
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: &Range<usize>) {
        let (first, end) = self.overlapping(range);
        if first == end {
            return;
        }
        let before = self.ranges[first].start..range.start;
        let after = range.end..self.ranges[end - 1].end;
        self.ranges.splice(first..end, [before, after].into_iter().filter(|rest| !rest.is_empty()));
    }

    /// True where the address is in it.
    pub fn contains(&self, at: usize) -> bool {
        self.range_at(at).is_some()
    }

    /// The range that an address is in.
    pub fn range_at(&self, at: usize) -> Option<Range<usize>> {
        self.first_after(at).filter(|range| range.start <= at)
    }

    /// The first range that ends after an address: the one that it is in, or the next.
    pub fn first_after(&self, at: usize) -> Option<Range<usize>> {
        self.ranges.get(self.ranges.partition_point(|range| range.end <= at)).cloned()
    }

    /// True where all of a range is in it; an empty one always is.
    pub fn covers(&self, range: &Range<usize>) -> bool {
        range.is_empty() || self.range_at(range.start).is_some_and(|own| own.end >= range.end)
    }

    /// True where a part of a range is in it.
    pub fn overlaps(&self, range: &Range<usize>) -> bool {
        let (first, end) = self.overlapping(range);
        first < end
    }

    /// The parts of a range that are in it, in order.
    pub fn within(&self, range: &Range<usize>) -> impl DoubleEndedIterator<Item = Range<usize>> {
        let (first, end) = self.overlapping(range);
        let (from, to) = (range.start, range.end);
        self.ranges[first..end].iter().map(move |own| own.start.max(from)..own.end.min(to))
    }

    /// The parts of a range that are not in it, in order.
    pub fn gaps(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (mut at, to) = (range.start, range.end);
        // An empty range behind the last one, for the gap before it.
        let all = self.within(range).chain(core::iter::once(to..to));
        all.filter_map(move |own| {
            let gap = at..own.start;
            at = own.end;
            (!gap.is_empty()).then_some(gap)
        })
    }

    /// Which of the ranges have an address in common with this one, by index.
    fn overlapping(&self, range: &Range<usize>) -> (usize, usize) {
        if range.is_empty() {
            return (0, 0);
        }
        let first = self.ranges.partition_point(|own| own.end <= range.start);
        let end = self.ranges.partition_point(|own| own.start < range.end);
        (first, end)
    }
}

impl FromIterator<Range<usize>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(ranges: I) -> RangeSet {
        let mut set = RangeSet::new();
        set.extend(ranges);
        set
    }
}

impl Extend<Range<usize>> for RangeSet {
    fn extend<I: IntoIterator<Item = Range<usize>>>(&mut self, ranges: I) {
        ranges.into_iter().for_each(|range| self.insert(range));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    const MODEL: usize = 64;

    fn check(set: &RangeSet) {
        assert!(set.ranges.iter().all(|range| !range.is_empty()), "{set:?}");
        assert!(set.ranges.windows(2).all(|two| two[0].end < two[1].start), "{set:?}");
    }

    /// What a set says of a range is what its numbers say one by one.
    fn agrees(set: &RangeSet, model: &[bool; MODEL], range: &Range<usize>) {
        let numbers = |is: bool| range.clone().filter(|n| model[*n] == is).collect::<Vec<_>>();
        assert_eq!(set.within(range).flatten().collect::<Vec<_>>(), numbers(true), "{set:?}, {range:?}");
        assert_eq!(set.gaps(range).flatten().collect::<Vec<_>>(), numbers(false), "{set:?}, {range:?}");
        assert_eq!(set.covers(range), numbers(false).is_empty(), "{set:?}, {range:?}");
        assert_eq!(set.overlaps(range), !numbers(true).is_empty(), "{set:?}, {range:?}");
    }

    #[test]
    fn a_set_agrees_with_a_list_of_booleans() {
        let (seeds, turns) = if cfg!(miri) { (1, 30) } else { (50, 200) };
        for seed in 0..seeds {
            let mut random = Random(seed);
            let (mut set, mut model) = (RangeSet::new(), [false; MODEL]);
            for _ in 0..turns {
                let start = random.below(MODEL - 4);
                let range = start..start + random.below(5);
                let is_in = random.one_in(2);
                if is_in {
                    set.insert(range.clone());
                } else {
                    set.remove(&range);
                }
                model[range].fill(is_in);
                check(&set);
                assert_eq!(set.bytes(), model.iter().filter(|is| **is).count());
                assert_eq!(set.is_empty(), set.bytes() == 0);
                assert!((0..MODEL).all(|n| set.contains(n) == model[n]), "seed {seed}: {set:?}");
                for n in 0..MODEL {
                    let next = (n..MODEL).find(|n| model[*n]);
                    assert_eq!(set.first_after(n).map(|range| range.start.max(n)), next, "seed {seed}");
                }
                let start = random.below(MODEL);
                agrees(&set, &model, &(start..start + random.below(MODEL - start + 1)));
                assert_eq!(set.iter().collect::<RangeSet>(), set);
            }
        }
    }

    #[test]
    fn what_touches_is_one_and_what_is_cut_is_two() {
        let mut set: RangeSet = [10..20, 30..40, 20..30].into_iter().collect();
        assert_eq!((set.iter().len(), set.range_at(10)), (1, Some(10..40)));
        set.remove(&(15..25));
        assert_eq!(set.iter().collect::<Vec<_>>(), [10..15, 25..40]);
        assert_eq!((set.range_at(14), set.range_at(15)), (Some(10..15), None));
        set.remove(&(0..usize::MAX));
        assert!(set.is_empty());
    }

    /// The ends of the address space.
    #[test]
    fn a_range_may_reach_to_the_end() {
        let mut set = RangeSet::new();
        set.insert(usize::MAX - 10..usize::MAX);
        set.insert(0..5);
        assert!(set.covers(&(usize::MAX - 3..usize::MAX)) && !set.covers(&(4..6)));
        assert!(set.gaps(&(0..usize::MAX)).eq(core::iter::once(5..usize::MAX - 10)));
    }

    #[test]
    fn an_empty_range_changes_nothing_and_is_everywhere() {
        let mut set: RangeSet = core::iter::once(10..20).collect();
        let as_it_was = set.clone();
        set.insert(5..5);
        set.insert(15..15);
        set.remove(&(15..15));
        assert_eq!(set, as_it_was);
        assert!(set.covers(&(50..50)) && !set.overlaps(&(15..15)));
        assert_eq!((set.within(&(15..15)).count(), set.gaps(&(15..15)).count()), (0, 0));
    }
}
