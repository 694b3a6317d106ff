//! A compressor as a user names it: an algorithm and a level, `zstd:1`.

use core::fmt;

use crate::registry::{ALGORITHMS, Algorithm};

/// An algorithm and a level. Small and `Copy`; it holds no memory of the algorithm's.
#[derive(Clone, Copy)]
pub struct Compressor {
    pub(crate) algorithm: &'static Algorithm,
    level: i32,
}

impl Compressor {
    /// Every algorithm there is, for help texts and for tests that try them all.
    pub const ALL: &'static [&'static Algorithm] = ALGORITHMS;

    /// Reads `NAME` or `NAME:LEVEL`, such as `lz4`, `lz4:4`, `zstd:-1`, `lzo-rle`.
    ///
    /// # Errors
    ///
    /// The name is none of [`Compressor::ALL`], or what follows the colon is no number that the
    /// algorithm accepts.
    pub fn parse(text: &str) -> Result<Compressor, ParseError> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let algorithm = *Self::ALL.iter().find(|a| a.name == name).ok_or(ParseError { algorithm: None })?;
        match algorithm.level(level) {
            Some(level) => Ok(Compressor { algorithm, level }),
            None => Err(ParseError { algorithm: Some(algorithm) }),
        }
    }

    /// The algorithm's name without the level.
    pub fn name(&self) -> &'static str {
        self.algorithm.name
    }

    /// The level, or lz4's acceleration; 0 where there is none to choose.
    pub fn level(&self) -> i32 {
        self.level
    }

    /// True when it gives up on noise by itself, in a small part of the time that it takes for what shrinks: a look beforehand would take about
    /// as long.
    pub fn gives_up_early(&self) -> bool {
        (self.algorithm.gives_up_early)(self.level)
    }

    /// Bytes of memory that a [`Context`](crate::Context) for units of up to `unit_max` bytes takes when it is made.
    ///
    /// Memory that is never needed is never touched: a context that only decompresses leaves most of it unbacked.
    pub fn workspace_bytes(&self, unit_max: usize) -> usize {
        (self.algorithm.workspace_bytes)(self.level, unit_max)
    }
}

impl PartialEq for Compressor {
    fn eq(&self, other: &Compressor) -> bool {
        self.name() == other.name() && self.level == other.level
    }
}

impl Eq for Compressor {}

/// Prints what [`Compressor::parse`] reads back: `zstd:1`, `lzo`.
impl fmt::Display for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.algorithm.parameter {
            Some(_) => write!(f, "{}:{}", self.name(), self.level),
            None => f.write_str(self.name()),
        }
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text names no compressor. It prints as one line that says what is accepted.
#[derive(Clone, Copy)]
pub struct ParseError {
    /// The algorithm whose level was not understood; none if the name was not.
    algorithm: Option<&'static Algorithm>,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(algorithm) = self.algorithm {
            let name = algorithm.name;
            return match &algorithm.parameter {
                Some(parameter) => write!(f, "no such {} of {name}: accepted is {algorithm}", parameter.name),
                None => write!(f, "{name} takes no number: accepted is {algorithm}"),
            };
        }
        f.write_str("no such compressor: accepted are ")?;
        for (index, algorithm) in Compressor::ALL.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{algorithm}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_prints_and_parses_back() {
        for algorithm in Compressor::ALL {
            let plain = Compressor::parse(algorithm.name).unwrap();
            assert_eq!(plain.name(), algorithm.name);
            let Some(parameter) = &algorithm.parameter else {
                assert_eq!((plain.level(), plain.to_string()), (0, algorithm.name.to_string()));
                continue;
            };
            assert_eq!(plain.level(), parameter.default);
            for level in parameter.accepted.clone() {
                let text = format!("{}:{level}", algorithm.name);
                assert_eq!(Compressor::parse(&text).unwrap().to_string(), text);
            }
        }
    }

    #[test]
    fn nonsense_gets_one_line_with_the_list() {
        let unknown = "no such compressor: accepted are lz4[:ACCELERATION] (ACCELERATION 1 to 65537, default 1), \
                       lz4hc[:LEVEL] (LEVEL 3 to 12, default 9), zstd[:LEVEL] (LEVEL -7 to 22, default 1), \
                       deflate[:LEVEL] (LEVEL 1 to 12, default 1), deflate-iaa, lzo, lzo-rle, 842";
        for text in ["", ":", ":1", "gzip", "ZSTD", "zstd ", " lz4", "lz4h", "lzo-", "rle", "84", "zstd-1"] {
            assert_eq!(Compressor::parse(text).unwrap_err().to_string(), unknown, "{text:?}");
        }
        let level = "no such LEVEL of zstd: accepted is zstd[:LEVEL] (LEVEL -7 to 22, default 1)";
        for text in ["zstd:", "zstd:23", "zstd:-8", "zstd:1:2", "zstd:fast", "zstd: 1", "zstd:99999999999"] {
            assert_eq!(Compressor::parse(text).unwrap_err().to_string(), level, "{text:?}");
        }
        for text in ["lzo:", "lzo:1", "lzo:0"] {
            assert_eq!(
                Compressor::parse(text).unwrap_err().to_string(),
                "lzo takes no number: accepted is lzo"
            );
        }
        for text in ["lz4hc:2", "lz4hc:13", "deflate:0", "deflate:13"] {
            assert!(Compressor::parse(text).is_err(), "{text}");
        }
        for text in ["lz4:0", "lz4:-1", "lz4:65538"] {
            assert!(
                Compressor::parse(text).unwrap_err().to_string().starts_with("no such ACCELERATION of lz4")
            );
        }
    }
}
