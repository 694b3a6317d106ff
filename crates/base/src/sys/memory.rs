//! Mappings, and the memory of processes.

use super::{Errno, Fd, Result, consts};
use linux_raw_sys::general as g;

/// Maps `bytes` of private anonymous memory, or of the file in `fd` shared, at an address of the kernel's choice:
/// `flags` have no MAP_FIXED.
pub fn mmap(bytes: usize, prot: u32, flags: u32, fd: Option<&Fd>) -> Result<usize> {
    if flags & (g::MAP_FIXED | g::MAP_FIXED_NOREPLACE) != 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: where no address is asked for the kernel takes one that nobody has.
    unsafe { call!(__NR_mmap, 0, bytes, prot, flags, fd.map_or(-1, Fd::raw), 0) }
}

/// The same at an address, where `flags` must have MAP_FIXED or MAP_FIXED_NOREPLACE.
///
/// # Safety
/// With MAP_FIXED nobody may use what is there.
pub unsafe fn mmap_at(at: usize, bytes: usize, prot: u32, flags: u32, fd: Option<&Fd>) -> Result<()> {
    debug_assert!(flags & (g::MAP_FIXED | g::MAP_FIXED_NOREPLACE) != 0);
    // SAFETY: the caller's contract.
    unsafe { call!(__NR_mmap, at, bytes, prot, flags, fd.map_or(-1, Fd::raw), 0) }.map(drop)
}

/// Unmaps a range.
///
/// # Safety
/// Nothing may use the range any more.
pub unsafe fn munmap(at: usize, bytes: usize) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { call!(__NR_munmap, at, bytes) }.map(drop)
}

/// Changes a range's protection.
///
/// # Safety
/// The range must be the caller's, and its users must agree with the protection.
pub unsafe fn mprotect(at: usize, bytes: usize, prot: u32) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { call!(__NR_mprotect, at, bytes, prot) }.map(drop)
}

/// The same, and takes the memory's protection key away (pkeys(7)), which mprotect leaves as it is. An error where the
/// processor has none.
///
/// # Safety
/// As for [`mprotect`].
pub unsafe fn mprotect_without_key(at: usize, bytes: usize, prot: u32) -> Result<()> {
    // SAFETY: as the caller says.
    unsafe { call!(__NR_pkey_mprotect, at, bytes, prot, 0) }.map(drop)
}

/// Moves a mapping to `to`, which takes the place of what is there, and grows or shrinks it to `new_bytes`; with
/// MREMAP_DONTUNMAP it stays, empty.
///
/// # Safety
/// Nobody may use what was at either place by its old address.
pub unsafe fn mremap(at: usize, bytes: usize, new_bytes: usize, flags: u32, to: usize) -> Result<()> {
    let flags = g::MREMAP_MAYMOVE | g::MREMAP_FIXED | flags;
    // SAFETY: the caller's contract.
    unsafe { call!(__NR_mremap, at, bytes, new_bytes, flags, to) }.map(drop)
}

/// Takes VM_LOCKED off a range.
pub fn munlock(at: usize, bytes: usize) -> Result<()> {
    // SAFETY: what memory holds and who may touch it stay as they are.
    unsafe { call!(__NR_munlock, at, bytes) }.map(drop)
}

/// Writes a mapping back. MS_INVALIDATE alone does nothing to anonymous memory, and says EBUSY where it is locked.
pub fn msync(at: usize, bytes: usize, flags: u32) -> Result<()> {
    // SAFETY: what memory holds stays as it is; a file's mapping and the file are one on Linux.
    unsafe { call!(__NR_msync, at, bytes, flags) }.map(drop)
}

/// Advises the kernel on a range.
///
/// # Safety
/// Advice that discards contents must be given on memory whose contents nobody needs.
pub unsafe fn madvise(at: usize, bytes: usize, advice: u32) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { call!(__NR_madvise, at, bytes, advice) }.map(drop)
}

/// Advice after which memory holds what it held, for the process that gives it.
const KEEPS: [u32; 15] = [
    g::MADV_NORMAL,
    g::MADV_RANDOM,
    g::MADV_SEQUENTIAL,
    g::MADV_WILLNEED,
    g::MADV_DONTFORK,
    g::MADV_DOFORK,
    g::MADV_HUGEPAGE,
    g::MADV_NOHUGEPAGE,
    g::MADV_DONTDUMP,
    g::MADV_DODUMP,
    g::MADV_COLD,
    g::MADV_COLLAPSE,
    g::MADV_PAGEOUT,
    g::MADV_POPULATE_READ,
    g::MADV_POPULATE_WRITE,
];

/// Advises the kernel on a range without discarding anything, such as MADV_DONTFORK; EINVAL for advice of another kind.
pub fn madvise_keep(at: usize, bytes: usize, advice: u32) -> Result<()> {
    if !KEEPS.contains(&advice) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: what memory holds stays as it is, as the list says.
    unsafe { madvise(at, bytes, advice) }
}

/// Has the kernel part the pages of the large folio that the one at `at` is in. UFFDIO_MOVE says EBUSY of all of them
/// for as long as the first was shared and was not written to since (Linux 6.18 looks at that one's flag alone),
/// whosever the one at `at` is. What memory holds stays as it is. EINVAL: the memory is locked.
pub fn split_folio(at: usize) -> Result<()> {
    // Advice on less than a whole folio splits it; what is cold goes first where the machine has no memory left.
    madvise_keep(at, crate::PAGE, g::MADV_COLD)
}

/// True where this memory gets no transparent huge pages by prctl (PR_SET_THP_DISABLE).
pub fn is_thp_disabled() -> Result<bool> {
    // SAFETY: the kernel answers by its result, and changes no memory.
    unsafe { call!(__NR_prctl, consts::PR_GET_THP_DISABLE, 0, 0, 0, 0) }.map(|yes| yes != 0)
}

/// This memory is to get no transparent huge pages from now on, nor a child's copy of it; or is to get them again.
pub fn disable_thp(yes: bool) -> Result<()> {
    // SAFETY: what memory holds stays as it is.
    unsafe { call!(__NR_prctl, consts::PR_SET_THP_DISABLE, yes, 0, 0, 0) }.map(drop)
}

/// Copies a process's memory from `at`. What is missing there is waited for, as a touch would; who must not wait reads
/// /proc/self/mem.
pub fn peek(pid: u32, at: usize, buffer: &mut [u8]) -> Result<usize> {
    let local = [buffer.as_mut_ptr() as usize, buffer.len()];
    let remote = [at, buffer.len()];
    // SAFETY: the kernel writes to the buffer, whose length it is told, and reads at `at` whatever that is: EFAULT
    // where nothing can be read.
    unsafe { call!(__NR_process_vm_readv, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0) }
}

/// Copies `bytes` to a process's memory at `at`.
///
/// # Safety
/// The memory there must be the caller's to write.
pub unsafe fn poke(pid: u32, at: usize, bytes: &[u8]) -> Result<usize> {
    let local = [bytes.as_ptr() as usize, bytes.len()];
    let remote = [at, bytes.len()];
    // SAFETY: the kernel reads the bytes, whose number it is told; the rest is the caller's contract.
    unsafe { call!(__NR_process_vm_writev, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0) }
}

/// True when processes `a` and `b` have the same address space; an error where the kernel cannot say.
pub fn same_vm(a: u32, b: u32) -> Result<bool> {
    const KCMP_VM: u32 = 1;
    // SAFETY: the kernel answers by its result, and changes no memory.
    unsafe { call!(__NR_kcmp, a, b, KCMP_VM, 0, 0) }.map(|order| order == 0)
}

#[cfg(test)]
mod tests {
    use super::super::{consts::*, getpid};
    use super::*;

    #[test]
    fn peek_reads_memory_and_refuses_holes() {
        let value = 0x1234_5678u32.to_le_bytes();
        let mut got = [0; 4];
        let pid = getpid().unwrap() as u32;
        assert_eq!(peek(pid, value.as_ptr() as usize, &mut got), Ok(4));
        assert_eq!(got, value);
        assert_eq!(peek(pid, 16, &mut got), Err(Errno::EFAULT));
    }

    #[test]
    fn what_may_lose_memory_is_refused_where_it_takes_no_promise() {
        let fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        assert_eq!(mmap(crate::PAGE, PROT_READ, fixed, None), Err(Errno::EINVAL));
        let at = mmap(crate::PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, None).unwrap();
        let word = at as *mut u32;
        // SAFETY: inside the mapping.
        unsafe { word.write(7) };
        const MADV_WIPEONFORK: u32 = 18;
        const MADV_GUARD_INSTALL: u32 = 102;
        for advice in [MADV_DONTNEED, MADV_FREE, MADV_REMOVE, MADV_WIPEONFORK, MADV_GUARD_INSTALL] {
            assert_eq!(madvise_keep(at, crate::PAGE, advice), Err(Errno::EINVAL), "{advice}");
        }
        for advice in KEEPS {
            // What a kernel or a machine does not have it refuses.
            let _ = madvise_keep(at, crate::PAGE, advice);
            // SAFETY: as above.
            assert_eq!(unsafe { word.read_volatile() }, 7, "{advice}");
        }
        // SAFETY: nobody uses it any more.
        unsafe { munmap(at, crate::PAGE) }.unwrap();
    }
}
