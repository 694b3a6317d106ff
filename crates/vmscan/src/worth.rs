//! Whether what is read from a swap area beside the page that was asked for is wanted.
//!
//! What was read so lies in the pool until somebody asks for it, or until it leaves the pool again unasked. That is its
//! fate, and the fates of late decide: where most were in vain no more is read so, but for a trial now and then, which
//! notices a program that goes on in another way.

use crate::fates::Fates;

/// The fates of late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worth {
    fates: Fates,
    /// How often it was refused since the last trial.
    refused: u32,
}

/// So many fates are remembered.
const MEMORY: u32 = 1 << 10;

/// So many refusals make a trial due.
const TRIAL: u32 = 32;

impl Worth {
    /// So many pages were asked for, and so many went again unasked.
    pub fn add(&mut self, wanted: usize, vain: usize) {
        self.fates.add(wanted, vain, MEMORY);
    }

    /// True where half of it at least is wanted, or a trial is due.
    pub fn pays(&mut self) -> bool {
        let pays = self.fates.is_one_in(2) || self.refused == TRIAL;
        self.refused = if pays { 0 } else { self.refused + 1 };
        pays
    }

    /// Next to all of it is wanted: it may go to the program before it is asked for.
    pub fn is_sure(&self) -> bool {
        self.fates.known() > MEMORY / 16 && self.fates.is_vain_in(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many are granted.
    fn granted(worth: &mut Worth, asks: u32) -> u32 {
        (0..asks).map(|_| u32::from(worth.pays())).sum()
    }

    #[test]
    fn it_pays_while_half_is_wanted_and_is_tried_now_and_then_where_it_does_not() {
        let mut worth = Worth::default();
        assert_eq!((granted(&mut worth, 100), worth.is_sure()), (100, false), "nothing is known");
        worth.add(0, 100);
        assert_eq!(granted(&mut worth, 10 * (TRIAL + 1)), 10);
        worth.add(99, 0);
        assert_eq!(granted(&mut worth, TRIAL + 1), 1);
        worth.add(1, 0);
        assert_eq!((granted(&mut worth, 33), worth.is_sure()), (33, false));
    }

    #[test]
    fn it_is_sure_where_next_to_all_is_wanted_and_unlearns_it() {
        let mut worth = Worth::default();
        worth.add(100_000, 0);
        assert!(worth.is_sure());
        worth.add(0, 200);
        assert!(!worth.is_sure() && worth.pays());
        worth.add(0, 100_000);
        assert!(!worth.pays());
    }
}
