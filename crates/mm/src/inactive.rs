//! The inactive list: a range of the engine's own where pages lie, still uncompressed, before they go for good.
//!
//! It is divided into slots of one window. A slot's life:
//!
//! ```text
//!   Free ──evict──> Inactive ──deflate──> InFlight ──done──> Stock ──fault──> Free
//!    ^                 │  touched: moved back                   │
//!    └─────────────────┴──────────── discarded ─────────────────┘
//!
//!   Stock, or Free and made ──load──> Fetching ──moved to the program──> Free
//!                                         ├──split or recompressed──> Inactive
//!                                         └──came to nothing──> Stock
//!   Stock, or what is left of a slot ──> Opened ──page by page, to the program or the pool──> Free
//!
//!   of a block: Spent ──evict──> Inactive ──deflate──> InFlight ──done──> Spent
//!               Spent ──load──> Fetching ──moved to the program──> Spent
//! ```
//!
//! For each slot: `owned` ⊆ `present`; a page of `owned` has an owner whose entry says `Inactive` and names it, and
//! no other page has one.
//!
//! The range is as long as a large process may need it. The table of slots grows with what is used of it, so that a
//! small process has a small one.

mod blocks;
mod check;
mod slot;
mod stock;

use crate::kernel::WINDOW_PAGES;
use crate::swap_map::Entry;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use base::PageMask;
use blocks::Slots;
use slot::is_inactive;
pub use slot::{Slot, Use};
use vmscan::{PAGE, WINDOW};

/// All slots.
pub struct InactiveList {
    base: usize,
    /// How many slots the range has, but for those of blocks.
    capacity: usize,
    slots: Slots,
    /// Where the search for free slots goes on.
    hint: usize,
    /// Inactive slots, oldest first, with their sequence numbers; stale ones are skipped.
    inactive: VecDeque<(u32, u32)>,
    stock: Vec<u32>,
    /// The slots that are `Opened`.
    opened: Vec<u32>,
    waste: Vec<u32>,
    inactive_pages: usize,
    /// Slots that are with the compressors, and how many pages went with them.
    in_flight: usize,
    in_flight_pages: usize,
    /// Slots of the range that are `Free`.
    free: usize,
    /// The inactive list page where the next single page goes, and the sequence number of its slot; beyond it the
    /// slot has no page.
    next_single: Option<(u32, u32)>,
}

impl InactiveList {
    /// An inactive list over `bytes` of engine memory at `base`, both multiples of the window; no page is present. A
    /// huge page has `huge_bytes`.
    pub fn new(base: usize, bytes: usize, huge_bytes: usize) -> InactiveList {
        assert!(base.is_multiple_of(huge_bytes) && bytes.is_multiple_of(WINDOW));
        InactiveList {
            base,
            capacity: bytes / WINDOW,
            slots: Slots::new(bytes / WINDOW, huge_bytes / WINDOW),
            hint: 0,
            inactive: VecDeque::new(),
            stock: Vec::new(),
            opened: Vec::new(),
            waste: Vec::new(),
            inactive_pages: 0,
            in_flight: 0,
            in_flight_pages: 0,
            free: bytes / WINDOW,
            next_single: None,
        }
    }

    /// A slot's address.
    pub fn at(&self, slot: u32) -> usize {
        self.base + slot as usize * WINDOW
    }

    /// The address of a page of the list: slots times pages of a window.
    pub fn page_at(&self, page: u32) -> usize {
        self.base + page as usize * PAGE
    }

    /// The slot.
    pub fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot]
    }

    /// True when a page of the program lies on the inactive list.
    pub fn holds_any(&self) -> bool {
        self.slots.iter().any(|s| !s.owned.is_empty())
    }

    /// Whose pages lie on the inactive list: their addresses.
    pub fn owners(&self) -> Vec<usize> {
        self.slots.iter().flat_map(|s| s.owned.iter().map(|page| s.owner[page])).collect()
    }

    /// The slots that may have been used.
    pub fn slots(&self) -> impl Iterator<Item = u32> + use<> {
        self.slots.numbers()
    }

    /// True for one of them.
    pub fn has(&self, slot: u32) -> bool {
        self.slots.has(slot)
    }

    /// No slot is free.
    pub fn is_full(&self) -> bool {
        self.free == 0
    }

    /// Fewer than half of the slots are free.
    pub fn is_crowded(&self) -> bool {
        self.free < self.capacity / 2
    }

    /// Room for pages that lie `skip` pages into their window, in up to `windows` free slots in a row: the inactive
    /// list page, and for how many pages.
    pub fn find_windows(&mut self, windows: usize, skip: usize) -> Option<(u32, usize)> {
        let (slot, count) = self.find_free(windows)?;
        Some((slot * WINDOW_PAGES as u32 + skip as u32, count * WINDOW_PAGES - skip))
    }

    /// Room for single pages, after those that came last: the inactive list page, and for how many pages.
    pub fn find_singles(&mut self) -> Option<(u32, usize)> {
        let open = self.next_single.filter(|&(page, seq)| {
            let s = &self.slots[page / WINDOW_PAGES as u32];
            s.used == Use::Inactive && s.seq == seq
        });
        match open {
            Some((page, _)) => Some((page, WINDOW_PAGES - page as usize % WINDOW_PAGES)),
            None => self.find_windows(1, 0),
        }
    }

    /// Single pages were put up to page of the list `next`, which may be the end of their slot.
    pub fn singles_put(&mut self, next: u32) {
        let s = &mut self.slots[(next - 1) / WINDOW_PAGES as u32];
        s.is_single = true;
        self.next_single = (!(next as usize).is_multiple_of(WINDOW_PAGES)).then_some((next, s.seq));
    }

    /// `count` free slots in a row, of no block; fewer when none so long is near: at least one, or `None`.
    fn find_free(&mut self, count: usize) -> Option<(u32, usize)> {
        // With one half of the slots free there mostly is a long run.
        let enough = (2 * (self.capacity - self.free + count)).min(self.capacity);
        let slots = &mut self.slots.plain;
        if slots.len() < enough {
            slots.resize(enough, Slot::FREE);
        }
        let n = slots.len();
        let mut best = (0, 0);
        let (mut at, mut looked) = (self.hint, 0);
        // A long run saves a system call, which is worth a short search and no more.
        while looked < n && (best.1 == 0 || looked < 4 * count) {
            if at >= n {
                at = 0;
            }
            let run = slots[at..].iter().take(count).take_while(|s| s.used == Use::Free).count();
            if run > best.1 {
                best = (at, run);
            }
            if run == count {
                break;
            }
            at += run + 1;
            looked += run + 1;
        }
        self.hint = best.0 + best.1;
        (best.1 > 0).then_some((best.0 as u32, best.1))
    }

    /// A page of the program lies on a page of a free, spent or inactive slot now.
    pub fn put(&mut self, slot: u32, page: usize, owner: usize, prior: Entry) {
        let s = &self.slots[slot];
        debug_assert!(matches!(s.used, Use::Free | Use::Spent | Use::Inactive) && !s.owned.contains(page));
        if s.used != Use::Inactive {
            match s.used {
                Use::Spent => self.enliven(slot),
                _ => self.free -= 1,
            }
            let s = &mut self.slots[slot];
            s.used = Use::Inactive;
            s.is_single = false;
            self.enlist(slot);
        }
        let s = &mut self.slots[slot];
        self.inactive_pages += !s.present.contains(page) as usize;
        s.owned.insert(page);
        s.present.insert(page);
        s.owner[page] = owner;
        s.prior[page] = prior;
    }

    /// A owned page has another address now.
    pub fn rename(&mut self, slot: u32, page: usize, owner: usize) {
        self.slots[slot].owner[page] = owner;
    }

    /// A page is no longer owned. Returns its prior.
    pub fn take(&mut self, slot: u32, page: usize) -> Entry {
        let s = &mut self.slots[slot];
        debug_assert!(s.owned.contains(page));
        s.owned.remove(page);
        s.tried.remove(page);
        core::mem::take(&mut s.prior[page])
    }

    /// The oldest inactive slot; it stays inactive until `send`.
    pub fn oldest(&mut self) -> Option<u32> {
        loop {
            let (slot, seq) = *self.inactive.front()?;
            if is_inactive(&self.slots[slot], seq) {
                return Some(slot);
            }
            self.inactive.pop_front();
        }
    }

    /// Notes that a job of this slot compares with an object.
    pub fn lend(&mut self, slot: u32, object: u32) {
        let s = &mut self.slots[slot];
        s.lent[s.lent_len] = object;
        s.lent_len += 1;
    }

    /// The slot's job is over, done or withdrawn: `recall` or `emptied` follows. The objects that were lent to it,
    /// and how many.
    pub fn job_over(&mut self, slot: u32) -> ([u32; WINDOW_PAGES], usize) {
        let s = &mut self.slots[slot];
        self.in_flight -= 1;
        self.in_flight_pages -= s.sent.count();
        (s.lent, core::mem::take(&mut s.lent_len))
    }

    /// Its pages become objects of their own, wherever they came from.
    pub fn part(&mut self, slot: u32) {
        self.slots[slot].is_single = true;
    }

    /// All of its pages came with another one, and wait whether anybody asks for them.
    pub fn try_all(&mut self, slot: u32) {
        let s = &mut self.slots[slot];
        s.tried = s.owned;
    }

    /// The oldest goes to a compressor: which of its pages nobody has asked for that came with another one.
    pub fn send(&mut self, slot: u32) -> PageMask {
        let s = &mut self.slots[slot];
        debug_assert!(s.used == Use::Inactive);
        s.used = Use::InFlight;
        s.sent = s.owned;
        self.inactive_pages -= s.present.count();
        self.in_flight += 1;
        self.in_flight_pages += s.sent.count();
        core::mem::take(&mut s.tried)
    }

    /// It comes back from the compressor's queue, the oldest as before.
    pub fn recall(&mut self, slot: u32) {
        let s = &mut self.slots[slot];
        debug_assert!(s.used == Use::InFlight);
        s.used = Use::Inactive;
        s.seq = s.seq.wrapping_add(1);
        self.inactive_pages += s.present.count();
        self.inactive.push_front((slot, s.seq));
    }

    /// Nobody's contents are in the slot any more: its pages are stock. Of a part for which there is no room among
    /// those whose pages are used one by one, the caller discards what is present.
    pub fn emptied(&mut self, slot: u32) {
        let may_open = self.may_open();
        let s = &mut self.slots[slot];
        debug_assert!(s.owned.is_empty() && s.used != Use::Stock);
        if s.is_whole() {
            s.used = Use::Stock;
            self.stock.push(slot);
        } else if s.present.is_empty() {
            s.used = Use::Free;
            self.free += 1;
        } else if may_open {
            s.used = Use::Opened;
            self.opened.push(slot);
        } else {
            s.used = Use::Waste;
        }
    }

    /// A slot that was taken holds pages of the program, which are about to be `put`; `is_single` as in [`Slot`].
    pub fn hold(&mut self, slot: u32, is_single: bool) {
        let s = &mut self.slots[slot];
        debug_assert!(s.used == Use::Fetching);
        (s.used, s.is_single) = (Use::Inactive, is_single);
        self.inactive_pages += s.present.count();
        self.enlist(slot);
    }

    /// Enters a slot as the youngest inactive one.
    fn enlist(&mut self, slot: u32) {
        let s = &mut self.slots[slot];
        s.seq = s.seq.wrapping_add(1);
        self.inactive.push_back((slot, s.seq));
        // What was touched and is empty again leaves its entry behind.
        if self.inactive.len() > 2 * self.slots.len() {
            let slots = &self.slots;
            self.inactive.retain(|&(slot, seq)| is_inactive(&slots[slot], seq));
        }
    }

    /// Pages have left the slot physically; what is left is the caller's to discard or to put back.
    pub fn left(&mut self, slot: u32, pages: PageMask) {
        let s = &mut self.slots[slot];
        debug_assert!((s.owned & pages).is_empty());
        if s.used == Use::Inactive {
            self.inactive_pages -= (s.present & pages).count();
        }
        let count = (s.present & pages).count();
        s.present -= pages;
        if self.is_in_block(slot) {
            self.left_block(slot, count);
            return;
        }
        let s = &mut self.slots[slot];
        if s.present.is_empty() && s.used != Use::Free {
            if s.used == Use::Opened {
                self.opened.retain(|opened| *opened != slot);
            }
            self.free += 1;
            s.used = Use::Free;
        }
    }

    /// The same of `count` pages of one slot, from a page of the list on.
    pub fn left_from(&mut self, page: u32, count: usize) {
        let first = page as usize % WINDOW_PAGES;
        self.left(page / WINDOW_PAGES as u32, PageMask::range(first..first + count));
    }

    /// Bytes on the inactive list that wait for a compressor, with what lies beside them that nobody needs any more
    /// and goes with them.
    pub fn inactive_bytes(&self) -> usize {
        self.inactive_pages * PAGE
    }

    /// How many slots are with the compressors.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Bytes of the program that are with the compressors.
    pub fn in_flight_bytes(&self) -> usize {
        self.in_flight_pages * PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_long_as_what_is_used_of_the_range_wants_it() {
        const SLOTS: usize = 1000;
        let mut list = InactiveList::new(0, SLOTS * WINDOW, WINDOW);
        assert_eq!((list.slots().count(), list.is_full(), list.is_crowded()), (0, false, false));
        let mut put = |count: usize| {
            for _ in 0..count {
                let (page, _) = list.find_windows(1, 0).expect("there is room");
                list.put(page / WINDOW_PAGES as u32, 0, page as usize * PAGE, Entry::NONE);
                list.check().unwrap();
            }
            (list.slots().count(), list.is_crowded(), list.is_full(), list.find_windows(1, 0).is_some())
        };
        assert_eq!(put(10), (20, false, false, true));
        assert_eq!(put(490), (SLOTS, false, false, true));
        assert_eq!(put(500), (SLOTS, true, true, false));
    }

    #[test]
    fn parts_of_stock_are_used_first_and_few_are_opened() {
        let mut list = InactiveList::new(0, 1000 * WINDOW, WINDOW);
        for _ in 0..10 {
            let slot = list.find_windows(1, 0).expect("there is room").0 / WINDOW_PAGES as u32;
            list.made(slot);
            list.put_back(slot);
        }
        let mut take = |count: usize| {
            let (page, pages) = list.stock_pages(count)?;
            list.left_from(page, count);
            list.check().unwrap();
            Some(pages)
        };
        let rows = [0; 5].map(|_| take(9));
        assert_eq!(rows, [Some(16), Some(16), Some(16), Some(16), None], "7 are left of each");
        assert_eq!([7, 7, 8, 1, 1].map(take), [Some(7), Some(7), Some(16), Some(8), Some(7)]);
    }

    #[test]
    fn a_slot_that_is_free_again_is_used_before_the_table_grows() {
        let mut list = InactiveList::new(0, 1000 * WINDOW, WINDOW);
        for _ in 0..200 {
            let (page, room) = list.find_windows(8, 0).expect("there is room");
            assert_eq!(room, 8 * WINDOW_PAGES, "half of it is free");
            let slot = page / WINDOW_PAGES as u32;
            list.put(slot, 0, 0, Entry::NONE);
            list.take(slot, 0);
            list.left(slot, PageMask::page(0));
        }
        assert!(list.slots().count() <= 18, "{}", list.slots().count());
    }
}
