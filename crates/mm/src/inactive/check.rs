//! What must hold of the inactive list: each slot has the pages that its use says, lies in the lists that it
//! should, and is counted.

use super::blocks::BlockUse;
use super::stock::OPENED_MAX;
use super::{InactiveList, Slot, Use};
use crate::kernel::WINDOW_PAGES;
use crate::swap_map::Kind;
use alloc::format;
use alloc::string::String;

impl InactiveList {
    /// What does not hold, in words.
    pub fn check(&self) -> Result<(), String> {
        for slot in self.slots() {
            self.check_slot(slot)?;
        }
        self.check_lists()?;
        self.check_blocks()?;
        if self.opened.len() > OPENED_MAX {
            return Err(format!("{} slots are opened", self.opened.len()));
        }
        let of = |used: Use| self.slots.iter().filter(move |s| s.used == used);
        let pages = |used: Use| of(used).map(|s| s.present.count()).sum::<usize>();
        let sent = of(Use::InFlight).map(|s| s.sent.count()).sum::<usize>();
        let free = of(Use::Free).count() + self.capacity - self.slots.plain.len();
        let found = [pages(Use::Inactive), of(Use::InFlight).count(), sent, free];
        let counted = [self.inactive_pages, self.in_flight, self.in_flight_pages, self.free];
        if found != counted {
            return Err(format!(
                "inactive pages, slots and pages in flight, free slots: {found:?}, counted {counted:?}"
            ));
        }
        Ok(())
    }

    /// A slot has the pages that its use says.
    fn check_slot(&self, slot: u32) -> Result<(), String> {
        let s = self.slot(slot);
        let is_right = match s.used {
            Use::Free => s.present.is_empty(),
            Use::Inactive | Use::InFlight => true,
            Use::Stock => s.is_whole() && s.owned.is_empty(),
            Use::Opened => !s.present.is_empty() && s.owned.is_empty(),
            Use::Waste => !s.present.is_empty() && s.owned.is_empty(),
            Use::Fetching => s.owned.is_empty(),
            Use::Spent => s.present.is_empty() && self.is_in_block(slot),
        };
        if !is_right || !s.present.covers(s.owned) || !s.owned.covers(s.tried) {
            return Err(format!("slot {slot} has pages that it should not have, or lacks some: {s:x?}"));
        }
        let is_prior = |page: &usize| match s.prior[*page].kind() {
            Kind::None => true,
            Kind::Clean => s.owned.contains(*page),
            _ => false,
        };
        match (0..WINDOW_PAGES).find(|page| !is_prior(page)) {
            Some(page) => {
                Err(format!("page {page} of slot {slot} has the prior {:?}: {s:x?}", s.prior[page]))
            }
            None => Ok(()),
        }
    }

    /// A block is as its slots are.
    fn check_blocks(&self) -> Result<(), String> {
        for block in &self.slots.blocks {
            let is_live = |s: &&Slot| matches!(s.used, Use::Inactive | Use::InFlight);
            let live = block.slots.iter().filter(is_live).count();
            let present = block.slots.iter().map(|s| s.present.count()).sum::<usize>();
            let is_right = match block.used {
                BlockUse::Free | BlockUse::Worn => block.pages == 0,
                BlockUse::Taken => live > 0,
                BlockUse::Stock | BlockUse::Loading | BlockUse::Waste => live == 0 && block.pages > 0,
            };
            if !is_right || live != block.live || present > block.pages {
                return Err(format!("{live} slots with {present} pages live in a block: {block:x?}"));
            }
        }
        Ok(())
    }

    /// Every inactive slot is in the list once, every slot of stock, of waste and of those that are opened in its own.
    fn check_lists(&self) -> Result<(), String> {
        // In which lists each slot is, and how often.
        let slots = self.slots().max().map_or(0, |last| last as usize + 1);
        let mut listed = alloc::vec![[0u8; 4]; slots];
        let is_meant = |&&(slot, seq): &&(u32, u32)| self.slot(slot).seq == seq;
        self.inactive.iter().filter(is_meant).for_each(|&(slot, _)| listed[slot as usize][0] += 1);
        self.stock.iter().for_each(|&slot| listed[slot as usize][1] += 1);
        self.waste.iter().for_each(|&slot| listed[slot as usize][2] += 1);
        self.opened.iter().for_each(|&slot| listed[slot as usize][3] += 1);
        for slot in self.slots() {
            let (s, [inactive, stock, waste, opened]) = (self.slot(slot), listed[slot as usize]);
            let is_right = (s.used != Use::Inactive || inactive == 1)
                && stock == (s.used == Use::Stock) as u8
                && waste == (s.used == Use::Waste) as u8
                && opened == (s.used == Use::Opened) as u8;
            if !is_right {
                return Err(format!(
                    "slot {slot} is listed {inactive} times, as stock {stock}, as waste {waste}, as opened {opened} times: {s:x?}"
                ));
            }
        }
        Ok(())
    }
}
