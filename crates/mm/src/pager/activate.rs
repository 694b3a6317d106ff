//! In, from the inactive list: a second chance.

use crate::inactive::{Slot, Use};
use crate::kernel::{Errno, Kernel, Moved, Store, WINDOW_PAGES};
use crate::pager::Pager;
use crate::pager::serve::Outcome;
use crate::swap_map::{Entry, Kind};
use base::PageMask;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::PAGE;
use vmscan::readahead::Extent;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// A second-chance hit: the page, or all of its slot that belongs with it, goes back as it is.
    pub(super) fn activate(&mut self, at: usize, entry: Entry, extent: Extent) -> Outcome {
        let (slot, page) = entry.inactive_page();
        if self.inactive.slot(slot).used == Use::InFlight {
            self.recall(slot);
            // Either it is inactive again, or it is stored: look again.
            if self.map.get(at) != entry || self.inactive.slot(slot).used == Use::InFlight {
                return Outcome::Again;
            }
        }
        // What waits to be asked for waits on.
        let is_tried = self.inactive.slot(slot).tried.contains(page);
        if is_tried {
            self.returns.add(at, true);
        }
        let is_in_block = self.inactive.is_in_block(slot);
        if is_in_block
            && extent != Extent::Page
            && let Some(outcome) = self.activate_huge(at, slot)
        {
            return outcome;
        }
        let is_alone = extent == Extent::Page || is_tried || is_in_block;
        let (first, last) = if is_alone { (page, page) } else { around(self.inactive.slot(slot), at, page) };
        let (to, from) = (at - (page - first) * PAGE, self.inactive.at(slot) + first * PAGE);
        let (mut first, mut pages) = (first, last - first + 1);
        // A move interrupts every CPU where the program runs; a copy of one page costs less, and what stays behind
        // goes with its slot. A move out of a huge page would take that apart.
        let mut gone = pages > 1;
        let mut moved = if gone {
            self.kernel.move_pages(to, from, pages * PAGE)
        } else {
            self.kernel.copy(at, from, PAGE)
        };
        if gone && moved.bytes == 0 && moved.stop == Some(Errno::ENOENT) && self.kernel.is_hole(from) {
            return self.vanished(to, slot, first);
        }
        if gone && refused(&moved) {
            // Read-only by now, or a page cannot be moved: copies are let in everywhere.
            (gone, pages, first) = (false, 1, page);
            moved = self.kernel.copy(at, self.inactive.at(slot) + page * PAGE, PAGE);
        }
        self.activated(slot, first, moved.bytes / PAGE, gone);
        let covered = at < to + moved.bytes && at >= to;
        self.landed(at, if gone { to } else { at }, pages, moved, covered)
    }

    /// Pages of a slot, from its page `first` on, are in the program; those that are `gone` no longer on the
    /// inactive list.
    pub(super) fn activated(&mut self, slot: u32, first: usize, pages: usize, gone: bool) {
        if !gone {
            self.limit.charge(pages * PAGE);
        }
        for page in first..first + pages {
            let owner = self.inactive.slot(slot).owner[page];
            let heat = self.map.get(owner).heat().touched();
            let prior = self.inactive.take(slot, page);
            // A page that nobody may write yet may be written later all the same: a prior is only a guess, checked
            // by hash.
            self.map.set(owner, prior.with_heat(heat));
        }
        if gone {
            self.inactive.left(slot, PageMask::range(first..first + pages));
        }
        self.stat.pgactivate.fetch_add(pages as u64, Relaxed);
        self.discard_if_empty(slot);
    }

    /// A page was given up by MADV_FREE before it came to the inactive list, and the kernel has taken it back:
    /// zeros from now on.
    fn vanished(&mut self, owner: usize, slot: u32, page: usize) -> Outcome {
        let prior = self.inactive.take(slot, page);
        self.inactive.left(slot, PageMask::page(page));
        self.drop_entry(prior);
        self.map.set(owner, Entry::NONE);
        self.discard_if_empty(slot);
        Outcome::Again
    }

    /// Tries once to bring home whatever is on the inactive list.
    pub(super) fn activate_all(&mut self) {
        for owner in self.inactive.owners() {
            let entry = self.map.get(owner);
            if entry.kind() == Kind::Inactive {
                self.activate(owner, entry, Extent::Window);
            }
        }
    }

    /// Takes a slot back from the compressors, or waits for their result.
    fn recall(&mut self, slot: u32) {
        if self.objects.store_mut().withdraw(slot) {
            self.job_over(slot);
            self.inactive.recall(slot);
            return;
        }
        while self.inactive.slot(slot).used == Use::InFlight {
            self.await_workers();
        }
    }
}

/// The first and the last page of a slot that lie beside its page `page` as they did beside `at` in the program.
fn around(slot: &Slot, at: usize, page: usize) -> (usize, usize) {
    let follows = |p: usize| slot.owned.contains(p) && slot.owner[p] == at + p * PAGE - page * PAGE;
    let (mut first, mut last) = (page, page);
    while first > 0 && at >= (page - first + 1) * PAGE && follows(first - 1) {
        first -= 1;
    }
    while last + 1 < WINDOW_PAGES && follows(last + 1) {
        last += 1;
    }
    (first, last)
}

/// True when a page cannot be moved to where it belongs, but may be copied: another protection by now, or locked.
pub(super) fn refused(moved: &Moved) -> bool {
    moved.bytes == 0 && !matches!(moved.stop, None | Some(Errno::EAGAIN | Errno::EEXIST | Errno::ENOENT))
}
