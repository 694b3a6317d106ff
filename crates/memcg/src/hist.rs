//! A log-linear histogram in shared memory: 4 buckets for each power of two, so a quantile is right to 25 %. Each
//! process of a run maps those of all: finer ones would take addresses that a program with a limit of them may need.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// log2 of the buckets for each power of two.
const SUB_BITS: u32 = 2;
const SUB: usize = 1 << SUB_BITS;
/// Values from 2^40 ns (18 minutes) on share the last bucket.
const BUCKETS: usize = (40 - SUB_BITS as usize + 1) * SUB;

/// Counts of values by size.
#[repr(C)]
pub struct Histogram {
    max: AtomicU64,
    sum: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            max: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

fn bucket(value: u64) -> usize {
    if value < SUB as u64 {
        return value as usize;
    }
    let shift = value.ilog2() - SUB_BITS;
    let sub = (value >> shift) as usize - SUB;
    ((shift as usize + 1) * SUB + sub).min(BUCKETS - 1)
}

/// The highest value of a bucket.
fn bucket_end(index: usize) -> u64 {
    if index < SUB {
        return index as u64;
    }
    let shift = index / SUB - 1;
    (((SUB + index % SUB) as u64 + 1) << shift) - 1
}

impl Histogram {
    /// Where in the struct the highest value is, in bytes. All else are sums.
    pub(crate) const MAX_OFFSET: usize = core::mem::offset_of!(Histogram, max);

    /// Counts one value.
    pub fn record(&self, value: u64) {
        self.max.fetch_max(value, Relaxed);
        self.sum.fetch_add(value, Relaxed);
        self.buckets[bucket(value)].fetch_add(1, Relaxed);
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.load(Relaxed)).sum()
    }

    /// The highest value, exact; 0 without values.
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// The sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// The highest value of each bucket, in ascending order, and how many values it has counted. The last bucket has
    /// all that is higher, too.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.buckets.iter().enumerate().map(|(index, count)| (bucket_end(index), count.load(Relaxed)))
    }

    /// The value that a share `q` (0 to 1) of all values does not exceed, 25 % too high at most; 0 without values.
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = (self.count() as f64 * q) as u64;
        let mut seen = 0;
        for (index, b) in self.buckets.iter().enumerate() {
            seen += b.load(Relaxed);
            if seen > rank {
                return bucket_end(index).min(self.max());
            }
        }
        self.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_hold_their_values() {
        let mut last = 0;
        for value in (0..100_000).chain((17..40).flat_map(|s| [(1 << s) - 1, 1 << s, (1 << s) + 1])) {
            let b = bucket(value);
            assert!(b >= last || value < 100_000 && b + 1 >= last, "{value}");
            assert!(bucket_end(b) >= value, "{value} lies above its bucket's end");
            assert!(b == 0 || bucket_end(b - 1) < value, "{value} belongs to an earlier bucket");
            last = b;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_a_quarter() {
        let h = Histogram::default();
        for value in 1..=10_000 {
            h.record(value);
        }
        for (q, exact) in [(0.5, 5_000.0), (0.99, 9_900.0)] {
            let got = h.quantile(q) as f64;
            assert!(got >= exact && got <= exact * 1.25, "{q}: {got}");
        }
        assert_eq!((h.quantile(1.0), h.max(), h.count()), (10_000, 10_000, 10_000));
        assert_eq!(h.sum(), 10_000 * 10_001 / 2);
        assert_eq!(h.buckets().map(|(_, count)| count).sum::<u64>(), 10_000);
        let up_to =
            |end: u64| h.buckets().take_while(|(last, _)| *last < end).map(|(_, count)| count).sum::<u64>();
        for shift in SUB_BITS..13 {
            assert_eq!(up_to(1 << shift), (1 << shift) - 1, "a bucket ends below each power of two");
        }
    }
}
