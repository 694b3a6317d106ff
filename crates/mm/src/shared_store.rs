//! A store that relatives share: pages that several processes have since a fork are put into a log by one engine,
//! for all of them.
//!
//! This is where the pager stands in that: the search for pages that no log has yet, what was logged and is to go
//! out, and the way through what comes home when no relative is left.

use crate::swap_map::{Entry, SwapMap};
use alloc::collections::VecDeque;
use alloc::string::String;
use base::PageMask;
use core::ops::Range;
use vmscan::WINDOW;

/// What a look for pages that others have too has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlogged {
    /// These pages of the window at this address.
    Pages(usize, PageMask),
    /// None so far.
    None,
    /// None up to the end of the address space: the next look begins anew.
    End,
}

/// Where it stands.
#[derive(Debug, Default)]
pub struct SharedStore {
    /// Windows of which a log has pages, and which are to go out.
    logged: VecDeque<Range<usize>>,
    /// Where the search for more of them stands.
    search: usize,
    /// Where the hand stands that brings home what is in logs.
    home: usize,
}

impl SharedStore {
    /// A log has pages of this window.
    pub fn note_logged(&mut self, window: usize) {
        self.logged.push_back(window..window + WINDOW);
    }

    /// True when something that was logged is to go out.
    pub fn has_logged(&self) -> bool {
        !self.logged.is_empty()
    }

    /// Takes the window that was logged first.
    pub fn take_logged(&mut self) -> Option<Range<usize>> {
        self.logged.pop_front()
    }

    /// Nobody else has it any more.
    pub fn forget_logged(&mut self) {
        self.logged.clear();
    }

    /// Where the search for pages that others have too goes on.
    pub fn search(&self) -> usize {
        self.search
    }

    /// It goes on here.
    pub fn search_from(&mut self, at: usize) {
        self.search = at;
    }

    /// The next page of which something is known, on the way home. `None` once round.
    pub fn next_home(&mut self, map: &SwapMap) -> Option<(usize, Entry)> {
        let found = map.next_used(self.home, 1 << 47);
        self.home = found.map_or(0, |(page, _)| page + vmscan::PAGE);
        found
    }

    /// That page could not come home, and is looked at again.
    pub fn retry_home(&mut self, page: usize) {
        self.home = page;
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        match self.logged.iter().find(|range| !range.start.is_multiple_of(WINDOW)) {
            Some(range) => Err(alloc::format!("{range:x?} was logged, and is no window")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap_map::Kind;
    use vmscan::PAGE;
    use vmscan::heat::Heat;

    #[test]
    fn what_is_logged_goes_out_in_order() {
        let mut shared = SharedStore::default();
        [4, 2].into_iter().for_each(|number| shared.note_logged(number * WINDOW));
        assert!(shared.has_logged());
        assert_eq!((shared.take_logged(), shared.check()), (Some(4 * WINDOW..5 * WINDOW), Ok(())));
        shared.forget_logged();
        assert_eq!((shared.has_logged(), shared.take_logged()), (false, None));
    }

    #[test]
    fn the_way_home_goes_page_by_page_and_begins_anew() {
        let mut map = SwapMap::default();
        for page in [3, 4, 90] {
            map.set(page * PAGE, Entry::new(Kind::Zero, 0, 0, Heat::COLD));
        }
        let mut shared = SharedStore::default();
        let mut next = || shared.next_home(&map).map(|(page, _)| page / PAGE);
        assert_eq!([(); 5].map(|()| next()), [Some(3), Some(4), Some(90), None, Some(3)]);
        shared.retry_home(3 * PAGE);
        assert_eq!(shared.next_home(&map).map(|(page, _)| page / PAGE), Some(3));
    }
}
