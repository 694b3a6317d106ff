//! How pages leave and enter memory that is not as the inactive list is: UFFDIO_MOVE wants both alike, and writable.
//!
//! ```text
//!   out, writable but executable: UFFDIO_MOVE to a landing of the same protection, a copy from there to the list
//!   out, not writable:            mremap to a landing (detach.rs), UFFDIO_MOVE from there to the drop zone, a copy
//!                                 from there to the inactive list
//!   in:                           UFFDIO_COPY, mapping by mapping
//! ```
//!
//! A landing is there only while it is needed, and has no other protection than the program has given such memory
//! itself.

use super::{DROP_ZONE, Live};
use crate::detach::{self, Landing, Removed};
use crate::locked;
use control::CONTROL;
use control::messages;
use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;
use mm::kernel::{Kernel, Message, Moved};
use uffd::maps::Mapping;
use uffd::sys::consts::*;
use uffd::{Errno, PAGE, sys};

const _: () = assert!(detach::PIECE <= DROP_ZONE);

/// How long a device may take to be done with a page that was taken, in nanoseconds, and how often it is looked.
const PINNED_NS: u64 = 10_000_000_000;
const PINNED_LOOK_NS: u64 = 20_000;

/// How long the engine sleeps until it looks whether the helper lives, in nanoseconds.
const EVENT_NS: u64 = 1_000_000;

fn stopped(errno: Errno) -> Moved {
    Moved { bytes: 0, stop: Some(errno) }
}

/// What was asked for is more than this part of it.
fn part_of(moved: Moved, part: usize, whole: usize) -> Moved {
    Moved { stop: moved.stop.or((part < whole).then_some(Errno::EAGAIN)), ..moved }
}

fn is_event(message: &Message) -> bool {
    !matches!(message, Message::Fault { .. })
}

impl Live {
    /// Does what a move has refused with EINVAL, as far as it can be done otherwise: it has the same effect, and
    /// stops for the same reasons.
    pub(super) fn move_unlike(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        let is_out = self.registered.contains(&dst);
        let theirs = if is_out { src } else { dst };
        let Ok(Some(m)) = self.maps.query(theirs) else { return stopped(Errno::EINVAL) };
        if !m.range.contains(&theirs) || m.foreign || is_out && locked::is_locked(theirs) {
            return stopped(Errno::EINVAL);
        }
        let part = bytes.min(m.range.end - theirs);
        let moved = if m.is_read_write() {
            if part == bytes {
                return stopped(Errno::EINVAL);
            }
            // There are several mappings by now.
            // SAFETY: as for all of it.
            unsafe { self.uffd.move_pages(&self.pagemap, dst, src, part) }
        } else if !is_out {
            self.bring_in(dst, src, part)
        } else if m.is_writable() {
            self.move_by_landing(dst, src..src + part, &m)
        } else {
            self.take_by_detaching(dst, src..src + part)
        };
        part_of(moved, part, bytes)
    }

    /// Copies engine memory to holes of one mapping of the program's, and drops it.
    fn bring_in(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        if CONTROL.guards.load(SeqCst) != 0 && self.has_guard(dst..dst + bytes) {
            return stopped(Errno::EINVAL);
        }
        // SAFETY: a move was to go there, which the pager tells to go to what it has evicted only.
        let copied = unsafe { self.uffd.copy(dst, src, bytes) };
        match copied {
            Moved { bytes: 1.., .. } => {
                self.discard(src, copied.bytes);
                copied
            }
            Moved { stop: Some(Errno::EAGAIN | Errno::EEXIST), .. } => copied,
            _ => stopped(Errno::EINVAL),
        }
    }

    /// Moves pages of a mapping that is writable, and executable, to the inactive list. Where a policy refuses such
    /// memory (SELinux' execmem) the program has none itself.
    fn move_by_landing(&mut self, dst: usize, src: Range<usize>, mapping: &Mapping) -> Moved {
        let bytes = src.len().min(detach::PIECE);
        let Some(landing) = Landing::new(bytes) else { return stopped(Errno::ENOMEM) };
        let to = landing.range();
        // On the program's own descriptor: an event that is not read stops the move.
        if let Err(errno) = self.uffd.register_silent(to.clone()) {
            return stopped(errno);
        }
        // SAFETY: the landing is the engine's, and nobody else knows of it.
        let moved = match unsafe { sys::mprotect(to.start, bytes, mapping.protection) } {
            // SAFETY: as for a move to the inactive list.
            Ok(()) => unsafe { self.uffd.move_pages(&self.pagemap, to.start, src.start, bytes) },
            Err(errno) => stopped(errno),
        };
        let _ = self.uffd.unregister(to.clone());
        if moved.bytes > 0 {
            // SAFETY: the landing is the engine's, and so is this part of the inactive list, of which nothing was
            // there.
            unsafe { core::ptr::copy_nonoverlapping(to.start as *const u8, dst as *mut u8, moved.bytes) };
        }
        part_of(moved, bytes, src.len())
    }

    /// Takes pages of a mapping that cannot be written to (detach.rs) to the inactive list, a part of them if they are
    /// many.
    fn take_by_detaching(&mut self, dst: usize, src: Range<usize>) -> Moved {
        let is_possible = CONTROL.are_constants(&src) || detach::is_possible();
        let is_little = CONTROL.are_constants(&src) && src.len() < detach::FEWEST * PAGE;
        if is_little || !is_possible || detach::lends_pages() {
            return stopped(Errno::EINVAL);
        }
        if self.is_behind() {
            return Moved::NOTHING_YET;
        }
        let wanted = src.len();
        let src = src.start..src.end.min(src.start + detach::PIECE);
        let Some(landing) = Landing::new(src.len()) else { return stopped(Errno::ENOMEM) };
        // It would be taken for a page, and lost.
        if CONTROL.guards.load(SeqCst) != 0 && self.has_guard(src.clone()) {
            return stopped(Errno::ENOENT);
        }
        let moved = self.take_to(dst, &src, &landing.range());
        part_of(moved, src.len(), wanted)
    }

    /// The same by way of the landing at `to`.
    fn take_to(&mut self, dst: usize, src: &Range<usize>, to: &Range<usize>) -> Moved {
        let Some(_taking) = CONTROL.taking(src.clone()) else { return stopped(Errno::EINVAL) };
        // All of it is registered, and no event is under way. (What a fork has protected is about to be a copy.)
        match self.uffd.unprotect(src.clone()) {
            Ok(()) => {}
            Err(Errno::EAGAIN) => return Moved::NOTHING_YET,
            Err(_) => return stopped(Errno::EINVAL),
        }
        match self.remove(src, to.start) {
            // Events come first. What was refused is refused the next time too, whatever the errno.
            Removed::Refused if self.is_behind() => return Moved::NOTHING_YET,
            Removed::Refused => return stopped(Errno::EINVAL),
            Removed::Foreign => {
                // A new mapping of nothing.
                if !self.has_any(to) {
                    return Moved::NOTHING_YET;
                }
                messages::leave_message("pages were taken that somebody had mapped in the place of others");
                messages::stop_program();
                return stopped(Errno::EINVAL);
            }
            Removed::All => {}
        }
        let _ = self.uffd.unregister(to.clone());
        let zone = self.drop_zone..self.drop_zone + src.len();
        if !self.await_devices(to, &zone) {
            messages::leave_message(
                "pages that cannot be written to were taken, and a device has not done with them",
            );
            messages::stop_program();
            return stopped(Errno::EINVAL);
        }
        let is_whole = zone.clone().step_by(PAGE).all(|at| self.pagemap.has_page(at) == Ok(true));
        let is_due = self.is_behind();
        let moved = if is_whole && !is_due {
            // SAFETY: the zone is the engine's, and so is this part of the inactive list, of which nothing was there.
            unsafe { core::ptr::copy_nonoverlapping(zone.start as *const u8, dst as *mut u8, src.len()) };
            Moved { bytes: src.len(), stop: None }
        } else {
            self.put_back(&zone, src);
            // What was read by now is to be known before anything else moves. Without an event some pages had gone
            // before they could be taken.
            if is_due || self.is_behind() { Moved::NOTHING_YET } else { stopped(Errno::ENOENT) }
        };
        // SAFETY: the zone holds nothing else, and that is elsewhere now.
        let _ = unsafe { sys::madvise(zone.start, zone.len(), MADV_DONTNEED) };
        moved
    }

    /// True when an event was read that the pager does not know of, or is to be read.
    pub(super) fn is_behind(&self) -> bool {
        self.early.iter().any(is_event) || self.uffd.zeropage(0, PAGE) == Moved::NOTHING_YET
    }

    fn has_any(&self, range: &Range<usize>) -> bool {
        range.clone().step_by(PAGE).any(|at| self.pagemap.has_page(at) != Ok(false))
    }

    /// Calls for the pages, and reads what comes meanwhile.
    fn remove(&mut self, src: &Range<usize>, to: usize) -> Removed {
        let (uffd, early) = (&self.uffd, &mut self.early);
        let wait = || {
            let _ = sys::poll([uffd.fd()], EVENT_NS);
        };
        detach::remove(src.clone(), to, wait, || {
            let mut is_ours = false;
            let message = Live::read(uffd, |message| {
                is_ours = matches!(message, Message::Remap { to: at, .. } if *at == to);
                !is_ours
            });
            let is_read = is_ours || message.is_some();
            early.extend(message);
            is_read.then_some(is_ours)
        })
    }

    /// Moves what was taken from its landing to the drop zone: a page that a device may write to is refused until
    /// that is over, and waited for. What is read meanwhile is kept, since somebody may have to run on for that.
    /// False when it takes too long.
    fn await_devices(&mut self, from: &Range<usize>, zone: &Range<usize>) -> bool {
        // SAFETY: the landing is the engine's, and nobody else knows of it.
        let protected = unsafe { sys::mprotect(from.start, from.len(), PROT_READ | PROT_WRITE) };
        let (mut offset, mut end, mut may_have_key) = (0, sys::now_ns() + PINNED_NS, true);
        while protected.is_ok() && offset < from.len() {
            let (at, rest) = (from.start + offset, from.len() - offset);
            // SAFETY: the landing's pages are the engine's.
            let moved = unsafe { self.quiet.move_pages(&self.pagemap, zone.start + offset, at, rest) };
            offset += moved.bytes;
            if moved.bytes > 0 {
                end = sys::now_ns() + PINNED_NS;
                continue;
            }
            match moved.stop {
                // Nothing was there, or the kernel has taken back what was given up.
                Some(Errno::ENOENT) => offset += PAGE,
                // What came along from the program is its key, and the zone has none.
                Some(Errno::EINVAL) if may_have_key => {
                    may_have_key = false;
                    // SAFETY: as above. Without keys there is another reason.
                    let _ =
                        unsafe { sys::mprotect_without_key(from.start, from.len(), PROT_READ | PROT_WRITE) };
                }
                _ if sys::now_ns() > end => return false,
                stop => {
                    // A page that others have since a fork is made one of its own, which it is if a device has it. It
                    // may be in a folio whose first page others have.
                    let _ = sys::futex_touch(at);
                    if stop == Some(Errno::EBUSY) {
                        let _ = sys::split_folio(at);
                    }
                    self.early.extend(Live::read(&self.uffd, |_| true));
                    if stop != Some(Errno::EAGAIN) {
                        sys::sleep_ns(PINNED_LOOK_NS);
                    }
                }
            }
        }
        protected.is_ok()
    }

    /// Undoes it, but for what the events say that have come since. What cannot be put back ends the program.
    fn put_back(&mut self, from: &Range<usize>, to: &Range<usize>) {
        let stop = |why| {
            messages::leave_message(why);
            messages::stop_program();
        };
        for offset in (0..from.len()).step_by(PAGE) {
            let (src, dst) = (from.start + offset, to.start + offset);
            // These were so after the page had been taken: of what was unmapped before nothing was there, nor of
            // what is mapped since, and nobody moves anything.
            let is_gone = |message: &Message| match message {
                Message::Remove(range) | Message::Unmap(range) => range.contains(&dst),
                _ => false,
            };
            while self.pagemap.has_page(src) == Ok(true) && !self.early.iter().any(is_gone) {
                // SAFETY: the page was there, and is a hole now.
                match unsafe { self.uffd.copy(dst, src, PAGE) }.stop {
                    // The second and third: somebody has filled the place, or it is gone.
                    None | Some(Errno::EEXIST | Errno::ENOENT) => break,
                    Some(Errno::EAGAIN) => match Live::read(&self.uffd, |_| true) {
                        Some(message) => self.early.push_back(message),
                        None => sys::sched_yield(),
                    },
                    Some(_) => return stop("pages that cannot be written to could not be put back"),
                }
            }
        }
        let meets = |a: &Range<usize>| a.start < to.end && a.end > to.start;
        let is_moved = |message: &Message| match message {
            Message::Remap { from, to: at } => meets(from) || meets(&(*at..at + from.len())),
            _ => false,
        };
        if self.early.iter().any(is_moved) {
            stop("pages were taken while they were moved by an mremap that did not pass libc");
        }
    }
}
