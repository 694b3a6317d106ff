//! Slots of stock: pages with contents that nobody needs, and what is done with them: they are used again, as a window
//! or one by one, or given back; those that the kernel does not take now are waste.

use super::InactiveList;
use super::slot::Use;
use crate::kernel::WINDOW_PAGES;
use base::PageMask;
use vmscan::WINDOW;

/// So many slots are `Opened` at most, and one part of all in so many: their pages wait to be used, and count.
pub(super) const OPENED_MAX: usize = 4;
const OPENED_PART: usize = 8;

impl InactiveList {
    /// What is left of a slot could not be discarded.
    pub fn waste(&mut self, slot: u32) {
        let s = &mut self.slots[slot];
        debug_assert!(s.owned.is_empty());
        if s.used == Use::Inactive {
            self.inactive_pages -= s.present.count();
        }
        s.used = Use::Waste;
        self.waste.push(slot);
    }

    /// Takes a slot of waste, to be discarded.
    pub fn take_waste(&mut self) -> Option<u32> {
        self.waste.pop()
    }

    /// How many slots are waste.
    pub fn waste_len(&self) -> usize {
        self.waste.len()
    }

    /// Takes a slot of stock for a fault; the caller moves its pages away and calls `left`.
    pub fn take_stock(&mut self) -> Option<u32> {
        let slot = self.stock.pop()?;
        self.slots[slot].used = Use::Fetching;
        Some(slot)
    }

    /// All pages of a free slot were made: it is as a slot of stock that was taken.
    pub fn made(&mut self, slot: u32) {
        let s = &mut self.slots[slot];
        debug_assert!(s.used == Use::Free);
        (s.used, s.present) = (Use::Fetching, PageMask::first(WINDOW_PAGES));
        self.free -= 1;
    }

    /// A slot that was taken is stock again; false when pages of it have gone.
    pub fn put_back(&mut self, slot: u32) -> bool {
        let s = &mut self.slots[slot];
        debug_assert!(s.used == Use::Fetching);
        let is_whole = s.is_whole();
        if is_whole {
            s.used = Use::Stock;
            self.stock.push(slot);
        }
        is_whole
    }

    /// At least so many pages of stock in a row, to be used one by one, and not as a window: the first page of the
    /// list, and how many there are. The caller moves them away from the first on and calls `left`, or leaves them.
    pub fn stock_pages(&mut self, count: usize) -> Option<(u32, usize)> {
        let row = |slot: u32| {
            let run = self.slots[slot].present.runs().find(|run| run.len() >= count)?;
            Some((slot * WINDOW_PAGES as u32 + run.start as u32, run.len()))
        };
        if let Some(found) = self.opened.iter().rev().find_map(|&slot| row(slot)) {
            return Some(found);
        }
        let slot = if self.may_open() { self.stock.pop()? } else { return None };
        self.slots[slot].used = Use::Opened;
        self.opened.push(slot);
        Some((slot * WINDOW_PAGES as u32, WINDOW_PAGES))
    }

    /// True where one more slot may be `Opened`.
    pub(super) fn may_open(&self) -> bool {
        self.opened.len() < OPENED_MAX.min(self.capacity / OPENED_PART)
    }

    /// Takes the pages of a slot that are used one by one, to be discarded.
    pub fn take_opened(&mut self) -> Option<u32> {
        let slot = self.opened.pop()?;
        self.slots[slot].used = Use::Fetching;
        Some(slot)
    }

    /// Bytes ready to be used again.
    pub fn stock_bytes(&self) -> usize {
        self.stock.len() * WINDOW + self.stock_block_bytes()
    }

    /// True where no slot of stock is ready, whatever huge pages are.
    pub fn has_no_stock_slot(&self) -> bool {
        self.stock.is_empty()
    }
}
