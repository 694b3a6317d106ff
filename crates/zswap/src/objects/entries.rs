//! The entries: all that is known of objects but their contents. What changes here says what is to be freed; whoever
//! has the contents frees it.
//!
//! Invariants, of which [`Entries::check`] checks what only objects tell, and mm's `check.rs` the rest:
//! - `refs` = entries of kind Stored and Clean, priors of slots, fetches under way, and what is on its way to an area
//!   or back, that name the object
//! - `stored` = entries of kind Stored and fetches under way; `stored <= refs`
//! - a `Dropped` object has `stored == 0`: nobody's contents depend on it
//! - a `Swapped` object has a place in an area, and `stored > 0` unless it is being read or `is_hashed`: then pages
//!   that are in the program may be found to be still as they are there
//! - an object that `is_hashed` is named by somebody who does not depend on it
//! - `clean` says that somebody names the object and nobody depends on it; `clean_bytes` is the pool's memory of
//!   all of those that are not frozen
//! - an object whose `queued` is set is in the list of clean copies, once
//! - the objects by age are those in the pool on which somebody depends, and which are not on their way to an area
//! - `borrowed_pages` is the sum of `stored` of all objects that are relatives' records, `swapped_pages` that of those
//!   that lie in areas alone, `raw_pages` that of those that lie in the pool and did not shrink
//! - `refs == 0` if and only if the id is free

use crate::objects::lru::Lru;
use crate::objects::object::{Body, Io, Object};
use crate::objects::swap_cache::Left;
use crate::objects::swapped::Swapped;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// All of them. A child of fork takes over a copy.
#[derive(Default)]
pub struct Entries {
    pub(super) table: Vec<Object>,
    free: Vec<u32>,
    /// Objects that nobody depended on when they were put here, and since when, oldest first; looked at again when
    /// taken.
    queue: VecDeque<(u32, u32)>,
    pub(super) clean_bytes: usize,
    borrowed_pages: usize,
    swapped_pages: usize,
    raw_pages: usize,
    /// How many pages have gone out; it begins anew after 16 TiB.
    clock: u32,
    /// How many pages have left the pool for an area; it begins anew as `clock` does.
    left: u32,
    /// Which object was looked at last for what areas keep in vain.
    pub(super) hand: usize,
    /// How many pages were read ahead and left the pool unasked for, since that was asked.
    vain: usize,
    /// Which go to an area first.
    pub(super) lru: Lru,
    /// What lies in areas.
    pub(super) swapped: Swapped,
}

impl Entries {
    /// A copy for a child, where memory is not copied by a clone.
    pub fn copy_for_child(&mut self) -> Entries {
        Entries {
            table: self.table.clone(),
            free: self.free.clone(),
            queue: self.queue.clone(),
            lru: self.lru.clone(),
            swapped: self.swapped.copy_for_child(),
            ..*self
        }
    }

    /// Enters a new object that nobody names yet; `retain` follows.
    pub fn insert(&mut self, body: Body, pages: usize, born_ms: u64) -> u32 {
        let (pages, born_ms) = (pages as u8, born_ms as u32);
        let object = Object {
            body,
            refs: 0,
            stored: 0,
            clean: false,
            pages,
            picked: 0,
            split: false,
            frozen: false,
            borrowed: false,
            queued: false,
            pins: 0,
            is_hot: false,
            is_ahead: false,
            io: Io::None,
            place: None,
            is_hashed: false,
            since: 0,
            born_ms,
        };
        match self.free.pop() {
            Some(id) => {
                let queued = self.table[id as usize].queued;
                self.table[id as usize] = Object { queued, ..object };
                id
            }
            None => {
                self.table.push(object);
                self.table.len() as u32 - 1
            }
        }
    }

    /// Enters a record that a log has of so many pages: this process's own log, or a relative's.
    pub fn insert_common(&mut self, body: Body, pages: usize, born_ms: u64, borrowed: bool) -> u32 {
        let id = self.insert(body, pages, born_ms);
        self.table[id as usize].borrowed = borrowed;
        id
    }

    /// In a child: all records that its parent made or knew are relatives'.
    pub fn borrow_all(&mut self) {
        self.borrowed_pages = 0;
        for object in self.table.iter_mut().filter(|object| object.refs > 0) {
            object.borrowed = matches!(object.body, Body::Common { .. });
            self.borrowed_pages += if object.borrowed { object.stored as usize } else { 0 };
        }
    }

    /// True while anybody names a record of a log.
    pub fn has_common(&self) -> bool {
        self.iter().any(|(_, object)| matches!(object.body, Body::Common { .. }))
    }

    /// How many pages have no other copy than a relative's record.
    pub fn borrowed_pages(&self) -> usize {
        self.borrowed_pages
    }

    /// How many pages have no other copy than one in an area.
    pub fn swapped_pages(&self) -> usize {
        self.swapped_pages
    }

    /// How many pages have no other copy than one that lies in the pool as they were, since they did not shrink.
    pub fn incompressible_pages(&self) -> usize {
        self.raw_pages
    }

    /// How many pages have left the pool for an area since an object did that lies there alone.
    pub fn left_since(&self, id: u32) -> usize {
        self.left.wrapping_sub(self.table[id as usize].since) as usize
    }

    /// How many pages the object has that goes to an area next; 0 without one.
    pub fn oldest_pages(&self) -> usize {
        self.lru.first().map_or(0, |id| self.table[id as usize].pages.into())
    }

    /// True where the object that goes to an area next is raw.
    pub fn oldest_is_raw(&self) -> bool {
        self.lru.first().is_some_and(|id| self.table[id as usize].is_raw())
    }

    /// It lies in an area alone from now on: what it held in the pool.
    pub(super) fn leave_pool(&mut self, id: u32) -> Body {
        let o = &mut self.table[id as usize];
        self.raw_pages -= if o.is_raw() { o.stored as usize } else { 0 };
        self.swapped_pages += o.stored as usize;
        o.since = self.left;
        self.left = self.left.wrapping_add(o.stored.into());
        o.frozen = false;
        self.vain += if core::mem::take(&mut o.is_ahead) { o.pages.into() } else { 0 };
        if o.io == Io::Back {
            // Who waited for it has it, or it is read once more.
            o.io = Io::None;
        }
        core::mem::replace(&mut o.body, Body::Swapped)
    }

    /// It is in the pool again, as `body`.
    pub(super) fn enter_pool(&mut self, id: u32, body: Body) {
        let o = &mut self.table[id as usize];
        self.swapped_pages -= o.stored as usize;
        (o.body, o.is_hot, o.frozen) = (body, true, false);
        self.raw_pages += if o.is_raw() { o.stored as usize } else { 0 };
        self.forget_hashes(id);
    }

    /// It is being read before anybody asks for it.
    pub fn note_ahead(&mut self, id: u32) {
        self.table[id as usize].is_ahead = true;
    }

    /// Somebody asks for it. True where it was read before, or is being read, and nobody had.
    pub fn take_ahead(&mut self, id: u32) -> bool {
        core::mem::take(&mut self.table[id as usize].is_ahead)
    }

    /// How many pages were read ahead and left the pool unasked for, since the last call.
    pub fn take_vain(&mut self) -> usize {
        core::mem::take(&mut self.vain)
    }

    /// What lies in areas.
    pub fn swapped(&self) -> &Swapped {
        &self.swapped
    }

    /// The same, to be opened.
    pub fn swapped_mut(&mut self) -> &mut Swapped {
        &mut self.swapped
    }

    /// The object.
    pub fn get(&self, id: u32) -> &Object {
        &self.table[id as usize]
    }

    /// One of its pages is asked for alone.
    pub fn pick(&mut self, id: u32) {
        let picked = &mut self.table[id as usize].picked;
        *picked = picked.saturating_add(1);
    }

    /// One more names it, and depends on it if `stored`.
    pub fn retain(&mut self, id: u32, stored: bool) {
        self.table[id as usize].refs += 1;
        if stored {
            self.depend(id);
        }
    }

    /// One that depended on it only names it now (`Stored` to `Clean`): its page was loaded.
    pub fn clean(&mut self, id: u32) {
        self.table[id as usize].is_hot = true;
        self.depend_less(id);
    }

    fn depend_less(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        o.stored -= 1;
        o.is_ahead &= o.stored > 0;
        self.borrowed_pages -= o.borrowed as usize;
        self.swapped_pages -= o.is_swapped() as usize;
        self.raw_pages -= o.is_raw() as usize;
        if o.stored == 0 {
            (o.clean, o.since) = (true, self.clock);
            self.clean_bytes += o.bytes();
            if !core::mem::replace(&mut o.queued, true) {
                self.queue.push_back((id, self.clock));
            }
            self.drop_swapped(id);
            self.lru.remove(id);
        }
    }

    /// One that named it depends on it again (`Clean` to `Stored`).
    pub fn depend(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        o.stored += 1;
        self.borrowed_pages += o.borrowed as usize;
        self.swapped_pages += o.is_swapped() as usize;
        self.raw_pages += o.is_raw() as usize;
        if core::mem::take(&mut o.clean) {
            self.clean_bytes -= o.bytes();
        }
        self.forget_needless(id);
        self.age(id);
    }

    /// How many pages have gone out so far.
    pub fn set_clock(&mut self, evictions: usize) {
        self.clock = evictions as u32;
    }

    /// Bytes of the pool that hold clean copies alone.
    pub fn clean_bytes(&self) -> usize {
        self.clean_bytes
    }

    /// What does not hold, in words, but for what only the entries can tell.
    pub fn check(&self) -> Result<(), String> {
        let (mut clean_bytes, mut borrowed, mut swapped, mut raw) = (0, 0, 0, 0);
        let mut queued = alloc::vec![0; self.table.len()];
        self.queue.iter().for_each(|&(id, _)| queued[id as usize] += 1);
        for (id, o) in self.iter() {
            let is_right = o.stored <= o.refs
                && o.clean <= (o.stored == 0)
                && (o.body != Body::Dropped || o.stored == 0)
                && (!o.is_copy() || o.queued)
                && queued[id as usize] == o.queued as usize
                && self.lru.contains(id) == o.may_go()
                && (!o.is_swapped() || o.place.is_some() && (o.stored > 0 || o.io == Io::In || o.is_hashed))
                && o.is_hashed == o.place.is_some_and(|place| self.swapped.hash(place, 0).is_some())
                && (!o.is_hashed || o.refs > o.stored);
            if !is_right {
                let times = queued[id as usize];
                return Err(format!("object {id} is among clean copies {times} times: {o:?}"));
            }
            clean_bytes += if o.clean { o.bytes() } else { 0 };
            borrowed += if o.borrowed { o.stored as usize } else { 0 };
            swapped += if o.is_swapped() { o.stored as usize } else { 0 };
            raw += if o.is_raw() { o.stored as usize } else { 0 };
        }
        let found = [clean_bytes, borrowed, swapped, raw];
        let counted = [self.clean_bytes, self.borrowed_pages, self.swapped_pages, self.raw_pages];
        if found != counted {
            return Err(format!(
                "bytes of clean copies, borrowed pages, pages in areas, incompressible ones: {found:?}, counted {counted:?}"
            ));
        }
        let free = self.table.iter().filter(|o| o.refs == 0).count();
        if free != self.free.len() {
            return Err(format!("{free} ids are free, {} are listed", self.free.len()));
        }
        self.lru.check()?;
        let aged = self.iter().filter(|(_, object)| object.may_go()).count();
        if aged != self.lru.len() {
            return Err(format!("{aged} objects may go to an area, {} are listed", self.lru.len()));
        }
        self.swapped.check(self.iter())
    }

    /// Every object that somebody names.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Object)> {
        self.table.iter().enumerate().filter(|(_, o)| o.refs > 0).map(|(id, o)| (id as u32, o))
    }

    /// An object has become one that may go to an area, or is none any more.
    pub(super) fn age(&mut self, id: u32) {
        let o = &self.table[id as usize];
        match (o.may_go(), self.lru.contains(id)) {
            (true, false) if o.is_raw() => self.lru.push_first(id),
            (true, false) => self.lru.push(id),
            (false, true) => self.lru.remove(id),
            (true, true) | (false, false) => {}
        }
    }

    /// Its bytes in the pool are being read from now on: they stay there.
    pub fn pin(&mut self, id: u32) {
        self.table[id as usize].pins += 1;
        self.age(id);
    }

    /// Whoever read them is done.
    pub fn unpin(&mut self, id: u32) {
        self.table[id as usize].pins -= 1;
        self.age(id);
    }

    /// Gives up an object in an area on which nobody depends, unless its hashes are kept. One that is being read stays
    /// until it was: its slots would be another's.
    pub(super) fn drop_swapped(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        if o.is_swapped() && o.stored == 0 && o.io != Io::In && !o.is_hashed {
            o.body = Body::Dropped;
            self.leave_area(id);
        }
    }

    /// Its copy in an area, if it has one, is of no use any more.
    pub(super) fn leave_area(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        o.is_hashed = false;
        if let Some(place) = o.place.take() {
            self.swapped.release(place);
        }
    }

    /// One less, which depended on it if `stored`. With the last one it is gone: what it held.
    pub(super) fn release(&mut self, id: u32, stored: bool) -> Option<Body> {
        if stored {
            self.depend_less(id);
        }
        let o = &mut self.table[id as usize];
        o.refs -= 1;
        if o.refs > 0 {
            self.forget_needless(id);
            return None;
        }
        self.clean_bytes -= if core::mem::take(&mut o.clean) { o.bytes() } else { 0 };
        o.frozen = false;
        let body = core::mem::replace(&mut o.body, Body::Dropped);
        self.leave_area(id);
        self.free.push(id);
        Some(body)
    }

    /// Another process has copies of all that there are.
    pub(super) fn freeze(&mut self) {
        self.table.iter_mut().for_each(|o| o.frozen = o.refs > 0);
        self.clean_bytes = 0;
    }

    /// It has none any more.
    pub(super) fn thaw(&mut self) {
        for id in 0..self.table.len() as u32 {
            let o = &mut self.table[id as usize];
            if core::mem::take(&mut o.frozen) && o.is_copy() {
                self.clean_bytes += o.bytes();
                if !core::mem::replace(&mut o.queued, true) {
                    self.queue.push_back((id, o.since));
                }
            }
        }
    }

    /// Gives up a clean copy: what it held. A copy has been of no use if its page has not gone out again while `due`
    /// others did, and goes first. Else it is the newest: the page of an older one will be wanted again sooner, and
    /// were the oldest given up, a program that goes round in more memory than there is room for copies would find
    /// none at all.
    pub(super) fn drop_clean(&mut self, due: usize) -> Option<Left> {
        while let Some(&(id, since)) = self.queue.front() {
            let o = &mut self.table[id as usize];
            if o.is_copy() && o.since == since {
                if self.clock.wrapping_sub(since) as usize <= due {
                    break;
                }
                self.queue.pop_front();
                return Some(self.forget(id));
            }
            self.queue.pop_front();
            if o.is_copy() {
                // Wanted and given back since.
                self.queue.push_back((id, o.since));
            } else {
                o.queued = false;
            }
        }
        while let Some((id, _)) = self.queue.pop_back() {
            if self.table[id as usize].is_copy() {
                return Some(self.forget(id));
            }
            self.table[id as usize].queued = false;
        }
        None
    }

    /// Gives up a clean copy that is no longer in the queue.
    fn forget(&mut self, id: u32) -> Left {
        self.table[id as usize].queued = false;
        self.leave_copy(id)
    }

    /// An object was split: what depends on it no more need not be kept for those that only name it, one page in a
    /// large object. What it held, if nobody depends on it.
    pub(super) fn give_up(&mut self, id: u32) -> Option<Body> {
        let o = &mut self.table[id as usize];
        o.split = true;
        if !core::mem::take(&mut o.clean) {
            return None;
        }
        self.clean_bytes -= o.bytes();
        let body = core::mem::replace(&mut o.body, Body::Dropped);
        self.leave_area(id);
        Some(body)
    }
}
