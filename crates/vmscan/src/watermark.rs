//! Watermarks: what to do about a footprint.
//!
//! ```text
//!        0 .... wake .... low ........... high ...... limit
//!          nothing to do │ evict and     │ fresh memory waits,
//!                        │ compress      │ stock is given back
//! ```
//!
//! Memory passes three places on its way out, and each decision is about one of them: resident pages are *evicted* to
//! the inactive list, its oldest are *deflated* (handed to a compressor), and the emptied pages are stock,
//! *recycled* for the next fault or *dropped* to the kernel.

use crate::{HUGE, WINDOW};

/// Where a process stands. All in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Everything that the process holds, engine included.
    pub footprint: usize,
    /// On the inactive list, not yet handed to a compressor.
    pub inactive: usize,
    /// Handed to a compressor, not yet done.
    pub in_flight: usize,
    /// Emptied pages, ready to be used again.
    pub stock: usize,
    /// In the pool, compressed.
    pub pool: usize,
    /// A thread waits for fresh memory.
    pub waiting: bool,
}

/// What is to be done next. All in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// Move this much from the program to the inactive list.
    pub evict: usize,
    /// Hand this much of the inactive list's oldest to the compressors.
    pub deflate: usize,
    /// Give this much stock back to the kernel.
    pub drop: usize,
}

/// The marks of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// All memory that may be used.
    pub limit: usize,
    /// From here on memory is registered, so that fresh memory comes through the pager, which can make it wait.
    pub wake: usize,
    /// Below this nothing goes out.
    pub low: usize,
    /// Above this fresh memory waits for stock.
    pub high: usize,
    /// Above this every fault waits until something has gone out.
    pub max: usize,
    /// How much of the pool may hold copies of pages that are in the program and unchanged.
    pub clean: usize,
    /// While the pool is larger than this, its density counts for more: cold windows that lie in pieces are packed, and
    /// few clean copies kept.
    pub dense: usize,
    /// How much stays on the inactive list as second chance, while the pool is empty; less as it takes more of the
    /// limit. So with the two below.
    pub inactive: usize,
    /// How much stock is kept ready.
    pub stock: usize,
    /// How much may be with the compressors at a time.
    pub in_flight: usize,
}

/// How much memory comes about unheard, where nobody has looked yet.
pub const UNKNOWN: usize = usize::MAX;

/// None of the three is less, but for a small limit: a part in so many of it, and at least so much.
const LEAST: usize = 4 * WINDOW;
const LEAST_PART: usize = 20;
const LEAST_OF_ALL: usize = 2 * WINDOW;

/// Between the low mark and the high one lies no less; of a small limit a part in so many, and at least so much.
const GAP: usize = 768 << 10;
const GAP_PART: usize = 8;
const GAP_OF_ALL: usize = 4 * WINDOW;

/// Above the high mark is no less room for what comes unheard, but for a small limit.
const SLACK: usize = 512 << 10;

/// So far below `low` everything is made ready: memory grows by 3 or 4 bytes a nanosecond, it takes some milliseconds,
/// and where others want the CPUs too a look can be as late again.
const AHEAD: usize = 32 << 20;

/// There is room where one part in so many is free of what may be used: a program at its limit, of which a part was
/// given back a moment ago, has none.
const ROOMY_PART: usize = 8;

/// How much stock relieves those who wait for it.
const RELIEF: usize = 8 * WINDOW;

/// The least that is taken at a time while nobody waits: to look for pages, to list pins and to wake a compressor cost
/// about the same for one window as for some.
pub(crate) const QUANTUM: usize = 4 * WINDOW;

/// The most that one decision evicts, so that a fault never waits behind more.
pub(crate) const EVICT_STEP: usize = 2 * HUGE;

impl Watermarks {
    /// Marks for a limit in bytes. What lies between `high` and the limit takes up what grows between two looks at the
    /// footprint, above all memory that is fresh and not yet registered: twice the most that a look found of late
    /// (`unheard` bytes), since the next look may be later. Where that is not known or large it is 8 MiB, a twelfth
    /// where that is less, and of a large limit a part in 128 up to 64 MiB, since memory is written at 2 or 3 MiB in a
    /// millisecond, and the engine may be late by two where others want the CPUs too. Of several processes for each CPU
    /// no more than one writes at a time: with two or more each keeps half. 768 KiB at least lie between `low` and
    /// `high`, less of a limit below 6 MiB, and no more than stock needs to come and go: a program uses what is below
    /// `low` only.
    pub fn new(limit: usize, processes_per_cpu: usize, unheard: usize) -> Watermarks {
        let most = (limit / 128).clamp((limit / 12).min(8 << 20), 64 << 20);
        let least = (limit / 512).max(SLACK).min(most);
        let slack = unheard.saturating_mul(2).clamp(least, most) / processes_per_cpu.clamp(1, 2);
        let high = limit.saturating_sub(slack);
        let gap = (limit / 256).clamp((limit / GAP_PART).clamp(GAP_OF_ALL, GAP), 64 << 20);
        let part = (limit / LEAST_PART).clamp(LEAST_OF_ALL, LEAST);
        let low = high.saturating_sub(gap);
        Watermarks {
            limit,
            wake: low.saturating_sub(AHEAD).max(limit / 2),
            low,
            high,
            max: limit - slack / 2,
            clean: limit / 8,
            dense: limit / 3 * 2,
            inactive: (limit / 32).clamp(part, 256 << 20),
            stock: (limit / 256).clamp(part, 16 << 20),
            in_flight: (limit / 32).clamp(part, 16 << 20),
        }
    }

    /// How much is kept free at most below a limit that has room for a footprint of so many bytes: a program uses what
    /// is below the low mark only.
    pub fn kept_free(footprint: usize, processes_per_cpu: usize) -> usize {
        let marks = Watermarks::new(footprint + footprint / 8 + (2 << 20), processes_per_cpu, UNKNOWN);
        marks.limit - marks.low
    }

    /// Marks that evict everything all the time: the test mode.
    pub fn evict_all() -> Watermarks {
        Watermarks {
            limit: usize::MAX,
            wake: 1 << 20,
            low: 0,
            high: usize::MAX,
            max: usize::MAX,
            clean: usize::MAX,
            dense: 4 << 20,
            inactive: LEAST,
            stock: LEAST,
            in_flight: 16 * WINDOW,
        }
    }

    /// How much of a pool of `pool` bytes may hold copies of pages that are in the program and unchanged: less where
    /// there is no room for it.
    pub fn clean_at(&self, pool: usize) -> usize {
        if pool > self.dense { self.clean / 8 } else { self.clean }
    }

    /// True where so much is free that what is out may come before it is asked for.
    pub fn is_roomy(&self, footprint: usize) -> bool {
        footprint.saturating_add(self.low / ROOMY_PART) <= self.low
    }

    /// True when fresh memory must wait: no stock to give, and no room to make any.
    pub fn gated(&self, usage: &Usage) -> bool {
        usage.footprint >= self.high && usage.stock < WINDOW
    }

    /// True when those who wait for room may go on: at the high mark when there are some windows for them, so that one
    /// wake-up is for more than a few microseconds of writing, or when no more are under way.
    pub fn relieved(&self, usage: &Usage) -> bool {
        let enough = if usage.in_flight > 0 { RELIEF.min(self.stock) } else { WINDOW };
        usage.footprint < self.high || usage.stock >= enough
    }

    /// The part of `most` that a pool of `pool` bytes leaves: what lies on the inactive list is taken from the program,
    /// which has the less the larger the pool is.
    fn beside(&self, pool: usize, most: usize) -> usize {
        let left = self.limit.saturating_sub(pool) as u128;
        ((most as u128 * left / self.limit as u128) as usize).max(LEAST.min(most))
    }

    /// What to do.
    pub fn decide(&self, usage: &Usage) -> Actions {
        let [inactive, stock, in_flight] =
            [self.inactive, self.stock, self.in_flight].map(|most| self.beside(usage.pool, most));
        // Stock is free memory that is at hand: what must come down is the rest, far enough to leave room for some
        // stock.
        let used = usage.footprint.saturating_sub(usage.stock);
        let over = (used + stock).saturating_sub(self.low);
        // Between the marks a little stock is worth more than free memory: dropping it would only make the next fault,
        // or the pool, allocate.
        let middle = (self.low / 2).saturating_add(self.high / 2);
        let excess = usage.stock.saturating_sub(stock.saturating_mul(2));
        // What somebody waits for is not dropped before it is enough, nor the last window, from which single pages come
        // in.
        let kept = if usage.waiting { RELIEF.min(self.stock) } else { WINDOW };
        let kept = if usage.footprint < self.max { kept } else { 0 };
        let above = usage.footprint.saturating_sub(middle).min(usage.stock.saturating_sub(kept));
        let drop = above.max(excess).min(usage.stock);
        if over < QUANTUM && !usage.waiting {
            return Actions { drop, ..Actions::default() };
        }
        let need = over.max(QUANTUM).min(in_flight);
        let room = in_flight.saturating_sub(usage.in_flight);
        let deflate = need.saturating_sub(usage.in_flight).min(room);
        // At the high mark nothing has a second chance any more: what is on the inactive list goes.
        let keep = if usage.footprint >= self.high { 0 } else { inactive };
        let deflate = deflate.min(usage.inactive.saturating_sub(keep));
        let evict = (inactive + need).saturating_sub(usage.inactive - deflate).min(EVICT_STEP);
        Actions { evict, deflate, drop }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn in_a_crowd_half_is_kept_free() {
        let free = |processes| {
            let marks = Watermarks::new(24 * MIB, processes, UNKNOWN);
            marks.limit - marks.high
        };
        assert_eq!([0, 1, 2, 10].map(free), [2 * MIB, 2 * MIB, MIB, MIB]);
    }

    /// One of many processes has no more to itself than its engine must.
    #[test]
    fn most_of_a_small_share_is_the_programs() {
        for mib in [3, 5, 8] {
            let w = Watermarks::new(mib * MIB, 2, UNKNOWN);
            let free = w.limit - w.low + w.stock;
            assert!(free <= w.limit / 4, "{mib}: {free} bytes: {w:?}");
        }
        let at = |mib: usize| Watermarks::new(mib * MIB, 2, 0);
        let of = |w: Watermarks| [w.high - w.low, w.inactive, w.stock, w.in_flight];
        assert_eq!(of(at(6)), [GAP, LEAST, LEAST, LEAST], "from here on it is as much");
        assert_eq!(of(at(24)), [GAP, 24 * MIB / 32, LEAST, 24 * MIB / 32]);
    }

    #[test]
    fn what_is_kept_free_is_enough_for_the_footprint() {
        for footprint in [0, MIB, 10 * MIB, 60 * MIB, 1 << 30] {
            for processes in [1, 2] {
                let limit = footprint + Watermarks::kept_free(footprint, processes);
                let low = Watermarks::new(limit, processes, UNKNOWN).low;
                assert!(low >= footprint, "{low} of {footprint}");
                assert!(limit - footprint <= footprint / 10 + 3 * MIB / 2, "{limit} for {footprint}");
            }
        }
    }

    #[test]
    fn marks_are_in_order_at_every_limit() {
        for limit in [2 * MIB, 5 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1 << 34] {
            for unheard in [0, MIB, UNKNOWN] {
                let w = Watermarks::new(limit, 1, unheard);
                assert!(w.low < w.high && w.high < w.max && w.max < limit, "{w:?}");
                assert!(w.inactive + w.stock + w.in_flight < w.low, "{w:?}");
            }
        }
    }

    /// A program whose memory is all there, and registered, has all of its limit but 1.25 MiB.
    #[test]
    fn as_much_is_kept_free_as_comes_unheard() {
        let free = |limit, unheard| {
            let w = Watermarks::new(limit, 1, unheard);
            (limit - w.low) as f64 / MIB as f64
        };
        assert_eq!(
            [0, MIB, 2 * MIB, UNKNOWN].map(|unheard| free(90 * MIB, unheard)),
            [1.25, 2.75, 4.75, 8.25]
        );
        assert_eq!(free(16 * MIB, 0), 1.25);
        assert_eq!(free(4 << 30, 0), 24.0);
    }

    #[test]
    fn nothing_happens_below_the_low_mark() {
        let w = Watermarks::new(256 * MIB, 1, UNKNOWN);
        let usage = Usage { footprint: w.low, stock: w.stock, inactive: MIB, ..Usage::default() };
        assert_eq!(w.decide(&usage), Actions::default());
        assert!(!w.gated(&usage));
    }

    #[test]
    fn between_the_marks_stock_is_kept_and_the_stage_is_filled_first() {
        let w = Watermarks::new(256 * MIB, 1, UNKNOWN);
        let a = w.decide(&Usage { footprint: w.low + 4096, ..Usage::default() });
        assert_eq!((a.drop, a.deflate), (0, 0));
        assert!(a.evict > 0);
    }

    /// What lies on the inactive list is missing in the program, which has little where the pool has much.
    #[test]
    fn the_stage_shrinks_as_the_pool_grows() {
        let w = Watermarks::new(256 * MIB, 1, UNKNOWN);
        assert_eq!(w.beside(0, w.inactive), w.inactive);
        assert_eq!(w.beside(224 * MIB, w.inactive), w.inactive / 8);
        assert_eq!(w.beside(256 * MIB, w.inactive), LEAST);
        // And what was kept for a second chance goes on.
        let usage = Usage { footprint: w.low + 4096, inactive: w.inactive, ..Usage::default() };
        assert_eq!(w.decide(&usage).deflate, 0);
        assert!(w.decide(&Usage { pool: 224 * MIB, ..usage }).deflate > 0);
    }

    /// Else everything would go out to make room that lies about as stock already.
    #[test]
    fn stock_counts_as_room_and_does_not_pile_up() {
        let w = Watermarks::new(256 * MIB, 1, UNKNOWN);
        let usage = Usage { footprint: w.low + 1, stock: 60 * MIB, inactive: w.inactive, ..Usage::default() };
        let a = w.decide(&usage);
        assert_eq!((a.evict, a.deflate, a.drop), (0, 0, 60 * MIB - 2 * w.stock));
    }

    #[test]
    fn above_the_high_mark_the_second_chance_ends_and_fresh_memory_waits() {
        let w = Watermarks::new(256 * MIB, 1, UNKNOWN);
        let usage = Usage { footprint: w.high, inactive: 4 * MIB, ..Usage::default() };
        assert!(w.gated(&usage));
        assert!(w.decide(&usage).deflate > 0);
        assert_eq!(w.decide(&Usage { footprint: w.high - 1, ..usage }).deflate, 0);
        assert!(!w.gated(&Usage { stock: WINDOW, ..usage }));
    }

    /// A store of ratio 1:3 below a program that writes fresh memory as fast as it is let: from a seed, the footprint
    /// stays below the limit, and the program never stops.
    #[test]
    fn a_fast_writer_is_held_at_the_limit_and_goes_on() {
        for mib in [6, 8, 12, 256] {
            a_fast_writer_goes_on(mib * MIB);
        }
    }

    fn a_fast_writer_goes_on(limit: usize) {
        let w = Watermarks::new(limit, 1, UNKNOWN);
        for seed in 1..=20u64 {
            let mut random = seed;
            let mut next = |n: usize| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (random >> 33) as usize % n
            };
            let (mut usage, mut resident, mut pool, mut written) = (Usage::default(), 0, 0, 0);
            for _ in 0..20_000 {
                usage.pool = pool;
                usage.footprint = resident + usage.inactive + usage.in_flight + usage.stock + pool;
                assert!(usage.footprint <= limit, "seed {seed}: {usage:?}");
                for _ in 0..next(4) {
                    usage.footprint = resident + usage.inactive + usage.in_flight + usage.stock + pool;
                    if w.gated(&usage) || usage.waiting && !w.relieved(&usage) {
                        usage.waiting = true;
                        break;
                    }
                    usage.waiting = false;
                    usage.stock -= usage.stock.min(WINDOW);
                    resident += WINDOW;
                    written += WINDOW;
                }
                let a = w.decide(&usage);
                usage.stock -= a.drop;
                let evict = a.evict.min(resident);
                resident -= evict;
                usage.inactive += evict;
                let deflate = a.deflate.min(usage.inactive) / WINDOW * WINDOW;
                usage.inactive -= deflate;
                usage.in_flight += deflate;
                let done = next(6) * WINDOW.min(usage.in_flight);
                let done = done.min(usage.in_flight);
                usage.in_flight -= done;
                usage.stock += done;
                pool += done / 3;
            }
            assert!(
                written > limit / 256 * 600,
                "limit {limit}, seed {seed}: the writer came only to {written}"
            );
        }
    }
}
