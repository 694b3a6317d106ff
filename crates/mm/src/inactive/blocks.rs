//! Blocks: places on the inactive list for huge pages, which come whole and go whole.
//!
//! A block is as many slots in a row as a huge page has windows, aligned. Blocks lie at the end of the list's range,
//! the first at its very end, and take more of it as they are needed. Nothing else is ever put there: a huge page is
//! moved whole only to where no page table is, and a page table comes with the first page that comes or goes alone
//! (docs/hazards.md, 55). So what is asked for of a block is copied, or all of it goes back.
//!
//! ```text
//!   Free ──a huge page──> Taken ──every slot is spent──> Stock ──to the program, or discarded──> Free
//!                           │                                                                    ^
//!                           ├──could not be discarded──────────> Waste ──────────────────────────┘
//!                           └──came, or went, in pieces────────> Worn
//!   Free ──made of zeros──> Stock ──a huge page is loaded──> Loading ──to the program──> Free
//! ```

use super::InactiveList;
use super::slot::{Slot, Use};
use crate::kernel::WINDOW_PAGES;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut, Range};
use vmscan::{PAGE, WINDOW};

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockUse {
    /// No page, nor a page table.
    Free,
    /// A huge page, of which some may still be the program's.
    Taken,
    /// A huge page with contents that nobody needs.
    Stock,
    /// The same, to which a huge page of the program's is loaded.
    Loading,
    /// Pages that nobody needs and the kernel has not taken back.
    Waste,
    /// There is a page table: it is used no more.
    Worn,
}

/// Slots in a row.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) used: BlockUse,
    /// Pages that are physically there.
    pub(super) pages: usize,
    /// Slots that are not spent.
    pub(super) live: usize,
    pub(super) slots: Vec<Slot>,
}

/// The slots of the list, by number.
pub(super) struct Slots {
    /// The first of the range: no other was ever used, but those of blocks.
    pub(super) plain: Vec<Slot>,
    /// The last one is the lowest.
    pub(super) blocks: Vec<Block>,
    /// Slots of a block; and where the first block ends.
    per_block: usize,
    top: usize,
}

impl Slots {
    /// None is used of a range of so many, of which `per_block` are a block.
    pub(super) fn new(count: usize, per_block: usize) -> Slots {
        let top = count - count % per_block;
        Slots { plain: Vec::new(), blocks: Vec::new(), per_block, top }
    }

    /// The lowest slot of a block; all above it are, up to `top`.
    fn floor(&self) -> usize {
        self.top - self.blocks.len() * self.per_block
    }

    /// In which block a slot is, and where in it.
    fn place(&self, slot: u32) -> Option<(usize, usize)> {
        let above = (slot as usize).checked_sub(self.floor()).filter(|_| (slot as usize) < self.top)?;
        Some((self.blocks.len() - 1 - above / self.per_block, above % self.per_block))
    }

    /// The first slot of a block.
    pub(super) fn first_of(&self, block: usize) -> u32 {
        (self.top - (block + 1) * self.per_block) as u32
    }

    /// All that may have been used.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        (0..self.plain.len() as u32).chain(self.floor() as u32..self.top as u32)
    }

    /// True for one of them.
    pub(super) fn has(&self, slot: u32) -> bool {
        (slot as usize) < self.plain.len() || (self.floor()..self.top).contains(&(slot as usize))
    }

    /// How many they are.
    pub(super) fn len(&self) -> usize {
        self.plain.len() + self.top - self.floor()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.plain.iter().chain(self.blocks.iter().flat_map(|block| &block.slots))
    }
}

impl Index<u32> for Slots {
    type Output = Slot;

    fn index(&self, slot: u32) -> &Slot {
        match self.place(slot) {
            Some((block, index)) => &self.blocks[block].slots[index],
            None => &self.plain[slot as usize],
        }
    }
}

impl IndexMut<u32> for Slots {
    fn index_mut(&mut self, slot: u32) -> &mut Slot {
        match self.place(slot) {
            Some((block, index)) => &mut self.blocks[block].slots[index],
            None => &mut self.plain[slot as usize],
        }
    }
}

impl InactiveList {
    /// Bytes of a huge page.
    pub fn block_bytes(&self) -> usize {
        self.slots.per_block * WINDOW
    }

    /// True for a slot of a block.
    pub fn is_in_block(&self, slot: u32) -> bool {
        self.slots.place(slot).is_some()
    }

    /// The slots of the block that a slot is in.
    pub fn block_of(&self, slot: u32) -> Range<u32> {
        let (block, _) = self.slots.place(slot).expect("it is in a block");
        let first = self.slots.first_of(block);
        first..first + self.slots.per_block as u32
    }

    fn block_mut(&mut self, slot: u32) -> &mut Block {
        let (block, _) = self.slots.place(slot).expect("it is in a block");
        &mut self.slots.blocks[block]
    }

    /// A block for a huge page: its first slot. The caller moves the page there and calls `block_came`.
    pub fn find_block(&mut self) -> Option<u32> {
        let is_free = |block: &Block| block.used == BlockUse::Free;
        if let Some(block) = self.slots.blocks.iter().position(is_free) {
            return Some(self.slots.first_of(block));
        }
        let floor = self.slots.floor().checked_sub(self.slots.per_block)?;
        let above = self.slots.plain.get(floor..).unwrap_or(&[]);
        if floor < self.slots.top / 2 || above.iter().any(|s| s.used != Use::Free) {
            return None;
        }
        if !above.is_empty() {
            // What they were used for means nothing for those of the block.
            let old = floor as u32..self.slots.plain.len() as u32;
            self.inactive.retain(|(slot, _)| !old.contains(slot));
            self.next_single =
                self.next_single.filter(|(page, _)| !old.contains(&(page / WINDOW_PAGES as u32)));
            self.slots.plain.truncate(floor);
        }
        self.free -= self.capacity - floor;
        self.capacity = floor;
        let slots = vec![Slot { used: Use::Spent, ..Slot::FREE }; self.slots.per_block];
        self.slots.blocks.push(Block { used: BlockUse::Free, pages: 0, live: 0, slots });
        Some(floor as u32)
    }

    /// `pages` pages have come to a block, from its first slot on, and are about to be `put`.
    pub fn block_came(&mut self, first: u32, pages: usize) {
        let block = self.block_mut(first);
        debug_assert!(block.used == BlockUse::Free);
        (block.used, block.pages) = (BlockUse::Taken, pages);
    }

    /// A slot of a block is about to have pages of the program.
    pub(super) fn enliven(&mut self, slot: u32) {
        self.block_mut(slot).live += 1;
    }

    /// Pages of a block have left it.
    pub(super) fn left_block(&mut self, slot: u32, pages: usize) {
        self.block_mut(slot).pages -= pages;
    }

    /// Nobody's contents are in a slot of a block any more. If that was the last of the block: its first slot, and the
    /// caller discards what is there.
    pub fn spend(&mut self, slot: u32) -> Option<u32> {
        let s = &mut self.slots[slot];
        debug_assert!(s.owned.is_empty() && matches!(s.used, Use::Inactive | Use::InFlight));
        if s.used == Use::Inactive {
            self.inactive_pages -= s.present.count();
        }
        *s = Slot { used: Use::Spent, seq: s.seq, ..Slot::FREE };
        let first = self.block_of(slot).start;
        let block = self.block_mut(slot);
        block.live -= 1;
        (block.live == 0).then_some(first)
    }

    /// How many pages a block has.
    pub fn block_pages(&self, first: u32) -> usize {
        self.slots.place(first).map_or(0, |(block, _)| self.slots.blocks[block].pages)
    }

    /// All pages of a block are gone, the huge page whole or not.
    pub fn block_ended(&mut self, first: u32, was_whole: bool) {
        let block = self.block_mut(first);
        block.used = if was_whole { BlockUse::Free } else { BlockUse::Worn };
        block.pages = 0;
    }

    /// Pages of a block could not be discarded.
    pub fn waste_block(&mut self, first: u32) {
        self.block_mut(first).used = BlockUse::Waste;
    }

    /// A huge page was made in a free block, or its last slot is spent: it may be used for other contents.
    pub fn stock_block(&mut self, first: u32) {
        let pages = self.slots.per_block * WINDOW_PAGES;
        let block = self.block_mut(first);
        (block.used, block.pages) = (BlockUse::Stock, pages);
    }

    /// A huge page of stock: the first slot of its block.
    pub fn block_of_stock(&self) -> Option<u32> {
        let block = self.slots.blocks.iter().position(|block| block.used == BlockUse::Stock)?;
        Some(self.slots.first_of(block))
    }

    /// A huge page of the program's is loaded to one of stock, until it is that again.
    pub fn load_block(&mut self, first: u32) {
        let block = self.block_mut(first);
        debug_assert!(block.used == BlockUse::Stock);
        block.used = BlockUse::Loading;
    }

    /// A worker loads pages to a slot of such a block, or does so no more.
    pub fn fetch_to(&mut self, slot: u32, is_loading: bool) {
        let s = &mut self.slots[slot];
        debug_assert!(matches!(s.used, Use::Spent | Use::Fetching));
        s.used = if is_loading { Use::Fetching } else { Use::Spent };
    }

    /// Pages of a huge page of stock have gone to the program.
    pub fn left_stock(&mut self, first: u32, pages: usize) {
        self.block_mut(first).pages -= pages;
    }

    /// True where a block has pages of the program, which go on from there.
    pub fn has_live_block(&self) -> bool {
        self.slots.blocks.iter().any(|block| block.used == BlockUse::Taken)
    }

    /// Bytes of huge pages of stock.
    pub(super) fn stock_block_bytes(&self) -> usize {
        let stock = self.slots.blocks.iter().filter(|block| block.used == BlockUse::Stock);
        stock.count() * self.block_bytes()
    }

    /// The blocks whose pages are to be discarded: the first slot of each.
    pub fn blocks_of_waste(&self) -> Vec<u32> {
        let blocks = self.slots.blocks.iter().enumerate();
        let waste = blocks.filter(|(_, block)| block.used == BlockUse::Waste);
        waste.map(|(number, _)| self.slots.first_of(number)).collect()
    }

    /// Where the huge page belongs whose slot this is, if all of it waits on the list: its first slot, and the address.
    pub fn whole_block(&self, slot: u32) -> Option<(u32, usize)> {
        let slots = self.block_of(slot);
        let first = slots.start;
        let to = self.slots[first].owner[0];
        let is_there = |slot: u32| {
            let (s, base) = (&self.slots[slot], to + (slot - first) as usize * WINDOW);
            let is_its = |page: usize| s.owner[page] == base + page * PAGE;
            s.used == Use::Inactive && s.owned.count() == WINDOW_PAGES && (0..WINDOW_PAGES).all(is_its)
        };
        (to.is_multiple_of(self.block_bytes()) && slots.into_iter().all(is_there)).then_some((first, to))
    }

    /// Bytes of blocks that nobody needs any more, and that go with what lies beside them.
    pub fn spent_bytes(&self) -> usize {
        let spent =
            |block: &Block| block.pages - block.slots.iter().map(|s| s.present.count()).sum::<usize>();
        let taken = self.slots.blocks.iter().filter(|block| block.used == BlockUse::Taken);
        taken.map(spent).sum::<usize>() * PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap_map::Entry;
    use base::PageMask;

    /// A list of 16 slots, of which four are a block.
    fn list() -> InactiveList {
        InactiveList::new(0, 16 * WINDOW, 4 * WINDOW)
    }

    /// A huge page that belongs to `owner` has come.
    fn come(list: &mut InactiveList, owner: usize) -> u32 {
        let first = list.find_block().expect("there is room");
        list.block_came(first, 4 * WINDOW_PAGES);
        for page in 0..4 * WINDOW_PAGES {
            let slot = first + (page / WINDOW_PAGES) as u32;
            list.put(slot, page % WINDOW_PAGES, owner + page * PAGE, Entry::NONE);
        }
        list.check().unwrap();
        first
    }

    fn spend(list: &mut InactiveList, slot: u32) -> Option<u32> {
        for page in 0..WINDOW_PAGES {
            list.take(slot, page);
        }
        list.spend(slot)
    }

    #[test]
    fn blocks_lie_at_the_end_and_slots_at_the_front() {
        let mut list = list();
        assert_eq!((come(&mut list, 1 << 30), come(&mut list, 2 << 30)), (12, 8));
        assert_eq!(list.find_block(), None, "a half is for what comes in pieces");
        let (page, room) = list.find_windows(8, 0).expect("there is room");
        assert_eq!((page, room), (0, 8 * WINDOW_PAGES));
        assert_eq!(list.inactive_bytes(), 8 * WINDOW);
        assert_eq!((list.is_in_block(7), list.is_in_block(8), list.is_in_block(15)), (false, true, true));
    }

    #[test]
    fn what_slots_were_used_for_means_nothing_for_a_block_in_their_place() {
        let mut list = InactiveList::new(0, 8 * WINDOW, 4 * WINDOW);
        // Slots up to the last, one after the other, with room for single pages behind the first.
        let slots: Vec<u32> = (0..8)
            .map(|_| {
                let (page, _) = list.find_windows(1, 0).expect("there is room");
                list.put(page / WINDOW_PAGES as u32, 0, page as usize * PAGE, Entry::NONE);
                list.singles_put(page + 1);
                page / WINDOW_PAGES as u32
            })
            .collect();
        assert_eq!(slots.iter().max(), Some(&7));
        assert_eq!(list.find_block(), None);
        for slot in slots {
            list.take(slot, 0);
            list.left(slot, PageMask::page(0));
        }
        let first = come(&mut list, 1 << 30);
        assert_eq!(first, 4);
        let (page, _) = list.find_singles().expect("there is room");
        assert!(page < first * WINDOW_PAGES as u32, "{page} is in a block");
        assert_eq!(list.oldest(), Some(first));
    }

    #[test]
    fn a_block_is_used_again_when_every_slot_is_spent() {
        let mut list = list();
        let first = come(&mut list, 1 << 30);
        assert_eq!(list.whole_block(first + 3), Some((first, 1 << 30)));
        for slot in [2, 0, 3] {
            assert_eq!(spend(&mut list, first + slot), None);
            list.check().unwrap();
        }
        assert_eq!((list.whole_block(first + 1), list.spent_bytes()), (None, 3 * WINDOW));
        assert_eq!(spend(&mut list, first + 1), Some(first));
        list.stock_block(first);
        list.check().unwrap();
        assert_eq!((list.block_of_stock(), list.stock_bytes()), (Some(first), 4 * WINDOW));
        list.waste_block(first);
        list.check().unwrap();
        assert_eq!(list.blocks_of_waste(), [first]);
        list.block_ended(first, true);
        assert_eq!((list.spent_bytes(), list.find_block()), (0, Some(first)));
        list.block_came(first, 1);
        list.put(first, 0, 0, Entry::NONE);
        list.take(first, 0);
        list.spend(first);
        list.block_ended(first, false);
        list.check().unwrap();
        assert_eq!(list.find_block(), Some(first - 4), "the other one is worn");
    }
}
