//! Dictionaries made from samples: the segments that most samples have something in common with.
//!
//! ```text
//!   samples ── count ──> in how many samples does each run of 8 bytes occur?       (by a hash of it)
//!           ── choose ─> of each part of the samples the segment of 1 KiB whose runs occur in most, each counted once;
//!                        what is in it counts nothing from then on ──> the dictionary, filled from its end
//! ```
//!
//! This is the idea of COVER (Liao, Petri, Moffat and Wirth, 2016), with a table of hashes instead of an array of suffixes. What is made is raw content,
//! without tables of codes: on pages that compress at all these cost more ratio than they gain (docs/bench/2026-11-23-dictionaries.md). The same samples
//! make the same dictionary.
//!
//! The work is done in steps of less than a millisecond, so that whoever does it can do something else in between.

use alloc::vec::Vec;

/// Bytes of a run.
const RUN_BYTES: usize = 8;

/// Bytes of a segment; of 64 to 1,024 the longest was best, by 1 %.
const SEGMENT_BYTES: usize = 1 << 10;

/// How many hashes are told apart.
const TABLE_BITS: u32 = 18;

/// Samples that are counted in a step.
const STEP_SAMPLES: usize = 4;

/// What is known of the runs of one hash.
#[derive(Clone, Copy, Default)]
struct Run {
    /// How many samples have it; 0 once it is in the dictionary.
    samples: u16,
    /// While counting, the last sample that had it, from 1 on; while choosing, how often it is in the segment looked at.
    mark: u16,
}

impl Run {
    /// What it is worth to have it in the dictionary: a sample that has it alone gains nothing.
    fn worth(self) -> u64 {
        u64::from(self.samples.saturating_sub(1))
    }
}

/// A dictionary in the making.
pub struct Trainer {
    samples: Vec<u8>,
    sample_bytes: usize,
    runs: Vec<Run>,
    /// The next sample to be counted, then the next part to choose from.
    next: usize,
    is_counted: bool,
    dictionary: Vec<u8>,
    /// The dictionary has this many bytes yet to be filled, from its beginning.
    left: usize,
}

impl Trainer {
    /// Begins a dictionary of at most `dictionary_bytes` for units that are like `samples`, each of them `sample_bytes` long. None where there is no memory.
    ///
    /// # Panics
    ///
    /// With 65,536 samples or more.
    pub fn new(samples: Vec<u8>, sample_bytes: usize, dictionary_bytes: usize) -> Option<Trainer> {
        assert!(samples.len() / sample_bytes < u16::MAX.into(), "a mark has 16 bits");
        let runs = filled(1 << TABLE_BITS)?;
        let dictionary = filled(dictionary_bytes)?;
        let left = dictionary_bytes;
        Some(Trainer { samples, sample_bytes, runs, next: 0, is_counted: false, dictionary, left })
    }

    /// Does a little of the work; false when all is done.
    pub fn step(&mut self) -> bool {
        if !self.is_counted { self.count() } else { self.choose() }
    }

    /// The dictionary, as far as it was filled; and the samples.
    pub fn finish(mut self) -> (Vec<u8>, Vec<u8>) {
        self.dictionary.drain(..self.left);
        (self.dictionary, self.samples)
    }

    fn count(&mut self) -> bool {
        let samples = self.samples.chunks(self.sample_bytes).enumerate().skip(self.next).take(STEP_SAMPLES);
        for (number, sample) in samples {
            let mark = number as u16 + 1;
            for at in hashes(sample) {
                let run = &mut self.runs[at];
                run.samples += u16::from(run.mark != mark);
                run.mark = mark;
            }
            self.next = number + 1;
        }
        if self.next * self.sample_bytes >= self.samples.len() {
            self.runs.iter_mut().for_each(|run| run.mark = 0);
            (self.is_counted, self.next) = (true, 0);
        }
        true
    }

    /// Takes the best segment of the next part, of which there are as many as segments make a dictionary. Each is asked twice: what was cut off
    /// the first ones leaves room.
    fn choose(&mut self) -> bool {
        let parts = (self.dictionary.len() / SEGMENT_BYTES).clamp(1, self.samples.len() / SEGMENT_BYTES + 1);
        if self.left == 0 || self.next == 2 * parts {
            return false;
        }
        let part_bytes = self.samples.len().div_ceil(parts);
        let from = (self.next % parts * part_bytes).min(self.samples.len());
        let part = &self.samples[from..(from + part_bytes).min(self.samples.len())];
        self.next += 1;
        let segment = cut(best_segment(part, &mut self.runs), &self.runs);
        for at in hashes(segment) {
            self.runs[at].samples = 0;
        }
        let bytes = segment.len().min(self.left);
        self.dictionary[self.left - bytes..self.left].copy_from_slice(&segment[segment.len() - bytes..]);
        self.left -= bytes;
        true
    }
}

/// So many of the type's default; none where there is no memory.
fn filled<T: Clone + Default>(count: usize) -> Option<Vec<T>> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).ok()?;
    all.resize(count, T::default());
    Some(all)
}

/// Where the runs of these bytes are in the table, in order.
fn hashes(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    bytes.windows(RUN_BYTES).map(hash)
}

fn hash(run: &[u8]) -> usize {
    let word = u64::from_le_bytes(run.try_into().expect("a run's length"));
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - TABLE_BITS)) as usize
}

/// The segment whose runs are worth most together; the marks are 0 before and after.
fn best_segment<'a>(part: &'a [u8], runs: &mut [Run]) -> &'a [u8] {
    let whole = SEGMENT_BYTES.min(part.len());
    let (mut worth, mut most, mut best) = (0, 0, 0..0);
    let mut leaving = hashes(part);
    for (at, hash) in hashes(part).enumerate() {
        let run = &mut runs[hash];
        worth += if run.mark == 0 { run.worth() } else { 0 };
        run.mark += 1;
        let end = at + RUN_BYTES;
        if end > whole
            && let Some(hash) = leaving.next()
        {
            let run = &mut runs[hash];
            run.mark -= 1;
            worth -= if run.mark == 0 { run.worth() } else { 0 };
        }
        if worth > most {
            (most, best) = (worth, end.saturating_sub(whole)..end);
        }
    }
    for hash in leaving {
        runs[hash].mark = 0;
    }
    &part[best]
}

/// A segment without what is worth nothing at its ends.
fn cut<'a>(segment: &'a [u8], runs: &[Run]) -> &'a [u8] {
    let is_worth = |hash: usize| runs[hash].worth() > 0;
    let Some(first) = hashes(segment).position(is_worth) else { return &[] };
    let last = segment.windows(RUN_BYTES).rposition(|run| is_worth(hash(run))).unwrap_or(first);
    &segment[first..last + RUN_BYTES]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn train(samples: &[u8], sample_bytes: usize, bytes: usize) -> Vec<u8> {
        let mut trainer = Trainer::new(samples.to_vec(), sample_bytes, bytes).unwrap();
        while trainer.step() {}
        let (dictionary, back) = trainer.finish();
        assert!(back == samples);
        dictionary
    }

    /// Bytes that do not repeat.
    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let next = |n: &u64| Some(n.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
        core::iter::successors(Some(seed), next).skip(1).map(|n| (n >> 33) as u8).take(len).collect()
    }

    #[test]
    fn what_many_samples_have_in_common_is_in_it_and_the_same_again() {
        let common = noise(1, 600);
        let mut samples = Vec::new();
        for number in 0..64 {
            let mut sample = noise(100 + number, 4096);
            let at = 100 * number as usize % 3000;
            sample[at..at + 600].copy_from_slice(&common);
            samples.extend(sample);
        }
        let dictionary = train(&samples, 4096, 16 << 10);
        assert!(dictionary.windows(600).any(|bytes| bytes == common));
        assert_eq!(dictionary, train(&samples, 4096, 16 << 10), "the same again");
    }

    #[test]
    fn samples_without_anything_in_common_make_none() {
        assert!(train(&[], 4096, 16 << 10).is_empty());
        assert!(train(&[1, 2, 3], 4096, 16 << 10).is_empty());
        assert!(train(&[7; 4096], 4096, 16 << 10).is_empty(), "one page alone");
    }

    #[test]
    fn it_is_no_longer_than_it_may_be() {
        let page: Vec<u8> = noise(9, 4096);
        let samples: Vec<u8> = page.iter().cycle().take(40 * 4096).copied().collect();
        for bytes in [1, 100, 1024, 3000, 16 << 10] {
            let dictionary = train(&samples, 4096, bytes);
            assert!(dictionary.len() <= bytes && !dictionary.is_empty(), "{} of {bytes}", dictionary.len());
        }
    }
}
