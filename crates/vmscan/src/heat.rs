//! Heat: how often the clock hand spares a page.
//!
//! The hand goes round the program's memory in order of address and takes what it meets; there is no accessed bit to
//! ask before Linux 7.3 (touches.rs). What a page did is known only from its last way out and back, and that is kept in
//! two bits beside it, as S3-FIFO keeps it: each touch on the inactive list makes a page hotter, one that came back
//! soon after it went is warm, and a later one is cold. Soon is counted in pages that went out in between, as the
//! kernel's workingset.c counts it.

/// Two bits: how many more visits of the hand a page survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Heat(u8);

impl Heat {
    /// A page of which nothing is known.
    pub const COLD: Heat = Heat(0);
    /// A page that came back soon, or was brought ahead of its fault: it is not taken before the hand has gone round
    /// once.
    pub const WARM: Heat = Heat(1);
    /// The most.
    pub const HOT: Heat = Heat(3);

    /// From the two bits as stored.
    pub fn from_bits(bits: u64) -> Heat {
        Heat((bits & 3) as u8)
    }

    /// The two bits.
    pub fn bits(self) -> u64 {
        self.0 as u64
    }

    /// After a touch on the inactive list: a second-chance hit.
    pub fn touched(self) -> Heat {
        Heat((self.0 + 2).min(3))
    }

    /// After a visit of the hand; `None` when the page is to be taken.
    pub fn visited(self) -> Option<Heat> {
        self.0.checked_sub(1).map(Heat)
    }

    /// For a page that comes back from the pool after `distance` other pages went out, while `resident` pages are in
    /// memory: one that came sooner than all of them could go would have stayed if the others had not been preferred
    /// (the ghost list's rule). Most that miss do: hotter, they would crowd out those of which nothing is known.
    pub fn refault(distance: usize, resident: usize) -> Heat {
        if distance <= resident { Heat::WARM } else { Heat::COLD }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_page_survives_three_visits_and_a_cold_one_none() {
        assert_eq!(Heat::COLD.visited(), None);
        let mut heat = Heat::COLD.touched().touched();
        assert_eq!(heat, Heat::HOT);
        for _ in 0..3 {
            heat = heat.visited().unwrap();
        }
        assert_eq!(heat.visited(), None);
    }

    #[test]
    fn a_refault_that_comes_soon_is_hotter_than_a_late_one() {
        assert!(Heat::refault(10, 100) > Heat::refault(1000, 100));
        assert_eq!(Heat::from_bits(Heat::HOT.bits()), Heat::HOT);
    }
}
