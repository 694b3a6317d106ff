//! Whether a window that comes back for one of its pages is to come whole.
//!
//! ```text
//!   fault, for which a window may come ──> decide ──> Whole: all of it goes to the program
//!                                             ├─────> Alone: the page that was asked for
//!                                             └─────> Tried: that, and the rest waits on the inactive list
//!                                                               │
//!   asked for there, or gone from there unasked ──> Fates <─────┘
//! ```
//!
//! What goes to the program is never heard of again. So now and then the rest of a window waits where its next touch
//! is a fault. What has become of that decides, for each region of 2 MiB by itself, or, where little is known of the
//! region, for all of them.

use crate::by_region::ByRegion;
use crate::fates::Fates;

/// How much of a window comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// All of it, to the program.
    Whole,
    /// The page that was asked for.
    Alone,
    /// That page; the rest waits unmapped until it is asked for.
    Tried,
}

/// A region and its fates.
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    fates: Fates,
    /// Decisions since the last trial.
    untried: u8,
}

/// So many fates are remembered of a region, and of all.
const MEMORY: u32 = 1 << 7;
const MEMORY_OF_ALL: u32 = 1 << 12;

/// The fates of fewer pages than these say nothing: two windows.
const KNOWN: u32 = 30;

/// A window pays where one page of so many is wanted beside the one that was asked for: what it takes to bring and to
/// take away, and what has to go for it, is about a quarter of what a fault costs.
const PAYS: u32 = 4;

/// One decision of so many is a trial: where the region is known, and where it is not.
const TRIES: [u8; 2] = [16, 4];

/// What is known.
#[derive(Default)]
pub struct Returns {
    regions: ByRegion<Region>,
    all: Fates,
    turn: usize,
}

impl Returns {
    /// How much is to come of the window of a page at `at`.
    pub fn decide(&mut self, at: usize) -> Return {
        let all = self.all;
        let region = self.regions.of(at);
        let is_known = region.fates.known() >= KNOWN;
        let fates = if is_known { region.fates } else { all };
        region.untried += 1;
        if fates.known() < KNOWN || region.untried >= TRIES[usize::from(!is_known)] {
            region.untried = 0;
            return Return::Tried;
        }
        if fates.is_one_in(PAYS) { Return::Whole } else { Return::Alone }
    }

    /// Test mode, in which nothing waits for long: one after the other.
    pub fn take_turns(&mut self) -> Return {
        self.turn += 1;
        [Return::Whole, Return::Tried, Return::Whole, Return::Alone][self.turn % 4]
    }

    /// A page that waited was asked for, or went unasked.
    pub fn add(&mut self, at: usize, is_wanted: bool) {
        let (wanted, vain) = (usize::from(is_wanted), usize::from(!is_wanted));
        self.all.add(wanted, vain, MEMORY_OF_ALL);
        self.regions.of(at).fates.add(wanted, vain, MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HUGE, WINDOW};
    use base::Random;

    /// Goes through regions where of each window so many pages are wanted beside the first: how much came whole, alone
    /// and tried.
    fn go(returns: &mut Returns, random: &mut Random, regions: usize, wanted: usize) -> [usize; 3] {
        let mut came = [0; 3];
        for _ in 0..4000 {
            let at = (1 << 40) + random.below(regions) * HUGE + random.below(32) * WINDOW;
            let how = returns.decide(at);
            came[how as usize] += 1;
            if how == Return::Tried {
                (0..15).for_each(|page| returns.add(at, page < wanted));
            }
        }
        came
    }

    #[test]
    fn windows_come_whole_where_that_pays_and_alone_where_it_does_not() {
        for (wanted, most, least) in [(15, 0, 1), (5, 0, 1), (2, 1, 0), (0, 1, 0)] {
            let came = go(&mut Returns::default(), &mut Random(7), 8, wanted);
            assert!(came[most] > 3600 && came[least] < 10 && came[2] < 400, "{wanted}: {came:?}");
        }
    }

    #[test]
    fn a_program_that_goes_on_in_another_way_is_noticed() {
        let (mut returns, mut random) = (Returns::default(), Random(3));
        go(&mut returns, &mut random, 8, 0);
        let came = go(&mut returns, &mut random, 8, 15);
        assert!(came[0] > 2000, "{came:?}");
        let came = go(&mut returns, &mut random, 8, 0);
        assert!(came[1] > 2000, "{came:?}");
    }

    #[test]
    fn regions_are_known_apart_and_a_new_one_is_taken_for_one_of_all() {
        let (mut returns, region) = (Returns::default(), |number: usize| (1 << 40) + number * HUGE);
        (0..KNOWN).for_each(|_| returns.add(region(1), true));
        (0..9 * KNOWN).for_each(|_| returns.add(region(2), false));
        let decide = |returns: &mut Returns, number| [0; 3].map(|_| returns.decide(region(number)));
        assert_eq!(decide(&mut returns, 1), [Return::Whole; 3]);
        assert_eq!(decide(&mut returns, 2), [Return::Alone; 3]);
        assert_eq!(decide(&mut returns, 3), [Return::Alone; 3]);
    }
}
