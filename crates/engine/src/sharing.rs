//! What a process shares with its relatives, told to all of them: its engine, asked by the coordinator, compresses what
//! others have too into its log; and everybody's reads what is in the logs.

use crate::live::Live;
use crate::shared_store;
use crate::store::PageStore;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;
use memcg::{Memcg, Slot};
use mm::Pager;
use mm::shared_store::Unlogged;
use uffd::PAGE;
use vmscan::WINDOW;
use zswap::{PARCEL_MAX_BYTES, PageMask};

/// How many records are read at a time.
const RECORDS: usize = 64;

/// What a process shares next.
#[derive(Default)]
pub struct Sharer {
    /// A window and what it is compressed to; empty before there is anything to tell.
    window: Vec<u8>,
    parcel: Vec<u8>,
    /// Since the search for something to tell began at the beginning of the address space.
    has_told: bool,
}

impl Sharer {
    /// Does a little of what is to be done; true when there is more.
    pub fn turn(&mut self, memcg: &Memcg, slot: &Slot, pager: &mut Pager<'_, Live, PageStore>) -> bool {
        if !pager.shares() {
            return leave(memcg, slot, pager);
        }
        // Where everything goes out all the time nobody needs to ask.
        let asked = slot.share.tell_bytes.load(Relaxed);
        let wanted = if memcg.settings.evict_all != 0 { WINDOW as u64 } else { asked };
        if wanted > 0 {
            let told = self.share(pager);
            let left = wanted.saturating_sub(told.unwrap_or(wanted as usize) as u64);
            if told.is_none() {
                slot.share.told_all.store(1, Relaxed);
            }
            slot.share.tell_bytes.store(left, Relaxed);
        }
        let has_more = shared_store::read_new(RECORDS, |window, pages, body, borrowed| {
            pager.note_record(window, pages, body, borrowed)
        });
        has_more || asked > 0
    }

    /// Tells what is found next, if anything is: how many bytes it was; `None` where there is nothing left, or no room
    /// for it.
    fn share(&mut self, pager: &mut Pager<'_, Live, PageStore>) -> Option<usize> {
        let (at, pages) = match pager.unlogged() {
            Unlogged::Pages(at, pages) => (at, pages),
            Unlogged::None => return Some(0),
            Unlogged::End => return core::mem::take(&mut self.has_told).then_some(0),
        };
        if self.window.is_empty() {
            (self.window, self.parcel) = (vec![0; WINDOW], vec![0; PARCEL_MAX_BYTES]);
        }
        let mut there = PageMask::NONE;
        for page in pages.iter() {
            let read =
                pager.kernel().memory().glance(at + page * PAGE, &mut self.window[page * PAGE..][..PAGE]);
            if read == Ok(PAGE) {
                there.insert(page);
            }
        }
        let Some((pages, fingerprint, bytes)) =
            pager.store_mut().pack(&mut self.window, there, &mut self.parcel)
        else {
            return Some(0);
        };
        let is_told = shared_store::add(at, pages, fingerprint, &self.parcel[..bytes]);
        self.has_told |= is_told;
        is_told.then_some(pages.count() * PAGE)
    }
}

/// Without a family: brings home what is in logs, if that takes much, and empties them; true when there is more.
fn leave(memcg: &Memcg, slot: &Slot, pager: &mut Pager<'_, Live, PageStore>) -> bool {
    if !shared_store::is_worth_leaving() || memcg.has_family(slot) {
        return false;
    }
    let is_left = pager.bring_logs_home();
    if !is_left {
        shared_store::empty(memcg, slot);
    }
    is_left
}
