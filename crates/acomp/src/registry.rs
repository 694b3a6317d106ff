//! The list of algorithms: what each is called, its parameter, and how a stream of it is opened.
//!
//! Parser, help text and error messages are all made from this table.

use alloc::boxed::Box;
use core::fmt;
use core::ops::RangeInclusive;

use crate::compressor::Source;
use crate::request::Error;
use crate::stream::Stream;
use crate::{deflate, deflate_iaa, lz4, lz4hc, lzo, nx842, zstd};

/// Every algorithm there is, in the order in which help lists them.
pub static ALGORITHMS: &[&Algorithm] = &[
    &lz4::ALGORITHM,
    &lz4hc::ALGORITHM,
    &zstd::ALGORITHM,
    &deflate::ALGORITHM,
    &deflate_iaa::ALGORITHM,
    &lzo::ALGORITHM,
    &lzo::ALGORITHM_RLE,
    &nx842::ALGORITHM,
];

/// A stream, if there is memory for it.
type Opened = Result<Box<dyn Stream>, Error>;

/// What is known of an algorithm before any stream of it is opened.
pub struct Algorithm {
    /// The name by which a user asks for it: the kernel's.
    pub name: &'static str,
    /// The number that may follow the name after a colon.
    pub parameter: Option<Parameter>,
    /// One line for the help text, saying when to choose it.
    pub description: &'static str,
    /// Whether at this level it gives up on what does not shrink in a small part of the time that it takes for what does: then nothing
    /// is gained by guessing for it.
    pub(crate) gives_up_early: fn(i32) -> bool,
    /// Bytes of workspace of a stream at this level for units of up to this many bytes.
    pub(crate) workspace_bytes: fn(i32, usize) -> usize,
    /// Opens a stream at this level for units of up to this many bytes.
    pub(crate) open: fn(i32, usize) -> Opened,
    /// The same for streams that have room for dictionaries of this source, if it takes any.
    pub(crate) with_dictionary: Option<WithDictionary>,
}

/// How an algorithm is opened that takes dictionaries.
pub(crate) struct WithDictionary {
    /// Bytes of workspace, as for [`Algorithm`], with room for dictionaries.
    pub(crate) workspace_bytes: fn(i32, usize, Source) -> usize,
    /// Opens a stream, as for [`Algorithm`], with room for dictionaries.
    pub(crate) open: fn(i32, usize, Source) -> Opened,
}

/// An algorithm's number: how hard it tries.
pub struct Parameter {
    /// What it is called in help: `LEVEL` or `ACCELERATION`.
    pub name: &'static str,
    /// The numbers that are accepted.
    pub accepted: RangeInclusive<i32>,
    /// The one that stands where none is given.
    pub default: i32,
}

impl Algorithm {
    /// The level that `number` asks for, or the usual one; none if it is not accepted. An algorithm without a parameter has level 0.
    pub(crate) fn level(&self, number: Option<&str>) -> Option<i32> {
        match (&self.parameter, number) {
            (None, None) => Some(0),
            (None, Some(_)) => None,
            (Some(parameter), None) => Some(parameter.default),
            (Some(parameter), Some(number)) => {
                number.parse().ok().filter(|level| parameter.accepted.contains(level))
            }
        }
    }
}

/// Prints the form that is accepted: `zstd[:LEVEL][,dict=auto|FILE]`, followed by the numbers.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        let Some(Parameter { name, accepted, default }) = &self.parameter else { return Ok(()) };
        let (first, last) = (accepted.start(), accepted.end());
        let dictionary = if self.with_dictionary.is_some() { "[,dict=auto|FILE]" } else { "" };
        write!(f, "[:{name}]{dictionary} ({name} {first} to {last}, default {default})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_defaults_are_in_range() {
        for (index, algorithm) in ALGORITHMS.iter().enumerate() {
            assert!(ALGORITHMS[..index].iter().all(|other| other.name != algorithm.name));
            assert!(
                algorithm.parameter.as_ref().is_none_or(|p| p.accepted.contains(&p.default)),
                "{algorithm}"
            );
            assert!(!algorithm.description.contains('\n'));
        }
    }
}
