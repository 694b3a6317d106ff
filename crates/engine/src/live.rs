//! The real kernel, as the pager sees it.

mod census;
mod children;
mod guards;
mod huge;
mod kernel;
mod protections;

use crate::descriptors::Descriptors;
use crate::detach;
use crate::dontfork;
use crate::robust_lists::RobustLists;
use alloc::collections::VecDeque;
use census::Census;
use control::CONTROL;
use control::arena;
use control::line::Line;
use control::tasks::{self, TaskStat};
use core::cell::Cell;
use core::fmt::Write;
use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;
use huge::HugePages;
use memcg::Slot;
use mm::kernel::Message;
use uffd::kinds::{SMALLEST, SMALLEST_UNWRITABLE};
use uffd::maps::{Mapping, Maps};
use uffd::pagemap::Pagemap;
use uffd::sys::{self, consts::*};
use uffd::vdso;
use uffd::{Errno, Fd, Memory, PAGE, Userfault};
use vmscan::HUGE;

/// The last pages of a mapping are left alone too. Where it is a thread's stack its control block lies there, which the
/// kernel writes as the thread ends, and a thread may begin and end between two listings.
const TAIL: usize = 2 * PAGE;

/// The end of the address space that a program has without asking for more.
const TOP: usize = (1 << 47) - PAGE;

/// Bytes of the zone from which pages are dropped: a part for pages, and one for huge pages.
const DROP_ZONE: usize = 2 * HUGE;

/// What the engine needs of the kernel, opened before the first page goes out.
pub struct Live {
    /// The program's memory and the inactive list.
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
    robust_lists: RobustLists,
    pid: u32,
    drop_zone: usize,
    /// The inactive list and the doorbell: registered engine memory, dropped by way of the zone.
    registered: Range<usize>,
    slot: &'static Slot,
    /// The kernel's own swap has pages of the program's memory or of the engine's.
    pub is_swapped: bool,
    /// Some of the program's memory has been protected against writes.
    has_protected: bool,
    census: Census,
    huge: HugePages,
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
    pub fn open(pid: u32, slot: &'static Slot, opened: Descriptors) -> Result<Live, (&'static str, Errno)> {
        let maps = opened.maps.map_err(|e| ("/proc/self/maps", e))?;
        // SAFETY: a program that unmaps the vDSO has no use for it, and is one that nobody has met. Without it the
        // clock is a system call.
        let _ = unsafe { vdso::use_clock(&maps) };
        let quiet = opened.quiet.map_err(|e| ("userfaultfd", e))?;
        let drop_zone = arena::map_apart(DROP_ZONE, HUGE).ok_or(("mmap", Errno::ENOMEM))?;
        quiet.register_silent(drop_zone..drop_zone + DROP_ZONE).map_err(|e| ("UFFDIO_REGISTER", e))?;
        let mut path = Line::default();
        // Another process's threads would be taken for the program's.
        if !tasks::is_shown() {
            return Err(("/proc, which is another PID namespace's,", Errno::ESRCH));
        }
        let _ = write!(path, "/proc/{pid}/task\0");
        let tasks = sys::open(path.as_str().as_bytes(), O_RDONLY | O_DIRECTORY);
        Ok(Live {
            uffd: opened.events.map_err(|e| ("userfaultfd", e))?,
            quiet,
            pagemap: opened.pagemap.map_err(|e| ("/proc/self/pagemap", e))?,
            maps,
            tasks: tasks.map_err(|e| ("/proc/PID/task", e))?,
            memory: opened.memory.map_err(|e| ("/proc/self/mem", e))?,
            smaps: opened.smaps.ok(),
            robust_lists: RobustLists::default(),
            pid,
            drop_zone,
            registered: 0..0,
            slot,
            is_swapped: false,
            has_protected: false,
            census: Census::default(),
            huge: HugePages::none(),
            pauses: 0,
            early: VecDeque::new(),
            is_let_in: Cell::new(false),
            thread: 0,
            switches: 0,
        })
    }

    /// Huge pages are made for the program from now on, where the kernel itself would make them.
    pub fn make_huge_pages(&mut self) {
        self.huge = HugePages::new();
    }

    /// From now on memory is registered so that it is told which pages are touched, where the kernel does that; writes
    /// to what a fork has left to several are not told then. To be called before anything of the program's is.
    pub fn tell_touches(&mut self) {
        if !self.uffd.has_touches() {
            return;
        }
        let Some(at) = arena::map_apart(2 * PAGE, PAGE) else { return };
        let scratch = at..at + 2 * PAGE;
        for page in scratch.clone().step_by(PAGE) {
            // SAFETY: the mapping was made above, and nobody else has it.
            unsafe { (page as *mut u8).write_volatile(1) };
        }
        self.uffd.tell_touches(&self.pagemap, &self.memory, scratch);
        // SAFETY: as above, and it is registered no more.
        unsafe { arena::unmap(at, 2 * PAGE) };
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

    /// Registers the engine's own inactive list, whose holes the kernel fills, and the doorbell after it, whose touch
    /// is a message.
    pub fn register_own(&mut self, inactive: Range<usize>, bell: Range<usize>) -> Result<(), Errno> {
        self.registered = inactive.start..bell.end;
        self.uffd.register_silent(inactive)?;
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

    /// Of what has come to a range while that was registered and kept out of children, shared memory and files are
    /// never managed, and other mappings may not be registered: no list of the pager's has them, and children have
    /// them. Nothing that is out can be there. The program has not advised on them yet, since the engine does that for
    /// it.
    fn leave_strangers(&self, range: &Range<usize>) {
        self.each_part(range.clone(), |m, part| {
            if m.foreign && self.has(part.clone()) {
                let _ = self.uffd.unregister(part.clone());
            } else if !m.foreign && self.has(part.clone()) {
                return;
            }
            // It may be one mapping now with what lies beside it, of which the program may have said something.
            let part = part.start.max(range.start)..part.end.min(range.end);
            dontfork::note(&part, false);
            dontfork::give_back(part);
        });
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
    if sys::is_thp_disabled() == Ok(false) {
        let forbidden = sys::disable_thp(true);
        CONTROL.forbids_huge.store(forbidden.is_ok() as u32, SeqCst);
    }
}

/// Undoes [`forbid_huge_pages`], if it did anything; in the parent, and in a child.
pub fn allow_huge_pages() {
    if CONTROL.forbids_huge.swap(0, SeqCst) != 0 {
        let _ = sys::disable_thp(false);
    }
}

/// True when a whole mapping is registered with `uffd`. What `other` can have is nobody's; of the rest `uffd` has what
/// it can register again, which changes nothing.
fn is_registered(uffd: &Userfault, other: &Userfault, range: Range<usize>) -> bool {
    let told = other.register_silent(range.clone());
    if told.is_ok() {
        let _ = other.unregister(range);
        return false;
    }
    match uffd.register(range) {
        // Somebody has it. With an event under way it cannot be asked who, where that is told by its touches.
        Err(Errno::EAGAIN) => told == Err(Errno::EBUSY),
        registered => registered.is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_ours_another_s_or_nobody_s() {
        let open = || Userfault::open(uffd::Features::Quiet);
        let (Ok(ours), Ok(other), Ok(programs)) = (open(), open(), open()) else {
            crate::skip::skip("userfaultfd is refused");
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
