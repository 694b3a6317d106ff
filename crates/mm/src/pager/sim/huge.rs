//! Huge pages of the simulated memory: all pages of one are there, under one entry of the page tables, and it stays so
//! until one of them is treated otherwise than the rest. A huge page is moved whole to where no page table is, and else
//! taken apart (docs/hazards.md, 55). A page table stays where its pages have gone.

use super::World;
use super::memory::{Memory, Page};
use super::program::{Doing, fresh};
use crate::kernel::{Errno, Moved};
use std::collections::BTreeSet;
use std::ops::Range;
use vmscan::{PAGE, WINDOW};

/// Bytes of a huge page here: two windows, so that a small program has some.
pub const HUGE: usize = 2 * WINDOW;

/// What is huge, and where page tables are; by the address of the first page.
#[derive(Default)]
pub struct Huge {
    whole: BTreeSet<usize>,
    tables: BTreeSet<usize>,
}

/// The huge page in which a page is, or would be.
fn block(at: usize) -> usize {
    at / HUGE * HUGE
}

/// Those that a range touches.
fn blocks(range: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    (block(range.start)..range.end).step_by(HUGE)
}

impl Huge {
    /// A page of it is treated otherwise than the rest, or comes or goes alone.
    pub fn split(&mut self, at: usize) {
        self.whole.remove(&block(at));
        self.tables.insert(block(at));
    }

    /// True for a page of a huge one.
    pub fn contains(&self, at: usize) -> bool {
        self.whole.contains(&block(at))
    }

    /// A range is treated alike: what is whole and not all of it there is taken apart.
    pub fn treat(&mut self, range: &Range<usize>) {
        for at in blocks(range) {
            if self.whole.contains(&at) && (at < range.start || at + HUGE > range.end) {
                self.split(at);
            }
        }
    }

    /// A range is unmapped, or all of it is given back: what is whole leaves nothing behind, and of the rest the page
    /// tables go if `all`.
    pub fn clear(&mut self, range: &Range<usize>, all: bool) {
        self.treat(range);
        for at in blocks(range) {
            self.whole.remove(&at);
            if all && at >= range.start && at + HUGE <= range.end {
                self.tables.remove(&at);
            }
        }
    }
}

impl Memory {
    /// A huge page is made of the pages of a block, if all of it is one mapping of the program's; also of those that
    /// are missing where the kernel fills holes.
    pub fn collapse(&mut self, at: usize) -> bool {
        let range = at..at + HUGE;
        let Some((found, vma)) = self.vma(at) else { return false };
        let is_plain = vma.writable && !vma.engine && !vma.locked && found.end >= range.end;
        let fills = !vma.registered && !vma.owned;
        let fits = |page: &Page| {
            page.exclusive && page.pins == 0 && !(page.zero || page.swapped || page.bound || page.lazy)
        };
        let are_alike = |at| match self.page(at) {
            Some(page) => fits(page) && !page.protected,
            None => fills && !self.markers.contains_key(&at),
        };
        if !is_plain || self.huge.contains(at) || !range.clone().step_by(PAGE).all(are_alike) {
            return false;
        }
        for page in range.step_by(PAGE) {
            if self.page(page).is_none() {
                self.fill(page, 0);
            }
        }
        self.became_huge(at)
    }

    /// The pages at `at` are a huge one.
    pub fn became_huge(&mut self, at: usize) -> bool {
        self.huge.tables.remove(&at);
        self.huge.whole.insert(at);
        true
    }
}

impl World {
    /// The kernel makes a huge page where it can, from a place of its choice on.
    pub fn make_huge(&mut self) {
        let space = self.program.space();
        let blocks = space.len() / HUGE;
        let first = self.random.below(blocks);
        for block in (first..blocks).chain(0..first) {
            let at = space.start + block * HUGE;
            if self.memory.readers == 0 && self.memory.collapse(at) {
                self.trace("a huge page is made", [at as u64, 0, 0]);
                return;
            }
        }
    }

    /// Where a huge page may be.
    pub fn huge_range(&mut self) -> Range<usize> {
        let space = self.program.space();
        let at = space.start + self.random.below(space.len() / HUGE) * HUGE;
        at..at + HUGE
    }

    /// A thread maps memory anew, and touches it: the kernel makes it a huge page.
    pub fn map_huge(&mut self, thread: usize, range: Range<usize>) -> Doing {
        if !self.can_be_mapped(&range) {
            return Doing::Nothing;
        }
        self.trace("mmap, huge", [thread as u64, range.start as u64, range.end as u64]);
        let call = self.unmap(range.clone());
        self.memory.map(range.clone(), fresh());
        self.memory.collapse(range.start);
        self.calling(call)
    }

    /// Moves a huge page whole, where that is possible; takes it apart and moves nothing where it is not.
    pub fn move_whole(&mut self, dst: usize, src: usize, bytes: usize) -> Option<Moved> {
        if bytes != HUGE || !self.memory.huge.whole.contains(&src) {
            return None;
        }
        let is_free = !self.memory.huge.tables.contains(&dst) && !self.memory.huge.whole.contains(&dst);
        if !is_free || self.chance(60) {
            self.memory.huge.split(src);
            return None;
        }
        let is_stuck = |(_, page): (usize, &Page)| page.pins > 0 || !page.exclusive;
        if self.memory.pages_in(src..src + HUGE).any(is_stuck) {
            return Some(Moved { bytes: 0, stop: Some(Errno::EBUSY) });
        }
        self.memory.huge.whole.remove(&src);
        (0..HUGE).step_by(PAGE).for_each(|offset| self.memory.move_page(src + offset, dst + offset));
        // It came whole, and left nothing behind.
        let huge = &mut self.memory.huge;
        huge.tables.remove(&src);
        huge.tables.remove(&dst);
        huge.whole.insert(dst);
        self.memory.wake(dst..dst + HUGE);
        Some(Moved { bytes, stop: None })
    }
}
