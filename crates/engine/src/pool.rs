//! The pool's memory: mappings of the engine's own, which grow by pages of stock where there are any.
//!
//! Where a program writes more than it may have, pages that were emptied and memory that the pool needs come at about
//! the same rate. To give the former back and to have the latter made costs several times what a move does: the kernel
//! clears each page, and each call is one more.

use alloc::vec::Vec;
use control::arena;
use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use mm::kernel::Spare;
use uffd::pagemap::Pagemap;
use uffd::sys::{self, consts::*};
use uffd::{Errno, PAGE, Userfault};
use zsmalloc::Backing;

/// How pages are moved in.
pub struct Mover {
    /// A descriptor of its own, on which nothing is told: the pool gives memory back all the time.
    pub quiet: Userfault,
    /// Page tables to ask.
    pub pagemap: Pagemap,
}

/// The mappings of the pool, and the pages that they may grow by.
pub struct PoolMemory {
    /// None where that was refused.
    mover: RefCell<Option<Mover>>,
    /// Where its mappings are, and how long.
    mapped: RefCell<Vec<(usize, usize)>>,
    spare: Cell<Spare>,
}

impl PoolMemory {
    /// No memory yet. Without `mover` no pages are moved in.
    pub fn new(mover: Option<Mover>) -> PoolMemory {
        PoolMemory { mover: RefCell::new(mover), mapped: RefCell::default(), spare: Cell::default() }
    }

    /// In a child: the parent's descriptors are not there, and nothing is registered.
    pub fn reopen(&self, mover: Option<Mover>) {
        if let Some(mover) = &mover {
            for &(at, bytes) in &*self.mapped.borrow() {
                let _ = mover.quiet.register_silent(at..at + bytes);
            }
        }
        // The numbers of the parent's are others' here, or nobody's.
        core::mem::forget(self.mover.replace(mover));
        self.spare.take();
    }

    /// What the pool may grow into from now on, instead of what it might until now, which is returned as far as it is
    /// left.
    pub fn lend(&self, spare: Spare) -> Spare {
        self.spare.replace(spare)
    }

    /// Moves spare pages in, as far as there are any; how many bytes it was.
    fn grow(&self, at: usize, bytes: usize) -> usize {
        let mover = self.mover.borrow();
        let Some(Mover { quiet, pagemap }) = &*mover else { return 0 };
        let (mut spare, mut grown) = (self.spare.get(), 0);
        while grown < bytes && spare.pages > 0 {
            let want = (bytes - grown).min(spare.pages * PAGE);
            // SAFETY: nobody needs what lies on the spare pages, and there is no object yet where they go.
            let moved = unsafe { quiet.move_pages(pagemap, at + grown, spare.at, want) };
            spare.take(moved.bytes / PAGE);
            grown += moved.bytes;
            match moved.stop {
                None => {}
                // A page that MADV_FREE gave up, and the kernel has taken back.
                Some(Errno::ENOENT) => spare.take(1),
                Some(_) => break,
            }
        }
        self.spare.set(spare);
        grown
    }
}

// SAFETY: `map` hands out fresh zeroed mappings, aligned as asked; a range that is given back with MADV_DONTNEED reads
// as zeros, and one to which pages were moved as what they held.
unsafe impl Backing for PoolMemory {
    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        let at = arena::map(bytes, 64 << 10)?;
        self.mapped.borrow_mut().push((at, bytes));
        if let Some(mover) = &*self.mover.borrow() {
            // Refused, it takes no pages, and has new ones made.
            let _ = mover.quiet.register_silent(at..at + bytes);
        }
        NonNull::new(at as *mut u8)
    }

    fn commit(&self, at: NonNull<u8>, bytes: usize) {
        let at = at.as_ptr() as usize;
        let grown = self.grow(at, bytes);
        if grown < bytes {
            let _ = sys::madvise_keep(at + grown, bytes - grown, MADV_POPULATE_WRITE);
        }
    }

    fn decommit(&self, at: NonNull<u8>, bytes: usize) {
        // Refused (of memory that the program has locked), the pages stay, and are used again when the pool grows.
        // SAFETY: the pool has no object there.
        let _ = unsafe { sys::madvise(at.as_ptr() as usize, bytes, MADV_DONTNEED) };
    }

    fn unmap(&self, at: NonNull<u8>, bytes: usize) {
        self.mapped.borrow_mut().retain(|mapping| mapping.0 != at.as_ptr() as usize);
        // SAFETY: the pool has no object there and forgets the range.
        unsafe { arena::unmap(at.as_ptr() as usize, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uffd::Features;

    #[test]
    fn it_grows_by_spare_pages_from_the_front_and_by_new_ones_after_that() {
        let mover =
            || Ok::<_, Errno>(Mover { quiet: Userfault::open(Features::Quiet)?, pagemap: Pagemap::open()? });
        let pool = PoolMemory::new(mover().ok());
        if pool.mover.borrow().is_none() {
            crate::skip::skip("userfaultfd is refused");
            return;
        }
        let spare = arena::map(4 * PAGE, PAGE).unwrap();
        for page in 0..4 {
            // SAFETY: inside the mapping.
            unsafe { ((spare + page * PAGE) as *mut u8).write(page as u8 + 1) };
        }
        assert_eq!(pool.lend(Spare { at: spare, pages: 4 }), Spare::default());
        let at = pool.map(64 << 10).unwrap();
        let first_bytes = |pages: usize| -> Vec<u8> {
            // SAFETY: inside the mapping.
            (0..pages).map(|page| unsafe { at.add(page * PAGE).read() }).collect()
        };
        pool.commit(at, 3 * PAGE);
        assert_eq!(pool.spare.get(), Spare { at: spare + 3 * PAGE, pages: 1 });
        assert_eq!(first_bytes(3), [1, 2, 3], "moved, not made");
        // SAFETY: inside the mapping.
        pool.commit(unsafe { at.add(3 * PAGE) }, 3 * PAGE);
        let mover = pool.mover.borrow();
        let pagemap = &mover.as_ref().unwrap().pagemap;
        assert!((0..6).all(|page| pagemap.is_present(at.as_ptr() as usize + page * PAGE).unwrap()));
        assert_eq!(first_bytes(6), [1, 2, 3, 4, 0, 0]);
        // And what was given back grows again.
        assert_eq!(pool.lend(Spare::default()).pages, 0);
        pool.decommit(at, PAGE);
        // SAFETY: inside the mapping.
        unsafe { ((spare + PAGE) as *mut u8).write(7) };
        // The first is not there any more: it is passed over.
        pool.lend(Spare { at: spare, pages: 2 });
        pool.commit(at, PAGE);
        assert_eq!((first_bytes(1), pool.lend(Spare::default()).pages), (vec![7], 0));
        pool.unmap(at, 64 << 10);
    }
}
