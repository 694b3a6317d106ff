//! Compaction: objects of the emptiest zspages fill the holes of the fullest, and what becomes empty goes back to the
//! kernel.
//!
//! ```text
//!   before   src |a . . b . .|     dst |c d . e f .|        . = a hole
//!   after        (given back)          |c d b e f a|
//!   the last     |g . h . . i|  ->     |g i h|              its end is given back
//! ```
//!
//! A class ends up with full zspages and one that has no holes. The lock of the class is taken anew for each object, so
//! that others wait for one copy at most. Moving is safe because
//! 1. source and destination belong to this class, whose lock is held: neither can go away, and the free slot stays
//!    free;
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
    /// Moves objects until no memory is to be gained, or until `budget_bytes` were moved; the next call goes on where
    /// this one stopped. Also gives back the memory kept for the next zspages.
    ///
    /// A pool whose objects come and go at random leaves a tenth of itself idle, a small one more. If this is called
    /// for a MiB whenever `pool_bytes` is more than `stored_bytes`, 5 % and a MiB, it stays there (`examples/fill.rs`
    /// measures what that costs).
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
        // SAFETY: two slots of one class, both committed or about to be, of at least `len` bytes; they differ, because
        // one is free. The object is ours alone, and so is the hole while the class is locked.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Heap, fill};
    use base::Random;

    /// Objects of one class, numbered from 0, with contents that follow from the number.
    fn filled(heap: &Heap, count: usize, len: usize) -> (Pool<&Heap>, Vec<Handle>) {
        let pool = Pool::new(heap);
        let handles: Vec<_> = (0..count).map(|_| pool.alloc(len).unwrap()).collect();
        for (number, &handle) in handles.iter().enumerate() {
            pool.write(handle, |object| fill(object, number as u64));
        }
        (pool, handles)
    }

    fn assert_contents(pool: &Pool<&Heap>, handle: Handle, number: usize) {
        let mut expected = vec![0; pool.len(handle)];
        fill(&mut expected, number as u64);
        assert!(*pool.read(handle) == expected[..], "object {number} has changed");
    }

    /// The zspages of a class, a line each: objects by number, `.` for a hole, and how many pages are committed.
    fn dump(pool: &Pool<&Heap>, handles: &[Handle], len: usize) -> Vec<String> {
        let zspages = pool.classes[crate::class::class_of(len)].zspages.lock();
        let name = |&owner: &u32| {
            let number = handles.iter().position(|h| h.into_raw() == owner);
            number.map_or(".".into(), |number| number.to_string())
        };
        let line = |(_, z): (u32, &crate::zspage::Zspage)| {
            let slots: Vec<_> = z.owners.iter().map(name).collect();
            format!("{} | {} pages", slots.join(" "), z.span.committed / crate::PAGE)
        };
        zspages.iter().map(line).collect()
    }

    /// 8 slots of two pages.
    const LEN: usize = 8192;

    #[test]
    fn a_pinned_object_stays_where_it_is_until_the_last_pin_ends() {
        let heap = Heap::new(usize::MAX);
        let (pool, handles) = filled(&heap, 16, LEN);
        let kept = [0, 1, 2, 3, 12];
        for number in (0..16).filter(|n| !kept.contains(n)) {
            pool.free(handles[number]);
        }
        let there = pool.pin(handles[12]);
        assert_eq!(pool.compact(usize::MAX).objects_moved, 0);
        assert_eq!(pool.pin(handles[12]), there);
        pool.unpin(handles[12]);
        assert_eq!(pool.compact(usize::MAX).objects_moved, 0, "it is pinned still");
        pool.unpin(handles[12]);
        assert_eq!(pool.compact(usize::MAX).objects_moved, 1);
        kept.into_iter().for_each(|number| assert_contents(&pool, handles[number], number));
        pool.check().unwrap();
    }

    #[test]
    fn the_emptiest_fills_the_fullest_and_the_last_one_closes_up() {
        let heap = Heap::new(usize::MAX);
        let (pool, handles) = filled(&heap, 24, LEN);
        for number in [1, 4, 8, 9, 11, 13, 14, 15, 16, 17, 19, 20, 21] {
            pool.free(handles[number]);
        }
        assert_eq!(
            dump(&pool, &handles, LEN),
            ["0 . 2 3 . 5 6 7 | 16 pages", ". . 10 . 12 . . . | 16 pages", ". . 18 . . . 22 23 | 16 pages"]
        );
        let done = pool.compact(usize::MAX);
        // 12 and 10 leave the emptiest zspage, which goes; then nothing else has room, and the last zspage closes up.
        assert_eq!(
            dump(&pool, &handles, LEN),
            ["0 12 2 3 10 5 6 7 | 16 pages", "23 22 18 . . . . . | 6 pages"]
        );
        assert_eq!(done, Compacted { objects_moved: 4, bytes_moved: 4 * LEN, bytes_freed: 26 * crate::PAGE });
        assert_eq!(heap.decommitted_bytes(), done.bytes_freed);
        for number in [0, 2, 3, 5, 6, 7, 10, 12, 18, 22, 23] {
            assert_contents(&pool, handles[number], number);
        }
        pool.check().unwrap();
        assert_eq!(pool.compact(usize::MAX), Compacted::default(), "nothing is left to do");
    }

    #[test]
    fn a_pinned_object_stays_and_the_next_call_moves_it() {
        let heap = Heap::new(usize::MAX);
        let (pool, handles) = filled(&heap, 16, LEN);
        for number in [0, 1, 9, 10, 11, 12, 14, 15] {
            pool.free(handles[number]);
        }
        let pinned = pool.read(handles[8]);
        let at = pinned.as_ptr();
        pool.compact(usize::MAX);
        assert_eq!(dump(&pool, &handles, LEN), ["13 . 2 3 4 5 6 7 | 16 pages", "8 . . . . . . . | 2 pages"]);
        assert_eq!(pinned.as_ptr(), at);
        drop(pinned);
        pool.compact(usize::MAX);
        assert_eq!(dump(&pool, &handles, LEN), ["13 8 2 3 4 5 6 7 | 16 pages"]);
        assert_contents(&pool, handles[8], 8);
        assert_contents(&pool, handles[13], 13);
        pool.check().unwrap();
    }

    #[test]
    fn an_object_that_is_being_written_stays() {
        let heap = Heap::new(usize::MAX);
        let (pool, handles) = filled(&heap, 9, LEN);
        pool.free(handles[0]);
        pool.write(handles[8], |object| {
            assert_eq!(pool.compact(usize::MAX).objects_moved, 0);
            fill(object, 99);
        });
        assert_eq!(pool.compact(usize::MAX).objects_moved, 1);
        assert_contents(&pool, handles[8], 99);
    }

    #[test]
    fn half_of_a_pool_goes_back_in_small_steps() {
        let heap = Heap::new(usize::MAX);
        let pool = Pool::new(&heap);
        let mut random = Random(7);
        let mut handles: Vec<_> = (0..if cfg!(miri) { 20 } else { 4000 })
            .map(|number| {
                let len = if cfg!(miri) { 600 } else { (2 << 10) + random.below(38 << 10) };
                let handle = pool.alloc(len).unwrap();
                pool.write(handle, |object| fill(object, number));
                (number as usize, handle)
            })
            .collect();
        for left in (handles.len() / 2..handles.len()).rev() {
            let (_, handle) = handles.swap_remove(random.below(left + 1));
            pool.free(handle);
        }
        let mut steps = 0;
        while pool.compact(256 << 10).objects_moved > 0 {
            steps += 1;
            assert!(steps < 1000, "compaction does not come to an end");
        }
        assert!(cfg!(miri) || steps > 10, "the budget was not kept: {steps} steps");
        pool.check().unwrap();
        for (number, handle) in handles {
            assert_contents(&pool, handle, number);
        }
        let (held, stored) = (pool.pool_bytes(), pool.stored_bytes());
        assert!(cfg!(miri) || stored * 100 >= held * 95, "{stored} bytes stored in {held}");
    }
}
