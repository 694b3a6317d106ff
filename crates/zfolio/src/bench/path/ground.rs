//! Memory that stands for a program's, and for an engine's inactive list.

use base::{PAGE, Random};
use std::ops::Range;
use std::slice;
use uffd::pagemap::Pagemap;
use uffd::sys::{self, consts::*};
use uffd::{Errno, Features, Userfault};
use vmscan::HUGE;

/// How much goes out and comes back in a round.
pub const BYTES: usize = 4 * HUGE;

/// Two mappings of [`BYTES`] each, on a userfaultfd.
pub struct Ground {
    pub userfault: Userfault,
    pub pagemap: Pagemap,
    /// The program's, and the inactive list's; both begin with a huge page.
    pub program: usize,
    pub inactive: usize,
    mappings: [usize; 2],
}

impl Ground {
    /// Empty ones. The error is the kernel's.
    pub fn new() -> Result<Ground, Errno> {
        let (userfault, pagemap) = (Userfault::open(Features::Quiet)?, Pagemap::open()?);
        let map = || sys::mmap(BYTES + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None);
        let mappings = [map()?, map()?];
        let [program, inactive] = mappings.map(|at| at.next_multiple_of(HUGE));
        Ok(Ground { userfault, pagemap, program, inactive, mappings })
    }

    /// Fills the program's memory, in huge pages where that is asked for and there are any, and has all faults told
    /// from then on.
    pub fn fill(&self, memory: &[u8], is_huge: bool) -> Result<(), Errno> {
        let advice = if is_huge { MADV_HUGEPAGE } else { MADV_NOHUGEPAGE };
        for at in [self.program, self.inactive] {
            // Refused where there are no huge pages.
            let _ = sys::madvise_keep(at, BYTES, advice);
        }
        // SAFETY: a mapping of this ground, which nobody else has, and `memory` is as long.
        unsafe { slice::from_raw_parts_mut(self.program as *mut u8, BYTES) }.copy_from_slice(memory);
        self.register()
    }

    /// Has faults told.
    pub fn register(&self) -> Result<(), Errno> {
        for at in [self.program, self.inactive] {
            self.userfault.register(at..at + BYTES)?;
        }
        Ok(())
    }

    /// What the program has; all of it is there.
    pub fn contents(&self) -> &[u8] {
        // SAFETY: a mapping of this ground, in which nobody writes meanwhile.
        unsafe { slice::from_raw_parts(self.program as *const u8, BYTES) }
    }

    /// True where all of a range is in huge pages.
    pub fn is_huge(&self, range: Range<usize>) -> bool {
        let mut runs = [Default::default(); 64];
        let found =
            self.pagemap.present(range.clone(), range.len() / PAGE, &mut runs).map_or(0, |(found, _)| found);
        found > 0 && runs[..found].iter().all(|run| run.huge)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for at in self.mappings {
            // SAFETY: a mapping of this ground, which nobody has any more.
            let _ = unsafe { sys::munmap(at, BYTES + HUGE) };
        }
    }
}

/// Memory as a program has it.
pub fn made_up() -> Vec<u8> {
    let mut random = Random(1);
    let words = (0..BYTES as u64 / 16).flat_map(|n| [0x7f00_0000_0000 | random.word() >> 50 << 4, n & 31]);
    words.flat_map(u64::to_le_bytes).collect()
}
