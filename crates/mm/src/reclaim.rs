//! Reclaim: where the search for cold pages stands, what it has learnt of the address space, and which pages must stay.
//!
//! A clock hand goes round the address space. After a round in which it has found nothing to take it rests, until
//! something comes in.

use crate::areas::Areas;
use crate::kernel::{Kernel, Run};
use crate::regions::Regions;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use vmscan::rest::Rest;
use vmscan::touches::Lenience;

/// How many pages are looked at between two looks for faults.
const EVICT_PAGES: usize = 128;

/// So much is watched at a time as it is registered (200 MiB take 5 ms), since faults wait meanwhile.
const WATCHED_BYTES: usize = 64 << 20;

/// The state of the search.
#[derive(Default)]
pub struct Reclaim {
    /// Where the hand stands.
    hand: usize,
    /// It takes what the kernel has swapped.
    takes_swapped: bool,
    /// Whether it rests: for a walk through all page tables it does so for long.
    rest: Rest<250>,
    /// What is known of the mappings.
    areas: Areas,
    /// Pages that the kernel writes without a fault, as they were listed last; sorted.
    pins: Vec<usize>,
    /// How many touched pages are spared.
    pub lenience: Lenience,
    /// This search has spared some.
    has_spared_touched: bool,
    /// So much was watched from its registration on since the last search began, in bytes.
    watched: usize,
    /// Nothing goes out: a fork is under way, or the test mode lets the program run.
    is_paused: bool,
}

impl Reclaim {
    /// True while nothing goes out.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// From now on nothing goes out, or as ever.
    pub fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Where the hand stands.
    pub fn hand(&self) -> usize {
        self.hand
    }

    /// The hand goes on from here.
    pub fn go_on_from(&mut self, at: usize) {
        self.hand = at;
    }

    /// A search for pages begins: so many mappings may be asked about again.
    pub fn begin_search(&mut self) {
        (self.has_spared_touched, self.watched) = (false, 0);
        self.areas.begin_search();
    }

    /// True where so many bytes more may be watched as they are registered.
    pub fn may_watch(&mut self, bytes: usize) -> bool {
        let may_be = self.watched + bytes <= WATCHED_BYTES;
        self.watched += if may_be { bytes } else { 0 };
        may_be
    }

    /// Pages are spared since they were touched: the next round may find them.
    pub fn spared_touched(&mut self) {
        self.has_spared_touched = true;
        self.found();
    }

    /// True where this search has spared such pages: there is more to look at.
    pub fn has_spared_touched(&self) -> bool {
        self.has_spared_touched
    }

    /// What there is from the hand on: how many runs, and up to where it was looked. What the kernel has swapped is
    /// cold, and takes no memory, but it counts: it is taken where a round has found nothing else to take, and a
    /// worker has the kernel bring it back as it reads it.
    pub fn find(&mut self, kernel: &mut impl Kernel, runs: &mut [Run]) -> Option<(usize, usize)> {
        self.areas.keep_until(kernel.now_ns());
        self.hand = self.areas.skip(self.hand);
        if self.hand == usize::MAX {
            return None;
        }
        kernel.occupied(self.hand, EVICT_PAGES, self.takes_swapped, runs)
    }

    /// The hand has come to the end of memory, and begins anew. True when it has found something on the way.
    pub fn round(&mut self, kernel: &mut impl Kernel, evicts_all: bool) -> bool {
        self.hand = 0;
        let found = self.rest.round(kernel.now_ns());
        self.takes_swapped = kernel.is_swapped() && (!found || evicts_all);
        found
    }

    /// True while the hand rests.
    pub fn rests(&self, now_ns: u64) -> bool {
        self.rest.is_on(now_ns)
    }

    /// A page was taken, or is colder: the next round may find it.
    pub fn found(&mut self) {
        self.rest.found();
    }

    /// A page has come into the program, which the hand can find.
    pub fn end_rest(&mut self) {
        self.rest.end();
    }

    /// The first area that can be taken and ends after an address, or an empty one at the address up to which there is
    /// none; at the end of all addresses when there is none at all. `None` when enough was asked in this search.
    pub fn area(&mut self, kernel: &mut impl Kernel, regions: &Regions, at: usize) -> Option<Range<usize>> {
        // What is known still holds where all is registered, since what has changed was an event; and before that there
        // is nothing to take, or it is new.
        let now = kernel.now_ns();
        self.areas.keep_until(now);
        let holds = |area: &Range<usize>| at < area.start || regions.registered().covers(&(at..area.end));
        if let Some(area) = self.areas.find(at).filter(holds) {
            return Some(area);
        }
        let area = match kernel.area(at, &mut self.areas.asks) {
            Ok(area) => area.unwrap_or(usize::MAX..usize::MAX),
            Err(upto) if upto > at => upto..upto,
            Err(_) => return None,
        };
        let took = kernel.now_ns().saturating_sub(now);
        self.areas.learn(at, area.clone(), took);
        Some(area)
    }

    /// All mappings may have changed.
    pub fn forget_areas(&mut self) {
        self.areas.forget();
    }

    /// The mappings of a range may have changed.
    pub fn forget_areas_in(&mut self, range: &Range<usize>) {
        self.areas.forget_at(range);
    }

    /// Lists the pages anew that must stay because the kernel writes to them without a fault.
    pub fn list_pins(&mut self, kernel: &mut impl Kernel) {
        self.pins.clear();
        kernel.pins(&mut self.pins);
    }

    /// All of them.
    pub fn pins(&self) -> &[usize] {
        &self.pins
    }

    /// Those of a range.
    pub fn pins_in(&self, range: &Range<usize>) -> &[usize] {
        let first = self.pins.partition_point(|&pin| pin < range.start);
        let last = self.pins.partition_point(|&pin| pin < range.end);
        &self.pins[first..last]
    }

    /// True for one of them.
    pub fn is_pinned(&self, at: usize) -> bool {
        self.pins.binary_search(&at).is_ok()
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        if !self.pins.is_sorted() {
            return Err(alloc::format!("pins out of order: {:x?}", self.pins));
        }
        self.areas.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_search_has_spared_and_watched_is_its_own() {
        let mut reclaim = Reclaim::default();
        reclaim.spared_touched();
        let watched = (0..).take_while(|_| reclaim.may_watch(1 << 20)).count();
        assert_eq!((reclaim.has_spared_touched(), watched << 20), (true, WATCHED_BYTES));
        reclaim.begin_search();
        assert!(!reclaim.has_spared_touched() && reclaim.may_watch(WATCHED_BYTES) && !reclaim.may_watch(1));
    }
}
