//! The pool's limit, where there are swap areas: what is beyond it goes there.
//!
//! ```text
//!   0 ........ accept_threshold ......... max_pool
//!      ^                 |                    |
//!      |                 +-- no more goes <---+-- from here on the oldest go
//! ```

use alloc::format;
use alloc::string::String;
use vmscan::shrinker::Shrinker;

/// How large the pool may be. Without a limit all of it.
#[derive(Debug)]
pub struct PoolLimit {
    max_pool_bytes: usize,
    accept_threshold_percent: u8,
    /// It was at its limit, and has not come down to the threshold since.
    is_over: bool,
    /// How often that has begun since somebody asked.
    hits: u64,
    /// Takes from a pool that is within its limit, if the user wants it.
    shrinker: Option<Shrinker>,
    /// Nothing goes to areas, however large it is.
    is_kept: bool,
    /// Nothing is to stay in it.
    is_closed: bool,
}

impl Default for PoolLimit {
    fn default() -> PoolLimit {
        PoolLimit {
            max_pool_bytes: usize::MAX,
            accept_threshold_percent: 100,
            is_over: false,
            hits: 0,
            shrinker: None,
            is_kept: false,
            is_closed: false,
        }
    }
}

impl PoolLimit {
    /// Another limit, in bytes, and how much of that, in percent, is left once objects have begun to go.
    pub fn set(&mut self, max_pool_bytes: usize, accept_threshold_percent: u8) {
        self.max_pool_bytes = max_pool_bytes;
        self.accept_threshold_percent = accept_threshold_percent.min(100);
    }

    /// From now on nothing goes, or what has to.
    pub fn keep(&mut self, is_kept: bool) {
        self.is_kept = is_kept;
    }

    /// True where nothing may go.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// From now on what is new only passes through the pool on its way to an area, or it is to stay.
    pub fn close(&mut self, is_closed: bool) {
        self.is_closed = is_closed;
    }

    /// True where what is new is not to stay, and may go.
    pub fn is_closed(&self) -> bool {
        self.is_closed && !self.is_kept
    }

    /// True where objects are to go from a pool of so many bytes.
    pub fn wants(&mut self, pool_bytes: usize) -> bool {
        let threshold = self.max_pool_bytes as u128 * self.accept_threshold_percent as u128 / 100;
        if pool_bytes > self.max_pool_bytes {
            self.hits += !self.is_over as u64;
            self.is_over = true;
        } else if pool_bytes as u128 <= threshold {
            self.is_over = false;
        }
        self.is_over && !self.is_kept
    }

    /// How often the pool has come to be beyond its limit since the last call.
    pub fn take_hits(&mut self) -> u64 {
        core::mem::take(&mut self.hits)
    }

    /// From now on the pool shrinks early, or does not.
    pub fn set_shrinker(&mut self, is_wanted: bool) {
        if is_wanted != self.shrinker.is_some() {
            self.shrinker = is_wanted.then(Shrinker::default);
        }
    }

    /// What shrinks it early.
    pub fn shrinker_mut(&mut self) -> Option<&mut Shrinker> {
        self.shrinker.as_mut()
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        if self.accept_threshold_percent > 100 {
            return Err(format!("more is accepted than there may be: {self:?}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_go_from_the_limit_down_to_the_threshold() {
        let mut limit = PoolLimit::default();
        assert!(!limit.wants(usize::MAX), "without a limit none go");
        limit.set(50, 80);
        let wants = [40, 50, 51, 45, 41, 40, 50, 51].map(|pool| limit.wants(pool));
        assert_eq!(wants, [false, false, true, true, true, false, false, true]);
        assert_eq!((limit.take_hits(), limit.take_hits()), (2, 0), "at 51 both times");
        limit.set(0, 90);
        assert!(limit.wants(1) && !limit.wants(0), "with none everything goes");
        limit.keep(true);
        assert!(!limit.wants(1) && limit.is_kept(), "without writeback nothing goes");
        limit.close(true);
        assert!(!limit.is_closed(), "nor is it closed: what comes would have nowhere to go");
        limit.keep(false);
        assert!(limit.wants(1) && limit.is_closed());
        assert_eq!(limit.check(), Ok(()));
    }
}
