//! Ranges of memory that the program has pinned: nothing of them leaves it. A thread writes them down, and the engine
//! reads them before it moves a page; where mappings end or move it changes them too.
//!
//! A place is one word, which is changed at once. What is cut is written to its new places first, so that no page is
//! ever unpinned that is to stay. Threads of the program change one range at a time: they hold the doorbell.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use uffd::PAGE;

/// How many ranges there can be.
const PLACES: usize = 64;

/// Bits of a word: the number of pages, below the first page. 0 is a free place.
const PAGES_BITS: u32 = 27;
const PAGES_MOST: usize = (1 << PAGES_BITS) - 1;

/// See the head of the file.
pub struct Pinned {
    places: [AtomicU64; PLACES],
    /// Not 0 once there was anything.
    is_used: AtomicU32,
}

/// There is no free place, or a range is too long for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPlace;

impl Pinned {
    /// Nothing is pinned.
    pub const fn new() -> Pinned {
        Pinned { places: [const { AtomicU64::new(0) }; PLACES], is_used: AtomicU32::new(0) }
    }

    /// True for a page that must stay.
    pub fn holds(&self, at: usize) -> bool {
        self.is_used.load(SeqCst) != 0 && self.ranges().any(|range| range.contains(&at))
    }

    /// How many bytes are pinned outside of `range`. What is pinned by several calls may count as often.
    pub fn bytes_beside(&self, range: &Range<usize>) -> usize {
        self.ranges().map(|held| held.len() - within(&held, range).len()).sum()
    }

    /// How many bytes of `range` are pinned, which are found page by page.
    pub fn bytes_in(&self, range: &Range<usize>) -> usize {
        let overlaps = |held: Range<usize>| !within(&held, range).is_empty();
        if !self.ranges().any(overlaps) {
            return 0;
        }
        range.clone().step_by(PAGE).filter(|&at| self.holds(at)).count() * PAGE
    }

    /// Pins whole pages.
    pub fn add(&self, range: &Range<usize>) -> Result<(), NoPlace> {
        self.is_used.store(1, SeqCst);
        let own = self.put(range)?;
        for (_, place) in self.places.iter().enumerate().filter(|&(index, _)| index != own) {
            let seen = place.load(SeqCst);
            let held = read(seen);
            if !held.is_empty() && held.start >= range.start && held.end <= range.end {
                let _ = place.compare_exchange(seen, 0, SeqCst, Relaxed);
            }
        }
        Ok(())
    }

    /// For the engine: the mappings of a range have new addresses, from `to` on, and so has what is pinned of them.
    /// What there is no place for stays pinned where it was.
    pub fn remap(&self, from: &Range<usize>, to: usize) {
        for held in self.ranges() {
            let part = within(&held, from);
            if !part.is_empty()
                && self.put(&(part.start - from.start + to..part.end - from.start + to)).is_ok()
            {
                let _ = self.remove(&part);
            }
        }
    }

    /// Nothing is pinned any more. What is so already is not written.
    pub fn reset(&self) {
        if self.is_used.load(Relaxed) != 0 {
            self.places.iter().for_each(|place| place.store(0, Relaxed));
            self.is_used.store(0, Relaxed);
        }
    }

    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.places.iter().map(|place| read(place.load(SeqCst))).filter(|range| !range.is_empty())
    }

    /// Writes a range down; where.
    fn put(&self, range: &Range<usize>) -> Result<usize, NoPlace> {
        let word = word(range).ok_or(NoPlace)?;
        let is_put = |place: &AtomicU64| place.compare_exchange(0, word, SeqCst, Relaxed).is_ok();
        self.places.iter().position(is_put).ok_or(NoPlace)
    }

    /// Unpins whole pages: takes them out of all places.
    pub fn remove(&self, hole: &Range<usize>) -> Result<(), NoPlace> {
        for place in &self.places {
            let mut seen = place.load(SeqCst);
            loop {
                let held = read(seen);
                let [before, after] =
                    [held.start..held.end.min(hole.start), held.start.max(hole.end)..held.end];
                let overlaps = held.start < hole.end && held.end > hole.start;
                if !overlaps || held.is_empty() {
                    break;
                }
                // The first that is left takes the place, and the second one of its own.
                let (first, second) = if before.is_empty() { (after, 0..0) } else { (before, after) };
                let apart = if second.is_empty() { None } else { Some(self.put(&second)?) };
                match place.compare_exchange(seen, word(&first).unwrap_or(0), SeqCst, SeqCst) {
                    Ok(_) => break,
                    // Changed meanwhile.
                    Err(now) => {
                        apart.into_iter().for_each(|place| self.places[place].store(0, SeqCst));
                        seen = now;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Default for Pinned {
    fn default() -> Pinned {
        Pinned::new()
    }
}

/// What lies in both.
fn within(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// The word of a range; 0 for an empty one, and none for one that is too long.
fn word(range: &Range<usize>) -> Option<u64> {
    let pages = range.len() / PAGE;
    let word = if pages == 0 { 0 } else { ((range.start / PAGE) << PAGES_BITS | pages) as u64 };
    (pages <= PAGES_MOST).then_some(word)
}

/// The range of a word.
fn read(word: u64) -> Range<usize> {
    let start = (word as usize >> PAGES_BITS) * PAGE;
    start..start + (word as usize & PAGES_MOST) * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(range: Range<usize>) -> Range<usize> {
        range.start * PAGE..range.end * PAGE
    }

    /// The pages below 40 that are pinned.
    fn held(pinned: &Pinned) -> Vec<usize> {
        (0..40).filter(|page| pinned.holds(page * PAGE)).collect()
    }

    #[test]
    fn what_is_pinned_twice_is_unpinned_at_once_and_in_parts() {
        let pinned = Pinned::new();
        assert!(held(&pinned).is_empty());
        assert_eq!(pinned.add(&pages(10..20)), Ok(()));
        assert_eq!(pinned.add(&pages(15..25)), Ok(()));
        assert_eq!(held(&pinned), (10..25).collect::<Vec<_>>());
        assert_eq!(
            pinned.bytes_beside(&pages(0..12)),
            (8 + 10) * PAGE,
            "what is pinned twice counts as often"
        );
        assert_eq!(pinned.bytes_in(&pages(0..12)), 2 * PAGE);
        assert_eq!(pinned.remove(&pages(12..17)), Ok(()));
        assert_eq!(held(&pinned), (10..12).chain(17..25).collect::<Vec<_>>());
        assert_eq!(pinned.add(&pages(0..40)), Ok(()));
        assert_eq!(held(&pinned).len(), 40);
        assert_eq!(pinned.ranges().count(), 1, "one place for all");
        pinned.reset();
        assert!(held(&pinned).is_empty());
    }

    #[test]
    fn a_pin_moves_with_its_mapping() {
        let pinned = Pinned::new();
        pinned.add(&pages(2..8)).unwrap();
        pinned.remap(&pages(5..10), 20 * PAGE);
        assert_eq!(held(&pinned), [2, 3, 4, 20, 21, 22]);
    }

    #[test]
    fn where_there_is_no_place_everything_stays_as_it_was() {
        let pinned = Pinned::new();
        for page in 0..PLACES {
            pinned.add(&pages(4 * page..4 * page + 3)).unwrap();
        }
        let before: Vec<_> = pinned.ranges().collect();
        assert_eq!(pinned.add(&pages(1000..1001)), Err(NoPlace));
        assert_eq!(pinned.remove(&pages(1..2)), Err(NoPlace), "it would be one range more");
        assert_eq!(pinned.ranges().collect::<Vec<_>>(), before);
        assert_eq!(pinned.remove(&pages(0..2)), Ok(()));
        assert_eq!(pinned.remove(&pages(4..7)), Ok(()));
        assert_eq!(pinned.add(&pages(1000..1001)), Ok(()));
        assert_eq!(pinned.add(&(0..1 << 40)), Err(NoPlace), "longer than a word can say");
    }
}
