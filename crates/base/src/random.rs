//! Numbers from a seed.

use core::ops::Range;

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to choose with. The value is the seed; the same seed
/// has the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number, all 64 bits of it.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }

    /// A number of a range.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.word() % (range.end - range.start)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of a slice.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Fills a buffer with bytes that nothing compresses.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of seed 1234567, as the authors' own program prints them.
    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        let mut random = Random(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(expected.map(|_| random.word()), expected);
    }

    #[test]
    fn choices_are_within_their_bounds_and_reach_all_of_them() {
        let mut random = Random(1);
        let (mut below, mut within, mut picked) = ([0; 5], [0; 5], [0; 5]);
        for _ in 0..1000 {
            below[random.below(5)] += 1;
            within[random.within(10..15) as usize - 10] += 1;
            picked[*random.pick(&[0, 1, 2, 3, 4])] += 1;
        }
        for counts in [below, within, picked] {
            assert!(counts.iter().all(|count| (100..300).contains(count)), "{counts:?}");
        }
        let hits = (0..4000).filter(|_| random.one_in(40)).count();
        assert!((50..150).contains(&hits), "{hits}");
    }

    #[test]
    fn a_buffer_of_any_length_is_filled() {
        for len in 0..20 {
            let (mut buffer, mut word) = ([0; 20], Random(7));
            Random(7).fill(&mut buffer[..len]);
            let expected: Vec<u8> = (0..3).flat_map(|_| word.word().to_le_bytes()).take(len).collect();
            assert_eq!((&buffer[..len], &buffer[len..]), (&expected[..], &[0; 20][len..]));
        }
    }
}
