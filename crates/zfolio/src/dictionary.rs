//! The dictionary that the user has in a file, as `--compressor zstd:1,dict=FILE` names it.

use crate::size::Bytes;
use acomp::{Context, FILE_MAX_BYTES};
use std::fs::File;
use std::io::Read;
use zswap::Choice;

const _: () = assert!(memcg::DICTIONARY_MAX_BYTES == FILE_MAX_BYTES);

/// Reads the dictionary that `text` names, of which `choice` was parsed; empty where that has none. An error is one
/// line for the user.
pub fn read(text: &str, choice: impl Into<Choice>) -> Result<Vec<u8>, String> {
    let with_dictionary = choice.into().with_dictionary().zip(Choice::dictionary_file(text));
    let Some((compressor, name)) = with_dictionary else { return Ok(Vec::new()) };
    let mut dictionary = Vec::new();
    let read = |file: File| file.take(FILE_MAX_BYTES as u64 + 1).read_to_end(&mut dictionary);
    let refuse = |why: String| Err(format!("--compressor {text}: {name}: {why}"));
    if let Err(error) = File::open(name).and_then(read) {
        return refuse(error.to_string());
    }
    if dictionary.is_empty() {
        return refuse("an empty file is no dictionary".into());
    }
    if dictionary.len() > FILE_MAX_BYTES {
        return refuse(format!("a dictionary has {} at most", Bytes(FILE_MAX_BYTES as u64)));
    }
    match Context::with_dictionary(compressor, 1, &dictionary) {
        Ok(_) => Ok(dictionary),
        Err(acomp::Error::NoDictionary) => refuse("its tables are damaged".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn read_named(name: &str) -> Result<Vec<u8>, String> {
        let text = format!("zstd:3,dict={name}");
        read(&text, Choice::parse(&text).unwrap())
    }

    #[test]
    fn a_file_that_is_no_dictionary_is_refused_in_one_line() {
        let path = std::env::temp_dir().join(format!("zfolio-dictionary-{}", std::process::id()));
        let name = path.to_str().unwrap();
        let line = read_named(name).unwrap_err();
        assert!(
            line.starts_with(&format!("--compressor zstd:3,dict={name}: {name}: No such file")),
            "{line}"
        );
        for (bytes, why) in [
            (vec![], "an empty file is no dictionary"),
            (vec![7; FILE_MAX_BYTES + 1], "a dictionary has 128 KiB at most"),
            ([&[0x37, 0xa4, 0x30, 0xec][..], &[0xff; 99]].concat(), "its tables are damaged"),
        ] {
            fs::write(&path, bytes).unwrap();
            let line = read_named(name).unwrap_err();
            assert!(line.ends_with(why) && !line.contains('\n'), "{line}");
        }
        fs::write(&path, vec![7; FILE_MAX_BYTES]).unwrap();
        assert_eq!(read_named(name).unwrap().len(), FILE_MAX_BYTES);
        fs::remove_file(path).unwrap();
        assert!(read_named("/dev/zero").unwrap_err().ends_with("at most"));
        assert!(read_named("/tmp").unwrap_err().contains("directory"));
        for (text, has_any) in [("zstd:3", false), ("lz4,zstd:3,dict=/proc/self/stat", true)] {
            assert_eq!(read(text, Choice::parse(text).unwrap()).unwrap().is_empty(), !has_any, "{text}");
        }
    }
}
