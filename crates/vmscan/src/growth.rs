//! How much memory comes about that no fault tells of: between two looks at the footprint, and of late.
//!
//! What is registered grows by faults, which can be made to wait: its growth is known before it is there. The rest is
//! found by the next look: memory that was mapped past libc, private copies of file pages, mappings too small to be
//! managed. So much must be free below the limit, and more need not be.

/// For so long growth is remembered at least, and twice as long at most, in nanoseconds.
const PERIOD_NS: u64 = 1_000_000_000;

/// The most that came between two looks, in this period and in the one before. In bytes.
#[derive(Debug, Default)]
pub struct Growth {
    now: usize,
    before: usize,
    turned_ns: u64,
}

impl Growth {
    /// A look has found so many bytes more than was known.
    pub fn found(&mut self, bytes: usize, now_ns: u64) {
        if now_ns - self.turned_ns >= PERIOD_NS {
            self.before = core::mem::take(&mut self.now);
            self.turned_ns = now_ns;
        }
        self.now = self.now.max(bytes);
    }

    /// The most that a look has found of late, in bytes.
    pub fn most(&self) -> usize {
        self.now.max(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_of_a_second_is_remembered_for_another_one() {
        let mut growth = Growth::default();
        let ms = 1_000_000;
        for (at_ms, bytes, most) in
            [(0, 100, 100), (900, 700, 700), (1000, 5, 700), (1999, 6, 700), (2000, 1, 6)]
        {
            growth.found(bytes, at_ms * ms);
            assert_eq!(growth.most(), most, "{at_ms} ms");
        }
        growth.found(0, 9000 * ms);
        growth.found(0, 10_000 * ms);
        assert_eq!(growth.most(), 0);
    }
}
