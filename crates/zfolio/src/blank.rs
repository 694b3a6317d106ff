//! A shared object with nothing in it, for the loader of 32-bit programs.
//!
//! A 32-bit descendant inherits LD_PRELOAD, and its loader would say on its stderr that libzfolio.so is of the wrong
//! class. This one it loads without a word, and goes on.

use object::elf::*;

/// What `p_type`, `d_tag` and their like are made of.
fn words(values: &[u32]) -> impl Iterator<Item = u8> + '_ {
    values.iter().flat_map(|value| value.to_le_bytes())
}

/// sizeof(Elf32_Ehdr), sizeof(Elf32_Phdr), sizeof(Elf32_Dyn) and sizeof(Elf32_Sym).
const HEADER_BYTES: u32 = 52;
const SEGMENT_BYTES: u32 = 32;
const DYNAMIC_BYTES: u32 = 8;
const SYMBOL_BYTES: u32 = 16;

const SEGMENTS: u32 = 3;
const DYNAMICS: u32 = 7;
/// A table of one bucket and of one symbol, which is the one that means none.
const HASH: [u32; 4] = [1, 1, 0, 0];

/// The name by which the loader knows it, after the empty string that every table of strings begins with.
const STRINGS: &[u8] = b"\0libzfolio.so\0";

/// Where its parts begin, in the file as in memory.
const DYNAMIC_AT: u32 = HEADER_BYTES + SEGMENTS * SEGMENT_BYTES;
const HASH_AT: u32 = DYNAMIC_AT + DYNAMICS * DYNAMIC_BYTES;
const SYMBOLS_AT: u32 = HASH_AT + 4 * HASH.len() as u32;
const STRINGS_AT: u32 = SYMBOLS_AT + SYMBOL_BYTES;
const END: u32 = STRINGS_AT + STRINGS.len() as u32;

/// The object, for i386: the file's bytes.
///
/// All of it is one segment that is mapped, and writable since loaders before glibc 2.35 put addresses into the dynamic
/// section. What it says of the stack must be said: without it the loader would make the program's stacks executable.
pub fn object() -> Vec<u8> {
    const READ_WRITE: u32 = PF_R.0 | PF_W.0;
    const PAGE: u32 = base::PAGE as u32;
    let mut bytes = Vec::with_capacity(END as usize);
    bytes.extend(ELFMAG);
    bytes.extend([ELFCLASS32.0, ELFDATA2LSB.0, EV_CURRENT.0, ELFOSABI_SYSV.0]);
    bytes.extend([0; 8]);
    bytes.extend(ET_DYN.0.to_le_bytes());
    bytes.extend(EM_386.0.to_le_bytes());
    // Version, entry point, segments, sections, flags.
    bytes.extend(words(&[EV_CURRENT.0 as u32, 0, HEADER_BYTES, 0, 0]));
    for half in [HEADER_BYTES, SEGMENT_BYTES, SEGMENTS, 0, 0, 0] {
        bytes.extend((half as u16).to_le_bytes());
    }
    // Each: type, offset, virtual and physical address, bytes in the file and in memory, flags, alignment.
    bytes.extend(words(&[PT_LOAD.0, 0, 0, 0, END, END, READ_WRITE, PAGE]));
    let dynamic_bytes = DYNAMICS * DYNAMIC_BYTES;
    bytes.extend(words(&[
        PT_DYNAMIC.0,
        DYNAMIC_AT,
        DYNAMIC_AT,
        DYNAMIC_AT,
        dynamic_bytes,
        dynamic_bytes,
        READ_WRITE,
        4,
    ]));
    bytes.extend(words(&[PT_GNU_STACK.0, 0, 0, 0, 0, 0, READ_WRITE, 16]));
    for (tag, value) in [
        (DT_SONAME, 1),
        (DT_HASH, HASH_AT),
        (DT_SYMTAB, SYMBOLS_AT),
        (DT_SYMENT, SYMBOL_BYTES),
        (DT_STRTAB, STRINGS_AT),
        (DT_STRSZ, STRINGS.len() as u32),
        (DT_NULL, 0),
    ] {
        bytes.extend(words(&[tag.0 as u32, value]));
    }
    bytes.extend(words(&HASH));
    bytes.extend([0; SYMBOL_BYTES as usize]);
    bytes.extend(STRINGS);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::read::elf::{Dyn, FileHeader, ProgramHeader};

    #[test]
    fn a_reader_of_elf_finds_every_part_where_it_belongs() {
        let bytes = object();
        assert_eq!(bytes.len(), END as usize);
        let header = FileHeader32::<object::LittleEndian>::parse(&*bytes).unwrap();
        let endian = header.endian().unwrap();
        assert_eq!((header.e_type(endian), header.e_machine(endian)), (ET_DYN, EM_386));
        let segments = header.program_headers(endian, &*bytes).unwrap();
        assert_eq!(
            segments.iter().map(|s| s.p_type(endian)).collect::<Vec<_>>(),
            [PT_LOAD, PT_DYNAMIC, PT_GNU_STACK]
        );
        assert!(segments.iter().all(|s| s.p_flags(endian).0 & PF_X.0 == 0), "nothing of it is code");
        let dynamic = segments[1].dynamic(endian, &*bytes).unwrap().unwrap();
        let value =
            |tag: DynamicTag| dynamic.iter().find(|d| d.tag(endian) == tag).unwrap().val(endian) as usize;
        assert_eq!(&bytes[value(DT_STRTAB) + value(DT_SONAME)..][..12], b"libzfolio.so");
        assert_eq!(value(DT_STRTAB) + value(DT_STRSZ), bytes.len());
        assert_eq!(value(DT_SYMTAB) + value(DT_SYMENT), value(DT_STRTAB));
        assert_eq!(bytes[value(DT_HASH)..][..16], words(&HASH).collect::<Vec<_>>());
        assert!(dynamic.iter().all(|d| d.tag(endian) != DT_NEEDED));
    }
}
