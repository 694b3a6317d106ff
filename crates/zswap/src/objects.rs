//! Objects: what went out together and is kept as one, with the number of pages that still need it.
//!
//! ```text
//!   Objects ──> Entries   what is known of each: who needs it, clean copies, which goes to an area first
//!      │           └────> Swapped   what lies in areas, and what is on its way there and back
//!      └──────> Contents  where the bytes are: the pool, the workers, the areas
//! ```

mod entries;
mod lru;
mod object;
mod swap_cache;
mod swapped;

use crate::WINDOW_PAGES;
use core::ops::{Deref, DerefMut, Range};
pub use entries::Entries;
pub use object::{Body, Io, Object};
use swap_cache::Left;
use swapped::Chosen;
pub use swapped::{BATCH_BYTES, BATCHES, Batch, Came, Piece, READ_TRIES, Read, Swapped};

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
    /// The hash of a page of an object in the pool; `None` where it is damaged.
    fn hash(&self, body: Body, page: usize) -> Option<u128>;
    /// What writes to swap areas and reads from them, where there are any.
    fn areas(&mut self) -> Option<&mut dyn Areas> {
        None
    }
}

/// What writes to swap areas and reads from them, while the caller goes on.
pub trait Areas {
    /// Has a batch sealed, which gives each piece its tag, and written. What its objects hold is copied at once: they
    /// may be freed afterwards.
    fn write(&mut self, number: usize, batch: &mut Batch);
    /// Puts up that an object is to be read, opened, and taken into the pool.
    fn read(&mut self, read: Read);
    /// Has begin what was put up. Where nobody says so it begins when results are looked for.
    fn submit(&mut self);
    /// Nobody needs these slots, and nobody else can have them yet.
    fn discard(&mut self, slots: Range<u32>);
    /// For the user: which area a slot is in, counted from 0, and where in it, in bytes.
    fn find(&self, slot: u32) -> Option<(usize, u64)>;
}

/// What a look for objects to be written has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBack {
    /// A batch of so many bytes is on its way.
    Begun {
        /// Padding not included.
        bytes: usize,
    },
    /// Memory was freed without one: what it held lies in an area since before.
    Freed {
        /// Of objects, as they lay in the pool.
        bytes: usize,
    },
    /// There is no room in any area.
    Full,
    /// Nothing is old enough, or as much is under way as may be.
    None,
}

/// All objects, and the store that has their contents.
#[derive(Default)]
pub struct Objects<S> {
    store: S,
    /// The store had no memory for one of the last.
    is_full: bool,
    /// Memory of the pool was given back since that was asked.
    has_freed: bool,
    entries: Entries,
}

impl<S> Objects<S> {
    /// No object yet.
    pub fn new(store: S) -> Objects<S> {
        Objects { store, is_full: false, has_freed: false, entries: Entries::default() }
    }

    /// The entries without their store; none are left here.
    pub fn take_entries(&mut self) -> Entries {
        core::mem::take(&mut self.entries)
    }

    /// In a child, which has none yet: these are its.
    pub fn adopt(&mut self, entries: Entries) {
        debug_assert!(self.entries.table.is_empty());
        self.entries = entries;
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

    /// True when memory of the pool was given back since the last call.
    pub fn take_freed(&mut self) -> bool {
        core::mem::take(&mut self.has_freed)
    }

    /// It had, or had not.
    pub fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }
}

impl<S> Deref for Objects<S> {
    type Target = Entries;

    fn deref(&self) -> &Entries {
        &self.entries
    }
}

impl<S> DerefMut for Objects<S> {
    fn deref_mut(&mut self) -> &mut Entries {
        &mut self.entries
    }
}

impl<S: Contents> Objects<S> {
    /// One less. The last one frees it.
    pub fn release(&mut self, id: u32, stored: bool) {
        let freed = self.entries.release(id, stored);
        self.free(freed);
    }

    fn free(&mut self, bodies: impl IntoIterator<Item = Body>) {
        for body in bodies {
            self.has_freed |= body.bytes() > 0;
            self.store.free(body);
        }
    }

    /// Frees what has left the pool. Where pages in the program name it their hashes are kept before.
    fn leave(&mut self, left: impl IntoIterator<Item = Left>) {
        for Left { id, body } in left {
            if self.entries.wants_hashes(id) {
                let mut hashes = [0; WINDOW_PAGES];
                let hashes = &mut hashes[..self.entries.get(id).pages.into()];
                let are_all = hashes.iter_mut().enumerate().all(|(page, hash)| {
                    self.store.hash(body, page).inspect(|&of_page| *hash = of_page).is_some()
                });
                self.entries.keep_hashes(id, are_all.then_some(&*hashes));
            }
            self.free([body]);
        }
    }

    /// The only page of an object was loaded: where that is in an area too the pool need not have it any more. False
    /// where it is not so, and nothing has happened.
    pub fn leave_to_area(&mut self, id: u32) -> bool {
        let left = self.entries.leave_to_area(id);
        self.leave(left);
        left.is_some()
    }

    /// Another process has copies of all that there are.
    pub fn freeze(&mut self) {
        self.entries.freeze();
        self.store.freeze();
    }

    /// It has none any more.
    pub fn thaw(&mut self) {
        self.entries.thaw();
        self.store.thaw();
    }

    /// Gives up a clean copy, as [`Entries`] say which. False when there is none.
    pub fn drop_clean(&mut self, due: usize) -> bool {
        let left = self.entries.drop_clean(due);
        self.leave(left);
        left.is_some()
    }

    /// An object was split: what depends on it no more need not be kept for those that only name it.
    pub fn give_up(&mut self, id: u32) {
        let freed = self.entries.give_up(id);
        self.free(freed);
    }

    /// Bytes that the store holds.
    pub fn pool_bytes(&self) -> usize {
        self.store.pool_bytes()
    }

    /// Has the oldest objects written to an area, as many as are written at once; or frees what has been written
    /// before. What it came to.
    pub fn write_back(&mut self) -> WriteBack {
        let Chosen { batch, freed, is_full } = self.entries.choose();
        let bytes = freed.iter().map(|left| left.body.bytes()).sum();
        let is_freed = !freed.is_empty();
        self.leave(freed);
        let Some(number) = batch else {
            return match (is_freed, is_full) {
                (true, _) => WriteBack::Freed { bytes },
                (false, true) => WriteBack::Full,
                (false, false) => WriteBack::None,
            };
        };
        let batch = self.entries.swapped.batch_mut(number).expect("it was just made");
        self.store.areas().expect("who has slots has areas").write(number, batch);
        WriteBack::Begun { bytes: batch.bytes() }
    }

    /// For the user: where an object lies that is in an area, and how many bytes it takes there: which area, counted
    /// from 0, and where in it.
    pub fn where_in_area(&mut self, id: u32) -> Option<(usize, u64, u32)> {
        let place = self.entries.place_of(id)?;
        let (area, at) = self.store.areas()?.find(place.slot)?;
        Some((area, at + place.offset as u64, place.bytes))
    }

    /// A batch was written, or could not be.
    pub fn written(&mut self, number: usize, is_written: bool) {
        let left = self.entries.written(number, is_written);
        self.leave(left);
    }

    /// Gives clusters back of which this process needs nothing, where there is little room also what it has there for
    /// the sake of pages that are in the program.
    pub fn give_back_slots(&mut self) {
        let Objects { store, entries, .. } = self;
        entries.look_for_room();
        if let (Some(slots), Some(areas)) = (entries.swapped.slots_mut(), store.areas()) {
            slots.give_back_empty(|slots| areas.discard(slots));
        }
    }

    /// An object in an area is wanted. True when it is to be read from now on, once `submit_reads` says so; it may have
    /// been before.
    pub fn read_back(&mut self, id: u32) -> bool {
        let read = self.entries.read_back(id);
        if let Some(read) = read {
            self.store.areas().expect("who has slots has areas").read(read);
        }
        read.is_some()
    }

    /// Has begin what is to be read.
    pub fn submit_reads(&mut self) {
        if let Some(areas) = self.store.areas() {
            areas.submit();
        }
    }

    /// It was read, or not.
    pub fn came_back(&mut self, id: u32, came: Came) {
        let freed = self.entries.came_back(id, came);
        self.free(freed);
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
