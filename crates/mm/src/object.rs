//! Objects: what went out together and is kept as one, with the number of pages that still need it.
//!
//! Invariants, checked by `check.rs`:
//! - `refs` = entries of kind Stored and Clean, priors of slots, and fetches under way that name the object
//! - `stored` = entries of kind Stored and fetches under way; `stored <= refs`
//! - a `Dropped` object has `stored == 0`: nobody's contents depend on it
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
    /// When it was stored, in milliseconds of the kernel's clock.
    pub born_ms: u64,
}

/// All objects.
#[derive(Default)]
pub struct Objects {
    table: Vec<Object>,
    free: Vec<u32>,
    /// Objects that nobody depended on when they were put here, oldest first; looked at again when taken.
    clean: VecDeque<u32>,
}

impl Objects {
    /// Enters a new object that nobody names yet; `retain` follows.
    pub fn insert(&mut self, body: Body, born_ms: u64) -> u32 {
        let object = Object { body, refs: 0, stored: 0, born_ms };
        match self.free.pop() {
            Some(id) => {
                self.table[id as usize] = object;
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
        let o = &mut self.table[id as usize];
        o.refs += 1;
        o.stored += stored as u32;
    }

    /// One less. The last one frees it.
    pub fn release(&mut self, id: u32, stored: bool, store: &mut impl Store) {
        let o = &mut self.table[id as usize];
        o.refs -= 1;
        o.stored -= stored as u32;
        if o.refs == 0 {
            store.free(core::mem::replace(&mut o.body, Body::Dropped));
            self.free.push(id);
        } else if stored && o.stored == 0 {
            self.clean.push_back(id);
        }
    }

    /// One that depended on it only names it now (`Stored` to `Clean`).
    pub fn clean(&mut self, id: u32) {
        let o = &mut self.table[id as usize];
        o.stored -= 1;
        if o.stored == 0 {
            self.clean.push_back(id);
        }
    }

    /// One that named it depends on it again (`Clean` to `Stored`).
    pub fn depend(&mut self, id: u32) {
        self.table[id as usize].stored += 1;
    }

    /// Gives up the oldest clean copy: the pool's memory of an object on which nobody depends. False when there is none.
    pub fn drop_clean(&mut self, store: &mut impl Store) -> bool {
        while let Some(id) = self.clean.pop_front() {
            let o = &mut self.table[id as usize];
            if o.refs > 0 && o.stored == 0 && matches!(o.body, Body::Blob { .. }) {
                store.free(core::mem::replace(&mut o.body, Body::Dropped));
                return true;
            }
        }
        false
    }

    /// How many entries wait in the list of clean copies; some may have been used again since.
    pub fn clean_len(&self) -> usize {
        self.clean.len()
    }

    /// Every object that somebody names.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Object)> {
        self.table.iter().enumerate().filter(|(_, o)| o.refs > 0).map(|(id, o)| (id as u32, o))
    }
}
