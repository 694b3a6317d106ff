//! The layout of an object in the pool, all little endian:
//!
//! ```text
//!   0      1        2        4          8                   8 + 16 n               8 + 16 n + 8 f
//!   [ n  | format | filled | zeros, 4 | hash of each page | word of each filled  | payload ]
//! ```
//!
//! `n` is the number of pages, 1 to 16. `filled` has a bit for each page that one word fills, `f` of them: such a page
//! has no data. The payload is of the others; format 0 is their bytes as they are, and any other a compressor's output:
//! one more than the number of its [`Kind`]. So an object is read by what it says, whatever makes new ones.

use crate::page::{self, Hash};
use crate::{PAGE, PageMask, WINDOW_PAGES};
use acomp::Kind;
use core::ops::Range;

/// How the payload is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The pages as they are: they did not shrink.
    Plain,
    /// The output of a compressor of this kind.
    Of(Kind),
}

impl Format {
    fn byte(self) -> u8 {
        match self {
            Format::Plain => 0,
            Format::Of(kind) => 1 + kind.number(),
        }
    }

    fn read(byte: u8) -> Option<Format> {
        match byte.checked_sub(1) {
            None => Some(Format::Plain),
            Some(number) => Kind::of(number).map(Format::Of),
        }
    }
}

const _: () = assert!(Kind::END < u8::MAX);

const HEADER: usize = 8;
const FILLED: Range<usize> = 2..4;
const ZEROS: Range<usize> = 4..HEADER;

/// Bytes before the payload of an object of `pages` pages, so many of which are `filled` by one word each.
pub const fn prefix(pages: usize, filled: usize) -> usize {
    HEADER + 16 * pages + 8 * filled
}

/// Bytes of an object of so many pages that all have data and did not shrink. No other object of as many pages has as
/// many bytes: each of those is smaller.
pub const fn plain_bytes(pages: usize) -> usize {
    prefix(pages, 0) + pages * PAGE
}

/// Writes all but the payload into the first [`prefix`] bytes: of each page its hash, and the word that fills it.
pub fn write(object: &mut [u8], format: Format, pages: impl ExactSizeIterator<Item = (Hash, Option<u64>)>) {
    let (mut filled, count) = (PageMask::NONE, pages.len());
    let (head, rest) = object.split_at_mut(prefix(count, 0));
    let mut words = rest.chunks_exact_mut(8);
    for (index, ((hash, word), slot)) in pages.zip(head[HEADER..].chunks_exact_mut(16)).enumerate() {
        slot.copy_from_slice(&hash.to_le_bytes());
        if let Some(word) = word {
            filled.insert(index);
            words.next().expect("the prefix has a place for each").copy_from_slice(&word.to_le_bytes());
        }
    }
    (head[0], head[1]) = (count as u8, format.byte());
    head[FILLED].copy_from_slice(&filled.to_u16().to_le_bytes());
    head[ZEROS].fill(0);
}

/// 32 bits of all pages of an object.
pub fn fingerprint(hashes: impl Iterator<Item = Hash>) -> u32 {
    hashes.fold(0, |print, hash| print.rotate_left(5) ^ hash as u32)
}

/// An object as it lies in the pool.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// How the payload is to be read.
    pub format: Format,
    /// How many pages.
    pub pages: usize,
    /// Those that one word fills each: they are not in the payload.
    filled: PageMask,
    hashes: &'a [u8],
    words: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the header; `None` when it is not one.
    pub fn read(object: &'a [u8]) -> Option<View<'a>> {
        let pages = *object.first()? as usize;
        let format = Format::read(*object.get(1)?)?;
        let filled: [u8; 2] = object.get(FILLED)?.try_into().ok()?;
        let filled = PageMask::from(u16::from_le_bytes(filled));
        let (hashes, words) = (prefix(pages, 0), prefix(pages, filled.count()));
        if !(1..=WINDOW_PAGES).contains(&pages)
            || filled.highest().is_some_and(|page| page >= pages)
            || object.len() < words
        {
            return None;
        }
        let (head, payload) = object.split_at(words);
        let view =
            View { format, pages, filled, hashes: &head[HEADER..hashes], words: &head[hashes..], payload };
        let fits = format != Format::Plain || payload.len() == view.data_pages() * PAGE;
        let is_sound = head[ZEROS].iter().all(|byte| *byte == 0) && fits;
        is_sound.then_some(view)
    }

    /// How many pages the payload is of.
    pub fn data_pages(&self) -> usize {
        self.pages - self.filled.count()
    }

    /// Which of those are among these pages of the object.
    pub fn data_of(&self, pages: Range<usize>) -> Range<usize> {
        let before = |page: usize| page - self.filled.rank(page);
        before(pages.start)..before(pages.end)
    }

    /// The word that fills a page, if one does.
    pub fn word(&self, page: usize) -> Option<u64> {
        let words = self.words.as_chunks().0;
        self.filled.contains(page).then(|| u64::from_le_bytes(words[self.filled.rank(page)]))
    }

    /// Makes pages `first..` of the object of their data, which is at the beginning of `to`, and of the words that fill
    /// the others. From the last one on, so that no data is overwritten that is still to be moved.
    pub fn spread(&self, first: usize, to: &mut [u8]) {
        let count = to.len() / PAGE;
        let mut data = self.data_of(first..first + count).len();
        for index in (0..count).rev() {
            if data == index + 1 {
                break;
            }
            let at = index * PAGE;
            match self.word(first + index) {
                Some(word) => page::fill(&mut to[at..at + PAGE], word),
                None => {
                    data -= 1;
                    to.copy_within(data * PAGE..(data + 1) * PAGE, at);
                }
            }
        }
    }

    /// Tells apart objects that lay under the same handle one after the other.
    pub fn fingerprint(&self) -> u32 {
        fingerprint((0..self.pages).map(|page| self.hash(page)))
    }

    /// The hash of a page when it was stored.
    pub fn hash(&self, page: usize) -> Hash {
        let bytes = &self.hashes[page * 16..][..16];
        Hash::from_le_bytes(bytes.try_into().expect("16 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nonsense_is_refused() {
        let hashes = |hashes: [Hash; 3]| hashes.into_iter().map(|hash| (hash, None));
        let mut object = vec![0xaa; prefix(3, 0) + 100];
        let first = Format::Of(Kind::of(0).unwrap());
        write(&mut object, first, hashes([1, 2, Hash::MAX]));
        let view = View::read(&object).unwrap();
        assert_eq!((view.format, view.pages, view.payload.len()), (first, 3, 100));
        assert_eq!([view.hash(0), view.hash(1), view.hash(2)], [1, 2, Hash::MAX]);
        assert_eq!(view.fingerprint(), fingerprint([1, 2, Hash::MAX].into_iter()));
        assert_ne!(view.fingerprint(), fingerprint([2, 1, Hash::MAX].into_iter()), "their order counts");
        for (byte, value) in
            [(0, 0), (0, 17), (1, 1 + Kind::END), (1, 255), (2, 8), (3, 1), (4, 1), (7, 1), (1, 0)]
        {
            let mut bad = object.clone();
            bad[byte] = value;
            assert!(View::read(&bad).is_none(), "byte {byte} = {value}");
        }
        for kind in (0..Kind::END).filter_map(Kind::of) {
            write(&mut object, Format::Of(kind), hashes([1, 2, 3]));
            assert_eq!(View::read(&object).unwrap().format, Format::Of(kind));
        }
        assert!(View::read(&object[..prefix(3, 0) - 1]).is_none());
        assert!((0..4).all(|len| View::read(&object[..len]).is_none()));
    }

    /// Of every set of filled pages, every part of the object.
    #[test]
    fn pages_that_a_word_fills_are_put_among_those_with_data() {
        const PAGES: usize = 5;
        for filled in 0..1u16 << PAGES {
            let filled = PageMask::from(filled);
            let page = |index: usize| (index as Hash, filled.contains(index).then_some(!(index as u64)));
            let data: Vec<usize> = (0..PAGES).filter(|page| !filled.contains(*page)).collect();
            let mut object = vec![0xaa; prefix(PAGES, filled.count())];
            write(&mut object, Format::Plain, (0..PAGES).map(page));
            data.iter().for_each(|index| object.extend([*index as u8; PAGE]));
            let view = View::read(&object).unwrap();
            assert_eq!((view.pages, view.data_pages()), (PAGES, data.len()));
            assert!((0..PAGES).all(|index| (view.hash(index), view.word(index)) == page(index)));
            for (first, end) in (0..PAGES).flat_map(|first| (first + 1..=PAGES).map(move |end| (first, end)))
            {
                let wanted = view.data_of(first..end);
                let mut to = vec![0x55; (end - first) * PAGE];
                to[..wanted.len() * PAGE]
                    .copy_from_slice(&view.payload[wanted.start * PAGE..wanted.end * PAGE]);
                view.spread(first, &mut to);
                for (index, bytes) in (first..end).zip(to.chunks_exact(PAGE)) {
                    let word = view.word(index).unwrap_or(u64::from_ne_bytes([index as u8; 8]));
                    assert_eq!(page::same_filled(bytes), Some(word), "{filled:?}: {index} of {first}..{end}");
                }
            }
        }
    }
}
