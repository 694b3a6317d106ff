//! What is known of an algorithm: what it is called, its parameter, and how a stream of it is opened.
//!
//! Parser, help text and error messages are all made from this.

use alloc::boxed::Box;
use core::fmt;
use core::ops::RangeInclusive;

use crate::device::Form;
use crate::part::Part;
use crate::request::Error;
use crate::stream::Stream;

/// The most bytes of a dictionary that the user gives: `zstd --train` makes 110 KiB unless it is told otherwise.
pub const FILE_MAX_BYTES: usize = 128 << 10;

/// A stream, if there is memory for it.
type Opened = Result<Box<dyn Stream>, Error>;

/// What is known of an algorithm before any stream of it is opened.
pub struct Algorithm {
    /// The name by which a user asks for it: the kernel's.
    pub name: &'static str,
    /// The number, or one of some words, that may follow the name after a colon.
    pub parameter: Option<Parameter>,
    /// One line for the help text, saying when to choose it.
    pub description: &'static str,
    /// Whether at this level it gives up on what does not shrink in a small part of the time that it takes for what
    /// does: then nothing is gained by guessing for it.
    pub(crate) gives_up_early: fn(i32) -> bool,
    /// Opens a stream at this level for units of up to this many bytes.
    pub(crate) open: fn(i32, usize) -> Opened,
    /// The same for streams with a dictionary, if it takes any.
    pub(crate) with_dictionary: Option<WithDictionary>,
    /// What of the code only some compressors run, and this one does at this level, with a dictionary or without.
    pub(crate) part: fn(i32, bool) -> Option<Part>,
    /// Whether it is for a device, which takes parameters ([`Device`](crate::Device)).
    pub(crate) takes_device: bool,
}

/// How an algorithm is opened that takes dictionaries.
pub(crate) struct WithDictionary {
    /// Opens a stream, as for [`Algorithm`], with a copy of this dictionary.
    pub(crate) open: fn(i32, usize, &[u8]) -> Opened,
}

/// An algorithm's number: how hard it tries; or its mode.
pub struct Parameter {
    /// What it is called in help: `LEVEL`, `ACCELERATION` or `MODE`.
    pub name: &'static str,
    /// The numbers that are accepted.
    pub accepted: RangeInclusive<i32>,
    /// The one that stands where none is given.
    pub default: i32,
    /// The words that a user says for the numbers from 0 on; empty where it is the numbers themselves.
    pub words: &'static [&'static str],
}

impl Parameter {
    /// What a user says for a number that is accepted.
    pub fn text(&self, number: i32) -> Said {
        Said(self.words.get(number as usize).copied(), number)
    }

    /// The number that a user's text stands for, if it is accepted.
    fn number(&self, text: &str) -> Option<i32> {
        let number = match self.words {
            [] => text.parse().ok(),
            words => words.iter().position(|word| *word == text).map(|at| at as i32),
        };
        number.filter(|number| self.accepted.contains(number))
    }
}

/// A parameter's number as a user says it; it prints so.
pub struct Said(Option<&'static str>, i32);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(word) => f.write_str(word),
            None => self.1.fmt(f),
        }
    }
}

impl Algorithm {
    /// The level that `text` asks for, or the usual one; none if it is not accepted. An algorithm without a parameter
    /// has level 0.
    pub(crate) fn level(&self, text: Option<&str>) -> Option<i32> {
        match (&self.parameter, text) {
            (None, None) => Some(0),
            (None, Some(_)) => None,
            (Some(parameter), None) => Some(parameter.default),
            (Some(parameter), Some(text)) => parameter.number(text),
        }
    }
}

/// Prints the form that is accepted: `zstd[:LEVEL][,dict=FILE]`, followed by the numbers or words.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        let Some(parameter) = &self.parameter else { return Ok(()) };
        let Parameter { name, accepted, default, words } = parameter;
        let (first, last) = (accepted.start(), accepted.end());
        write!(f, "[:{name}]")?;
        if self.with_dictionary.is_some() {
            f.write_str("[,dict=FILE]")?;
        }
        if self.takes_device {
            Form.fmt(f)?;
        }
        write!(f, " ({name} ")?;
        match words {
            [] => write!(f, "{first} to {last}")?,
            [others @ .., last] => {
                for (at, word) in others.iter().enumerate() {
                    write!(f, "{}{word}", if at == 0 { "" } else { ", " })?;
                }
                write!(f, " or {last}")?;
            }
        }
        write!(f, ", default {})", parameter.text(*default))
    }
}
