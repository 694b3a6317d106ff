//! Reclaim that somebody asks for: the footprint of a process is to fall by so much now, although no mark asks for it.
//!
//! ```text
//!   footprint  |\                       begun: the target is so much lower
//!              | \__                    it falls: the request goes on
//!              |    \____ . . . .       no lower for GIVE_UP_NS: given up
//!   target     |- - - - - - - - - -     reached
//! ```
//!
//! A request does not touch the marks: nobody waits for room for its sake, and the process may grow again. One that
//! takes its memory back as fast as it goes keeps the footprint from falling, and so ends the request.

use crate::watermark::{Actions, EVICT_STEP, QUANTUM, Usage, Watermarks};

/// So long the footprint must have been no lower until nothing more is expected, in nanoseconds: a compressor at its
/// densest, or a write to a slow area, takes a tenth of it.
const GIVE_UP_NS: u64 = 1_000_000_000;

/// From one look to the next no more time than this counts: who looks so seldom did nothing meanwhile.
const LOOK_NS: u64 = 50_000_000;

/// Less is no progress, in bytes.
const STEP: usize = 4 * crate::PAGE;

/// See the head of the file. Sizes are in bytes, times in nanoseconds of a clock that does not go back.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    began: usize,
    target: usize,
    lowest: usize,
    /// For how long it has been no lower.
    stuck_ns: u64,
    looked_ns: u64,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more to come.
    GoesOn,
    /// All that was asked for is out.
    Reached,
    /// Nothing more goes out, or it comes back as fast.
    GivenUp,
}

impl Asked {
    /// A process of this footprint is to have so many bytes less.
    pub fn begin(footprint: usize, bytes: usize, now_ns: u64) -> Asked {
        let target = footprint.saturating_sub(bytes);
        Asked { began: footprint, target, lowest: footprint, stuck_ns: 0, looked_ns: now_ns }
    }

    /// What the footprint is to come down to.
    pub fn target(&self) -> usize {
        self.target
    }

    /// How much less a footprint is than it was.
    pub fn got(&self, footprint: usize) -> usize {
        self.began.saturating_sub(footprint)
    }

    /// The footprint is so large now.
    pub fn look(&mut self, footprint: usize, now_ns: u64) -> Progress {
        self.stuck_ns += now_ns.saturating_sub(self.looked_ns).min(LOOK_NS);
        self.looked_ns = now_ns;
        if footprint.saturating_add(STEP) <= self.lowest {
            (self.lowest, self.stuck_ns) = (footprint, 0);
        }
        match footprint {
            footprint if footprint <= self.target => Progress::Reached,
            _ if self.stuck_ns >= GIVE_UP_NS => Progress::GivenUp,
            _ => Progress::GoesOn,
        }
    }
}

impl Watermarks {
    /// What to do, where the footprint is also to come down to `target` bytes: what the marks ask for, or more. Stock
    /// goes first. Pages that are on their way count as what they take now: what of it the pool needs is evicted beside
    /// it in the next turn.
    pub fn decide_down_to(&self, target: usize, usage: &Usage) -> Actions {
        let asked = self.decide(usage);
        let over = usage.footprint.saturating_sub(target);
        let drop = over.min(usage.stock);
        let left = over - drop;
        if left == 0 {
            return Actions { drop: asked.drop.max(drop), ..asked };
        }
        let on_the_way = usage.inactive + usage.in_flight;
        let evict = left.max(QUANTUM).saturating_sub(on_the_way).min(EVICT_STEP);
        let room = self.in_flight.saturating_sub(usage.in_flight);
        let deflate = left.max(QUANTUM).min(room).min(usage.inactive);
        Actions {
            evict: asked.evict.max(evict),
            deflate: asked.deflate.max(deflate),
            drop: asked.drop.max(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WINDOW;
    use crate::watermark::UNKNOWN;
    use base::Random;

    const MIB: usize = 1 << 20;
    const MS: u64 = 1_000_000;

    #[test]
    fn a_request_ends_when_it_is_reached_or_the_footprint_falls_no_more() {
        let mut asked = Asked::begin(100 * MIB, 60 * MIB, 0);
        assert_eq!((asked.target(), asked.got(70 * MIB), asked.got(110 * MIB)), (40 * MIB, 30 * MIB, 0));
        for ms in (0..950).step_by(10) {
            assert_eq!(asked.look(100 * MIB, ms * MS), Progress::GoesOn, "{ms}");
        }
        assert_eq!(asked.look(70 * MIB, 950 * MS), Progress::GoesOn);
        // Up and down again is no progress.
        for ms in (960..1950).step_by(10) {
            assert_eq!(asked.look(71 * MIB - (ms as usize % 20) * 1024, ms * MS), Progress::GoesOn, "{ms}");
        }
        assert_eq!(asked.look(70 * MIB, 1950 * MS), Progress::GivenUp);
        assert_eq!(asked.look(40 * MIB, 1950 * MS), Progress::Reached);
        let mut starved = Asked::begin(100 * MIB, 60 * MIB, 0);
        let looks = (1..=20).map(|second| starved.look(100 * MIB, second * 1000 * MS));
        assert_eq!(looks.filter(|progress| *progress == Progress::GoesOn).count(), 19, "of 50 ms each");
        assert_eq!(Asked::begin(MIB, 5 * MIB, 0).target(), 0, "more than there is");
    }

    #[test]
    fn without_more_to_come_down_by_the_marks_decide() {
        let w = Watermarks::new(256 * MIB, 1, UNKNOWN);
        for footprint in [0, 10 * MIB, w.low, w.low + MIB, w.high, w.max] {
            let usage = Usage { footprint, stock: w.stock, inactive: MIB, ..Usage::default() };
            assert_eq!(w.decide_down_to(footprint, &usage), w.decide(&usage));
            assert_eq!(w.decide_down_to(usize::MAX, &usage), w.decide(&usage));
        }
    }

    /// From a seed: a process far below its marks comes down to any target that its pool leaves room for, to within a
    /// few windows, and not far below it.
    #[test]
    fn the_footprint_comes_down_to_the_target() {
        for seed in 0..200 {
            let mut random = Random(seed);
            let w = Watermarks::new(256 * MIB, 1, UNKNOWN);
            let mut resident = (1 + random.below(150)) * MIB;
            let (mut usage, mut pool) = (Usage::default(), 0);
            let least = resident / 3;
            let target = least + 4 * MIB + random.below(resident - least);
            for turn in 0.. {
                usage.pool = pool;
                usage.footprint = resident + usage.inactive + usage.in_flight + usage.stock + pool;
                if usage.footprint <= target {
                    break;
                }
                assert!(turn < 20_000, "seed {seed}: {target} is never reached: {usage:?}");
                let a = w.decide_down_to(target, &usage);
                assert!(a.drop <= usage.stock && a.evict <= EVICT_STEP, "seed {seed}: {a:?} of {usage:?}");
                usage.stock -= a.drop;
                let evict = a.evict.min(resident);
                resident -= evict;
                usage.inactive += evict;
                let deflate = a.deflate.min(usage.inactive);
                usage.inactive -= deflate;
                usage.in_flight += deflate;
                let done = (random.below(6) * WINDOW).min(usage.in_flight);
                usage.in_flight -= done;
                usage.stock += done;
                pool += done / 3;
            }
            assert!(usage.footprint + 4 * MIB > target, "seed {seed}: {target}, {usage:?}");
        }
    }
}
