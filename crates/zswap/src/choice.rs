//! What the user has pages compressed with: one compressor, or two of which each object is made by one (chooser.rs).

use acomp::{Compressor, Kind, ParseError};
use core::fmt;

/// One compressor, or `auto`: a fast one and a dense one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The one, or the dense one of two.
    pub compressor: Compressor,
    /// What there is besides.
    pub auto: Option<Auto>,
}

/// The other half of `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auto {
    /// What objects are made with where the dense one is not worth its time.
    pub fast: Compressor,
    /// How much of it that may take beyond what the fast one would: so many hundredths of a CPU, in all processes of
    /// the run together.
    pub percent: u32,
}

const NAME: &str = "auto";
const FAST: &str = "lz4";
const DENSE: &str = "zstd:1";
/// What comes before the parameter's value.
const BUDGET: &str = "cpu=";

/// The budget of who gives none: some 150 MB a second may go through the dense one.
const DEFAULT_PERCENT: u32 = 25;

/// What stands in a word for it, where other numbers stand for kinds.
const AUTO: u8 = 255;
const _: () = assert!(Kind::END < AUTO);

/// More than this can never be spent: there are at most four workers.
const PERCENT_MAX: u32 = 400;

impl Choice {
    /// One line on `auto` for help texts, saying when to choose it.
    pub const DESCRIPTION: &str = "lz4, and zstd:1 for the memory where it saves most for its time, as long as that takes no more than \
                                   PERCENT of one CPU beyond what lz4 would: 0 is lz4, 400 nearly zstd:1";

    /// Reads what [`Compressor::parse`] does, or `auto`, or `auto,cpu=PERCENT`.
    ///
    /// # Errors
    ///
    /// It is neither.
    pub fn parse(text: &str) -> Result<Choice, ChoiceError> {
        let Some(rest) =
            text.strip_prefix(NAME).filter(|rest| rest.is_empty() || rest.starts_with([',', ':']))
        else {
            return Compressor::parse(text).map(Choice::from).map_err(ChoiceError::Compressor);
        };
        let percent = match rest.strip_prefix(',').and_then(|parameter| parameter.strip_prefix(BUDGET)) {
            None if rest.is_empty() => Some(DEFAULT_PERCENT),
            None => None,
            Some(number) => number.parse().ok(),
        };
        Choice::auto(percent.ok_or(ChoiceError::Auto)?)
    }

    /// In one word, for who reads it while another writes it: never 0. `None` where it is for a device, whose
    /// parameters have no room in it.
    pub fn word(&self) -> Option<u64> {
        let Choice { compressor, auto } = self;
        let (made_by, number) = match auto {
            Some(auto) => (AUTO, auto.percent),
            None => (1 + compressor.kind().number(), compressor.level() as u32),
        };
        (!compressor.is_for_device()).then_some(u64::from(number) << 32 | u64::from(made_by))
    }

    /// That of a word; `None` where it is none.
    pub fn of_word(word: u64) -> Option<Choice> {
        let (made_by, number) = (word as u32, (word >> 32) as u32);
        if made_by == AUTO.into() {
            return Choice::auto(number).ok();
        }
        let kind = Kind::of(u8::try_from(made_by).ok()?.checked_sub(1)?)?;
        Some(kind.at_level(number as i32)?.into()).filter(|choice: &Choice| choice.word() == Some(word))
    }

    /// What makes new objects in a run that has begun with `first`, as [`Choice::parse`] reads it, and where this word
    /// was set since: 0 is none.
    pub fn now(first: &str, word: u64) -> Option<Choice> {
        Choice::of_word(word).or_else(|| Choice::parse(first).ok())
    }

    /// What makes objects by this choice.
    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        let fast = self.auto.map(|auto| auto.fast.kind());
        core::iter::once(self.compressor.kind()).chain(fast)
    }

    /// `auto` with this budget.
    fn auto(percent: u32) -> Result<Choice, ChoiceError> {
        if percent > PERCENT_MAX {
            return Err(ChoiceError::Auto);
        }
        let compressor = |name| Compressor::parse(name).map_err(ChoiceError::Compressor);
        Ok(Choice { compressor: compressor(DENSE)?, auto: Some(Auto { fast: compressor(FAST)?, percent }) })
    }

    /// The form of `auto` that is accepted, for help texts and errors.
    pub const FORM: &str = "auto[,cpu=PERCENT] (PERCENT 0 to 400, default 25)";
}

impl From<Compressor> for Choice {
    fn from(compressor: Compressor) -> Choice {
        Choice { compressor, auto: None }
    }
}

/// Prints what [`Choice::parse`] reads back.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.auto {
            None => self.compressor.fmt(f),
            Some(Auto { percent, .. }) => write!(f, "{NAME},{BUDGET}{percent}"),
        }
    }
}

/// The text names no compressor, nor `auto`. It prints as one line that says what is accepted.
#[derive(Clone, Copy, Debug)]
pub enum ChoiceError {
    /// It is none.
    Compressor(ParseError),
    /// What follows `auto` is no budget.
    Auto,
}

impl fmt::Display for ChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChoiceError::Compressor(error @ ParseError::Name) => write!(f, "{error}, {}", Choice::FORM),
            ChoiceError::Compressor(error) => error.fmt(f),
            ChoiceError::Auto => write!(f, "no such parameter of {NAME}: accepted is {}", Choice::FORM),
        }
    }
}

impl core::error::Error for ChoiceError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn what_is_printed_is_read_back() {
        for (text, printed) in [
            ("auto", "auto,cpu=25"),
            ("auto,cpu=0", "auto,cpu=0"),
            ("auto,cpu=400", "auto,cpu=400"),
            ("lz4", "lz4:1"),
            ("zstd,dict=x", "zstd:1,dict=FILE"),
        ] {
            let choice = Choice::parse(text).unwrap();
            assert_eq!(choice.to_string(), printed);
            assert_eq!(Choice::parse(printed).unwrap(), choice);
        }
        let Choice { compressor, auto } = Choice::parse("auto,cpu=5").unwrap();
        let auto = auto.unwrap();
        assert_eq!(
            (compressor.to_string(), auto.fast.to_string(), auto.percent),
            ("zstd:1".into(), "lz4:1".into(), 5)
        );
    }

    #[test]
    fn every_choice_but_for_devices_has_a_word_and_no_other_word_is_one() {
        let mut words = alloc::vec::Vec::new();
        for text in [
            "auto",
            "auto,cpu=0",
            "auto,cpu=400",
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
        ] {
            let choice = Choice::parse(text).unwrap();
            let word = choice.word().unwrap();
            assert!(word != 0 && !words.contains(&word), "{text}");
            assert_eq!(
                (Choice::of_word(word), Choice::now("lz4", word)),
                (Some(choice), Some(choice)),
                "{text}"
            );
            words.push(word);
        }
        for text in ["deflate-iaa", "deflate-iaa:fixed,verify_compress=1"] {
            let choice = Choice::parse(text).unwrap();
            assert_eq!((choice.word(), Choice::now(text, 0)), (None, Some(choice)));
        }
        let device = Choice::parse("deflate-iaa").unwrap().compressor;
        let device = u64::from(1 + device.kind().number());
        for word in
            [0, device, 17, 18, 254, 255 | 401 << 32, 256, 1 << 8 | 1, 65538 << 32 | 1, 1 << 32 | 7, u64::MAX]
        {
            assert_eq!(Choice::of_word(word), None, "{word:#x}");
        }
        let kinds =
            |text| Choice::parse(text).unwrap().kinds().map(Kind::name).collect::<alloc::vec::Vec<_>>();
        assert_eq!((kinds("auto"), kinds("zstd:9")), (alloc::vec!["zstd", "lz4"], alloc::vec!["zstd"]));
    }

    #[test]
    fn nonsense_gets_one_line_with_the_list() {
        assert!(Choice::FORM.contains(&alloc::format!("0 to {PERCENT_MAX}, default {DEFAULT_PERCENT})")));
        for text in [
            "auto,",
            "auto:",
            "auto:1",
            "auto,cpu=",
            "auto,cpu=401",
            "auto,cpu=-1",
            "auto,cpu=5%",
            "auto,dict=x",
        ] {
            let line = Choice::parse(text).unwrap_err().to_string();
            assert_eq!(line, ["no such parameter of auto: accepted is ", Choice::FORM].concat(), "{text}");
        }
        for text in ["", "aut", "autom", "AUTO", "gzip"] {
            let line = Choice::parse(text).unwrap_err().to_string();
            assert!(
                line.starts_with("no such compressor: accepted are lz4[:") && line.ends_with(Choice::FORM),
                "{line}"
            );
        }
        let line = Choice::parse("lz4:0").unwrap_err().to_string();
        assert!(line.starts_with("no such ACCELERATION of lz4"), "{line}");
    }
}
