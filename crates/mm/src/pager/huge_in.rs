//! In, as huge pages: what went out whole comes back whole where a stream asks for it. The workers load its windows to
//! a block of stock, and the engine those that none of them has begun; one move brings all. What has come back in parts
//! since nobody knew that all of it is wanted becomes one again once all of it is there (MADV_COLLAPSE).
//!
//! This is safe because
//! 1. each window that a worker loads is a fetch as any other (fetch.rs): its object stays until it ends, and a thread
//!    that waits for a page of the pool there has the whole brought first;
//! 2. what a worker has loaded goes in only where its pages are still out, in the same place of the same object. What
//!    the engine has loaded is loaded again if an event was applied since: nothing else changes what is known of a page
//!    that is out, as long as no fault is served;
//! 3. between that look and the move no message is read, and what has been moved is entered before one is;
//! 4. to collapse pages changes nothing that is known of them, and fills no hole: the kernel refuses it where a page of
//!    registered memory is missing.

use crate::fault_queue::Fault;
use crate::kernel::{Errno, Kernel, Moved, Store};
use crate::pager::Pager;
use crate::pager::huge::HugeIn;
use crate::swap_map::{Entry, Kind};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::heat::Heat;
use vmscan::readahead::Extent;
use vmscan::{PAGE, WINDOW};
use zswap::objects::Body;

/// How often a huge page is moved in again while events come.
const TRIES: usize = 4;

/// For so long huge pages are made of others in one turn, in nanoseconds; one takes half a millisecond.
const COLLAPSE_NS: u64 = 1_500_000;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// True where all of a huge page is to come with one of its pages: for a stream.
    pub(super) fn wants_huge_for(&mut self, extent: Extent) -> bool {
        // Where everything goes out all the time, also to see it happen.
        matches!(extent, Extent::Stream { .. }) || self.limit.evicts_all() && self.huge.take_turns()
    }

    /// A page that is out is asked for, and what lies around it: brings the huge page that it was a part of, and has
    /// the next one loaded.
    pub(super) fn load_huge(&mut self, fault: &Fault, gate: bool) -> HugeIn {
        let range = self.huge_at(fault.at);
        if !self.may_come_whole(&range) {
            return HugeIn::Not;
        }
        if gate && self.must_wait_for_huge(fault) {
            return HugeIn::Wait;
        }
        let is_there = match self.begin_huge(&range) {
            Some(first) => self.finish_huge(first) && !self.map.get(fault.at).kind().is_out(),
            None => false,
        };
        if !is_there {
            return HugeIn::Not;
        }
        self.fetch_next_huge(fault.at);
        HugeIn::Filled
    }

    /// Has the huge page after that of `at` loaded by the workers, ahead of the fault.
    pub(super) fn fetch_next_huge(&mut self, at: usize) {
        let range = self.huge_at(self.huge_at(at).end);
        if self.may_come_whole(&range)
            && let Some(first) = self.begin_huge(&range)
        {
            if self.is_loading_huge(first) {
                self.ahead.bring(&range);
            } else {
                self.finish_huge(first);
            }
        }
    }

    /// True where a huge page is out, and may be brought at once.
    fn may_come_whole(&mut self, range: &Range<usize>) -> bool {
        self.huge.is_away(range)
            && self.huge.succeeds()
            && self.takes_huge()
            && self.ahead.has_room_for(range.len())
            && range.clone().step_by(WINDOW).all(|window| self.ahead.slot_of(window).is_none())
            && range.clone().step_by(PAGE).all(|page| self.may_be_loaded(self.map.get(page)))
            && self.kernel.wants_huge(range)
    }

    /// Begins to load a huge page: the first slot of its block; `None` where there is no room. What the workers are not
    /// given is loaded at the end.
    fn begin_huge(&mut self, range: &Range<usize>) -> Option<u32> {
        self.huge.is_wanted = true;
        let (first, _) = self.huge_of_stock(self.has_room_for_huge(self.marks().high))?;
        self.inactive.load_block(first);
        self.ahead.begin_huge(first, range);
        for (slot, to) in (first..).zip(range.clone().step_by(WINDOW)) {
            let entry = self.map.get(to);
            if entry.kind() != Kind::Stored || !self.is_whole(to, entry.id(), entry.offset()) {
                continue;
            }
            let (object, place) = (entry.id(), entry.offset());
            if matches!(self.objects.get(object).body, Body::Blob { .. }) {
                self.inactive.fetch_to(slot, true);
                self.begin_fetch(slot, to, object, place);
            }
        }
        Some(first)
    }

    /// True for a page that is out, and not in an area.
    fn may_be_loaded(&self, entry: Entry) -> bool {
        match entry.kind() {
            Kind::Zero => true,
            Kind::Stored => !self.objects.get(entry.id()).is_swapped(),
            Kind::None | Kind::Clean | Kind::Inactive => false,
        }
    }

    /// A worker has loaded a window of a huge page, or has found it damaged. After the last one all of it is brought.
    pub(super) fn fetched_of_huge(&mut self, slot: u32, sound: bool) {
        if sound {
            self.ahead.loaded(slot);
        } else {
            self.end_part(slot);
        }
        let first = self.inactive.block_of(slot).start;
        if !self.is_loading_huge(first) {
            self.finish_huge(first);
        }
    }

    fn is_loading_huge(&self, first: u32) -> bool {
        self.inactive.block_of(first).any(|slot| self.ahead.is_loading(slot))
    }

    /// How many of its windows workers have loaded, or load.
    fn parts(&self, first: u32) -> usize {
        self.inactive.block_of(first).filter(|&slot| self.ahead.part(slot).is_some()).count()
    }

    /// A window of a huge page is no worker's any more.
    fn end_part(&mut self, slot: u32) {
        self.end_fetch(slot);
        self.inactive.fetch_to(slot, false);
    }

    /// Loads what is left of a huge page, and moves it in. True where it has come, or a part of it.
    pub(super) fn finish_huge(&mut self, first: u32) -> bool {
        // Else who has begun that goes on with it.
        let Some(to) = self.ahead.finish_huge(first) else { return false };
        let moved = self.bring_huge(first, &to);
        for slot in self.inactive.block_of(first) {
            if self.ahead.part(slot).is_some() {
                self.end_part(slot);
            }
        }
        self.ahead.end_huge(first);
        self.inactive.stock_block(first);
        if self.left_stock(first, &to, &moved) {
            self.stat.thp_swpin.fetch_add(1, Relaxed);
        }
        moved.bytes > 0
    }

    /// How much of a huge page has come: nothing yet where what is known of it has changed.
    fn bring_huge(&mut self, first: u32, to: &Range<usize>) -> Moved {
        for _ in 0..TRIES {
            let events = self.stat.events.load(Relaxed);
            let is_ready = self.load_rest(first, to);
            let parts = self.parts(first);
            while self.is_loading_huge(first) {
                self.await_workers();
            }
            if !is_ready {
                break;
            }
            if parts != self.parts(first) || events != self.stat.events.load(Relaxed) {
                continue;
            }
            let mut loaded = self.inactive.block_of(first).filter_map(|slot| self.ahead.part(slot));
            if !loaded.all(|part| self.is_whole(part.to, part.object, part.first)) {
                break;
            }
            let moved = self.kernel.move_huge(to.start, self.inactive.at(first), to.len());
            self.came_whole(to.start..to.start + moved.bytes);
            if moved.bytes > 0 || moved.stop != Some(Errno::EAGAIN) {
                return moved;
            }
            self.settle();
        }
        Moved::NOTHING_YET
    }

    /// Loads the windows that no worker has, nor has begun, the last one first: the workers take the first. False where
    /// that cannot be.
    fn load_rest(&mut self, first: u32, to: &Range<usize>) -> bool {
        for slot in self.inactive.block_of(first).rev() {
            if self.ahead.is_loading(slot) && self.objects.store_mut().withdraw(slot) {
                self.end_part(slot);
            }
            let window = to.start + (slot - first) as usize * WINDOW;
            if self.ahead.part(slot).is_none() && !self.load_window(window, self.inactive.at(slot)) {
                return false;
            }
        }
        true
    }

    /// Pages from `at` on, before `end`, of which the same is known as of the first: how many.
    fn alike(&self, at: usize, end: usize) -> usize {
        let kind = self.map.get(at).kind();
        (at..end).step_by(PAGE).take_while(|&page| self.map.get(page).kind() == kind).count()
    }

    /// Loads a window that is out to engine memory at `to`.
    fn load_window(&mut self, window: usize, to: usize) -> bool {
        let (mut at, end) = (window, window + WINDOW);
        if !(window..end).step_by(PAGE).all(|page| self.may_be_loaded(self.map.get(page))) {
            return false;
        }
        while at < end {
            let (pages, buffer) = (self.alike(at, end), to + at - window);
            if self.map.get(at).kind() == Kind::Zero {
                self.kernel.clear(buffer, pages * PAGE);
            } else if self.load_run(at, pages, buffer).is_err() {
                // Reported at the fault that needs it.
                return false;
            }
            at += pages * PAGE;
        }
        true
    }

    /// Pages of a huge one that were out are in the program now.
    fn came_whole(&mut self, range: Range<usize>) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + WINDOW - at % WINDOW);
            let (pages, entry) = (self.alike(at, end), self.map.get(at));
            if entry.kind() == Kind::Zero {
                for page in (at..).step_by(PAGE).take(pages) {
                    self.came_home(entry);
                    self.map.set(page, Entry::NONE);
                }
            } else {
                let heat = self.refault(entry, pages).max(Heat::WARM);
                self.loaded(at, pages * PAGE, Some(heat));
                // It was stock, which counts already.
                self.limit.uncharge(pages * PAGE);
            }
            at += pages * PAGE;
        }
    }

    /// Makes huge pages of what was some and has come back in parts, where all of it is there. For a while only, since
    /// threads that touch it meanwhile wait.
    pub(super) fn collapse_due(&mut self) {
        let began_ns = self.kernel.now_ns();
        while let Some(range) = self.huge.first_due()
            && range.clone().step_by(WINDOW).all(|window| self.ahead.slot_of(window).is_none())
        {
            let is_there = self.may_collapse(&range) && self.fill_zeros(&range);
            // Of pages that are watched the kernel makes none.
            if is_there && self.lift_protection(range.clone()) == Err(Errno::EAGAIN) {
                break;
            }
            self.huge.looked_at(&range, is_there);
            let is_made = is_there && self.kernel.collapse(range.clone()) && self.kernel.is_huge(range);
            self.stat.thp_collapse_alloc.fetch_add(is_made.into(), Relaxed);
            if is_there {
                // The machine may have none, and to look for one takes long.
                self.huge.made(is_made);
            }
            if is_there != is_made || self.kernel.now_ns() > began_ns + COLLAPSE_NS {
                break;
            }
        }
    }

    /// True where a huge page can be made of pages: no other process has any of them, and there is room for it beside
    /// them.
    fn may_collapse(&mut self, range: &Range<usize>) -> bool {
        let is_out = |page| matches!(self.map.get(page).kind(), Kind::Inactive | Kind::Stored);
        self.limit.is_roomy()
            && self.has_room_for_huge(self.marks().low)
            && !self.cow.is_shared()
            // It would read them from there first.
            && !self.kernel.is_swapped()
            && self.regions.registered().covers(range)
            && !range.clone().step_by(PAGE).any(is_out)
            && self.kernel.wants_huge(range)
    }

    /// Fills those pages of a range that are zeros, as they were in a huge page. False where that cannot be.
    fn fill_zeros(&mut self, range: &Range<usize>) -> bool {
        let mut at = range.start;
        while at < range.end {
            let mut bytes = self.alike(at, range.end) * PAGE;
            if self.map.get(at).kind() == Kind::Zero {
                bytes = bytes.min(self.fresh.zeros().1);
                let moved = self.bring_zeros(at, bytes, None, false);
                self.filled(at, moved, moved.bytes);
                if moved.bytes < bytes {
                    return false;
                }
            }
            at += bytes;
        }
        true
    }
}
