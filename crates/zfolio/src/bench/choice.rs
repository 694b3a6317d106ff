//! What is tried: units, compressors, how much memory; as a user names it.

use super::candidate::Candidate;
use super::sample::PAGE;
use crate::args::{DEFAULT_SAMPLE, DEFAULT_UNITS};
use crate::dictionary;
use crate::size::{Bytes, Size};
use acomp::{Compressor, UNIT_MAX_BYTES};

/// What is tried beside every algorithm's usual level.
const OTHER_LEVELS: [&str; 4] = ["lz4hc:4", "zstd:-1", "zstd:3", "zstd:9"];

/// Reads `4K,64K`. The units come in order, each once; an error is one line for the user.
pub fn units(text: &str) -> Result<Vec<usize>, String> {
    let refuse = || {
        let most = Bytes(UNIT_MAX_BYTES as u64);
        format!(
            "--unit {text}: expected sizes of whole pages from {} to {most}, such as {DEFAULT_UNITS}",
            Bytes(PAGE)
        )
    };
    let mut units = Vec::new();
    for word in text.split(',') {
        let Ok(Size::Bytes(bytes)) = Size::parse(word.trim()) else { return Err(refuse()) };
        if bytes == 0 || !bytes.is_multiple_of(PAGE) || bytes > UNIT_MAX_BYTES as u64 {
            return Err(refuse());
        }
        units.push(bytes as usize);
    }
    units.sort_unstable();
    units.dedup();
    Ok(units)
}

/// Reads `lz4,zstd:3,zstd:1,dict=FILE`, or without a text names all algorithms. A dictionary, like any parameter,
/// belongs to what stands before it, and is read here. Each comes once; an error is one line for the user.
pub fn compressors(text: Option<&str>) -> Result<Vec<Candidate>, String> {
    let mut words: Vec<String> = Vec::new();
    match text {
        Some(text) => {
            for word in text.split(',').map(str::trim) {
                match words.last_mut() {
                    Some(last) if word.contains('=') => *last += &format!(",{word}"),
                    _ => words.push(word.to_string()),
                }
            }
        }
        None => {
            let names = Compressor::ALL.iter().map(|algorithm| algorithm.name).chain(OTHER_LEVELS);
            words.extend(names.map(str::to_string));
        }
    };
    let mut candidates = Vec::new();
    for word in &words {
        let compressor = Compressor::parse(word).map_err(|error| format!("--compressor {word}: {error}"))?;
        let candidate = Candidate {
            file: Compressor::dictionary_file(word).unwrap_or_default().to_string(),
            dictionary: dictionary::read(word, compressor)?,
            ..Candidate::new(compressor)
        };
        if !candidates.contains(&candidate) {
            candidates.push(candidate);
        }
    }
    Ok(candidates)
}

/// Reads the most memory that is to be tried, in bytes; an error is one line for the user.
pub fn sample(text: &str) -> Result<u64, String> {
    match Size::parse(text) {
        Ok(Size::Bytes(bytes)) if bytes >= PAGE => Ok(bytes),
        _ => Err(format!(
            "--sample {text}: expected a size of at least {}, such as {DEFAULT_SAMPLE}",
            Bytes(PAGE)
        )),
    }
}

/// Reads a process's number; an error is one line for the user.
pub fn pid(text: &str) -> Result<u32, String> {
    // The kernel's are positive numbers of 31 bits.
    match text.parse::<i32>() {
        Ok(pid @ 1..) => Ok(pid as u32),
        _ => Err(format!("--pid {text}: expected the number of a process, as ps(1) prints it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_whole_pages_of_at_most_2_mib() {
        assert_eq!(units(DEFAULT_UNITS).unwrap(), [4, 16, 64, 256, 2048].map(|kib| kib << 10));
        assert_eq!(units("2M, 12K,4096,4KiB").unwrap(), [4096, 12 << 10, 2 << 20]);
        for text in ["", "0", "4", "2K", "6K", "4M", "4K,", "50%", "-4K", "x", "4K;8K"] {
            let line = units(text).unwrap_err();
            assert!(line.starts_with(&format!("--unit {text}: ")) && line.contains(DEFAULT_UNITS), "{line}");
            assert!(!line.contains('\n'));
        }
    }

    #[test]
    fn every_algorithm_is_tried_and_none_twice() {
        let all: Vec<String> = compressors(None).unwrap().iter().map(|c| c.to_string()).collect();
        for algorithm in Compressor::ALL {
            let usual = Compressor::parse(algorithm.name).unwrap().to_string();
            assert_eq!(all.iter().filter(|name| **name == usual).count(), 1, "{usual}");
        }
        assert_eq!(all.len(), Compressor::ALL.len() + OTHER_LEVELS.len());
        let some = compressors(Some("zstd:1, lz4,zstd")).unwrap();
        assert_eq!(some.iter().map(|c| c.to_string()).collect::<Vec<_>>(), ["zstd:1", "lz4:1"]);
        let text = "zstd, zstd,dict=/bin/true,lz4,zstd:1, dict=/bin/true,deflate-iaa:canned,distribute_comps=0,verify_compress=1,842";
        let names: Vec<_> = compressors(Some(text)).unwrap().iter().map(|c| c.to_string()).collect();
        let device = "deflate-iaa:canned,distribute_comps=0,verify_compress=1";
        assert_eq!(names, ["zstd:1", "zstd:1,dict=true", "lz4:1", device, "842"]);
    }

    #[test]
    fn nonsense_is_one_line_with_what_there_is() {
        for (text, name) in [
            ("zip", "zip"),
            ("lz4,zstd:99", "zstd:99"),
            ("", ""),
            ("lz4,", ""),
            ("dict=x", "dict=x"),
            ("zstd,dict=", "zstd,dict="),
            ("lz4,842,verify_compress=1", "842,verify_compress=1"),
        ] {
            let line = compressors(Some(text)).unwrap_err();
            assert!(
                line.starts_with(&format!("--compressor {name}: ")) && line.contains("accepted"),
                "{line}"
            );
            assert!(!line.contains('\n'));
        }
        let line = compressors(Some("lz4,zstd:1,dict=/none")).unwrap_err();
        assert!(line.starts_with("--compressor zstd:1,dict=/none: /none: No such file"), "{line}");
        for text in ["0", "-1", "x", "", "99999999999", "1.5"] {
            assert!(pid(text).unwrap_err().contains(text));
        }
        assert_eq!(pid("123"), Ok(123));
        for text in ["0", "4095", "x", "50%"] {
            assert!(sample(text).is_err(), "{text}");
        }
        assert_eq!(sample("4K"), Ok(4096));
    }
}
