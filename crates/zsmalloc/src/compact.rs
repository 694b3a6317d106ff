//! Compaction: objects of the emptiest zspages fill the holes of the fullest, and what becomes empty goes back to the kernel.
//!
//! ```text
//!   before   src |a . . b . .|     dst |c d . e f .|        . = a hole
//!   after        (given back)          |c d b e f a|
//!   the last     |g . h . . i|  ->     |g i h|              its end is given back
//! ```
//!
//! A class ends up with full zspages and one that has no holes. The lock of the class is taken anew for each object, so that others
//! wait for one copy at most. Moving is safe because
//! 1. source and destination belong to this class, whose lock is held: neither can go away, and the free slot stays free;
//! 2. the object is EXCLUSIVE: nobody reads it where it was, and the next reader finds it where it is;
//! 3. an object that is pinned, being written or being freed cannot be made EXCLUSIVE, and is passed over.

use crate::arena::pointer;
use crate::backing::Backing;
use crate::class::Class;
use crate::fullness::Zspages;
use crate::handle::{Exclusive, Handle};
use crate::pool::Pool;
use core::ptr;
use core::sync::atomic::Ordering::*;

/// What compaction has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Objects that lie elsewhere now.
    pub objects_moved: usize,
    /// Sum of their lengths.
    pub bytes_moved: usize,
    /// Memory that went back to the kernel.
    pub bytes_freed: usize,
}

impl<B: Backing> Pool<B> {
    /// Moves objects until no memory is to be gained, or until `budget_bytes` were moved; the next call goes on where this one stopped.
    /// Also gives back the memory kept for the next zspages.
    pub fn compact(&self, budget_bytes: usize) -> Compacted {
        let mut done = Compacted::default();
        while let Some(span) = { self.arenas.lock().take_spare() } {
            self.release(span);
            done.bytes_freed += span.committed;
        }
        let first = self.cursor.load(Relaxed);
        for turn in 0..self.classes.len() {
            let number = (first + turn) % self.classes.len();
            self.cursor.store(number, Relaxed);
            while done.bytes_moved < budget_bytes && self.move_one(&self.classes[number], &mut done) {}
            self.trim_emptiest(&self.classes[number], &mut done);
            if done.bytes_moved >= budget_bytes {
                break;
            }
        }
        done
    }

    /// Moves one object of a class; false when there is none to move.
    fn move_one(&self, class: &Class, done: &mut Compacted) -> bool {
        let mut zspages = class.zspages.lock();
        let Some((src, dst)) = zspages.emptiest_and_fullest() else { return false };
        let dst = dst.unwrap_or(src);
        let Some(hole) = zspages.get(dst).lowest_free() else { return false };
        let Some((slot, owner, exclusive)) = self.last_idle(&zspages, src) else { return false };
        if src == dst && hole > slot {
            return false;
        }
        let to = zspages.get(dst).span.at + hole * class.size;
        // SAFETY: two slots of one class, both committed or about to be, of at least `len` bytes; they differ, because one is free.
        // The object is ours alone, and so is the hole while the class is locked.
        unsafe { ptr::copy_nonoverlapping(exclusive.at().as_ptr(), pointer(to).as_ptr(), exclusive.len()) };
        exclusive.relocate(to, dst);
        done.objects_moved += 1;
        done.bytes_moved += exclusive.len();
        drop(exclusive);
        let grown = zspages.change(dst, |zspage| zspage.take(hole, owner, class.size));
        self.held.fetch_add(grown, Relaxed);
        let inuse = zspages.change(src, |zspage| {
            zspage.give(slot);
            zspage.inuse
        });
        if inuse == 0 {
            let span = self.remove_zspage(&mut zspages, src);
            drop(zspages);
            done.bytes_freed += span.committed;
            self.release(span);
        }
        true
    }

    /// The last object of a zspage that nobody looks at: its slot, its owner, and the object, EXCLUSIVE.
    fn last_idle(&self, zspages: &Zspages, id: u32) -> Option<(usize, u32, Exclusive<'_>)> {
        zspages.table[id as usize].taken_from_top().find_map(|(slot, owner)| {
            let exclusive = self.handles.entry(Handle::from_raw(owner)?).try_exclude()?;
            Some((slot, owner, exclusive))
        })
    }

    /// Gives back the end of the zspage that objects were taken from.
    fn trim_emptiest(&self, class: &Class, done: &mut Compacted) {
        let mut zspages = class.zspages.lock();
        let Some((src, _)) = zspages.emptiest_and_fullest() else { return };
        let (at, bytes) = zspages.get(src).trim(class.size);
        if bytes > 0 {
            self.backing.decommit(pointer(at), bytes);
            self.held.fetch_sub(bytes, Relaxed);
            done.bytes_freed += bytes;
        }
    }
}
