//! `--visible`: how much memory programs see. The library that a run's programs load has the size in it, and the
//! functions by which it answers them (interpose/src/visible.rs) are in its table of symbols. In any other run the
//! loader finds no such functions there, since build.rs has taken them out.

use crate::library::LIBRARY;
use object::elf::{Sym64, SymbolSection};
use object::pod::slice_from_all_bytes_mut;
use object::read::elf::{ElfFile64, ElfSection64};
use object::{LittleEndian, Object, ObjectSection, ObjectSegment, ObjectSymbol};
use std::borrow::Cow;
use std::ops::Range;

/// Where the functions lie, and the loader's tables of symbols and of their names.
const FUNCTIONS: &str = ".visible";
const SYMBOLS: &str = ".dynsym";
const NAMES: &str = ".dynstr";

/// The variable that holds the size.
const SIZE: &str = "zfolio_visible_bytes";

type Elf<'a> = ElfFile64<'a, LittleEndian>;

/// The library for programs that are to see so many bytes of memory, or all that there is.
pub fn library(visible_bytes: Option<u64>) -> Cow<'static, [u8]> {
    match visible_bytes {
        None => Cow::Borrowed(LIBRARY),
        Some(bytes) => Cow::Owned(answering(bytes).expect("build.rs has looked at the library")),
    }
}

/// A function as the table of all symbols has it: its name, its section, where it begins, and its bytes.
struct Function {
    name: Vec<u8>,
    section: u32,
    at: u64,
    size: u64,
}

fn answering(bytes: u64) -> Option<Vec<u8>> {
    let elf = Elf::parse(LIBRARY).ok()?;
    let in_file = |section: &ElfSection64<LittleEndian>| {
        let (from, bytes) = section.file_range()?;
        Some(from as usize..(from + bytes) as usize)
    };
    let section = |name| in_file(&elf.section_by_name(name)?);
    let (symbols, names, size): (_, _, Range<usize>) = (section(SYMBOLS)?, section(NAMES)?, variable(&elf)?);
    let functions = functions(&elf)?;

    let mut file = LIBRARY.to_vec();
    file[size].copy_from_slice(&bytes.to_le_bytes());
    let names = &LIBRARY[names];
    let table = slice_from_all_bytes_mut::<Sym64<LittleEndian>>(&mut file[symbols]).ok()?;
    for function in &functions {
        let is_it = |symbol: &&mut Sym64<LittleEndian>| {
            let name = &names[symbol.st_name.get(LittleEndian) as usize..];
            name.starts_with(&function.name) && name[function.name.len()] == 0
        };
        let symbol = table.iter_mut().find(is_it)?;
        symbol.st_value.set(LittleEndian, function.at);
        symbol.st_size.set(LittleEndian, function.size);
        symbol.st_shndx.set(LittleEndian, SymbolSection::new(function.section));
    }
    Some(file)
}

/// Where the size is in the file.
fn variable(elf: &Elf) -> Option<Range<usize>> {
    let symbol = elf.symbols().find(|symbol| symbol.name() == Ok(SIZE))?;
    let place = elf.segments().find_map(|segment| {
        let (from, bytes) = segment.file_range();
        let into = symbol.address().checked_sub(segment.address()).filter(|into| *into < bytes)?;
        Some((from + into) as usize)
    })?;
    Some(place..place + size_of::<u64>())
}

fn functions(elf: &Elf) -> Option<Vec<Function>> {
    let section = elf.section_by_name(FUNCTIONS)?.index();
    let symbols =
        elf.symbols().filter(|symbol| symbol.section_index() == Some(section) && symbol.is_global());
    let function = |symbol: object::read::elf::ElfSymbol64<LittleEndian>| {
        let (name, at, size) = (symbol.name_bytes().ok()?.to_vec(), symbol.address(), symbol.size());
        Some(Function { name, section: section.0 as u32, at, size })
    };
    symbols.map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the loader finds in a library: names, and whether they are there.
    fn exported(file: &[u8]) -> Vec<(String, bool)> {
        let elf = Elf::parse(file).unwrap();
        let symbols = elf.dynamic_symbols();
        symbols.map(|symbol| (symbol.name().unwrap().to_string(), symbol.is_definition())).collect()
    }

    #[test]
    fn functions_and_size_are_there_where_they_are_asked_for() {
        let (plain, answering) = (library(None), library(Some(123 << 20)));
        assert_eq!(&*plain, LIBRARY);
        assert_eq!(plain.len(), answering.len());
        let (hidden, shown) = (exported(&plain), exported(&answering));
        let is_there = |names: &[(String, bool)], name: &str| names.iter().any(|(n, is)| n == name && *is);
        for name in [
            "open",
            "open64",
            "openat",
            "__open_2",
            "fopen",
            "fopen64",
            "sysinfo",
            "sysconf",
            "get_phys_pages",
        ] {
            assert!(!is_there(&hidden, name) && is_there(&shown, name), "{name}");
        }
        assert!(["fork", "read", "execve"].iter().all(|name| is_there(&hidden, name)));
        assert!(
            shown.iter().all(|(name, is)| *is || name.is_empty() || !is_there(&hidden, name)),
            "{shown:?}"
        );
        let of = |file: &[u8]| {
            let size = variable(&Elf::parse(file).unwrap()).unwrap();
            u64::from_le_bytes(file[size].try_into().unwrap())
        };
        assert_eq!((of(&plain), of(&answering)), (0, 123 << 20));
        let differ = plain.iter().zip(&*answering).filter(|(a, b)| a != b).count();
        assert!(differ < 18 * 18 + 8, "{differ} bytes differ");
    }
}
