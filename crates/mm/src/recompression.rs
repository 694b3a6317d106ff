//! Recompression: windows whose pages have come to lie in many objects, or in objects of which a part is dead, are
//! made one object again.
//!
//! Pages that go out one by one are kept one by one, and shrink less than a window does; a window from which pages
//! were taken one by one keeps their copies, which nobody needs. Both are paid for with time that a miss takes.
//! Where the pool is most of the memory a second hand goes round behind the clock hand, and looks for such windows
//! among those that nobody has asked for in a long time. zram's recompression of idle pages is the same idea.

use crate::kernel::WINDOW_PAGES;
use crate::swap_map::{Kind, SwapMap};
use alloc::string::String;
use base::PageMask;
use vmscan::rest::Rest;
use vmscan::{PAGE, WINDOW};
use zswap::objects::Entries;

/// One part of the engine's time in so many goes into recompression, and into looking for what is worth it where
/// there is nothing.
const SHARE: u64 = 8;
const SHARE_IN_VAIN: u64 = 64;

/// With fewer pages than this a window shrinks no better than its pages do.
const FEWEST: usize = 4;

/// It is recompressed all the same where objects of so many times as many pages are kept for it.
const MOSTLY_DEAD: usize = 4;

/// Where the search stands.
#[derive(Default)]
pub struct Recompression {
    /// The next address that is looked at; a window's.
    hand: usize,
    /// When the hand goes on, in nanoseconds.
    next_ns: u64,
    /// Whether it rests where nothing else is left to do.
    rest: Rest,
}

impl Recompression {
    /// True when there is time for it.
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// A search has taken so long, and found something or not.
    pub fn searched(&mut self, began_ns: u64, end_ns: u64, found: bool) {
        let share = if found { SHARE } else { SHARE_IN_VAIN };
        self.next_ns = began_ns + (end_ns - began_ns) * share;
    }

    /// True while it is no use to look where nothing else is left to do.
    pub fn rests(&self, now_ns: u64) -> bool {
        self.rest.is_on(now_ns)
    }

    /// It was looked there, and something found or not.
    pub fn searched_at_last(&mut self, found: bool, now_ns: impl FnOnce() -> u64) {
        if found {
            self.rest.found();
        } else {
            self.rest.round(now_ns());
        }
    }

    /// The next window of which something is known. `None` once round: from the beginning with the next call.
    pub fn next(&mut self, map: &SwapMap) -> Option<usize> {
        let Some((page, _)) = map.next_used(self.hand, 1 << 47) else {
            self.hand = 0;
            return None;
        };
        let window = page & !(WINDOW - 1);
        self.hand = window + WINDOW;
        Some(window)
    }

    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        if !self.hand.is_multiple_of(WINDOW) {
            return Err(alloc::format!("the hand stands within a window, at {:#x}", self.hand));
        }
        Ok(())
    }
}

/// The pages of a window that are to be one object; none when it is well as it is, or, where only `cold` ones are
/// meant, has pages that went out a short time ago.
pub fn worth(map: &SwapMap, objects: &Entries, window: usize, cold: bool) -> PageMask {
    let (mut mask, mut pieces, mut held, mut last) = (PageMask::NONE, 0, 0, None);
    for page in 0..WINDOW_PAGES {
        let entry = map.get(window + page * PAGE);
        match entry.kind() {
            Kind::Stored if !cold || map.distance(entry) > map.stored() => {}
            // So lately out that it may soon be asked for again.
            Kind::Stored | Kind::Inactive => return PageMask::NONE,
            Kind::None | Kind::Clean | Kind::Zero => continue,
        }
        let object = objects.get(entry.id());
        // It is another process's too: a second one would take more memory, not less. Or it takes none.
        if object.is_shared() || object.is_swapped() {
            return PageMask::NONE;
        }
        mask.insert(page);
        if last != Some(entry.id()) {
            last = Some(entry.id());
            pieces += 1;
            held += object.pages as usize;
        }
    }
    let pages = mask.count();
    let is_scattered = 4 * pieces >= pages;
    let is_sparse = 4 * held >= 5 * pages;
    let is_worth_it = pages >= FEWEST || held >= MOSTLY_DEAD * pages;
    if is_worth_it && pieces + held > pages + 1 && (is_scattered || is_sparse) {
        mask
    } else {
        PageMask::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap_map::Entry;
    use vmscan::heat::Heat;
    use zswap::objects::Body;

    /// A window whose pages lie in objects of so many pages each, of which it still has so many; from an address on.
    fn window(of: &[(usize, usize)]) -> (SwapMap, Entries) {
        let (mut map, mut objects) = (SwapMap::default(), Entries::default());
        let mut at = 0;
        for &(made_of, left) in of {
            let id = objects.insert(Body::Same(1), made_of, 0);
            for offset in 0..left {
                objects.retain(id, true);
                map.set(at, Entry::new(Kind::Stored, id, offset, Heat::COLD));
                at += PAGE;
            }
        }
        (map, objects)
    }

    fn is_worth(of: &[(usize, usize)]) -> bool {
        let (map, objects) = window(of);
        !worth(&map, &objects, 0, false).is_empty()
    }

    #[test]
    fn a_window_in_pieces_or_mostly_dead_is_worth_it_and_a_whole_one_is_not() {
        assert!(!is_worth(&[(16, 16)]));
        assert!(is_worth(&[(1, 1); 16]));
        assert!(is_worth(&[(16, 8)]), "half of it is dead");
        assert!(!is_worth(&[(16, 13)]), "most of it is not");
        assert!(!is_worth(&[(1, 1); 3]), "too few");
        assert!(is_worth(&[(16, 2)]), "few, and much is kept for them");
    }

    #[test]
    fn what_went_out_a_short_time_ago_is_not_cold() {
        let (mut map, objects) = window(&[(1, 1); 16]);
        assert_eq!(worth(&map, &objects, 0, true), PageMask::NONE);
        map.evict(1 << 10);
        assert_eq!(worth(&map, &objects, 0, true), PageMask::first(WINDOW_PAGES));
        map.set(3 * PAGE, Entry::new(Kind::Inactive, 0, 0, Heat::COLD));
        assert_eq!(worth(&map, &objects, 0, true), PageMask::NONE);
    }

    #[test]
    fn the_hand_goes_round_by_windows() {
        let mut map = SwapMap::default();
        for at in [3 * PAGE, 5 * PAGE, 4 * WINDOW + PAGE] {
            map.set(at, Entry::new(Kind::Zero, 0, 0, Heat::COLD));
        }
        let mut recompression = Recompression::default();
        let found = [(); 4].map(|()| recompression.next(&map));
        assert_eq!(found, [Some(0), Some(4 * WINDOW), None, Some(0)]);
        assert_eq!(recompression.check(), Ok(()));
    }

    #[test]
    fn a_search_in_vain_is_followed_by_a_longer_rest() {
        let mut recompression = Recompression::default();
        recompression.searched(1000, 1010, true);
        assert_eq!([1079, 1080].map(|now| recompression.is_due(now)), [false, true]);
        recompression.searched(2000, 2010, false);
        assert_eq!([2639, 2640].map(|now| recompression.is_due(now)), [false, true]);
    }
}
