//! A simulated address space: mappings, page tables, and the queues of a userfaultfd, with the rules of
//! Linux 6.18 as they were tried there.

use super::huge::Huge;
use crate::kernel::Message;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use vmscan::PAGE;

/// What a page holds: a number that stands for its 4096 bytes. 0 is zeros.
pub type Content = u64;

/// Who can be blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// A thread of the program.
    Thread(usize),
    /// A worker of the store.
    Worker(usize),
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vma {
    pub end: usize,
    pub writable: bool,
    pub locked: bool,
    /// Locked, filled as it was, and filled as it grows: mlock without MLOCK_ONFAULT.
    pub filled: bool,
    /// The engine's own memory.
    pub engine: bool,
    /// Registered, so that pages can be moved there, and kept out of children.
    pub registered: bool,
    /// Registered, but the kernel fills holes itself: the inactive list.
    pub silent: bool,
    /// It was there when the engine stood still before a fork, or is a copy of such a one.
    pub marked: bool,
    /// Registered with a userfaultfd of the program's own, which fills holes with zeros at once.
    pub owned: bool,
    /// How far it was moved from where it was made: neighbours merge only if they moved alike.
    pub moved: isize,
}

/// A present page.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub content: Content,
    /// The physical page.
    pub frame: u64,
    /// The shared zero page.
    pub zero: bool,
    pub exclusive: bool,
    /// It is in a large folio whose first page is not.
    pub bound: bool,
    /// A write to it is told first; or it is watched.
    pub protected: bool,
    /// MADV_FREE'd and not written since: the kernel may take it back at any time.
    pub lazy: bool,
    /// Devices that write to the frame.
    pub pins: u32,
    /// The machine has swapped it: there is a swap entry, which moves like a page.
    pub swapped: bool,
}

/// What stands in the page table instead of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    Guard,
    Poison,
}

/// What a touch of memory comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Done(Content),
    /// The task is blocked now.
    Fault,
    Segv,
    Sigbus,
}

impl Access {
    /// The task goes on.
    pub fn is_done(self) -> bool {
        matches!(self, Access::Done(_))
    }
}

/// A task that waits for a page.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    pub task: Task,
    pub at: usize,
    pub write: bool,
    /// The page is there.
    pub protected: bool,
}

/// The address space.
#[derive(Default)]
pub struct Memory {
    vmas: BTreeMap<usize, Vma>,
    pages: BTreeMap<usize, Page>,
    pub markers: BTreeMap<usize, Marker>,
    pub huge: Huge,
    /// Faults whose message was not read yet.
    pub pending: VecDeque<Waiter>,
    /// Faults whose message was read: a message is delivered once.
    pub delivered: Vec<Waiter>,
    /// Events not read yet, with whoever caused them.
    pub events: VecDeque<(Message, Task)>,
    pub blocked: BTreeSet<Task>,
    /// The kernel's mmap_changing: events announced whose causer has not run again since they were read.
    pub changing: usize,
    /// Scenes only: a page that mremap fills before it sends its event. While the fill waits here, the event does
    /// not come.
    pub fills_first: Option<usize>,
    /// A page that is moved stays protected, as on kernels since April 2026. A swap entry does so on any.
    pub keeps_protection: bool,
    /// Of the program's registered memory it is told what is touched (UFFDIO_REGISTER_MODE_RWP, asynchronous): a page
    /// that is protected is one that is watched, and nobody waits for it.
    pub tells_touches: bool,
    /// Tasks that hold the mmap lock for reading over more than one step.
    pub readers: usize,
    pub turn: usize,
    frames: u64,
}

impl Memory {
    /// The mapping at `at`.
    pub fn vma(&self, at: usize) -> Option<(Range<usize>, &Vma)> {
        let (&start, vma) = self.vmas.range(..=at).next_back()?;
        (vma.end > at).then_some((start..vma.end, vma))
    }

    /// The first mapping that ends after `at`.
    pub fn vma_from(&self, at: usize) -> Option<(Range<usize>, &Vma)> {
        self.vma(at).or_else(|| self.vmas.range(at..).next().map(|(&start, vma)| (start..vma.end, vma)))
    }

    /// All mappings.
    pub fn vmas(&self) -> impl Iterator<Item = (Range<usize>, &Vma)> {
        self.vmas.iter().map(|(&start, vma)| (start..vma.end, vma))
    }

    /// Stretches of a range that no mapping covers.
    pub fn gaps(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let next = self.vma_from(at).map_or(range.end..range.end, |(found, _)| found);
            if next.start > at {
                gaps.push(at..next.start.min(range.end));
            }
            at = next.end;
        }
        gaps
    }

    /// Mappings that a range touches, whole.
    pub fn vmas_in(&self, range: Range<usize>) -> Vec<(Range<usize>, Vma)> {
        let mut all = Vec::new();
        let mut at = range.start;
        while let Some((found, vma)) = self.vma_from(at) {
            if found.start >= range.end {
                break;
            }
            at = found.end;
            all.push((found, vma.clone()));
        }
        all
    }

    fn split(&mut self, at: usize) {
        if let Some((range, vma)) = self.vma(at) {
            let upper = vma.clone();
            if range.start < at {
                self.vmas.get_mut(&range.start).expect("found above").end = at;
                self.vmas.insert(at, upper);
            }
        }
    }

    /// Joins neighbours that are alike, as the kernel does.
    fn merge(&mut self) {
        let starts: Vec<usize> = self.vmas.keys().copied().collect();
        for pair in starts.windows(2).rev() {
            let (lower, upper) = (&self.vmas[&pair[0]], &self.vmas[&pair[1]]);
            let end = upper.end;
            if lower.end == pair[1] && (Vma { end, ..lower.clone() }) == *upper && !lower.engine {
                self.vmas.remove(&pair[1]);
                self.vmas.get_mut(&pair[0]).expect("there").end = end;
            }
        }
    }

    /// Changes all mappings in a range.
    pub fn change(&mut self, range: Range<usize>, change: impl Fn(&mut Vma)) {
        self.split(range.start);
        self.split(range.end);
        self.vmas.range_mut(range).for_each(|(_, vma)| change(vma));
        self.merge();
    }

    /// Makes a mapping where there is none.
    pub fn map(&mut self, range: Range<usize>, vma: Vma) {
        assert!(self.vmas_in(range.clone()).is_empty());
        self.vmas.insert(range.start, Vma { end: range.end, ..vma });
        self.merge();
    }

    /// Takes mappings and pages away. True when one of them was registered, so that there is an event to raise.
    pub fn unmap(&mut self, range: Range<usize>) -> bool {
        let registered = self.vmas_in(range.clone()).iter().any(|(_, vma)| vma.registered);
        self.split(range.start);
        self.split(range.end);
        self.vmas.retain(|start, _| !range.contains(start));
        self.pages.retain(|at, _| !range.contains(at));
        self.markers.retain(|at, _| !range.contains(at));
        self.huge.clear(&range, true);
        registered
    }

    /// A child finds a range empty.
    pub fn wipe(&mut self, range: Range<usize>) {
        self.pages.retain(|at, _| !range.contains(at));
        self.markers.retain(|at, _| !range.contains(at));
    }

    /// Moves pages and markers, and makes the new mapping, of `len` bytes; the old one stays if `keep`, empty.
    pub fn remap(&mut self, from: Range<usize>, to: usize, len: usize, keep: bool) {
        let (_, vma) = self.vma(from.start).expect("the caller looked");
        let moved = vma.moved + to as isize - from.start as isize;
        let vma = Vma { moved, owned: false, ..vma.clone() };
        for at in from.clone().step_by(PAGE) {
            let target = at - from.start + to;
            self.huge.split(at);
            self.huge.split(target);
            if let Some(page) = self.pages.remove(&at) {
                self.pages.insert(target, page);
            }
            if let Some(marker) = self.markers.remove(&at) {
                self.markers.insert(target, marker);
            }
        }
        if keep {
            self.change(from, |old| (old.locked, old.filled) = (false, false));
        } else {
            self.unmap(from);
        }
        self.map(to..to + len, vma);
    }

    /// The page at `at`, if present.
    pub fn page(&self, at: usize) -> Option<&Page> {
        self.pages.get(&at)
    }

    /// The same, to be changed.
    pub fn page_mut(&mut self, at: usize) -> Option<&mut Page> {
        self.pages.get_mut(&at)
    }

    /// Present pages in a range, to be changed.
    pub fn pages_mut(&mut self, range: Range<usize>) -> impl Iterator<Item = &mut Page> {
        self.pages.range_mut(range).map(|(_, page)| page)
    }

    /// Present pages in a range.
    pub fn pages_in(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &Page)> {
        self.pages.range(range).map(|(&at, page)| (at, page))
    }

    /// How many pages are present, the shared zero page not counted.
    pub fn resident(&self) -> usize {
        self.pages.values().filter(|p| !p.zero && !p.swapped).count()
    }

    /// Moves a page to where there is none.
    pub fn move_page(&mut self, from: usize, to: usize) {
        let page = self.remove(from).expect("the caller looked");
        let is_watched = self.vma(to).is_some_and(|(_, vma)| self.is_watched(vma));
        let protected = is_watched || page.protected && (page.swapped || self.keeps_protection);
        self.insert(to, Page { protected, ..page });
    }

    /// What a child gets: no mapping is registered or locked there, the engine's are missing, and no page is
    /// anybody's alone any more but those that a device writes to, of which the child has copies.
    pub fn fork(&mut self) -> Memory {
        let vmas = self.vmas.iter().filter(|(_, vma)| !vma.engine);
        let own =
            |vma: &Vma| Vma { registered: false, owned: false, locked: false, filled: false, ..vma.clone() };
        let vmas = vmas.map(|(&at, vma)| (at, own(vma))).collect();
        let Memory { frames, turn, keeps_protection, .. } = *self;
        let mut child = Memory { vmas, frames, turn, keeps_protection, ..Memory::default() };
        for (&at, page) in &mut self.pages {
            let is_engines = self.vmas.range(..=at).next_back().is_some_and(|(_, vma)| vma.engine);
            if !is_engines {
                page.exclusive = page.pins > 0;
                child.huge.split(at);
                child.pages.insert(at, Page { pins: 0, protected: false, bound: false, ..*page });
            }
        }
        child.markers = self.markers.clone();
        child.merge();
        self.mark(|_| false);
        child
    }

    /// Marks mappings, and takes the marks of others.
    pub fn mark(&mut self, is_marked: impl Fn(&Vma) -> bool) {
        for vma in self.vmas.values_mut() {
            vma.marked = is_marked(vma);
        }
        self.merge();
    }

    /// Takes the page at `at` out of the page tables.
    pub fn remove(&mut self, at: usize) -> Option<Page> {
        self.huge.split(at);
        self.pages.remove(&at)
    }

    /// Puts a page, that was taken from elsewhere, to `at`.
    pub fn insert(&mut self, at: usize, page: Page) {
        self.huge.split(at);
        assert!(self.pages.insert(at, page).is_none());
    }

    /// Puts a new page to `at`, over a marker if there is one.
    pub fn fill(&mut self, at: usize, content: Content) {
        self.huge.split(at);
        self.frames += 1;
        let frame = self.frames;
        let page = Page {
            content,
            frame,
            zero: false,
            exclusive: true,
            bound: false,
            protected: false,
            lazy: false,
            pins: 0,
            swapped: false,
        };
        self.pages.insert(at, page);
        self.markers.remove(&at);
    }

    /// A write to a page that is not exclusive: it is another frame, or its own again in a folio whose first page is
    /// not.
    pub fn copy_on_write(&mut self, at: usize, content: Content) {
        self.fill(at, content);
        let page = self.pages.get_mut(&at).expect("just filled");
        page.bound = page.frame.is_multiple_of(13);
    }

    /// Maps the shared zero page at `at`.
    pub fn fill_zero(&mut self, at: usize) {
        self.huge.split(at);
        let page = Page {
            content: 0,
            frame: 0,
            zero: true,
            exclusive: false,
            bound: false,
            protected: false,
            lazy: false,
            pins: 0,
            swapped: false,
        };
        self.pages.insert(at, page);
    }

    /// Takes a range off the userfaultfd.
    pub fn unregister(&mut self, range: Range<usize>) {
        self.change(range.clone(), |vma| vma.registered = false);
        self.pages_mut(range).for_each(|page| page.protected = false);
    }

    /// A task reads the page at `at`, or writes `write` to it.
    pub fn access(&mut self, task: Task, at: usize, write: Option<Content>) -> Access {
        let Some((_, vma)) = self.vma(at) else { return Access::Segv };
        if write.is_some() && !vma.writable {
            return Access::Segv;
        }
        let (waits, is_told) = (vma.registered && !vma.silent, vma.registered);
        let is_watched = self.is_watched(vma);
        match self.markers.get(&at) {
            Some(Marker::Guard) => return Access::Segv,
            Some(Marker::Poison) => return Access::Sigbus,
            None => {}
        }
        self.swap_in(at);
        if is_watched {
            self.touched(at);
        }
        match (self.pages.get_mut(&at), write) {
            (Some(page), None) => Access::Done(page.content),
            (Some(page), Some(_)) if page.protected && is_told => {
                self.pending.push_back(Waiter { task, at, write: true, protected: true });
                self.blocked.insert(task);
                Access::Fault
            }
            (Some(page), Some(content)) if page.exclusive => {
                page.content = content;
                page.lazy = false;
                Access::Done(content)
            }
            (Some(_), Some(content)) => {
                self.copy_on_write(at, content);
                Access::Done(content)
            }
            (None, _) if waits => {
                self.pending.push_back(Waiter { task, at, write: write.is_some(), protected: false });
                self.blocked.insert(task);
                Access::Fault
            }
            (None, None) => {
                self.fill_zero(at);
                Access::Done(0)
            }
            (None, Some(content)) => {
                self.fill(at, content);
                Access::Done(content)
            }
        }
    }

    /// The engine's own thread writes to a page. It serves faults and must not have one.
    pub fn engine_writes(&mut self, at: usize, content: Content) {
        let (_, vma) = self.vma(at).expect("the engine writes to its own mappings");
        assert!(vma.engine, "the engine writes to the program's memory at {at:#x}");
        let is_told = vma.registered && self.page(at).is_some_and(|page| page.protected);
        assert!(!is_told, "the engine writes to a protected page at {at:#x}, and waits for itself");
        self.swap_in(at);
        match self.pages.get_mut(&at) {
            Some(page) if page.exclusive => (page.content, page.lazy) = (content, false),
            _ => self.fill(at, content),
        }
    }

    /// What the engine reads from its own memory.
    pub fn engine_reads(&mut self, at: usize) -> Content {
        assert!(
            self.vma(at).is_some_and(|(_, vma)| vma.engine),
            "the engine reads the program's memory at {at:#x}"
        );
        self.swap_in(at);
        self.pages.get(&at).map_or(0, |page| page.content)
    }

    /// An event is to be read; its causer waits for that.
    pub fn raise(&mut self, task: Task, message: Message) {
        self.events.push_back((message, task));
        self.blocked.insert(task);
    }

    /// The next message: faults first, whatever the order in which they came.
    pub fn read(&mut self) -> Option<Message> {
        if let Some(waiter) = self.pending.pop_front() {
            self.delivered.push(waiter);
            let Waiter { at, write, protected, .. } = waiter;
            return Some(Message::Fault { at, write, protected, thread: 0 });
        }
        let (message, task) = self.events.pop_front()?;
        self.blocked.remove(&task);
        Some(message)
    }

    /// Makes those who wait in a range look again.
    pub fn wake(&mut self, range: Range<usize>) {
        let blocked = &mut self.blocked;
        let mut stays = |waiter: &Waiter| {
            let hit = range.contains(&waiter.at);
            if hit {
                blocked.remove(&waiter.task);
            }
            !hit
        };
        self.pending.retain(&mut stays);
        self.delivered.retain(&mut stays);
    }

    /// A signal takes a task out of its fault; it will come again.
    pub fn interrupt(&mut self, task: Task) {
        let before = self.pending.len() + self.delivered.len();
        self.pending.retain(|w| w.task != task);
        self.delivered.retain(|w| w.task != task);
        if self.pending.len() + self.delivered.len() < before {
            self.blocked.remove(&task);
        }
    }

    /// Pages that the kernel may take back, since MADV_FREE gave them up.
    pub fn lazy_pages(&self) -> Vec<usize> {
        self.pages.iter().filter(|(_, p)| p.lazy && p.pins == 0).map(|(&at, _)| at).collect()
    }
}
