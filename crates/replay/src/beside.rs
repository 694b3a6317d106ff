//! How likely the pages beside one that missed are to be wanted, watched.
//!
//! ```text
//!   miss, of which one page alone comes ──> watch: its window's other pages that are out
//!                                             │  a miss of one of them ──> missed: it is wanted
//!                                             │  the horizon is over ──> those that did not miss are vain
//!   Fates, of the region and of all <─────────┘
//!   miss, and what else is out of its window ──> chance ──> whether to bring it: price::brings
//! ```
//!
//! What is out and is touched is a miss, which the pager sees anyway. So nothing has to come on trial: where windows
//! come whole, now and then one does not, and is watched.

use crate::hazard::Us;
use std::collections::VecDeque;
use vmscan::by_region::ByRegion;
use vmscan::fates::Fates;
use vmscan::{PAGE, WINDOW};

/// So many windows are watched at a time.
const WATCHED: usize = 256;

/// So many fates are remembered of a region, and of all.
const MEMORY: u32 = 1 << 6;
const MEMORY_OF_ALL: u32 = 1 << 10;

/// The fates of fewer pages than these say nothing of a region: two windows.
const KNOWN: u32 = 15;

/// A window comes whole at most so many times in a row in a region, then one is watched.
const WHOLE_IN_A_ROW: u8 = 3;

/// A window of which one page came alone.
#[derive(Clone, Copy, Debug)]
struct Watch {
    window: usize,
    until_us: Us,
    /// A bit for each page that was out, and for those that missed since.
    out: u16,
    wanted: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Region {
    fates: Fates,
    whole_in_a_row: u8,
}

/// What is known.
pub struct Beside {
    regions: ByRegion<Region>,
    all: Fates,
    /// The oldest first.
    watches: VecDeque<Watch>,
}

impl Default for Beside {
    fn default() -> Beside {
        Beside {
            regions: ByRegion::default(),
            all: Fates::default(),
            watches: VecDeque::with_capacity(WATCHED),
        }
    }
}

impl Beside {
    /// A page at `at` missed.
    pub fn missed(&mut self, at: usize) {
        let window = at & !(WINDOW - 1);
        if let Some(watch) = self.watches.iter_mut().find(|watch| watch.window == window) {
            watch.wanted |= watch.out & bit(at);
        }
    }

    /// The pages `out` beside one at `at` that missed stay out: they are watched until then, unless others of the
    /// window are.
    pub fn watch(&mut self, at: usize, out: impl Iterator<Item = usize>, until_us: Us) {
        let (window, out) = (at & !(WINDOW - 1), out.fold(0, |out, page| out | bit(page)));
        let is_watched = self.watches.iter().any(|watch| watch.window == window);
        if out != 0 && !is_watched && self.watches.len() < WATCHED {
            self.watches.push_back(Watch { window, until_us, out, wanted: 0 });
        }
    }

    /// Time goes on: watches end, and tell what they saw.
    pub fn tick(&mut self, now_us: Us) {
        while self.watches.front().is_some_and(|watch| watch.until_us <= now_us) {
            let watch = self.watches.pop_front().expect("it has one");
            let wanted = watch.wanted.count_ones() as usize;
            let vain = (watch.out & !watch.wanted).count_ones() as usize;
            self.all.add(wanted, vain, MEMORY_OF_ALL);
            self.regions.of(watch.window).fates.add(wanted, vain, MEMORY);
        }
    }

    /// How likely a page beside one at `at` that missed is to be wanted within the horizon; `None` where that is to be
    /// watched once more.
    pub fn chance(&mut self, at: usize) -> Option<f32> {
        let all = self.all;
        let region = self.regions.of(at);
        let fates = if region.fates.known() >= KNOWN { region.fates } else { all };
        if fates.known() < KNOWN || region.whole_in_a_row == WHOLE_IN_A_ROW {
            region.whole_in_a_row = 0;
            return None;
        }
        Some(fates.wanted_part())
    }

    /// A window at `at` came whole.
    pub fn came(&mut self, at: usize) {
        let region = self.regions.of(at);
        region.whole_in_a_row = (region.whole_in_a_row + 1).min(WHOLE_IN_A_ROW);
    }
}

/// A page's bit in its window.
fn bit(at: usize) -> u16 {
    1 << (at / PAGE % (WINDOW / PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Random;
    use vmscan::HUGE;

    /// Windows miss one after the other, and so many pages beside each miss soon after, if they are not brought; the
    /// chance in the end, and how many came whole.
    fn go(beside: &mut Beside, random: &mut Random, wanted: usize, start_us: Us) -> (f32, usize) {
        let (mut whole, mut chance) = (0, 0.0);
        for step in 0..4000 {
            let at = (1 << 40) + random.below(8) * HUGE + random.below(32) * WINDOW;
            let now_us = start_us + step * 100;
            beside.tick(now_us);
            beside.missed(at);
            match beside.chance(at) {
                Some(known) if known > 0.5 => {
                    (whole, chance) = (whole + 1, known);
                    beside.came(at);
                }
                known => {
                    chance = known.unwrap_or(chance);
                    beside.watch(at, (1..16).map(|page| at + page * PAGE), now_us + 1000);
                    (1..=wanted).for_each(|page| beside.missed(at + page * PAGE));
                }
            }
        }
        (chance, whole)
    }

    #[test]
    fn the_chance_is_what_is_seen_and_windows_that_come_whole_are_watched_now_and_then() {
        for (wanted, least, most) in [(15, 2900, 3100), (9, 2900, 3100), (5, 0, 0), (0, 0, 0)] {
            let (chance, whole) = go(&mut Beside::default(), &mut Random(7), wanted, 0);
            assert!((chance - wanted as f32 / 15.0).abs() < 0.05, "{wanted}: {chance}");
            assert!((least..=most).contains(&whole), "{wanted}: {whole}");
        }
    }

    #[test]
    fn a_program_that_goes_on_in_another_way_is_noticed() {
        let (mut beside, mut random) = (Beside::default(), Random(3));
        go(&mut beside, &mut random, 15, 0);
        let (chance, whole) = go(&mut beside, &mut random, 0, 1 << 30);
        assert!(chance < 0.2 && whole < 1500, "{chance} {whole}");
        let (chance, whole) = go(&mut beside, &mut random, 15, 1 << 31);
        assert!(chance > 0.8 && whole > 2000, "{chance} {whole}");
    }

    #[test]
    fn regions_are_known_apart_and_a_new_one_is_taken_for_one_of_all() {
        let mut beside = Beside::default();
        let region = |number: usize| (1 << 40) + number * HUGE;
        for (number, wanted, windows) in [(1, true, 4), (2, false, 20)] {
            for window in 0..windows {
                let at = region(number) + window * WINDOW;
                beside.watch(at, (1..16).map(|page| at + page * PAGE), 10);
                (1..16).filter(|_| wanted).for_each(|page| beside.missed(at + page * PAGE));
            }
        }
        beside.tick(10);
        let chance = [1, 2, 3].map(|number| beside.chance(region(number)).unwrap());
        assert!(chance[0] > 0.9 && chance[1] < 0.1 && chance[2] < 0.3, "{chance:?}");
    }
}
