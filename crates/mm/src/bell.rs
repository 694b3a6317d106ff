//! Bells: pages of the engine's own, in registered memory, which threads of the program touch to be heard. A touch
//! is a fault, and is answered when what was asked for is done.

use crate::kernel::WINDOW_PAGES;
use base::PageMask;
use vmscan::{PAGE, WINDOW};

/// A window of bells.
#[derive(Debug)]
pub struct Bells {
    base: usize,
    /// Those that threads have touched.
    rung: PageMask,
}

impl Bells {
    /// Bells in the window at an address.
    pub fn new(base: usize) -> Bells {
        Bells { base, rung: PageMask::NONE }
    }

    /// The first bell's address.
    pub fn base(&self) -> usize {
        self.base
    }

    /// A thread has touched the page at `at`: true if that is a bell.
    pub fn ring(&mut self, at: usize) -> bool {
        let offset = at.wrapping_sub(self.base);
        if offset < WINDOW {
            self.rung.insert(offset / PAGE);
        }
        offset < WINDOW
    }

    /// True when a thread waits for an answer.
    pub fn has_rung(&self) -> bool {
        !self.rung.is_empty()
    }

    /// The addresses of those that have rung, which are answered now; and for each that of the bell half a window
    /// further, which is made ready.
    pub fn answer(&mut self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (base, rung) = (self.base, core::mem::take(&mut self.rung));
        let at = move |bell: usize| base + bell % WINDOW_PAGES * PAGE;
        rung.iter().map(move |bell| (at(bell), at(bell + WINDOW_PAGES / 2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn what_is_touched_has_rung_until_it_is_answered() {
        let base = 3 * WINDOW;
        let mut bells = Bells::new(base);
        assert_eq!([base - PAGE, base + WINDOW].map(|at| bells.ring(at)), [false; 2]);
        assert!(!bells.has_rung());
        assert_eq!([base, base + 9 * PAGE, base].map(|at| bells.ring(at)), [true; 3]);
        assert!(bells.has_rung());
        let answered: Vec<_> = bells.answer().collect();
        assert_eq!(answered, [(base, base + 8 * PAGE), (base + 9 * PAGE, base + PAGE)]);
        assert!(!bells.has_rung());
    }
}
