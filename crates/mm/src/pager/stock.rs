//! Slots that are emptied, loaded into, and given back; and entries that nobody needs any more.

use crate::inactive::Use;
use crate::kernel::{Kernel, Store, WINDOW_PAGES};
use crate::pager::Pager;
use crate::swap_map::Entry;
use base::PageMask;
use core::sync::atomic::Ordering::Relaxed;
use vmscan::{PAGE, WINDOW};

impl<K: Kernel, S: Store> Pager<'_, K, S> {
    /// Forgets one entry: nobody will ask for what it names.
    pub(super) fn drop_entry(&mut self, entry: Entry) {
        use crate::swap_map::Kind::*;
        if entry.kind().is_stored() {
            self.stat.dropped.fetch_add(1, Relaxed);
        }
        match entry.kind() {
            None | Zero => {}
            Stored => self.objects.release(entry.id(), true),
            Clean => self.objects.release(entry.id(), false),
            Inactive => {
                let (slot, page) = entry.inactive_page();
                let prior = self.inactive.take(slot, page);
                self.drop_entry(prior);
                self.discard_if_empty(slot);
            }
        }
    }

    /// Discards an inactive slot when no page of the program lies on it any more.
    pub(super) fn discard_if_empty(&mut self, slot: u32) {
        let s = self.inactive.slot(slot);
        if s.owned.is_empty() && s.used == Use::Inactive {
            self.discard_slot(slot);
        }
    }

    /// Takes a slot to load pages into: of stock, or of new pages where there is none.
    pub(super) fn slot_to_load(&mut self) -> Option<u32> {
        if let Some(slot) = self.inactive.take_stock() {
            return Some(slot);
        }
        if self.limit.footprint() + WINDOW > self.marks().high {
            self.drop_huge_stock();
        }
        let (first, _) = self.inactive.find_windows(1, 0)?;
        let slot = first / WINDOW_PAGES as u32;
        let at = self.inactive.at(slot);
        if !self.kernel.populate(at, WINDOW) {
            self.kernel.discard(at, WINDOW);
            return None;
        }
        self.inactive.made(slot);
        self.limit.charge(WINDOW);
        Some(slot)
    }

    /// A slot that was taken, and is still taken, is not needed any more, or not all of it.
    pub(super) fn put_back(&mut self, slot: u32) {
        if self.inactive.slot(slot).used == Use::Fetching && !self.inactive.put_back(slot) {
            self.discard_slot(slot);
        }
    }

    /// Gives a slot's pages, which nobody needs, back to the kernel; those that it does not take now are waste, and
    /// tried again.
    pub(super) fn discard_slot(&mut self, slot: u32) {
        if self.inactive.is_in_block(slot) {
            if let Some(first) = self.inactive.spend(slot) {
                self.end_block(first);
            }
            return;
        }
        let base = self.inactive.at(slot);
        for run in self.inactive.slot(slot).present.runs() {
            let bytes = run.len() * PAGE;
            if self.kernel.discard(base + run.start * PAGE, bytes) {
                self.inactive.left(slot, PageMask::range(run));
                self.limit.uncharge(bytes);
            } else {
                self.stat.busy.fetch_add(run.len() as u64, Relaxed);
            }
        }
        if !self.inactive.slot(slot).present.is_empty() {
            self.inactive.waste(slot);
        }
    }
}
