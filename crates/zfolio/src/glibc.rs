//! The machine's libc, as far as libzfolio.so's hooks inside it are concerned: which of its system calls are where they
//! are looked for. The file says the same as the memory of a program that has loaded it.

use anyhow::{Context, Result};
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{LittleEndian, Object, ObjectSegment, ObjectSymbol};
use std::fs;
use std::path::{Path, PathBuf};
use uffd::sites::{self, Site};

/// What libzfolio.so recognises in a libc.
pub struct Glibc {
    /// As libc itself says it, "2.36".
    pub version: String,
    /// The calls that were found.
    pub found: Vec<Site>,
    /// The calls that were not.
    pub missing: Vec<Site>,
}

/// The libc that this process has loaded, and so its programs, unless they bring their own.
pub fn loaded() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|p| p.ends_with("/libc.so.6"))?;
    Some(path.into())
}

/// Looks into a libc.so.6.
pub fn inspect(file: &Path) -> Result<Glibc> {
    let bytes = fs::read(file).with_context(|| file.display().to_string())?;
    let libc =
        ElfFile::<FileHeader64<LittleEndian>>::parse(&*bytes).with_context(|| file.display().to_string())?;
    let (found, missing) = Site::ALL.into_iter().partition(|site| has(&libc, *site));
    Ok(Glibc { version: version(&bytes), found, missing })
}

fn has(libc: &ElfFile<'_, FileHeader64<LittleEndian>>, site: Site) -> bool {
    let function = site.symbols().find_map(|name| {
        libc.dynamic_symbols().find(|s| s.is_definition() && s.name_bytes().is_ok_and(|n| n == name))
    });
    let Some(function) = function else { return false };
    let (at, size) = (function.address(), function.size());
    let code = libc.segments().find_map(|segment| segment.data_range(at, size).ok().flatten());
    code.is_some_and(|code| sites::find(code, site.number()).is_some())
}

/// Every glibc holds a line with "release version 2.36.".
fn version(bytes: &[u8]) -> String {
    let mark = b"release version ";
    let at = bytes.windows(mark.len()).position(|w| w == mark).map_or(bytes.len(), |at| at + mark.len());
    let text = bytes[at..].iter().take_while(|b| b.is_ascii_digit() || **b == b'.').map(|&b| b as char);
    text.collect::<String>().trim_end_matches('.').to_string()
}
