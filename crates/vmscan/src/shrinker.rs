//! The shrinker of the pool: where memory must go, some of it is taken from the pool, whose oldest objects are written
//! to a swap area, before the pool is at its limit.
//!
//! ```text
//!   must go ──> resident pages, and the pool in proportion  x  pool / stored   what compresses badly goes rather
//!                                     - what came back of late                 what is wanted again stays
//! ```
//!
//! The rule is that of the kernel's zswap: of the pool that may go what was read back lately is taken off, since it
//! would not have been read had so much more stayed; and the rest is scaled by what the pool saves.

/// A pool, and what may go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Bytes that it takes.
    pub bytes: usize,
    /// Bytes of the pages in it, uncompressed.
    pub stored: usize,
}

/// What is remembered from call to call.
#[derive(Debug, Default)]
pub struct Shrinker {
    /// Bytes that have come back from an area, and have not been taken off yet.
    back: usize,
    /// Bytes that were due, and too few to be written.
    due: usize,
}

impl Shrinker {
    /// So many bytes of objects were read from an area.
    pub fn came_back(&mut self, bytes: usize) {
        self.back += bytes;
    }

    /// How many bytes of the pool are to be written where `want` bytes must go of `resident` ones; 0 until it is
    /// `least`.
    pub fn due(&mut self, want: usize, resident: usize, pool: Pool, least: usize) -> usize {
        let spared = self.back.min(pool.bytes);
        self.back -= spared;
        let may_go = (pool.bytes - spared) as u128 * pool.bytes.min(pool.stored) as u128;
        let part = may_go * want as u128 / (pool.stored.max(1) as u128 * resident.max(1) as u128);
        self.due = self.due.saturating_add(part as usize).min(pool.bytes);
        if self.due < least { 0 } else { core::mem::take(&mut self.due) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn the_pool_gives_in_proportion_and_more_where_it_saves_little() {
        let due = |bytes, stored| {
            let mut shrinker = Shrinker::default();
            (0..64).map(|_| shrinker.due(MIB, 64 * MIB, Pool { bytes, stored }, 1)).sum::<usize>()
        };
        assert_eq!(due(16 * MIB, 16 * MIB), 16 * MIB, "noise goes as resident pages do");
        assert_eq!(due(16 * MIB, 64 * MIB), 4 * MIB, "a quarter of that for a ratio of 4");
        assert_eq!(due(16 * MIB, 8 * MIB), 16 * MIB, "and never more than in proportion");
        assert_eq!((due(0, 0), due(MIB, 0)), (0, 0), "holes are nobody's");
    }

    #[test]
    fn what_comes_back_is_spared_once() {
        let mut shrinker = Shrinker::default();
        let pool = Pool { bytes: 8 * MIB, stored: 8 * MIB };
        shrinker.came_back(12 * MIB);
        let due = [0; 3].map(|_| shrinker.due(MIB, 8 * MIB, pool, 1));
        assert_eq!(due, [0, MIB / 2, MIB], "all of it, half of it, and nothing");
    }

    #[test]
    fn little_is_put_together() {
        let mut shrinker = Shrinker::default();
        let pool = Pool { bytes: 8 * MIB, stored: 8 * MIB };
        let due: Vec<usize> = (0..8).map(|_| shrinker.due(4096, 8 * MIB, pool, 16384)).collect();
        assert_eq!(due, [0, 0, 0, 16384, 0, 0, 0, 16384]);
        assert_eq!(shrinker.due(usize::MAX, 1, pool, 1), pool.bytes, "never more than there is");
    }
}
