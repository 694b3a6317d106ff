//! What is chosen before a device gets its disksize, and stays until it is reset: its algorithms.

use crate::error::Error;
use acomp::{Compressor, FILE_MAX_BYTES, Kind};
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Mutex;
use zswap::Codec;

/// Algorithms that a device can have: a primary one and three to recompress with.
pub const ALGORITHMS: usize = 4;

/// What a device compresses with where nobody has chosen.
const DEFAULT: &str = "lz4";

/// An algorithm, its level, and its dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// The algorithm and its level.
    pub compressor: Compressor,
    /// Empty where it has none.
    pub dictionary: &'static [u8],
}

/// The algorithms by priority: 0 is the primary one, and the others are there or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    algorithms: [Option<Algorithm>; ALGORITHMS],
}

impl Default for Settings {
    fn default() -> Settings {
        let compressor = Compressor::parse(DEFAULT).expect("there is such an algorithm");
        let mut algorithms = [None; ALGORITHMS];
        algorithms[0] = Some(Algorithm { compressor, dictionary: &[] });
        Settings { algorithms }
    }
}

impl Settings {
    /// That of a priority, if there is one.
    pub fn algorithm(&self, priority: usize) -> Option<Algorithm> {
        self.algorithms.get(priority).copied().flatten()
    }

    /// Those to recompress with, by priority.
    pub fn secondary(&self) -> impl Iterator<Item = (usize, Algorithm)> {
        let all = self.algorithms.iter().enumerate().skip(1);
        all.filter_map(|(priority, algorithm)| algorithm.map(|algorithm| (priority, algorithm)))
    }

    /// Sets that of a priority.
    pub fn set(&mut self, priority: usize, algorithm: Algorithm) {
        self.algorithms[priority] = Some(algorithm);
    }

    /// Finds an algorithm by its name.
    pub fn named(&self, name: &str) -> Option<usize> {
        self.algorithms.iter().position(|at| at.is_some_and(|algorithm| algorithm.compressor.name() == name))
    }
}

impl Algorithm {
    /// Reads `NAME` or `NAME:LEVEL`.
    ///
    /// # Errors
    ///
    /// One line that says what is accepted.
    pub fn parse(text: &str) -> Result<Algorithm, String> {
        let compressor = Compressor::parse(text).map_err(|error| error.to_string())?;
        if compressor.has_dictionary() {
            return Err("a dictionary is given by algorithm_params: dict=FILE".to_string());
        }
        Ok(Algorithm { compressor, dictionary: &[] })
    }

    /// The same algorithm at another level.
    ///
    /// # Errors
    ///
    /// One line that says what is accepted.
    pub fn at_level(self, level: &str) -> Result<Algorithm, String> {
        let Algorithm { compressor, dictionary } = self;
        let file = if dictionary.is_empty() { "" } else { ",dict=FILE" };
        let text = format!("{}:{level}{file}", compressor.name());
        let compressor = Compressor::parse(&text).map_err(|error| error.to_string())?;
        Ok(Algorithm { compressor, dictionary })
    }

    /// The same algorithm with this dictionary.
    ///
    /// # Errors
    ///
    /// One line: the algorithm takes none, or the dictionary is empty or too long.
    pub fn with_dictionary(self, dictionary: &[u8]) -> Result<Algorithm, String> {
        if dictionary.is_empty() || dictionary.len() > FILE_MAX_BYTES {
            return Err(format!("accepted is a dictionary of 1 to {FILE_MAX_BYTES} bytes"));
        }
        let text = format!("{}:{},dict=FILE", self.compressor.name(), self.compressor.level());
        let compressor = Compressor::parse(&text).map_err(|error| error.to_string())?;
        Ok(Algorithm { compressor, dictionary: kept(dictionary) })
    }

    /// What makes the objects of a kind and level that [`Algorithm::numbers`] told, with a dictionary or without.
    pub fn of(numbers: (u8, i32), dictionary: &[u8]) -> Option<Algorithm> {
        let compressor = Kind::of(numbers.0)?.at_level(numbers.1)?;
        let fits = compressor.has_dictionary() != dictionary.is_empty() && dictionary.len() <= FILE_MAX_BYTES;
        fits.then(|| Algorithm { compressor, dictionary: kept(dictionary) })
    }

    /// Makes a codec of it, for a device whose hashes are keyed with `seed`.
    ///
    /// # Errors
    ///
    /// There is no memory for it, or the dictionary is damaged.
    pub fn open(&self, seed: u64) -> Result<Codec, acomp::Error> {
        Codec::new(self.compressor, seed, self.dictionary)
    }

    /// Kind and level as numbers.
    pub fn numbers(&self) -> (u8, i32) {
        (self.compressor.kind().number(), self.compressor.level())
    }
}

/// A dictionary for the life of the process, which codecs ask for; one copy of each that was ever used.
fn kept(dictionary: &[u8]) -> &'static [u8] {
    static KEPT: Mutex<BTreeSet<&'static [u8]>> = Mutex::new(BTreeSet::new());
    if dictionary.is_empty() {
        return &[];
    }
    let mut kept = KEPT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(same) = kept.get(dictionary) {
        return same;
    }
    let new: &'static [u8] = Box::leak(dictionary.into());
    kept.insert(new);
    new
}

/// Reads the file of a dictionary.
///
/// # Errors
///
/// [`Error::Path`].
pub fn read_dictionary(path: &str) -> Result<Vec<u8>, Error> {
    let named = |error| Error::Path { path: path.to_string(), error };
    let file = std::fs::File::open(path).map_err(named)?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(named)?;
    Ok(bytes)
}
