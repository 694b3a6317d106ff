//! The real kernel, as the pager sees it.

mod census;
mod children;
mod protections;

use crate::detach;
use crate::dontfork;
use crate::heads::Heads;
use crate::keys::Keys;
use crate::locked;
use crate::smaps;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use census::Census;
use control::CONTROL;
use control::arena;
use control::line::Line;
use control::tasks::{self, TaskStat};
use core::cell::Cell;
use core::fmt::{self, Write};
use core::ops::Range;
use core::sync::atomic::Ordering::{Release, SeqCst};
use memcg::Slot;
use mm::kernel::{Birthmarks, Filled, Kernel, Message, Moved, Run, WINDOW_PAGES};
use uffd::kinds::{SMALLEST, SMALLEST_UNWRITABLE};
use uffd::maps::{Mapping, Maps};
use uffd::pagemap::Pagemap;
use uffd::sys::{self, consts::*};
use uffd::vdso;
use uffd::{Errno, Fd, Memory, PAGE, Userfault};

/// The last pages of a mapping are left alone too. Where it is a thread's stack its control block lies there, which the
/// kernel writes as the thread ends, and a thread may be born and end between two listings.
const TAIL: usize = 2 * PAGE;

/// The end of the address space that a program has without asking for more.
const TOP: usize = (1 << 47) - PAGE;

/// Bytes of the zone from which pages are dropped.
const DROP_ZONE: usize = 2 << 20;

/// What the engine needs of the kernel, opened before the first page goes out.
pub struct Live {
    /// The program's memory and the stage.
    uffd: Userfault,
    /// The drop zone alone: no events, so that dropping does not wait for ourselves.
    quiet: Userfault,
    pagemap: Pagemap,
    maps: Maps,
    tasks: Fd,
    /// The program's memory, for a glance: to read what is out would be to wait for itself.
    memory: Memory,
    /// Where it may be read.
    smaps: Option<Fd>,
    heads: Heads,
    pid: u32,
    drop_zone: usize,
    /// The stage and the doorbell: registered engine memory, dropped by way of the zone.
    registered: Range<usize>,
    slot: &'static Slot,
    /// The kernel's own swap has pages of the program's memory or of the engine's.
    pub is_swapped: bool,
    /// Some of the program's memory has been protected against writes.
    has_protected: bool,
    census: Census,
    pauses: u32,
    /// Messages that were read while pages were taken that cannot be written to.
    early: VecDeque<Message>,
    /// A fork is under way, and children have what is registered (children.rs).
    is_let_in: Cell<bool>,
    /// The thread of the last fault, and how often that has changed.
    thread: u32,
    switches: u64,
}

impl Live {
    /// Begins with what was opened for the process `pid`, in whose address space the caller runs. The error names what
    /// was refused.
    pub fn open(pid: u32, slot: &'static Slot, keys: Keys) -> Result<Live, (&'static str, Errno)> {
        let maps = keys.maps.map_err(|e| ("/proc/self/maps", e))?;
        // SAFETY: a program that unmaps the vDSO has no use for it, and is one that nobody has met. Without it the
        // clock is a system call.
        let _ = unsafe { vdso::use_clock(&maps) };
        let quiet = keys.quiet.map_err(|e| ("userfaultfd", e))?;
        let drop_zone = arena::map_apart(DROP_ZONE, DROP_ZONE).ok_or(("mmap", Errno::ENOMEM))?;
        quiet.register_silent(drop_zone..drop_zone + DROP_ZONE).map_err(|e| ("UFFDIO_REGISTER", e))?;
        let mut path = Line::default();
        // Another process's threads would be taken for the program's.
        if !tasks::is_shown() {
            return Err(("/proc, which is another PID namespace's,", Errno::ESRCH));
        }
        let _ = write!(path, "/proc/{pid}/task\0");
        let tasks = sys::open(path.as_str().as_bytes(), O_RDONLY | O_DIRECTORY);
        Ok(Live {
            uffd: keys.events.map_err(|e| ("userfaultfd", e))?,
            quiet,
            pagemap: keys.pagemap.map_err(|e| ("/proc/self/pagemap", e))?,
            maps,
            tasks: tasks.map_err(|e| ("/proc/PID/task", e))?,
            memory: keys.memory.map_err(|e| ("/proc/self/mem", e))?,
            smaps: keys.smaps.ok(),
            heads: Heads::default(),
            pid,
            drop_zone,
            registered: 0..0,
            slot,
            is_swapped: false,
            has_protected: false,
            census: Census::default(),
            pauses: 0,
            early: VecDeque::new(),
            is_let_in: Cell::new(false),
            thread: 0,
            switches: 0,
        })
    }

    /// The descriptor that tells of faults and events.
    pub fn fd(&self) -> &Fd {
        self.uffd.fd()
    }

    /// The thread of the last fault, and how many faults were of another thread than the one before.
    pub fn faulters(&self) -> (u32, u64) {
        (self.thread, self.switches)
    }

    /// The CPU where a thread runs or last ran.
    pub fn cpu_of(&self, tid: u32) -> Option<usize> {
        TaskStat::read(&self.tasks, tid).ok()??.number(39).map(|cpu| cpu as usize)
    }

    /// Registers the engine's own stage, whose holes the kernel fills, and the doorbell after it, whose touch is a
    /// message.
    pub fn register_own(&mut self, stage: Range<usize>, bell: Range<usize>) -> Result<(), Errno> {
        self.registered = stage.start..bell.end;
        self.uffd.register_silent(stage)?;
        self.uffd.register(bell)
    }

    /// True when messages were read that have not been handed on.
    pub fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Reads a message of the kernel's, which is the pager's if `is_for_it`.
    fn read(uffd: &Userfault, is_for_it: impl FnOnce(&Message) -> bool) -> Option<Message> {
        let message = uffd.next().filter(is_for_it)?;
        dontfork::follow(&message);
        Some(message)
    }

    /// The memory of program and engine.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// /proc/self/smaps, where it may be read.
    pub fn smaps(&self) -> Option<&Fd> {
        self.smaps.as_ref()
    }

    /// The mapping that holds all of `range`; none of shared memory, nor of a file.
    fn mapping_of(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let whole = self.maps.query(range.start).ok()?.filter(|m| !m.foreign)?.range;
        (whole.start <= range.start && whole.end >= range.end).then_some(whole)
    }

    /// False when a mapping is registered with another userfaultfd or none. Where the engine's own memory is part of it
    /// nothing is asked.
    fn has(&self, whole: Range<usize>) -> bool {
        // What is ours may not come there between the look and the question, which registers: a worker that shares the
        // memory maps some too.
        let _still = arena::still();
        arena::first_foreign(whole.clone()) != whole || is_registered(&self.uffd, &self.quiet, whole)
    }

    /// Of what has come to a range while it was registered, shared memory and files are not, and children have them:
    /// they are never managed, and no list of the pager's has them. Nothing that is out can be there.
    fn leave_foreign(&self, range: &Range<usize>) {
        self.each_part(range.clone(), |m, part| {
            if m.foreign {
                if self.has(part.clone()) {
                    let _ = self.uffd.unregister(part.clone());
                }
                dontfork::give_back(part);
            }
        });
    }

    fn has_guard(&self, range: Range<usize>) -> bool {
        range.step_by(PAGE).any(|at| self.pagemap.is_guard(at).unwrap_or(false))
    }

    fn manageable(m: &Mapping) -> bool {
        let smallest = if m.is_writable() { SMALLEST } else { SMALLEST_UNWRITABLE };
        m.protection & PROT_READ != 0
            && (m.is_writable() || CONTROL.are_constants(&m.range) || detach::is_possible())
            && !m.foreign
            && m.range.len() >= smallest
            && m.name[0..6] != *b"[stack"
            && m.name[0..2] != *b"[v"
    }
}

/// Until a child has registered what is out, khugepaged would take it for memory that nobody has touched, and could
/// make a huge page of it and what lies around it, zeros where there were holes. So nobody makes huge pages meanwhile.
pub fn forbid_huge_pages() {
    if sys::thp_disable(PR_GET_THP_DISABLE, 0, 0, 0, 0) == Ok(0) {
        let forbidden = sys::thp_disable(PR_SET_THP_DISABLE, 1, 0, 0, 0);
        CONTROL.forbids_huge.store(forbidden.is_ok() as u32, SeqCst);
    }
}

/// Undoes [`forbid_huge_pages`], if it did anything; in the parent, and in a child.
pub fn allow_huge_pages() {
    if CONTROL.forbids_huge.swap(0, SeqCst) != 0 {
        let _ = sys::thp_disable(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    }
}

/// The engine copies a page into the program, and no guard is made there meanwhile (`advice::install_guards`): each of
/// the two says first what it is about to do, and then looks at the other.
struct Copying;

impl Copying {
    /// `None` while a guard is being made.
    fn begin() -> Option<Copying> {
        CONTROL.copying.store(1, SeqCst);
        let copying = Copying;
        (CONTROL.guarding.load(SeqCst) == 0).then_some(copying)
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        CONTROL.copying.store(0, SeqCst);
    }
}

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
        self.leave_foreign(&part);
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
            let told = match wants_swapped {
                true => self.pagemap.present_or_swapped(part, max_pages, runs),
                false => self.pagemap.present(part, max_pages, runs),
            };
            let (found, upto) = told.unwrap_or((0, at));
            if found > 0 {
                return Some((found, upto));
            }
        }
    }

    fn is_swapped(&self) -> bool {
        self.is_swapped
    }

    fn pins(&mut self, pins: &mut Vec<usize>) {
        self.heads.pins(&self.memory, &self.tasks, pins);
    }

    fn move_pages(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        // SAFETY: the pager tells where each page is before anything can ask for it (evict.rs, fault.rs of mm).
        let moved = unsafe { self.uffd.move_pages(&self.pagemap, dst, src, bytes) };
        if moved.stop == Some(Errno::EINVAL) && moved.bytes == 0 {
            return self.move_unlike(dst, src, bytes);
        }
        moved
    }

    fn copy(&mut self, dst: usize, src: usize, bytes: usize) -> Moved {
        // While a guard is being made a move does instead, which stops at guards; the thread that makes it may be the
        // one that waits.
        let Some(_copying) = Copying::begin() else {
            let from_stage = self.registered.contains(&src);
            let moved = if from_stage { Moved::NOTHING_YET } else { self.move_pages(dst, src, bytes) };
            // What only a copy can do is tried again.
            let refused = !matches!(moved.stop, None | Some(Errno::EEXIST | Errno::ENOENT));
            return if moved.bytes == 0 && refused { Moved::NOTHING_YET } else { moved };
        };
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
        if self.has_protected { self.uffd.unprotect(range) } else { Ok(()) }
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
        self.slot.say(line.as_str());
        self.slot.state.store(memcg::State::Stopped as u32, Release);
        self.uffd.wake(at..at + PAGE);
        if poisoned.is_err() {
            let _ = sys::kill(self.pid, SIGBUS);
        }
        true
    }

    fn discard(&mut self, at: usize, bytes: usize) -> bool {
        if !self.registered.contains(&at) {
            // SAFETY: the pager discards engine memory only, whose contents nobody needs.
            return unsafe { sys::madvise(at, bytes, MADV_DONTNEED) }.is_ok();
        }
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(DROP_ZONE);
            // SAFETY: as above; on its way the page passes the zone, which nobody reads.
            let moved = unsafe { self.quiet.move_pages(&self.pagemap, self.drop_zone, at + done, step) };
            if moved.bytes > 0 {
                // SAFETY: the zone holds nothing else.
                let _ = unsafe { sys::madvise(self.drop_zone, moved.bytes, MADV_DONTNEED) };
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

/// True when a whole mapping is registered with `uffd`. What `other` can have is nobody's; of the rest `uffd` has what
/// it can register again, which changes nothing.
fn is_registered(uffd: &Userfault, other: &Userfault, range: Range<usize>) -> bool {
    if other.register_silent(range.clone()).is_ok() {
        let _ = other.unregister(range);
        return false;
    }
    uffd.register(range).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_ours_another_s_or_nobody_s() {
        let open = || Userfault::open(uffd::Features::Quiet);
        let (Ok(ours), Ok(other), Ok(programs)) = (open(), open(), open()) else {
            println!("skipped: userfaultfd is refused");
            return;
        };
        let at = arena::map(1 << 16, 1 << 16).unwrap();
        let whole = at..at + (1 << 16);
        // Asked twice, since asking changes nothing.
        let is_ours = || {
            let first = is_registered(&ours, &other, whole.clone());
            assert_eq!(is_registered(&ours, &other, whole.clone()), first);
            first
        };
        assert!(!is_ours());
        programs.register(whole.clone()).unwrap();
        assert!(!is_ours());
        programs.unregister(whole.clone()).unwrap();
        ours.register(whole.clone()).unwrap();
        assert!(is_ours());
        assert_eq!(programs.register(whole.clone()), Err(Errno::EBUSY), "still ours");
        ours.unregister(whole.clone()).unwrap();
        assert!(!is_ours());
        programs.register(whole).unwrap();
    }
}
