//! The engine's own memory: mapped by itself, and never managed.
//!
//! All of it lies in the reservation (reservation.rs), so that the pager can leave it alone, and nothing that the
//! program does to its own addresses meets it. MADV_DONTFORK keeps it out of children. Tables and pool (`map`) are let
//! into a child that takes them over (fork.rs), logs and the run's page (`map_for_all`) into every child; the rest
//! (`map_apart`) has another life in each process.

use crate::reservation;
use crate::{CONTROL, EngineState};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use uffd::lock::Guard;
use uffd::sys::{self, Errno, Fd, consts::*};
use uffd::{Mutex, PAGE};

/// The most ranges that a table holds; neighbours are joined, so a few hundred mappings make a few ranges.
const RANGES: usize = 512;

struct RangeTable {
    ranges: [(usize, usize); RANGES],
    len: usize,
}

/// What of the reservation is used, and what of it a child can take over.
struct Tables {
    used: RangeTable,
    heritable: RangeTable,
    /// The next child has it.
    is_let_in: bool,
}

/// Held while a mapping of the engine's comes or goes. Where the engine works no thread of the program takes it
/// ([`lock`]): with the lock held such a thread could fault on memory that is out, and the engine, which serves the
/// fault, would wait for the lock.
static OWN: Mutex<Tables> = Mutex::new(Tables::new());

/// What is the engine's outside of the reservation: the library.
static ADOPTED: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// Takes the lock.
fn lock() -> Guard<'static, Tables> {
    let (program, own) = (CONTROL.pid.load(Relaxed), sys::getpid());
    debug_assert!(
        may_lock(CONTROL.state(), program, own.unwrap_or(0) as u32),
        "a thread of the program takes a lock of its engine's"
    );
    OWN.lock()
}

/// True for the process `own` where the engine of the process `program` is in this state: the engine itself, a worker,
/// a helper, a child of fork that has not begun anew yet; and anybody where no engine works.
fn may_lock(state: EngineState, program: u32, own: u32) -> bool {
    state == EngineState::Asleep || own != program
}

/// Which children have a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Children {
    None,
    LetIn,
    All,
}

impl Tables {
    const fn new() -> Tables {
        Tables { used: RangeTable::new(), heritable: RangeTable::new(), is_let_in: false }
    }

    fn enter(&mut self, range: &Range<usize>, is_heritable: bool) -> bool {
        (!is_heritable || self.heritable.enter(range.start, range.end))
            && self.used.enter(range.start, range.end)
    }

    fn leave(&mut self, range: &Range<usize>) {
        self.used.leave(range.start, range.end);
        if self.heritable.holds(range.start, range.end) {
            self.heritable.leave(range.start, range.end);
        }
    }

    /// The lowest reserved addresses of which nothing is used.
    fn room(&self, bytes: usize, align: usize) -> Option<Range<usize>> {
        reservation::ranges().find_map(|reserved| {
            let mut at = reserved.start.next_multiple_of(align);
            for &(start, end) in self.used.ranges() {
                if start < at.saturating_add(bytes) && end > at {
                    at = end.next_multiple_of(align);
                }
            }
            (at.saturating_add(bytes) <= reserved.end).then_some(at..at + bytes)
        })
    }
}

impl RangeTable {
    const fn new() -> RangeTable {
        RangeTable { ranges: [(0, 0); RANGES], len: 0 }
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
        true
    }

    fn leave(&mut self, start: usize, end: usize) {
        let at = self.ranges[..self.len].partition_point(|r| r.1 <= start);
        let (s, e) = self.ranges[at];
        debug_assert!(at < self.len && s <= start && end <= e);
        self.ranges.copy_within(at + 1..self.len, at);
        self.len -= 1;
        for (s, e) in [(s, start), (end, e)] {
            if s < e {
                self.enter(s, e);
            }
        }
    }
}

/// Maps `bytes` of zeroed memory for the engine, aligned to `align` (a power of two, at least a page). `None` when
/// there is none.
pub fn map(bytes: usize, align: usize) -> Option<usize> {
    map_private(bytes, align, Children::LetIn)
}

/// The same, for what no child takes over.
pub fn map_apart(bytes: usize, align: usize) -> Option<usize> {
    map_private(bytes, align, Children::None)
}

fn map_private(bytes: usize, align: usize, children: Children) -> Option<usize> {
    // What is reserved is such memory already.
    map_as(bytes, align, children, PROT_READ | PROT_WRITE, |_| Ok(())).ok()
}

/// The same, which whoever is let in shares.
pub fn map_shared(bytes: usize) -> Option<usize> {
    let kind = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    map_as(bytes, PAGE, Children::None, PROT_READ | PROT_WRITE, |range| replace(range, kind, None)).ok()
}

/// Maps the beginning of a file, shared; no child has it.
pub fn map_file(bytes: usize, prot: u32, file: &Fd) -> Result<usize, Errno> {
    map_file_as(bytes, prot, file, Children::None)
}

/// The same, which whoever is let in has too.
pub fn map_file_let_in(bytes: usize, prot: u32, file: &Fd) -> Result<usize, Errno> {
    map_file_as(bytes, prot, file, Children::LetIn)
}

/// The same, which every child has. It names that to [`take_over`] and [`begin_anew`].
pub fn map_for_all(bytes: usize, prot: u32, file: &Fd) -> Result<usize, Errno> {
    map_file_as(bytes, prot, file, Children::All)
}

fn map_file_as(bytes: usize, prot: u32, file: &Fd, children: Children) -> Result<usize, Errno> {
    let kind = MAP_SHARED | MAP_NORESERVE;
    map_as(bytes, PAGE, children, prot, |range| replace(range, kind, Some(file)))
}

/// Puts another mapping, without access, in the place of what is reserved.
fn replace(range: &Range<usize>, kind: u32, file: Option<&Fd>) -> Result<(), Errno> {
    // SAFETY: reserved, and of no use yet.
    unsafe { sys::mmap_at(range.start, range.len(), PROT_NONE, kind | MAP_FIXED, file) }
}

/// Without access until all is said about it: mlockall(MCL_FUTURE) would fill it with pages, and a child of a fork at
/// this moment have it.
fn map_as(
    bytes: usize,
    align: usize,
    children: Children,
    prot: u32,
    prepare: impl FnOnce(&Range<usize>) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    let (bytes, align) = (bytes.next_multiple_of(PAGE), align.max(PAGE));
    let mut own = lock();
    let mut room = own.room(bytes, align);
    if room.is_none() && reservation::grow(bytes + align - PAGE) {
        room = own.room(bytes, align);
    }
    let range = room.ok_or(Errno::ENOMEM)?;
    let (at, is_heritable) = (range.start, children == Children::LetIn);
    let stays = children == Children::All || is_heritable && own.is_let_in;
    let mut ready = prepare(&range);
    if ready.is_ok() {
        // Refused, it is locked memory, or in the next child, which unmaps it, or in a core dump.
        let _ = sys::munlock(at, bytes);
        if !stays {
            let _ = sys::madvise_keep(at, bytes, MADV_DONTFORK);
        }
        let _ = sys::madvise_keep(at, bytes, MADV_DONTDUMP);
        // A huge page would be taken whole for the first byte that is written to it.
        let _ = sys::madvise_keep(at, bytes, MADV_NOHUGEPAGE);
        // SAFETY: nobody else's.
        ready = unsafe { sys::mprotect(at, bytes, prot) };
    }
    if ready.is_ok() && own.enter(&range, is_heritable) {
        return Ok(at);
    }
    // SAFETY: nobody knows of it.
    unsafe { reservation::give_back(range) };
    Err(ready.err().unwrap_or(Errno::ENOMEM))
}

/// Gives a mapping, or a part of one, back.
///
/// # Safety
/// Nobody may use it any more.
pub unsafe fn unmap(at: usize, bytes: usize) {
    let (mut own, range) = (lock(), at..at + bytes.next_multiple_of(PAGE));
    own.leave(&range);
    // SAFETY: the caller's contract.
    unsafe { reservation::give_back(range) };
}

/// Moves the mapping `from` to that at `to`, whose place it takes and as long as which, `bytes`, it becomes. False when
/// it stays.
///
/// # Safety
/// Nobody may use what was at either place by its old address, if it is moved.
pub unsafe fn remap(from: Range<usize>, to: usize, bytes: usize) -> bool {
    let mut own = lock();
    // SAFETY: the caller's contract.
    if unsafe { sys::mremap(from.start, from.len(), bytes, 0, to) }.is_err() {
        return false;
    }
    own.leave(&from);
    reservation::close_hole(from);
    true
}

/// Declares a range to be the engine's that is not in the reservation: the library.
pub fn adopt(range: Range<usize>) {
    ADOPTED.0.store(range.start, Relaxed);
    ADOPTED.1.store(range.end, Release);
}

/// No mapping of the engine's comes or goes as long as this lives. Whoever has it must not allocate.
pub struct Still(#[expect(dead_code, reason = "held, and not looked at")] Guard<'static, Tables>);

/// See [`Still`].
pub fn still() -> Still {
    Still(lock())
}

/// The first part of `range` that is not the engine's own, used or reserved; empty when all of it is.
pub fn first_foreign(range: Range<usize>) -> Range<usize> {
    let ours = || reservation::ranges().chain([adopted()]);
    let mut start = range.start;
    while let Some(own) = ours().find(|own| own.contains(&start)) {
        start = own.end.min(range.end);
        if start == range.end {
            return start..start;
        }
    }
    let next = ours().map(|own| own.start).filter(|&own| own > start).min();
    start..range.end.min(next.unwrap_or(range.end))
}

fn adopted() -> Range<usize> {
    let end = ADOPTED.1.load(Acquire);
    ADOPTED.0.load(Relaxed)..end
}

/// Bytes of address space that are the engine's.
pub fn mapped_bytes() -> usize {
    reservation::bytes() + adopted().len()
}

/// Lets tables and pool into the next child, and what is mapped for them until it is there, or keeps them out again.
/// False where the kernel has refused that for a part. A child that has too little must not come to be; one that has
/// too much has it unmapped ([`take_over`], [`begin_anew`]).
pub fn let_in(yes: bool) -> bool {
    let advice = if yes { MADV_DOFORK } else { MADV_DONTFORK };
    let mut tables = lock();
    tables.is_let_in = yes;
    let mut has_all = true;
    for &(start, end) in tables.heritable.ranges() {
        has_all &= sys::madvise_keep(start, end - start, advice).is_ok();
    }
    has_all
}

/// In a child that was let in: of the engine's memory it has what can be taken over, and keeps that out of its own
/// children; besides, `kept`.
///
/// # Safety
/// The caller is the only thread, and nothing else of it is used any more.
pub unsafe fn take_over(kept: impl Iterator<Item = Range<usize>>) {
    {
        let mut tables = lock();
        let Tables { used, heritable, .. } = &mut *tables;
        (used.ranges, used.len) = (heritable.ranges, heritable.len);
        // SAFETY: the caller's contract.
        unsafe { keep_only(used, kept) };
    }
    // Refused, it is in this process's children too, which unmap it.
    let _ = let_in(false);
}

/// In a child that was not, where whoever held a lock is gone with the parent: of the engine's memory it has `kept`.
///
/// # Safety
/// As for [`take_over`].
pub unsafe fn begin_anew(kept: impl Iterator<Item = Range<usize>>) {
    // SAFETY: nobody else can hold a reference to the statics; the rest is the caller's contract.
    unsafe {
        reset();
        keep_only(&mut lock().used, kept);
    }
}

/// # Safety
/// As for [`take_over`].
unsafe fn keep_only(used: &mut RangeTable, kept: impl Iterator<Item = Range<usize>>) {
    for range in kept.filter(|range| !range.is_empty()) {
        // A table that a parent's ranges filled is not full of these.
        used.enter(range.start, range.end);
    }
    // SAFETY: the caller's contract.
    unsafe { reservation::renew(used.ranges().iter()) };
}

/// In a process that was made apart: of the engine's memory nothing is mapped any more that it has use for.
///
/// # Safety
/// As for [`take_over`].
pub unsafe fn forget() {
    // SAFETY: the caller's contract.
    unsafe {
        reset();
        reservation::forget();
    }
}

/// # Safety
/// As for [`take_over`].
unsafe fn reset() {
    // SAFETY: nobody else can hold a reference to the statics, which are written whole.
    unsafe {
        (&raw const OWN).cast_mut().write(Mutex::new(Tables::new()));
    }
}

#[cfg(test)]
mod tests;
