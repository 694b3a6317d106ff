//! What can be said of a page without compressing it: whether one word fills it, and its hash.

use crate::PAGE;

/// The keyed 128-bit hash of a page.
pub type Hash = u128;

/// Hashes a page. With a seed that the program does not know, two different pages have the same hash with probability
/// 2^-128.
pub fn hash(page: &[u8], seed: u64) -> Hash {
    xxhash_rust::xxh3::xxh3_128_with_seed(page, seed)
}

/// The word that fills a page, if one does.
pub fn same_filled(page: &[u8]) -> Option<u64> {
    let (words, rest) = page.as_chunks::<8>();
    debug_assert!(rest.is_empty() && page.len() == PAGE);
    let first = words[0];
    // The last word first: pages that begin alike mostly end differently. Then 64 bytes at a time, which the compiler
    // turns into wide compares.
    if words[words.len() - 1] != first {
        return None;
    }
    let word = u64::from_le_bytes(first);
    let (lines, _) = words.as_chunks::<8>();
    let same = lines.iter().all(|line| line.iter().fold(0, |d, w| d | (u64::from_le_bytes(*w) ^ word)) == 0);
    same.then_some(word)
}

/// Fills pages with a word.
pub fn fill(pages: &mut [u8], word: u64) {
    if word == 0 {
        pages.fill(0);
        return;
    }
    for chunk in pages.as_chunks_mut::<8>().0 {
        *chunk = word.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_page_of_one_word_is_same_filled() {
        let mut page = [0u8; PAGE];
        assert_eq!(same_filled(&page), Some(0));
        fill(&mut page, 0x0123_4567_89ab_cdef);
        assert_eq!(same_filled(&page), Some(0x0123_4567_89ab_cdef));
        for byte in [0, 1, 63, 64, 2048, PAGE - 9, PAGE - 1] {
            let mut other = page;
            other[byte] ^= 1;
            assert_eq!(same_filled(&other), None, "byte {byte}");
        }
    }

    #[test]
    fn the_seed_changes_the_hash() {
        let page = [7u8; PAGE];
        assert_ne!(hash(&page, 1), hash(&page, 2));
        assert_eq!(hash(&page, 1), hash(&page, 1));
    }
}
