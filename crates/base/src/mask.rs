//! A set of the pages of one folio, up to the largest.

use crate::folio::PAGES_MAX;
use core::fmt;
use core::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Range, Sub, SubAssign};

const BITS: usize = u64::BITS as usize;
const WORDS: usize = PAGES_MAX / BITS;

/// Pages by their index in a folio, 0 to 511: a bit for each.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PageMask([u64; WORDS]);

impl PageMask {
    /// No page.
    pub const NONE: PageMask = PageMask([0; WORDS]);

    /// One page.
    #[inline]
    pub fn page(index: usize) -> PageMask {
        let mut mask = PageMask::NONE;
        mask.insert(index);
        mask
    }

    /// The first so many pages.
    #[inline]
    pub fn first(pages: usize) -> PageMask {
        PageMask::range(0..pages)
    }

    /// Pages in a row; none where the range is empty.
    #[inline]
    pub fn range(pages: Range<usize>) -> PageMask {
        assert!(pages.end <= PAGES_MAX, "{pages:?}: a folio has {PAGES_MAX} pages at most");
        PageMask(core::array::from_fn(|word| {
            // Of this word, as far as the end and without what lies before the start.
            let below = |end: usize| match end.saturating_sub(word * BITS) {
                bits if bits >= BITS => u64::MAX,
                bits => (1 << bits) - 1,
            };
            below(pages.end) & !below(pages.start)
        }))
    }

    /// True where no page is in it.
    #[inline]
    pub fn is_empty(self) -> bool {
        self == PageMask::NONE
    }

    /// How many pages are in it.
    #[inline]
    pub fn count(self) -> usize {
        // Most words are 0, and to count bits takes a dozen instructions where the CPU is not known to have one for it.
        self.0.iter().filter(|word| **word != 0).map(|word| word.count_ones() as usize).sum()
    }

    /// How many pages are in it before this one.
    #[inline]
    pub fn rank(self, index: usize) -> usize {
        let (word, bits) = (index / BITS, index % BITS);
        let before = self.0[..word].iter().map(|word| word.count_ones() as usize).sum::<usize>();
        before + (self.0[word] & ((1 << bits) - 1)).count_ones() as usize
    }

    /// True where the page is in it.
    #[inline]
    pub fn contains(self, index: usize) -> bool {
        self.0[index / BITS] >> (index % BITS) & 1 != 0
    }

    /// True where all pages of the other are in it.
    #[inline]
    pub fn covers(self, other: PageMask) -> bool {
        (other - self).is_empty()
    }

    /// Puts a page in.
    #[inline]
    pub fn insert(&mut self, index: usize) {
        self.0[index / BITS] |= 1 << (index % BITS);
    }

    /// Takes a page out.
    #[inline]
    pub fn remove(&mut self, index: usize) {
        self.0[index / BITS] &= !(1 << (index % BITS));
    }

    /// The lowest page of those that are in it.
    #[inline]
    pub fn lowest(self) -> Option<usize> {
        self.next_of(0, |word| word)
    }

    /// The highest page of those that are in it.
    #[inline]
    pub fn highest(self) -> Option<usize> {
        let word = self.0.iter().rposition(|word| *word != 0)?;
        Some(word * BITS + self.0[word].ilog2() as usize)
    }

    /// The pages that are in it, in order.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = usize> {
        self.runs().flatten()
    }

    /// Pages in a row that are in it, each row as long as can be, in order.
    #[inline]
    pub fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0;
        core::iter::from_fn(move || {
            let start = self.next_of(at, |word| word)?;
            at = self.next_of(start, |word| !word).unwrap_or(PAGES_MAX);
            Some(start..at)
        })
    }

    /// The folios of which the pages consist, each as large as can be: the first page of each, and its order.
    pub fn folios(self) -> impl Iterator<Item = (usize, u8)> {
        self.runs().flat_map(|run| {
            let mut at = run.start;
            core::iter::from_fn(move || {
                let left = run.end - at;
                let aligned = if at == 0 { PAGES_MAX } else { 1 << at.trailing_zeros() };
                let order = left.checked_ilog2()?.min(aligned.ilog2()) as u8;
                let first = at;
                at += 1 << order;
                Some((first, order))
            })
        })
    }

    /// The first bit from `at` on that is set in words seen so.
    #[inline]
    fn next_of(self, at: usize, seen: impl Fn(u64) -> u64) -> Option<usize> {
        let mut skipped = at % BITS;
        for (index, word) in self.0.iter().enumerate().skip(at / BITS) {
            let bits = seen(*word) >> skipped << skipped;
            if bits != 0 {
                return Some(index * BITS + bits.trailing_zeros() as usize);
            }
            skipped = 0;
        }
        None
    }

    /// Its bit pattern, the opposite of `from`.
    ///
    /// # Panics
    /// Where it has pages beyond the first 16.
    pub fn to_u16(self) -> u16 {
        let beyond = self - PageMask::first(u16::BITS as usize);
        assert!(beyond.is_empty(), "{beyond:?} are beyond the pages that 16 bits name");
        self.0[0] as u16
    }

    #[inline]
    fn with(self, other: PageMask, how: impl Fn(u64, u64) -> u64) -> PageMask {
        PageMask(core::array::from_fn(|word| how(self.0[word], other.0[word])))
    }
}

impl From<u16> for PageMask {
    #[inline]
    fn from(bits: u16) -> PageMask {
        let mut mask = PageMask::NONE;
        mask.0[0] = bits.into();
        mask
    }
}

impl FromIterator<usize> for PageMask {
    fn from_iter<I: IntoIterator<Item = usize>>(pages: I) -> PageMask {
        let mut mask = PageMask::NONE;
        pages.into_iter().for_each(|page| mask.insert(page));
        mask
    }
}

impl BitOr for PageMask {
    type Output = PageMask;
    #[inline]
    fn bitor(self, other: PageMask) -> PageMask {
        self.with(other, |a, b| a | b)
    }
}

impl BitAnd for PageMask {
    type Output = PageMask;
    #[inline]
    fn bitand(self, other: PageMask) -> PageMask {
        self.with(other, |a, b| a & b)
    }
}

/// Those that are not in the other.
impl Sub for PageMask {
    type Output = PageMask;
    #[inline]
    fn sub(self, other: PageMask) -> PageMask {
        self.with(other, |a, b| a & !b)
    }
}

impl BitOrAssign for PageMask {
    #[inline]
    fn bitor_assign(&mut self, other: PageMask) {
        *self = *self | other;
    }
}

impl BitAndAssign for PageMask {
    #[inline]
    fn bitand_assign(&mut self, other: PageMask) {
        *self = *self & other;
    }
}

impl SubAssign for PageMask {
    #[inline]
    fn sub_assign(&mut self, other: PageMask) {
        *self = *self - other;
    }
}

impl fmt::Debug for PageMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.runs()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// A mask, and the same as a list of booleans.
    type Both = (PageMask, [bool; PAGES_MAX]);

    fn same((mask, model): &Both) {
        let expected: Vec<usize> = (0..PAGES_MAX).filter(|page| model[*page]).collect();
        assert_eq!(mask.iter().collect::<Vec<_>>(), expected);
        assert_eq!(mask.count(), expected.len());
        assert_eq!(mask.is_empty(), expected.is_empty());
        assert_eq!((mask.lowest(), mask.highest()), (expected.first().copied(), expected.last().copied()));
        assert!((0..PAGES_MAX).all(|page| mask.contains(page) == model[page]));
        let mut rank = 0;
        for (page, is_in) in model.iter().enumerate() {
            assert_eq!(mask.rank(page), rank);
            rank += *is_in as usize;
        }
        let runs: Vec<_> = mask.runs().collect();
        assert!(runs.windows(2).all(|two| two[0].end < two[1].start), "no two touch: {runs:?}");
        assert!(runs.iter().all(|run| !run.is_empty()));
        assert_eq!(mask.iter().collect::<PageMask>(), *mask);
    }

    fn check_folios(mask: PageMask) {
        let folios: Vec<_> = mask.folios().collect();
        let mut from_folios = PageMask::NONE;
        for &(first, order) in &folios {
            let folio = PageMask::range(first..first + (1 << order));
            assert!(first.is_multiple_of(1 << order) && mask.covers(folio));
            assert!((from_folios & folio).is_empty());
            from_folios |= folio;
            // The one of twice the size that holds it is not all there.
            let twice = first & !((2 << order) - 1);
            assert!(
                2 << order > PAGES_MAX || !mask.covers(PageMask::range(twice..twice + (2 << order))),
                "{mask:?}: {first} of order {order}"
            );
        }
        assert_eq!(from_folios, mask);
    }

    #[test]
    fn masks_agree_with_a_list_of_booleans() {
        let seeds = if cfg!(miri) { 1 } else { 30 };
        for seed in 0..seeds {
            let mut random = Random(seed);
            let mut all: [Both; 3] = [(PageMask::NONE, [false; PAGES_MAX]); 3];
            for _ in 0..if cfg!(miri) { 10 } else { 300 } {
                let (to, from) = (random.below(3), random.below(3));
                let (other, other_model) = all[from];
                let (mask, model) = &mut all[to];
                let start = random.below(PAGES_MAX);
                // Short ones mostly; and to the end of a word, or of all.
                let end = *random.pick(&[start + 1, start + 7, (start | 63) + 1, PAGES_MAX, start]);
                let run = start..end.min(PAGES_MAX);
                let each = |model: &mut [bool; PAGES_MAX], how: fn(bool, bool) -> bool| {
                    model.iter_mut().zip(other_model).for_each(|(a, b)| *a = how(*a, b));
                };
                match random.below(7) {
                    0 => {
                        mask.insert(start);
                        model[start] = true;
                    }
                    1 => {
                        mask.remove(start);
                        model[start] = false;
                    }
                    2 | 3 => {
                        *mask |= PageMask::range(run.clone());
                        model[run].fill(true);
                    }
                    4 => {
                        *mask -= PageMask::range(run.clone());
                        model[run].fill(false);
                    }
                    5 => {
                        *mask |= other;
                        each(model, |a, b| a | b);
                    }
                    _ if random.one_in(2) => {
                        *mask &= other;
                        each(model, |a, b| a & b);
                    }
                    _ => {
                        *mask -= other;
                        each(model, |a, b| a & !b);
                    }
                }
                same(&all[to]);
                check_folios(all[to].0);
                let covers = (0..PAGES_MAX).all(|page| all[to].1[page] || !other_model[page]);
                assert_eq!(all[to].0.covers(other), covers, "seed {seed}");
            }
        }
    }

    #[test]
    fn runs_cross_words_and_reach_the_end() {
        let mask = PageMask::range(60..130) | PageMask::page(200) | PageMask::range(511..512);
        assert_eq!(mask.runs().collect::<Vec<_>>(), [60..130, 200..201, 511..512]);
        assert_eq!(format!("{mask:?}"), "{60..130, 200..201, 511..512}");
        assert!(PageMask::first(PAGES_MAX).runs().eq(core::iter::once(0..PAGES_MAX)));
        assert_eq!(PageMask::first(0), PageMask::NONE);
    }

    #[test]
    fn a_window_of_sixteen_is_a_bit_pattern_too() {
        for bits in [0, 1, 0x8001, 0x1ff, u16::MAX] {
            let mask = PageMask::from(bits);
            assert_eq!((mask.to_u16(), mask.count()), (bits, bits.count_ones() as usize));
            check_folios(mask);
        }
        assert_eq!(PageMask::from(0x3fe).folios().collect::<Vec<_>>(), [(1, 0), (2, 1), (4, 2), (8, 1)]);
        assert_eq!(PageMask::first(PAGES_MAX).folios().collect::<Vec<_>>(), [(0, 9)]);
    }

    #[test]
    #[should_panic = "{16..17, 511..512} are beyond the pages that 16 bits name"]
    fn no_page_is_cut_off_in_a_bit_pattern() {
        (PageMask::range(3..17) | PageMask::page(511)).to_u16();
    }

    #[test]
    #[should_panic = "a folio has 512 pages at most"]
    fn a_page_beyond_the_largest_folio_is_none() {
        PageMask::range(PAGES_MAX - 1..PAGES_MAX + 1);
    }
}
