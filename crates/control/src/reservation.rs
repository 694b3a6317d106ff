//! The engine's reservation: the addresses that are the engine's, and never the program's.
//!
//! Engine memory where the kernel puts it lies in holes of the program's. A program unmaps a range of which it has
//! unmapped the middle before, maps memory into a hole of its own with MAP_FIXED, or counts on a hole in a child that
//! it keeps memory out of. So the engine reserves addresses, and all of its memory lies there:
//!
//! ```text
//!   0x5500_0000_0000 + some GiB
//!   [ used | used | -- reserved -- | used | ---- reserved ---- ] ──> grows here, a step at a time
//! ```
//!
//! The kernel chooses no address there before 20 TiB are mapped, and few programs do. (Below: V8, PartitionAlloc,
//! mimalloc, Go, ZGC, and the shadow memory of sanitizers; above: executables, from 0x5555_5555_4000 on, heaps of
//! sanitizers, and from the end of user space down what the kernel chooses.) MSan and TSan take all addresses but those
//! of their programs' memory, and end a program that has something else there. The engine may be there first, and so
//! its addresses are among those that both leave to programs. Where all that is tried is taken the kernel chooses.
//!
//! What is reserved has no access, so that it takes no memory, counts for no limit but that of addresses (RLIMIT_AS),
//! and mlockall does not fill it. It grows with what is used, since a program may limit its own addresses later.
//! Memory becomes reserved again in one step, so that there is no moment at which something else could come there.
//!
//! A child may be copied at any instruction of this file. That is safe because a range is entered when it is reserved,
//! its start before its end, and is never taken out but by a store to its end: each range that a child finds was
//! reserved in its parent.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use memcg::ENGINE_ADDRESSES;
use uffd::PAGE;
use uffd::sys::{self, Errno, consts::*};

/// The addresses that are tried lie so far apart, and there are so many.
const PLACE: usize = 1 << 30;
const PLACES: usize = (ENGINE_ADDRESSES.end - ENGINE_ADDRESSES.start) / PLACE;

/// How many of them are tried.
const TRIES: usize = 8;

/// So much is reserved at a time, where the program may map as much as it likes.
const STEP: usize = 4 << 20;

/// The most ranges: more than there are ranges in use. There is a second one only where something else is behind the
/// first, or a child may not have what is between them.
const RANGES: usize = 1024;

/// A range that is reserved; its end is 0 where there is none.
struct ReservedRange {
    start: AtomicUsize,
    end: AtomicUsize,
}

static RESERVED: [ReservedRange; RANGES] =
    [const { ReservedRange { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; RANGES];

/// How many entries have ever been used.
static ENTRIES: AtomicUsize = AtomicUsize::new(0);

/// The flags of what is reserved.
const NOTHING: u32 = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

impl ReservedRange {
    fn range(&self) -> Range<usize> {
        let end = self.end.load(Acquire);
        if end == 0 { 0..0 } else { self.start.load(Relaxed)..end }
    }

    fn set(&self, range: Range<usize>) {
        self.end.store(0, Release);
        self.start.store(range.start, Release);
        self.end.store(range.end, Release);
    }
}

/// All that is reserved, used or not, in no order.
pub fn ranges() -> impl Iterator<Item = Range<usize>> {
    entries().map(ReservedRange::range).filter(|range| !range.is_empty())
}

fn entries() -> impl Iterator<Item = &'static ReservedRange> {
    RESERVED[..ENTRIES.load(Acquire)].iter()
}

/// Enters a range; false when there is no room for it.
fn enter(range: Range<usize>) -> bool {
    let Some(index) = RESERVED.iter().position(|entry| entry.range().is_empty()) else { return false };
    RESERVED[index].set(range);
    ENTRIES.fetch_max(index + 1, Release);
    true
}

/// Bytes of it.
pub fn bytes() -> usize {
    ranges().map(|range| range.len()).sum()
}

/// Reserves at least so many bytes more, in one piece; false when there are none. One thread does so at a time.
pub fn grow(bytes: usize) -> bool {
    let step = if sys::is_address_space_limited() { PAGE } else { STEP };
    // A limit may be another than RLIMIT_AS.
    [bytes.next_multiple_of(step), bytes].into_iter().any(|bytes| extend(bytes) || begin(bytes))
}

/// Reserves what is behind a range, if nothing is there.
fn extend(bytes: usize) -> bool {
    entries().any(|entry| {
        let Range { start, end } = entry.range();
        let is_extended = start < end && reserve(end, bytes, MAP_FIXED_NOREPLACE).is_ok();
        if is_extended {
            entry.end.store(end + bytes, Release);
        }
        is_extended
    })
}

/// Reserves a range elsewhere.
fn begin(bytes: usize) -> bool {
    let places = (0..TRIES).map(|_| ENGINE_ADDRESSES.start + random() % PLACES * PLACE);
    let at = places.map(|at| reserve(at, bytes, MAP_FIXED_NOREPLACE).map(|()| at));
    // Another error says that there is no such memory anywhere.
    let mut tried = at.skip_while(|at| *at == Err(Errno::EEXIST));
    let chosen = tried.next().unwrap_or_else(|| {
        let at = sys::mmap(bytes, PROT_NONE, NOTHING, None)?;
        let _ = sys::munlock(at, bytes);
        Ok(at)
    });
    let Ok(at) = chosen else { return false };
    let is_entered = enter(at..at + bytes);
    if !is_entered {
        // SAFETY: new, and of no use.
        let _ = unsafe { sys::munmap(at, bytes) };
    }
    is_entered
}

/// Maps memory without access. Where mlockall(MCL_FUTURE) has locked it that is undone: it would count for
/// RLIMIT_MEMLOCK.
fn reserve(at: usize, bytes: usize, how: u32) -> Result<(), Errno> {
    // SAFETY: `give_back` alone replaces something, of which it knows that nobody uses it.
    unsafe { sys::mmap_at(at, bytes, PROT_NONE, NOTHING | how, None) }?;
    let _ = sys::munlock(at, bytes);
    Ok(())
}

/// A number that nobody knows before. Without one from the kernel it is one of the clock's.
fn random() -> usize {
    const NONBLOCK: u32 = 1;
    let mut bytes = [0u8; 8];
    match sys::getrandom(&mut bytes, NONBLOCK) {
        Ok(_) => usize::from_ne_bytes(bytes),
        Err(_) => (sys::now_ns() as usize).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20,
    }
}

/// Unmaps what is in a part of the reservation, and has it reserved, in one step.
///
/// # Safety
/// Nobody may use it any more.
pub unsafe fn give_back(range: Range<usize>) {
    if reserve(range.start, range.len(), MAP_FIXED).is_err() {
        // A limit of the program's (of locked memory, or of mappings). Where that keeps the kernel from unmapping too,
        // what is there stays, and is nobody's.
        // SAFETY: the caller's contract.
        let _ = unsafe { sys::munmap(range.start, range.len()) };
        give_up(range);
    }
}

/// Has a part reserved again that mremap has left unmapped. What has come there meanwhile stays: it can be the
/// program's only where the kernel chose the addresses.
pub fn close_hole(range: Range<usize>) {
    if reserve(range.start, range.len(), MAP_FIXED_NOREPLACE).is_err() {
        give_up(range);
    }
}

/// A part is not reserved any more, but where too many ranges would be left.
fn give_up(part: Range<usize>) {
    let holds = |entry: &&ReservedRange| entry.range().start <= part.start && part.end <= entry.range().end;
    let Some(entry) = entries().find(holds) else { return };
    let Range { start, end } = entry.range();
    entry.end.store(if start < part.start { part.start } else { 0 }, Release);
    if part.end < end && !enter(part.end..end) {
        entry.set(start..end);
    }
}

/// In a child: reserves all of it anew but `kept`, which is in order. What the parent kept out of children has left
/// holes, and the rest is nobody's here. A child that may not map as much as it likes (RLIMIT_AS, which the parent's
/// engine does not have where its program has set it later) gives the rest up, since it may have no more than its
/// parent.
///
/// # Safety
/// Nobody may use what is there besides.
pub unsafe fn renew<'a>(kept: impl Iterator<Item = &'a (usize, usize)> + Clone) {
    let is_limited = sys::is_address_space_limited();
    let renew = |gap: Range<usize>| {
        if is_limited {
            // SAFETY: the caller's contract.
            let _ = unsafe { sys::munmap(gap.start, gap.len()) };
            give_up(gap);
        } else {
            // SAFETY: as above.
            unsafe { give_back(gap) };
        }
    };
    for entry in entries() {
        let Range { start, end } = entry.range();
        let mut at = start;
        for &(start, stop) in kept.clone().filter(|kept| kept.1 > start && kept.0 < end) {
            if at < start {
                renew(at..start);
            }
            at = stop;
        }
        if at < end {
            renew(at..end);
        }
    }
}

/// In a process where nothing of it is mapped any more.
///
/// # Safety
/// The caller is the only thread.
pub unsafe fn forget() {
    RESERVED.iter().for_each(|entry| entry.end.store(0, Release));
}
