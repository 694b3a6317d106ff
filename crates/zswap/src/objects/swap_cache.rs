//! Places in areas that are kept for pages which are in the program: the kernel's swap cache.
//!
//! A page that was read from an area, and goes out again unchanged, need not be compressed nor written. So its place is
//! kept, and the hash of what is there, which the pool had. On the way out the hash decides, as for any clean copy.
//!
//! Once less is free in the areas than this process has there no places are kept. Those that were are given up when
//! that is seen, or when no room is left: another process may need it.

use crate::objects::entries::Entries;
use crate::objects::object::{Body, Io};
use crate::objects::swapped::{PlaceId, Swapped};

/// How many objects are looked at, at a time, for what areas keep in vain; and how many places are given up: a fault
/// may wait for it.
const LOOKS: usize = 1 << 16;
const DROPPED_MOST: usize = 1 << 12;

/// An object has left the pool.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// Which.
    pub id: u32,
    /// What it held there.
    pub body: Body,
}

impl Swapped {
    /// True while places are kept of pages that are in the program.
    pub(super) fn keeps(&self) -> bool {
        !self.is_scarce
    }

    /// True where a place would be taken again once it is free.
    pub(super) fn is_open_at(&self, id: PlaceId) -> bool {
        self.slots().is_some_and(|slots| slots.is_open_at(self.copied(id).place.slot))
    }

    /// Whether there is so little room that they are not.
    pub(super) fn set_scarce(&mut self, is_scarce: bool) {
        self.is_scarce = is_scarce;
    }

    /// The hash that is kept of a page of an object.
    pub(super) fn hash(&self, id: PlaceId, page: usize) -> Option<u128> {
        match self.hashes.get(&id) {
            Some(hashes) => hashes.get(page).copied(),
            None => Some(u128::from_ne_bytes(self.copied(id).hash)).filter(|hash| page == 0 && *hash != 0),
        }
    }

    /// Keeps the hashes of an object's pages. False where they cannot be: 0 says that there is none.
    fn keep_hashes(&mut self, id: PlaceId, hashes: &[u128]) -> bool {
        match hashes {
            [hash] => self.copied_mut(id).hash = hash.to_ne_bytes(),
            _ => drop(self.hashes.insert(id, hashes.into())),
        }
        hashes != [0]
    }

    /// Keeps none of them any more.
    fn forget_hashes(&mut self, id: PlaceId) {
        self.copied_mut(id).hash = [0; 16];
        self.hashes.remove(&id);
    }
}

impl Entries {
    /// The pool's clean copy goes; that in an area stays where there is one, and room.
    pub(super) fn leave_copy(&mut self, id: u32) -> Left {
        let o = &mut self.table[id as usize];
        self.clean_bytes -= o.bytes();
        if o.place.is_some() && !o.split && self.swapped.keeps() {
            return Left { id, body: self.leave_pool(id) };
        }
        let body = core::mem::replace(&mut o.body, Body::Dropped);
        self.leave_area(id);
        Left { id, body }
    }

    /// The only page of an object was loaded. Where that is in an area too the pool need not have it any more: what it
    /// held there. `None` where it is not so, and nothing has happened.
    pub(super) fn leave_to_area(&mut self, id: u32) -> Option<Left> {
        let o = &mut self.table[id as usize];
        let is_copied = o.place.is_some() && (o.pages, o.stored) == (1, 1) && !o.split && o.pins == 0;
        if !is_copied || o.is_shared() || !self.swapped.keeps() {
            return None;
        }
        self.clean(id);
        Some(self.leave_copy(id))
    }

    /// True where pages in the program may be found to be still as they are in an object that has left the pool, once
    /// its hashes are kept.
    pub(super) fn wants_hashes(&self, id: u32) -> bool {
        let o = self.get(id);
        o.is_swapped() && o.refs > o.stored && !o.is_hashed && !o.split
    }

    /// Its pages' hashes, which the pool had; without them it is given up where nobody depends on it.
    pub(super) fn keep_hashes(&mut self, id: u32, hashes: Option<&[u128]>) {
        let o = &mut self.table[id as usize];
        if let (Some(place), Some(hashes)) = (o.place, hashes) {
            o.is_hashed = self.swapped.keep_hashes(place, hashes);
        }
        self.drop_swapped(id);
    }

    /// The hash of a page of an object that lies in an area alone, where it is kept.
    pub fn hash_in_area(&self, id: u32, page: usize) -> Option<u128> {
        let o = self.get(id);
        o.place.and_then(|place| self.swapped.hash(place, page))
    }

    /// The hashes of its pages are of no use any more.
    pub(super) fn forget_hashes(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        if core::mem::take(&mut o.is_hashed)
            && let Some(place) = o.place
        {
            self.swapped.forget_hashes(place);
        }
    }

    /// The same where no page in the program names it any more: it is read before one does.
    pub(super) fn forget_needless(&mut self, id: u32) {
        let o = self.get(id);
        if o.is_hashed && o.refs == o.stored {
            self.forget_hashes(id);
        }
    }

    /// Looks how much room there is: where there is little, some of what lies in areas for the sake of pages that are
    /// in the program is given up, and more of it the next time.
    pub(super) fn look_for_room(&mut self) {
        let Some(slots) = self.swapped.slots() else { return };
        let is_scarce = slots.free_slots() < slots.used_open_slots();
        self.swapped.set_scarce(is_scarce);
        if is_scarce {
            self.drop_hashed();
        }
    }

    /// Gives up some of what lies in areas for the sake of pages that are in the program. True when there was any.
    pub(super) fn drop_hashed(&mut self) -> bool {
        let mut dropped = 0;
        for _ in 0..self.table.len().min(LOOKS) {
            if dropped == DROPPED_MOST {
                break;
            }
            self.hand = (self.hand + 1) % self.table.len();
            let o = &mut self.table[self.hand];
            let frees_room = o.place.is_some_and(|place| self.swapped.is_open_at(place));
            if o.is_hashed && o.stored == 0 && o.io != Io::In && frees_room {
                o.body = Body::Dropped;
                self.leave_area(self.hand as u32);
                dropped += 1;
            }
        }
        dropped > 0
    }
}
