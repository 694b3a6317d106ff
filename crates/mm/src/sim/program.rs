//! The simulated program: threads that touch memory, change their mappings, are born and exit, and read only what they may.

use super::World;
use super::memory::{Access, Content, Marker, Task, Vma};
use crate::kernel::Message;
use std::collections::{BTreeSet, VecDeque};
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
    /// mremap, guards and forks.
    Remaps,
}

/// What a thread is at.
enum Doing {
    Nothing,
    Touching(Touch),
    Calling(Call),
}

/// Pages to be read or written one after another.
struct Touch {
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

/// A system call after its first step: events to be raised, and a discard to be made.
#[derive(Default)]
struct Call {
    events: VecDeque<Message>,
    /// What an mremap moves, and where to. No other thread changes these mappings before it returns: events of different threads
    /// come in any order, so what a program does there without waiting has no one right outcome.
    moves: Vec<Range<usize>>,
    /// Parts of what was unmapped that were not registered: the event names them all the same (see the limit in event.rs).
    unregistered: Vec<Range<usize>>,
    /// An event was raised and the thread has not run since.
    raised: bool,
    removal: Option<Removal>,
}

struct Removal {
    at: usize,
    end: usize,
    /// When the call began, in the shadow's time.
    since: u64,
    lazily: bool,
    /// The end of what is zapped now, and whether the mmap lock is held for it.
    zapping: Option<(usize, bool)>,
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
            tcbs: Vec::new(),
            transfers: Vec::new(),
            counted: Vec::new(),
            closing: false,
            steps: 0,
            contents: 100,
            lost: BTreeSet::new(),
        }
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

    /// A thread is about to discard the page at `at`.
    fn is_discarded(&self, at: usize) -> bool {
        let discards = |doing: &Doing| match doing {
            Doing::Calling(Call { removal: Some(r), .. }) => (r.at..r.end).contains(&at),
            _ => false,
        };
        self.doing.iter().any(discards)
    }

    /// No thread lives on: their pages may go.
    pub fn bury(&mut self) {
        self.tcbs.clear();
    }
}

/// A new mapping of the program's.
pub fn fresh() -> Vma {
    Vma { end: 0, writable: true, locked: false, engine: false, registered: false, moved: 0 }
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
        };
    }

    /// The engine lists pins: a page that is in place now stays so.
    pub fn list_pins(&mut self) {
        let memory = &self.memory;
        for tcb in &mut self.program.tcbs {
            tcb.listed |= memory.page(tcb.page).is_some();
        }
    }

    /// A thread exits, once the engine knows of it: the kernel writes to its control block and takes no fault there.
    pub fn step_exit(&mut self) {
        let listed: Vec<usize> =
            (0..self.program.tcbs.len()).filter(|&t| self.program.tcbs[t].listed).collect();
        if listed.is_empty() {
            return;
        }
        let tcb = self.program.tcbs.swap_remove(self.random.pick(&listed));
        let content = self.content();
        self.trace("exit writes", [tcb.page as u64, content, 0]);
        assert!(
            self.memory.page(tcb.page).is_some(),
            "the exit word of the thread at {:#x} is lost: its page is out",
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

    /// True when a range must be left as it is: a thread's control block is there, another thread's mremap is not over, or the
    /// mmap lock is taken.
    fn held(&self, range: &Range<usize>) -> bool {
        let moves = |doing: &Doing| match doing {
            Doing::Calling(call) => call.moves.iter().any(|r| r.start < range.end && range.start < r.end),
            _ => false,
        };
        self.locked(range) || self.program.doing.iter().any(moves)
    }

    fn locked(&self, range: &Range<usize>) -> bool {
        self.memory.readers > 0 || self.program.tcbs.iter().any(|t| range.contains(&t.page))
    }

    /// True when a mapping may be made at a range: also where another has just moved away, whose events are yet to come.
    fn can_be_mapped(&self, range: &Range<usize>) -> bool {
        !self.held(range) || !self.locked(range) && self.memory.vmas_in(range.clone()).is_empty()
    }

    fn begin(&mut self, thread: usize) -> Doing {
        let range = self.range();
        let write = self.random.one_in(2);
        let dice = match self.program.habit {
            Habit::Discards if self.random.one_in(2) => 75 + self.random.below(9),
            Habit::Remaps if self.random.one_in(2) => 90 + self.random.below(10),
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
                let events = self.unmap(range);
                self.calling(events)
            }
            87..90 if self.can_be_mapped(&range) => {
                self.trace("mmap", args);
                let events = self.unmap(range.clone());
                self.memory.map(range, fresh());
                self.calling(events)
            }
            90..94 => self.mremap(thread, range),
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
                self.memory.change(range, |vma| vma.locked = locked);
                Doing::Nothing
            }
            _ => Doing::Nothing,
        }
    }

    /// The program ends: thread 0 unmaps everything.
    pub fn unmap_all(&mut self) {
        let events = self.unmap(self.program.space());
        self.program.doing[0] = self.calling(events);
    }

    fn calling(&mut self, events: Vec<Message>) -> Doing {
        self.memory.changing += events.len();
        if events.is_empty() {
            return Doing::Nothing;
        }
        Doing::Calling(Call { events: events.into(), ..Call::default() })
    }

    /// Unmaps a range and says what event that makes: one for the whole of it.
    fn unmap(&mut self, range: Range<usize>) -> Vec<Message> {
        self.detach(range.clone());
        self.shadow.forget(range.clone());
        for (found, _) in self.memory.vmas_in(range.clone()).iter().filter(|(_, vma)| vma.registered) {
            self.program.unmapped.push(found.clone());
        }
        if self.memory.unmap(range.clone()) { vec![Message::Unmap(range)] } else { Vec::new() }
    }

    /// Devices that write to a page of the range do so to nobody's memory from now on.
    fn detach(&mut self, range: Range<usize>) {
        for transfer in &mut self.program.transfers {
            let found = self.memory.pages_in(range.clone()).any(|(_, p)| p.frame == transfer.frame);
            transfer.detached |= found;
        }
    }

    fn mremap(&mut self, thread: usize, range: Range<usize>) -> Doing {
        let Some((whole, vma)) = self.memory.vma(range.start) else { return Doing::Nothing };
        let (registered, space) = (vma.registered, self.program.space());
        let from = range.start..range.end.min(whole.end);
        let len = from.len();
        // Grown, and kept, exclude each other.
        let (grown, keep) = match self.random.below(4) {
            0 => (self.random.below(20) * PAGE, false),
            1 => (0, true),
            _ => (0, false),
        };
        let mut to = BASE + self.random.below(self.program.pages) * PAGE;
        let gaps = self.memory.gaps(space.clone());
        if !gaps.is_empty() && self.random.one_in(2) {
            // Where something was unmapped just now, as the kernel itself would choose.
            to = self.random.pick_range(&gaps).start;
        }
        let target = to..to + len + grown;
        let apart = target.end <= from.start || target.start >= from.end;
        if target.end > space.end || !apart || self.held(&from) || !self.can_be_mapped(&target) {
            return Doing::Nothing;
        }
        let what = if keep { "mremap, old mapping kept" } else { "mremap" };
        self.trace(what, [thread as u64, from.start as u64, from.end as u64]);
        self.trace("  to", [thread as u64, target.start as u64, target.end as u64]);
        let mut events = self.unmap(target.clone());
        self.memory.remap(from.clone(), to, target.len(), keep);
        self.shadow.rename(from.clone(), to, |at| self.program.is_discarded(at));
        if registered {
            events.push(Message::Remap { from: from.clone(), to });
            if !keep {
                events.push(Message::Unmap(from.clone()));
            }
        }
        match self.calling(events) {
            Doing::Calling(call) => Doing::Calling(Call { moves: vec![from, target], ..call }),
            done => done,
        }
    }

    /// Installs guards, or removes them.
    fn guard(&mut self, range: Range<usize>, thread: usize) {
        let all_writable = range
            .clone()
            .step_by(PAGE)
            .all(|at| self.memory.vma(at).is_some_and(|(_, v)| v.writable && !v.locked));
        if !all_writable {
            return;
        }
        let install = self.random.one_in(2);
        self.trace(
            if install { "guard" } else { "unguard" },
            [thread as u64, range.start as u64, range.end as u64],
        );
        self.detach(range.clone());
        for at in range.step_by(PAGE) {
            match (install, self.memory.markers.get(&at)) {
                (true, None) => {
                    let present = self.memory.remove(at).is_some();
                    self.shadow.silent_zap(at, present);
                    self.memory.markers.insert(at, Marker::Guard);
                }
                (false, Some(Marker::Guard)) => {
                    self.memory.markers.remove(&at);
                }
                _ => {}
            }
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
        self.program.tcbs.iter().any(|t| t.page == at) || self.program.is_discarded(at)
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

    fn call(&mut self, thread: usize, mut call: Call) -> Doing {
        if call.raised {
            // The event was read, and the thread runs again.
            call.raised = false;
            self.memory.changing -= 1;
            return Doing::Calling(call);
        }
        if let Some(event) = call.events.pop_front() {
            self.trace("raises an event", [thread as u64, 0, 0]);
            self.memory.raise(Task::Thread(thread), event);
            call.raised = true;
            return Doing::Calling(call);
        }
        let Some(removal) = &mut call.removal else { return Doing::Nothing };
        let (at, end) = (removal.at, removal.end);
        let Some((until, locked)) = removal.zapping else {
            // The next mapping in the range.
            let next =
                self.memory.vma_from(at).filter(|(range, vma)| at < end && range.start < end && !vma.locked);
            let Some((found, registered)) = next.map(|(range, vma)| (range, vma.registered)) else {
                return Doing::Nothing;
            };
            let part = at.max(found.start)..end.min(found.end);
            removal.at = part.start;
            removal.zapping = Some((part.end, !registered));
            self.shadow.removal_begin(thread, part.clone(), removal.since);
            if registered {
                self.memory.changing += 1;
                self.memory.raise(Task::Thread(thread), Message::Remove(part));
                call.raised = true;
            } else {
                self.memory.readers += 1;
            }
            return Doing::Calling(call);
        };
        if !locked {
            // The lock was dropped for the event: the mapping is looked up again, and may be another by now.
            let Some((found, _)) = self.memory.vma(at).filter(|(_, vma)| !vma.locked) else {
                self.shadow.removal_end(thread);
                return Doing::Nothing;
            };
            removal.zapping = Some((until.min(found.end), true));
            self.memory.readers += 1;
            return Doing::Calling(call);
        }
        let step = at..until.min(at + (1 + self.random.below(20)) * PAGE);
        removal.at = step.end;
        self.trace("zaps", [thread as u64, step.start as u64, step.end as u64]);
        if !removal.lazily {
            self.detach(step.clone());
        }
        for at in step.clone().step_by(PAGE) {
            if removal.lazily && self.memory.page(at).is_some_and(|p| !p.zero) {
                let page = self.memory.page_mut(at).expect("there");
                page.lazy = page.exclusive;
            } else {
                self.memory.remove(at);
                if self.memory.markers.get(&at) == Some(&Marker::Poison) {
                    self.memory.markers.remove(&at);
                }
            }
        }
        self.shadow.zap(thread, step.clone(), removal.lazily);
        if step.end == until {
            self.memory.readers -= 1;
            self.shadow.removal_end(thread);
            removal.zapping = None;
        }
        Doing::Calling(call)
    }
}
