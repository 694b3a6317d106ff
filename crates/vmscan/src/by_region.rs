//! Something for each region of 2 MiB, in so many places.

use crate::HUGE;
use alloc::boxed::Box;
use alloc::vec;

/// So many regions are remembered, where each has one place.
const REGIONS: usize = 1024;

/// What is known of regions. A later one takes an earlier one's place, and begins with nothing.
pub struct ByRegion<T> {
    /// By the region's number; 0 for none, since nobody maps page 0.
    places: Box<[(usize, T)]>,
}

impl<T: Copy + Default> Default for ByRegion<T> {
    fn default() -> ByRegion<T> {
        ByRegion { places: vec![(0, T::default()); REGIONS].into() }
    }
}

impl<T: Copy + Default> ByRegion<T> {
    /// What is known of the region of an address.
    pub fn of(&mut self, at: usize) -> &mut T {
        let number = at / HUGE;
        let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (of, known) = &mut self.places[place % REGIONS];
        if *of != number {
            (*of, *known) = (number, T::default());
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_known_until_another_one_takes_its_place() {
        let mut regions = ByRegion::<u32>::default();
        let at = |number: usize| (1 << 40) + number * HUGE;
        *regions.of(at(1)) += 1;
        *regions.of(at(1) + HUGE - 1) += 1;
        *regions.of(at(2)) += 5;
        assert_eq!([1, 2, 3].map(|number| *regions.of(at(number))), [2, 5, 0]);
        (3..100_000).for_each(|number| *regions.of(at(number)) = 9);
        assert_eq!(*regions.of(at(1)), 0);
    }
}
