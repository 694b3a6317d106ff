//! Splitting: when an object of many pages, which are asked for one by one, is made objects of a page each.
//!
//! A page out of a window costs as much as half of it to decompress, or all of it (zstd). As an object of its own it
//! costs a sixteenth of it, the next time; but the pages beside it are compressed once more, and all of them take more
//! room. So a first page comes alone, and the second splits the object. Where three of four pages that are asked for
//! have objects of their own already, the program goes here and there and has done so for a while: what is left in one
//! piece will be split as well, and sooner costs a decompression less.

/// The share of what was loaded for a fault lately that was a page with an object of its own, in parts of `ALL`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Splitting(u32);

const ALL: u32 = 1 << 20;

/// So many loads later about two thirds of what was is forgotten.
const MEMORY: u32 = 1 << 10;

impl Splitting {
    /// A fault, or a page that is brought home, is served from the pool: alone, and out of an object of its own, or
    /// not.
    pub fn load(&mut self, is_single: bool) {
        self.0 -= self.0 / MEMORY;
        self.0 += if is_single { ALL / MEMORY } else { 0 };
    }

    /// After how many pages that were asked for alone the next one splits their object.
    pub fn picks(&self) -> u8 {
        if self.0 < ALL / 4 * 3 { 1 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_page_splits_and_the_first_where_most_are_split() {
        let mut splitting = Splitting::default();
        assert_eq!(splitting.picks(), 1);
        // As many pages out of windows as there are single ones.
        (0..10 * MEMORY).for_each(|n| splitting.load(n % 2 == 0));
        assert_eq!(splitting.picks(), 1);
        (0..2 * MEMORY).for_each(|_| splitting.load(true));
        assert_eq!(splitting.picks(), 0);
        (0..MEMORY).for_each(|_| splitting.load(false));
        assert_eq!(splitting.picks(), 1);
        (0..100 * MEMORY).for_each(|_| splitting.load(true));
        assert!(splitting.0 <= ALL, "{splitting:?}");
    }
}
