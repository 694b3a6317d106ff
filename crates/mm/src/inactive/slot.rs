//! A slot of the inactive list: one window, and what lies on its pages.

use crate::kernel::WINDOW_PAGES;
use crate::swap_map::Entry;
use base::PageMask;

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// No page.
    Free,
    /// Pages that may be touched again.
    Inactive,
    /// With a compressor.
    InFlight,
    /// All pages present, with contents that nobody needs.
    Stock,
    /// What is in the pool is being loaded into it: ahead of a fault, or to be put away in other pieces.
    Fetching,
    /// Stock, or a part of it, whose pages are used one by one.
    Opened,
    /// Pages that nobody needs and the kernel has not taken back.
    Waste,
    /// Of a block: no page that anybody needs. What is there goes with the block.
    Spent,
}

/// One window of the inactive list.
#[derive(Clone, Debug)]
pub struct Slot {
    /// What for.
    pub used: Use,
    /// Physically there.
    pub present: PageMask,
    /// Contents of the program.
    pub owned: PageMask,
    /// The program's address of each owned page.
    pub owner: [usize; WINDOW_PAGES],
    /// Each owned page's entry before it was owned, if that was `Clean`; else `NONE`.
    pub prior: [Entry; WINDOW_PAGES],
    /// Objects that a job under way compares with, and how many: they are kept until it is done.
    pub lent: [u32; WINDOW_PAGES],
    /// See `lent`.
    pub lent_len: usize,
    /// Owned when the last job took the slot.
    pub sent: PageMask,
    /// Each page is to be an object of its own, as those that came one by one, from anywhere; else each lies where it
    /// lay in its window.
    pub is_single: bool,
    /// Pages of `owned` that came with another one, and wait whether anybody asks for them.
    pub tried: PageMask,
    /// Told apart from an earlier use of the same slot in the inactive list.
    pub(super) seq: u32,
}

impl Slot {
    /// Without a page.
    pub(super) const FREE: Slot = Slot {
        used: Use::Free,
        present: PageMask::NONE,
        owned: PageMask::NONE,
        owner: [0; WINDOW_PAGES],
        prior: [Entry::NONE; WINDOW_PAGES],
        lent: [0; WINDOW_PAGES],
        lent_len: 0,
        sent: PageMask::NONE,
        is_single: false,
        tried: PageMask::NONE,
        seq: 0,
    };

    /// All of its pages are there.
    pub(super) fn is_whole(&self) -> bool {
        self.present.count() == WINDOW_PAGES
    }

    /// How many of its pages go into one object: pages that were asked for one by one are kept one by one, so that
    /// a miss decompresses no more than its page, and nothing stays in the pool but what is out.
    pub fn unit(&self) -> usize {
        if self.is_single { 1 } else { WINDOW_PAGES }
    }
}

/// True when an entry of the inactive list means what the slot is now.
pub(super) fn is_inactive(slot: &Slot, seq: u32) -> bool {
    slot.used == Use::Inactive && slot.seq == seq
}
