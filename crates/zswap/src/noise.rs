//! Memory that looks like noise, and is better kept as it is than compressed in vain: random, encrypted or compressed
//! already.
//!
//! The look is at bytes alone, 2 KiB of 64: how evenly the 256 values come. In noise all come alike, and in whatever an
//! entropy coder could shorten by a thirty-second some come more often: text, numbers, pointers, and also base64, which
//! has 64 values only. What it cannot see is noise that comes twice. Pages that do are known by their hashes; for the
//! rest one of [`TRY_EVERY`] guesses is tried all the same, and after one that was wrong all are, until [`TRUST_AFTER`]
//! in a row were right.

use crate::PAGE;
use crate::page::Hash;

/// Of so many guesses one is tried all the same.
pub const TRY_EVERY: u32 = 16;

/// So many that were tried must have been right in a row before one is believed.
pub const TRUST_AFTER: u32 = 8;

/// Bytes that are looked at together.
const STRETCH: usize = 32;

/// Stretches for each page, and the fewest and the most of a unit: of fewer bytes the values of noise do not come
/// evenly yet.
const STRETCHES_A_PAGE: usize = 4;
const STRETCHES: [usize; 2] = [16, 64];

/// True when the bytes look like noise. `bytes` is whole pages.
///
/// Of n bytes of noise, n(n-1)/512 pairs are alike, give or take a share of 23/n: a 90th for the 2 KiB of 64, a 22nd
/// for the 512 bytes of a page. What saves a thirty-second by its values alone has a third more (a quarter of a bit of
/// 8), and most memory so many more that 64 bytes tell.
pub fn looks_like_noise(bytes: &[u8]) -> bool {
    let stretches = (bytes.len() / PAGE * STRETCHES_A_PAGE).clamp(STRETCHES[0], STRETCHES[1]);
    let step = bytes.len() / stretches;
    if step < STRETCH {
        return false;
    }
    let mut counts = [0u16; 256];
    // Pairs that are alike, and bytes that were looked at.
    let (mut pairs, mut n) = (0u32, 0u32);
    for index in 0..stretches {
        // Not always the same place of a page, where headers are.
        let within = (index * 5 * STRETCH) % (step - STRETCH + 1);
        for byte in &bytes[index * step + within..][..STRETCH] {
            let count = &mut counts[*byte as usize];
            pairs += u32::from(*count);
            *count += 1;
        }
        n += STRETCH as u32;
        // Twice what noise has, and some to spare while there are few.
        if pairs > n * (n - 1) / 256 + 16 {
            return false;
        }
    }
    // At most 1.05 + 50/n times what noise has: 1.07 for 64 KiB, 1.15 for a page.
    let (pairs, n) = (u64::from(pairs), u64::from(n));
    pairs * 512 * 100 <= (n - 1) * (105 * n + 5000)
}

/// What has become of guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guesses {
    /// Objects that were kept as they are without trying.
    pub believed: u8,
    /// Objects that looked like noise, and were tried all the same.
    pub tried: u8,
    /// Those of the tried ones that shrank.
    pub wrong: u8,
}

/// Whether guesses are worth believing: of one thread, as it goes from unit to unit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trust {
    /// Guesses that were tried and right, in a row.
    right: u32,
    /// Guesses since one was tried.
    since: u32,
}

impl Trust {
    /// Something looks like noise: true when that is to be believed, false when it is to be tried.
    pub fn believes(&mut self) -> bool {
        self.since += 1;
        self.right >= TRUST_AFTER && self.since < TRY_EVERY
    }

    /// A guess was tried, and was right or not.
    pub fn tried(&mut self, was_right: bool) {
        self.since = 0;
        self.right = if was_right { self.right.saturating_add(1) } else { 0 };
    }
}

/// True when two of the pages are the same: noise that comes twice does shrink.
pub fn any_twice(hashes: impl Iterator<Item = Hash> + Clone) -> bool {
    let mut rest = hashes;
    while let Some(hash) = rest.next() {
        if rest.clone().any(|other| other == hash) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use base::Random;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut noise = alloc::vec![0; len];
        Random(seed).fill(&mut noise);
        noise
    }

    #[test]
    fn noise_of_every_length_is_recognised() {
        let mut missed = [0; 16];
        for pages in 1..=16 {
            for seed in 0..300 {
                missed[pages - 1] += !looks_like_noise(&noise(pages * PAGE, seed * 77)) as u32;
            }
        }
        // A page that is taken for something else is compressed in vain, no more.
        assert!(missed[0] < 6 && missed[3..].iter().all(|missed| *missed < 2), "{missed:?}");
    }

    #[test]
    fn what_an_entropy_coder_shortens_is_no_noise() {
        for pages in [1, 2, 16] {
            let noise = noise(pages * PAGE, 5);
            let base64: Vec<u8> = noise.iter().map(|byte| b'0' + (byte & 63)).collect();
            let seven_bits: Vec<u8> = noise.iter().map(|byte| byte & 127).collect();
            // As doubles have: two bytes of eight nearly alike.
            let numbers: Vec<u8> =
                noise.iter().enumerate().map(|(at, b)| if at % 8 >= 6 { 0x3f } else { *b }).collect();
            // A quarter of it zeros, in one piece.
            let mut partly = noise.clone();
            partly[pages * PAGE / 2..pages * PAGE * 3 / 4].fill(0);
            for memory in [base64, seven_bits, numbers, partly] {
                assert!(!looks_like_noise(&memory), "{pages} pages: {:?}", &memory[..16]);
            }
        }
    }

    #[test]
    fn a_guess_is_believed_after_some_were_right_and_one_of_sixteen_is_tried() {
        let mut trust = Trust::default();
        for _ in 0..TRUST_AFTER {
            assert!(!trust.believes());
            trust.tried(true);
        }
        for _ in 0..3 {
            for _ in 1..TRY_EVERY {
                assert!(trust.believes());
            }
            assert!(!trust.believes());
            trust.tried(true);
        }
        // A wrong one: all are tried until as many were right again.
        assert!(trust.believes());
        trust.tried(false);
        for _ in 0..TRUST_AFTER {
            assert!(!trust.believes());
            trust.tried(true);
        }
        assert!(trust.believes());
    }

    #[test]
    fn pages_that_come_twice_are_found() {
        let twice = |hashes: &[Hash]| any_twice(hashes.iter().copied());
        assert!(!twice(&[]) && !twice(&[1]) && !twice(&[1, 2, 3]));
        assert!(twice(&[1, 2, 1]) && twice(&[1, 2, 2]));
    }
}
