//! What the user has pages compressed with: a compressor for each tier.
//!
//! A *fast* object has one page, which misses alone and often: it is to come back soon. A *dense* object has the pages
//! of a window, which is cold as a whole: it is to be small. So what each compressor costs follows the use of the
//! memory, and no budget is needed.

use acomp::{Compressor, Kind, ParseError};
use core::fmt;

/// Which of the two an object is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    /// A page by itself.
    Fast,
    /// Pages of a window.
    #[default]
    Dense,
}

impl Tier {
    /// That of objects which have at most so many pages each.
    pub fn of(unit: usize) -> Tier {
        if unit == 1 { Tier::Fast } else { Tier::Dense }
    }
}

/// What makes the objects of each tier; it may be the same for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What makes fast objects.
    pub fast: Compressor,
    /// What makes dense objects.
    pub dense: Compressor,
}

/// What comes before the name of the dictionary's file.
const DICTIONARY: &str = "dict=";

/// Bits of a compressor's half of a word that say its kind, counted from 1. The others are its level.
const KIND_BITS: u32 = 8;

impl Choice {
    /// How two compressors are named, for help texts and errors.
    pub const FORM: &str = "two as FAST,DENSE";

    /// Reads what [`Compressor::parse`] does, for both tiers; or two of that, with a comma between them. A comma stands
    /// there where the name of an algorithm follows it, and else before a parameter.
    ///
    /// # Errors
    ///
    /// It is neither, or two that one run cannot have.
    pub fn parse(text: &str) -> Result<Choice, ChoiceError> {
        let compressor = |text| Compressor::parse(text).map_err(ChoiceError::Compressor);
        let Some((first, second)) = split(text) else { return compressor(text).map(Choice::from) };
        if split(second).is_some() {
            return Err(ChoiceError::ThreeNames);
        }
        let choice = Choice { fast: compressor(first)?, dense: compressor(second)? };
        let [one, other] = [first, second].map(Compressor::dictionary_file);
        if choice.fast.has_dictionary() && choice.dense.has_dictionary() && one != other {
            return Err(ChoiceError::TwoDictionaries);
        }
        if choice.fast.is_for_device() && choice.dense.is_for_device() && choice.fast != choice.dense {
            return Err(ChoiceError::TwoDevices);
        }
        Ok(choice)
    }

    /// The file that a text names of which [`Choice::parse`] says that it has a dictionary.
    pub fn dictionary_file(text: &str) -> Option<&str> {
        let (first, second) = split(text).unwrap_or((text, ""));
        [first, second].into_iter().find_map(Compressor::dictionary_file)
    }

    /// In one word, for who reads it while another writes it: never 0. `None` where either is for a device, whose
    /// parameters have no room in it.
    pub fn word(&self) -> Option<u64> {
        let Choice { fast, dense } = self;
        self.device().is_none().then(|| u64::from(half(fast)) << 32 | u64::from(half(dense)))
    }

    /// That of a word; `None` where it is none.
    pub fn of_word(word: u64) -> Option<Choice> {
        Some(Choice { fast: of_half((word >> 32) as u32)?, dense: of_half(word as u32)? })
    }

    /// What makes new objects in a run that has begun with `first`, as [`Choice::parse`] reads it, and where this word
    /// was set since: 0 is none.
    pub fn now(first: &str, word: u64) -> Option<Choice> {
        Choice::of_word(word).or_else(|| Choice::parse(first).ok())
    }

    /// What makes the objects of a tier.
    pub fn of(&self, tier: Tier) -> Compressor {
        match tier {
            Tier::Fast => self.fast,
            Tier::Dense => self.dense,
        }
    }

    /// The one that has a dictionary from a file, if either has.
    pub fn with_dictionary(&self) -> Option<Compressor> {
        [self.dense, self.fast].into_iter().find(Compressor::has_dictionary)
    }

    /// The one that is for a device, if either is.
    pub fn device(&self) -> Option<Compressor> {
        [self.dense, self.fast].into_iter().find(Compressor::is_for_device)
    }

    /// What makes objects by this choice.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        [self.fast, self.dense].into_iter().map(|compressor| compressor.kind())
    }
}

/// What comes before and behind the comma between two compressors, if there is one.
fn split(text: &str) -> Option<(&str, &str)> {
    let mut commas = text.match_indices(',').map(|(at, _)| (&text[..at], &text[at + 1..]));
    commas.find(|(_, behind)| {
        let name = behind.split([':', ',']).next();
        Compressor::ALL.iter().any(|algorithm| Some(algorithm.name) == name)
    })
}

/// A compressor's half of a word.
fn half(compressor: &Compressor) -> u32 {
    (compressor.level() as u32) << KIND_BITS | u32::from(1 + compressor.kind().number())
}

fn of_half(half: u32) -> Option<Compressor> {
    let kind = Kind::of((half as u8).checked_sub(1)?)?;
    let compressor = kind.at_level(half as i32 >> KIND_BITS)?;
    (!compressor.is_for_device()).then_some(compressor)
}

impl From<Compressor> for Choice {
    fn from(both: Compressor) -> Choice {
        Choice { fast: both, dense: both }
    }
}

/// Prints what [`Choice::parse`] reads back: one name where both are the same.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice { fast, dense } = self;
        if fast == dense { dense.fmt(f) } else { write!(f, "{fast},{dense}") }
    }
}

/// The text names no compressor, nor two that one run can have. It prints as one line that says what is accepted.
#[derive(Clone, Copy, Debug)]
pub enum ChoiceError {
    /// One of them is none.
    Compressor(ParseError),
    /// There are more than two.
    ThreeNames,
    /// Each has a dictionary, and they are of different files.
    TwoDictionaries,
    /// Both are for a device, and would use it in different ways.
    TwoDevices,
}

impl fmt::Display for ChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = Choice::FORM;
        match self {
            ChoiceError::Compressor(error @ ParseError::Level(_)) => error.fmt(f),
            ChoiceError::Compressor(error) => write!(f, "{error}, or {form}"),
            ChoiceError::ThreeNames => write!(f, "more than two compressors: accepted is one, or {form}"),
            ChoiceError::TwoDictionaries => {
                write!(f, "two dictionaries: accepted is one {DICTIONARY}FILE, for one compressor or both")
            }
            ChoiceError::TwoDevices => f.write_str("two ways to use a device: accepted is one, for both"),
        }
    }
}

impl core::error::Error for ChoiceError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    fn choice(text: &str) -> Choice {
        Choice::parse(text).unwrap()
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for (text, printed) in [
            ("lz4", "lz4:1"),
            ("lz4,zstd", "lz4:1,zstd:1"),
            ("lz4,lz4:1", "lz4:1"),
            ("zstd:-3,zstd:3", "zstd:-3,zstd:3"),
            ("lzo-rle,842", "lzo-rle,842"),
            ("zstd,dict=x", "zstd:1,dict=FILE"),
            ("lz4,zstd:3,dict=a,b", "lz4:1,zstd:3,dict=FILE"),
            ("zstd,dict=a,b,lz4", "zstd:1,dict=FILE,lz4:1"),
            ("zstd,dict=a,zstd:9,dict=a", "zstd:1,dict=FILE,zstd:9,dict=FILE"),
            ("deflate-iaa:fixed,verify_compress=1", "deflate-iaa:fixed,verify_compress=1"),
            ("lz4,deflate-iaa,timeout_ms=7", "lz4:1,deflate-iaa:dynamic,timeout_ms=7"),
            ("deflate-iaa,timeout_ms=7,zstd:3", "deflate-iaa:dynamic,timeout_ms=7,zstd:3"),
        ] {
            let choice = choice(text);
            assert_eq!(choice.to_string(), printed);
            assert_eq!(Choice::parse(printed).unwrap(), choice);
        }
        let Choice { fast, dense } = choice("lz4,zstd:3");
        assert_eq!((fast.to_string(), dense.to_string()), ("lz4:1".into(), "zstd:3".into()));
        for (text, file) in [
            ("zstd", None),
            ("lz4,zstd", None),
            ("zstd,dict=lz4,x", Some("lz4,x")),
            ("lz4,zstd,dict=x", Some("x")),
            ("zstd:3,dict=/a,b,lz4:2", Some("/a,b")),
        ] {
            assert_eq!(Choice::dictionary_file(text), file, "{text}");
        }
    }

    #[test]
    fn a_tier_has_its_compressor() {
        let two = choice("lz4,zstd:3");
        assert_eq!([1, 2, 16].map(Tier::of), [Tier::Fast, Tier::Dense, Tier::Dense]);
        assert_eq!([Tier::Fast, Tier::Dense].map(|tier| two.of(tier)), [two.fast, two.dense]);
        let kinds = |text| choice(text).kinds().map(Kind::name).collect::<Vec<_>>();
        assert_eq!((kinds("lz4,zstd:3"), kinds("842")), (["lz4", "zstd"].into(), ["842", "842"].into()));
        let device = |text| choice(text).device().map(|device| device.name());
        assert_eq!(
            ["deflate-iaa,lz4", "lz4,deflate-iaa", "lz4,zstd"].map(device).map(|name| name.is_some()),
            [true, true, false]
        );
        let dictionary = |text| choice(text).with_dictionary().is_some();
        assert_eq!(["zstd,dict=x,lz4", "lz4,zstd,dict=x", "lz4,zstd"].map(dictionary), [true, true, false]);
    }

    #[test]
    fn every_choice_but_for_devices_has_a_word_and_no_other_word_is_one() {
        let names = [
            "lz4",
            "lz4:65537",
            "lz4hc:12",
            "zstd:-7",
            "zstd:22",
            "zstd,dict=x",
            "zstd:-1,dict=x",
            "deflate:9",
            "lzo",
            "lzo-rle",
            "842",
        ];
        let mut words = Vec::new();
        for fast in names {
            for dense in names {
                let choice = choice(&[fast, ",", dense].concat());
                let word = choice.word().unwrap();
                assert!(word != 0 && !words.contains(&word), "{choice}");
                assert_eq!((Choice::of_word(word), Choice::now("lz4", word)), (Some(choice), Some(choice)));
                words.push(word);
            }
        }
        for text in
            ["deflate-iaa", "deflate-iaa:fixed,verify_compress=1", "lz4,deflate-iaa", "deflate-iaa,lz4"]
        {
            let choice = choice(text);
            assert_eq!((choice.word(), Choice::now(text, 0)), (None, Some(choice)));
        }
        let device = u32::from(1 + choice("deflate-iaa").dense.kind().number());
        let good = half(&choice("lz4").dense);
        for bad in [0, device, 17, 18, 254, 255, 256, 65538 << 8 | 1, 1 << 8 | 7, 23 << 8 | 3, u32::MAX] {
            assert_eq!(of_half(bad), None, "{bad:#x}");
            for word in [
                u64::from(bad),
                u64::from(bad) << 32 | u64::from(good),
                u64::from(good) << 32 | u64::from(bad),
            ] {
                assert_eq!(Choice::of_word(word), None, "{word:#x}");
            }
        }
        assert_eq!(of_half(good), Some(choice("lz4").dense));
    }

    #[test]
    fn nonsense_gets_one_line_with_what_is_accepted() {
        let line = |text| Choice::parse(text).unwrap_err().to_string();
        let form = [", or ", Choice::FORM].concat();
        for text in ["", "auto", "LZ4", "gzip", "gzip,lz4", ",lz4"] {
            let line = line(text);
            assert!(line.starts_with("no such compressor: accepted are lz4[:"), "{text}: {line}");
            assert!(line.ends_with(&form), "{text}: {line}");
        }
        for (text, name) in
            [("zstd,gzip", "zstd"), ("lz4,zstd,x=1", "zstd"), ("lz4,", "lz4"), ("lz4, zstd", "lz4")]
        {
            let line = line(text);
            let begin: String = ["no such parameter of ", name, ": accepted is ", name].concat();
            assert!(line.starts_with(&begin) && line.ends_with(&form), "{text}: {line}");
        }
        for text in ["lz4:0", "lz4:0,zstd", "zstd,lz4:0"] {
            assert!(
                line(text).starts_with("no such ACCELERATION of lz4: accepted is lz4["),
                "{}",
                line(text)
            );
        }
        for (text, expected) in [
            ("lz4,zstd,842", "more than two compressors: accepted is one, or two as FAST,DENSE"),
            ("lz4,zstd,dict=x,842", "more than two compressors: accepted is one, or two as FAST,DENSE"),
            (
                "zstd,dict=x,zstd:3,dict=y",
                "two dictionaries: accepted is one dict=FILE, for one compressor or both",
            ),
            ("deflate-iaa,deflate-iaa:fixed", "two ways to use a device: accepted is one, for both"),
        ] {
            assert_eq!(line(text), expected, "{text}");
        }
    }
}
