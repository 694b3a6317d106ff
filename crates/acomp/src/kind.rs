//! What reads what: a number for each algorithm, with a dictionary or without, small enough for an object's header.

use crate::compressor::Compressor;
use crate::registry::ALGORITHMS;

/// An algorithm, and whether the user's dictionary goes with it. A context reads the objects of its own kind, whatever
/// their level, and no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(u8);

/// What is added to an algorithm's place in the registry where it has a dictionary.
const WITH_DICTIONARY: u8 = 16;

impl Kind {
    /// All numbers are below this.
    pub const END: u8 = 2 * WITH_DICTIONARY;

    /// That of this number; `None` where no kind has it.
    pub fn of(number: u8) -> Option<Kind> {
        let algorithm = ALGORITHMS.get((number % WITH_DICTIONARY) as usize)?;
        let has_dictionary = number >= WITH_DICTIONARY;
        let is_one = number < Kind::END && (!has_dictionary || algorithm.with_dictionary.is_some());
        is_one.then_some(Kind(number))
    }

    /// Those whose bits are set: a bit's place is a kind's number.
    pub fn all_of(bits: u64) -> impl Iterator<Item = Kind> {
        (0..Kind::END).filter(move |number| bits >> number & 1 != 0).filter_map(Kind::of)
    }

    /// Its bit for [`Kind::all_of`].
    pub fn bit(self) -> u64 {
        1 << self.0
    }

    /// The number, which [`Kind::of`] takes.
    pub fn number(self) -> u8 {
        self.0
    }

    /// The algorithm's name.
    pub fn name(self) -> &'static str {
        self.algorithm().name
    }

    /// The compressor of this kind at this level; `None` where there is no such level. A device is used as usual.
    pub fn at_level(self, level: i32) -> Option<Compressor> {
        let algorithm = self.algorithm();
        let is_level = algorithm.parameter.as_ref().map_or(level == 0, |p| p.accepted.contains(&level));
        is_level.then(|| Compressor::new(algorithm, level, self.0 >= WITH_DICTIONARY))
    }

    /// One of this kind, to read with.
    pub fn reader(self) -> Compressor {
        let algorithm = self.algorithm();
        let level = algorithm.parameter.as_ref().map_or(0, |parameter| parameter.default);
        Compressor::new(algorithm, level, self.0 >= WITH_DICTIONARY)
    }

    fn algorithm(self) -> &'static crate::algorithm::Algorithm {
        ALGORITHMS[(self.0 % WITH_DICTIONARY) as usize]
    }
}

impl Compressor {
    /// What it reads, and what reads what it makes.
    pub fn kind(&self) -> Kind {
        let place = ALGORITHMS.iter().position(|algorithm| algorithm.name == self.name());
        let place = place.expect("it was parsed as one of them") as u8;
        Kind(if self.has_dictionary() { place + WITH_DICTIONARY } else { place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_compressor_has_a_kind_of_one_number_and_nothing_else_is_one() {
        assert!(ALGORITHMS.len() <= WITH_DICTIONARY as usize);
        let mut numbers = Vec::new();
        for algorithm in ALGORITHMS {
            let forms = [algorithm.name.to_string(), format!("{},dict=FILE", algorithm.name)];
            for compressor in forms.iter().filter_map(|form| Compressor::parse(form).ok()) {
                let kind = compressor.kind();
                assert_eq!((Kind::of(kind.number()), kind.name()), (Some(kind), algorithm.name));
                assert_eq!(kind.reader(), compressor);
                assert_eq!(kind.at_level(compressor.level()), Some(compressor));
                assert_eq!(kind.at_level(i32::MAX), None);
                numbers.push(kind.number());
            }
        }
        let all: Vec<u8> = (0..=u8::MAX).filter(|number| Kind::of(*number).is_some()).collect();
        numbers.sort_unstable();
        assert_eq!(all, numbers);
        assert!(all.iter().all(|number| *number < Kind::END));
        let bits = Kind::all_of(u64::MAX).map(|kind| kind.bit()).fold(0, |bits, bit| bits | bit);
        assert_eq!(Kind::all_of(bits).map(Kind::number).collect::<Vec<_>>(), all);
        assert_eq!(Kind::all_of(0).count(), 0);
        let [one, other] = ["zstd:3", "zstd:-7"].map(|text| Compressor::parse(text).unwrap().kind());
        assert_eq!(one, other);
    }
}
