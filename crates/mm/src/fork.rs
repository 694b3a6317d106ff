//! Fork: parent and child go on with the same tables, each with a copy of its own, as each has of the memory and of the pool.
//!
//! ```text
//!   parent's engine   calm ── stands still ─────────────── late ──> goes on
//!   parent's thread              └─ clone ──> runs on         │
//!   child                              └─ waits ──────────────┴──> inherit ──> runs on
//! ```
//!
//! This is safe because
//! 1. from `calm` to the clone nothing is on the stage or with a worker: each page is in the program, in the pool, or nowhere, as the index says;
//! 2. the child runs not one instruction of the program's before it has registered what is out (`inherit`);
//! 3. what the program's other threads did to mappings meanwhile is an event that the parent has not read, or one after the clone. Which of the two
//!    it was the child sees by which mappings it has (`Late`). Where that says nothing, and something is out there, it must not run;
//! 4. what the program wants wiped in a child is forgotten (`adopt`), and a page that is said to be out must be a hole there (`verify`).

use crate::event::insert;
use crate::index::{Index, Kind};
use crate::kernel::{Errno, Kernel, Message, Run, Store};
use crate::object::Objects;
use crate::pager::{Config, Pager};
use crate::stage::Stage;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use memcg::Stat;
use vmscan::PAGE;

/// How often the parent waits for a moment without an event before it is cloned; the fewer, the less there is to find out afterwards.
const CALM_PAUSES: usize = 200;

/// The end of user space.
const TOP: usize = 1 << 47;

/// What a child takes over.
#[cfg_attr(test, derive(Clone))]
pub struct Estate {
    index: Index,
    objects: Objects,
    stored_pages: usize,
    evictions: usize,
}

/// An event that was read after the clone: it may have been before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// A range was unmapped.
    Unmap {
        /// First address.
        start: usize,
        /// Past the last one.
        end: usize,
        /// Something is mapped there in the parent now.
        is_mapped: bool,
    },
    /// A range was moved.
    Remap {
        /// From where.
        start: usize,
        /// Past the last address there.
        end: usize,
        /// To where.
        to: usize,
    },
}

/// Why a child cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// A page is out, and there in the child all the same.
    Present(usize),
    /// It cannot be told whether a page that was out was unmapped or moved before the clone or after it.
    Unclear(usize),
    /// What is out there cannot be registered.
    Refused(usize, Errno),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::Present(at) => write!(f, "the page at {at:#x} is out, and there"),
            Misfit::Unclear(at) => {
                write!(f, "the page at {at:#x} was out, and another thread unmapped or moved it meanwhile")
            }
            Misfit::Refused(at, errno) => {
                write!(f, "the memory at {at:#x} is out and cannot be registered: {errno}")
            }
        }
    }
}

impl<'a, K: Kernel, S: Store> Pager<'a, K, S> {
    /// Before a clone: all that lies on the stage goes home, and all jobs end. Until `late` nothing of this pager's may be called.
    pub fn calm(&mut self) {
        let mut pauses = 0;
        loop {
            self.settle();
            self.collect();
            while let Some(ahead) = self.fetches.first() {
                self.join_fetch(ahead.slot);
            }
            self.unstage();
            self.learn_growth();
            let is_done = self.in_flight == 0 && self.displaced.is_empty() && self.remapped.is_empty();
            if is_done && !self.stage.holds_any() && (self.is_quiet() || pauses >= CALM_PAUSES) {
                return;
            }
            self.wait_for_events(&mut pauses);
        }
    }

    /// Tries once to bring home whatever is on the stage.
    fn unstage(&mut self) {
        for owner in self.stage.owners() {
            let entry = self.index.get(owner);
            if entry.kind() == Kind::Staged {
                self.activate_window(owner, entry);
            }
        }
    }

    /// After the clone: reads what was not read before it, and says what a child must know of it. If there `is_child`, the pool is its too.
    pub fn late(&mut self, is_child: bool, mut tell: impl FnMut(Late)) {
        let mut pauses = 0;
        loop {
            // An event is under way until its causer runs again: with none under way, all that was done before the clone has been read.
            let is_quiet = self.is_quiet();
            while let Some(message) = self.kernel.next() {
                match message {
                    Message::Unmap(Range { start, end }) => {
                        let is_mapped = self.kernel.is_mapped(start..end);
                        tell(Late::Unmap { start, end, is_mapped });
                    }
                    Message::Remap { from: Range { start, end }, to } => tell(Late::Remap { start, end, to }),
                    _ => {}
                }
                self.apply(message);
            }
            if is_quiet {
                break;
            }
            self.wait_for_events(&mut pauses);
        }
        if is_child {
            self.freeze();
        }
    }

    /// What is in the pool is another process's too.
    fn freeze(&mut self) {
        self.objects.freeze();
        self.store.freeze();
    }

    /// No other process has what this one's pool held when it was forked.
    pub fn thaw(&mut self) {
        self.objects.thaw();
        self.store.thaw();
    }

    /// What a child of this pager takes over. In the child, where this pager is a copy of which nothing else is used.
    pub fn bequeath(&mut self) -> Estate {
        self.stage = Stage::new(0, 0);
        Estate {
            index: core::mem::take(&mut self.index),
            objects: core::mem::take(&mut self.objects),
            stored_pages: core::mem::take(&mut self.stored_pages),
            evictions: self.evictions,
        }
    }

    /// The same as a copy.
    #[cfg(test)]
    pub fn estate(&self) -> Estate {
        Estate {
            index: self.index.clone(),
            objects: self.objects.clone(),
            stored_pages: self.stored_pages,
            evictions: self.evictions,
        }
    }

    /// A child's pager. All that is out is registered when it is there; `kernel` has no memory of the program's registered yet.
    pub fn inherit(
        kernel: K,
        store: S,
        stat: &'a Stat,
        config: Config,
        limit: usize,
        estate: Estate,
        late: &[Late],
    ) -> Result<Self, Misfit> {
        let mut pager = Pager::new(kernel, store, stat, config, limit);
        let Estate { index, objects, stored_pages, evictions } = estate;
        (pager.index, pager.objects, pager.stored_pages, pager.evictions) =
            (index, objects, stored_pages, evictions);
        for event in late {
            pager.clear_up(event)?;
        }
        pager.adopt()?;
        pager.verify()?;
        pager.freeze();
        Ok(pager)
    }

    /// The first page of a range that is out.
    fn first_out(&self, range: &Range<usize>) -> Option<usize> {
        let mut at = range.start;
        while let Some((page, entry)) = self.index.next_used(at, range.end) {
            if matches!(entry.kind(), Kind::Stored | Kind::Zero) {
                return Some(page);
            }
            at = page + PAGE;
        }
        None
    }

    /// Finds out whether an event was before the clone or after it, and does what it means in the first case.
    fn clear_up(&mut self, event: &Late) -> Result<(), Misfit> {
        match *event {
            Late::Unmap { start, end, is_mapped } => {
                let mut at = start;
                while let Some(page) = self.first_out(&(at..end)) {
                    // What is not mapped is forgotten when all else is looked at. What is mapped is what was there, unless something new may be.
                    if is_mapped && self.kernel.mapping(page).is_some() {
                        return Err(Misfit::Unclear(page));
                    }
                    at = page + PAGE;
                }
                Ok(())
            }
            Late::Remap { start, end, to } => {
                let (from, target) = (start..end, to..to + end - start);
                match (self.kernel.is_mapped(from.clone()), self.kernel.is_mapped(target.clone())) {
                    // It was after the clone, or all of it is gone by now, and is forgotten.
                    (_, false) => Ok(()),
                    (false, true) => {
                        let mut moving = Vec::new();
                        self.index.take(from, |at, entry| moving.push((at - start + to, entry)));
                        self.forget(target);
                        for (at, entry) in moving {
                            self.index.set(at, entry);
                        }
                        Ok(())
                    }
                    (true, true) => {
                        let out = self.first_out(&from).or_else(|| self.first_out(&target));
                        out.map_or(Ok(()), |at| Err(Misfit::Unclear(at)))
                    }
                }
            }
        }
    }

    /// Registers every mapping of which something is known, and forgets what is not mapped, or has been wiped.
    fn adopt(&mut self) -> Result<(), Misfit> {
        let (mut at, mut wiped) = (0, None);
        while let Some((page, _)) = self.index.next_used(at, TOP) {
            let Some(mapping) = self.kernel.mapping(page) else {
                self.forget(page..page + PAGE);
                at = page + PAGE;
                continue;
            };
            match self.kernel.register(page..mapping.end) {
                Ok(whole) => {
                    at = whole.end;
                    // What is wiped has no page at all, which is seldom so, and to ask the kernel for it takes long.
                    if self.kernel.present(whole.clone(), 1, &mut [Run::default()]).0 == 0 {
                        let kernel = &mut self.kernel;
                        let wiped: &Vec<_> = wiped.get_or_insert_with(|| kernel.wiped());
                        if wiped.iter().any(|r| r.start <= whole.start && whole.end <= r.end) {
                            self.forget(whole.clone());
                        }
                    }
                    insert(&mut self.regions, whole);
                }
                Err(errno) => {
                    let rest = page..mapping.end;
                    if let Some(out) = self.first_out(&rest) {
                        return Err(Misfit::Refused(out, errno));
                    }
                    at = rest.end;
                    self.forget(rest);
                }
            }
        }
        // Beyond user space lies what no event has come for; of such there is none after `calm`.
        debug_assert!(self.index.next_used(TOP, 2 * TOP).is_none());
        Ok(())
    }

    /// Everything that is out is a hole.
    fn verify(&mut self) -> Result<(), Misfit> {
        for region in self.regions.clone() {
            let mut at = region.start;
            while at < region.end {
                let mut runs = [Run::default(); 64];
                let (found, upto) = self.kernel.present(at..region.end, usize::MAX, &mut runs);
                for run in &runs[..found] {
                    if let Some(page) = self.first_out(&(run.start..run.end)) {
                        return Err(Misfit::Present(page));
                    }
                }
                at = upto;
            }
        }
        Ok(())
    }
}
