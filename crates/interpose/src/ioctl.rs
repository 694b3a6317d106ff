//! The program's own userfaultfd and PAGEMAP_SCAN: what the kernel does with memory past any fault. It would find holes
//! where pages are out, and so they are brought home first and stay for the time of the call.
//!
//! A range may be larger than the limit. Then the call is made in pieces, one after the other, each as far as its part
//! is home, as the program itself may make it: both calls say how far they have come.

use crate::bell::ask;
use crate::libc::{Call, NO_SUCH_CALL, real, set_errno};
use crate::own::with_bell;
use crate::pagemap_reads;
use control::run::is_managed;
use control::{CONTROL, EngineState, Request};
use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use uffd::pagemap;
use uffd::{Errno, PAGE, sys};

type Ioctl = unsafe extern "C" fn(i32, usize, ...) -> i32;

/// The end of what a program can map without asking for more.
pub(crate) const TOP: usize = 1 << 47;

/// A call of the program's.
struct IoctlCall {
    fd: i32,
    request: usize,
}

impl IoctlCall {
    /// Makes it, by libc, with this argument.
    fn call(&self, argument: usize) -> i32 {
        // SAFETY: the type of ioctl(2).
        let real = unsafe { real::<Ioctl>(Call::Ioctl) };
        // SAFETY: the program's own call, with its own argument or one that asks for a part of the same.
        real.map_or(NO_SUCH_CALL, |f| unsafe { f(self.fd, self.request, argument) })
    }
}

/// ioctl(2).
pub extern "C" fn ioctl(fd: i32, request: usize, argument: usize) -> i32 {
    let call = IoctlCall { fd, request };
    if !is_managed() {
        return call.call(argument);
    }
    match request as u32 {
        uffd::REGISTER => register(&call, argument),
        uffd::MOVE => take(&call, argument),
        pagemap::SCAN if pagemap_reads::is_own(fd) => scan(&call, argument),
        _ => call.call(argument),
    }
}

/// ioctl by `syscall`.
pub extern "C" fn by_syscall(_number: i64, fd: i32, request: usize, argument: usize) -> i64 {
    ioctl(fd, request, argument) as i64
}

/// The words of a call's argument; `None` where it cannot be read: the call will say so.
fn words<const N: usize>(argument: usize) -> Option<[u64; N]> {
    let mut words = [0u64; N];
    // SAFETY: the memory of integers, of which any bytes are a value.
    let bytes = unsafe { core::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(&words)) };
    let pid = sys::getpid().unwrap_or(0) as u32;
    (sys::peek(pid, argument, bytes) == Ok(bytes.len())).then_some(words)
}

/// Writes a word of a call's argument, as the kernel does; false where it cannot be written to.
fn tell(argument: usize, word: usize, value: u64) -> bool {
    let pid = sys::getpid().unwrap_or(0) as u32;
    let at = argument + word * size_of::<u64>();
    // SAFETY: the program's, who wants it there.
    unsafe { sys::poke(pid, at, &value.to_ne_bytes()) }.is_ok()
}

/// A range of whole pages; `None` for any other, which the call will refuse.
fn range(start: u64, bytes: u64) -> Option<Range<usize>> {
    let range = start as usize..(start as usize).checked_add(bytes as usize)?;
    (!range.is_empty() && range.end <= TOP && (range.start | range.end) % PAGE == 0).then_some(range)
}

/// Memory that the program gives to a userfaultfd of its own must not be another's, and the engine may have registered
/// it.
fn register(call: &IoctlCall, argument: usize) -> i32 {
    // struct uffdio_register begins with start and length.
    let Some(range) = words::<2>(argument).and_then(|[start, bytes]| range(start, bytes)) else {
        return call.call(argument);
    };
    with_bell(|| {
        CONTROL.spare(range.clone());
        if CONTROL.state() == EngineState::Awake {
            ask(Request::LetGo, range);
        }
        let result = call.call(argument);
        CONTROL.spare(0..0);
        result
    })
}

/// Calls `act` while what there is of a range is home, up to the address that it is told.
fn at_home<R>(range: Range<usize>, act: impl FnOnce(usize) -> R) -> R {
    with_bell(|| {
        // First: an engine that awakes now finds it.
        CONTROL.hold(range.clone());
        let mut upto = range.end;
        if CONTROL.state() == EngineState::Awake {
            ask(Request::Hold, range.clone());
            upto = CONTROL.range.1.load(Relaxed);
            // Only the end changes: what is home is held all the while.
            CONTROL.held.1.store(upto, SeqCst);
        }
        let result = act(upto);
        CONTROL.hold(0..0);
        result
    })
}

/// struct uffdio_move.
const MOVE_DST: usize = 0;
const MOVE_SRC: usize = 1;
const MOVE_BYTES: usize = 2;
const MOVE_MOVED: usize = 4;

/// UFFDIO_MOVE: what is taken is taken as it is in the page tables. (Its target is registered with the program's
/// descriptor, and so not with the engine's.)
fn take(call: &IoctlCall, argument: usize) -> i32 {
    let Some((given, src)) = words::<5>(argument).and_then(|w| Some((w, range(w[MOVE_SRC], w[MOVE_BYTES])?)))
    else {
        return call.call(argument);
    };
    let (mut done, mut touched, mut split) = (0, 0, 0);
    loop {
        let (result, moved) = at_home(src.start + done..src.end, |upto| {
            let mut piece = given;
            piece[MOVE_DST] += done as u64;
            piece[MOVE_SRC] += done as u64;
            piece[MOVE_BYTES] = (upto - src.start - done) as u64;
            piece[MOVE_MOVED] = 0;
            let result = call.call(&raw mut piece as usize);
            (result, piece[MOVE_MOVED] as i64)
        });
        done += moved.max(0) as usize;
        if result == 0 && done < src.len() {
            continue;
        }
        // A worker that began as a copy of this process has made it seem another's too. Once for each page.
        let at = src.start + done;
        let is_busy = moved == -(Errno::EBUSY.0 as i64);
        if is_busy && touched != at && sys::futex_touch(at).is_ok() {
            touched = at;
            continue;
        }
        if is_busy && split != at && sys::split_folio(at).is_ok() {
            split = at;
            continue;
        }
        // Of a call that has come to nothing the kernel says why in the place of how far.
        let said = if done > 0 { done as u64 } else { moved as u64 };
        if said != 0 && !tell(argument, MOVE_MOVED, said) {
            return fail(Errno::EFAULT);
        }
        return if result != 0 && done > 0 { fail(Errno::EAGAIN) } else { result };
    }
}

/// struct pm_scan_arg.
const SCAN_SIZE: usize = 0;
const SCAN_START: usize = 2;
const SCAN_END: usize = 3;
const SCAN_WALK_END: usize = 4;
const SCAN_VEC: usize = 5;
const SCAN_VEC_LEN: usize = 6;
const SCAN_MAX_PAGES: usize = 7;
const SCAN_WORDS: usize = 12;

/// struct page_region.
#[derive(Clone, Copy)]
#[repr(C)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// PAGEMAP_SCAN of this memory. What is out is brought home, and not only said to be swapped: who has only known
/// machines without swap asks for pages that are there. Without regions to write nothing is told, and what it protects
/// then is registered with the program's descriptor.
fn scan(call: &IoctlCall, argument: usize) -> i32 {
    let Some(given) = words::<SCAN_WORDS>(argument) else { return call.call(argument) };
    let (start, end) = (given[SCAN_START] as usize, given[SCAN_END] as usize);
    let is_odd =
        given[SCAN_SIZE] != size_of_val(&given) as u64 || start % PAGE != 0 || start >= end || end > TOP;
    if is_odd || given[SCAN_VEC] == 0 || given[SCAN_VEC_LEN] == 0 {
        return call.call(argument);
    }
    let (mut found, mut pages, mut at) = (0, 0, start);
    let walk_end = loop {
        let (result, piece) = at_home(at..end.next_multiple_of(PAGE), |upto| {
            let mut piece = given;
            piece[SCAN_START] = at as u64;
            piece[SCAN_END] = upto.min(end) as u64;
            piece[SCAN_VEC] += (found * size_of::<PageRegion>()) as u64;
            piece[SCAN_VEC_LEN] -= found as u64;
            piece[SCAN_MAX_PAGES] = piece[SCAN_MAX_PAGES].saturating_sub(pages);
            (call.call(&raw mut piece as usize), piece)
        });
        let Ok(more) = usize::try_from(result) else { return result };
        // SAFETY: the kernel has written so many there.
        let regions =
            unsafe { core::slice::from_raw_parts_mut(given[SCAN_VEC] as *mut PageRegion, found + more) };
        pages += regions[found..].iter().map(|region| (region.end - region.start) / PAGE as u64).sum::<u64>();
        found = join(regions, found);
        let is_enough = given[SCAN_MAX_PAGES] != 0 && pages >= given[SCAN_MAX_PAGES];
        let is_full = found as u64 == given[SCAN_VEC_LEN];
        let upto = piece[SCAN_WALK_END];
        // Where two regions have become one there is room for one more, though the kernel has stopped for want of it.
        if is_enough || is_full || upto >= end as u64 || upto <= at as u64 {
            break upto;
        }
        at = upto as usize;
    };
    if tell(argument, SCAN_WALK_END, walk_end) { found as i32 } else { fail(Errno::EFAULT) }
}

/// Makes one region of the last of the first `found` ones and the one that goes on with it, as the kernel would have;
/// how many there are then.
fn join(regions: &mut [PageRegion], found: usize) -> usize {
    if found == 0 || found == regions.len() {
        return regions.len();
    }
    let (last, next) = (regions[found - 1], regions[found]);
    if last.end != next.start || last.categories != next.categories {
        return regions.len();
    }
    regions[found - 1].end = next.end;
    regions.copy_within(found + 1.., found);
    regions.len() - 1
}

/// Fails as libc does.
fn fail(errno: Errno) -> i32 {
    set_errno(errno.0 as i32);
    -1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_of_two_pieces_are_joined_where_they_are_one() {
        let region = |(start, end, categories)| PageRegion { start, end, categories };
        let joined = |found: usize, all: &[(u64, u64, u64)]| {
            let mut regions: Vec<PageRegion> = all.iter().copied().map(region).collect();
            let len = join(&mut regions, found);
            regions[..len].iter().map(|r| (r.start, r.end, r.categories)).collect::<Vec<_>>()
        };
        assert_eq!(
            joined(2, &[(0, 1, 7), (2, 3, 7), (3, 5, 7), (6, 7, 7)]),
            [(0, 1, 7), (2, 5, 7), (6, 7, 7)]
        );
        assert_eq!(joined(1, &[(0, 1, 7), (1, 2, 6)]), [(0, 1, 7), (1, 2, 6)], "another kind");
        assert_eq!(joined(1, &[(0, 1, 7), (2, 3, 7)]), [(0, 1, 7), (2, 3, 7)], "a gap");
        assert_eq!(joined(0, &[(0, 1, 7)]), [(0, 1, 7)]);
        assert_eq!(joined(1, &[(0, 1, 7)]), [(0, 1, 7)]);
        assert_eq!(joined(0, &[]), []);
    }

    #[test]
    fn ranges_that_the_kernel_refuses_are_left_to_it() {
        let page = PAGE as u64;
        assert_eq!(range(page, 2 * page), Some(PAGE..3 * PAGE));
        for (start, bytes) in
            [(0, 0), (1, page), (page, 1), (u64::MAX, page), ((TOP as u64) - page, 2 * page)]
        {
            assert_eq!(range(start, bytes), None, "{start:#x} {bytes:#x}");
        }
    }
}
