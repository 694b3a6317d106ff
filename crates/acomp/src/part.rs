//! Parts of the compressors' code that only some of them run. In libzfolio.so each is a section of whole pages
//! (libzfolio/zfolio.ld), so that a run need not hold in memory what none of its compressors runs.

#![allow(unsafe_code)]

use core::ffi::c_void;

/// A part of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// How zstd looks for matches at its higher levels, and in a dictionary.
    ZstdSearch,
    /// What makes lz4hc's objects; lz4 reads them.
    Lz4hc,
    /// libdeflate.
    Deflate,
}

// One function of each part, none of them called.
unsafe extern "C" {
    fn ZSTD_compressBlock_lazy2();
    fn LZ4_setCompressionLevel();
    fn libdeflate_deflate_compress_bound();
}

impl Part {
    /// All that there are.
    pub const ALL: [Part; 3] = [Part::ZstdSearch, Part::Lz4hc, Part::Deflate];

    /// The section of libzfolio.so.
    pub fn section(self) -> &'static str {
        match self {
            Part::ZstdSearch => ".apart.zstd",
            Part::Lz4hc => ".apart.lz4hc",
            Part::Deflate => ".apart.deflate",
        }
    }

    /// False where this process's library was written without it: to run it would be to run zeros.
    pub(crate) fn is_there(self) -> bool {
        let function = match self {
            Part::ZstdSearch => ZSTD_compressBlock_lazy2 as *const c_void,
            Part::Lz4hc => LZ4_setCompressionLevel as *const c_void,
            Part::Deflate => libdeflate_deflate_compress_bound as *const c_void,
        };
        // SAFETY: code is mapped, and can be read. Whoever asks has a choice that the run's page says, before which the
        // part was written whole (zfolio/library.rs).
        let first = unsafe { function.cast::<u64>().read_unaligned() };
        first != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_are_in_a_program_that_is_linked_as_usual() {
        assert!(Part::ALL.into_iter().all(Part::is_there));
    }
}
