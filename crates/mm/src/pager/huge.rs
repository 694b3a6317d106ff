//! Huge pages: whole to the inactive list, whole back from there, and fresh ones.
//!
//! A huge page leaves by one move, to a block of the list (inactive/blocks.rs), where its windows wait for the
//! compressors as any. If one of them is asked for while all of them wait, all go back by one move; else, and where a
//! page alone is asked for, that is copied. The move takes the place of 512 and of taking the huge page apart, which
//! costs more. Once its last window is stored a huge page is stock: fresh memory is made of it where the kernel itself
//! would make a huge page.
//!
//! This is safe because
//! 1. what is said of evicting (move_out.rs) holds for all pages of it alike: of a huge page of which one must stay,
//!    none is moved so;
//! 2. what a move has moved is what counts, not what it was to move: where the kernel takes the page apart meanwhile,
//!    what came is entered, and a block that has come to be in pieces is used no more.

use crate::fault_queue::Fault;
use crate::kernel::{Errno, Kernel, Moved, Run, Store, WINDOW_PAGES};
use crate::pager::Pager;
use crate::pager::activate::refused;
use crate::pager::serve::Outcome;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::PAGE;

/// How often a huge page is tried while events come.
const TRIES: usize = 20;

/// For so long a thread waits for a huge page that is about to be free, in nanoseconds: about as long as it takes to
/// compress one or two.
const PATIENCE_NS: u64 = 4_000_000;

/// What has become of a huge page.
pub(super) enum HugeOut {
    /// So many bytes of it have gone; none where it is spared, since a page of it is warm.
    Gone(usize),
    /// Its pages are to go as any others do.
    Split,
}

/// What has become of memory that may come as a huge page.
pub(super) enum HugeIn {
    /// It is there.
    Filled,
    /// One is on its way.
    Wait,
    /// It is to be none.
    Not,
}

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// The huge page in which `at` lies.
    pub(super) fn huge_at(&self, at: usize) -> Range<usize> {
        let bytes = self.inactive.block_bytes();
        let start = at & !(bytes - 1);
        start..start + bytes
    }

    /// A run of pages that is taken only where it lies in `range`: what is huge, and not all of it there, is to be
    /// taken apart.
    pub(super) fn whole_within(&self, run: &Run, range: &Range<usize>) -> Run {
        let huge = self.huge_at(run.start);
        let is_within = huge.start >= range.start && huge.end <= range.end;
        Run { huge: run.huge && is_within, ..*run }
    }

    /// Takes a huge page whole if it is cold as a whole: one that has a warm page is warm.
    pub(super) fn evict_huge(&mut self, range: &Range<usize>, patience: &mut usize) -> HugeOut {
        if !self.takes_huge() || self.must_any_stay(range) {
            return HugeOut::Split;
        }
        if *patience > 0 && !self.limit.evicts_all() {
            let warm = range.clone().step_by(PAGE).filter(|&page| self.spare(page)).count();
            *patience -= warm.min(*patience);
            if warm > 0 {
                return HugeOut::Gone(0);
            }
        }
        match self.move_huge_out(range) {
            0 => HugeOut::Split,
            bytes => HugeOut::Gone(bytes),
        }
    }

    /// True where the list has room for huge pages: each of them is a part of it until its last window is compressed.
    /// After a fork the kernel moves none.
    pub(super) fn takes_huge(&self) -> bool {
        let has_room = self.limit.evicts_all() || self.marks().inactive >= 2 * self.inactive.block_bytes();
        has_room && !self.cow.is_shared()
    }

    /// True where a page of a range must stay.
    fn must_any_stay(&mut self, range: &Range<usize>) -> bool {
        !self.reclaim.pins_in(range).is_empty()
            || self.regions.quarantine().overlaps(range)
            || range.clone().step_by(PAGE).any(|page| self.kernel.is_held(page))
    }

    /// Moves a huge page to a block; how many bytes it was. Whether it may be moved is asked anew before each try.
    fn move_huge_out(&mut self, range: &Range<usize>) -> usize {
        for _ in 0..TRIES {
            if !self.regions.registered().covers(range) || self.must_any_stay(range) {
                return 0;
            }
            let Some(first) = self.inactive.find_block() else { return 0 };
            let to = self.inactive.at(first);
            let moved = match self.lift_protection(range.clone()) {
                Ok(()) => self.kernel.move_huge(to, range.start, range.len()),
                Err(errno) => Moved { bytes: 0, stop: Some(errno) },
            };
            if moved.bytes > 0 {
                self.inactive.block_came(first, moved.bytes / PAGE);
                self.enter(range.start, moved.bytes, first * WINDOW_PAGES as u32);
                let is_whole = self.kernel.is_huge(to..to + range.len());
                if is_whole {
                    self.stat.thp_swpout.fetch_add(1, Relaxed);
                    self.huge.went(range.clone());
                } else {
                    self.stat.thp_swpout_fallback.fetch_add(1, Relaxed);
                }
                return moved.bytes;
            }
            if moved.stop != Some(Errno::EAGAIN) {
                return 0;
            }
            self.settle();
            self.kernel.pause();
        }
        0
    }

    /// A page of a block is asked for: all of the huge page goes back, if all of it waits here. `None` where it does
    /// not, or is no huge page any more.
    pub(super) fn activate_huge(&mut self, at: usize, slot: u32) -> Option<Outcome> {
        let (first, to) = self.inactive.whole_block(slot)?;
        let (from, bytes) = (self.inactive.at(first), self.inactive.block_bytes());
        if !self.kernel.is_huge(from..from + bytes) {
            return None;
        }
        let moved = self.kernel.move_huge(to, from, bytes);
        if refused(&moved) {
            return None;
        }
        self.huge.came_to(&(to..to + moved.bytes));
        let mut left = moved.bytes / PAGE;
        for slot in (first..).take(bytes / PAGE / WINDOW_PAGES) {
            let pages = left.min(WINDOW_PAGES);
            if pages > 0 {
                self.activated(slot, 0, pages, true);
            }
            left -= pages;
        }
        let covered = (to..to + moved.bytes).contains(&at);
        Some(self.landed(at, to, bytes / PAGE, moved, covered))
    }

    /// The last slot of a block is spent: what is there is stock, where a huge page was asked for of late, or goes back
    /// to the kernel.
    pub(super) fn end_block(&mut self, first: u32) {
        let range = self.block_range(first);
        let pages = self.inactive.block_pages(first);
        let is_whole = pages > 0 && self.kernel.is_huge(range.clone());
        if is_whole && self.huge.is_wanted {
            self.inactive.stock_block(first);
        } else {
            // What has gone back whole has left as little behind.
            self.discard_block(first, is_whole || pages == 0);
        }
    }

    /// Gives the pages of a block, which nobody needs, back to the kernel; those that it does not take now are waste,
    /// and tried again.
    pub(super) fn discard_block(&mut self, first: u32, is_whole: bool) {
        let (range, pages) = (self.block_range(first), self.inactive.block_pages(first));
        if pages > 0 && !self.kernel.discard(range.start, range.len()) {
            self.stat.busy.fetch_add(pages as u64, Relaxed);
            return self.inactive.waste_block(first);
        }
        self.limit.uncharge(pages * PAGE);
        self.inactive.block_ended(first, is_whole);
    }

    fn block_range(&self, first: u32) -> Range<usize> {
        let at = self.inactive.at(first);
        at..at + self.inactive.block_bytes()
    }

    /// Gives a huge page of stock back: it is not asked for, and the memory is. Its bytes, or 0 where there is none.
    pub(super) fn drop_huge_stock(&mut self) -> usize {
        let Some(first) = self.inactive.block_of_stock() else { return 0 };
        self.huge.is_wanted = false;
        let is_whole = self.kernel.is_huge(self.block_range(first));
        self.discard_block(first, is_whole);
        self.inactive.block_bytes()
    }

    /// A thread writes to fresh memory: fills all of the huge page that the kernel itself would make there, where
    /// nothing is of it and there is room. `end` is up to where memory is to be filled.
    pub(super) fn fill_huge(&mut self, fault: &Fault, end: usize, gate: bool) -> HugeIn {
        let (at, range) = (fault.at, self.huge_at(fault.at));
        let is_stream = at == range.start && end >= range.end;
        let is_free = self.limit.evicts_all() || self.has_room_for_huge(self.marks().low);
        if !(is_stream || is_free)
            || !self.takes_huge()
            || !self.regions.registered().covers(&range)
            || !self.huge.succeeds()
            || self.huge.was_refused(range.start)
            || self.map.next_used(range.start, range.end).is_some()
            || self.regions.quarantine().overlaps(&range)
            || !self.kernel.wants_huge(&range)
            || self.kernel.present(range.clone(), 1, &mut [Run::default()]).0 > 0
        {
            return HugeIn::Not;
        }
        self.huge.is_wanted = true;
        if gate && self.must_wait_for_huge(fault) {
            return HugeIn::Wait;
        }
        let has_room = is_free || self.has_room_for_huge(self.marks().high);
        let Some((first, is_new)) = self.huge_of_stock(has_room) else { return HugeIn::Not };
        if !is_new {
            self.kernel.clear(self.inactive.at(first), range.len());
        }
        let moved = self.kernel.move_huge(range.start, self.inactive.at(first), range.len());
        if self.left_stock(first, &range, &moved) {
            self.stat.thp_fault_alloc.fetch_add(1, Relaxed);
        }
        if (range.start..range.start + moved.bytes).contains(&at) { HugeIn::Filled } else { HugeIn::Not }
    }

    /// So much of a huge page of stock has gone to the program: true where that was all, and has come whole.
    pub(super) fn left_stock(&mut self, first: u32, to: &Range<usize>, moved: &Moved) -> bool {
        let bytes = moved.bytes;
        if bytes == 0 {
            if moved.stop != Some(Errno::EAGAIN) {
                self.huge.refused(to.start);
            }
            return false;
        }
        self.cow.note_own(to.start..to.start + bytes);
        self.inactive.left_stock(first, bytes / PAGE);
        let is_whole = bytes == to.len() && self.kernel.is_huge(to.clone());
        self.huge.came(is_whole);
        self.huge.came_to(&(to.start..to.start + bytes));
        if bytes == to.len() {
            self.inactive.block_ended(first, is_whole);
        } else {
            self.discard_block(first, false);
        }
        is_whole
    }

    /// True where a huge page more leaves the footprint below a mark.
    pub(super) fn has_room_for_huge(&self, mark: usize) -> bool {
        self.limit.footprint() + self.inactive.block_bytes() <= mark
    }

    /// True where there is no huge page of stock, nor room for one, and one is on its way that is worth waiting for.
    pub(super) fn must_wait_for_huge(&mut self, fault: &Fault) -> bool {
        let is_coming = !self.has_huge() && self.inactive.has_live_block() && !self.limit.evicts_all();
        is_coming && self.kernel.now_ns().saturating_sub(fault.since_ns) < PATIENCE_NS
    }

    /// True where a thread that waits for a huge page may have one.
    fn has_huge(&self) -> bool {
        self.inactive.block_of_stock().is_some() || self.has_room_for_huge(self.marks().high)
    }

    /// Those who wait for a huge page go on if there is one, or if they have waited for as long as it is worth.
    pub(super) fn give_huge(&mut self) {
        if self.faults.is_awaiting_huge() {
            let since_ns = self.kernel.now_ns().saturating_sub(PATIENCE_NS);
            self.faults.have_huge(self.has_huge(), since_ns);
        }
    }

    /// A huge page of stock, or a new one, of zeros, where there is room for it: the first slot of its block, and
    /// whether it is new.
    pub(super) fn huge_of_stock(&mut self, has_room: bool) -> Option<(u32, bool)> {
        if let Some(first) = self.inactive.block_of_stock() {
            return Some((first, false));
        }
        if has_room { self.make_huge().map(|first| (first, true)) } else { None }
    }

    fn make_huge(&mut self) -> Option<u32> {
        let first = self.inactive.find_block()?;
        let range = self.block_range(first);
        if !self.kernel.populate_huge(range.start, range.len()) {
            // There is a page table now, or pages.
            self.huge.came(false);
            self.inactive.stock_block(first);
            self.limit.charge(range.len());
            self.discard_block(first, false);
            return None;
        }
        self.inactive.stock_block(first);
        self.limit.charge(range.len());
        Some(first)
    }
}
