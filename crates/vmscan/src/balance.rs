//! How much of a limit the pool takes where there are swap areas beside it.
//!
//! What the pool takes resident pages lack. Each miss says what a little more of the one or of the other would have
//! changed, and the pool grows or shrinks by that: so it comes to where both are worth the same. For `part` more bytes
//! of pool:
//!
//! ```text
//!   lost by each miss            what it cost  x  (part / 4096) / (resident + distance)
//!   won by each read of an area  (area - pool)  x  (part / bytes of a page - part / 4096) / left since
//! ```
//!
//! - A page is missed once while the hand comes round to it, past all that are `resident`, and `distance` others go out
//!   before it is touched. With fewer that are resident this comes round sooner, in proportion.
//! - A touch takes a page out of the pool, so that those in it are in the order of their last use. What left it for an
//!   area would be there still, had it been larger by all that left since; a part of that spares a part of the read.
//!   Of the pages that a larger pool has more `part / 4096` are those that are resident no more.
//!
//! On traces this is as good as the best percentage of each program, whatever a read of the area costs
//! (`replay run`, docs/bench).

use base::PAGE;

/// What is weighed is one part in so many of the limit.
const PART: f32 = 16.0;

/// How many bytes one read of an area moves the limit, if the pool cost nothing.
const STEP: f32 = (32 * PAGE) as f32;

/// The least and the most that the pool may take, in parts of the limit. With the most it begins: what areas have to be
/// read for is learnt by reading them.
const LEAST: f32 = 0.02;
const MOST: f32 = 0.8;

/// How long a miss takes while none is measured, in microseconds: from the pool, and from an area.
const POOL_US: f32 = 40.0;
const AREA_US: f32 = 150.0;

/// One measured miss counts for so much of the mean.
const WEIGHT: f32 = 1.0 / 64.0;

/// A page that is asked for, and was out.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    /// How many pages have gone out since it did.
    pub distance: usize,
    /// How many are resident.
    pub resident: usize,
    /// How many have left the pool for an area since it did; `None` where it is in the pool.
    pub left: Option<usize>,
    /// How many bytes a page takes in the pool, in the mean.
    pub page_bytes: usize,
}

/// What was learnt.
#[derive(Clone, Copy, Debug)]
pub struct Balance {
    /// How much the pool may take, in parts of the limit.
    share: f32,
    pool_us: f32,
    area_us: f32,
}

impl Default for Balance {
    fn default() -> Balance {
        Balance { share: MOST, pool_us: POOL_US, area_us: AREA_US }
    }
}

impl Balance {
    /// A thread has waited so long, in nanoseconds, for a page of the pool, or for one that was read from an area.
    pub fn waited(&mut self, from_area: bool, ns: u64) {
        let mean = if from_area { &mut self.area_us } else { &mut self.pool_us };
        *mean += (ns as f32 / 1000.0 - *mean) * WEIGHT;
    }

    /// A page is asked for, of a process that may hold so many bytes.
    pub fn missed(&mut self, limit: usize, miss: &Miss) {
        let part_pages = limit as f32 / PART / PAGE as f32;
        let per_page = miss.page_bytes.clamp(PAGE / 64, PAGE) as f32 / PAGE as f32;
        let more_pages = part_pages / per_page - part_pages;
        let cost_us = if miss.left.is_some() { self.area_us } else { self.pool_us };
        let lost_us = cost_us * part_pages / (miss.resident + miss.distance).max(1) as f32;
        let sooner = miss.left.map_or(0.0, |left| more_pages / (left as f32).max(more_pages));
        let won_us = sooner * (self.area_us - self.pool_us).max(0.0);
        let step = STEP / limit.max(1) as f32 * (won_us - lost_us) / self.area_us.max(1.0);
        self.share = (self.share + step).clamp(LEAST, MOST);
    }

    /// How much the pool may take of so many bytes.
    pub fn most_bytes(&self, limit: usize) -> usize {
        (limit as f64 * f64::from(self.share)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64 << 20;

    /// The share of the limit after so many misses, in percent.
    fn after(misses: usize, miss: Miss, area_us: u64) -> usize {
        let mut balance = Balance { share: 0.4, ..Balance::default() };
        for _ in 0..misses {
            balance.waited(miss.left.is_some(), if miss.left.is_some() { area_us * 1000 } else { 30_000 });
            balance.missed(LIMIT, &miss);
        }
        balance.most_bytes(LIMIT) / (LIMIT / 100)
    }

    #[test]
    fn it_grows_by_what_left_it_lately_and_shrinks_by_all_other_misses() {
        let miss = Miss { distance: 5000, resident: 8000, left: None, page_bytes: 1200 };
        assert!(after(100, Miss { left: Some(100), ..miss }, 150) > 45, "a larger pool would have had it");
        assert!(after(1000, Miss { left: Some(50_000), ..miss }, 150) < 35, "not even a much larger one");
        assert!(after(1000, miss, 150) < 38);
        assert!(
            after(1000, Miss { resident: 80_000, ..miss }, 150) > after(1000, miss, 150),
            "it lacks less"
        );
    }

    #[test]
    fn where_an_area_is_read_as_fast_as_the_pool_it_is_left_to_the_program() {
        let miss = Miss { distance: 5000, resident: 8000, left: Some(100), page_bytes: 1200 };
        assert!(after(5000, miss, 30) < 10);
        assert_eq!(after(50_000, miss, 30), 2, "the least");
        assert_eq!(after(50_000, miss, 10_000), 80, "the most");
    }

    #[test]
    fn what_does_not_shrink_is_never_worth_more_pool() {
        let miss = Miss { distance: 5000, resident: 8000, left: Some(1), page_bytes: 4096 };
        assert!(after(1000, miss, 150) < 40);
        let nothing = Miss { distance: 0, resident: 0, left: Some(0), page_bytes: 0 };
        assert!((2..=80).contains(&after(100, nothing, 0)), "no number is too small");
    }
}
