//! Objects: what went out together and is kept as one, with the number of pages that still need it.
//!
//! Invariants, of which [`Objects::check`] checks what only objects tell, and mm's `check.rs` the rest:
//! - `refs` = entries of kind Stored and Clean, priors of slots, and fetches under way that name the object
//! - `stored` = entries of kind Stored and fetches under way; `stored <= refs`
//! - a `Dropped` object has `stored == 0`: nobody's contents depend on it
//! - `clean` says that somebody names the object and nobody depends on it; `clean_bytes` is the pool's memory of
//!   all of those that are not frozen
//! - an object whose `queued` is set is in the list of clean copies, once
//! - `borrowed_pages` is the sum of `stored` of all objects that are relatives' records
//! - `refs == 0` if and only if the id is free

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// What an object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Bytes in the pool.
    Blob {
        /// The store's name for it, which another object may have once this one is freed.
        handle: u32,
        /// Of the contents: what lies under the handle must have the same, or it is another object.
        fingerprint: u32,
        /// How many bytes of the pool it takes.
        bytes: u32,
    },
    /// A record of a log that relatives read too: what they all have is stored there once, in nobody's pool.
    Common {
        /// Which log, by the place where this process and its children list it.
        log: u32,
        /// Where in it, as the store counts.
        at: u32,
        /// Of the contents.
        fingerprint: u32,
    },
    /// Pages filled with one repeated word; nothing in the pool.
    Same(u64),
    /// A clean copy that was given up: nothing can be loaded from it.
    Dropped,
}

/// Where the contents of objects lie.
pub trait Contents {
    /// Gives an object's memory back.
    fn free(&mut self, body: Body);
    /// Parent and child have the pool in common from now on, each its own copy of what it writes to: what lies
    /// there now stays as it is until it is freed.
    fn freeze(&mut self);
    /// Nobody else has a part of it any more.
    fn thaw(&mut self);
    /// Bytes that the pool holds.
    fn pool_bytes(&self) -> usize;
}

/// One object.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// What it holds.
    pub body: Body,
    /// How many name it: its pages, and jobs under way.
    pub refs: u16,
    /// How many of them have no other copy.
    pub stored: u16,
    /// Nobody depends on it any more.
    pub clean: bool,
    /// How many pages it was made of.
    pub pages: u8,
    /// How often one of them was asked for alone.
    pub picked: u8,
    /// Its pages are objects of their own by now; what it still holds is not to be depended on anew.
    pub split: bool,
    /// It was in the pool when the process forked: another has it too.
    frozen: bool,
    /// It is a relative's record.
    borrowed: bool,
    queued: bool,
    /// When nobody depended on it any more, by `Objects::clock`.
    clean_since: u32,
    /// When it was stored, in milliseconds of the kernel's clock, which begins anew every 49 days.
    pub born_ms: u32,
}

impl Object {
    /// How long ago it was stored, in milliseconds.
    pub fn age_ms(&self, now_ms: u64) -> u64 {
        (now_ms as u32).wrapping_sub(self.born_ms) as u64
    }

    /// True when a page may be found to be still as it is here, and depend on it again.
    pub fn is_sound(&self) -> bool {
        self.body != Body::Dropped && !self.split
    }

    /// True where another process has it too: to give it up would free nothing, and to make anew what it holds
    /// would make a second one.
    pub fn is_shared(&self) -> bool {
        self.frozen || matches!(self.body, Body::Common { .. })
    }

    /// True for a relative's record.
    pub fn is_borrowed(&self) -> bool {
        self.borrowed
    }

    /// True when less than half of its pages may ever depend on it again.
    pub fn is_forlorn(&self) -> bool {
        !self.is_shared() && 2 * self.refs < self.pages as u16
    }

    /// How many more pages must depend on it so that at least half of it is needed.
    pub fn wanting(&self) -> usize {
        if self.is_shared() {
            return 0;
        }
        usize::from(self.pages.div_ceil(2)).saturating_sub(self.stored.into())
    }

    /// Memory that nobody depends on.
    fn is_copy(&self) -> bool {
        self.clean && !self.frozen && matches!(self.body, Body::Blob { .. })
    }

    /// What would be freed with it.
    fn bytes(&self) -> usize {
        match self.body {
            Body::Blob { bytes, .. } if !self.frozen => bytes as usize,
            _ => 0,
        }
    }
}

/// All objects, and the store that has their contents.
#[derive(Clone, Default)]
pub struct Objects<S> {
    store: S,
    /// The store had no memory for one of the last.
    is_full: bool,
    table: Vec<Object>,
    free: Vec<u32>,
    /// Objects that nobody depended on when they were put here, and since when, oldest first; looked at again when
    /// taken.
    queue: VecDeque<(u32, u32)>,
    clean_bytes: usize,
    borrowed_pages: usize,
    /// How many pages have gone out; it begins anew after 16 TiB.
    clock: u32,
}

impl<S> Objects<S> {
    /// No object yet.
    pub fn new(store: S) -> Objects<S> {
        Objects::<()>::default().with_store(store)
    }

    fn with_store<T>(self, store: T) -> Objects<T> {
        let Objects { table, free, queue, clean_bytes, borrowed_pages, clock, is_full, .. } = self;
        Objects { store, is_full, table, free, queue, clean_bytes, borrowed_pages, clock }
    }

    /// The objects without their store; none are left here.
    pub fn take_table(&mut self) -> Objects<()> {
        use core::mem::take;
        let (table, free, queue) = (take(&mut self.table), take(&mut self.free), take(&mut self.queue));
        let (clean_bytes, borrowed_pages) = (take(&mut self.clean_bytes), take(&mut self.borrowed_pages));
        Objects {
            store: (),
            is_full: false,
            table,
            free,
            queue,
            clean_bytes,
            borrowed_pages,
            clock: self.clock,
        }
    }

    /// The same as a copy; these stay.
    pub fn clone_table(&self) -> Objects<()> {
        let (table, free, queue) = (self.table.clone(), self.free.clone(), self.queue.clone());
        let &Objects { clean_bytes, borrowed_pages, clock, .. } = self;
        Objects { store: (), is_full: false, table, free, queue, clean_bytes, borrowed_pages, clock }
    }

    /// In a child, which has none yet: these are its.
    pub fn adopt(&mut self, objects: Objects<()>) {
        debug_assert!(self.table.is_empty());
        let Objects { table, free, queue, clean_bytes, borrowed_pages, clock, .. } = objects;
        (self.table, self.free, self.queue) = (table, free, queue);
        (self.clean_bytes, self.borrowed_pages, self.clock) = (clean_bytes, borrowed_pages, clock);
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The same, to be asked for something.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// True when the store had no memory for one of the last objects.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// It had, or had not.
    pub fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
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
            clean_since: 0,
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

    /// One that depended on it only names it now (`Stored` to `Clean`).
    pub fn clean(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        o.stored -= 1;
        self.borrowed_pages -= o.borrowed as usize;
        if o.stored == 0 {
            (o.clean, o.clean_since) = (true, self.clock);
            self.clean_bytes += o.bytes();
            if !core::mem::replace(&mut o.queued, true) {
                self.queue.push_back((id, self.clock));
            }
        }
    }

    /// One that named it depends on it again (`Clean` to `Stored`).
    pub fn depend(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        o.stored += 1;
        self.borrowed_pages += o.borrowed as usize;
        if core::mem::take(&mut o.clean) {
            self.clean_bytes -= o.bytes();
        }
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
        let (mut clean_bytes, mut borrowed) = (0, 0);
        let mut queued = alloc::vec![0; self.table.len()];
        self.queue.iter().for_each(|&(id, _)| queued[id as usize] += 1);
        for (id, o) in self.iter() {
            let is_right = o.stored <= o.refs
                && o.clean <= (o.stored == 0)
                && (o.body != Body::Dropped || o.stored == 0)
                && (!o.is_copy() || o.queued)
                && queued[id as usize] == o.queued as usize;
            if !is_right {
                return Err(format!("object {id} is in the queue {} times: {o:?}", queued[id as usize]));
            }
            clean_bytes += if o.clean { o.bytes() } else { 0 };
            borrowed += if o.borrowed { o.stored as usize } else { 0 };
        }
        let (found, counted) = ([clean_bytes, borrowed], [self.clean_bytes, self.borrowed_pages]);
        if found != counted {
            return Err(format!("bytes of clean copies, and borrowed pages: {found:?}, counted {counted:?}"));
        }
        let free = self.table.iter().filter(|o| o.refs == 0).count();
        if free != self.free.len() {
            return Err(format!("{free} ids are free, {} are listed", self.free.len()));
        }
        Ok(())
    }

    /// Every object that somebody names.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Object)> {
        self.table.iter().enumerate().filter(|(_, o)| o.refs > 0).map(|(id, o)| (id as u32, o))
    }
}

impl<S: Contents> Objects<S> {
    /// One less. The last one frees it.
    pub fn release(&mut self, id: u32, stored: bool) {
        if stored {
            self.clean(id);
        }
        let o = &mut self.table[id as usize];
        o.refs -= 1;
        if o.refs == 0 {
            self.clean_bytes -= if core::mem::take(&mut o.clean) { o.bytes() } else { 0 };
            o.frozen = false;
            self.store.free(core::mem::replace(&mut o.body, Body::Dropped));
            self.free.push(id);
        }
    }

    /// Another process has copies of all that there are.
    pub fn freeze(&mut self) {
        self.table.iter_mut().for_each(|o| o.frozen = o.refs > 0);
        self.clean_bytes = 0;
        self.store.freeze();
    }

    /// It has none any more.
    pub fn thaw(&mut self) {
        for (id, o) in (0..).zip(&mut self.table) {
            if core::mem::take(&mut o.frozen) && o.is_copy() {
                self.clean_bytes += o.bytes();
                if !core::mem::replace(&mut o.queued, true) {
                    self.queue.push_back((id, o.clean_since));
                }
            }
        }
        self.store.thaw();
    }

    /// Gives up a clean copy: the pool's memory of an object on which nobody depends. False when there is none. A
    /// copy has been of no use if its page has not gone out again while `due` others did, and goes first. Else it
    /// is the newest: the page of an older one will be wanted again sooner, and were the oldest given up, a program
    /// that goes round in more memory than there is room for copies would find none at all.
    pub fn drop_clean(&mut self, due: usize) -> bool {
        while let Some(&(id, since)) = self.queue.front() {
            let o = &mut self.table[id as usize];
            if o.is_copy() && o.clean_since == since {
                if self.clock.wrapping_sub(since) as usize <= due {
                    break;
                }
                self.queue.pop_front();
                self.forget(id);
                return true;
            }
            self.queue.pop_front();
            if o.is_copy() {
                // Wanted and given back since.
                self.queue.push_back((id, o.clean_since));
            } else {
                o.queued = false;
            }
        }
        while let Some((id, _)) = self.queue.pop_back() {
            if self.table[id as usize].is_copy() {
                self.forget(id);
                return true;
            }
            self.table[id as usize].queued = false;
        }
        false
    }

    /// Gives up the memory of a clean copy that is no longer in the queue.
    fn forget(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        o.queued = false;
        self.clean_bytes -= o.bytes();
        self.store.free(core::mem::replace(&mut o.body, Body::Dropped));
    }

    /// An object was split: what depends on it no more need not be kept for those that only name it, one page in a
    /// large object.
    pub fn give_up(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        o.split = true;
        if core::mem::take(&mut o.clean) {
            self.clean_bytes -= o.bytes();
            self.store.free(core::mem::replace(&mut o.body, Body::Dropped));
        }
    }

    /// Bytes that the store holds.
    pub fn pool_bytes(&self) -> usize {
        self.store.pool_bytes()
    }
}

#[cfg(test)]
mod tests;
