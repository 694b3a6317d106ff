//! What the pager asks of the kernel, as the real one does it.

use super::census::Census;
use super::{Live, TAIL, TOP};
use crate::dontfork;
use crate::locked;
use crate::smaps;
use alloc::vec::Vec;
use control::CONTROL;
use control::arena;
use control::line::Line;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::{Release, SeqCst};
use mm::kernel::{Birthmarks, Filled, Kernel, Message, Moved, Run, WINDOW_PAGES};
use uffd::pagemap::Wanted;
use uffd::sys::{self, consts::*};
use uffd::{Errno, PAGE};
use vmscan::HUGE;

impl Kernel for Live {
    fn next(&mut self) -> Option<Message> {
        let message = self.early.pop_front().or_else(|| Self::read(&self.uffd, |_| true));
        if message.is_some() {
            self.pauses = 0;
        }
        if let Some(Message::Remap { ref from, to }) = message {
            self.advise_moved(to..to + from.len());
        }
        if let Some(Message::Fault { thread, .. }) = message
            && core::mem::replace(&mut self.thread, thread) != thread
        {
            self.switches += 1;
        }
        message
    }

    fn register(&mut self, range: Range<usize>) -> Result<Range<usize>, Errno> {
        if locked::is_locked(range.start) {
            return Err(Errno::EINVAL);
        }
        // The whole mapping, tail included: a mapping that is split cannot be given to mremap any more.
        let whole = self.mapping_of(&range).ok_or(Errno::EINVAL)?;
        if CONTROL.may_keep_out() {
            self.learn_advice(&whole)?;
        }
        // And the gap after it, where nothing of ours may come meanwhile, since the mapping may grow in place before we
        // are done.
        let still = arena::still();
        let next = self.maps.query(whole.end)?.map_or(whole.end, |m| m.range.start);
        if CONTROL.spares(&(whole.start..next)) {
            return Err(Errno::EBUSY);
        }
        let mut at = whole.start;
        let part = loop {
            let mut part = arena::first_foreign(at..whole.end);
            if part.is_empty() {
                return Err(Errno::EINVAL);
            }
            if part.contains(&range.start) {
                part.end = if part.end == whole.end { next } else { part.end };
                break part;
            }
            at = part.end;
        };
        self.uffd.register(part.clone())?;
        match sys::madvise_keep(part.start, part.len(), MADV_DONTFORK) {
            // The gap is not mapped; what is, is done.
            Ok(_) | Err(Errno::ENOMEM) => {}
            Err(errno) => return Err(errno),
        }
        drop(still);
        // What comes to the gap is new.
        if CONTROL.may_keep_out() {
            dontfork::note(&(whole.end.min(part.end)..part.end), false);
        }
        self.leave_strangers(&part);
        // What was unmapped before it was registered was so without an event, and what has come there since is not
        // registered: of one mapping all is, or nothing.
        self.mapping_of(&range)
            .map(|whole| whole.start.max(part.start)..whole.end.min(part.end))
            .ok_or(Errno::EAGAIN)
    }

    fn unregister(&mut self, range: Range<usize>) {
        // Mapping by mapping, since parts may be gone by now and the tails were registered with them.
        self.each_part(range, |_, part| {
            let _ = self.uffd.unregister(part.clone());
            dontfork::give_back(part);
        });
    }

    fn fill_locked(&mut self, range: Range<usize>) -> Filled {
        let Ok(Some(m)) = self.maps.query(range.start) else { return Filled::No };
        // Of others somebody is only slow, and where there is a page nobody waits any more.
        let waits = m.range.contains(&range.start) && self.pagemap.has_page(range.start) == Ok(false);
        if !waits || !locked::is_filled(range.start) || !self.has(m.range.clone()) {
            return Filled::No;
        }
        let range = arena::first_foreign(range.start..range.end.min(m.range.end));
        match locked::fill(&self.uffd, &self.maps, &self.pagemap, &range) {
            Err(_) => Filled::No,
            Ok(true) => Filled::Whole,
            Ok(false) => {
                self.release(range.clone());
                Filled::Left(range)
            }
        }
    }

    fn is_locked(&mut self, at: usize) -> bool {
        locked::is_locked(at)
    }

    fn release(&mut self, range: Range<usize>) {
        let _ = self.uffd.unregister(range.clone());
        dontfork::give_back(range);
    }

    fn is_ours(&mut self, at: usize) -> bool {
        let Ok(Some(m)) = self.maps.query(at) else { return true };
        !m.range.contains(&at) || !CONTROL.spares(&m.range) && self.has(m.range)
    }

    fn birthmarks(&mut self) -> Result<Birthmarks, Errno> {
        let mut marks = Birthmarks::default();
        smaps::each(|range, flags| {
            marks.wiped.extend(flags.is_wiped().then(|| range.clone()));
            marks.known.extend(flags.is_random().then_some(range));
        })?;
        Ok(marks)
    }

    fn is_mapped(&mut self, range: Range<usize>) -> bool {
        matches!(self.maps.query(range.start), Ok(Some(m)) if m.range.start < range.end)
    }

    fn mapping(&mut self, at: usize) -> Option<Range<usize>> {
        let mapping = self.maps.query(at).ok()??.range;
        // Where the kernel chose the addresses the engine of a child may have memory where the program's was kept out.
        (mapping.contains(&at) && arena::first_foreign(at..mapping.end).start == at).then_some(mapping)
    }

    fn area(&mut self, at: usize, asks: &mut usize) -> Result<Option<Range<usize>>, usize> {
        let mut at = at;
        loop {
            *asks = asks.checked_sub(1).ok_or(at)?;
            let Ok(Some(m)) = self.maps.query(at) else { return Ok(None) };
            if Self::manageable(&m) {
                let mut from = at.max(m.range.start);
                while from < m.range.end {
                    let mut part = arena::first_foreign(from..m.range.end);
                    if part.is_empty() {
                        break;
                    }
                    from = part.end;
                    if part.end == m.range.end && m.is_writable() {
                        part.end -= TAIL;
                    }
                    if part.start < part.end && part.end > at {
                        return Ok(Some(part));
                    }
                }
            }
            at = m.range.end;
        }
    }

    fn present(&mut self, range: Range<usize>, max_pages: usize, runs: &mut [Run]) -> (usize, usize) {
        let end = range.end;
        self.pagemap.present(range, max_pages, runs).unwrap_or((0, end))
    }

    fn is_hole(&mut self, at: usize) -> bool {
        self.pagemap.has_page(at) == Ok(false)
    }

    fn entries(&mut self, at: usize, entries: &mut [u64]) {
        let told = self.pagemap.entries(at, entries).unwrap_or(0);
        entries[told..].fill(0);
    }

    fn is_held(&mut self, at: usize) -> bool {
        CONTROL.holds(at)
    }

    fn has_unmapped(&mut self, range: &Range<usize>) {
        // Without a place for what is left on both sides all of it stays pinned.
        let _ = CONTROL.pinned.remove(range);
        self.huge.forget(range);
    }

    fn has_remapped(&mut self, from: &Range<usize>, to: usize) {
        CONTROL.pinned.remap(from, to);
        self.huge.forget(from);
        self.huge.forget(&(to..to + from.len()));
    }

    /// One scan passes thousands of mappings in the time that a query for each few of them would take.
    fn occupied(
        &mut self,
        at: usize,
        max_pages: usize,
        wants_swapped: bool,
        runs: &mut [Run],
    ) -> Option<(usize, usize)> {
        let mut at = at;
        loop {
            let part = arena::first_foreign(at..TOP);
            if part.is_empty() {
                return None;
            }
            at = part.end;
            let wanted = Wanted { swapped: wants_swapped, touches: self.uffd.tells_touches() };
            let (found, upto) = self.pagemap.look(part, max_pages, wanted, runs).unwrap_or((0, at));
            if found > 0 {
                return Some((found, upto));
            }
        }
    }

    fn is_swapped(&self) -> bool {
        self.is_swapped
    }

    fn pins(&mut self, pins: &mut Vec<usize>) {
        self.robust_lists.pins(&self.memory, &self.tasks, pins);
    }

    fn move_pages(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        // SAFETY: the pager tells where each page is before anything can ask for it (move_out.rs, serve.rs of mm).
        let moved = unsafe { self.uffd.move_pages(&self.pagemap, dst, src, bytes) };
        if moved.stop == Some(Errno::EINVAL) && moved.bytes == 0 {
            return self.move_unlike(dst, src, bytes);
        }
        moved
    }

    fn move_huge(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        // SAFETY: as above.
        unsafe { self.uffd.move_pages(&self.pagemap, dst, src, bytes) }
    }

    fn wants_huge(&mut self, range: &Range<usize>) -> bool {
        self.huge.are_wanted(range)
    }

    fn populate_huge(&mut self, at: usize, bytes: usize) -> bool {
        // The engine's memory gets none by itself. Said once, it holds: nothing but huge pages comes there.
        sys::madvise_keep(at, bytes, MADV_HUGEPAGE).is_ok()
            && self.populate(at, bytes)
            && self.is_huge(at..at + bytes)
    }

    fn collapse(&mut self, range: Range<usize>) -> bool {
        sys::madvise_keep(range.start, range.len(), MADV_COLLAPSE).is_ok()
    }

    fn copy(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        // A thread that a signal interrupts in a fault sends its message again, and the second may be served when a
        // guard is there already.
        if CONTROL.guards.load(SeqCst) != 0 && self.has_guard(dst..dst + bytes) {
            return Moved { bytes: 0, stop: Some(Errno::EEXIST) };
        }
        // SAFETY: the pager copies only to pages that it evicted, or that a thread faulted on as missing.
        unsafe { self.uffd.copy(dst, src, bytes) }
    }

    fn zero(&mut self, dst: usize, bytes: usize) -> Moved {
        self.uffd.zeropage(dst, bytes)
    }

    fn tells_touches(&self) -> bool {
        self.uffd.tells_touches()
    }

    fn watch(&mut self, range: Range<usize>) -> Result<(), Errno> {
        self.uffd.watch(range)
    }

    fn protect(&mut self, range: Range<usize>) -> Result<(), Errno> {
        // Mapping by mapping, since each has a tail that is left alone: where it is a stack, the kernel writes there as
        // its thread ends.
        let (mut at, mut parts) = (range.start, Vec::new());
        while let Ok(Some(m)) = self.maps.query(at)
            && m.range.start < range.end
        {
            at = m.range.end;
            let part = m.range.start.max(range.start)..(m.range.end - TAIL.min(m.range.len())).min(range.end);
            parts.extend((!part.is_empty()).then_some(part));
        }
        self.has_protected = true;
        for part in parts {
            // What is not registered, or gone, is left out: what is copied there is counted late.
            if self.uffd.protect(part) == Err(Errno::EAGAIN) {
                return Err(Errno::EAGAIN);
            }
        }
        Ok(())
    }

    fn unprotect(&mut self, range: Range<usize>) -> Result<usize, Errno> {
        // Asked before somebody writes: what is copied by then is nobody else's any more.
        let mut copies = 0;
        if range.len() <= WINDOW_PAGES * PAGE {
            copies = self.shared(range.clone()).count_ones() as usize;
        }
        self.uffd.unprotect(range)?;
        if copies > 0 {
            CONTROL.order().memcg.count_copies(self.slot, (copies * PAGE) as u64);
        }
        Ok(copies)
    }

    fn lift_protection(&mut self, range: Range<usize>) -> Result<(), Errno> {
        let may_be = self.has_protected || self.uffd.tells_touches();
        if may_be { self.uffd.unprotect(range) } else { Ok(()) }
    }

    fn shared(&mut self, range: Range<usize>) -> u128 {
        self.pagemap.shared(range).unwrap_or(0)
    }

    fn unshare(&mut self, at: usize) -> bool {
        sys::futex_touch(at).is_ok()
    }

    fn split_folio(&mut self, at: usize) -> bool {
        sys::split_folio(at).is_ok()
    }

    fn wake(&mut self, range: Range<usize>) {
        self.uffd.wake(range);
    }

    fn lose(&mut self, at: usize, why: fmt::Arguments<'_>) -> bool {
        // SAFETY: the page is lost; whoever touches it must know.
        let poisoned = unsafe { self.uffd.poison(at..at + PAGE) };
        if poisoned == Err(Errno::EAGAIN) {
            return false;
        }
        let mut line = Line::default();
        let _ = fmt::write(&mut line, why);
        CONTROL.order().memcg.lost.say(line.as_str());
        self.uffd.wake(at..at + PAGE);
        if poisoned.is_err() {
            self.slot.state.store(memcg::State::Stopped as u32, Release);
            let _ = sys::kill(self.pid, SIGBUS);
        }
        true
    }

    fn discard(&mut self, at: usize, bytes: usize) -> bool {
        if !self.registered.contains(&at) {
            // SAFETY: the pager discards engine memory only, whose contents nobody needs.
            return unsafe { sys::madvise(at, bytes, MADV_DONTNEED) }.is_ok();
        }
        // No page table may come to where huge pages are to go whole.
        let is_whole = bytes == HUGE && self.is_huge(at..at + bytes);
        let zone = if is_whole { self.drop_zone + HUGE } else { self.drop_zone };
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(HUGE);
            // SAFETY: as above; on its way the page passes the zone, which nobody reads.
            let moved = unsafe { self.quiet.move_pages(&self.pagemap, zone, at + done, step) };
            if moved.bytes > 0 {
                // SAFETY: the zone holds nothing else.
                let _ =
                    unsafe { sys::madvise(zone, if is_whole { HUGE } else { moved.bytes }, MADV_DONTNEED) };
                done += moved.bytes;
            }
            match moved.stop {
                None => {}
                // A page that was taken back by the kernel (MADV_FREE) is gone as it should be.
                Some(Errno::ENOENT) if moved.bytes == 0 => done += PAGE,
                Some(Errno::EAGAIN) => {}
                Some(_) if moved.bytes == 0 => return false,
                Some(_) => {}
            }
        }
        true
    }

    fn populate(&mut self, at: usize, bytes: usize) -> bool {
        sys::madvise_keep(at, bytes, MADV_POPULATE_WRITE).is_ok()
    }

    fn clear(&mut self, at: usize, bytes: usize) {
        // SAFETY: the pager clears engine memory that it owns (a slot of stock), all of it present.
        unsafe { core::ptr::write_bytes(at as *mut u8, 0, bytes) }
    }

    fn census_begin(&mut self, bytes: usize) {
        self.census = Census::begin(&self.tasks, self.pid, bytes);
    }

    fn census_done(&mut self) -> bool {
        self.census.is_done(&self.tasks)
    }

    fn pause(&mut self) {
        self.pauses += 1;
        if self.pauses < 16 { sys::sched_yield() } else { sys::sleep_ns(20_000) }
    }

    fn now_ms(&mut self) -> u64 {
        sys::now_ns() / 1_000_000
    }

    fn now_ns(&mut self) -> u64 {
        sys::now_ns()
    }
}
