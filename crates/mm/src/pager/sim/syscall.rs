//! The simulated system calls that change mappings, step by step: what they do to the memory, the events they
//! raise, and what they do after the events were read.

use super::World;
use super::memory::{Access, Marker, Task};
use super::program::Doing;
use crate::kernel::Message;
use crate::ranges::RangeSet;
use std::collections::VecDeque;
use std::ops::Range;
use vmscan::PAGE;

/// A system call after its first step: events to be raised, and a discard to be made.
#[derive(Default)]
pub struct Call {
    pub events: VecDeque<Message>,
    /// What is unmapped, or moved, and where to. No other thread changes these mappings before the call returns,
    /// since events of different threads come in any order, and what a program does there without waiting has no
    /// one right outcome; but what is free may be mapped anew, as the kernel itself would choose it.
    pub changes: Vec<Range<usize>>,
    /// Parts of what was unmapped that were not registered: the event names them all the same (see the limit in
    /// event.rs).
    pub unregistered: RangeSet,
    /// What is filled before an event is raised: a mapping that is being locked, or what mremap adds to a locked one.
    pub fill: Range<usize>,
    /// What must be one mapping at the end of the call, because it was at the beginning.
    pub whole: Range<usize>,
    /// An event was raised and the thread has not run since.
    pub raised: bool,
    pub removal: Option<Removal>,
}

impl Call {
    /// Fills a range, and nothing else.
    pub fn filling(range: Range<usize>) -> Call {
        Call { changes: vec![range.clone()], fill: range, ..Call::default() }
    }
}

pub struct Removal {
    pub at: usize,
    pub end: usize,
    /// When the call began, in the shadow's time.
    pub since: u64,
    pub lazily: bool,
    /// The end of what is zapped now, and whether the mmap lock is held for it.
    pub zapping: Option<(usize, bool)>,
}

fn overlaps(ranges: &[Range<usize>], range: &Range<usize>) -> bool {
    ranges.iter().any(|r| r.start < range.end && range.start < r.end)
}

impl World {
    /// True when a range must be left as it is: a thread's control block is there, another thread's call is not
    /// over, or the mmap lock is taken, or a thread has asked the engine about it.
    pub fn held(&self, range: &Range<usize>) -> bool {
        let is_asked_about = self.bell.ranges().any(|asked| overlaps(&[asked], range));
        is_asked_about
            || self.locked(range)
            || self.program.calls().any(|call| overlaps(&call.changes, range))
    }

    fn locked(&self, range: &Range<usize>) -> bool {
        self.memory.readers > 0 || self.program.lives_in(range)
    }

    /// True when another thread's UNMAP is about to name a range where nothing was registered.
    fn is_blurred(&self, range: &Range<usize>) -> bool {
        self.program.calls().any(|call| call.unregistered.overlaps(range))
    }

    /// True when a mapping may be made at a range: also where another has just moved away, whose events are yet to
    /// come.
    pub fn can_be_mapped(&self, range: &Range<usize>) -> bool {
        !self.held(range) || !self.locked(range) && self.memory.vmas_in(range.clone()).is_empty()
    }

    /// A call has changed the mappings: its events are yet to be raised.
    pub fn calling(&mut self, call: Call) -> Doing {
        self.memory.changing += call.events.len();
        let is_over = call.events.is_empty() && call.fill.is_empty();
        if is_over { Doing::Nothing } else { Doing::Calling(call) }
    }

    /// Unmaps a range. If something there was registered that makes one event, for the whole of it.
    pub fn unmap(&mut self, range: Range<usize>) -> Call {
        self.detach(range.clone());
        self.shadow.forget(range.clone());
        let mut unregistered = RangeSet::from(range.clone());
        for (found, _) in self.memory.vmas_in(range.clone()).iter().filter(|(_, vma)| vma.registered) {
            unregistered.remove(found);
        }
        let event = self.memory.unmap(range.clone()).then_some(Message::Unmap(range.clone()));
        Call { events: event.into_iter().collect(), changes: vec![range], unregistered, ..Call::default() }
    }

    /// Moves a mapping, and grows it. One that is locked does not grow over memory that may be out: of that the
    /// event comes too late (a limit that is documented).
    pub fn mremap(&mut self, thread: usize, range: Range<usize>) -> Doing {
        let Some((whole, vma)) = self.memory.vma(range.start) else { return Doing::Nothing };
        let (registered, filled, space) = (vma.registered, vma.filled, self.program.space());
        let from = range.start..range.end.min(whole.end);
        let len = from.len();
        // Grown, and kept, exclude each other.
        let (grown, keep) = match self.random.below(4) {
            0 => (self.random.below(20) * PAGE, false),
            1 => (0, true),
            _ => (0, false),
        };
        let mut to = space.start + self.random.below(space.len() / PAGE) * PAGE;
        let gaps = self.memory.gaps(space.clone());
        if !gaps.is_empty() && self.random.one_in(2) {
            // Where something was unmapped just now, as the kernel itself would choose.
            to = self.random.pick(&gaps).start;
        }
        let target = to..to + len + grown;
        let apart = target.end <= from.start || target.start >= from.end;
        if target.end > space.end
            || !apart
            || self.held(&from)
            || !self.can_be_mapped(&target)
            || self.is_blurred(&target)
            || filled && grown > 0 && !self.memory.vmas_in(target.clone()).is_empty()
        {
            return Doing::Nothing;
        }
        let what = if keep { "mremap, old mapping kept" } else { "mremap" };
        self.trace(what, [thread as u64, from.start as u64, from.end as u64]);
        self.trace("  to", [thread as u64, target.start as u64, target.end as u64]);
        let mut call = self.unmap(target.clone());
        self.memory.remap(from.clone(), to, target.len(), keep);
        self.shadow.rename(from.clone(), to, |at| self.program.is_discarded(at));
        if registered {
            call.events.push_back(Message::Remap { from: from.clone(), to });
            if !keep {
                call.events.push_back(Message::Unmap(from.clone()));
            }
        }
        if filled {
            call.fill = to + len..target.end;
            call.whole = target;
        }
        call.changes.push(from);
        self.calling(call)
    }

    /// Installs guards, or removes them.
    pub fn guard(&mut self, range: Range<usize>, thread: usize) {
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
            self.memory.huge.split(at);
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

    /// The next page of what a call fills. What cannot be had is left out.
    fn populate(&mut self, thread: usize, mut call: Call) -> Doing {
        let at = call.fill.start;
        let writable = self.memory.vma(at).is_some_and(|(_, vma)| vma.writable);
        let is_there = self.memory.page(at).is_some_and(|page| !page.zero);
        if is_there || self.memory.access(Task::Thread(thread), at, writable.then_some(0)) != Access::Fault {
            call.fill.start += PAGE;
        }
        Doing::Calling(call)
    }

    pub fn call(&mut self, thread: usize, mut call: Call) -> Doing {
        if call.raised {
            // The event was read, and the thread runs again.
            call.raised = false;
            self.memory.changing -= 1;
            return Doing::Calling(call);
        }
        if !call.fill.is_empty() {
            return self.populate(thread, call);
        }
        if let Some(event) = call.events.pop_front() {
            self.trace("raises an event", [thread as u64, 0, 0]);
            self.memory.raise(Task::Thread(thread), event);
            call.raised = true;
            return Doing::Calling(call);
        }
        let Some(removal) = &mut call.removal else {
            let one = self.memory.vma(call.whole.start).map_or(0, |(found, _)| found.end);
            assert!(one >= call.whole.end, "there is a seam in {:x?}, at {one:#x}", call.whole);
            return Doing::Nothing;
        };
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
        self.memory.huge.treat(&step);
        for at in step.clone().step_by(PAGE) {
            if removal.lazily && self.memory.page(at).is_some_and(|p| !p.zero && !p.swapped) {
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
