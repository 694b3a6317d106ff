//! The layout of an object in the pool, all little endian:
//!
//! ```text
//!   0      1        2          8                   8 + 16 n
//!   [ n  | format | zeros, 6 | hash of each page | payload ]
//! ```
//!
//! `n` is the number of pages, 1 to 16; format 0 is the pages as they are, 1 the compressor's output, or the dense
//! one's of two, and 2 the fast one's.

use crate::page::Hash;
use crate::{PAGE, WINDOW_PAGES};

/// How the payload is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The pages as they are: they did not shrink.
    Plain = 0,
    /// The compressor's output; of two the dense one's.
    Compressed = 1,
    /// The fast one's of two.
    Fast = 2,
}

const HEADER: usize = 8;
const ZEROS: core::ops::Range<usize> = 2..HEADER;

/// Bytes before the payload of an object of `pages` pages.
pub const fn prefix(pages: usize) -> usize {
    HEADER + 16 * pages
}

/// Writes all but the payload into the first `prefix(hashes.len())` bytes.
pub fn write(object: &mut [u8], format: Format, hashes: impl ExactSizeIterator<Item = Hash>) {
    object[0] = hashes.len() as u8;
    object[1] = format as u8;
    object[ZEROS].fill(0);
    for (slot, hash) in object[HEADER..].chunks_exact_mut(16).zip(hashes) {
        slot.copy_from_slice(&hash.to_le_bytes());
    }
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
    hashes: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads the header; `None` when it is not one.
    pub fn read(object: &'a [u8]) -> Option<View<'a>> {
        let pages = *object.first()? as usize;
        let format = match object.get(1)? {
            0 => Format::Plain,
            1 => Format::Compressed,
            2 => Format::Fast,
            _ => return None,
        };
        if !(1..=WINDOW_PAGES).contains(&pages) || object.len() < prefix(pages) {
            return None;
        }
        let (head, payload) = object.split_at(prefix(pages));
        let fits = format != Format::Plain || payload.len() == pages * PAGE;
        let is_sound = head[ZEROS].iter().all(|byte| *byte == 0) && fits;
        is_sound.then_some(View { format, pages, hashes: &head[HEADER..], payload })
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
        let mut object = vec![0xaa; prefix(3) + 100];
        write(&mut object, Format::Compressed, [1, 2, Hash::MAX].into_iter());
        let view = View::read(&object).unwrap();
        assert_eq!((view.format, view.pages, view.payload.len()), (Format::Compressed, 3, 100));
        assert_eq!([view.hash(0), view.hash(1), view.hash(2)], [1, 2, Hash::MAX]);
        assert_eq!(view.fingerprint(), fingerprint([1, 2, Hash::MAX].into_iter()));
        assert_ne!(view.fingerprint(), fingerprint([2, 1, Hash::MAX].into_iter()), "their order counts");
        for (byte, value) in [(0, 0), (0, 17), (1, 3), (2, 1), (7, 1), (1, 0)] {
            let mut bad = object.clone();
            bad[byte] = value;
            assert!(View::read(&bad).is_none(), "byte {byte} = {value}");
        }
        write(&mut object, Format::Fast, [1, 2, 3].into_iter());
        assert_eq!(View::read(&object).unwrap().format, Format::Fast);
        assert!(View::read(&object[..prefix(3) - 1]).is_none());
        assert!(View::read(&[]).is_none());
    }
}
