//! A set of addresses, kept as ranges.
//!
//! Invariant: the ranges are sorted, none is empty, and no two of them touch.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

/// A set of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range<usize>>,
}

impl RangeSet {
    /// The ranges, in order.
    pub fn as_slice(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// True for the empty set.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many addresses are in the set.
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// The first range.
    pub fn first(&self) -> Option<Range<usize>> {
        self.ranges.first().cloned()
    }

    /// The range that holds an address.
    pub fn find(&self, at: usize) -> Option<&Range<usize>> {
        let after = self.ranges.partition_point(|r| r.start <= at);
        self.ranges[..after].last().filter(|r| at < r.end)
    }

    /// True for an address in the set.
    pub fn contains(&self, at: usize) -> bool {
        self.find(at).is_some()
    }

    /// True when all of `range` is in the set.
    pub fn covers(&self, range: &Range<usize>) -> bool {
        self.find(range.start).is_some_and(|r| r.end >= range.end)
    }

    /// True when any of `range` is in the set.
    pub fn overlaps(&self, range: &Range<usize>) -> bool {
        let after = self.ranges.partition_point(|r| r.end <= range.start);
        self.ranges.get(after).is_some_and(|r| r.start < range.end)
    }

    /// The parts of `range` that are in the set.
    pub fn within(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let first = self.ranges.partition_point(|r| r.end <= range.start);
        let cut = |r: &Range<usize>| r.start.max(range.start)..r.end.min(range.end);
        self.ranges[first..].iter().take_while(|r| r.start < range.end).map(cut).collect()
    }

    /// The parts of `range` that are not in the set.
    pub fn without(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut rest = RangeSet::from(range.clone());
        for part in self.within(range) {
            rest.remove(&part);
        }
        rest.ranges
    }

    /// Adds a range.
    pub fn insert(&mut self, mut range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let last = self.ranges.partition_point(|r| r.start <= range.end);
        if first < last {
            range.start = range.start.min(self.ranges[first].start);
            range.end = range.end.max(self.ranges[last - 1].end);
        }
        self.ranges.splice(first..last, [range]);
    }

    /// Takes a range out.
    pub fn remove(&mut self, hole: &Range<usize>) {
        let first = self.ranges.partition_point(|r| r.end <= hole.start);
        let last = self.ranges.partition_point(|r| r.start < hole.end);
        if first >= last || hole.is_empty() {
            return;
        }
        let before = self.ranges[first].start..hole.start;
        let after = hole.end..self.ranges[last - 1].end;
        self.ranges.splice(first..last, [before, after].into_iter().filter(|rest| !rest.is_empty()));
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    /// What does not hold of the ranges, in words.
    pub fn check(&self) -> Result<(), String> {
        let is_sorted = self.ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
        if is_sorted && self.ranges.iter().all(|r| !r.is_empty()) {
            return Ok(());
        }
        Err(alloc::format!("ranges that are empty, out of order, or touch: {:x?}", self.ranges))
    }
}

impl From<Range<usize>> for RangeSet {
    fn from(range: Range<usize>) -> RangeSet {
        let mut set = RangeSet::default();
        set.insert(range);
        set
    }
}

impl FromIterator<Range<usize>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(ranges: I) -> RangeSet {
        let mut set = RangeSet::default();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: usize = 64;

    /// The same set as a number for each address.
    fn agrees(set: &RangeSet, model: &[bool; END], seed: u64) {
        assert_eq!(set.check(), Ok(()), "seed {seed}");
        assert_eq!(set.bytes(), model.iter().filter(|there| **there).count(), "seed {seed}");
        for (at, &there) in model.iter().enumerate() {
            assert_eq!(set.contains(at), there, "seed {seed}: {at} of {set:?}");
        }
    }

    #[test]
    fn a_set_of_ranges_agrees_with_a_set_of_numbers() {
        for seed in 1..=50u64 {
            let mut random = seed;
            let mut next = |n: u64| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                ((random >> 33) % n) as usize
            };
            let (mut set, mut model) = (RangeSet::default(), [false; END]);
            for _ in 0..200 {
                let start = next(60);
                let range = start..start + next(5);
                let adds = next(2) == 0;
                if adds {
                    set.insert(range.clone());
                } else {
                    set.remove(&range);
                }
                model[range].fill(adds);
                agrees(&set, &model, seed);
                let start = next(60);
                let range = start..start + 1 + next(4);
                let there = model[range.clone()].iter().filter(|there| **there).count();
                let [within, without] = [set.within(&range), set.without(&range)];
                let bytes = |parts: &[Range<usize>]| parts.iter().map(Range::len).sum::<usize>();
                assert_eq!([bytes(&within), bytes(&without)], [there, range.len() - there], "seed {seed}");
                assert!(within.iter().all(|part| set.covers(part)), "seed {seed}");
                assert!(without.iter().all(|part| !set.overlaps(part)), "seed {seed}");
                assert_eq!(
                    (set.covers(&range), set.overlaps(&range)),
                    (there == range.len(), there > 0),
                    "seed {seed}: {range:?} of {set:?}"
                );
            }
        }
    }
}
