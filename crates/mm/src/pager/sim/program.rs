//! The simulated program: threads that touch memory, change their mappings, are born and exit, and read only what
//! they may.

use super::World;
use super::memory::{Access, Content, Task, Vma};
use super::own::Asking;
use super::syscall::{Call, Removal};
use std::collections::BTreeSet;
use std::ops::Range;
use vmscan::{PAGE, WINDOW};

/// Where the program's memory lies.
pub const BASE: usize = 0x10_0000_0000;

/// A thread's control block: the kernel writes to it, without a fault, as the thread exits.
struct Tcb {
    page: usize,
    /// The engine has listed it, and found the page in place.
    listed: bool,
}

/// A device that writes to a frame, wherever that is mapped by now.
struct Transfer {
    frame: u64,
    at: usize,
    /// The program discarded the page meanwhile, so the frame is nobody's.
    detached: bool,
}

/// What the threads do more often than else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Habit {
    /// A little of everything.
    #[default]
    None,
    /// MADV_DONTNEED and MADV_FREE.
    Discards,
    /// mremap, mprotect and guards.
    Remaps,
    /// mremap and fork.
    Forks,
    /// mremap and mlock, which fills.
    Locks,
    /// A userfaultfd of its own, and mremap.
    Owns,
}

/// What a thread is at.
pub enum Doing {
    Nothing,
    Touching(Touch),
    Calling(Call),
    Asking(Asking),
}

/// Pages to be read or written one after another.
pub struct Touch {
    at: usize,
    end: usize,
    write: bool,
    then: Then,
    /// The turn in which the page at `at` was reached.
    since: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    /// The page becomes the control block of a new thread.
    Birth,
    /// The page is handed to a device.
    Transfer,
}

/// All threads, and what they share.
pub struct Program {
    doing: Vec<Doing>,
    /// The turn in which each thread last came further.
    moved_on: Vec<usize>,
    /// Until when each thread waits for a processor.
    off_until: Vec<u64>,
    pages: usize,
    habit: Habit,
    /// Signals take threads out of their faults, now and then.
    pub signals: bool,
    /// The machine swaps.
    pub swaps: bool,
    /// The kernel makes huge pages.
    pub huge: bool,
    tcbs: Vec<Tcb>,
    transfers: Vec<Transfer>,
    /// Threads of the census that were always seen in a system call since.
    counted: Vec<usize>,
    /// No new work is begun.
    pub closing: bool,
    /// Steps that did something.
    pub steps: usize,
    contents: Content,
    /// Pages on which SIGBUS was raised.
    pub lost: BTreeSet<usize>,
}

impl Program {
    pub fn new(threads: usize, pages: usize, habit: Habit) -> Program {
        Program {
            doing: (0..threads).map(|_| Doing::Nothing).collect(),
            moved_on: vec![0; threads],
            off_until: vec![0; threads],
            pages,
            habit,
            signals: false,
            swaps: false,
            huge: false,
            tcbs: Vec::new(),
            transfers: Vec::new(),
            counted: Vec::new(),
            closing: false,
            steps: 0,
            contents: 100,
            lost: BTreeSet::new(),
        }
    }

    /// A child of `threads` threads, which are at nothing yet.
    pub fn fork(&self, threads: usize) -> Program {
        let mut child = Program::new(threads, self.pages, self.habit);
        (child.signals, child.swaps, child.huge) = (self.signals, self.swaps, self.huge);
        child.contents = self.contents;
        child.lost = self.lost.clone();
        child
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.doing.len()
    }

    /// All the memory that the program may use.
    pub fn space(&self) -> Range<usize> {
        BASE..BASE + self.pages * PAGE
    }

    /// No thread is in the middle of anything.
    pub fn is_idle(&self) -> bool {
        self.doing.iter().all(|d| matches!(d, Doing::Nothing)) && self.transfers.is_empty()
    }

    /// A thread that is in the middle of something and has not come further since turn `turn`.
    pub fn stuck(&self, turn: usize) -> Option<usize> {
        let stuck = |t: &usize| !matches!(self.doing[*t], Doing::Nothing) && self.moved_on[*t] < turn;
        (0..self.threads()).find(stuck)
    }

    /// All threads that there are may be in the middle of a discard.
    pub fn census_begin(&mut self) {
        self.counted = (0..self.threads()).collect();
    }

    /// Those of the census that are seen outside of a system call are not.
    pub fn census_done(&mut self) -> bool {
        let doing = &self.doing;
        self.counted.retain(|&t| matches!(doing[t], Doing::Calling(_)));
        self.counted.is_empty()
    }

    /// Has thread 0 read a range.
    pub fn read_all(&mut self, range: Range<usize>, since: usize) {
        let Range { start: at, end } = range;
        self.doing[0] = Doing::Touching(Touch { at, end, write: false, then: Then::Nothing, since });
    }

    /// Pages that the kernel writes without a fault.
    pub fn pins(&mut self) -> impl Iterator<Item = usize> {
        self.tcbs.iter().map(|t| t.page)
    }

    /// Pages of threads that live, which the engine has listed.
    pub fn listed_pins(&self) -> impl Iterator<Item = usize> {
        self.tcbs.iter().filter(|t| t.listed).map(|t| t.page)
    }

    /// The system calls that threads are in.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.doing.iter().filter_map(|doing| match doing {
            Doing::Calling(call) => Some(call),
            _ => None,
        })
    }

    /// A thread is about to discard the page at `at`.
    pub fn is_discarded(&self, at: usize) -> bool {
        self.calls().filter_map(|call| call.removal.as_ref()).any(|r| (r.at..r.end).contains(&at))
    }

    /// A thread's control block lies in a range.
    pub fn lives_in(&self, range: &Range<usize>) -> bool {
        self.tcbs.iter().any(|t| range.contains(&t.page))
    }

    /// No thread lives on: their pages may go.
    pub fn bury(&mut self) {
        self.tcbs.clear();
    }
}

/// A new mapping of the program's.
pub fn fresh() -> Vma {
    Vma {
        end: 0,
        writable: true,
        locked: false,
        filled: false,
        engine: false,
        registered: false,
        silent: false,
        marked: false,
        owned: false,
        moved: 0,
    }
}

impl World {
    /// One step of a thread.
    pub fn step_thread(&mut self, thread: usize) {
        if self.memory.blocked.contains(&Task::Thread(thread)) || self.clock < self.program.off_until[thread]
        {
            return;
        }
        if self.random.one_in(60) {
            self.program.off_until[thread] = self.clock + self.random.below(400) as u64;
        }
        self.program.steps += 1;
        self.program.moved_on[thread] = self.memory.turn;
        let doing = std::mem::replace(&mut self.program.doing[thread], Doing::Nothing);
        self.program.doing[thread] = match doing {
            Doing::Nothing if self.program.closing => Doing::Nothing,
            Doing::Nothing => self.begin(thread),
            Doing::Touching(touch) => self.touch(thread, touch),
            Doing::Calling(call) => self.call(thread, call),
            Doing::Asking(asking) => self.ask(asking),
        };
    }

    /// The engine lists pins: a page that is in place now stays so. One that was protected since the list before is
    /// not known yet: the real one would lie at the end of its mapping, and not be protected at all.
    pub fn list_pins(&mut self) {
        let memory = &self.memory;
        for tcb in &mut self.program.tcbs {
            tcb.listed |= memory.page(tcb.page).is_some_and(|page| !memory.has_writes_wait(page));
        }
    }

    /// A thread exits, once the engine knows of it: the kernel writes to its control block and takes no fault there.
    pub fn step_exit(&mut self) {
        let listed: Vec<usize> =
            (0..self.program.tcbs.len()).filter(|&t| self.program.tcbs[t].listed).collect();
        if listed.is_empty() {
            return;
        }
        let tcb = self.program.tcbs.swap_remove(*self.random.pick(&listed));
        let content = self.content();
        self.trace("exit writes", [tcb.page as u64, content, 0]);
        assert!(
            self.memory.page(tcb.page).is_some_and(|page| !self.memory.has_writes_wait(page)),
            "the exit word of the thread at {:#x} is lost: its page is out, or protected",
            tcb.page
        );
        self.memory.access(Task::Thread(0), tcb.page, Some(content));
        self.shadow.write(tcb.page, content);
    }

    /// A device ends its transfer into a frame.
    pub fn step_device(&mut self) {
        if self.program.transfers.is_empty() {
            return;
        }
        let index = self.random.below(self.program.transfers.len());
        let transfer = self.program.transfers.swap_remove(index);
        let found =
            self.memory.pages_in(0..usize::MAX).find(|(_, p)| p.frame == transfer.frame).map(|(at, _)| at);
        match found {
            Some(at) => {
                let content = self.content();
                self.trace("a device writes", [at as u64, content, 0]);
                assert!(
                    self.program.space().contains(&at),
                    "a page that a device writes to was moved to {at:#x}"
                );
                let page = self.memory.page_mut(at).expect("found");
                page.pins -= 1;
                (page.content, page.lazy) = (content, false);
                self.shadow.write(at, content);
            }
            None => {
                assert!(transfer.detached, "the page at {:#x} was taken from under a device", transfer.at)
            }
        }
    }

    /// A content that no page has had before; now and then one that repeats.
    fn content(&mut self) -> Content {
        if self.random.one_in(10) {
            return self.random.below(4) as Content;
        }
        self.program.contents += 1;
        self.program.contents
    }

    fn range(&mut self) -> Range<usize> {
        let pages = self.program.pages;
        let (start, len) = match self.random.below(4) {
            0 => (self.random.below(pages), 1 + self.random.below(3)),
            1 => (self.random.below(pages), 1 + self.random.below(24)),
            _ => {
                let window = WINDOW / PAGE;
                (self.random.below(pages / window) * window, (1 + self.random.below(3)) * window)
            }
        };
        BASE + start * PAGE..BASE + (start + len).min(pages) * PAGE
    }

    fn begin(&mut self, thread: usize) -> Doing {
        if self.program.huge && self.random.one_in(8) {
            let range = self.huge_range();
            return match self.random.below(3) {
                0 => self.map_huge(thread, range),
                what => self.touch_all(range, what == 1),
            };
        }
        let range = self.range();
        let write = self.random.one_in(2);
        let dice = match self.program.habit {
            Habit::Discards if self.random.one_in(2) => 75 + self.random.below(9),
            Habit::Remaps if self.random.one_in(2) => 90 + self.random.below(8),
            Habit::Forks if self.random.one_in(2) => *self.random.pick(&[90, 91, 92, 93, 98, 98, 98]),
            Habit::Owns if self.random.one_in(2) => *self.random.pick(&[90, 92, 98, 100, 100, 100, 100]),
            Habit::Locks if self.random.one_in(2) => *self.random.pick(&[90, 91, 92, 93, 99, 99]),
            _ => self.random.below(100),
        };
        let since = self.memory.turn;
        let touch = |at, end, write, then| Doing::Touching(Touch { at, end, write, then, since });
        let start = range.start as u64;
        let args = [thread as u64, start, range.end as u64];
        match dice {
            0..35 => touch(range.start, range.start + PAGE, write, Then::Nothing),
            35..70 => touch(range.start, range.end, write, Then::Nothing),
            70..73 => touch(range.start, range.start + PAGE, true, Then::Birth),
            73..75 => touch(range.start, range.start + PAGE, true, Then::Transfer),
            75..84 if !self.held(&range) => {
                let lazily = dice >= 81;
                self.trace(if lazily { "MADV_FREE" } else { "MADV_DONTNEED" }, args);
                let since = self.shadow.now();
                let removal = Removal { at: range.start, end: range.end, since, lazily, zapping: None };
                Doing::Calling(Call { removal: Some(removal), ..Call::default() })
            }
            84..87 if !self.held(&range) => {
                self.trace("munmap", args);
                let call = self.unmap(range);
                self.calling(call)
            }
            87..90 if self.can_be_mapped(&range) => {
                self.trace("mmap", args);
                let call = self.unmap(range.clone());
                self.memory.map(range, fresh());
                self.calling(call)
            }
            90..94 if !self.is_taking => self.mremap(thread, range),
            94..96 if !self.held(&range) => {
                let writable = self.random.one_in(2);
                self.trace(if writable { "mprotect read-write" } else { "mprotect read-only" }, args);
                self.memory.change(range, |vma| vma.writable = writable);
                Doing::Nothing
            }
            96..98 if !self.held(&range) => {
                self.guard(range.start..(range.start + 2 * PAGE).min(range.end), thread);
                Doing::Nothing
            }
            98 if self.random.one_in(3) => {
                self.trace("fork", [thread as u64, 0, 0]);
                let space = self.program.space();
                let shared: Vec<usize> =
                    self.memory.pages_in(space).filter(|(_, p)| p.pins == 0).map(|(at, _)| at).collect();
                for at in shared {
                    self.memory.page_mut(at).expect("listed").exclusive = false;
                }
                Doing::Nothing
            }
            99 if !self.held(&range) => {
                let locked = self.random.one_in(2);
                self.trace(if locked { "mlock" } else { "munlock" }, args);
                let filled = locked && self.program.habit == Habit::Locks;
                self.memory.change(range.clone(), |vma| (vma.locked, vma.filled) = (locked, filled));
                if filled { self.calling(Call::filling(range)) } else { Doing::Nothing }
            }
            100 if !self.held(&range) => self.begin_own(range),
            _ => Doing::Nothing,
        }
    }

    /// A thread goes through a range.
    fn touch_all(&self, range: Range<usize>, write: bool) -> Doing {
        let Range { start: at, end } = range;
        Doing::Touching(Touch { at, end, write, then: Then::Nothing, since: self.memory.turn })
    }

    /// The program ends: thread 0 unmaps everything.
    pub fn unmap_all(&mut self) {
        let call = self.unmap(self.program.space());
        self.program.doing[0] = self.calling(call);
    }

    /// Devices that write to a page of the range do so to nobody's memory from now on.
    pub fn detach(&mut self, range: Range<usize>) {
        for transfer in &mut self.program.transfers {
            let found = self.memory.pages_in(range.clone()).any(|(_, p)| p.frame == transfer.frame);
            transfer.detached |= found;
        }
    }

    fn touch(&mut self, thread: usize, mut touch: Touch) -> Doing {
        let (at, since) = (touch.at, touch.since);
        let content = touch.write.then(|| self.content());
        match self.memory.access(Task::Thread(thread), at, content) {
            Access::Done(value) => {
                self.trace(if touch.write { "write" } else { "read" }, [thread as u64, at as u64, value]);
                if touch.write {
                    self.shadow.write(at, value);
                    self.after(at, touch.then);
                } else {
                    let may = self.shadow.may(at);
                    assert!(
                        self.shadow.read(at, value),
                        "the page at {at:#x} reads {value:#x}, and may read {may:#x?} only"
                    );
                }
            }
            Access::Fault => {
                self.program.moved_on[thread] = since;
                self.trace("fault", [thread as u64, at as u64, touch.write as u64]);
                return Doing::Touching(touch);
            }
            Access::Segv => self.trace("SIGSEGV", [thread as u64, at as u64, 0]),
            Access::Sigbus => {
                let may = self.shadow.may(at);
                assert!(
                    may.iter().any(|c| self.shelves.damaged.contains(c)),
                    "SIGBUS at {at:#x}, whose contents {may:#x?} were never damaged"
                );
                self.trace("SIGBUS", [thread as u64, at as u64, 0]);
                self.program.lost.insert(at);
            }
        }
        touch.at += PAGE;
        touch.since = self.memory.turn;
        if touch.at < touch.end { Doing::Touching(touch) } else { Doing::Nothing }
    }

    fn is_spoken_for(&self, at: usize) -> bool {
        self.program.lives_in(&(at..at + PAGE)) || self.program.is_discarded(at)
    }

    /// What a page was written for.
    fn after(&mut self, at: usize, then: Then) {
        match then {
            Then::Birth if self.program.tcbs.len() < 8 && !self.is_spoken_for(at) => {
                self.trace("birth", [at as u64, 0, 0]);
                self.program.tcbs.push(Tcb { page: at, listed: false });
            }
            Then::Transfer if self.program.transfers.len() < 4 => {
                self.trace("a device is given", [at as u64, 0, 0]);
                let page = self.memory.page_mut(at).expect("just written");
                page.pins += 1;
                let frame = page.frame;
                self.program.transfers.push(Transfer { frame, at, detached: false });
            }
            _ => {}
        }
    }
}
