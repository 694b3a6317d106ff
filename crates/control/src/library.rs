//! Where the library itself lies.

use core::ops::Range;

/// The addresses of the library, from its ELF header.
pub fn library() -> Range<usize> {
    unsafe extern "C" {
        /// The linker's: where the header is.
        static __ehdr_start: ElfHeader;
    }
    /// `Elf64_Ehdr`, as far as it is needed.
    #[repr(C)]
    struct ElfHeader {
        _before: [u64; 4],
        program_headers: u64,
        _between: [u8; 14],
        size: u16,
        count: u16,
    }
    /// `Elf64_Phdr`, as far as it is needed.
    #[repr(C)]
    struct ProgramHeader {
        kind: u32,
        _flags: u32,
        _offset: u64,
        at: u64,
        _physical: u64,
        _in_file: u64,
        bytes: u64,
    }
    const PT_LOAD: u32 = 1;
    let base = &raw const __ehdr_start as usize;
    // SAFETY: the library is mapped, and with it its headers, at the beginning of its first segment.
    let end = unsafe {
        let header = &*(base as *const ElfHeader);
        (0..header.count as usize)
            .map(|n| {
                &*((base + header.program_headers as usize + n * header.size as usize)
                    as *const ProgramHeader)
            })
            .filter(|segment| segment.kind == PT_LOAD)
            .map(|segment| base + (segment.at + segment.bytes) as usize)
            .max()
    };
    base..end.unwrap_or(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_reaches_from_its_header_past_its_data() {
        let library = library();
        assert!(library.contains(&(super::library as *const () as usize)));
        assert!(library.contains(&(&raw const crate::CONTROL as usize)));
    }
}
