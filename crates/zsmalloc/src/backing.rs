//! Where a pool's memory comes from: the only boundary to the operating system.

use core::ptr::NonNull;

/// Maps, decommits and unmaps memory. `map` is called for 2 MiB at a time, and for each object above 128 KiB;
/// `decommit` for zspages and their ends.
///
/// Pages should be base pages that cost nothing until they are touched (private anonymous memory, without transparent
/// huge pages): the pool counts the pages that it has touched, and leaves the ends of many zspages untouched.
///
/// # Safety
/// - `map` returns memory that nobody else uses until it is unmapped, readable and writable, zeroed, aligned to
///   64 KiB, below 2^47, with provenance over all of it.
/// - After `decommit` the range is still mapped, and reads as initialised bytes of any value.
pub unsafe trait Backing {
    /// Maps `bytes`, a multiple of 64 KiB. `None` when there is no more.
    fn map(&self, bytes: usize) -> Option<NonNull<u8>>;

    /// Says that all of a page-aligned part of a mapping, decommitted or never touched, is about to be written: several
    /// pages at once cost less than one by one. What it reads as until then does not matter.
    fn commit(&self, at: NonNull<u8>, bytes: usize) {
        let _ = (at, bytes);
    }

    /// Gives the physical pages of a page-aligned part of a mapping back to the kernel (MADV_DONTNEED), and keeps the
    /// addresses.
    fn decommit(&self, at: NonNull<u8>, bytes: usize);

    /// Gives back all that one `map` returned, addresses included.
    fn unmap(&self, at: NonNull<u8>, bytes: usize);
}

// SAFETY: the methods are those of `B`.
unsafe impl<B: Backing + ?Sized> Backing for &B {
    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        (**self).map(bytes)
    }
    fn commit(&self, at: NonNull<u8>, bytes: usize) {
        (**self).commit(at, bytes)
    }
    fn decommit(&self, at: NonNull<u8>, bytes: usize) {
        (**self).decommit(at, bytes)
    }
    fn unmap(&self, at: NonNull<u8>, bytes: usize) {
        (**self).unmap(at, bytes)
    }
}
