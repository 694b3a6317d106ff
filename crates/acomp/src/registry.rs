//! The list of algorithms: what each is called, its levels, and how a stream of it is opened.
//!
//! Parser, help text and error messages are all made from this table.

use alloc::boxed::Box;
use core::fmt;
use core::ops::RangeInclusive;

use crate::request::Error;
use crate::stream::Stream;
use crate::{lz4, zstd};

/// Every algorithm there is, in the order in which help lists them.
pub static ALGORITHMS: &[&Algorithm] = &[&lz4::ALGORITHM, &zstd::ALGORITHM];

/// What is known of an algorithm before any stream of it is opened.
pub struct Algorithm {
    /// The name by which a user asks for it.
    pub name: &'static str,
    /// What the number after the colon is called in help: `LEVEL` or `ACCELERATION`.
    pub level_name: &'static str,
    /// The numbers that are accepted after the colon.
    pub levels: RangeInclusive<i32>,
    /// The number that stands where none is given.
    pub default_level: i32,
    /// One line for the help text, saying when to choose it.
    pub description: &'static str,
    /// Bytes of workspace of a stream at this level for units of up to this many bytes.
    pub(crate) workspace_bytes: fn(i32, usize) -> usize,
    /// Opens a stream at this level for units of up to this many bytes.
    pub(crate) open: fn(i32, usize) -> Result<Box<dyn Stream>, Error>,
}

/// Prints the form that is accepted: `zstd[:LEVEL]`, followed by the numbers.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Algorithm { name, level_name, levels, default_level, .. } = self;
        let (first, last) = (levels.start(), levels.end());
        write!(f, "{name}[:{level_name}] ({level_name} {first} to {last}, default {default_level})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_defaults_are_in_range() {
        for (index, algorithm) in ALGORITHMS.iter().enumerate() {
            assert!(ALGORITHMS[..index].iter().all(|other| other.name != algorithm.name));
            assert!(algorithm.levels.contains(&algorithm.default_level), "{algorithm}");
            assert!(!algorithm.description.contains('\n'));
        }
    }
}
