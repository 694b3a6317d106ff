//! A compressor that is tried, with its dictionary.
//!
//! One that is trained from the memory that is tried would be judged by what it was made of. So where one is asked for the sample is cut in two: it is trained
//! from one half, and all compressors are measured on the other.

use super::sample::{BLOCK_BYTES, PAGE};
use acomp::train::Trainer;
use acomp::{Compressor, Source, TRAINED_BYTES};
use std::fmt;

/// Samples of a dictionary that is trained, in bytes: as many as an engine takes.
pub const SAMPLES_BYTES: u64 = 1 << 20;

/// The least number of blocks that a sample is cut into, as far as it has so many pages: then either half is of all of it.
const BLOCKS: u64 = 32;

/// Who is tried.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The compressor.
    pub compressor: Compressor,
    /// Where its dictionary comes from: `auto` or the file; empty without one.
    pub origin: String,
    /// That dictionary. Without one nothing is compressed with it, whatever the compressor has room for.
    pub dictionary: Vec<u8>,
}

impl Candidate {
    /// Without a dictionary yet.
    pub fn new(compressor: Compressor) -> Candidate {
        let origin = if compressor.source() == Source::Auto { "auto" } else { "" };
        Candidate { compressor, origin: origin.to_string(), dictionary: Vec::new() }
    }

    /// True where the memory that is tried makes its dictionary.
    pub fn is_trained(&self) -> bool {
        self.compressor.source() == Source::Auto
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        (self.compressor, &self.origin) == (other.compressor, &other.origin)
    }
}

/// As a table has it: `zstd:1,dict=auto`, and of a file its name without its folder.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.compressor.to_string();
        match (self.compressor.source(), text.split_once("dict=")) {
            (Source::File, Some((before, _))) => {
                let file = self.origin.rsplit('/').next().unwrap_or_default();
                write!(f, "{before}dict={}", file.replace(char::is_control, "?"))
            }
            _ => f.write_str(&text),
        }
    }
}

/// Cuts a sample in two, block by block in turn: what dictionaries are trained from, and what is measured. A block is as long as the longest unit
/// where there are enough of them.
pub fn halve(pieces: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
    let block = (bytes / BLOCKS / PAGE * PAGE).clamp(PAGE, BLOCK_BYTES);
    let blocks = pieces.iter().flat_map(|piece| piece.chunks(block as usize)).map(<[u8]>::to_vec);
    let (mut measured, mut trained) = (Vec::new(), Vec::new());
    for (number, block) in blocks.enumerate() {
        if number % 2 == 0 { &mut measured } else { &mut trained }.push(block);
    }
    (trained, measured)
}

/// Trains a dictionary from single pages, spread over the pieces, as an engine does; and says from how many bytes. It is empty where pages have nothing in common.
pub fn train(pieces: &[Vec<u8>]) -> Result<(Vec<u8>, u64), String> {
    let pages: Vec<&[u8]> = pieces.iter().flat_map(|piece| piece.chunks_exact(PAGE as usize)).collect();
    let most = (SAMPLES_BYTES / PAGE) as usize;
    let count = pages.len().min(most);
    let samples: Vec<u8> = (0..count).flat_map(|at| pages[at * pages.len() / count]).copied().collect();
    let bytes = samples.len() as u64;
    if samples.is_empty() {
        return Ok((Vec::new(), 0));
    }
    let trainer = Trainer::new(samples, PAGE as usize, TRAINED_BYTES);
    let mut trainer = trainer.ok_or("no memory to train a dictionary in")?;
    while trainer.step() {}
    Ok((trainer.finish().0, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_is_in_both_halves_and_none_is_lost() {
        for lengths in [vec![1usize], vec![100], vec![3, 1, 7], vec![512, 512, 40], vec![20_000]] {
            // Every page has a number of its own.
            let mut number = 0u32;
            let pieces: Vec<Vec<u8>> = lengths
                .iter()
                .map(|pages| {
                    (0..pages * 1024)
                        .flat_map(|word| {
                            number += u32::from(word % 1024 == 0);
                            number.to_le_bytes()
                        })
                        .collect()
                })
                .collect();
            let numbers = |pieces: &[Vec<u8>]| -> Vec<u32> {
                let pages = pieces.iter().flat_map(|piece| piece.chunks(4096));
                pages.map(|page| u32::from_le_bytes(page[..4].try_into().unwrap())).collect()
            };
            let (trained, measured) = halve(pieces);
            let (mut trained, measured) = (numbers(&trained), numbers(&measured));
            assert!(measured.len() >= trained.len() && (number == 1 || !trained.is_empty()));
            assert!(measured.len() as u32 * 5 <= number * 4 || number < 20, "{} of {number}", measured.len());
            trained.extend(&measured);
            trained.sort_unstable();
            assert_eq!(trained, (1..=number).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_pages_have_in_common_is_trained() {
        let text = b"a line that stands in every page, 0123456789".repeat(4);
        let pieces: Vec<Vec<u8>> = (0..40u64)
            .map(|seed| {
                let next =
                    |n: &u64| Some(n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
                let noise = std::iter::successors(Some(seed), next).skip(1).map(|n| (n >> 33) as u8);
                text.iter().copied().chain(noise).take(4096).collect()
            })
            .collect();
        let (dictionary, bytes) = train(&pieces).unwrap();
        assert!(dictionary.windows(40).any(|part| part == &text[..40]) && bytes == 40 * 4096);
        assert_eq!(train(&[]).unwrap(), (Vec::new(), 0));
        assert_eq!(train(&[vec![1; 100]]).unwrap(), (Vec::new(), 0));
    }

    #[test]
    fn names_are_short_and_tell_files_apart() {
        let named = |text: &str, origin: &str| {
            let compressor = Compressor::parse(text).unwrap();
            Candidate { origin: origin.to_string(), ..Candidate::new(compressor) }
        };
        assert_eq!(named("zstd:3,dict=x", "/tmp/a/one.dict").to_string(), "zstd:3,dict=one.dict");
        assert_eq!(
            Candidate::new(Compressor::parse("zstd,dict=auto").unwrap()).to_string(),
            "zstd:1,dict=auto"
        );
        assert_eq!(
            Candidate::new(Compressor::parse("deflate-iaa").unwrap()).to_string(),
            "deflate-iaa:dynamic"
        );
        assert_ne!(named("zstd:3,dict=x", "one"), named("zstd:3,dict=x", "two"));
    }
}
