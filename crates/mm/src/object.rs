//! Objects: what went out together and is kept as one, with the number of pages that still need it.
//!
//! Invariants, checked by `check.rs`:
//! - `refs` = entries of kind Stored and Clean, priors of slots, and fetches under way that name the object
//! - `stored` = entries of kind Stored and fetches under way; `stored <= refs`
//! - a `Dropped` object has `stored == 0`: nobody's contents depend on it
//! - `clean` says that somebody names the object and nobody depends on it; `clean_bytes` is the pool's memory of all of those
//! - an object whose `queued` is set is in the list of clean copies, once
//! - `refs == 0` if and only if the id is free

use crate::kernel::{Body, Store};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// One object.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// What it holds.
    pub body: Body,
    /// How many name it.
    pub refs: u32,
    /// How many of them have no other copy.
    pub stored: u32,
    /// Nobody depends on it any more.
    pub clean: bool,
    queued: bool,
    /// When it was stored, in milliseconds of the kernel's clock.
    pub born_ms: u64,
}

impl Object {
    fn bytes(&self) -> usize {
        match self.body {
            Body::Blob { bytes, .. } => bytes as usize,
            Body::Same(_) | Body::Dropped => 0,
        }
    }
}

/// All objects.
#[derive(Default)]
pub struct Objects {
    table: Vec<Object>,
    free: Vec<u32>,
    /// Objects that nobody depended on when they were put here, oldest first; looked at again when taken.
    queue: VecDeque<u32>,
    clean_bytes: usize,
}

impl Objects {
    /// Enters a new object that nobody names yet; `retain` follows.
    pub fn insert(&mut self, body: Body, born_ms: u64) -> u32 {
        let object = Object { body, refs: 0, stored: 0, clean: false, queued: false, born_ms };
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

    /// The object.
    pub fn get(&self, id: u32) -> &Object {
        &self.table[id as usize]
    }

    /// One more names it, and depends on it if `stored`.
    pub fn retain(&mut self, id: u32, stored: bool) {
        self.table[id as usize].refs += 1;
        if stored {
            self.depend(id);
        }
    }

    /// One less. The last one frees it.
    pub fn release(&mut self, id: u32, stored: bool, store: &mut impl Store) {
        if stored {
            self.clean(id);
        }
        let o = &mut self.table[id as usize];
        o.refs -= 1;
        if o.refs == 0 {
            self.clean_bytes -= if core::mem::take(&mut o.clean) { o.bytes() } else { 0 };
            store.free(core::mem::replace(&mut o.body, Body::Dropped));
            self.free.push(id);
        }
    }

    /// One that depended on it only names it now (`Stored` to `Clean`).
    pub fn clean(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        o.stored -= 1;
        if o.stored == 0 {
            o.clean = true;
            self.clean_bytes += o.bytes();
            if !core::mem::replace(&mut o.queued, true) {
                self.queue.push_back(id);
            }
        }
    }

    /// One that named it depends on it again (`Clean` to `Stored`).
    pub fn depend(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        o.stored += 1;
        if core::mem::take(&mut o.clean) {
            self.clean_bytes -= o.bytes();
        }
    }

    /// Gives up the oldest clean copy: the pool's memory of an object on which nobody depends. False when there is none.
    pub fn drop_clean(&mut self, store: &mut impl Store) -> bool {
        while let Some(id) = self.queue.pop_front() {
            let o = &mut self.table[id as usize];
            o.queued = false;
            if o.clean && matches!(o.body, Body::Blob { .. }) {
                self.clean_bytes -= o.bytes();
                store.free(core::mem::replace(&mut o.body, Body::Dropped));
                return true;
            }
        }
        false
    }

    /// Bytes of the pool that hold clean copies alone.
    pub fn clean_bytes(&self) -> usize {
        self.clean_bytes
    }

    /// Every object that somebody names.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Object)> {
        self.table.iter().enumerate().filter(|(_, o)| o.refs > 0).map(|(id, o)| (id as u32, o))
    }
}
