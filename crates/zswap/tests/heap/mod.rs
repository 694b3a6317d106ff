//! Memory for a cache: the allocator's.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use zsmalloc::Backing;

pub struct Heap;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 64 << 10).expect("a layout")
}

// SAFETY: zeroed memory of the allocator, aligned as asked, that stays until it is unmapped.
unsafe impl Backing for Heap {
    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: never of no bytes.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)) })
    }
    fn decommit(&self, _: NonNull<u8>, _: usize) {}
    fn unmap(&self, at: NonNull<u8>, bytes: usize) {
        // SAFETY: as it was mapped.
        unsafe { dealloc(at.as_ptr(), layout(bytes)) }
    }
}
