//! In, ahead of the fault: a stream's next windows are loaded by the workers, each onto a slot of stock, and moved
//! in whole.
//!
//! This is safe because
//! 1. a fetch under way depends on its object, which is kept until it ends;
//! 2. a fault on a window that is being loaded takes the fetch back, or waits for its end (`join_fetch`): nobody
//!    else loads it meanwhile;
//! 3. what was loaded goes in only where every page of the window is still out, in the same place of the same
//!    object (`fetched`).

use crate::fetch_ahead::Ahead;
use crate::kernel::{Errno, Fetch, Kernel, Store, WINDOW_PAGES};
use crate::pager::Pager;
use crate::swap_map::Kind;
use base::PageMask;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::heat::Heat;
use vmscan::readahead::Extent;
use vmscan::{PAGE, WINDOW};
use zswap::objects::Body;

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// True when all pages of a window are out, and lie in a row in one object from page `first` on.
    pub(super) fn is_whole(&self, window: usize, object: u32, first: usize) -> bool {
        (window..window + WINDOW).step_by(PAGE).zip(first..).all(|(page, offset)| {
            let e = self.map.get(page);
            e.kind() == Kind::Stored && e.id() == object && e.offset() == offset
        })
    }

    /// How much is wanted with a page that is asked for. Where there is room the region around it may be about to
    /// follow, unless a stream brings it.
    pub(super) fn extent_of(&mut self, at: usize, kind: Kind) -> Extent {
        let extent = self.ahead.fault(at);
        if kind == Kind::Stored
            && !matches!(extent, Extent::Stream { ahead: 1.. })
            && self.limit.is_roomy()
            && let Some(region) = self.prefetch.asked(at)
        {
            self.advised.prefetch(region);
        }
        extent
    }

    /// Has the windows after a stream's position loaded by the workers, as long as there is stock to load them into.
    pub(super) fn fetch_ahead(&mut self, from: usize, bytes: usize) {
        for to in (from..from + bytes).step_by(WINDOW) {
            let entry = self.map.get(to);
            if entry.kind() != Kind::Stored || self.ahead.slot_of(to).is_some() {
                continue;
            }
            let (object, first) = (entry.id(), entry.offset());
            let body = self.objects.get(object).body;
            if body == Body::Swapped {
                self.read_ahead(to..to + WINDOW);
                continue;
            }
            if !self.is_whole(to, object, first) || !matches!(body, Body::Blob { .. }) {
                continue;
            }
            if self.ahead.is_full() {
                break;
            }
            // Room that is free is as good as stock: what is loaded ahead makes room again as it is passed.
            let has_room = self.limit.footprint() + WINDOW <= self.marks().low;
            let slot = if has_room { self.slot_to_load() } else { self.inactive.take_stock() };
            let Some(slot) = slot else { break };
            self.begin_fetch(slot, to, object, first);
        }
        self.objects.submit_reads();
    }

    /// A worker is to load a window, which lies in a row in an object of the pool, onto a slot.
    pub(super) fn begin_fetch(&mut self, slot: u32, to: usize, object: u32, first: usize) {
        self.objects.retain(object, true);
        self.objects.pin(object);
        self.ahead.begin(Ahead { slot, to, object, first, is_loaded: false });
        let (at, body) = (self.inactive.at(slot), self.objects.get(object).body);
        self.objects.store_mut().fetch(Fetch { slot, at, body, first, pages: WINDOW_PAGES });
    }

    /// A fault came for a window that is being loaded: takes the job over, or waits for its end.
    pub(super) fn join_fetch(&mut self, slot: u32) {
        if self.inactive.is_in_block(slot) {
            self.finish_huge(self.inactive.block_of(slot).start);
            return;
        }
        if self.objects.store_mut().withdraw(slot) {
            self.end_fetch(slot);
            self.put_back(slot);
            return;
        }
        while self.ahead.is_loading(slot) {
            self.await_workers();
        }
    }

    pub(super) fn end_fetch(&mut self, slot: u32) -> Ahead {
        let ahead = self.ahead.end(slot);
        self.objects.unpin(ahead.object);
        self.objects.release(ahead.object, true);
        ahead
    }

    /// A window was loaded: what is still out, and still the same, goes in.
    pub(super) fn fetched(&mut self, slot: u32, sound: bool) {
        if self.inactive.is_in_block(slot) {
            return self.fetched_of_huge(slot, sound);
        }
        let ahead = self.end_fetch(slot);
        // A damaged object is reported at the fault that needs it.
        let mut pauses = 0;
        while sound && self.is_whole(ahead.to, ahead.object, ahead.first) {
            let moved = self.kernel.move_pages(ahead.to, self.inactive.at(slot), WINDOW);
            self.inactive.left(slot, PageMask::first(moved.bytes / PAGE));
            self.huge.came_to(&(ahead.to..ahead.to + moved.bytes));
            let heat = self.refault(self.map.get(ahead.to), moved.bytes / PAGE).max(Heat::WARM);
            self.loaded(ahead.to, moved.bytes, Some(heat));
            self.stat.readahead.fetch_add((moved.bytes / PAGE) as u64, Relaxed);
            if moved.bytes > 0 || moved.stop != Some(Errno::EAGAIN) {
                break;
            }
            self.wait_for_events(&mut pauses);
        }
        self.put_back(slot);
    }
}
