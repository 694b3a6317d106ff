//! The engine's heap, for `alloc`: dlmalloc under a lock, and mappings.

use alloc::alloc::{GlobalAlloc, Layout};
use control::arena::{self, map, unmap};
use core::ptr::null_mut;
use uffd::{Mutex, PAGE};

struct HeapPages;

// SAFETY: hands out fresh mappings and takes none back, as the trait allows.
unsafe impl dlmalloc::Allocator for HeapPages {
    fn alloc(&self, bytes: usize) -> (*mut u8, usize, u32) {
        match map(bytes, PAGE) {
            Some(at) => (at as *mut u8, bytes, 0),
            None => (null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, at: *mut u8, bytes: usize) -> bool {
        // SAFETY: dlmalloc frees a segment when nothing in it is allocated.
        unsafe { unmap(at as usize, bytes) };
        true
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

const fn new_heap() -> dlmalloc::Dlmalloc<HeapPages> {
    dlmalloc::Dlmalloc::new_with_allocator(HeapPages)
}

static HEAP: Mutex<dlmalloc::Dlmalloc<HeapPages>> = Mutex::new(new_heap());

/// In a process that has a heap of its own from now on.
///
/// # Safety
/// The caller is the only thread, and nothing of the old heap is used any more.
pub unsafe fn reset() {
    // SAFETY: nobody else can hold a reference to it, and it is written whole.
    unsafe { (&raw const HEAP).cast_mut().write(Mutex::new(new_heap())) }
}

/// From this size on an allocation is a mapping of its own: a table that grows moves its pages instead of copying them,
/// and leaves nothing
/// behind that dlmalloc would keep.
const LARGE_BYTES: usize = 256 << 10;

/// The allocator: mappings for what is large, dlmalloc for the rest.
pub struct Heap;

// SAFETY: both hand out memory of the layout that nobody else has.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= LARGE_BYTES {
            return map(layout.size(), layout.align()).map_or(null_mut(), |at| at as *mut u8);
        }
        // SAFETY: size and alignment are those of a layout.
        unsafe { HEAP.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        let at = unsafe { self.alloc(layout) };
        if !at.is_null() && layout.size() < LARGE_BYTES {
            // SAFETY: as long as it was asked for.
            unsafe { at.write_bytes(0, layout.size()) };
        }
        at
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract; what is large was mapped.
        unsafe {
            match layout.size() {
                LARGE_BYTES.. => unmap(at as usize, layout.size().next_multiple_of(PAGE)),
                size => HEAP.lock().free(at, size, layout.align()),
            }
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let new = Layout::from_size_align(bytes, layout.align()).expect("the caller's contract");
        if layout.size() < LARGE_BYTES && bytes < LARGE_BYTES {
            // SAFETY: the caller's contract.
            return unsafe { HEAP.lock().realloc(at, layout.size(), layout.align(), bytes) };
        }
        // SAFETY: the caller's contract. The new place is in the table before anything is there.
        unsafe {
            let to = self.alloc(new);
            if to.is_null() {
                return to;
            }
            if layout.size() >= LARGE_BYTES && bytes >= LARGE_BYTES {
                let (old, len) = (at as usize, layout.size().next_multiple_of(PAGE));
                if arena::remap(old..old + len, to as usize, bytes.next_multiple_of(PAGE)) {
                    return to;
                }
            }
            to.copy_from_nonoverlapping(at, layout.size().min(bytes));
            self.dealloc(at, layout);
            to
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_table_grows_and_shrinks_with_its_contents() {
        let layout = |bytes| Layout::from_size_align(bytes, 8).unwrap();
        let sizes = [100 << 10, 300 << 10, 5 << 20, 400 << 10, 50 << 10];
        // SAFETY: each allocation is used within its size, and freed once.
        unsafe {
            let mut at = Heap.alloc(layout(sizes[0]));
            at.write_bytes(7, sizes[0]);
            for (old, new) in sizes.into_iter().zip(sizes.into_iter().skip(1)) {
                at = Heap.realloc(at, layout(old), new);
                let kept = core::slice::from_raw_parts(at, old.min(new).min(50 << 10));
                assert!(kept.iter().all(|&b| b == 7), "{old} to {new}");
                assert!(arena::first_foreign(at as usize..at as usize + new).is_empty());
            }
            Heap.dealloc(at, layout(sizes[4]));
        }
    }
}
