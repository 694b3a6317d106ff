//! Folios: naturally aligned runs of pages, the unit that moves.

use crate::PAGE;
use core::fmt;
use core::ops::Range;

/// The largest folio has 2^9 pages: 2 MiB, what one entry of a table of page tables maps.
pub const ORDER_MAX: u8 = 9;

/// Pages of the largest folio.
pub const PAGES_MAX: usize = 1 << ORDER_MAX;

/// 2^`order` pages from an address on that is a multiple of their size.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Folio {
    address: usize,
    order: u8,
}

impl Folio {
    /// The folio of this order that holds `at`.
    pub const fn containing(at: usize, order: u8) -> Folio {
        assert!(order <= ORDER_MAX);
        Folio { address: at & !((PAGE << order) - 1), order }
    }

    /// The largest folio that begins at `range.start` and lies in the range. `None` where no page does: the range is
    /// empty, or does not begin at a page.
    pub fn first_of(range: &Range<usize>) -> Option<Folio> {
        let pages = range.end.saturating_sub(range.start) / PAGE;
        if pages == 0 || !range.start.is_multiple_of(PAGE) {
            return None;
        }
        let aligned = (range.start / PAGE).trailing_zeros();
        let order = pages.ilog2().min(aligned).min(ORDER_MAX.into()) as u8;
        Some(Folio { address: range.start, order })
    }

    /// The folios of which a range of whole pages consists, each as large as can be, by address.
    pub fn all_of(range: Range<usize>) -> impl Iterator<Item = Folio> {
        let mut rest = range;
        core::iter::from_fn(move || {
            let folio = Folio::first_of(&rest)?;
            rest.start = folio.range().end;
            Some(folio)
        })
    }

    /// Where it begins.
    pub const fn address(self) -> usize {
        self.address
    }

    /// The binary logarithm of its pages.
    pub const fn order(self) -> u8 {
        self.order
    }

    /// How many pages it has.
    pub const fn pages(self) -> usize {
        1 << self.order
    }

    /// How many bytes it has.
    pub const fn bytes(self) -> usize {
        PAGE << self.order
    }

    /// Its addresses.
    pub const fn range(self) -> Range<usize> {
        self.address..self.address + self.bytes()
    }

    /// The address of one of its pages.
    pub const fn page(self, index: usize) -> usize {
        assert!(index < self.pages());
        self.address + index * PAGE
    }

    /// Which of its pages holds `at`; `None` for an address of another folio.
    pub fn index(self, at: usize) -> Option<usize> {
        self.range().contains(&at).then(|| (at - self.address) / PAGE)
    }
}

impl fmt::Debug for Folio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} order {}", self.address, self.order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn a_folio_begins_where_its_size_divides_the_address() {
        let at = 0x7f12_3456_7abc;
        for (order, address) in [(0, 0x7f12_3456_7000), (4, 0x7f12_3456_0000), (9, 0x7f12_3440_0000)] {
            let folio = Folio::containing(at, order);
            assert_eq!((folio.address(), folio.order()), (address, order));
            assert_eq!((folio.pages(), folio.bytes()), (1 << order, 4096 << order));
            assert!(folio.range().contains(&at));
            let index = folio.index(at).unwrap();
            assert_eq!(folio.page(index), at & !(PAGE - 1));
            assert_eq!((folio.index(address.wrapping_sub(1)), folio.index(folio.range().end)), (None, None));
        }
    }

    #[test]
    fn what_has_no_page_has_no_folio() {
        for range in [0..0, 4096..4096, 4096..8191, 1..9000] {
            assert_eq!(Folio::first_of(&range), None, "{range:?}");
        }
    }

    #[test]
    fn a_range_is_cut_into_the_fewest_aligned_folios() {
        let orders = |pages: Range<usize>| -> Vec<u8> {
            Folio::all_of(pages.start * PAGE..pages.end * PAGE).map(Folio::order).collect()
        };
        assert_eq!(orders(0..16), [4]);
        assert_eq!(orders(1..16), [0, 1, 2, 3]);
        assert_eq!(orders(0..9), [3, 0]);
        assert_eq!(orders(512..2048), [9, 9, 9], "none is larger than 2 MiB");
        let mut random = Random(1);
        for _ in 0..500 {
            let start = random.below(2000);
            let pages = start..start + random.below(2000);
            let folios: Vec<Folio> = Folio::all_of(pages.start * PAGE..pages.end * PAGE).collect();
            let mut at = pages.start * PAGE;
            for folio in &folios {
                assert_eq!(folio.address(), at, "{pages:?}: one after the other");
                assert!(at.is_multiple_of(folio.bytes()));
                at = folio.range().end;
            }
            assert_eq!(at, pages.end * PAGE);
            // Two neighbours of one order would be one folio, if it were aligned and not too large.
            for pair in folios.windows(2) {
                let may_join = pair[0].order() == pair[1].order() && pair[0].order() < ORDER_MAX;
                assert!(!may_join || !pair[0].address().is_multiple_of(2 * pair[0].bytes()), "{pages:?}");
            }
        }
    }
}
