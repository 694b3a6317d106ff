//! Which pages are present: PAGEMAP_SCAN on /proc/self/pagemap (Linux 6.7), 256 MiB in 0.8 ms.

use crate::PAGE;
use crate::sys::{self, Fd, Result};
use core::ops::Range;
use linux_raw_sys::general as g;

/// The request number of PAGEMAP_SCAN.
pub const SCAN: u32 = 0xc000_6610 | (size_of::<g::pm_scan_arg>() as u32) << 16;

/// Bits of an entry: the page is present; it is in the kernel's swap; a write to it is a fault of some userfaultfd's;
/// it was written to since somebody last asked for that to be forgotten.
pub const PRESENT_BIT: u64 = 1 << 63;
/// See [`PRESENT_BIT`].
pub const SWAPPED_BIT: u64 = 1 << 62;
/// See [`PRESENT_BIT`]. A guard (MADV_GUARD_INSTALL); kernels before 6.15 do not say.
const GUARD_BIT: u64 = 1 << 58;
/// See [`PRESENT_BIT`].
pub const PROTECTED_BIT: u64 = 1 << 57;
/// See [`PRESENT_BIT`].
pub const SOFT_DIRTY_BIT: u64 = 1 << 55;

const PRESENT: u64 = g::PAGE_IS_PRESENT as u64;
const SWAPPED: u64 = g::PAGE_IS_SWAPPED as u64;
const ZERO: u64 = g::PAGE_IS_PFNZERO as u64;
const FILE: u64 = g::PAGE_IS_FILE as u64;
const HUGE: u64 = g::PAGE_IS_HUGE as u64;
/// PAGE_IS_ACCESSED, of Linux 7.3 (touches.rs).
const ACCESSED: u64 = 1 << 9;

/// An open /proc/PID/pagemap.
pub struct Pagemap(Fd);

/// A run of present pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// First address.
    pub start: usize,
    /// Address after the last page.
    pub end: usize,
    /// Mapped by huge page-table entries.
    pub huge: bool,
    /// Somebody has touched all of it since it was watched, or has brought it and it is not watched; false where that
    /// was not asked, or is not told.
    pub touched: bool,
}

/// What is looked for beside pages that are present.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Pages that the kernel's own swap has. Markers (of guards, or poisoned) are among them.
    pub swapped: bool,
    /// Whether pages were touched (touches.rs), which kernels that do not tell it refuse.
    pub touches: bool,
}

/// False for a descriptor of another file than page tables, as its mode and size say: they are a regular file without a
/// size, that its owner alone may read. Where its path leads takes longer to ask.
pub fn may_be(fd: i32) -> bool {
    // SAFETY: plain integers, of any value.
    let mut stat: g::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes the structure.
    let told = unsafe { sys::syscall(g::__NR_fstat, [fd as usize, &raw mut stat as usize, 0, 0, 0, 0]) };
    told.is_ok() && stat.st_mode == g::S_IFREG | g::S_IRUSR && stat.st_size == 0
}

/// Where a descriptor stands, in bytes.
pub fn stands_at(fd: i32) -> Result<usize> {
    // SAFETY: changes nothing.
    unsafe { sys::syscall(g::__NR_lseek, [fd as usize, 0, g::SEEK_CUR as usize, 0, 0, 0]) }
}

impl Pagemap {
    /// Opens the calling process's page tables.
    pub fn open() -> Result<Pagemap> {
        sys::open(b"/proc/self/pagemap\0", g::O_RDONLY).map(Pagemap)
    }

    /// The same, opened by somebody else.
    pub fn opened(file: Fd) -> Pagemap {
        Pagemap(file)
    }

    /// Fills `runs` with anonymous present pages of `range`, the shared zero page left out, in order of address, about
    /// `max_pages` of them at most. Returns how many runs there are and the address up to which the range was looked
    /// at.
    pub fn present(&self, range: Range<usize>, max_pages: usize, runs: &mut [Run]) -> Result<(usize, usize)> {
        self.look(range, max_pages, Wanted::default(), runs)
    }

    /// The same with more of it.
    pub fn look(
        &self,
        range: Range<usize>,
        max_pages: usize,
        wanted: Wanted,
        runs: &mut [Run],
    ) -> Result<(usize, usize)> {
        let there = if wanted.swapped { PRESENT | SWAPPED } else { PRESENT };
        let told = if wanted.touches { HUGE | ACCESSED } else { HUGE };
        let mut regions = [g::page_region { start: 0, end: 0, categories: 0 }; 64];
        let take = runs.len().min(regions.len());
        let mut arg = g::pm_scan_arg {
            size: size_of::<g::pm_scan_arg>() as u64,
            flags: 0,
            start: range.start as u64,
            end: range.end as u64,
            walk_end: 0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: take as u64,
            max_pages: max_pages as u64,
            category_inverted: FILE | ZERO,
            category_mask: FILE | ZERO,
            category_anyof_mask: there,
            return_mask: there | told,
        };
        // SAFETY: the kernel writes `vec_len` regions at most, and the structure.
        let found = unsafe { sys::ioctl(&self.0, SCAN, &mut arg) }?;
        for (run, region) in runs.iter_mut().zip(&regions[..found]) {
            *run = Run {
                start: region.start as usize,
                end: region.end as usize,
                huge: region.categories & HUGE != 0,
                touched: region.categories & ACCESSED != 0,
            };
        }
        Ok((found, arg.walk_end as usize))
    }

    /// Which of the pages of a range, 128 at most, are there and in another process or place too: a bit for each.
    pub fn shared(&self, range: Range<usize>) -> Result<u128> {
        const EXCLUSIVE: u64 = 1 << 56;
        let mut entries = [0u8; 128 * 8];
        let bytes = (range.len() / PAGE * 8).min(entries.len());
        let len = sys::pread(&self.0, &mut entries[..bytes], range.start / PAGE * 8)?;
        let (words, _) = entries[..len].as_chunks::<8>();
        let is_shared = |word: &[u8; 8]| u64::from_le_bytes(*word) & (PRESENT_BIT | EXCLUSIVE) == PRESENT_BIT;
        Ok((0..).zip(words).fold(0, |bits, (page, word)| bits | (is_shared(word) as u128) << page))
    }

    /// True when the page at `at` is present in whatever form.
    pub fn is_present(&self, at: usize) -> Result<bool> {
        Ok(self.entry(at)? & PRESENT_BIT != 0)
    }

    /// True when there is a page at `at`: present in whatever form, or a swap entry of the kernel's own swap. Neither a
    /// hole is one nor a guard.
    pub fn has_page(&self, at: usize) -> Result<bool> {
        let entry = self.entry(at)?;
        Ok(entry & (PRESENT_BIT | SWAPPED_BIT) != 0 && entry & GUARD_BIT == 0)
    }

    /// The entries of the pages from `at` on, as far as the file has any, which is to the end of user space.
    pub fn entries(&self, at: usize, entries: &mut [u64]) -> Result<usize> {
        // SAFETY: the memory of integers, of which any bytes are a value.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut(entries.as_mut_ptr().cast(), size_of_val(entries)) };
        Ok(sys::pread(&self.0, bytes, at / PAGE * size_of::<u64>())? / size_of::<u64>())
    }

    /// True when the page at `at` is a guard (MADV_GUARD_INSTALL). Kernels before 6.15 do not say.
    pub fn is_guard(&self, at: usize) -> Result<bool> {
        Ok(self.entry(at)? & GUARD_BIT != 0)
    }

    fn entry(&self, at: usize) -> Result<u64> {
        let mut entry = [0u8; 8];
        sys::pread(&self.0, &mut entry, at / PAGE * 8)?;
        Ok(u64::from_ne_bytes(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::consts::*;

    #[test]
    fn written_pages_are_present_and_others_are_not() {
        let at = sys::mmap(64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
        for page in [3, 4, 5, 20] {
            // SAFETY: inside the mapping made above.
            unsafe { ((at + page * PAGE) as *mut u8).write(1) };
        }
        // SAFETY: inside the mapping; a read maps the shared zero page, which is not to be reported.
        unsafe { ((at + 30 * PAGE) as *const u8).read_volatile() };
        let pagemap = Pagemap::open().unwrap();
        let maps = sys::open(b"/proc/self/maps\0", O_RDONLY).unwrap();
        assert!(may_be(pagemap.0.raw()) && !may_be(maps.raw()) && !may_be(-1));
        let mut runs = [Run::default(); 8];
        let (found, end) = pagemap.present(at..at + 64 * PAGE, 64, &mut runs).unwrap();
        let pages: Vec<_> =
            runs[..found].iter().map(|r| ((r.start - at) / PAGE, (r.end - at) / PAGE)).collect();
        assert_eq!(pages, [(3, 6), (20, 21)]);
        assert_eq!(end, at + 64 * PAGE);
        assert_eq!(pagemap.is_present(at + 3 * PAGE), Ok(true));
        assert_eq!(pagemap.is_present(at + 2 * PAGE), Ok(false));
        assert_eq!([2, 3, 30].map(|page| pagemap.has_page(at + page * PAGE).unwrap()), [false, true, true]);
        let mut entries = [0; 64];
        assert_eq!(pagemap.entries(at, &mut entries), Ok(64));
        let there: Vec<_> = (0..64).filter(|page| entries[*page] & PRESENT_BIT != 0).collect();
        assert_eq!(there, [3, 4, 5, 20, 30]);
        // SAFETY: nobody else uses the mapping.
        unsafe { sys::munmap(at, 64 * PAGE) }.unwrap();
    }
}
