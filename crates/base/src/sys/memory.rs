//! Mappings, and the memory of processes.

use super::{Fd, Result, madvise_keep};
use linux_raw_sys::general as g;

/// Maps `bytes` of private anonymous memory, or of the file in `fd` shared, at an address of the kernel's choice.
pub fn mmap(bytes: usize, prot: u32, flags: u32, fd: Option<&Fd>) -> Result<usize> {
    call!(__NR_mmap, 0, bytes, prot, flags, fd.map_or(-1, |f| f.0), 0)
}

/// The same at an address, where `flags` must have MAP_FIXED or MAP_FIXED_NOREPLACE.
///
/// # Safety
/// With MAP_FIXED nobody may use what is there.
pub unsafe fn mmap_at(at: usize, bytes: usize, prot: u32, flags: u32, fd: Option<&Fd>) -> Result<()> {
    debug_assert!(flags & (g::MAP_FIXED | g::MAP_FIXED_NOREPLACE) != 0);
    call!(__NR_mmap, at, bytes, prot, flags, fd.map_or(-1, |f| f.0), 0).map(drop)
}

/// Unmaps a range.
///
/// # Safety
/// Nothing may use the range any more.
pub unsafe fn munmap(at: usize, bytes: usize) -> Result<()> {
    call!(__NR_munmap, at, bytes).map(drop)
}

/// Advises the kernel on a range.
///
/// # Safety
/// Advice that discards contents must be given on memory whose contents nobody needs.
pub unsafe fn madvise(at: usize, bytes: usize, advice: u32) -> Result<()> {
    call!(__NR_madvise, at, bytes, advice).map(drop)
}

/// Changes a range's protection.
///
/// # Safety
/// The range must be the caller's, and its users must agree with the protection.
pub unsafe fn mprotect(at: usize, bytes: usize, prot: u32) -> Result<()> {
    call!(__NR_mprotect, at, bytes, prot).map(drop)
}

/// Moves a mapping to `to`, which takes the place of what is there, and grows or shrinks it to `new_bytes`; with MREMAP_DONTUNMAP it stays, empty.
///
/// # Safety
/// Nobody may use what was at either place by its old address.
pub unsafe fn mremap(at: usize, bytes: usize, new_bytes: usize, flags: u32, to: usize) -> Result<()> {
    call!(__NR_mremap, at, bytes, new_bytes, g::MREMAP_MAYMOVE | g::MREMAP_FIXED | flags, to).map(drop)
}

/// Takes VM_LOCKED off a range.
pub fn munlock(at: usize, bytes: usize) -> Result<()> {
    call!(__NR_munlock, at, bytes).map(drop)
}

/// Has the kernel part the pages of the large folio that the one at `at` is in. UFFDIO_MOVE says EBUSY of all of them for
/// as long as the first was shared and was not written to since (Linux 6.18 looks at that one's flag alone), whosever
/// the one at `at` is. What memory holds stays as it is. EINVAL: the memory is locked.
pub fn split_folio(at: usize) -> Result<()> {
    // Advice on less than a whole folio splits it; what is cold goes first where the machine has no memory left.
    madvise_keep(at, crate::PAGE, g::MADV_COLD).map(drop)
}

/// Copies a process's memory from `at`. What is missing there is waited for, as a touch would; who must not wait reads /proc/self/mem.
pub fn peek(pid: u32, at: usize, buffer: &mut [u8]) -> Result<usize> {
    let local = [buffer.as_mut_ptr() as usize, buffer.len()];
    let remote = [at, buffer.len()];
    call!(__NR_process_vm_readv, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0)
}

/// Copies `bytes` to a process's memory at `at`.
///
/// # Safety
/// The memory there must be the caller's to write.
pub unsafe fn poke(pid: u32, at: usize, bytes: &[u8]) -> Result<usize> {
    let local = [bytes.as_ptr() as usize, bytes.len()];
    let remote = [at, bytes.len()];
    call!(__NR_process_vm_writev, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0)
}

/// True when processes `a` and `b` have the same address space; an error where the kernel cannot say.
pub fn same_vm(a: u32, b: u32) -> Result<bool> {
    const KCMP_VM: u32 = 1;
    call!(__NR_kcmp, a, b, KCMP_VM, 0, 0).map(|order| order == 0)
}
