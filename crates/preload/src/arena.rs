//! The engine's own memory: mapped by itself, and never managed.
//!
//! Every mapping is entered in a table, so that the pager can leave it alone; MADV_DONTFORK keeps it out of children and keeps the kernel
//! from merging it with the program's mappings. Tables and pool (`map`) are let into a child that takes them over (fork.rs); the rest (`map_apart`) has
//! another life in each process.

use alloc::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::ptr::null_mut;
use uffd::lock::Guard;
use uffd::sys::{self, consts::*};
use uffd::{Mutex, PAGE};

/// The most ranges that the table holds; neighbours are joined, so a few hundred mappings make a few ranges.
const RANGES: usize = 512;

struct Table {
    ranges: [(usize, usize); RANGES],
    len: usize,
    bytes: usize,
}

/// What is the engine's, and what of it a child can take over.
struct Tables {
    own: Table,
    heritable: Table,
    /// The next child has it.
    is_let_in: bool,
}

/// Held while a mapping of the engine's comes or goes, so that the table says what is there: another thread's new mapping, at a place that
/// was given back a moment ago, must not leave the table with the old one.
static OWN: Mutex<Tables> = Mutex::new(Tables::new());

impl Tables {
    const fn new() -> Tables {
        Tables { own: Table::new(), heritable: Table::new(), is_let_in: false }
    }

    fn enter(&mut self, start: usize, end: usize, heritable: bool) -> bool {
        (!heritable || self.heritable.enter(start, end)) && self.own.enter(start, end)
    }

    fn leave(&mut self, start: usize, end: usize) {
        self.own.leave(start, end);
        if self.heritable.holds(start, end) {
            self.heritable.leave(start, end);
        }
    }
}

impl Table {
    const fn new() -> Table {
        Table { ranges: [(0, 0); RANGES], len: 0, bytes: 0 }
    }

    fn ranges(&self) -> &[(usize, usize)] {
        &self.ranges[..self.len]
    }

    fn holds(&self, start: usize, end: usize) -> bool {
        let at = self.ranges().partition_point(|r| r.1 <= start);
        at < self.len && self.ranges[at].0 <= start && end <= self.ranges[at].1
    }

    /// False when the table is full.
    fn enter(&mut self, start: usize, end: usize) -> bool {
        let used = &self.ranges[..self.len];
        let first = used.partition_point(|r| r.1 < start);
        let last = used.partition_point(|r| r.0 <= end);
        if first == last {
            if self.len == RANGES {
                return false;
            }
            self.ranges.copy_within(first..self.len, first + 1);
            self.ranges[first] = (start, end);
            self.len += 1;
        } else {
            let joined = (start.min(self.ranges[first].0), end.max(self.ranges[last - 1].1));
            self.ranges.copy_within(last..self.len, first + 1);
            self.ranges[first] = joined;
            self.len -= last - first - 1;
        }
        self.bytes += end - start;
        true
    }

    fn leave(&mut self, start: usize, end: usize) {
        let at = self.ranges[..self.len].partition_point(|r| r.1 <= start);
        let (s, e) = self.ranges[at];
        debug_assert!(at < self.len && s <= start && end <= e);
        self.ranges.copy_within(at + 1..self.len, at);
        self.len -= 1;
        self.bytes -= e - s;
        for (s, e) in [(s, start), (end, e)] {
            if s < e {
                self.enter(s, e);
            }
        }
    }
}

/// Maps `bytes` of zeroed memory for the engine, aligned to `align` (a power of two, at least a page). `None` when there is none.
pub fn map(bytes: usize, align: usize) -> Option<usize> {
    map_as(MAP_PRIVATE, bytes, align, true)
}

/// The same, for what no child takes over.
pub fn map_apart(bytes: usize, align: usize) -> Option<usize> {
    map_as(MAP_PRIVATE, bytes, align, false)
}

/// The same, which whoever is let in shares.
pub fn map_shared(bytes: usize) -> Option<usize> {
    map_as(MAP_SHARED, bytes, PAGE, false)
}

fn map_as(kind: u32, bytes: usize, align: usize, heritable: bool) -> Option<usize> {
    let bytes = bytes.next_multiple_of(PAGE);
    let extra = align.saturating_sub(PAGE);
    let flags = kind | MAP_ANONYMOUS | MAP_NORESERVE;
    let mut own = OWN.lock();
    // Without access first: mlockall(MCL_FUTURE) would fill it with pages.
    let raw = sys::mmap(bytes + extra, PROT_NONE, flags, None).ok()?;
    let at = raw.next_multiple_of(align.max(PAGE));
    // SAFETY: what lies around the aligned part is new, and nobody knows of it; the part itself becomes accessible to us.
    let ready = unsafe {
        if at > raw {
            let _ = sys::munmap(raw, at - raw);
        }
        if raw + extra > at {
            let _ = sys::munmap(at + bytes, raw + extra - at);
        }
        let _ = sys::munlock(at, bytes);
        if !(heritable && own.is_let_in) {
            let _ = sys::madvise_keep(at, bytes, MADV_DONTFORK);
        }
        let _ = sys::madvise_keep(at, bytes, MADV_DONTDUMP);
        // A huge page would be taken whole for the first byte that is written to it.
        let _ = sys::madvise_keep(at, bytes, MADV_NOHUGEPAGE);
        own.enter(at, at + bytes, heritable) && sys::mprotect(at, bytes, PROT_READ | PROT_WRITE).is_ok()
    };
    ready.then_some(at)
}

/// Gives a mapping, or a part of one, back.
///
/// # Safety
/// Nobody may use it any more.
pub unsafe fn unmap(at: usize, bytes: usize) {
    let mut own = OWN.lock();
    // SAFETY: the caller's contract.
    let _ = unsafe { sys::munmap(at, bytes) };
    own.leave(at, at + bytes);
}

/// Declares a range to be the engine's that was not mapped by `map`: the library's own data.
pub fn adopt(range: Range<usize>) {
    OWN.lock().own.enter(range.start, range.end);
}

/// The engine's mappings stay as they are, and none is added, as long as this lives. Whoever has it must not allocate.
pub struct Still(Guard<'static, Tables>);

/// See [`Still`].
pub fn still() -> Still {
    Still(OWN.lock())
}

impl Still {
    /// The first part of `range` that is not the engine's own; empty when all of it is.
    pub fn first_foreign(&self, range: Range<usize>) -> Range<usize> {
        let mut start = range.start;
        for &(s, e) in self.0.own.ranges() {
            if e <= start {
                continue;
            }
            if s > start {
                return start..range.end.min(s);
            }
            start = e;
            if start >= range.end {
                return range.end..range.end;
            }
        }
        start..range.end
    }
}

/// [`Still::first_foreign`] of this moment.
pub fn first_foreign(range: Range<usize>) -> Range<usize> {
    still().first_foreign(range)
}

/// Bytes mapped for the engine.
pub fn mapped_bytes() -> usize {
    OWN.lock().own.bytes
}

/// Lets tables and pool into the next child, and what is mapped for them until it is there, or keeps them out again.
pub fn let_in(yes: bool) {
    let advice = if yes { MADV_DOFORK } else { MADV_DONTFORK };
    let mut tables = OWN.lock();
    tables.is_let_in = yes;
    for &(start, end) in tables.heritable.ranges() {
        let _ = sys::madvise_keep(start, end - start, advice);
    }
}

/// In a child that was let in: of the engine's memory it has what can be taken over, and keeps that out of its own children.
pub fn take_over() {
    {
        let mut tables = OWN.lock();
        let Tables { own, heritable, .. } = &mut *tables;
        own.ranges = heritable.ranges;
        (own.len, own.bytes) = (heritable.len, heritable.bytes);
    }
    let_in(false);
}

/// In a child of fork: all mappings are gone (MADV_DONTFORK), and whoever held a lock is gone with the parent.
///
/// # Safety
/// The caller is the only thread, and no memory of the old arenas is used any more.
pub unsafe fn reset() {
    // SAFETY: nobody else can hold a reference to the statics, which are written whole.
    unsafe {
        (&raw const OWN).cast_mut().write(Mutex::new(Tables::new()));
        (&raw const HEAP).cast_mut().write(Mutex::new(new_heap()));
    }
}

struct Pages;

// SAFETY: hands out fresh mappings and takes none back, as the trait allows.
unsafe impl dlmalloc::Allocator for Pages {
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

const fn new_heap() -> dlmalloc::Dlmalloc<Pages> {
    dlmalloc::Dlmalloc::new_with_allocator(Pages)
}

static HEAP: Mutex<dlmalloc::Dlmalloc<Pages>> = Mutex::new(new_heap());

/// From this size on an allocation is a mapping of its own: a table that grows moves its pages instead of copying them, and leaves nothing
/// behind that dlmalloc would keep.
const LARGE_BYTES: usize = 256 << 10;

/// The engine's heap, for `alloc`: dlmalloc under a lock, and mappings.
pub struct Arena;

// SAFETY: both hand out memory of the layout that nobody else has.
unsafe impl GlobalAlloc for Arena {
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
                let mut own = OWN.lock();
                if sys::mremap(old, len, bytes.next_multiple_of(PAGE), 0, to as usize).is_ok() {
                    own.leave(old, old + len);
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
    fn the_table_joins_neighbours_and_splits_again() {
        let mut t = Table::new();
        for start in [10, 30, 20, 50] {
            assert!(t.enter(start, start + 10));
        }
        assert_eq!(t.ranges[..t.len], [(10, 40), (50, 60)]);
        t.leave(20, 30);
        assert_eq!((&t.ranges[..t.len], t.bytes), (&[(10, 20), (30, 40), (50, 60)][..], 30));
        t.leave(10, 20);
        assert!(t.enter(40, 50));
        assert_eq!(t.ranges[..t.len], [(30, 60)]);
    }

    #[test]
    fn a_large_table_grows_and_shrinks_with_its_contents() {
        let layout = |bytes| Layout::from_size_align(bytes, 8).unwrap();
        let sizes = [100 << 10, 300 << 10, 5 << 20, 400 << 10, 50 << 10];
        // SAFETY: each allocation is used within its size, and freed once.
        unsafe {
            let mut at = Arena.alloc(layout(sizes[0]));
            at.write_bytes(7, sizes[0]);
            for (old, new) in sizes.into_iter().zip(sizes.into_iter().skip(1)) {
                at = Arena.realloc(at, layout(old), new);
                let kept = core::slice::from_raw_parts(at, old.min(new).min(50 << 10));
                assert!(kept.iter().all(|&b| b == 7), "{old} to {new}");
                assert!(new < LARGE_BYTES || first_foreign(at as usize..at as usize + new).is_empty());
            }
            Arena.dealloc(at, layout(sizes[4]));
        }
    }

    /// What the engine's heap grows by while a thread forks is there in the child, whose heap says so.
    #[test]
    fn what_is_mapped_while_a_child_is_let_in_is_let_in_too() {
        let is_inherited = |at: usize| {
            // SAFETY: the copy reads memory, and ends.
            let pid = unsafe { sys::syscall(NR_CLONE, [SIGCHLD as usize, 0, 0, 0, 0, 0]) }.unwrap();
            if pid == 0 {
                // SAFETY: it is there, or ends the copy.
                unsafe { (at as *const u8).read_volatile() };
                sys::exit(0);
            }
            let mut status = 0;
            assert_eq!(sys::wait4(pid as u32, &mut status, 0), Ok(pid));
            status == 0
        };
        let_in(true);
        let (meanwhile, apart) = (map(PAGE, PAGE).unwrap(), map_apart(PAGE, PAGE).unwrap());
        assert_eq!((is_inherited(meanwhile), is_inherited(apart)), (true, false));
        let_in(false);
        assert!(!is_inherited(meanwhile) && !is_inherited(map(PAGE, PAGE).unwrap()));
    }

    #[test]
    fn mappings_are_aligned_writable_and_known() {
        let at = map(3 * PAGE, 1 << 21).unwrap();
        assert_eq!(at % (1 << 21), 0);
        // SAFETY: inside the mapping.
        unsafe { ((at + 2 * PAGE) as *mut u8).write(1) };
        assert!(first_foreign(at..at + 3 * PAGE).is_empty());
        assert_eq!(first_foreign(at..at + 9 * PAGE).start, at + 3 * PAGE);
        // SAFETY: nobody else has it.
        unsafe { unmap(at, 3 * PAGE) };
        assert_eq!(first_foreign(at..at + PAGE), at..at + PAGE);
    }
}
