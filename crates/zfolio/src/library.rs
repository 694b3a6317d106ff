//! The library as it lies in the directory of a run: as far as it is loaded, and without the code that only compressors
//! run which the run does not have ([`Part`]). That is a hole in the file, which takes no memory until one of them is
//! set.
//!
//! A hole reads as zeros, and so nobody may run it. This is safe because
//! 1. what a part has is run through a context of a compressor alone, and none is made where the part is not there;
//! 2. a part is written before the run's page says that there is such a compressor;
//! 3. a part that was written stays, and objects that a compressor has made are read with it for as long as they live.

use crate::{blank, elf, sys};
use acomp::Part;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use uffd::PAGE;
use zswap::Choice;

/// The library, built by build.rs from the crate `libzfolio`.
pub static LIBRARY: &[u8] = include_bytes!(env!("ZFOLIO_LIBRARY"));

/// What glibc's loader may call the platform of a 64-bit process: the kernel's name for it, or glibc's own for certain
/// processors of Intel.
const PLATFORMS: [&str; 3] = ["x86_64", "haswell", "xeon_phi"];

/// The same for a 32-bit process, what the kernel says first.
const PLATFORMS_32: [&str; 3] = ["i686", "i586", "i386"];

/// What a run needs that has this choice; all, where it is not known.
pub fn parts_of(choice: Option<Choice>) -> Vec<Part> {
    let Some(Choice { fast, dense }) = choice else { return Part::ALL.to_vec() };
    let mut parts: Vec<Part> = [fast, dense].iter().filter_map(|one| one.part()).collect();
    parts.dedup();
    parts
}

/// Writes the library with these parts into the directory of a run, the empty one for 32-bit processes, and the names
/// by which loaders find them. `library` is [`LIBRARY`], or the same with other symbols.
pub fn write(dir: &Path, library: &[u8], parts: &[Part]) -> io::Result<()> {
    let file = new_file(&dir.join(memcg::LIBRARY_FILE), 0o755)?;
    let loaded = elf::loaded(library);
    let bytes = loaded.as_ref().map_or(library, |loaded| loaded.file);
    let mut at = 0;
    for hole in holes(parts) {
        write_pages(&file, bytes, at..hole.start)?;
        at = hole.end;
    }
    write_pages(&file, bytes, at..bytes.len())?;
    if let Some(loaded) = &loaded {
        file.write_all_at(object::pod::bytes_of(&loaded.header), 0)?;
    }
    for name in PLATFORMS {
        symlink(".", dir.join(name))?;
    }
    let [first, others @ ..] = PLATFORMS_32;
    let dir_32 = dir.join(first);
    fs::create_dir(&dir_32)?;
    fs::set_permissions(&dir_32, Permissions::from_mode(0o755))?;
    new_file(&dir_32.join(memcg::LIBRARY_FILE), 0o755)?.write_all(&blank::object())?;
    others.iter().try_for_each(|name| symlink(first, dir.join(name)))
}

/// Opens the library of the run in this directory, to be [completed](complete).
pub fn open(dir: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(dir.join(memcg::LIBRARY_FILE))
}

/// Writes what a run needs beside what it has, whose library this is, before it has this choice. Processes that have
/// mapped the library have it at once.
pub fn complete(library: &File, choice: Choice) -> io::Result<()> {
    // Code begins with an instruction, which is not zeros.
    let is_hole = |pages: &Range<usize>| {
        let mut begin = [0; 8];
        library.read_exact_at(&mut begin, pages.start as u64).is_err() || begin == [0; 8]
    };
    let mut missing = parts_of(Some(choice)).into_iter().map(pages_of).filter(is_hole);
    missing.try_for_each(|Range { start, end }| {
        // Its beginning last: where that is, all of it is.
        let second = start + PAGE;
        write_pages(library, LIBRARY, second..end)?;
        write_pages(library, LIBRARY, start..second)
    })
}

/// Makes a new file with this mode, whatever the umask, to be read and written.
pub fn new_file(path: &Path, mode: u32) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

/// Where the other parts lie, in order.
fn holes(parts: &[Part]) -> Vec<Range<usize>> {
    let others = Part::ALL.into_iter().filter(|part| !parts.contains(part));
    let mut holes: Vec<_> = others.map(pages_of).collect();
    holes.sort_unstable_by_key(|hole| hole.start);
    holes
}

/// Where in the file a part lies: whole pages.
fn pages_of(part: Part) -> Range<usize> {
    let elf = ElfFile64::<LittleEndian>::parse(LIBRARY).expect("the linker writes ELF");
    let section = elf.section_by_name(part.section()).expect("libzfolio/zfolio.ld has it");
    let (from, bytes) = section.file_range().expect("it has contents");
    let pages = from as usize..(from + bytes) as usize;
    assert!(pages.start.is_multiple_of(PAGE) && pages.end.is_multiple_of(PAGE), "{part:?} shares a page");
    pages
}

/// Writes a range of the library, but for its pages of zeros: there is room for them, so that nobody can find none
/// later, but no fault beside them maps one.
fn write_pages(file: &File, library: &[u8], range: Range<usize>) -> io::Result<()> {
    let mut at = range.start;
    let bytes = &library[range.clone()];
    if bytes.is_empty() {
        return Ok(());
    }
    sys::allocate(file, range)?;
    let is_zero = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    let pages: Vec<&[u8]> = bytes.chunks(PAGE).collect();
    for part in pages.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let len = part.iter().map(|page| page.len()).sum::<usize>();
        if !is_zero(part[0]) {
            file.write_all_at(&library[at..at + len], at as u64)?;
        }
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn choice(text: &str) -> Choice {
        Choice::parse(text).unwrap()
    }

    #[test]
    fn a_run_holds_what_its_compressors_run_and_gets_the_rest_with_others() {
        let dir = std::env::temp_dir().join(format!("zfolio-library-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join(memcg::LIBRARY_FILE);
        write(&dir, LIBRARY, &Part::ALL).unwrap();
        let whole = fs::read(&path).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        // All but these is as it is in the library.
        let missing = || -> Vec<Part> {
            let mut file = fs::read(&path).unwrap();
            let is_hole = |part: &Part| file[pages_of(*part)].iter().all(|byte| *byte == 0);
            let missing: Vec<Part> = Part::ALL.into_iter().filter(is_hole).collect();
            for pages in missing.iter().map(|part| pages_of(*part)) {
                file[pages.clone()].copy_from_slice(&whole[pages]);
            }
            assert!(file == whole, "something else is missing");
            missing
        };
        let held = || 512 * fs::metadata(&path).unwrap().blocks() as usize;
        write(&dir, LIBRARY, &parts_of(Some(choice("zstd:1")))).unwrap();
        let first = held();
        assert_eq!(missing(), Part::ALL);
        for (text, left) in
            [("lz4,zstd:-7", &Part::ALL[..]), ("lz4hc,zstd:3", &[Part::Deflate]), ("deflate-iaa", &[])]
        {
            complete(&open(&dir).unwrap(), choice(text)).unwrap();
            assert_eq!(missing(), left, "{text}");
        }
        let parts = Part::ALL.map(|part| pages_of(part).len()).iter().sum::<usize>();
        assert!(held() >= first + parts, "they were in no memory: {first} of {parts}");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_needs_more_than_the_library_begins_with() {
        for text in ["lz4", "zstd:1", "zstd:-7", "lzo", "lzo-rle", "842"] {
            assert_eq!(parts_of(Some(choice(text))), [], "{text}");
        }
        for text in ["zstd:2", "zstd:0", "zstd:22", "zstd:1,dict=file", "lz4,zstd:3"] {
            assert_eq!(parts_of(Some(choice(text))), [Part::ZstdSearch], "{text}");
        }
        assert_eq!(parts_of(Some(choice("deflate"))), [Part::Deflate]);
        assert_eq!(parts_of(None), Part::ALL);
    }
}
