//! What the pager asks of the world: a [`Kernel`] that moves pages and tells of faults, and a [`Store`] that keeps
//! what went out.
//!
//! The engine gives it the real ones (`live` in the engine crate); tests give it a simulated kernel that runs the
//! program's threads between any two calls, from a seed, and can plant the bugs that docs/hazards.md lists.

use alloc::vec::Vec;
pub use base::Damaged;
use base::PageMask;
use core::fmt;
use core::ops::Range;
pub use uffd::pagemap::Run;
pub use uffd::{Errno, Message, Moved};
use vmscan::PAGE;
use zswap::objects::{Body, Came, Contents};

/// Pages of a window.
pub const WINDOW_PAGES: usize = vmscan::WINDOW / PAGE;

/// Of so many pages at a time it is asked who has them.
pub const LOOK_PAGES: usize = u128::BITS as usize;

/// What can be seen of a child's mappings; sorted and apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Birthmarks {
    /// Those that are empty because the program wanted it so (MADV_WIPEONFORK).
    pub wiped: Vec<Range<usize>>,
    /// Those that the parent's engine had registered when it stood still, wherever they have been moved since.
    pub known: Vec<Range<usize>>,
}

/// What has become of memory that a locked mapping has grown by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filled {
    /// Nothing: it is not locked, or not filled before somebody touches it. Who waits there has to wait for
    /// somebody who is only slow.
    No,
    /// Some or all of it is there, and all of it registered as before.
    Whole,
    /// This part is not registered any more: it has become another mapping, or cannot be registered. The kernel
    /// serves it.
    Left(Range<usize>),
}

/// The operating system, for one process.
pub trait Kernel {
    /// The next message. Once an event is returned, whoever caused it runs on.
    fn next(&mut self) -> Option<Message>;
    /// Makes missing pages of the mapping that holds `range` fault to the pager, and keeps it out of children. Once
    /// this is `Ok`, and no event is under way, all of the returned range, which holds `range`, is registered. EAGAIN:
    /// it has changed meanwhile; to be asked for anew. EINVAL: it cannot be registered, or the mapping was split and
    /// does not hold all of `range` any more.
    fn register(&mut self, range: Range<usize>) -> Result<Range<usize>, Errno>;
    /// Undoes `register` for all mappings that touch the range.
    fn unregister(&mut self, range: Range<usize>);
    /// A thread waits at the start of `range`, of which nothing is known, and nothing can be put there. If that is
    /// because mremap fills what it has added to a locked mapping: has it go on, as if that were not registered, up
    /// to the end of `range` or of the mapping.
    fn fill_locked(&mut self, range: Range<usize>) -> Filled {
        let _ = range;
        Filled::No
    }
    /// True when the mapping at `at` is locked: it is not registered, unless it was before.
    fn is_locked(&mut self, at: usize) -> bool {
        let _ = at;
        false
    }
    /// Undoes `register` for exactly `range`, of which nothing is out.
    fn release(&mut self, range: Range<usize>);
    /// False when the mapping at `at` is registered with another userfaultfd, the program's own, or with none,
    /// which the program may be about to change: the kernel would let us fill the holes of the one, and what is in
    /// the other when it is registered is never missed.
    fn is_ours(&mut self, at: usize) -> bool {
        let _ = at;
        true
    }
    /// What a child's mappings say of themselves. Asked once, by a child.
    fn birthmarks(&mut self) -> Result<Birthmarks, Errno>;
    /// True when any page of a range is mapped.
    fn is_mapped(&mut self, range: Range<usize>) -> bool;
    /// The mapping, of any kind, that holds `at`.
    fn mapping(&mut self, at: usize) -> Option<Range<usize>>;
    /// The first stretch of manageable memory that ends after `at`: private, anonymous, readable, not the engine's
    /// own. `asks` is less by the mappings that were asked about. Where it comes to 0 before one is found: `Err` with
    /// the address up to which there is none.
    fn area(&mut self, at: usize, asks: &mut usize) -> Result<Option<Range<usize>>, usize>;
    /// Runs of present pages in `range`, about `max_pages` at most: how many runs, and up to which address it looked.
    fn present(&mut self, range: Range<usize>, max_pages: usize, runs: &mut [Run]) -> (usize, usize);
    /// True when there is no page at `at`, neither present nor in the kernel's own swap.
    fn is_hole(&mut self, at: usize) -> bool {
        self.present(at..at + PAGE, 1, &mut [Run::default()]).0 == 0
    }
    /// What the page tables say of the pages from `at` on, in the form of /proc/PID/pagemap; 0 for what they do not
    /// know.
    fn entries(&mut self, at: usize, entries: &mut [u64]);
    /// True for a page that must not leave the program now, since a thread has the kernel look at it or take it, or has
    /// pinned it.
    fn is_held(&mut self, at: usize) -> bool {
        let _ = at;
        false
    }
    /// A range is no mapping any more: what is pinned of it is so no longer.
    fn has_unmapped(&mut self, range: &Range<usize>) {
        let _ = range;
    }
    /// A range has another address, from `to` on, and so has what is pinned of it.
    fn has_remapped(&mut self, from: &Range<usize>, to: usize) {
        let _ = (from, to);
    }
    /// The same as `present` from `at` to the end of the address space, in whatever mapping is not the engine's;
    /// `None` when there are none. With pages that the kernel's own swap has, if they are wanted too; and with whether
    /// they were touched since they were watched, where that is told.
    fn occupied(
        &mut self,
        at: usize,
        max_pages: usize,
        wants_swapped: bool,
        runs: &mut [Run],
    ) -> Option<(usize, usize)>;
    /// True while the kernel's own swap has pages of this memory.
    fn is_swapped(&self) -> bool {
        false
    }
    /// Pages that must stay, because the kernel writes to them without a fault (thread control blocks, robust
    /// lists); sorted.
    fn pins(&mut self, pins: &mut Vec<usize>);
    /// Moves pages between the program and the engine, either way, whatever their protection.
    fn move_pages(&mut self, dst: usize, src: usize, bytes: usize) -> Moved;
    /// Moves a huge page, or what was one, between memory that can be written to: `bytes` are its length, and both
    /// addresses are aligned to it.
    fn move_huge(&mut self, dst: usize, src: usize, bytes: usize) -> Moved;
    /// True where all of `range`, which is as long as a huge page, is one.
    fn is_huge(&mut self, range: Range<usize>) -> bool {
        let mut runs = [Run::default(); 1];
        self.present(range.clone(), usize::MAX, &mut runs);
        runs[0] == Run { start: range.start, end: range.end, huge: true, touched: false }
    }
    /// True where the kernel itself would make a huge page of a range of the program's, which is as long as one, for
    /// the first touch of it.
    fn wants_huge(&mut self, range: &Range<usize>) -> bool {
        let _ = range;
        false
    }
    /// Makes a huge page of zeros where the engine has none and no page table is; false where that is not to be had,
    /// and maybe pages there.
    fn populate_huge(&mut self, at: usize, bytes: usize) -> bool;
    /// Makes a huge page of the pages of a range of the program's, which is as long as one. False where that is not to
    /// be had, as where a page is missing.
    fn collapse(&mut self, range: Range<usize>) -> bool;
    /// Copies engine memory into holes of the program, over guards too.
    fn copy(&mut self, dst: usize, src: usize, bytes: usize) -> Moved;
    /// Fills holes with the shared zero page.
    fn zero(&mut self, dst: usize, bytes: usize) -> Moved;
    /// True where it is told which pages of registered memory are touched.
    fn tells_touches(&self) -> bool {
        false
    }
    /// From now on it is told whether somebody touches a page that is in registered memory now. EAGAIN: an event is
    /// under way.
    fn watch(&mut self, range: Range<usize>) -> Result<(), Errno> {
        let _ = range;
        Ok(())
    }
    /// Has each write to a page that is in registered memory now, and that others have too since a fork, told
    /// before it is made: it takes memory for a copy. EAGAIN: an event is under way. Not where touches are told, since
    /// page tables have one bit for both: what is copied then is counted late.
    fn protect(&mut self, range: Range<usize>) -> Result<(), Errno>;
    /// Undoes `protect` for pages that are about to be written to, and wakes those who wait. Returns how many of
    /// them others have too: so many copies will be made. EAGAIN: an event is under way.
    fn unprotect(&mut self, range: Range<usize>) -> Result<usize, Errno>;
    /// Undoes `protect`, or `watch`, for pages that are about to be moved to the engine's memory, and wakes those who
    /// wait. Of those that others have too none counts as a copy. EAGAIN: an event is under way.
    fn lift_protection(&mut self, range: Range<usize>) -> Result<(), Errno>;
    /// Which pages of a range, [`LOOK_PAGES`] at most, another process has too, since a fork: a bit for each.
    fn shared(&mut self, range: Range<usize>) -> u128;
    /// Makes a page that is not protected exclusively owned again after a fork; false when that is not to be had.
    /// It must not wait for a fault: the page may be a hole by now, which only the caller could fill
    /// (MADV_POPULATE_WRITE would wait, FUTEX_WAKE_OP that adds 0 says EFAULT).
    fn unshare(&mut self, at: usize) -> bool;
    /// Parts the pages of the large folio that this one is in: moves are refused with EBUSY for as long as the folio's
    /// first page was not written to since a fork, whosever the others are. False where that is refused.
    fn split_folio(&mut self, at: usize) -> bool;
    /// Makes those who wait in a range look again.
    fn wake(&mut self, range: Range<usize>);
    /// Makes a lost page raise SIGBUS, and says why. False, and nothing done: an event is under way, and the page
    /// may be another by now.
    fn lose(&mut self, at: usize, why: fmt::Arguments<'_>) -> bool;
    /// Gives pages of the engine's own (inactive list, bounce window) back to the kernel; false when they stay.
    fn discard(&mut self, at: usize, bytes: usize) -> bool;
    /// Has zeroed pages of the engine's own (inactive list, fresh) made where there are none; false where there is
    /// no memory for all of them.
    fn populate(&mut self, at: usize, bytes: usize) -> bool;
    /// Writes zeros to engine memory.
    fn clear(&mut self, at: usize, bytes: usize);
    /// Begins a census: every thread that uses the program's memory now may be about to discard so many bytes of
    /// pages, whose REMOVE event has been read.
    fn census_begin(&mut self, bytes: usize);
    /// True when every thread of the census has been seen outside of such a call since, or has run for longer than
    /// one takes, or is gone.
    fn census_done(&mut self) -> bool;
    /// Nothing can be done before the program's threads have run: let them.
    fn pause(&mut self);
    /// Milliseconds since some point in the past.
    fn now_ms(&mut self) -> u64;
    /// The same in nanoseconds.
    fn now_ns(&mut self) -> u64 {
        self.now_ms() * 1_000_000
    }
}

/// A page's copy that may still be right: the pager remembers that page `page` of `body` was loaded there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prior {
    /// The object.
    pub body: Body,
    /// Page within the object.
    pub page: usize,
    /// Its hash, where that is kept since the object lies in an area alone.
    pub hash: Option<u128>,
}

/// A slot of the inactive list to be stored.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The slot.
    pub slot: u32,
    /// Its address.
    pub at: usize,
    /// Which of its pages are to be stored.
    pub pages: PageMask,
    /// How many pages an object holds at most: all of them, or 1 for pages that went out one by one and will come
    /// back so.
    pub unit: usize,
    /// They are kept as they are, since they go to an area at once.
    pub is_plain: bool,
    /// What each page was loaded from, if it was.
    pub priors: [Option<Prior>; WINDOW_PAGES],
    /// Fewer unchanged pages than these are stored anew all the same.
    pub fewest: usize,
}

/// A job to load pages into a slot ahead of the fault.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    /// The slot, all pages present.
    pub slot: u32,
    /// Its address.
    pub at: usize,
    /// The object.
    pub body: Body,
    /// First page within the object.
    pub first: usize,
    /// How many.
    pub pages: usize,
}

/// What has become of a job.
#[expect(
    clippy::large_enum_variant,
    reason = "it lies in its cell from the start: a box would be an allocation for each job"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A slot is stored.
    Stored(Stored),
    /// A slot is loaded, or the object is damaged.
    Fetched {
        /// The slot.
        slot: u32,
        /// False when the object is damaged.
        sound: bool,
    },
    /// A batch of objects is in an area, or not.
    Written {
        /// Which batch.
        number: usize,
        /// False where it could not be written.
        is_written: bool,
    },
    /// An object was read from an area, or not.
    Read {
        /// The object.
        id: u32,
        /// What has come of it.
        came: Came,
    },
}

/// What has become of a slot that is stored; masks are of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The slot.
    pub slot: u32,
    /// Pages that were still equal to their prior.
    pub reused: PageMask,
    /// Pages of zeros.
    pub zero: PageMask,
    /// Pages that `bodies` hold, in order: as many in each as the job's `unit` says, in the last what is left.
    pub in_bodies: PageMask,
    /// Those of them that have no data there, since one word fills each.
    pub filled: PageMask,
    /// The new objects. One that is missing did not fit into the pool.
    pub bodies: [Option<Body>; WINDOW_PAGES],
}

/// Pages of the inactive list in a row whose contents nobody needs: the pool may grow into them instead of into new
/// ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spare {
    /// Where the first is.
    pub at: usize,
    /// How many.
    pub pages: usize,
}

impl Spare {
    /// So many have gone from the front.
    pub fn take(&mut self, pages: usize) {
        self.at += pages * PAGE;
        self.pages -= pages;
    }
}

/// Where folios go, and come back from.
pub trait Store: Contents {
    /// Takes a job. The pages at `job.at` stay until it is done or withdrawn, but for those that MADV_FREE gave up
    /// and the kernel takes back: they read as zeros.
    fn submit(&mut self, job: Job);
    /// Takes a job to load.
    fn fetch(&mut self, fetch: Fetch);
    /// Takes a job back: true when it had not begun. Otherwise it is or will soon be among `complete`'s.
    fn withdraw(&mut self, slot: u32) -> bool;
    /// The next job that is done. What the pool moves away of `spare` it takes from the front; the rest stays the
    /// caller's.
    fn complete(&mut self, spare: &mut Spare) -> Option<Done>;
    /// Loads `pages` pages of an object, from page `first` on, to engine memory at `to`.
    fn load(&mut self, body: Body, first: usize, pages: usize, to: usize) -> Result<(), Damaged>;
}
