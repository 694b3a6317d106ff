//! How many pages the clock hand spares because they were touched since it came by last, where the kernel tells that.
//!
//! A page that was touched goes a round later at the soonest, as with CLOCK. But while a hand only looks, somebody
//! waits for room; and where nearly all is touched again and again, one page is as good as another.

/// So many pages are spared for each that is taken.
const PER_PAGE: usize = 64;

/// And so many at a time at most: 128 MiB, for which the hand goes on for some milliseconds.
const MOST: usize = 1 << 15;

/// So many searches may find nothing else.
const SEARCHES: usize = 16;

/// See the head of the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lenience {
    /// Pages that were spared, less what those that were taken make up for.
    spared: usize,
}

impl Lenience {
    /// True where so many pages, which were touched, are to be spared.
    pub fn spares(&mut self, pages: usize) -> bool {
        let may_be = self.spared < MOST;
        self.spared += if may_be { pages } else { 0 };
        may_be
    }

    /// Nothing was found but such pages, while somebody waits: after a few more searches like that they are taken.
    pub fn in_vain(&mut self) {
        self.spared = (self.spared + MOST / SEARCHES).min(MOST);
    }

    /// So many pages were taken.
    pub fn took(&mut self, pages: usize) {
        self.spared = self.spared.saturating_sub(pages * PER_PAGE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_spared_as_long_as_enough_others_are_taken() {
        let mut lenience = Lenience::default();
        let spared = (0..).take_while(|_| lenience.spares(128)).count();
        assert_eq!(spared * 128, MOST);
        lenience.took(2);
        assert!(lenience.spares(2 * PER_PAGE) && !lenience.spares(1));
        lenience.took(MOST);
        assert!(lenience.spares(MOST) && !lenience.spares(1));
    }

    #[test]
    fn of_a_single_page_searches_are_in_vain_a_few_times() {
        let mut lenience = Lenience::default();
        let searches = (0..).take_while(|_| {
            let is_spared = lenience.spares(1);
            lenience.in_vain();
            is_spared
        });
        assert_eq!(searches.count(), SEARCHES);
    }
}
