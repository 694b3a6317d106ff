//! The hull of the memory that the program has mapped: one range that holds all of it. The program's threads add to it,
//! and the engine takes it. Of thousands of mappings it then asks about those few that are new.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// Addresses are kept as numbers of so many bytes: two of them are one word, which is changed at once.
const UNIT: usize = 64 << 10;

/// Nothing was added. The word of a hull that holds everything is 0: as a process begins, and in a child.
const EMPTY: u64 = u32::MAX as u64;

/// One range, as two units in one word: the first unit in the lower half, the one after the last in the upper.
pub struct Hull(AtomicU64);

impl Hull {
    /// One that holds everything.
    pub const fn new() -> Hull {
        Hull(AtomicU64::new(0))
    }

    /// Adds a range. It must be added before it is counted (`Control::mapped_bytes`).
    pub fn add(&self, range: &Range<usize>) {
        if range.is_empty() {
            return;
        }
        let first = (range.start / UNIT) as u32 as u64;
        let end = range.end.div_ceil(UNIT).min(u32::MAX as usize) as u64;
        let wider = |word: u64| match word {
            0 => None,
            _ => {
                let wide = (word as u32 as u64).min(first) | (word >> 32).max(end) << 32;
                (wide != word).then_some(wide)
            }
        };
        let _ = self.0.fetch_update(AcqRel, Acquire, wider);
    }

    /// Takes all that was added: from now on it is empty.
    pub fn take(&self) -> Range<usize> {
        match self.0.swap(EMPTY, AcqRel) {
            0 => 0..usize::MAX,
            word => {
                let (first, end) = (word as u32 as usize, (word >> 32) as usize);
                first * UNIT..(end * UNIT).max(first * UNIT)
            }
        }
    }

    /// It holds everything again. What is so already is not written.
    pub fn reset(&self) {
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }
}

impl Default for Hull {
    fn default() -> Hull {
        Hull::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_was_added_since_it_was_taken_and_all_at_first() {
        let hull = Hull::new();
        hull.add(&(UNIT..2 * UNIT));
        assert_eq!(hull.take(), 0..usize::MAX);
        assert!(hull.take().is_empty());
        // What could not be done is put back, though it was nothing.
        let nothing = hull.take();
        hull.add(&nothing);
        assert!(hull.take().is_empty());
        hull.add(&(5 * UNIT + 4096..5 * UNIT + 8192));
        assert_eq!(hull.take(), 5 * UNIT..6 * UNIT);
        hull.add(&(7 * UNIT..8 * UNIT));
        hull.add(&(3 * UNIT..3 * UNIT + 1));
        hull.add(&(4 * UNIT..5 * UNIT));
        assert_eq!(hull.take(), 3 * UNIT..8 * UNIT);
        let top = (1 << 47) - 4096;
        hull.add(&(top - 4096..top));
        assert_eq!(hull.take(), (1 << 47) - UNIT..1 << 47);
        hull.add(&(0..usize::MAX));
        assert!(hull.take().contains(&(1 << 47)));
        hull.reset();
        hull.add(&(UNIT..2 * UNIT));
        assert_eq!(hull.take(), 0..usize::MAX);
    }

    #[test]
    fn nothing_is_lost_between_those_who_add_and_the_one_who_takes() {
        let hull = Hull::new();
        hull.take();
        std::thread::scope(|scope| {
            let adders: Vec<_> = (1..5usize)
                .map(|n| {
                    let hull = &hull;
                    scope.spawn(move || {
                        (0..1000).for_each(|i| hull.add(&((n * 1000 + i) * UNIT..(n * 1000 + i + 1) * UNIT)))
                    })
                })
                .collect();
            let mut seen = std::collections::BTreeSet::new();
            loop {
                let done = adders.iter().all(|adder| adder.is_finished());
                let range = hull.take();
                seen.extend((range.start..range.end).step_by(UNIT));
                if done {
                    break;
                }
            }
            assert!((1000..5000).all(|unit| seen.contains(&(unit * UNIT))));
        });
    }
}
