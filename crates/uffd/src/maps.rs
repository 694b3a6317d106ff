//! The mappings of the process: PROCMAP_QUERY on /proc/self/maps (Linux 6.11), one mapping a call.

use crate::sys::{self, Fd, Result};
use core::ops::Range;
use linux_raw_sys::general as g;

const PROCMAP_QUERY: u32 = 0xc000_6611 | (size_of::<g::procmap_query>() as u32) << 16;

/// An open /proc/PID/maps.
pub struct Maps(Fd);

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Addresses.
    pub range: Range<usize>,
    /// What may be done with it: bits of mmap's `prot`.
    pub protection: u32,
    /// Shared with other processes, or of a file.
    pub foreign: bool,
    /// First bytes of the name as in /proc/PID/maps, without the NUL: `[heap]`, `[stack]`, `[anon:...]`.
    pub name: [u8; 16],
}

impl Mapping {
    /// Readable and writable, not executable.
    pub fn is_read_write(&self) -> bool {
        self.protection == g::PROT_READ | g::PROT_WRITE
    }

    /// True when somebody may write to it, whatever else may be done.
    pub fn is_writable(&self) -> bool {
        self.protection & g::PROT_WRITE != 0
    }
}

impl Maps {
    /// Opens the calling process's mappings.
    pub fn open() -> Result<Maps> {
        sys::open(b"/proc/self/maps\0", g::O_RDONLY).map(Maps)
    }

    /// The mapping that covers `at`, or else the first after it. `None` at the end. ENOTTY where the kernel is older
    /// than 6.11.
    pub fn query(&self, at: usize) -> Result<Option<Mapping>> {
        let mut name = [0u8; 256];
        // SAFETY: all fields are integers, for which zero is a value.
        let mut query: g::procmap_query = unsafe { core::mem::zeroed() };
        query.size = size_of::<g::procmap_query>() as u64;
        query.query_flags = g::procmap_query_flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;
        query.query_addr = at as u64;
        query.vma_name_addr = name.as_mut_ptr() as u64;
        query.vma_name_size = name.len() as u32;
        // SAFETY: the kernel writes the structure and at most `vma_name_size` bytes of the name.
        match unsafe { sys::ioctl(&self.0, PROCMAP_QUERY, &mut query) } {
            Err(sys::Errno::ENOENT) => return Ok(None),
            // A name of 256 bytes and more is a file's.
            Err(sys::Errno(36)) => {
                query.vma_name_size = 0;
                query.vma_name_addr = 0;
                // SAFETY: as above, without a name.
                unsafe { sys::ioctl(&self.0, PROCMAP_QUERY, &mut query) }?;
            }
            other => drop(other?),
        }
        let flag = |f: g::procmap_query_flags| query.vma_flags & f as u64 != 0;
        use g::procmap_query_flags as f;
        let protections = [
            (f::PROCMAP_QUERY_VMA_READABLE, g::PROT_READ),
            (f::PROCMAP_QUERY_VMA_WRITABLE, g::PROT_WRITE),
            (f::PROCMAP_QUERY_VMA_EXECUTABLE, g::PROT_EXEC),
        ];
        Ok(Some(Mapping {
            range: query.vma_start as usize..query.vma_end as usize,
            protection: protections.map(|(f, bit)| if flag(f) { bit } else { 0 }).into_iter().sum(),
            foreign: flag(f::PROCMAP_QUERY_VMA_SHARED) || query.inode != 0,
            name: core::array::from_fn(|i| if query.vma_name_size > 0 { name[i] } else { 0 }),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mapping_is_found_once_and_in_order() {
        let maps = Maps::open().unwrap();
        let (mut at, mut seen) = (0, Vec::new());
        while let Some(m) = maps.query(at).unwrap() {
            assert!(m.range.start >= at);
            at = m.range.end;
            seen.push(m);
        }
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let heap = text.lines().find(|l| l.ends_with("[heap]")).unwrap();
        let start = usize::from_str_radix(heap.split('-').next().unwrap(), 16).unwrap();
        let found = seen.iter().find(|m| m.range.start == start).unwrap();
        assert!(found.is_read_write() && !found.foreign && found.name.starts_with(b"[heap]"), "{found:?}");
        assert!(
            seen.iter().any(|m| m.foreign && m.protection == g::PROT_READ | g::PROT_EXEC),
            "the program's text"
        );
    }
}
