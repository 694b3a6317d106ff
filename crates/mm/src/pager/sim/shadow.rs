//! What the program may read: the memory as it would be without an engine, under the same interleaving.
//!
//! The program's steps are atomic here, so that is one value for each page, but for one window: from the moment a
//! MADV_DONTNEED is announced until the caller has zapped the pages, a page may read as it was, or as zeros
//! already, and what another thread writes meanwhile may survive the zap or not. A value that a read has ruled out
//! must not come back.

use super::memory::Content;
use std::collections::BTreeMap;
use std::ops::Range;
use vmscan::PAGE;

#[derive(Clone, Default)]
struct Cell {
    /// What it may hold, and when that was written. Nothing: zeros.
    may: Vec<(Content, u64)>,
    /// MADV_FREE'd and not written since.
    lazy: bool,
}

/// A discard under way.
struct Removal {
    owner: usize,
    range: Range<usize>,
    since: u64,
}

/// The program's memory as it should be.
#[derive(Default)]
pub struct Shadow {
    cells: BTreeMap<usize, Cell>,
    removals: Vec<Removal>,
    clock: u64,
}

impl Shadow {
    /// What a child reads: those who were discarding are not there, and have not, or have in part.
    pub fn fork(&self) -> Shadow {
        Shadow { cells: self.cells.clone(), removals: Vec::new(), clock: self.clock }
    }

    fn racing(&self, at: usize) -> bool {
        self.removals.iter().any(|r| r.range.contains(&at))
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// What the page at `at` may read as.
    pub fn may(&self, at: usize) -> Vec<Content> {
        match self.cells.get(&at) {
            Some(cell) if !cell.may.is_empty() => cell.may.iter().map(|&(c, _)| c).collect(),
            _ => vec![0],
        }
    }

    /// A thread has written.
    pub fn write(&mut self, at: usize, content: Content) {
        let now = self.tick();
        let mut may = vec![(content, now)];
        if self.racing(at) {
            may.push((0, now));
        }
        self.cells.insert(at, Cell { may, lazy: false });
    }

    /// A thread has read. False when that could not be.
    pub fn read(&mut self, at: usize, content: Content) -> bool {
        let now = self.tick();
        let racing = self.racing(at);
        let cell = self.cells.entry(at).or_default();
        if cell.may.is_empty() {
            cell.may.push((0, now));
        }
        cell.may.retain(|&(c, _)| c == content);
        if cell.may.is_empty() {
            return false;
        }
        cell.may.truncate(1);
        cell.lazy &= content != 0;
        if (racing || cell.lazy) && content != 0 {
            cell.may.push((0, now));
        }
        true
    }

    /// The time: what is written later is newer.
    pub fn now(&mut self) -> u64 {
        self.tick()
    }

    /// A discard of `range` by thread `owner` is announced; its system call began at `since`.
    pub fn removal_begin(&mut self, owner: usize, range: Range<usize>, since: u64) {
        for (_, cell) in self.cells.range_mut(range.clone()).filter(|(_, cell)| !cell.may.is_empty()) {
            cell.may.push((0, since));
        }
        self.removals.push(Removal { owner, range, since });
    }

    /// The pages of a range, the next part of a removal, are zapped now, or lazily freed.
    pub fn zap(&mut self, owner: usize, range: Range<usize>, lazily: bool) {
        let now = self.tick();
        let removal =
            self.removals.iter_mut().find(|r| r.owner == owner).expect("a removal begins before it zaps");
        removal.range.start = range.end;
        let since = removal.since;
        for at in range.step_by(PAGE) {
            let Some(cell) = self.cells.get_mut(&at) else { continue };
            if !lazily {
                cell.may.retain(|&(content, written)| content != 0 && written >= since);
            }
            cell.lazy = lazily && !cell.may.is_empty();
            cell.may.push((0, now));
        }
    }

    /// A removal ends, done or not.
    pub fn removal_end(&mut self, owner: usize) {
        self.removals.retain(|r| r.owner != owner);
    }

    /// A range is unmapped, or mapped anew.
    pub fn forget(&mut self, range: Range<usize>) {
        self.cells.retain(|at, _| !range.contains(at));
    }

    /// A range is moved. Where `at_risk`, a discard of the old address has been called for and has perhaps been done.
    pub fn rename(&mut self, from: Range<usize>, to: usize, at_risk: impl Fn(usize) -> bool) {
        let now = self.tick();
        self.forget(to..to + from.end - from.start);
        for at in from.clone().step_by(PAGE) {
            let racing = at_risk(at);
            if let Some(mut cell) = self.cells.remove(&at) {
                // For a discard under way at the new address this is as if it were written now.
                cell.may.iter_mut().for_each(|(_, written)| *written = now);
                if racing {
                    cell.may.push((0, now));
                }
                self.cells.insert(at - from.start + to, cell);
            }
        }
    }

    /// A page was taken away without an event (MADV_GUARD_INSTALL). If it was out just then, the engine cannot know
    /// of it, and may bring it back when the guard is gone: a limit that is documented.
    pub fn silent_zap(&mut self, at: usize, was_present: bool) {
        let now = self.tick();
        let racing = self.racing(at);
        if let Some(cell) = self.cells.get_mut(&at) {
            if was_present && !racing {
                cell.may.clear();
            }
            cell.may.push((0, now));
        }
    }
}
