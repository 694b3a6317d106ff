//! Last-cycle prefetch: what a process had before it slept, or before others needed its memory, comes back in large
//! parts where there is room for it.
//!
//! ```text
//!   fault on what is out, where there is room ──> asked ──> nothing more
//!                                                      └──> all of the region of 2 MiB around it, once a quarter of
//!                                                           its windows were asked for
//! ```
//!
//! Where there is room, what comes unasked takes a worker's time and nobody's page. It is likely to be wanted where
//! much around it was. So a program that goes on as before its pause has a few faults for each region, in whatever
//! order it asks. One that looks at a page here and there gets these pages.

use crate::by_region::ByRegion;
use crate::{HUGE, WINDOW};
use core::ops::Range;

/// So many windows of a region are asked for before all of it comes. With 4 as many faults are left of a program that
/// asks for all, and much more comes for one that asks for little (decision 80).
const ASKED: u32 = 8;

/// What was asked for where there was room. It takes memory once something was.
#[derive(Default)]
pub struct Prefetch {
    /// Of each region: a bit for each window that was asked for since the region came.
    regions: Option<ByRegion<u32>>,
}

impl Prefetch {
    /// A page at `at` is out and was asked for, and there is room: the region that is to come as a whole, if it is.
    pub fn asked(&mut self, at: usize) -> Option<Range<usize>> {
        let windows = self.regions.get_or_insert_default().of(at);
        *windows |= 1 << (at / WINDOW % (HUGE / WINDOW));
        if windows.count_ones() < ASKED {
            return None;
        }
        *windows = 0;
        let start = at & !(HUGE - 1);
        Some(start..start + HUGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use base::Random;

    const BASE: usize = 1 << 40;
    /// Of 256 MiB.
    const WINDOWS: usize = 4096;

    /// How many faults it takes to touch these windows, and how many come.
    fn touch(windows: impl Iterator<Item = usize>) -> (usize, usize) {
        let (mut prefetch, mut is_here, mut faults) = (Prefetch::default(), vec![false; WINDOWS], 0);
        for window in windows {
            if is_here[window] {
                continue;
            }
            faults += 1;
            is_here[window] = true;
            if let Some(region) = prefetch.asked(BASE + window * WINDOW) {
                let first = (region.start - BASE) / WINDOW;
                is_here[first..first + HUGE / WINDOW].fill(true);
            }
        }
        (faults, is_here.into_iter().filter(|is_here| *is_here).count())
    }

    #[test]
    fn all_of_it_comes_with_a_few_faults_for_each_region() {
        let each_once = (0..WINDOWS).map(|step| step * 2_654_435_761 % WINDOWS);
        assert_eq!(touch(each_once), (ASKED as usize * WINDOWS * WINDOW / HUGE, WINDOWS));
    }

    /// Three windows of each region, in the mean.
    #[test]
    fn what_is_touched_here_and_there_comes_alone() {
        let mut random = Random(7);
        let (faults, windows) = touch((0..400).map(|_| random.below(WINDOWS)));
        assert!(faults > 350 && windows < 450, "{faults} faults, {windows} windows");
    }

    #[test]
    fn a_window_that_is_asked_for_again_and_again_is_one_window() {
        let mut prefetch = Prefetch::default();
        assert!((0..100).all(|page| prefetch.asked(BASE + page % 16 * crate::PAGE).is_none()));
    }
}
