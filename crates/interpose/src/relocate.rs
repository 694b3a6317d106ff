//! The addresses that the loader leaves to the library itself. Its constants hold some 660 of them, on four pages: for
//! the loader to fill them in cost each process 20 us, and most processes only start up and count what they map.
//! zfolio.ld puts these constants on pages of their own, and the command's build.rs takes their relocations out of the
//! loader's sight.
//!
//! They are filled in before anything is called that is not in `.text.startup`; build.rs looks that nothing there needs
//! one.
//!
//! This is safe in any thread, in a signal handler in the midst of it, and in a child of fork or vfork made there:
//! whoever finds it undone does all of it himself, and it is the same each time.

use core::sync::atomic::AtomicU32;

/// Not 0 when all have been filled in.
#[unsafe(link_section = ".data.zfolio")]
pub static IS_DONE: AtomicU32 = AtomicU32::new(0);

/// Fills them in, unless that was done.
#[cfg(not(panic = "abort"))]
pub extern "C" fn finish() {}

#[cfg(panic = "abort")]
pub use bare::finish;

#[cfg(panic = "abort")]
mod bare {
    use super::IS_DONE;
    use core::sync::atomic::{AtomicUsize, Ordering::*};

    /// `Elf64_Rela` of type R_X86_64_RELATIVE.
    #[repr(C)]
    struct Relative {
        /// Where the address belongs, and what it is, both from where the library begins.
        at: usize,
        _kind: usize,
        address: usize,
    }

    /// What build.rs writes at the beginning of the pages that hold the constants.
    #[repr(C)]
    struct Header {
        /// Where the first relocation is, from where the library begins.
        first: usize,
        count: usize,
    }

    unsafe extern "C" {
        /// The linker's: where the library begins.
        static __ehdr_start: u8;
        /// zfolio.ld's.
        static zfolio_later: Header;
    }

    /// Fills them in, unless that was done.
    pub extern "C" fn finish() {
        if IS_DONE.load(Acquire) != 0 {
            return;
        }
        let base = &raw const __ehdr_start as usize;
        // SAFETY: what the linker and build.rs have written; the addresses are the library's own, and what is written
        // there is what everybody writes.
        unsafe {
            let Header { first, count } = zfolio_later;
            for relative in core::slice::from_raw_parts((base + first) as *const Relative, count) {
                let place = (base + relative.at) as *const AtomicUsize;
                (*place).store(base + relative.address, Relaxed);
            }
        }
        IS_DONE.store(1, Release);
    }
}
