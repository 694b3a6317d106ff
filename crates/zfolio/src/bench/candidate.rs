//! A compressor that is tried, with its dictionary.

use acomp::Compressor;
use std::fmt;

/// Who is tried.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The compressor.
    pub compressor: Compressor,
    /// The file of its dictionary; empty without one.
    pub file: String,
    /// That dictionary.
    pub dictionary: Vec<u8>,
}

impl Candidate {
    /// Without a dictionary.
    pub fn new(compressor: Compressor) -> Candidate {
        Candidate { compressor, file: String::new(), dictionary: Vec::new() }
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        (self.compressor, &self.file) == (other.compressor, &other.file)
    }
}

/// As a table has it: `zstd:1`, `zstd:1,dict=NAME`, the file's name without its folder.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.compressor.to_string();
        match text.split_once("dict=") {
            Some((before, _)) => {
                let file = self.file.rsplit('/').next().unwrap_or_default();
                write!(f, "{before}dict={}", file.replace(char::is_control, "?"))
            }
            None => f.write_str(&text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_tell_files_apart() {
        let named = |text: &str, file: &str| Candidate {
            file: file.to_string(),
            ..Candidate::new(Compressor::parse(text).unwrap())
        };
        assert_eq!(named("zstd:3,dict=x", "/tmp/a/one.dict").to_string(), "zstd:3,dict=one.dict");
        assert_eq!(named("deflate-iaa", "").to_string(), "deflate-iaa:dynamic");
        assert_ne!(named("zstd:3,dict=x", "one"), named("zstd:3,dict=x", "two"));
    }
}
