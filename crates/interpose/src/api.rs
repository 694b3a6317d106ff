//! What a program tells and asks zfolio by itself (include/zfolio.h), beside its advice to the kernel (advice.rs).
//!
//! Pinning is safe in any state of the engine: what is pinned is written down first. One that moves pages reads that
//! before each move, and is then asked to bring home what is out; one that sleeps has nothing out, and reads it when it
//! awakes.

use crate::bell::ask;
use crate::ioctl::TOP;
use crate::libc::settle;
use crate::own::with_bell;
use control::page_tables;
use control::run;
use control::{CONTROL, EngineState, Request};
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use uffd::pagemap::{Pagemap, Run};
use uffd::{Errno, PAGE};

/// The run's limit has room for pins of one process up to one part in so many of it: more would leave nothing to move.
const PART: usize = 2;

/// How much the engine is asked about at a time: a fault waits for it.
const TELL_BYTES: usize = 16 << 20;

/// zfolio_pin: what is there of the pages of a range stays in the program from now on, and what is out comes home.
/// Returns 0, or -1 with errno: ENOMEM where there are too many ranges or half of the limit is pinned, EINVAL for what
/// is no range.
pub extern "C" fn zfolio_pin(at: usize, bytes: usize) -> i32 {
    let range = match pages(at, bytes) {
        Ok(range) if range.is_empty() => return 0,
        Ok(range) => range,
        Err(errno) => return fail(errno),
    };
    with_bell(|| {
        let most = run::memcg().map_or(usize::MAX, |memcg| memcg.max_bytes.load(Relaxed) as usize / PART);
        let pinned = CONTROL.pinned.bytes_beside(&range).saturating_add(range.len());
        loop {
            if pinned > most || CONTROL.pinned.add(&range).is_err() {
                return fail(Errno::ENOMEM);
            }
            let mut at = range.start;
            while at < range.end && CONTROL.state() == EngineState::Awake {
                ask(Request::Hold, at..range.end);
                at = CONTROL.range.1.load(Relaxed);
            }
            // The event of who had the addresses before may have come late, and taken the pin away.
            if CONTROL.pinned.bytes_in(&range) == range.len() {
                return 0;
            }
        }
    })
}

/// zfolio_unpin: the pages of a range may go out again. Returns 0, or -1 with errno: ENOMEM where it would leave too
/// many ranges, EINVAL for what is no range.
pub extern "C" fn zfolio_unpin(at: usize, bytes: usize) -> i32 {
    match pages(at, bytes) {
        Ok(range) => with_bell(|| CONTROL.pinned.remove(&range)).map_or_else(|_| fail(Errno::ENOMEM), |()| 0),
        Err(errno) => fail(errno),
    }
}

/// zfolio_range: writes where the pages of a range are to `out`, of which the caller knows `room` bytes: as 64-bit
/// numbers of bytes, those of `mm::tell::Places`, and what is pinned. Returns 0, or -1 with errno.
///
/// # Safety
/// `out` is the caller's, for `room` bytes.
pub unsafe extern "C" fn zfolio_range(at: usize, bytes: usize, out: *mut u64, room: usize) -> i32 {
    let range = match pages(at, bytes) {
        Ok(range) => range,
        Err(errno) => return fail(errno),
    };
    let mut told = [0u64; 7];
    let done = with_bell(|| {
        told[6] = CONTROL.pinned.bytes_in(&range) as u64;
        if CONTROL.state() != EngineState::Awake {
            told[0] = resident_bytes(&range)? as u64;
            return Ok(());
        }
        for part in range.clone().step_by(TELL_BYTES) {
            ask(Request::Tell, part..range.end.min(part + TELL_BYTES));
            for (sum, bytes) in told.iter_mut().zip(&CONTROL.told) {
                *sum += bytes.load(Relaxed) as u64;
            }
        }
        Ok(())
    });
    // Without the bell: the caller's memory may be out.
    match done {
        Ok(()) => {
            let words = (room / size_of::<u64>()).min(told.len());
            // SAFETY: the caller's contract.
            unsafe { out.copy_from_nonoverlapping(told.as_ptr(), words) };
            0
        }
        Err(errno) => fail(errno),
    }
}

/// The pages that a range touches.
fn pages(at: usize, bytes: usize) -> Result<Range<usize>, Errno> {
    let end = at.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE));
    let range = at & !(PAGE - 1)..end.ok_or(Errno::EINVAL)?;
    if range.end > TOP {
        Err(Errno::EINVAL)
    } else if bytes == 0 {
        Ok(range.start..range.start)
    } else {
        Ok(range)
    }
}

/// What is there, while nothing is out. Where a filter binds the program the kernel is not asked: it could end it.
fn resident_bytes(range: &Range<usize>) -> Result<usize, Errno> {
    if page_tables::is_bound() {
        return Err(Errno::EPERM);
    }
    let (pagemap, mut at, mut bytes) = (Pagemap::open()?, range.start, 0);
    while at < range.end {
        let mut runs = [Run::default(); 64];
        let (found, upto) = pagemap.present(at..range.end, usize::MAX, &mut runs)?;
        bytes += runs[..found].iter().map(|run| run.end - run.start).sum::<usize>();
        at = upto.max(at + PAGE);
    }
    Ok(bytes)
}

fn fail(errno: Errno) -> i32 {
    settle(-(errno.0 as isize)) as i32
}
