//! Read-ahead: how much is wanted around a fault, and the windows that workers load ahead of it.
//!
//! Invariant: no two fetches are for one window, or onto one slot.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use vmscan::readahead::{Extent, Readahead};
use vmscan::{HUGE, WINDOW};

/// How many windows may be loaded ahead at a time.
const FETCHES: usize = 2 * HUGE / WINDOW;

/// As many pages as a window has, which a worker loads ahead of their fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// The slot of the inactive list that it is loaded onto.
    pub slot: u32,
    /// The program's address.
    pub to: usize,
    /// The object that it is in.
    pub object: u32,
    /// Where it begins there.
    pub first: usize,
    /// It is a part of a huge page, of which others are not loaded yet.
    pub is_loaded: bool,
}

/// A huge page that is loaded, of which the workers load what is under way.
#[derive(Clone, Copy, Debug)]
struct HugeAhead {
    /// The first slot of the block that it is loaded to.
    first: u32,
    /// The program's addresses.
    to: usize,
    bytes: usize,
    /// The rest is being loaded.
    is_finishing: bool,
}

/// Streams, and what is fetched for them.
#[derive(Default)]
pub struct FetchAhead {
    streams: Readahead,
    under_way: Vec<Ahead>,
    huge: Vec<HugeAhead>,
}

impl FetchAhead {
    /// A thread has touched a page that was not there: how much is wanted.
    pub fn fault(&mut self, at: usize) -> Extent {
        self.streams.fault(at)
    }

    /// The next window that a stream has passed.
    pub fn passed(&mut self) -> Option<usize> {
        self.streams.passed()
    }

    /// What was seen in a range says nothing any more.
    pub fn forget(&mut self, range: &Range<usize>) {
        self.streams.forget(range.start, range.end);
    }

    /// Fetches under way.
    pub fn under_way(&self) -> &[Ahead] {
        &self.under_way
    }

    /// As many are under way as may be.
    pub fn is_full(&self) -> bool {
        self.under_way.len() >= FETCHES
    }

    /// The slot onto which the page at `at` is being loaded, if it is.
    pub fn slot_of(&self, at: usize) -> Option<u32> {
        let holds = |ahead: &&Ahead| (ahead.to..ahead.to + WINDOW).contains(&at);
        let of_huge = |huge: &&HugeAhead| (huge.to..huge.to + huge.bytes).contains(&at);
        if let Some(huge) = self.huge.iter().find(of_huge) {
            return Some(huge.first + ((at - huge.to) / WINDOW) as u32);
        }
        self.under_way.iter().find(holds).map(|ahead| ahead.slot)
    }

    /// True while a window is loaded onto the slot.
    pub fn is_loading(&self, slot: u32) -> bool {
        self.under_way.iter().any(|ahead| ahead.slot == slot && !ahead.is_loaded)
    }

    /// What is, or was, loaded onto the slot by a worker, and has not ended.
    pub fn part(&self, slot: u32) -> Option<&Ahead> {
        self.under_way.iter().find(|ahead| ahead.slot == slot)
    }

    /// A worker has loaded it, and it waits for the rest of its huge page.
    pub fn loaded(&mut self, slot: u32) {
        self.under_way.iter_mut().filter(|ahead| ahead.slot == slot).for_each(|ahead| ahead.is_loaded = true);
    }

    /// True where the windows of a huge page may be loaded beside what is under way.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.under_way.len() + bytes / WINDOW <= FETCHES
    }

    /// A huge page is loaded to the block that begins with slot `first`.
    pub fn begin_huge(&mut self, first: u32, range: &Range<usize>) {
        let (to, bytes) = (range.start, range.len());
        self.huge.push(HugeAhead { first, to, bytes, is_finishing: false });
    }

    /// The rest of it is about to be loaded; the program's addresses. `None` where it is already.
    pub fn finish_huge(&mut self, first: u32) -> Option<Range<usize>> {
        let huge = self.huge.iter_mut().find(|huge| huge.first == first && !huge.is_finishing)?;
        huge.is_finishing = true;
        Some(huge.to..huge.to + huge.bytes)
    }

    /// It is there, or came to nothing.
    pub fn end_huge(&mut self, first: u32) {
        self.huge.retain(|huge| huge.first != first);
    }

    /// A huge page that follows what a stream was to bring is brought too.
    pub fn bring(&mut self, range: &Range<usize>) {
        self.streams.bring(range.clone());
    }

    /// A worker has this to do.
    pub fn begin(&mut self, ahead: Ahead) {
        self.under_way.push(ahead);
    }

    /// It is done, or was taken back.
    pub fn end(&mut self, slot: u32) -> Ahead {
        let index = self.under_way.iter().position(|ahead| ahead.slot == slot).expect("a fetch ends once");
        self.under_way.swap_remove(index)
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        for (index, ahead) in self.under_way.iter().enumerate() {
            let is_twice = |other: &Ahead| other.slot == ahead.slot || other.to == ahead.to;
            if self.under_way[..index].iter().any(is_twice) {
                return Err(alloc::format!(
                    "a window is fetched twice, or two are onto one slot: {ahead:x?}"
                ));
            }
        }
        Ok(())
    }

    /// What was learnt of streams is forgotten.
    #[cfg(test)]
    pub fn forget_streams(&mut self) {
        self.streams = Readahead::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmscan::PAGE;

    #[test]
    fn a_fetch_is_found_by_its_pages_and_its_slot_until_it_ends() {
        let mut fetches = FetchAhead::default();
        let ahead =
            |slot: u32| Ahead { slot, to: slot as usize * 2 * WINDOW, object: 7, first: 0, is_loaded: false };
        [1, 2, 3].into_iter().for_each(|slot| fetches.begin(ahead(slot)));
        let found =
            [2 * WINDOW - PAGE, 2 * WINDOW, 3 * WINDOW - PAGE, 3 * WINDOW].map(|at| fetches.slot_of(at));
        assert_eq!(found, [None, Some(1), Some(1), None]);
        assert_eq!((fetches.check(), fetches.end(1), fetches.is_loading(1)), (Ok(()), ahead(1), false));
        assert!(fetches.is_loading(3) && !fetches.is_full());
        fetches.begin(ahead(3));
        assert!(fetches.check().is_err(), "twice");
    }
}
