//! What kind of program a file is, read from its ELF header and program headers.

use object::elf::{self, FileHeader64};
use object::read::ReadCache;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSegment, ObjectSymbol};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

/// Kinds of programs, as far as a preloaded library sees a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elf {
    /// Not an ELF file.
    No,
    /// Started by a dynamic loader, glibc's as far as one can tell.
    Dynamic,
    /// Without a loader: static, or static-pie.
    Static,
    /// The same, made by Go's linker.
    StaticGo,
    /// Started by musl's loader.
    Musl,
    /// A 32-bit program.
    Bits32,
    /// For another processor.
    Foreign,
}

/// Reads the kind of the program in `path`. An error says what is wrong with the headers or the file.
pub fn read(path: &Path) -> io::Result<Elf> {
    let mut file = File::open(path)?;
    let mut ident = Vec::new();
    (&mut file).take(5).read_to_end(&mut ident)?;
    match ident.strip_prefix(b"\x7fELF") {
        None => return Ok(Elf::No),
        Some([class]) if *class == elf::ELFCLASS32.0 => return Ok(Elf::Bits32),
        Some(_) => file.rewind()?,
    }
    let cache = ReadCache::new(file);
    kind(&cache).map_err(io::Error::other)
}

fn kind(file: &ReadCache<File>) -> object::read::Result<Elf> {
    let header = FileHeader64::<object::Endianness>::parse(file)?;
    let endian = header.endian()?;
    if endian != object::Endianness::Little || header.e_machine.get(endian) != elf::EM_X86_64 {
        return Ok(Elf::Foreign);
    }
    let header = FileHeader64::<LittleEndian>::parse(file)?;
    let mut is_go = false;
    for segment in header.program_headers(LittleEndian, file)? {
        if let Some(loader) = segment.interpreter(LittleEndian, file)? {
            let musl = loader.windows(7).any(|name| name == b"ld-musl");
            return Ok(if musl { Elf::Musl } else { Elf::Dynamic });
        }
        // Go's linker writes a build ID of its own kind.
        if let Ok(Some(mut notes)) = segment.notes(LittleEndian, file) {
            while let Ok(Some(note)) = notes.next() {
                is_go |= note.name() == b"Go";
            }
        }
    }
    Ok(if is_go { Elf::StaticGo } else { Elf::Static })
}

/// A function or variable of a library.
pub struct Symbol {
    /// Its address, from where the library begins.
    pub at: u64,
    /// Its bytes in memory.
    pub size: u64,
    /// The file from its first byte on, as far as that is mapped with it.
    pub bytes: Vec<u8>,
}

/// Finds one by its name in the file's table of all symbols.
pub fn symbol(file: &[u8], name: &str) -> Option<Symbol> {
    /// So many bytes are enough to know a function by.
    const BYTES: u64 = 64;
    let elf = ElfFile64::<LittleEndian>::parse(file).ok()?;
    let symbol = elf.symbols().find(|symbol| symbol.name() == Ok(name))?;
    let (at, size) = (symbol.address(), symbol.size());
    let bytes = elf.segments().find_map(|segment| segment.data_range(at, BYTES).ok()?);
    Some(Symbol { at, size, bytes: bytes.unwrap_or_default().to_vec() })
}

/// A library as loaders need it.
pub struct Loaded<'a> {
    /// The file without the table of sections and what only that names, which lie behind all that is loaded.
    pub file: &'a [u8],
    /// The header that stands at its beginning then: of a file without sections.
    pub header: FileHeader64<LittleEndian>,
}

/// Reads a library; `None` for what is none.
pub fn loaded(file: &[u8]) -> Option<Loaded<'_>> {
    let elf = ElfFile64::<LittleEndian>::parse(file).ok()?;
    let end = elf.segments().map(|segment| segment.file_range()).map(|(at, bytes)| at + bytes).max()?;
    let mut header = *elf.elf_header();
    header.e_shoff.set(LittleEndian, 0);
    header.e_shnum.set(LittleEndian, 0);
    header.e_shstrndx.set(LittleEndian, elf::SHN_UNDEF);
    Some(Loaded { file: file.get(..end as usize)?, header })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::LIBRARY;
    use std::path::PathBuf;
    use std::process::Command;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("zfolio-elf-{name}-{}", std::process::id()))
    }

    fn kind_of(bytes: &[u8], name: &str) -> io::Result<Elf> {
        let path = scratch(name);
        std::fs::write(&path, bytes).unwrap();
        let kind = read(&path);
        std::fs::remove_file(path).unwrap();
        kind
    }

    /// A C program built with `flags`.
    fn built(flags: &[&str]) -> Vec<u8> {
        let name = flags.concat().replace('/', "-");
        let (source, out) = (scratch(&name).with_extension("c"), scratch(&name));
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        let status = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&out).status().unwrap();
        assert!(status.success(), "cc {flags:?}");
        let bytes = std::fs::read(&out).unwrap();
        std::fs::remove_file(source).unwrap();
        std::fs::remove_file(out).unwrap();
        bytes
    }

    #[test]
    fn dynamic_and_static_programs() {
        assert_eq!(kind_of(&built(&["-pie"]), "pie").unwrap(), Elf::Dynamic);
        assert_eq!(kind_of(&built(&["-no-pie"]), "no-pie").unwrap(), Elf::Dynamic);
        assert_eq!(kind_of(&built(&["-static"]), "static").unwrap(), Elf::Static);
        assert_eq!(kind_of(&built(&["-static-pie"]), "static-pie").unwrap(), Elf::Static);
    }

    #[test]
    fn another_loader_class_or_processor() {
        let musl = built(&["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
        assert_eq!(kind_of(&musl, "musl").unwrap(), Elf::Musl);
        let mut header = musl.clone();
        header[4] = elf::ELFCLASS32.0;
        assert_eq!(kind_of(&header, "32").unwrap(), Elf::Bits32);
        let mut header = musl;
        header[18] = elf::EM_AARCH64.0 as u8;
        assert_eq!(kind_of(&header, "aarch64").unwrap(), Elf::Foreign);
        header[5] = elf::ELFDATA2MSB.0;
        assert_eq!(kind_of(&header, "big").unwrap(), Elf::Foreign);
    }

    #[test]
    fn what_is_no_program() {
        assert_eq!(kind_of(b"", "empty").unwrap(), Elf::No);
        assert_eq!(kind_of(b"#!/bin/sh\n", "script").unwrap(), Elf::No);
        assert!(kind_of(b"\x7fELF\x02\x01\x01", "cut").is_err());
    }

    #[test]
    fn a_library_is_loaded_without_its_sections() {
        let Loaded { file, header } = loaded(LIBRARY).unwrap();
        assert!(file.len() < LIBRARY.len() && LIBRARY.starts_with(file));
        let header = object::pod::bytes_of(&header);
        let whole = [header, &file[header.len()..]].concat();
        let elf = ElfFile64::<LittleEndian>::parse(&*whole).unwrap();
        assert_eq!(elf.sections().count(), 0);
        assert!(elf.segments().all(|segment| segment.data().is_ok()));
        assert!(loaded(b"no library").is_none());
    }
}
